//! The Rust side of the Python package `gradwire`: a thin layer over the codec crate. What each part promises
//! stands in its docstring, which is a doc comment here, and which `tests/test_docs.py` runs.

mod array;
mod buffer;
mod codec;
mod door;
mod errors;
mod frame;
mod fresh;
mod gil;
mod hook;
mod layout;
mod memory;
mod mesh;
mod names;
mod own;
mod rounds;
mod view;

/// The compiled part of gradwire; import :mod:`gradwire` instead.
#[pyo3::pymodule]
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::codec::Codec;
    #[pymodule_export]
    use super::door::Exchange;
    #[pymodule_export]
    use super::errors::{DecodeError, EncodeError, ExchangeError};
    #[pymodule_export]
    use super::frame::{Frame, Limits, add, decode, divide, inspect};
    #[pymodule_export]
    use super::hook::{Bucket, Handle, Share, View};
    #[pymodule_export]
    use super::layout::Layout;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::mesh::{Listener, Mesh};
    #[pymodule_export]
    use super::own::{UnitSource, register};
    #[pymodule_export]
    use super::rounds::LinearRound;

    /// Version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Names of the codecs that spellings begin with, and the versions of frames and saved memories that this
    /// build reads.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("CODECS", super::names::codecs())?;
        let tuple = |versions: &[u8]| PyTuple::new(module.py(), versions);
        module.add("FORMAT_VERSIONS", tuple(gradwire::format::VERSIONS)?)?;
        module.add("SAVED_MEMORY_VERSIONS", tuple(gradwire::state::SAVED_VERSIONS)?)
    }
}
