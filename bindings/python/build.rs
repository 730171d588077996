//! Refuses interpreters for which this package makes no promise.

use pyo3_build_config::{BuildFlag, get};

fn main() {
    pyo3_build_config::add_extension_module_link_args();
    if get().build_flags().0.contains(&BuildFlag::Py_GIL_DISABLED) {
        println!(
            "cargo::error=gradwire needs a Python with the GIL, and this one is free-threaded: build with the \
             ordinary interpreter"
        );
    }
}
