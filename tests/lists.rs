//! The tables of the documentation are those of the registry, and each word of a spelling has one meaning.

use gradwire::registry::{CODECS, KEYS};
use gradwire_tests::tables;
use std::collections::BTreeSet;
use std::fs;

#[test]
fn the_tables_of_the_pages_are_those_of_the_registry() {
    for page in tables::PAGES {
        let text = fs::read_to_string(tables::path(page)).unwrap();
        let made = tables::made(&text);
        assert!(text.contains("<!-- registry: "), "{page} has no table");
        for (stands, should) in text.lines().zip(made.lines()) {
            assert_eq!(stands, should, "{page}: run `cargo run -p gradwire-tests --bin tables`");
        }
        assert_eq!(text.len(), made.len(), "{page}: run `cargo run -p gradwire-tests --bin tables`");
    }
}

#[test]
fn every_codec_says_where_it_pays_and_what_it_costs() {
    for entry in CODECS {
        let lines = [entry.summary, entry.suits, entry.costs];
        assert!(lines.iter().all(|line| !line.is_empty() && !line.ends_with('.')), "{entry:?}");
    }
}

#[test]
fn every_key_has_one_meaning_in_the_register_of_keys() {
    let used: BTreeSet<&str> = CODECS.iter().flat_map(|entry| entry.keys.split(' ')).collect();
    let known: Vec<&str> = KEYS.iter().map(|entry| entry.key).collect();
    assert!(known.is_sorted_by(|a, b| a < b), "{known:?}: each once, in order");
    assert_eq!(known.into_iter().collect::<BTreeSet<_>>(), used);
    let meanings: BTreeSet<&str> = KEYS.iter().map(|entry| entry.means).collect();
    assert_eq!(meanings.len(), KEYS.len(), "two words for one thing");
}
