//! Names in spellings, such as those of tensors: any text, with escapes for the characters that separate keys
//! and values.

use core::fmt::{self, Write};
use core::str::Chars;

/// The characters that a name holds only escaped: those with a meaning in a spelling or between rules, white
/// space and control characters.
fn is_reserved(character: char) -> bool {
    matches!(character, '%' | ',' | '=' | ':' | '+' | ';')
        || character.is_whitespace()
        || character.is_control()
}

/// Prints a text as a name. Each byte of the UTF-8 of a reserved character becomes `%` and two hexadecimal
/// digits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| {
            if !is_reserved(character) {
                return f.write_char(character);
            }
            character.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(f, "%{byte:02X}"))
        })
    }
}

/// The characters of a name; `None` in place of a character that is not valid, or reserved and not escaped.
pub(crate) fn unescape(name: &str) -> impl Iterator<Item = Option<char>> {
    let mut rest = name.chars();
    core::iter::from_fn(move || {
        let character = rest.next()?;
        let is_plain = !is_reserved(character);
        Some(if character == '%' { escaped(&mut rest) } else { is_plain.then_some(character) })
    })
}

/// The character whose bytes follow, starting with the digits of the first.
fn escaped(rest: &mut Chars<'_>) -> Option<char> {
    let mut bytes = [byte(rest)?; 4];
    let len = match bytes[0] {
        0..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
    };
    for byte_behind in &mut bytes[1..len] {
        *byte_behind = rest.next().filter(|&mark| mark == '%').and_then(|_| byte(rest))?;
    }
    core::str::from_utf8(&bytes[..len]).ok()?.chars().next()
}

/// The byte of two hexadecimal digits.
fn byte(rest: &mut Chars<'_>) -> Option<u8> {
    let (high, low) = (rest.next()?.to_digit(16)?, rest.next()?.to_digit(16)?);
    Some((high << 4 | low) as u8)
}

/// A name of one to `N` bytes of UTF-8. Needs no heap, so that a codec that holds one can be copied. Prints
/// escaped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Name<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Name<N> {
    /// The name that a value spells; `None` if it is empty, too long or badly escaped.
    pub(super) fn parse(value: &str) -> Option<Self> {
        let mut name = Self::default();
        for character in unescape(value) {
            let mut buffer = [0; 4];
            let encoded = character?.encode_utf8(&mut buffer).as_bytes();
            name.bytes.get_mut(name.len..name.len + encoded.len())?.copy_from_slice(encoded);
            name.len += encoded.len();
        }
        (name.len > 0).then_some(name)
    }

    /// The name as it is, as a layout has it.
    pub(crate) fn as_str(&self) -> &str {
        // Whole characters were copied.
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl<const N: usize> Default for Name<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> fmt::Display for Name<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped(self.as_str()).fmt(f)
    }
}
