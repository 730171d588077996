//! What both ends are told in the same words.

use std::path::{Path, PathBuf};

use gradwire_transports::zmq::{KeyPair, Security, ZmqError};

/// What both ends are told about keys.
#[derive(Debug, clap::Args)]
pub struct KeyArgs {
    /// File with this end's secret key, made by `trainer keygen`
    #[arg(long, value_name = "FILE", required_unless_present = "insecure")]
    key: Option<PathBuf>,
    /// Use no keys: no encryption, no authentication. Allowed on the loopback interface only
    #[arg(long, conflicts_with = "key")]
    pub(super) insecure: bool,
    /// Allow --insecure on other interfaces too. Whoever reaches the port can then read and change everything
    #[arg(long, requires = "insecure")]
    beyond_loopback: bool,
}

impl KeyArgs {
    /// The file with the key, if there is one.
    pub(super) fn file(&self) -> Option<&Path> {
        self.key.as_deref()
    }

    pub(super) fn security(&self) -> Result<Security, ZmqError> {
        match &self.key {
            Some(path) => Ok(Security::Curve(KeyPair::read(path)?)),
            None => Ok(Security::Plain { beyond_loopback: self.beyond_loopback }),
        }
    }
}
