//! The key that all ranks of a run share.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::TcpError;
use crate::private_file;

/// Characters of a key in a file, two for each byte.
const HEX_LEN: usize = 64;
/// The longest file that is read as a key: the characters, and blanks around them.
const MAX_FILE: u64 = 1024;

/// 32 random bytes that all ranks have and nobody else. Whoever has them can take part, and read everything.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// These bytes, which must come from a generator of random numbers for secrets.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A new key, from random numbers of the operating system.
    ///
    /// # Errors
    /// `System`.
    pub fn generate() -> Result<Self, TcpError> {
        let mut bytes = [0; 32];
        let failed = |error: getrandom::Error| TcpError::System {
            what: "random numbers for a key".to_owned(),
            error: error.to_string(),
        };
        getrandom::fill(&mut bytes).map(|()| Self(bytes)).map_err(failed)
    }

    /// Writes a new file with the key in 64 hexadecimal characters, readable only by its owner.
    ///
    /// # Errors
    /// `KeyFile`, also if the file exists.
    pub fn write(&self, path: &Path) -> Result<(), TcpError> {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let fault =
            |error: std::io::Error| TcpError::KeyFile { path: path.to_path_buf(), what: error.to_string() };
        private_file::create(path, 0o600, &format!("{hex}\n")).map_err(fault)
    }

    /// Reads a file that [`write`](Self::write) wrote, or one that holds 64 hexadecimal characters otherwise,
    /// for instance from `openssl rand -hex 32`.
    ///
    /// # Errors
    /// `KeyFile`, also if others than its owner may read or write the file.
    pub fn read(path: &Path) -> Result<Self, TcpError> {
        let fault = |what: String| TcpError::KeyFile { path: path.to_path_buf(), what };
        let file = File::open(path).map_err(|error| fault(error.to_string()))?;
        private_file::is_private(&file).map_err(fault)?;
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text).map_err(|error| fault(error.to_string()))?;
        let what =
            || format!("a key is {HEX_LEN} hexadecimal characters, and this file holds something else");
        Self::from_hex(text.trim()).ok_or_else(|| fault(what()))
    }

    fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != HEX_LEN || !text.bytes().all(|character| character.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_text_is_a_key_and_nothing_else_is() {
        let text: String = (0..32).map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(Key::from_hex(&text), Some(Key::new(std::array::from_fn(|at| at as u8))));
        for other in
            ["", &text[1..], &text.replace("0A", "+A"), &text.replace("0A", "éA"), &(text.clone() + "0")]
        {
            assert_eq!(Key::from_hex(other), None);
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        assert_eq!(format!("{:?}", Key::new([0x42; 32])), "Key");
    }
}
