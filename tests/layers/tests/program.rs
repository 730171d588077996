//! The program: what it prints, and its exit code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A repository with one crate, whose `low` imports from `high`.
fn repository(name: &str, architecture: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("a/src/high")).unwrap();
    fs::write(root.join("ARCHITECTURE.md"), architecture).unwrap();
    fs::write(root.join("a/src/lib.rs"), "mod high;\nmod low;\n").unwrap();
    fs::write(root.join("a/src/high/mod.rs"), "pub(crate) struct High;\n").unwrap();
    fs::write(root.join("a/src/low.rs"), "\nuse crate::high::High;\n").unwrap();
    root
}

/// Whether it succeeds, and what it prints, errors last.
fn run(root: &Path, arguments: &[&str]) -> (bool, String) {
    let program = env!("CARGO_BIN_EXE_gradwire-layers");
    let output = Command::new(program).current_dir(root).args(arguments).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(printed).unwrap())
}

#[test]
fn layers_that_hold_are_summed_up() {
    let root = repository("holds", "```layers a/src\nhigh\nlow\n```\n");
    let summary = "a/src: 2 rooms, 3 files, 1 arrow, largest circle 0 files\n";
    assert_eq!(run(&root, &[]), (true, summary.to_owned()));
    let there = root.display().to_string();
    assert_eq!(run(Path::new("."), &["--root", &there, "a/src/"]), (true, summary.to_owned()));
}

#[test]
fn a_violation_fails() {
    let root = repository("violated", "```layers a/src\nlow\nhigh\n```\n");
    let (success, printed) = run(&root, &[]);
    assert!(!success);
    assert!(
        printed
            .starts_with("a/src/low.rs:2: `crate::high::High` goes up: from low (layer 1) to high (layer 2)")
    );
    assert!(
        printed.ends_with("error: 1 violation of the layers that ./ARCHITECTURE.md states\n"),
        "{printed}"
    );
}

#[test]
fn an_architecture_without_layers_fails() {
    let root = repository("none", "```\nhigh\nlow\n```\n");
    assert_eq!(run(&root, &[]), (false, "error: ./ARCHITECTURE.md states no layers\n".to_owned()));
    let (success, printed) = run(&root, &["a/src"]);
    assert_eq!((success, printed.as_str()), (false, "error: ./ARCHITECTURE.md states no layers for a/src\n"));
    fs::write(root.join("other.md"), "```layers a/src\nhigh\nlow\n```\n").unwrap();
    assert!(run(&root, &["--architecture", "other.md"]).0);
}

#[test]
fn arrows_and_orders_are_listed() {
    let root = repository("lists", "No layers yet.\n");
    let arrow = "a/src/low.rs:2: crate::high::High -> a/src/high/mod.rs\n";
    assert_eq!(run(&root, &["--arrows", "a/src"]), (true, arrow.to_owned()));
    assert_eq!(run(&root, &["--orders", "a/src"]), (true, "a/src\n  high\n  low\n".to_owned()));
}

#[test]
fn an_unknown_argument_is_refused() {
    let (success, printed) = run(Path::new("."), &["--arrow"]);
    assert!(!success);
    assert!(printed.starts_with("error: what is --arrow?\nusage: "), "{printed}");
}
