//! What two ends must have in common before they exchange a message.

use std::collections::BTreeMap;

use gradwire::{LayoutRef, Spec};

/// The longest name or value, in bytes.
pub(super) const MAX_TEXT: usize = 512;
/// The most terms that a greeting holds.
pub(super) const MAX_TERMS: usize = 64;

/// Names with values that must be equal at both ends: the layout's fingerprint, the codec's spelling, and
/// whatever else the run depends on. Both ends compare them when they greet each other, and refuse by name.
///
/// # Examples
/// ```
/// use gradwire::{LayoutRef, Spec};
/// use gradwire_transports::zmq::Terms;
///
/// let spec = Spec::parse("topk:density=0.01").unwrap();
/// let terms = Terms::new(&LayoutRef::flat(650), &spec).with("batch", 128);
/// let other = Terms::new(&LayoutRef::flat(650), &spec).with("batch", 64);
/// assert_eq!(terms.difference(&other).unwrap().to_string(), "batch is 128 here and 64 there");
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
    /// As the other end sees it.
    pub(super) fn reversed(self) -> Self {
        Self { name: self.name, own: self.theirs, theirs: self.own }
    }
}

impl Terms {
    /// The layout of the gradient and the codec.
    pub fn new(layout: &LayoutRef<'_>, spec: &Spec) -> Self {
        let fingerprint = format!("{} elements, fingerprint {:016x}", layout.len(), layout.fingerprint());
        Self::default().with("layout", fingerprint).with("codec", spec)
    }

    /// One more term; the last value for a name counts.
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

    /// The first name, in alphabetical order, on which the two do not agree.
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let names: std::collections::BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let value = |terms: &Self, name: &String| terms.0.get(name).cloned().unwrap_or_default();
        names.into_iter().find(|&name| self.0.get(name) != other.0.get(name)).map(|name| Difference {
            name: name.clone(),
            own: value(self, name),
            theirs: value(other, name),
        })
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Terms as they were read, whose lengths the reader has checked.
    pub(super) fn read(pairs: Vec<(String, String)>) -> Self {
        Self(pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let (a, b) = (Terms::default().with("lr", 0.1).with("seed", 1), Terms::default().with("lr", 0.1));
        assert_eq!(a.difference(&a.clone()), None);
        let difference = a.difference(&b).unwrap();
        assert_eq!(difference, Difference { name: "seed".into(), own: "1".into(), theirs: String::new() });
        assert_eq!(b.difference(&a), Some(difference.reversed()));
    }
}
