//! The Rust side of the Python package `gradwire`: a thin layer over the codec crate. What each part promises
//! stands in its docstring, which is a doc comment here, and which `tests/test_docs.py` runs.

mod buffer;
mod codec;
mod dlpack;
mod errors;
mod exchange;
mod frame;
mod fresh;
mod layout;
mod memory;
mod names;
mod rounds;
mod view;

/// The compiled part of gradwire; import :mod:`gradwire` instead.
#[pyo3::pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::codec::Codec;
    #[pymodule_export]
    use super::errors::{DecodeError, EncodeError};
    #[pymodule_export]
    use super::exchange::{_carry_over, _encode_beside, _load, _mean, Tensors};
    #[pymodule_export]
    use super::frame::{Frame, Limits, add, decode, divide, inspect};
    #[pymodule_export]
    use super::layout::Layout;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::rounds::LinearRound;

    /// Version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Names of the codecs that spellings begin with.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("CODECS", super::names::codecs())
    }
}
