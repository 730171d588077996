//! What can be wrong with arguments and files of `trainer codec`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use gradwire::{DecodeError, EncodeError};
use safetensors::Dtype;

use crate::files::OutputError;
use crate::process::threads::NoThread;

/// Why a command failed. Displays as one line with the fault and its place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// The spelling of a codec was refused; `reason` names the key and what it allows.
    #[error("{}", one_line(format_args!("{given}: {reason}")))]
    Spec {
        /// The spelling, as it was given.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Rules were refused.
    #[error("{}", one_line(format_args!("{reason}")))]
    Rules {
        /// Which rule, and what is wrong with it.
        reason: String,
    },
    /// A file cannot be used.
    #[error("{}", one_line(format_args!("{}: {fault}", file.display())))]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        fault: FileFault,
    },
    /// Not as many threads as are to be measured.
    #[error(transparent)]
    NoThread(NoThread),
    /// The table or the JSON lines could not be written.
    #[error("standard output: {0}")]
    Output(#[source] io::Error),
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// It cannot be opened, read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The result cannot go there.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// It is a folder, a device or a pipe.
    #[error("not a regular file")]
    NotAFile,
    /// It does not begin like a safetensors file.
    #[error("not a safetensors file: {0}")]
    NotSafetensors(String),
    /// It ends before its content does.
    #[error("truncated: {needed} bytes needed, {actual} present")]
    Truncated {
        /// Bytes that its header asks for.
        needed: u64,
        /// Bytes that are there.
        actual: u64,
    },
    /// It continues after its content.
    #[error("{count} bytes after the end of the data")]
    TrailingBytes {
        /// How many bytes too many.
        count: u64,
    },
    /// There are no tensors in it, or only tensors without elements.
    #[error("no gradient: it has no tensors with elements")]
    Empty,
    /// A tensor is not of a floating-point type that gradients have.
    #[error("tensor '{tensor}' has type {dtype}: expected F32, F16 or BF16")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
    },
    /// It needs more memory than is available.
    #[error("{elements} elements do not fit into memory")]
    OutOfMemory {
        /// Number of coordinates requested.
        elements: usize,
    },
    /// A frame, or a layout, covers more coordinates than the limit.
    #[error("covers more than {limit} coordinates; raise --max-elements if that is what you expect")]
    TooManyElements {
        /// The limit.
        limit: usize,
    },
    /// A message of a file belongs to another gradient than the file's first message.
    #[error("message {number}: {what}; a file holds the messages of one gradient")]
    Message {
        /// Counted from 1.
        number: usize,
        /// What does not fit.
        what: &'static str,
    },
    /// The codec cannot encode the gradient.
    #[error("{codec}: {error}{place}")]
    Encode {
        /// Spelling of the codec, or the rules.
        codec: String,
        /// What is wrong.
        error: EncodeError,
        /// The place of the fault, in terms of tensors.
        place: Place,
    },
    /// It is a void frame.
    #[error(
        "a void frame, which holds no gradient: its sender could not encode coordinate {index} of step {step}"
    )]
    Void {
        /// The step that the missing frame belongs to.
        step: u64,
        /// The coordinate.
        index: usize,
    },
    /// The frame that a codec made of the gradient is not valid: a fault of the codec, not of the file.
    #[error("{codec}: made a frame that does not decode: {error}")]
    OwnFrame {
        /// Spelling of the codec.
        codec: String,
        /// What is wrong.
        error: DecodeError,
    },
    /// It does not begin like a frame, but like something else.
    #[error("{bad}: this is {0}", bad = DecodeError::BadMagic)]
    NotAFrame(String),
    /// It is not a valid frame.
    #[error("{0}")]
    Frame(#[from] DecodeError),
    /// It is a frame of another layout.
    #[error("made for another layout than {}: fingerprint {frame:016x}, not {layout:016x}", file.display())]
    Layout {
        /// The file with the layout.
        file: PathBuf,
        /// Fingerprint in the frame.
        frame: u64,
        /// Fingerprint of the layout.
        layout: u64,
    },
}

/// A coordinate in terms of tensors, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(pub(super) Option<(String, usize)>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((tensor, element)) => write!(f, " (tensor '{tensor}', element {element})"),
            None => Ok(()),
        }
    }
}

impl FileFault {
    /// Names the file that has this fault.
    pub(super) fn of(self, file: impl AsRef<Path>) -> CliError {
        CliError::File { file: file.as_ref().to_path_buf(), fault: self }
    }
}

/// The text on one line: names from files and arguments may hold line breaks and terminal codes.
pub(super) fn one_line(text: fmt::Arguments<'_>) -> String {
    let mut line = String::new();
    for c in text.to_string().chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_on_one_line() {
        let fault = FileFault::Dtype { tensor: "a\n\u{1b}[2J".to_owned(), dtype: Dtype::I64 };
        let line = fault.of("b\r").to_string();
        assert_eq!(line, r"b\r: tensor 'a\n\u{1b}[2J' has type I64: expected F32, F16 or BF16");
    }
}
