//! The manifest of `bad/`: bytes that must be refused, and with which error. `golden/README.md` explains the
//! words.

use crate::manifest::{self, Line};
use crate::run;
use gradwire::{DecodeError, Layout, Limits};

/// Who reads the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A reader of frames.
    Frame,
    /// A memory of a residual.
    Memory,
    /// A memory of a residual, momentum and one unit state.
    FullMemory,
    /// A memory of a residual and two factors.
    FactorMemory,
    /// A reader of void frames.
    Void,
}

/// One string of bytes that must be refused.
#[derive(Clone, Debug)]
pub struct Bad {
    /// Name of the file, without its ending.
    pub name: String,
    /// The error as it is printed.
    pub error: String,
    /// Shapes of the reader's layout.
    pub shapes: Vec<Vec<usize>>,
    /// The reader's limits.
    pub limits: Limits,
    /// Who reads them.
    pub reader: Reader,
}

impl Bad {
    /// # Panics
    /// When a word is missing or not understood.
    #[must_use]
    pub fn new(line: &Line) -> Self {
        let narrow = line.find("error32").filter(|_| usize::BITS == 32);
        Self {
            name: line.value("file").to_owned(),
            error: narrow.unwrap_or(line.value("error")).to_owned(),
            shapes: manifest::shapes(line.value("layout")),
            limits: line.find("limit").map_or_else(run::no_limits, limits),
            reader: line.find("reader").map_or(Reader::Frame, reader),
        }
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> Layout {
        run::layout(&self.shapes)
    }

    /// The bytes of the file.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let path = manifest::folder("bad").join(format!("{}.bin", self.name));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

fn reader(text: &str) -> Reader {
    match text {
        "memory" => Reader::Memory,
        "full-memory" => Reader::FullMemory,
        "factor-memory" => Reader::FactorMemory,
        "void" => Reader::Void,
        _ => panic!("unknown reader '{text}'"),
    }
}

/// An error as the manifest prints it.
#[must_use]
pub fn spelled(error: &DecodeError) -> String {
    format!("{error:?}").replace(' ', "")
}

fn limits(text: &str) -> Limits {
    let (field, value) = text.split_once(':').unwrap_or_else(|| panic!("limit '{text}'"));
    let mut limits = run::no_limits();
    let count = || value.parse().unwrap_or_else(|_| panic!("limit '{text}'"));
    match field {
        "elements" => limits.max_elements = count(),
        "body_bytes" => limits.max_body_bytes = count(),
        "entries" => limits.max_entries = count(),
        "units" => limits.max_units = count(),
        "scratch_words" => limits.max_scratch_words = count(),
        "magnitude" => limits.max_magnitude = value.parse().unwrap_or_else(|_| panic!("limit '{text}'")),
        _ => panic!("unknown limit '{text}'"),
    }
    limits
}

/// All bytes that must be refused.
#[must_use]
pub fn all() -> Vec<Bad> {
    manifest::lines(&manifest::folder("bad")).iter().map(Bad::new).collect()
}

/// Variants of an enum of the crate under test, by reading its source: the enums are open, and a new variant
/// without a file must be found.
///
/// # Panics
/// When the source is not there, or has no such enum.
#[must_use]
pub fn variants(name: &str) -> Vec<String> {
    let path = manifest::folder("../core/src/error.rs");
    let source = std::fs::read_to_string(&path).expect("the source of the errors is there");
    let body = source.split_once(&format!("pub enum {name} {{")).expect("the enum is there").1;
    let lines = body.lines().take_while(|line| *line != "}");
    let name_of =
        |line: &str| -> String { line.trim().chars().take_while(|c| c.is_alphanumeric()).collect() };
    lines
        .filter(|line| line.starts_with("    ") && line[4..].starts_with(|c: char| c.is_ascii_uppercase()))
        .map(name_of)
        .collect()
}
