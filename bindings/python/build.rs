//! Refuses interpreters for which this package makes no promise.

use pyo3_build_config::{BuildFlag, get};

fn main() {
    pyo3_build_config::add_extension_module_link_args();
    let is_free_threaded = get().build_flags().0.contains(&BuildFlag::Py_GIL_DISABLED);
    assert!(
        !is_free_threaded,
        "gradwire needs a Python with the GIL, and this one is free-threaded: build with the ordinary interpreter"
    );
}
