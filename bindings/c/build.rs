//! Gives the shared library its soname, so that programs find the version that they were linked with; and
//! makes the table of results from their constants.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/results.rs");
    let (os, major) = (env::var("CARGO_CFG_TARGET_OS"), env::var("CARGO_PKG_VERSION_MAJOR"));
    if let (Ok("linux"), Ok(major)) = (os.as_deref(), major) {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgradwire.so.{major}");
    }
    let source = fs::read_to_string("src/results.rs").expect("the package has its source");
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("results.rs"), table(&source)).expect("the folder is there");
}

/// Number, name and text of every constant, which has its text in the line above it.
fn table(source: &str) -> String {
    let lines: Vec<_> = source.lines().collect();
    let entries = lines.windows(2).filter_map(|pair| {
        let (name, _) = pair[1].strip_prefix("pub const ")?.split_once(": gw_result =")?;
        let text = pair[0].strip_prefix("/// ").unwrap_or_else(|| panic!("{name} has no text"));
        Some(format!("({name}, c{name:?}, c{text:?}),\n"))
    });
    format!("&[\n{}]", entries.collect::<String>())
}
