//! Compiles the C side of the MPI transport, where that feature is asked for.

fn main() {
    #[cfg(feature = "mpi")]
    compile_shim();
}

/// With the wrapper of the MPI library that the crate `mpi` links: `$MPICC`, or `mpicc`.
#[cfg(feature = "mpi")]
fn compile_shim() {
    const SHIM: &str = "src/mpi/shim.c";
    println!("cargo::rerun-if-changed={SHIM}");
    println!("cargo::rerun-if-env-changed=MPICC");
    let wrapper = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    cc::Build::new().compiler(wrapper).file(SHIM).std("gnu11").compile("gradwire_mpi_shim");
}
