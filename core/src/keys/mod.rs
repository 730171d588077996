//! How spellings are read and printed, key by key.
//!
//! ```text
//! spelling = codec [":" pair *("," pair)]
//! pair     = key ["=" value]                  a key alone stands for key=true
//! value    = word / number / name / list
//! list     = item *("+" item)                 items are words, numbers or names; each key says how many
//! name     = 1*(character / escape)           not % , = : + ; or white space, nor control characters
//! escape   = "%" hexdigit hexdigit            a byte of UTF-8
//! ```

mod list;
#[allow(dead_code, reason = "no codec of today has a name; the tests below show one")]
pub(crate) mod name;
#[cfg(test)]
mod tests;

use crate::gradient::density::Density;
use core::fmt;
use core::str::FromStr;
use list::List;
use name::Name;

/// The memory of a codec: the key `memory=`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryChoice {
    /// Nothing: what is not sent is lost.
    None,
    /// Error feedback: what is not sent is added to the next gradient.
    ErrorFeedback,
    /// Error feedback after momentum of the worker's own, as `dgc` has it.
    Momentum,
    /// What a codec keeps in [arrays](crate::Memory::arrays) of its own, and nothing else that was not sent:
    /// see [`Law::State`](crate::registry::Law::State).
    State,
}

/// Why a spelling was refused. Displays the key and what is allowed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError<'a> {
    /// No codec of that name.
    UnknownCodec {
        /// The name.
        name: &'a str,
        /// The names that exist.
        known: &'static [&'static str],
    },
    /// The codec has no such key.
    UnknownKey {
        /// The codec.
        codec: &'static str,
        /// The key.
        key: &'a str,
        /// Keys that it has.
        known: &'static str,
    },
    /// A key was given twice.
    DuplicateKey(&'a str),
    /// A key that has no default was not given.
    MissingKey(&'static str),
    /// The key does not allow the value.
    BadValue {
        /// The key.
        key: &'a str,
        /// The value.
        value: &'a str,
        /// What is allowed.
        allowed: Allowed,
    },
    /// Keys that are each allowed, but not together; the text says why.
    Conflict(&'static str),
}

/// What a key allows.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A number, in words.
    Number(&'static str),
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(range) => f.write_str(range),
            Self::OneOf(words) => {
                f.write_str("one of")?;
                words.iter().try_for_each(|word| write!(f, " {word}"))
            }
        }
    }
}

impl fmt::Display for SpecError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCodec { name, known } => {
                write!(f, "unknown codec '{name}': expected one of")?;
                let separators = core::iter::once(" ").chain(core::iter::repeat(", "));
                separators.zip(*known).try_for_each(|(separator, name)| write!(f, "{separator}{name}"))
            }
            Self::UnknownKey { codec, key, known } => {
                write!(f, "{codec} has no key '{key}': expected one of {known}")
            }
            Self::DuplicateKey(key) => write!(f, "key '{key}' is given twice"),
            Self::MissingKey(key) => write!(f, "key '{key}' is missing"),
            Self::BadValue { key, value, allowed } => write!(f, "{key}={value}: expected {allowed}"),
            Self::Conflict(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for SpecError<'_> {}

/// The words of a key, in the order of its values.
pub(crate) struct Words<T: 'static> {
    pub(crate) words: &'static [&'static str],
    pub(crate) values: &'static [T],
}

impl<T: Copy + PartialEq> Words<T> {
    pub(crate) fn parse<'a>(&self, key: &'a str, value: &'a str) -> Result<T, SpecError<'a>> {
        let found = self.words.iter().position(|&word| word == value);
        let allowed = Allowed::OneOf(self.words);
        found.map(|i| self.values[i]).ok_or(SpecError::BadValue { key, value, allowed })
    }

    pub(crate) fn word(&self, value: T) -> &'static str {
        self.values.iter().position(|&other| other == value).map_or("", |i| self.words[i])
    }
}

/// The words of switches.
const FLAG: Words<bool> = Words { words: &["false", "true"], values: &[false, true] };

/// The words of `memory=`.
pub(crate) const MEMORY: Words<MemoryChoice> = Words {
    words: &["none", "ef", "momentum", "state"],
    values: &[MemoryChoice::None, MemoryChoice::ErrorFeedback, MemoryChoice::Momentum, MemoryChoice::State],
};

/// The `key=value` pairs of a spelling, separated by commas. A key alone stands for `key=true`. Every method
/// returns `None` for a key that is not given and has no default.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    pairs: &'a str,
    /// Those of a codec of another crate, for keys that are not given.
    defaults: &'static str,
}

impl<'a> Keys<'a> {
    /// The pairs of a spelling of `codec`, which knows these keys, separated by spaces.
    ///
    /// # Errors
    /// `UnknownKey`, `DuplicateKey`.
    pub(crate) fn new(
        codec: &'static str,
        known: &'static str,
        pairs: &'a str,
    ) -> Result<Self, SpecError<'a>> {
        let keys = Self { pairs, defaults: "" };
        for (before, (key, _)) in keys.pairs().enumerate() {
            if !known.split(' ').any(|name| name == key) {
                return Err(SpecError::UnknownKey { codec, key, known });
            }
            if keys.pairs().take(before).any(|(other, _)| other == key) {
                return Err(SpecError::DuplicateKey(key));
            }
        }
        Ok(keys)
    }

    /// The same keys, with these pairs where none is given.
    #[cfg(feature = "std")]
    pub(crate) fn with_defaults(self, defaults: &'static str) -> Self {
        Self { defaults, ..self }
    }

    fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        split(self.pairs)
    }

    /// A key as it is written in the spelling, and its value, if it is given or has a default.
    fn find(self, key: &str) -> Option<(&'a str, &'a str)> {
        self.pairs().chain(split(self.defaults)).find(|(other, _)| *other == key)
    }

    /// The value of a key as text.
    #[must_use]
    pub fn text(self, key: &str) -> Option<&'a str> {
        self.find(key).map(|(_, value)| value)
    }

    /// One of some words.
    pub(crate) fn word<T: Copy + PartialEq>(
        self,
        key: &str,
        words: &Words<T>,
    ) -> Result<Option<T>, SpecError<'a>> {
        self.find(key).map(|(key, value)| words.parse(key, value)).transpose()
    }

    /// The position of the value among some words.
    ///
    /// # Errors
    /// `BadValue` for another word.
    pub fn one_of(self, key: &str, words: &'static [&'static str]) -> Result<Option<usize>, SpecError<'a>> {
        let Some((key, value)) = self.find(key) else { return Ok(None) };
        let allowed = Allowed::OneOf(words);
        let found = words.iter().position(|&word| word == value);
        found.map(Some).ok_or(SpecError::BadValue { key, value, allowed })
    }

    /// A number that `accept` takes; `range` says which in words.
    ///
    /// # Errors
    /// `BadValue` for any other, and for what is no number of that type.
    pub fn number<T: FromStr>(
        self,
        key: &str,
        range: &'static str,
        accept: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, SpecError<'a>> {
        self.value(key, range, |value| value.parse().ok().filter(accept))
    }

    /// The result of `read` for the value; `range` says in words which values it takes.
    ///
    /// # Errors
    /// `BadValue` where `read` returns `None`.
    pub fn value<T>(
        self,
        key: &str,
        range: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SpecError<'a>> {
        let Some((key, value)) = self.find(key) else { return Ok(None) };
        let allowed = Allowed::Number(range);
        read(value).map(Some).ok_or(SpecError::BadValue { key, value, allowed })
    }

    /// One to `N` values, joined by `+`, each read by `read`. `range` says in words how many, and which.
    pub(crate) fn list<T: Copy + Default, const N: usize>(
        self,
        key: &str,
        range: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<List<T, N>>, SpecError<'a>> {
        self.value(key, range, |value| List::parse(value, read))
    }

    /// A name of one to `N` bytes, such as that of a tensor.
    #[allow(dead_code, reason = "no codec of today has a name")]
    pub(crate) fn name<const N: usize>(self, key: &str) -> Result<Option<Name<N>>, SpecError<'a>> {
        self.value(key, "a name, with % , = : + ; and spaces escaped as in %2C", Name::parse)
    }

    /// A fraction from 1e-9 to 1.
    ///
    /// # Errors
    /// `BadValue` for any other.
    pub fn density(self, key: &str) -> Result<Option<Density>, SpecError<'a>> {
        self.value(key, "a fraction from 1e-9 to 1", |value| value.parse().ok().and_then(Density::new))
    }

    /// A switch: `true`, `false`, or the key alone for `true`.
    ///
    /// # Errors
    /// `BadValue` for any other.
    pub fn flag(self, key: &str) -> Result<Option<bool>, SpecError<'a>> {
        self.word(key, &FLAG)
    }
}

/// The keys and values of a text of pairs.
fn split(pairs: &str) -> impl Iterator<Item = (&str, &str)> {
    let all = pairs.split(',').filter(move |_| !pairs.is_empty());
    all.map(|pair| pair.split_once('=').unwrap_or((pair, "true")))
}

/// The keys of codecs whose units can be chosen, after those of their own.
macro_rules! with_unit_keys {
    ($own:expr) => {
        concat!($own, " memory decay unit dense_below dense_1d max_packet_bytes")
    };
}
pub(crate) use with_unit_keys;

/// The range of numbers that 32 bits hold, zero left out.
pub(crate) const POSITIVE: &str = "a whole number from 1 to 4294967295";

/// Writes `key=value` pairs after a name.
pub(crate) struct Printer<'f, 'o> {
    pub(crate) f: &'f mut fmt::Formatter<'o>,
    pub(crate) separator: char,
}

impl Printer<'_, '_> {
    pub(crate) fn always(&mut self, key: &str, value: impl fmt::Display) -> fmt::Result {
        write!(self.f, "{}{key}={value}", self.separator)?;
        self.separator = ',';
        Ok(())
    }

    pub(crate) fn unless(&mut self, is_default: bool, key: &str, value: impl fmt::Display) -> fmt::Result {
        if is_default { Ok(()) } else { self.always(key, value) }
    }
}
