//! `trainer keygen`.

use std::io::Write;
use std::path::PathBuf;

use gradwire_transports::zmq::KeyPair;

use crate::command::{Failure, RemoteError};

/// Where the keys go.
#[derive(Debug, clap::Args)]
pub struct KeygenArgs {
    /// File for the secret key, readable by you alone. The public key goes to FILE.pub. Existing files are
    /// not overwritten
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Makes a key pair and prints the public key.
pub(crate) fn keygen(args: &KeygenArgs, out: &mut impl Write) -> Result<(), Failure> {
    let pair = KeyPair::generate().map_err(RemoteError::from)?;
    let public = pair.write(&args.file).map_err(RemoteError::from)?;
    writeln!(out, "secret key: {}", args.file.display())?;
    writeln!(out, "public key: {} (also in {})", pair.public(), public.display())?;
    Ok(())
}
