//! The `trainer` binary: arguments in, exit code out.

use std::process::ExitCode;

/// Tensors are allocated and freed at every step; the system allocator returns their pages to the kernel each
/// time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gradwire_trainer::main_with([gradwire_lgc::codec()])
}
