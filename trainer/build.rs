//! Tells the program which commit it is built from, if it is built in a checkout. Never fails.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let top = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
    // A package lies in folders of other people: their commits say nothing of it.
    if !top.join(".git").exists() {
        return;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&top).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // It changes with every commit and every checkout.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    let is_clean =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|files| files.is_empty());
    println!("cargo::rustc-env=GRADWIRE_COMMIT={commit}{}", if is_clean { "" } else { "-dirty" });
}
