//! Commands to be pasted into a shell.

use std::ffi::OsStr;

/// A word as a shell reads it, in one line.
pub(crate) fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref();
    let plain = word.to_str().filter(|text| !text.contains(char::is_control));
    match plain.map(shlex::try_quote) {
        Some(Ok(text)) => text.into_owned(),
        // What no line can hold is written in numbers.
        _ => format!("$'{}'", word.as_encoded_bytes().iter().map(escaped).collect::<String>()),
    }
}

/// A byte between `$'` and `'`.
fn escaped(byte: &u8) -> String {
    let is_plain = matches!(byte, b' '..=b'~') && !matches!(byte, b'\'' | b'\\');
    if is_plain { char::from(*byte).to_string() } else { format!("\\{byte:03o}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_every_word_as_it_was() {
        use std::os::unix::ffi::OsStrExt;
        use std::process::Command;

        let words: [&[u8]; 12] = [
            b"plain",
            b"",
            b"two words",
            b"it's",
            b"tcp://*:5555",
            b"tcp://[::1]:5555",
            b"$HOME `id` \"x\" \\n",
            b"a!b",
            "\u{e9}t\u{e9} \u{2192}".as_bytes(),
            b"\xff\xfe not UTF-8 '\\",
            b"line\nbreak\ttab\x7f",
            b"~user;#",
        ];
        for word in words {
            let text = quoted(OsStr::from_bytes(word));
            assert!(!text.contains('\n'), "{text}");
            let output = Command::new("bash").args(["-c", &format!("printf %s {text}")]).output().unwrap();
            assert_eq!(output.stdout, word, "{text}");
        }
    }
}
