//! Text that the user wrote, or a program: settings, tables, lines of JSON.

use std::fs;
use std::path::Path;

use super::Kind;

/// Reads a file of text, without a byte order mark.
///
/// # Errors
///
/// What the system says; or that the file is no text, and what it is.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    if let Some(kind) = Kind::of_text(&bytes) {
        return Err(format!("this is {kind}"));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|error| format!("not UTF-8 text from byte {} on", error.utf8_error().valid_up_to()))?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

/// What is wrong with a line of a TOML file that its parser refused, if that is known better: text without
/// quotes, or JSON.
pub(crate) fn toml_hint(line: &str) -> Option<String> {
    if line.trim_start().starts_with('{') {
        return Some("this is JSON, and TOML is wanted: key = value, one a line".to_owned());
    }
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split(" #").next()?.trim());
    let is_word = value.starts_with(|c: char| c.is_alphabetic() || c == '/' || c == '.' || c == '~');
    let is_known = ["true", "false", "inf", "nan"].contains(&value);
    let is_right = format!("value = {value}").parse::<toml::Table>().is_ok();
    (is_word && !is_known && !is_right)
        .then(|| format!("text needs quotes: {key} = {:?}", value.trim_matches('"')))
}

/// What a parser of JSON says of a text, and what it means if the text holds what other programs write and
/// JSON does not have.
pub(crate) fn json_fault(text: &str, error: &serde_json::Error) -> String {
    let is_value = |at: usize| text[..at].trim_end().ends_with([':', ',', '[', '-']);
    let found = ["NaN", "Infinity"].into_iter().find(|word| text.find(word).is_some_and(is_value));
    let advice = "write null in its place; Python's json.dumps(…, allow_nan=False) finds it";
    match found {
        Some(word) => format!("{word} is not JSON: {advice}"),
        None if text.trim_start().starts_with('[') => {
            format!("a JSON array: write its objects one a line ({error})")
        }
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_quotes_is_shown_with_them() {
        for (line, hint) in [
            ("codec = topk", Some("text needs quotes: codec = \"topk\"")),
            ("codec=topk:density=0.01 # sparse", Some("text needs quotes: codec = \"topk:density=0.01\"")),
            ("data_dir = /data/mnist", Some("text needs quotes: data_dir = \"/data/mnist\"")),
            ("model = mlp\"", Some("text needs quotes: model = \"mlp\"")),
            ("{\"codec\": \"topk\"}", Some("this is JSON, and TOML is wanted: key = value, one a line")),
            ("nesterov = true", None),
            ("codec = \"topk\"", None),
            ("lr = 0,1", None),
            ("[settings", None),
        ] {
            assert_eq!(toml_hint(line).as_deref(), hint, "{line}");
        }
    }

    #[test]
    fn what_json_does_not_have_is_named() {
        let said =
            |text: &str| json_fault(text, &serde_json::from_str::<serde_json::Value>(text).unwrap_err());
        for text in ["{\"step\":1,\"loss\":NaN}", "{\"loss\": NaN}", "[1,NaN]"] {
            assert!(said(text).starts_with("NaN is not JSON: write null"), "{}", said(text));
        }
        for text in ["{\"loss\": -Infinity}", "{\"loss\":Infinity}"] {
            assert!(said(text).starts_with("Infinity is not JSON"), "{}", said(text));
        }
        assert!(said("{\"note\":\"a NaN\"").starts_with("EOF"), "{}", said("{\"note\":\"a NaN\""));
    }

    #[test]
    fn a_byte_order_mark_is_no_text_and_other_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read_text(&path)
        };
        assert_eq!(read(b"\xef\xbb\xbfsteps = 1\n").as_deref(), Ok("steps = 1\n"));
        assert_eq!(read(b"{\"step\":1}\n").as_deref(), Ok("{\"step\":1}\n"));
        assert_eq!(read(b"\x1f\x8b\x08\0").unwrap_err(), "this is a gzip file: unpack it first");
        assert!(read(b"<html>").unwrap_err().starts_with("this is an HTML page: "));
        assert_eq!(read(b"caf\xe9").unwrap_err(), "not UTF-8 text from byte 3 on");
    }
}
