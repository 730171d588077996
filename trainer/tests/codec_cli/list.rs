//! `list`: the registry, as people and programs see it.

use std::path::Path;
use std::process::Command;

use gradwire::Spec;
use gradwire::registry::CODECS;
use serde_json::Value;

use crate::support::{json_lines, run};

#[test]
fn numbers_and_names_are_those_of_the_format() {
    let mut listed: Vec<(u64, String)> = Vec::new();
    for entry in json_lines(&run(&["list", "--json"])) {
        for name in entry["names"].as_array().unwrap() {
            let number = name["number"].as_u64();
            listed.extend(number.map(|number| (number, name["name"].as_str().unwrap().to_owned())));
        }
    }
    listed.sort();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../format.json");
    let format: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let codecs = format["rooms"].as_array().unwrap().iter().find(|room| room["room"] == "codec").unwrap();
    let codecs = codecs["values"].as_array().unwrap().iter();
    let named =
        |codec: &Value| (codec["number"].as_u64().unwrap(), codec["name"].as_str().unwrap().to_owned());
    assert_eq!(listed, codecs.map(named).collect::<Vec<_>>());
}

#[test]
fn every_codec_is_listed_with_all_that_is_known_of_it() {
    let (text, mut entries) = (run(&["list"]), json_lines(&run(&["list", "--json"])));
    // Behind those of gradwire, the learned one that the program registers.
    let learned = entries.pop().unwrap();
    assert_eq!((&learned["examples"][0], &learned["kind"]), (&"x:lgc".into(), &"linear".into()));
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
