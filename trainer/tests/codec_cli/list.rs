//! `list`: the registry, as people and programs see it.

use std::path::Path;
use std::process::Command;

use gradwire::Spec;
use gradwire::registry::CODECS;

use crate::support::{json_lines, run};

/// The names that the independent decoder knows, each at the place of its number: a table of strings on one
/// line.
fn names_of_the_independent_decoder() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/format/decode.py");
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let table = lines.find_map(|line| line.strip_prefix("CODECS = [")?.strip_suffix(']')).unwrap();
    table.split(", ").map(|name| name.trim_matches('"').to_owned()).collect()
}

#[test]
fn numbers_are_those_of_the_independent_decoder() {
    let mut listed: Vec<(u64, String)> = Vec::new();
    for entry in json_lines(&run(&["list", "--json"])) {
        for name in entry["names"].as_array().unwrap() {
            let number = name["number"].as_u64();
            listed.extend(number.map(|number| (number, name["name"].as_str().unwrap().to_owned())));
        }
    }
    listed.sort();
    let expected = names_of_the_independent_decoder().into_iter().enumerate();
    let expected: Vec<_> = expected.map(|(number, name)| (number as u64, name)).collect();
    assert_eq!(listed, expected);
}

#[test]
fn every_codec_is_listed_with_all_that_is_known_of_it() {
    let (text, entries) = (run(&["list"]), json_lines(&run(&["list", "--json"])));
    assert_eq!(entries.len(), CODECS.len());
    for (listed, entry) in entries.iter().zip(CODECS) {
        assert_eq!((&listed["kind"], &listed["summary"]), (&entry.kind.into(), &entry.summary.into()));
        let words = |key: &str| -> Vec<String> {
            let words = listed[key].as_array().unwrap().iter();
            words.map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(words("keys").join(" "), entry.keys);
        assert_eq!(words("examples"), entry.examples);
        assert!(words("examples").iter().all(|example| Spec::parse(example).is_ok()));
        let known = entry.names.iter().map(|(name, _)| *name);
        let parts = known.chain(entry.examples.iter().copied()).chain([entry.kind]);
        for part in parts.chain(entry.keys.split(' ')).chain(entry.summary.split(' ')) {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn help_names_every_codec() {
    let commands: [&[&str]; 4] = [&["codec", "bench"], &["codec", "encode"], &["train"], &["compare"]];
    for command in commands {
        for flag in ["-h", "--help"] {
            let output =
                Command::new(env!("CARGO_BIN_EXE_trainer")).args(command).arg(flag).output().unwrap();
            let help = String::from_utf8(output.stdout).unwrap();
            let help = help.split("Codecs:").nth(1).unwrap_or_default();
            let words: Vec<&str> = help.split([' ', ',', '.', '\n']).collect();
            assert!(Spec::names().iter().all(|name| words.contains(name)), "{command:?} {flag}: {help}");
        }
    }
}
