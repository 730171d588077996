//! The `trainer` binary: arguments in, exit code out.

use std::io::stdout;
use std::process::ExitCode;

use gradwire_trainer::process::launch::Launch;

/// Tensors are allocated and freed at every step; the system allocator returns their pages to the kernel each
/// time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match gradwire_trainer::cli::main(std::env::args_os(), &mut stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Ok(Some(launch)) = Launch::detect() {
                launch.let_first_speak();
            }
            gradwire_trainer::cli::report_failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}
