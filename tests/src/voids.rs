//! The manifest of `golden/voids/`: void frames, and what each says. `golden/README.md` explains the words.

use crate::manifest::{self, Line};
use crate::run;
use gradwire::format::VoidFrame;
use gradwire::{Gather, Layout, Spec};

/// One golden void frame.
#[derive(Clone, Debug)]
pub struct GoldenVoid {
    /// Name of the file, without its ending.
    pub name: String,
    /// Shapes of the layout.
    pub shapes: Vec<Vec<usize>>,
    /// What it says.
    pub void: VoidFrame,
}

impl GoldenVoid {
    /// # Panics
    /// When a word is missing or not understood.
    #[must_use]
    pub fn new(line: &Line) -> Self {
        let spelling = line.value("codec");
        let spec = Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"));
        let (step, index) = (line.number("step"), line.number("index") as usize);
        Self {
            name: line.value("file").to_owned(),
            shapes: manifest::shapes(line.value("layout")),
            void: VoidFrame { codec: spec.codec.id(), step, index },
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
    pub fn frame(&self) -> Vec<u8> {
        let path = manifest::folder("golden/voids").join(format!("{}.bin", self.name));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The frame as the crate under test writes it.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = [0xaa; VoidFrame::MAX_BYTES];
        let bytes = self.void.write(&self.layout().as_ref(), &mut out).expect("there is room");
        out[..bytes].to_vec()
    }
}

/// All golden void frames.
#[must_use]
pub fn all() -> Vec<GoldenVoid> {
    manifest::lines(&manifest::folder("golden/voids")).iter().map(GoldenVoid::new).collect()
}
