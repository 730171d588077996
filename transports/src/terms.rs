//! Values that two ends must have in common before they exchange a message.

use std::collections::BTreeMap;

use gradwire::{LayoutRef, Spec};

/// The longest name or value, in bytes.
pub(crate) const MAX_TEXT: usize = 512;
/// The most terms that a greeting holds.
pub(crate) const MAX_TERMS: usize = 64;

/// Names with values that must be equal at both ends: the layout's fingerprint, the codec's spelling, and
/// whatever else the run depends on. The ends compare them in the greeting. A refusal lists every name on
/// which they differ.
///
/// # Examples
/// ```
/// use gradwire::{LayoutRef, Spec};
/// use gradwire_transports::Terms;
///
/// let spec = Spec::parse("topk:density=0.01").unwrap();
/// let terms = Terms::new(&LayoutRef::flat(650), &spec).with("batch", 128);
/// let other = Terms::new(&LayoutRef::flat(650), &spec).with("batch", 64);
/// assert_eq!(terms.differences(&other)[0].to_string(), "batch is 128 here and 64 there");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms(BTreeMap<String, String>);

/// One term on which two ends do not agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// Its value at this end; empty when this end has no such term.
    pub own: String,
    /// Its value at the other end.
    pub theirs: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or_none =
            |text: &str| if text.is_empty() { "not set".to_owned() } else { text.escape_debug().to_string() };
        let name = self.name.escape_debug();
        write!(f, "{name} is {} here and {} there", or_none(&self.own), or_none(&self.theirs))
    }
}

impl Difference {
    /// The same difference, as the other end sees it.
    #[cfg(any(test, feature = "zmq"))]
    pub(crate) fn reversed(self) -> Self {
        Self { name: self.name, own: self.theirs, theirs: self.own }
    }

    /// Name and values.
    #[cfg(feature = "zmq")]
    pub(crate) fn texts(&self) -> [&str; 3] {
        [&self.name, &self.own, &self.theirs].map(String::as_str)
    }

    /// All of them in one line.
    pub(crate) fn line(all: &[Self]) -> String {
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

impl Terms {
    /// The layout of the gradient and the codec.
    pub fn new(layout: &LayoutRef<'_>, spec: &Spec) -> Self {
        let fingerprint = format!("{} elements, fingerprint {:016x}", layout.len(), layout.fingerprint());
        Self::default().with("layout", fingerprint).with("codec", spec)
    }

    /// Adds a term. If a name has several values, the last one counts.
    ///
    /// # Panics
    /// If name or value is longer than 512 bytes, or with more than 64 terms.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        assert!(name.len().max(value.len()) <= MAX_TEXT, "a term has at most {MAX_TEXT} bytes");
        self.0.insert(name.to_owned(), value);
        assert!(self.0.len() <= MAX_TERMS, "at most {MAX_TERMS} terms");
        self
    }

    /// All terms on which the two differ, in alphabetical order.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let names: std::collections::BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let value = |terms: &Self, name: &String| terms.0.get(name).cloned().unwrap_or_default();
        let differ = names.into_iter().filter(|&name| self.0.get(name) != other.0.get(name));
        let difference = |name: &String| Difference {
            name: name.clone(),
            own: value(self, name),
            theirs: value(other, name),
        };
        differ.map(difference).collect()
    }

    /// Writes their number as u16, little-endian, then a name and a value for each.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.0.len() as u16).to_le_bytes());
        for (name, value) in &self.0 {
            put_text(out, name);
            put_text(out, value);
        }
    }

    /// Takes terms off the front of what a stranger sent; `None` if none that this end would write are there.
    pub(crate) fn split_off(bytes: &mut &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        let count = usize::from(u16::from_le_bytes(*count));
        let mut pair = |_| Some((split_text(bytes)?.to_owned(), split_text(bytes)?.to_owned()));
        let pairs: Option<BTreeMap<_, _>> =
            if count <= MAX_TERMS { (0..count).map(&mut pair).collect() } else { None };
        pairs.map(Self)
    }
}

/// Writes the length of a text as u16, little-endian, then its UTF-8. Cuts a long text between two
/// characters.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    out.extend_from_slice(&(end as u16).to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

/// Takes a text off the front of what a stranger sent.
pub(crate) fn split_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let (len, rest) = bytes.split_first_chunk()?;
    let len = usize::from(u16::from_le_bytes(*len));
    let (text, rest) = rest.split_at_checked(len).filter(|_| len <= MAX_TEXT)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_differences_are_named_with_both_values() {
        let a = Terms::default().with("lr", 0.1).with("seed", 1).with("batch", 8);
        let b = Terms::default().with("lr", 0.1).with("batch", 9);
        assert_eq!(a.differences(&a.clone()), []);
        let differences = a.differences(&b);
        let seed = Difference { name: "seed".into(), own: "1".into(), theirs: String::new() };
        assert_eq!(differences.len(), 2);
        assert_eq!(differences[1], seed);
        assert_eq!(b.differences(&a)[1], seed.reversed());
        let line = "batch is 8 here and 9 there; seed is 1 here and not set there";
        assert_eq!(Difference::line(&differences), line);
    }
}
