//! Plain-text corpora, by characters or by words: PTB, WikiText, or any text.

use std::path::{Path, PathBuf};

use super::{DataError, DataFault, Dataset, Level, Text, file};

/// Reads a corpus.
///
/// A file is split nine to one. In a folder, the file with `train` between the dots of its name (`train.txt`,
/// `ptb.train.txt.gz`, `wiki.train.tokens`) is the training part, likewise `valid` and `test`; without a test
/// file the validation file is the test part.
///
/// # Errors
///
/// `Missing` or `Ambiguous` files, `BadText`, and as [`Text::from_parts`].
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
        let wanted = format!("one with `{part}` between the dots of its name, such as {part}.txt");
        DataFault::Missing { wanted }.of(path)
    };
    let train = find_part(path, "train")?.ok_or_else(|| missing("train"))?;
    let valid = find_part(path, "valid")?;
    let test = find_part(path, "test")?;
    let (valid, test) = match (valid, test) {
        (valid, Some(test)) => (valid, test),
        (Some(valid), None) => (None, valid),
        (None, None) => return Err(missing("test")),
    };
    let (train_text, test_text) = (read(&train)?, read(&test)?);
    let valid_text = valid.as_deref().map(read).transpose()?;
    let text = Text::from_parts(name, level, &train_text, valid_text.as_deref(), &test_text);
    text.map(Dataset::Text).map_err(|fault| fault.of(path))
}

fn read(path: &Path) -> Result<String, DataError> {
    let bytes = file::read(path, file::MAX_FILE_BYTES)?;
    if bytes.is_empty() {
        return Err(DataFault::Empty.of(path));
    }
    String::from_utf8(bytes)
        .map_err(|error| DataFault::BadText { offset: error.utf8_error().valid_up_to() }.of(path))
}

/// The one file of the folder with `part` between the dots of its name.
fn find_part(folder: &Path, part: &'static str) -> Result<Option<PathBuf>, DataError> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let entries = list().map_err(|error| DataFault::Io(error).of(folder))?;
    let is_part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        path.is_file() && name.split('.').any(|piece| piece == part)
    };
    let mut found: Vec<PathBuf> = entries.into_iter().filter(is_part).collect();
    found.sort();
    if found.len() > 1 {
        let names = found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        return Err(DataFault::Ambiguous { part, names }.of(folder));
    }
    Ok(found.pop())
}
