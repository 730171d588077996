//! What can be wrong with a data file.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::files::Kind;

/// A data set could not be read: which file, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub struct DataError {
    /// The file, or the folder in which a file is missing.
    pub file: PathBuf,
    /// What is wrong.
    pub fault: DataFault,
    /// What the file is, if it is no file of the data set.
    found: Option<Box<Kind>>,
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, fault) = (self.file.display(), &self.fault);
        match &self.found {
            Some(kind) => write!(f, "{file}: this is {kind} ({fault})"),
            None => write!(f, "{file}: {fault}"),
        }
    }
}

impl DataError {
    /// Says what the file is, by its content, unless it is of the kind that was expected.
    pub(super) fn seen(self, content: &[u8], expected: &str) -> Self {
        let found = if content.is_empty() { Some(Kind::EMPTY) } else { Kind::of(content) };
        Self { found: found.filter(|kind| kind.name != expected).map(Box::new), ..self }
    }
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataFault {
    /// The file cannot be opened or read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The folder has none of the files that were looked for.
    #[error("no such file: {wanted}")]
    Missing {
        /// Names that would have been accepted.
        wanted: String,
    },
    /// The data set does not ship with the trainer, and no folder was given.
    #[error("it does not ship with the trainer: give --data-dir, the folder with {wanted}")]
    NoFolder {
        /// The files that the folder should have.
        wanted: &'static str,
    },
    /// More than one file could be meant.
    #[error("more than one file for the {part} part: {names}")]
    Ambiguous {
        /// The part of the data set.
        part: &'static str,
        /// The files that could be meant.
        names: String,
    },
    /// The file begins with other bytes than its format does.
    #[error("bad magic {actual:#010x}: expected {expected:#010x}")]
    BadMagic {
        /// What the format begins with.
        expected: u32,
        /// What the file begins with.
        actual: u32,
    },
    /// The gzip stream is damaged or ends early.
    #[error("damaged gzip stream: {0}")]
    BadGzip(std::io::Error),
    /// The file ends before its content does.
    #[error("truncated: {needed} bytes needed, {actual} present")]
    Truncated {
        /// Bytes that the header or the format asks for.
        needed: u64,
        /// Bytes that are there.
        actual: u64,
    },
    /// The file continues after its content.
    #[error("{count} bytes after the end of the data")]
    TrailingBytes {
        /// How many bytes too many.
        count: u64,
    },
    /// The file is not a whole number of records.
    #[error("{bytes} bytes are not a whole number of records of {record_bytes}")]
    BadRecordSize {
        /// Length of the file, uncompressed.
        bytes: u64,
        /// Length of one record.
        record_bytes: u64,
    },
    /// The file holds nothing.
    #[error("empty data set")]
    Empty,
    /// Too few tokens to predict one from another.
    #[error("too short: {tokens} tokens, of which a part needs at least 2")]
    TooShort {
        /// Tokens in the file.
        tokens: usize,
    },
    /// The file, its header or its vocabulary asks for more than the limit.
    #[error("{what} of {actual} is above the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// What the file asks for.
        actual: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A label is not the number of a class.
    #[error("record {record}: label {label} is not below {classes}")]
    LabelOutOfRange {
        /// Number of the record, from 0.
        record: usize,
        /// The label.
        label: u64,
        /// Number of classes.
        classes: usize,
    },
    /// Images and labels do not belong together.
    #[error("{images} images, but {labels} labels in {label_file}")]
    CountMismatch {
        /// Number of images.
        images: usize,
        /// Number of labels.
        labels: usize,
        /// The file with the labels.
        label_file: String,
    },
    /// Training and test images have different shapes.
    #[error("images of {actual:?}, but the training images are of {expected:?}")]
    ShapeMismatch {
        /// Channels, height, width of the training images.
        expected: [usize; 3],
        /// Channels, height, width of these images.
        actual: [usize; 3],
    },
    /// A line of a table is malformed.
    #[error("line {line}: {what}")]
    BadLine {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The text is not UTF-8.
    #[error("not UTF-8 from byte {offset} on; convert it to UTF-8")]
    BadText {
        /// Offset of the first bad byte.
        offset: usize,
    },
    /// The text holds a byte that no text has.
    #[error("control byte {byte:#04x} at byte {offset}: not a text, or a damaged one")]
    ControlByte {
        /// The byte.
        byte: u8,
        /// Its offset.
        offset: usize,
    },
    /// The file is of another kind.
    #[error("not a text")]
    NotText,
}

impl DataFault {
    /// Names the file that has this fault.
    pub(crate) fn of(self, file: impl AsRef<Path>) -> DataError {
        DataError { file: file.as_ref().to_path_buf(), fault: self, found: None }
    }
}
