//! What a file is, by its first bytes: said where a file is not what was asked for.

use std::fmt;

/// A kind of file that people mistake for another one, and what to do with it. Displays as both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// With its article.
    pub(crate) name: &'static str,
    advice: &'static str,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, advice } = self;
        if advice.is_empty() { f.write_str(name) } else { write!(f, "{name}: {advice}") }
    }
}

/// Bytes from the beginning of a file that decide what it is.
pub(crate) const DECISIVE_BYTES: usize = 512;

const AGAIN: &str = "the download gave this in place of the file; download the file itself";
const UNPACK: &str = "unpack it first";
const TO_SAFETENSORS: &str = "save the tensors with safetensors.torch.save_file";
const FROM_NUMPY: &str = "save the arrays with safetensors.numpy.save_file";

const fn kind(name: &'static str, advice: &'static str) -> Kind {
    Kind { name, advice }
}

const JSON: Kind = kind("JSON", "");
const INDEX: Kind = kind("the index of a model in several files", "give one of the files that it names");
const IDX: Kind = kind("an IDX file of another type or rank", "labels and images are bytes, of rank 1 and 3");
const IDX_IMAGES: Kind = kind("an IDX file of images", "");
const IDX_LABELS: Kind = kind("an IDX file of labels", "");
const SAFETENSORS: Kind = kind("a safetensors file", "");
const FRAME: Kind = kind("a frame of gradwire", "`codec decode` makes a gradient of it");
const PYTORCH: Kind = kind("a PyTorch file", TO_SAFETENSORS);
const PICKLE: Kind = kind("a Python pickle", TO_SAFETENSORS);
const NUMPY_ARCHIVE: Kind = kind("an archive of NumPy arrays", FROM_NUMPY);
const TAR: Kind = kind("a tar archive", UNPACK);
const HTML: Kind = kind("an HTML page", AGAIN);
const ZEROS: Kind = kind("nothing but zeros", "it was never written to the end; copy it again");

/// Beginnings that are enough. Longer ones stand before those that they begin with.
const BEGINNINGS: [(&[u8], Kind); 25] = [
    (b"version https://git-lfs", kind("a pointer of Git LFS", "fetch the file itself with: git lfs pull")),
    (b"\x1f\x8b", kind("a gzip file", UNPACK)),
    (b"BZh", kind("a bzip2 file", UNPACK)),
    (b"\xfd7zXZ", kind("an xz file", UNPACK)),
    (b"\x28\xb5\x2f\xfd", kind("a zstd file", UNPACK)),
    (b"7z\xbc\xaf", kind("a 7z archive", UNPACK)),
    (b"Rar!", kind("a rar archive", UNPACK)),
    (b"\x93NUMPY", kind("a NumPy array", FROM_NUMPY)),
    (b"GGUF", kind("a GGUF file", "it holds quantised weights, not gradients")),
    (b"\x89HDF\r\n", kind("an HDF5 file", TO_SAFETENSORS)),
    (b"PAR1", kind("a Parquet file", "write its text into a plain file, such as train.txt")),
    (b"ARROW1", kind("an Arrow file", "write its text into a plain file, such as train.txt")),
    (b"SQLite format 3", kind("an SQLite file", "")),
    (b"%PDF", kind("a PDF file", "")),
    (b"\x89PNG", kind("a PNG image", "")),
    (b"\xff\xd8\xff", kind("a JPEG image", "")),
    (b"GIF8", kind("a GIF image", "")),
    (b"\x7fELF", kind("a program", "")),
    (b"MZ", kind("a program", "")),
    (b"b0VIM", kind("a swap file of vim", "")),
    (b"\x00\x05\x16\x07", kind("a file of macOS beside the real one", "its name without ._ is the real one")),
    (b"\xff\xfe", kind("UTF-16 text", "save it as UTF-8")),
    (b"\xfe\xff", kind("UTF-16 text", "save it as UTF-8")),
    (b"GW\x01", FRAME),
    (b"GM\x01", kind("a saved memory of gradwire", "")),
];

impl Kind {
    /// Without a byte.
    pub(crate) const EMPTY: Self = kind("an empty file", "copy or download it again");

    /// What a file is that begins so; `None` if it could be anything.
    pub(crate) fn of(first: &[u8]) -> Option<Self> {
        let first = &first[..first.len().min(DECISIVE_BYTES)];
        let known = BEGINNINGS.iter().find(|(bytes, _)| first.starts_with(bytes)).map(|&(_, kind)| kind);
        known.or_else(|| archive(first)).or_else(|| binary(first)).or_else(|| markup(first))
    }

    /// Whether it begins as a safetensors file does.
    pub(crate) fn is_safetensors(self) -> bool {
        self == SAFETENSORS
    }

    /// Whether it begins as a frame does.
    pub(crate) fn is_frame(self) -> bool {
        self == FRAME
    }

    /// The same, of text that is no text of a user: a page or a pointer, but not JSON, which is data.
    pub(crate) fn of_text(first: &[u8]) -> Option<Self> {
        Self::of(first).filter(|kind| *kind != JSON)
    }
}

fn has(first: &[u8], part: &[u8]) -> bool {
    first.windows(part.len()).any(|window| window == part)
}

/// PyTorch's files and archives of NumPy are zip archives: the name of the first entry says so.
fn archive(first: &[u8]) -> Option<Kind> {
    let is_tar = first.get(257..262).is_some_and(|magic| magic == b"ustar");
    match first.get(..4)? {
        _ if is_tar => Some(TAR),
        b"PK\x03\x04" if has(first, b"data.pkl") => Some(PYTORCH),
        b"PK\x03\x04" if has(first, b".npy") => Some(NUMPY_ARCHIVE),
        b"PK\x03\x04" => Some(kind("a zip archive", UNPACK)),
        _ => None,
    }
}

/// Formats that are told by the structure of their first bytes.
fn binary(first: &[u8]) -> Option<Kind> {
    match first {
        // Protocols 2 to 5; what follows is an opcode that begins an object, or a frame.
        [0x80, 2..=5, b'}' | b']' | b'(' | b'c' | 0x8a | 0x95, ..] => Some(PICKLE),
        _ if first.len() >= 16 && first.iter().all(|&byte| byte == 0) => Some(ZEROS),
        [0, 0, 8, 3, ..] => Some(IDX_IMAGES),
        [0, 0, 8, 1, ..] => Some(IDX_LABELS),
        [0, 0, 8 | 9 | 11..=14, 1..=4, ..] => Some(IDX),
        [_, _, _, _, 0, 0, 0, 0, b'{', b'"' | b'}', ..] => Some(SAFETENSORS),
        _ => None,
    }
}

/// HTML, and JSON.
fn markup(first: &[u8]) -> Option<Kind> {
    let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first).trim_ascii_start();
    let begins = |tag: &[u8]| first.get(..tag.len()).is_some_and(|found| found.eq_ignore_ascii_case(tag));
    let tags: [&[u8]; 7] = [b"<!doctype html", b"<html", b"<head", b"<body", b"<!--", b"<?xml", b"<script"];
    match first {
        _ if tags.iter().any(|tag| begins(tag)) => Some(HTML),
        [b'{', ..] if has(first, b"\"weight_map\"") => Some(INDEX),
        [b'{', next, ..] if matches!(next, b'"' | b'}') || next.is_ascii_whitespace() => Some(JSON),
        [b'[', b'{' | b'[' | b'"', ..] => Some(JSON),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_first_bytes() {
        let tar = [&[b'a'; 257][..], b"ustar\0"].concat();
        let tensors = [&90_u64.to_le_bytes()[..], b"{\"w\":{\"dtype\":\"F32\""].concat();
        for (first, name) in [
            (&b"<!DOCTYPE html>\n<html>"[..], "an HTML page"),
            (b"\n\n  <HTML lang=en>", "an HTML page"),
            (b"\xef\xbb\xbf<html>", "an HTML page"),
            (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied", "an HTML page"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "a pointer of Git LFS"),
            (b"PK\x03\x04\0\0\0\0\0\0archive/data.pkl", "a PyTorch file"),
            (b"PK\x03\x04\0\0\0\0\0\0arr_0.npy", "an archive of NumPy arrays"),
            (b"PK\x03\x04\x14\0\0\0", "a zip archive"),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9", "a Python pickle"),
            (b"\x80\x04\x95\x1a\0\0\0\0\0\0\0}", "a Python pickle"),
            (b"\x80\x02}q\x01(", "a Python pickle"),
            (b"\x1f\x8b\x08\0", "a gzip file"),
            (b"\x93NUMPY\x01\0v\0", "a NumPy array"),
            (b"GGUF\x03\0\0\0", "a GGUF file"),
            (b"PAR1\x15\0", "a Parquet file"),
            (b"\xff\xfe \0t\0h\0", "UTF-16 text"),
            (b"\0\0\x08\x03\0\0\0\x01", "an IDX file of images"),
            (b"\0\0\x08\x01\0\0\0\x01", "an IDX file of labels"),
            (b"\0\0\x0d\x03\0\0\0\x01", "an IDX file of another type or rank"),
            (b"{\"metadata\":{\"total_size\":8},\"weight_map\":{}", "the index of a model in several files"),
            (b"{\"step\":0,\"loss\":1.5}", "JSON"),
            (b"[{\"step\":0}]", "JSON"),
            (b"\0\x05\x16\x07\0\x02\0\0", "a file of macOS beside the real one"),
            (b"b0VIM 9.0", "a swap file of vim"),
            (&[0; 64], "nothing but zeros"),
            (&tar, "a tar archive"),
            (&tensors, "a safetensors file"),
        ] {
            assert_eq!(Kind::of(first).map(|kind| kind.name), Some(name), "{first:?}");
        }
        for ordinary in
            [&b""[..], b"\0", b" the cat sat on the mat \n", b"[settings]\nlr = 1\n", b"\x05\x00ab"]
        {
            assert_eq!(Kind::of(ordinary), None, "{ordinary:?}");
        }
    }

    #[test]
    fn no_beginning_hides_a_longer_one() {
        for (at, (longer, _)) in BEGINNINGS.iter().enumerate() {
            let hides = BEGINNINGS[..at].iter().find(|(shorter, _)| longer.starts_with(shorter));
            assert_eq!(hides, None, "{longer:?}");
        }
    }
}
