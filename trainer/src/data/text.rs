//! Plain-text corpora, by characters or by words: PTB, WikiText, or any text.

use std::path::{Path, PathBuf};

use super::{DataError, DataFault, Dataset, Level, Text, file};
use crate::files::Kind;

/// Reads a corpus.
///
/// A file is split nine to one. In a folder, the file with `train` between the dots of its name (`train.txt`,
/// `ptb.train.txt.gz`, `wiki.train.tokens`) is the training part, likewise `valid` or `validation`, and
/// `test`; without a test file the validation file is the test part. Hidden files and backups are no parts.
///
/// # Errors
///
/// `Missing` or `Ambiguous` files; `NotText`, `BadText`, `ControlByte` and `Empty` for what is no text; and
/// as [`Text::from_parts`].
pub fn load(path: &Path, level: Level) -> Result<Dataset, DataError> {
    let name = path.file_stem().map_or_else(|| "text".to_owned(), |stem| stem.to_string_lossy().into_owned());
    load_named(&name, path, level)
}

/// As [`load`], with a name for reports.
///
/// # Errors
///
/// As [`load`].
pub fn load_named(name: &str, path: &Path, level: Level) -> Result<Dataset, DataError> {
    if !path.is_dir() {
        let text = read(path)?;
        let text = Text::from_one(name, level, &text);
        return text.map(Dataset::Text).map_err(|fault| fault.of(path));
    }
    let missing = |part: &str| {
        file::missing(path, &format!("one with `{part}` between the dots of its name, such as {part}.txt"))
    };
    let train = find_part(path, &["train"])?.ok_or_else(|| missing("train"))?;
    let valid = find_part(path, &["valid", "validation"])?;
    let test = find_part(path, &["test"])?;
    let (valid, test) = match (valid, test) {
        (valid, Some(test)) => (valid, test),
        (Some(valid), None) => (None, valid),
        (None, None) => return Err(missing("test")),
    };
    let (train_text, test_text) = (read(&train)?, read(&test)?);
    let valid_text = valid.as_deref().map(read).transpose()?;
    let text = Text::from_parts(name, level, &train_text, valid_text.as_deref(), &test_text)
        .map_err(|fault| fault.of(path))?;
    // Lines without a word are tokens, but no text.
    let valid_part = valid.as_deref().zip(valid_text.as_deref());
    let mut parts = [(&*train, &*train_text), (&*test, &*test_text)].into_iter().chain(valid_part);
    match parts.find(|(_, text)| text.trim().is_empty()) {
        Some((path, _)) => Err(DataFault::Empty.of(path)),
        None => Ok(Dataset::Text(text)),
    }
}

/// The text of a file, without a byte order mark.
fn read(path: &Path) -> Result<String, DataError> {
    let bytes = file::read(path, file::MAX_FILE_BYTES)?;
    if Kind::of_text(&bytes).is_some() {
        return Err(DataFault::NotText.of(path).seen(&bytes, ""));
    }
    if let Some(offset) = bytes.iter().position(|&byte| is_control(byte)) {
        return Err(DataFault::ControlByte { byte: bytes[offset], offset }.of(path));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|error| DataFault::BadText { offset: error.utf8_error().valid_up_to() }.of(path))?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    if text.is_empty() { Err(DataFault::Empty.of(path)) } else { Ok(text) }
}

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Whether no text has such a byte: tabs, line ends and page breaks are no such bytes.
fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && !matches!(byte, b'\t'..=b'\r')
}

/// Endings of what editors, browsers and version control leave beside a file.
const LEFTOVERS: [&str; 9] = ["~", "#", ".swp", ".swo", ".bak", ".orig", ".tmp", ".part", ".crdownload"];

/// Whether a file may be a part: one that is not hidden, and no backup.
fn may_be_part(name: &str) -> bool {
    !name.starts_with(['.', '#', '~']) && !LEFTOVERS.iter().any(|ending| name.ends_with(ending))
}

/// The one file of the folder with such a word between the dots of its name.
fn find_part(folder: &Path, words: &[&'static str]) -> Result<Option<PathBuf>, DataError> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let entries = list().map_err(|error| DataFault::Io(error).of(folder))?;
    let is_part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        path.is_file() && may_be_part(&name) && name.split('.').any(|piece| words.contains(&piece))
    };
    let mut found: Vec<PathBuf> = entries.into_iter().filter(is_part).collect();
    found.sort();
    if found.len() > 1 {
        let names = found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        return Err(DataFault::Ambiguous { part: words[0], names }.of(folder));
    }
    Ok(found.pop())
}
