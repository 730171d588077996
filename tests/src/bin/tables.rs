//! Writes the tables of the documentation that follow from the registry of codecs.

use gradwire_tests::tables;
use std::fs;

fn main() {
    for page in tables::PAGES {
        let path = tables::path(page);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
        fs::write(&path, tables::made(&text)).unwrap_or_else(|error| panic!("{page}: {error}"));
    }
}
