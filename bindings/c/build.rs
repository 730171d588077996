//! Gives the shared library its soname, so that programs find the version that they were linked with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let (os, major) = (std::env::var("CARGO_CFG_TARGET_OS"), std::env::var("CARGO_PKG_VERSION_MAJOR"));
    if let (Ok("linux"), Ok(major)) = (os.as_deref(), major) {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgradwire.so.{major}");
    }
}
