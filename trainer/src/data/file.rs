//! Reading files, plain or gzip, within a limit.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::{DataError, DataFault};
use crate::files::thing;

/// No data file may be longer than this, uncompressed. The longest that anyone trains on with this program
/// (the images of EMNIST by class) has 0.6 GB.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads a whole file, through gzip if it begins like a gzip file.
///
/// Memory grows with the bytes that are there, and never beyond `limit`: a gzip bomb is refused.
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, DataError> {
    let read_all = || -> Result<Vec<u8>, DataFault> {
        let mut file = BufReader::new(File::open(path)?);
        let is_gzip = file.fill_buf()?.starts_with(&GZIP_MAGIC);
        if is_gzip { inflate(file, limit) } else { read_within(file, limit) }
    };
    read_all().map_err(|fault| fault.of(path))
}

/// Reads the whole of a gzip stream, at most `limit` bytes of content.
pub(super) fn inflate(compressed: impl BufRead, limit: u64) -> Result<Vec<u8>, DataFault> {
    read_within(MultiGzDecoder::new(compressed), limit).map_err(|fault| match fault {
        DataFault::Io(error) => DataFault::BadGzip(error),
        other => other,
    })
}

fn read_within(source: impl Read, limit: u64) -> Result<Vec<u8>, DataFault> {
    let mut bytes = Vec::new();
    source.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        actual if actual > limit => Err(DataFault::TooLarge { what: "content in bytes", actual, limit }),
        _ => Ok(bytes),
    }
}

/// The file `name` of a folder, or `name.gz`.
pub(super) fn find(folder: &Path, names: &[&str]) -> Result<PathBuf, DataError> {
    let candidates = names.iter().flat_map(|name| [folder.join(name), folder.join(format!("{name}.gz"))]);
    candidates
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| missing(folder, &format!("{} (or .gz)", names.join(", "))))
}

/// The name, and what it is, of something that cannot be read as a file: most often a link of a data set
/// that was moved.
fn unreadable<'a>(folder: &Path, name: &'a str) -> Option<(&'a str, String)> {
    let path = folder.join(name);
    let is_usual = std::fs::metadata(&path).is_ok_and(|found| found.is_file() || found.is_dir());
    thing(&path).filter(|_| !is_usual).map(|what| (name, what))
}

/// Endings of archives that data sets come in.
const ARCHIVES: [&str; 5] = [".tar.gz", ".tgz", ".tar", ".zip", ".parquet"];

/// Says which file is not there, and what is there in its place.
pub(super) fn missing(folder: &Path, wanted: &str) -> DataError {
    let there = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut there: Vec<String> = there.map(|name| name.to_string_lossy().into_owned()).collect();
    there.sort();
    let is_archive = |name: &&String| ARCHIVES.iter().any(|ending| name.ends_with(ending));
    let is_for_python = |name: &String| name == "data_batch_1" || name == "cifar-10-batches-py";
    let wanted = match there.iter().find(is_archive) {
        _ if there.iter().any(is_for_python) => {
            format!(
                "{wanted}; here is the version for Python: download the binary version, cifar-10-binary.tar.gz"
            )
        }
        Some(name) if name.ends_with(".parquet") => {
            format!("{wanted}; {name} is a Parquet file: write its content into files of that kind")
        }
        Some(name) => format!("{wanted}; {name} is an archive: unpack it there"),
        None => there
            .iter()
            .find_map(|name| unreadable(folder, name))
            .map_or_else(|| wanted.to_owned(), |(name, what)| format!("{wanted}; {name} is {what}")),
    };
    DataFault::Missing { wanted }.of(folder)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_and_compressed_files_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let [plain, compressed] = ["a", "b"].map(|name| folder.path().join(name));
        std::fs::write(&plain, b"gradient").unwrap();
        std::fs::write(&compressed, gzip(b"gradient")).unwrap();
        assert_eq!(read(&plain, 8).unwrap(), b"gradient");
        assert_eq!(read(&compressed, 8).unwrap(), b"gradient");
    }

    #[test]
    fn a_gzip_bomb_stops_at_the_limit() {
        let bomb = gzip(&vec![0; 10 << 20]);
        assert!(bomb.len() < 20_000);
        let fault = inflate(&bomb[..], 1 << 20).unwrap_err();
        assert!(matches!(fault, DataFault::TooLarge { limit: 1_048_576, .. }), "{fault}");
    }

    #[test]
    fn a_cut_gzip_stream_is_refused() {
        let whole = gzip(b"gradient gradient gradient");
        for len in 2..whole.len() {
            let fault = inflate(&whole[..len], 100).unwrap_err();
            assert!(matches!(fault, DataFault::BadGzip(_)), "{len}: {fault}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/nonexistent/file"), 8).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/file: "), "{error}");
    }
}
