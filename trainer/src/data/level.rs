//! The tokens of a text.

/// What one token of a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// One character.
    Characters,
    /// Text between white space; every line ends with a token of its own.
    Words,
}
