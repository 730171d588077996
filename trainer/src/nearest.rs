//! What was probably meant by a word that is not known.

use gradwire::SpecError;

/// `; did you mean …?` with the known word that is nearest to this one, or nothing if none is near.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known.into_iter().map(|known| (strsim::osa_distance(word, known), known));
    // A third of the letters may be wrong, but one always may.
    let most = (word.chars().count() / 3).max(1);
    let nearest = near.filter(|(distance, known)| *distance <= most && known.len() > 1).min();
    nearest.map_or(String::new(), |(_, known)| format!("; did you mean {known}?"))
}

/// The text of a spelling's fault, with what was probably meant.
pub(crate) fn spec_text(error: &SpecError<'_>) -> String {
    let hint = match error {
        SpecError::UnknownCodec { name, known } => hint(name, known.iter().copied()),
        SpecError::UnknownKey { key, known, .. } => hint(key, known.split(' ')),
        _ => String::new(),
    };
    format!("{error}{hint}")
}

/// The text of a reader's fault, with the field that was probably meant if it says "unknown field `a`,
/// expected one of `b`, `c`".
pub(crate) fn field_text(error: &str) -> String {
    let mut words = error.split('`').skip(1).step_by(2);
    match words.next().filter(|_| error.starts_with("unknown field")) {
        Some(word) => format!("{error}{}", hint(word, words)),
        None => error.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_meant_if_it_is_near() {
        let known = ["topk", "qsgd", "powersgd", "none", "optdigits", "k"];
        for (word, meant) in [
            ("topkk", "topk"),
            ("tpok", "topk"),
            ("qsdg", "qsgd"),
            ("power-sgd", "powersgd"),
            ("Optdigits", "optdigits"),
            ("non", "none"),
        ] {
            assert_eq!(hint(word, known), format!("; did you mean {meant}?"), "{word}");
        }
        for word in ["", "x", "sparse", "cifar", "a-long-name-of-something-else"] {
            assert_eq!(hint(word, known), "", "{word}");
        }
    }

    #[test]
    fn faults_of_spellings_and_files_say_what_was_meant() {
        let spelling = |text: &str| spec_text(&gradwire::Spec::parse(text).unwrap_err());
        assert!(spelling("topkk:density=0.1").ends_with("; did you mean topk?"));
        assert!(spelling("topk:densty=0.1").ends_with("; did you mean density?"));
        assert!(!spelling("topk:density=2").contains("did you mean"));
        let field = field_text("unknown field `leanring_rate`, expected one of `learning_rate`, `seed`");
        assert!(field.ends_with("; did you mean learning_rate?"), "{field}");
        assert_eq!(field_text("invalid type: `a`, expected `b`"), "invalid type: `a`, expected `b`");
    }
}
