//! CURVE key pairs, in memory and in files.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::ZmqError;
use crate::private_file;

/// Characters of a key as z85 writes it.
const Z85_LEN: usize = 40;
const Z85: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
pub(super) const PUBLIC: &str = "gradwire-public ";
pub(super) const SECRET: &str = "gradwire-secret ";

/// The identity of a peer: 32 bytes, written as 40 characters of z85.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&z85(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = NotAKey;

    /// Reads a key, or the content of a `.pub` file.
    fn from_str(text: &str) -> Result<Self, NotAKey> {
        from_z85(text.strip_prefix(PUBLIC).map_or(text, str::trim)).map(Self)
    }
}

/// The text is not 40 characters of z85.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAKey;

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a key has 40 characters of z85")
    }
}

impl std::error::Error for NotAKey {}

fn z85(bytes: &[u8; 32]) -> String {
    // A length that is a multiple of 4 can always be written.
    ::zmq::z85_encode(bytes).unwrap_or_default()
}

/// Written by hand and without allocating, because every packet of a connection carries the key of its
/// sender. `z85_decode` of the crate leaks its argument, and wraps around if five characters encode more than
/// 32 bits.
///
/// # Source
/// ZeroMQ RFC 32: five digits of base 85 for four bytes, big-endian.
fn from_z85(text: &str) -> Result<[u8; 32], NotAKey> {
    let mut key = [0; 32];
    if text.len() != Z85_LEN {
        return Err(NotAKey);
    }
    for (word, digits) in key.chunks_exact_mut(4).zip(text.as_bytes().chunks_exact(5)) {
        let value = digits.iter().try_fold(0_u32, |value, &digit| {
            let digit = Z85.bytes().position(|known| known == digit)?;
            value.checked_mul(85)?.checked_add(digit as u32)
        });
        word.copy_from_slice(&value.ok_or(NotAKey)?.to_be_bytes());
    }
    Ok(key)
}

/// A public key and its secret key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    public: PublicKey,
    secret: [u8; 32],
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.public)
    }
}

impl KeyPair {
    /// A new pair, from random numbers of the operating system.
    ///
    /// # Errors
    /// `NoCurve`.
    pub fn generate() -> Result<Self, ZmqError> {
        let pair = ::zmq::CurveKeyPair::new().map_err(|_| ZmqError::NoCurve)?;
        Ok(Self { public: PublicKey(pair.public_key), secret: pair.secret_key })
    }

    /// The public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(super) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Writes `path` with both keys, readable only by its owner, and `path` with `.pub` after its name with
    /// the public one. Existing files are never overwritten.
    ///
    /// # Errors
    /// `KeyFile`; files written so far are then removed.
    pub fn write(&self, path: &Path) -> Result<PathBuf, ZmqError> {
        is_no_key(path)?;
        let mut public_path = path.as_os_str().to_owned();
        public_path.push(".pub");
        let public_path = PathBuf::from(public_path);
        let public = format!("{PUBLIC}{}\n", self.public);
        let both = format!("{public}{SECRET}{}\n", z85(&self.secret));
        create(path, 0o600, &both)?;
        create(&public_path, 0o644, &public).inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(public_path)
    }

    /// Reads a file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// `KeyFile`, also if others than its owner may use the file. The group may read one that is root's.
    pub fn read(path: &Path) -> Result<Self, ZmqError> {
        is_no_key(path)?;
        let fault = |what: String| ZmqError::KeyFile { path: path.to_path_buf(), what };
        let file = File::open(path).map_err(|error| fault(error.to_string()))?;
        private_file::is_private(&file).map_err(fault)?;
        let text = std::io::read_to_string(file).map_err(|error| fault(error.to_string()))?;
        let key =
            |prefix: &str| text.lines().find_map(|line| from_z85(line.strip_prefix(prefix)?.trim()).ok());
        match (key(PUBLIC), key(SECRET)) {
            (Some(public), Some(secret)) => Ok(Self { public: PublicKey(public), secret }),
            _ => Err(fault("it does not hold a public and a secret key".to_owned())),
        }
    }
}

/// Reads the public key of a `.pub` file, or of a key file.
///
/// # Errors
/// `KeyFile`.
pub fn read_public(path: &Path) -> Result<PublicKey, ZmqError> {
    is_no_key(path)?;
    let fault = |what: String| ZmqError::KeyFile { path: path.to_path_buf(), what };
    let text = fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    let key = text.lines().find_map(|line| line.strip_prefix(PUBLIC)?.trim().parse().ok());
    key.ok_or_else(|| fault("it holds no public key".to_owned()))
}

/// Refuses the text of a key in place of the name of a file, without repeating it: it may be a secret.
///
/// A name may look like a key: its letters are letters of Z85 too, and a folder may be called
/// `gradwire-secret`. What exists is a name, and so is what would lie in a folder that exists.
pub(super) fn is_no_key(path: &Path) -> Result<(), ZmqError> {
    let text = path.to_string_lossy();
    let text = text.trim();
    let is_like_a_key =
        text.contains(PUBLIC.trim()) || text.contains(SECRET.trim()) || from_z85(text).is_ok();
    if is_like_a_key && !is_a_name(path) {
        let what = "this is a key, not the name of a file that holds one".to_owned();
        return Err(ZmqError::KeyFile { path: PathBuf::from("(not shown)"), what });
    }
    Ok(())
}

/// Whether a file of this name exists, or could be made in a folder that exists. The root and the current
/// folder do not count: every text names a file in one of them.
fn is_a_name(path: &Path) -> bool {
    let is_a_folder = |parent: &Path| parent.file_name().is_some() && parent.is_dir();
    path.symlink_metadata().is_ok() || path.parent().is_some_and(is_a_folder)
}

/// A word of a list or a key, as errors repeat it: nothing that is long enough for a key, which may be a
/// secret.
pub(super) fn quoted(word: &str) -> String {
    if word.len() < Z85_LEN - 8 { format!("'{}'", word.escape_debug()) } else { "a long word".to_owned() }
}

fn create(path: &Path, mode: u32, text: &str) -> Result<(), ZmqError> {
    private_file::create(path, mode, text)
        .map_err(|error| ZmqError::KeyFile { path: path.to_path_buf(), what: error.to_string() })
}
