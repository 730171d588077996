//! Which codecs a bench measures.

use gradwire::registry::{CODECS, CodecEntry};

/// The spellings that a bench names, and the first example of each codec with frames that none of them
/// names. So a codec that is added to the list is measured.
#[must_use]
pub fn with_all_codecs(named: &[&'static str]) -> Vec<&'static str> {
    let is_named = |entry: &&CodecEntry| {
        named.iter().any(|row| entry.names.iter().any(|(name, _)| row.split(':').next() == Some(name)))
    };
    let others = CODECS.iter().filter(|entry| entry.kind == "gather" && !is_named(entry));
    named.iter().copied().chain(others.map(|entry| entry.examples[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_with_frames_has_a_row_and_none_has_two_of_its_first_example() {
        for named in [&[][..], &["topk:density=0.5", "none", "topk:density=0.01"]] {
            let rows = with_all_codecs(named);
            assert_eq!(rows[..named.len()], *named);
            for entry in CODECS.iter().filter(|entry| entry.kind == "gather") {
                let of_it =
                    |row: &&&str| entry.names.iter().any(|(name, _)| row.split(':').next() == Some(name));
                assert!(rows.iter().any(|row| of_it(&row)), "{entry:?}");
                assert!(rows.iter().filter(|row| **row == entry.examples[0]).count() <= 1, "{entry:?}");
            }
        }
    }
}
