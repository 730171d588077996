//! The tables of docs/codecs.md are those of the registry: every codec, and every key with its one meaning.

use gradwire::registry::{CODECS, CodecEntry};
use gradwire_tests::manifest;
use std::collections::BTreeMap;
use std::fs;

const PAGE: &str = "docs/codecs.md";

/// The lines of the page between these two of its marks.
fn table(name: &str) -> Vec<String> {
    let text = fs::read_to_string(manifest::folder("..").join(PAGE)).expect("the page is there");
    let (_, rest) = text.split_once(&format!("<!-- {name} -->\n")).expect("the table has a mark");
    let (lines, _) = rest.split_once("<!-- end -->").expect("the table has an end");
    lines.lines().map(str::to_owned).collect()
}

fn names(entry: &CodecEntry) -> String {
    entry.names.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_table_of_codecs_is_that_of_the_registry() {
    let row = |entry: &CodecEntry| {
        let examples: Vec<_> = entry.examples.iter().map(|example| format!("`{example}`")).collect();
        format!("| {} | {} | {} | {} |", names(entry), entry.kind, entry.summary, examples.join(" "))
    };
    let head = ["| codec | kind | sends | examples |", "| --- | --- | --- | --- |"].map(str::to_owned);
    let expected: Vec<String> = head.into_iter().chain(CODECS.iter().map(row)).collect();
    assert_eq!(table("codecs"), expected, "{PAGE} needs these lines:\n{}\n", expected.join("\n"));
}

#[test]
fn every_key_stands_in_the_register_of_keys_once_with_all_codecs_that_have_it() {
    let mut codecs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in CODECS {
        for key in entry.keys.split(' ') {
            codecs.entry(key).or_default().push(entry.names[0].0);
        }
    }
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for row in table("keys").iter().skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let ["", key, meaning, of, ""] = cells[..] else {
            panic!("{PAGE}: '{row}' is not a row of three cells")
        };
        assert!(!meaning.is_empty(), "{PAGE}: {key} has no meaning");
        let before = found.insert(key.trim_matches('`').to_owned(), of.to_owned());
        assert_eq!(before, None, "{PAGE}: {key} has two meanings: a word has one");
    }
    for (key, codecs) in &codecs {
        let has_all = codecs.len() == CODECS.len();
        let of = if has_all { "all".to_owned() } else { format!("`{}`", codecs.join("` `")) };
        assert_eq!(found.remove(*key), Some(of), "{PAGE}: the codecs that have the key `{key}`");
    }
    assert_eq!(found, BTreeMap::new(), "{PAGE}: keys that no codec has");
}
