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

/// The text of a reader's fault. If it says "unknown field `a`, expected one of `b`, `c`", what was probably
/// meant is added; and if it says so of the value of a key, the text begins with that key.
pub(crate) fn field_text(error: &str, key: Option<&str>) -> String {
    let of_value = error.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, expected "));
    if let Some((word, list)) = of_value {
        let known: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
        let (key, hint) = (key.map(|key| format!("{key} = ")), hint(word, known.iter().copied()));
        return format!("{}{word}: expected one of {}{hint}", key.unwrap_or_default(), known.join(", "));
    }
    if let (Some(key), "wanted string or table") = (key, error) {
        return format!("{key}: expected a word in quotes");
    }
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
        let field =
            field_text("unknown field `leanring_rate`, expected one of `learning_rate`, `seed`", None);
        assert!(field.ends_with("; did you mean learning_rate?"), "{field}");
        assert_eq!(field_text("invalid type: `a`, expected `b`", None), "invalid type: `a`, expected `b`");
        let value = |word: &str| {
            field_text(&format!("unknown variant `{word}`, expected `f32` or `bf16`"), Some("wire"))
        };
        assert_eq!(value("bf61"), "wire = bf61: expected one of f32, bf16; did you mean bf16?");
        assert_eq!(value("`, a"), "wire = `, a: expected one of f32, bf16");
    }
}
