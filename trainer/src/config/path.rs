//! A path in a TOML file: text, or its bytes where it is not UTF-8.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Both ways to write a path.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a path: text, or the list of its bytes")]
enum Written {
    Text(PathBuf),
    Bytes(Vec<u8>),
}

pub(super) fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path.as_deref().filter(|path| path.to_str().is_none()).and_then(bytes) {
        Some(bytes) => bytes.serialize(to),
        None => path.serialize(to),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    match Option::<Written>::deserialize(from)? {
        None => Ok(None),
        Some(Written::Text(path)) => Ok(Some(path)),
        Some(Written::Bytes(bytes)) => {
            let path = path_of(bytes);
            path.map(Some).ok_or_else(|| serde::de::Error::custom("this system has no paths of bytes"))
        }
    }
}

#[cfg(unix)]
fn bytes(path: &Path) -> Option<&[u8]> {
    Some(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
}

#[cfg(unix)]
fn path_of(bytes: Vec<u8>) -> Option<PathBuf> {
    let name: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(bytes);
    Some(name.into())
}

/// Paths of other systems that are not Unicode cannot be written down, and are refused.
#[cfg(not(unix))]
fn bytes(_path: &Path) -> Option<&[u8]> {
    None
}

#[cfg(not(unix))]
fn path_of(_bytes: Vec<u8>) -> Option<PathBuf> {
    None
}
