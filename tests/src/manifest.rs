//! Manifests: one line a file, `key=value` words, `#` for comments.

use std::path::{Path, PathBuf};

/// One line: its words in order.
#[derive(Clone, Debug)]
pub struct Line(Vec<(String, String)>);

impl Line {
    fn parse(text: &str) -> Self {
        let word = |word: &str| {
            let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("'{word}' is not key=value"));
            (key.to_owned(), value.to_owned())
        };
        Self(text.split_whitespace().map(word).collect())
    }

    /// The value of `key`, if the line has it.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The value of `key`.
    ///
    /// # Panics
    /// When the line does not have it.
    #[must_use]
    pub fn value(&self, key: &str) -> &str {
        self.find(key).unwrap_or_else(|| panic!("no '{key}' in {self:?}"))
    }

    /// The value of `key` as a number.
    ///
    /// # Panics
    /// When the line does not have it, or it is not a number.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        self.value(key).parse().unwrap_or_else(|_| panic!("'{key}' is not a number in {self:?}"))
    }

    /// Replaces the value of `key`, or appends it.
    pub fn set(&mut self, key: &str, value: String) {
        match self.0.iter_mut().find(|(name, _)| name == key) {
            Some(slot) => slot.1 = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// The line as it stands in the file.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }
}

/// A folder beside this package's manifest.
#[must_use]
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The lines of a folder's manifest.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn lines(folder: &Path) -> Vec<Line> {
    text(folder).lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(Line::parse).collect()
}

/// The manifest as it stands in the file.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn text(folder: &Path) -> String {
    let path = folder.join("manifest.txt");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A copy of the manifest with every line that `complete` changes replaced.
#[must_use]
pub fn completed(folder: &Path, mut complete: impl FnMut(&mut Line) -> bool) -> String {
    let mut out = String::new();
    for text in text(folder).lines() {
        let mut line = (!text.is_empty() && !text.starts_with('#')).then(|| Line::parse(text));
        let changed = line.as_mut().is_some_and(&mut complete);
        out += &line.filter(|_| changed).map_or_else(|| text.to_owned(), |line| line.text());
        out.push('\n');
    }
    out
}

/// A layout's shapes: tensors separated by `+`, dimensions by `x`, `-` for a scalar, empty for no tensors.
///
/// # Panics
/// When a dimension is not a number.
#[must_use]
pub fn shapes(text: &str) -> Vec<Vec<usize>> {
    let dimension = |dim: &str| dim.parse().unwrap_or_else(|_| panic!("'{dim}' is not a dimension"));
    let shape = |shape: &str| if shape == "-" { vec![] } else { shape.split('x').map(dimension).collect() };
    text.split('+').filter(|shape| !shape.is_empty()).map(shape).collect()
}

/// The exact bits of a few values, or a hash (FNV-1a, 64 bits, over their little-endian bytes) of many.
#[must_use]
pub fn digest(values: &[f32]) -> String {
    if values.len() <= 16 {
        let bits: Vec<String> = values.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
        return format!("[{}]", bits.join(","));
    }
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("fnv:{hash:016x}")
}
