//! Golden payloads of rounds, and golden memories after them, are made again to the same bytes.

use gradwire::registry::CODECS;
use gradwire::{LayoutRef, Memory, Spec};
use gradwire_tests::manifest::{self, digest};
use gradwire_tests::payloads::{self, Golden, contents, file, saved};
use gradwire_tests::run::bits;
use gradwire_tests::spellings::examples;
use std::collections::BTreeSet;

#[test]
fn steps_make_the_same_payloads_and_values() {
    for line in payloads::lines("rounds") {
        let (golden, made) = (Golden::new(&line), Golden::new(&line).run());
        assert_eq!(made.rounds.join(","), line.value("rounds"), "{}", golden.name);
        assert!(made.bytes == file(&golden.name), "{}: other payloads", golden.name);
        assert_eq!(digest(&made.values), line.value("values"), "{}", golden.name);
    }
}

#[test]
fn steps_leave_the_same_memories_which_are_loaded_again() {
    for line in payloads::lines("memory") {
        let (name, (steps, memory)) = (line.value("file"), payloads::kept(&line));
        let (layout, golden) = (steps.layout(), file(name));
        assert_eq!(Spec::parse(line.value("codec")).unwrap(), steps.spec, "{name}");
        assert!(saved(&memory, &layout.as_ref()) == golden, "{name}: other bytes");
        assert_eq!(digest(&contents(&memory)), line.value("values"), "{name}");
        let mut loaded = Memory::for_spec(&steps.spec, &layout.as_ref()).unwrap();
        loaded.load(&layout.as_ref(), &golden).unwrap();
        assert_eq!(bits(&contents(&loaded)), bits(&contents(&memory)), "{name}");
    }
}

#[test]
fn every_codec_with_rounds_has_golden_payloads() {
    let lines = payloads::lines("rounds");
    let names: BTreeSet<_> =
        lines.iter().map(|line| line.value("codec").split(':').next().unwrap()).collect();
    for entry in CODECS.iter().filter(|entry| entry.kind != "gather") {
        entry.names.iter().for_each(|(name, _)| assert!(names.contains(name), "none of {name}"));
    }
}

/// Section 14 of FORMAT.md names the arrays of every codec, and golden memories have all of them.
#[test]
fn arrays_of_every_codec_are_named_in_format_md_and_in_golden_memories() {
    let page = std::fs::read_to_string(manifest::folder("..").join("FORMAT.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("14 ")).unwrap();
    let rows = section.split("| codec | settings | array |").nth(1).expect("the table of arrays");
    let column = |row: &str| row.split('|').nth(3).unwrap().trim().trim_matches('`').to_owned();
    let rows = rows.lines().skip(2).take_while(|row| row.starts_with('|'));
    let stated: BTreeSet<_> = rows.map(column).collect();
    let lines = payloads::lines("memory");
    let golden: BTreeSet<_> = lines.iter().flat_map(|line| arrays(line.value("codec"))).collect();
    let known: BTreeSet<_> = examples().flat_map(arrays).collect();
    assert_eq!((&stated, &known.is_subset(&golden)), (&golden, &true));
}

/// The names of the arrays that a spelling asks for.
fn arrays(spelling: &str) -> Vec<String> {
    let (spec, layout) = (Spec::parse(spelling).unwrap(), LayoutRef::flat(500));
    let memory = Memory::for_spec(&spec, &layout);
    memory.iter().flat_map(Memory::arrays).map(|array| array.name.to_owned()).collect()
}
