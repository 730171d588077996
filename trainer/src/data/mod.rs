//! Data sets: two shipped, the others read from the user's folder in their official formats.
//!
//! | module | reads | from |
//! | --- | --- | --- |
//! | [`optdigits`] | 8×8 digits | the binary itself |
//! | [`shakespeare`] | characters | the binary itself |
//! | [`idx`] | MNIST, Fashion-MNIST | IDX files, plain or gzip |
//! | [`cifar`] | CIFAR-10 | binary records of 3,073 bytes, plain or gzip |
//! | [`text`] | PTB, WikiText, any text | text files, plain or gzip |
//!
//! Every loader is total: it reads a file completely, or refuses it with a [`DataError`] that names the file
//! and what is wrong with it. No loader allocates memory only because a header asks for it.

pub mod augment;
pub mod batch;
pub mod cifar;
mod dataset;
mod error;
mod file;
pub mod idx;
mod images;
mod level;
pub mod optdigits;
mod part;
pub mod shakespeare;
mod source;
pub mod text;
mod tokens;

pub use batch::{Batch, Batches, Plan};
pub use dataset::{Dataset, Task};
pub use error::{DataError, DataFault};
pub use images::{ImageSet, Images, Scaling};
pub use level::Level;
pub use part::Part;
pub use source::Source;
pub use tokens::{Text, Vocabulary};

/// Source, licence and attribution of the shipped data sets, as `trainer --licenses` prints them.
pub const DATA_LICENSES: &str = include_str!("../../data/LICENSES.md");
