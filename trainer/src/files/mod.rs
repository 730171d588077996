//! Files of the user and of this program: what a file is, where a result may go, and how it is written.

mod durable;
mod kind;
mod output;
mod text;
mod thing;
mod write;

pub(crate) use durable::{sync, sync_folder, unless_unsupported};
pub(crate) use kind::{DECISIVE_BYTES, Kind};
pub use output::OutputError;
pub(crate) use output::{ensure_apart, ensure_output};
pub(crate) use text::{json_fault, read_text, toml_hint};
pub(crate) use thing::{in_the_way, thing};
pub(crate) use write::{ensure_writable, write};
