//! Every loader on files made here: plain, gzip, and each way a file can be wrong.

use std::io::Write;
use std::path::Path;

use flate2::{Compression, write::GzEncoder};
use gradwire_trainer::data::{Batch, DataError, DataFault, Dataset, Level, Part, Source, cifar, idx, text};
use tempfile::TempDir;

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn idx_images(dimensions: [u32; 3], pixels: &[u8]) -> Vec<u8> {
    let [count, rows, columns] = dimensions;
    [words(&[0x803, count, rows, columns]), pixels.to_vec()].concat()
}

fn idx_labels(count: u32, labels: &[u8]) -> Vec<u8> {
    [words(&[0x801, count]), labels.to_vec()].concat()
}

/// Three training images and one test image of 2×3 pixels.
fn good_idx() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let pixels: Vec<u8> = (0..18).collect();
    put(&folder, TRAIN_IMAGES, &idx_images([3, 2, 3], &pixels));
    put(&folder, TRAIN_LABELS, &idx_labels(3, &[9, 0, 4]));
    put(&folder, TEST_IMAGES, &idx_images([1, 2, 3], &pixels[..6]));
    put(&folder, TEST_LABELS, &idx_labels(1, &[7]));
    folder
}

fn put(folder: &TempDir, name: &str, content: &[u8]) {
    std::fs::write(folder.path().join(name), content).unwrap();
}

fn load_idx(folder: &TempDir) -> Result<Dataset, DataError> {
    idx::load("mnist", folder.path())
}

/// Loads with one file replaced; the error must name that file.
fn idx_fault(name: &str, content: &[u8]) -> DataFault {
    let folder = good_idx();
    put(&folder, name, content);
    let error = load_idx(&folder).unwrap_err();
    assert_eq!(error.file, folder.path().join(name));
    error.fault
}

fn labels_of(dataset: &Dataset, part: Part) -> Vec<u32> {
    dataset.in_order(part, 2, 0).flat_map(|batch| batch.targets().to_vec()).collect()
}

#[test]
fn idx_files_read_the_same_plain_and_compressed() {
    let folder = good_idx();
    let plain = load_idx(&folder).unwrap();
    for name in [TRAIN_IMAGES, TEST_LABELS] {
        let content = std::fs::read(folder.path().join(name)).unwrap();
        std::fs::remove_file(folder.path().join(name)).unwrap();
        put(&folder, &format!("{name}.gz"), &gzip(&content));
    }
    let compressed = load_idx(&folder).unwrap();
    assert_eq!(labels_of(&plain, Part::Train), [9, 0, 4]);
    assert_eq!(labels_of(&plain, Part::Test), [7]);
    for part in [Part::Train, Part::Test] {
        assert!(plain.in_order(part, 2, 0).eq(compressed.in_order(part, 2, 0)));
    }
    let Some(Batch::Images { shape, features, .. }) = plain.in_order(Part::Train, 3, 0).next() else {
        panic!()
    };
    assert_eq!(shape, [3, 1, 2, 3]);
    let mean = features.iter().sum::<f32>() / 18.0;
    let square = features.iter().map(|value| value * value).sum::<f32>() / 18.0;
    assert!(mean.abs() < 1e-5 && (square - 1.0).abs() < 1e-5, "{mean} {square}");
}

#[test]
fn every_prefix_of_an_idx_file_is_refused() {
    for name in [TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS] {
        let whole = std::fs::read(good_idx().path().join(name)).unwrap();
        for len in 0..whole.len() {
            let fault = idx_fault(name, &whole[..len]);
            assert!(matches!(fault, DataFault::Truncated { .. }), "{name} {len}: {fault}");
        }
        let fault = idx_fault(name, &[whole, vec![0]].concat());
        assert!(matches!(fault, DataFault::TrailingBytes { count: 1 }), "{fault}");
    }
}

#[test]
fn idx_files_with_wrong_headers_are_refused() {
    let magic = idx_fault(TRAIN_IMAGES, &idx_labels(3, &[0; 18]));
    assert!(matches!(magic, DataFault::BadMagic { expected: 0x803, actual: 0x801 }), "{magic}");
    let magic = idx_fault(TEST_LABELS, &words(&[0x803, 1]));
    assert!(matches!(magic, DataFault::BadMagic { expected: 0x801, actual: 0x803 }), "{magic}");
    for dimensions in [[u32::MAX; 3], [1, u32::MAX, 1], [u32::MAX, 28, 28], [1 << 31, 1, 1]] {
        let fault = idx_fault(TRAIN_IMAGES, &idx_images(dimensions, &[0; 18]));
        assert!(matches!(fault, DataFault::TooLarge { .. }), "{dimensions:?}: {fault}");
    }
    let fault = idx_fault(TRAIN_LABELS, &idx_labels(u32::MAX, &[0; 3]));
    assert!(matches!(fault, DataFault::TooLarge { .. }), "{fault}");
    for dimensions in [[0, 2, 3], [3, 0, 3], [3, 2, 0]] {
        let fault = idx_fault(TRAIN_IMAGES, &idx_images(dimensions, &[]));
        assert!(matches!(fault, DataFault::Empty), "{dimensions:?}: {fault}");
    }
}

#[test]
fn idx_parts_that_do_not_fit_are_refused() {
    let fault = idx_fault(TRAIN_LABELS, &idx_labels(3, &[0, 10, 0]));
    assert!(matches!(fault, DataFault::LabelOutOfRange { record: 1, label: 10, classes: 10 }), "{fault}");
    let fault = idx_fault(TRAIN_IMAGES, &idx_images([2, 2, 3], &[0; 12]));
    assert!(matches!(fault, DataFault::CountMismatch { images: 2, labels: 3, .. }), "{fault}");
    let folder = good_idx();
    put(&folder, TEST_IMAGES, &idx_images([1, 3, 2], &[0; 6]));
    let fault = load_idx(&folder).unwrap_err().fault;
    assert!(matches!(fault, DataFault::ShapeMismatch { expected: [1, 2, 3], actual: [1, 3, 2] }), "{fault}");
}

#[test]
fn missing_and_damaged_idx_files_are_refused() {
    let folder = good_idx();
    std::fs::remove_file(folder.path().join(TEST_LABELS)).unwrap();
    let error = load_idx(&folder).unwrap_err();
    assert!(error.to_string().contains("t10k-labels-idx1-ubyte"), "{error}");
    let whole = gzip(&idx_images([3, 2, 3], &[0; 18]));
    let fault = idx_fault(TRAIN_IMAGES, &whole[..whole.len() - 5]);
    assert!(matches!(fault, DataFault::BadGzip(_)), "{fault}");
}

fn record(label: u8, pixel: u8) -> Vec<u8> {
    let mut record = vec![pixel; cifar::RECORD_BYTES];
    record[0] = label;
    record
}

/// Training files 1 (plain) and 4 (gzip) with one image each, and a test file with one.
fn good_cifar() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(&folder, "data_batch_1.bin", &record(3, 10));
    put(&folder, "data_batch_4.bin.gz", &gzip(&record(5, 20)));
    put(&folder, "test_batch.bin", &record(9, 15));
    folder
}

fn cifar_fault(name: &str, content: &[u8]) -> DataFault {
    let folder = good_cifar();
    put(&folder, name, content);
    let error = cifar::load(folder.path()).unwrap_err();
    assert_eq!(error.file, folder.path().join(name));
    error.fault
}

#[test]
fn cifar_files_are_read_in_order() {
    let dataset = cifar::load(good_cifar().path()).unwrap();
    assert_eq!(labels_of(&dataset, Part::Train), [3, 5]);
    assert_eq!(labels_of(&dataset, Part::Test), [9]);
    let Some(Batch::Images { shape, features, .. }) = dataset.in_order(Part::Train, 2, 0).next() else {
        panic!()
    };
    assert_eq!(shape, [2, 3, 32, 32]);
    // Two levels, 10 and 20: one deviation below and above the mean.
    assert!(features[..3_072].iter().all(|value| (value + 1.0).abs() < 1e-5));
    assert!(features[3_072..].iter().all(|value| (value - 1.0).abs() < 1e-5));
}

#[test]
fn wrong_cifar_files_are_refused() {
    let fault = cifar_fault("data_batch_1.bin", &record(0, 0)[1..]);
    assert!(matches!(fault, DataFault::BadRecordSize { bytes: 3_072, record_bytes: 3_073 }), "{fault}");
    let fault = cifar_fault("test_batch.bin", &[record(0, 0), vec![1]].concat());
    assert!(matches!(fault, DataFault::BadRecordSize { .. }), "{fault}");
    let fault = cifar_fault("data_batch_1.bin", &[]);
    assert!(matches!(fault, DataFault::Empty), "{fault}");
    let fault = cifar_fault("test_batch.bin", &[record(0, 0), record(10, 0)].concat());
    assert!(matches!(fault, DataFault::LabelOutOfRange { record: 1, label: 10, .. }), "{fault}");
    let fault = cifar_fault("data_batch_4.bin.gz", &gzip(&record(5, 20))[..20]);
    assert!(matches!(fault, DataFault::BadGzip(_)), "{fault}");
}

#[test]
fn a_cifar_bomb_is_refused_at_the_limit() {
    // 400 MB of zeros in 400 kB.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    (0..400).for_each(|_| encoder.write_all(&[0; 1 << 20]).unwrap());
    let fault = cifar_fault("data_batch_1.bin", &encoder.finish().unwrap());
    assert!(matches!(fault, DataFault::TooLarge { limit: 307_300_000, .. }), "{fault}");
}

#[test]
fn missing_cifar_files_are_named() {
    for (name, wanted) in [("test_batch.bin", "test_batch.bin"), ("data_batch_1.bin", "data_batch_1.bin")] {
        let folder = good_cifar();
        std::fs::remove_file(folder.path().join(name)).unwrap();
        let _ = std::fs::remove_file(folder.path().join("data_batch_4.bin.gz"));
        let error = cifar::load(folder.path()).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

fn text_folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, content)| put(&folder, name, content));
    folder
}

fn text_fault(files: &[(&str, &[u8])]) -> DataFault {
    text::load(text_folder(files).path(), Level::Words).unwrap_err().fault
}

#[test]
fn corpora_are_found_by_the_names_of_their_parts() {
    let files: [(&str, &[u8]); 4] = [
        ("ptb.train.txt.gz", &gzip(b"a b c a\n")),
        ("ptb.valid.txt", b"b a\n"),
        ("ptb.test.txt", b"c c\n"),
        ("README.md", b"about training and test files"),
    ];
    let Dataset::Text(corpus) = text::load(text_folder(&files).path(), Level::Words).unwrap() else {
        panic!()
    };
    assert_eq!(corpus.part(Part::Train), [0, 1, 2, 0, 3]);
    assert_eq!(corpus.part(Part::Valid), [1, 0, 3]);
    assert_eq!(corpus.part(Part::Test), [2, 2, 3]);
    let Dataset::Text(corpus) = text::load(text_folder(&files[..2]).path(), Level::Words).unwrap() else {
        panic!()
    };
    assert_eq!(corpus.part(Part::Test), [1, 0, 3]);
}

#[test]
fn wrong_corpora_are_refused() {
    let fault = text_fault(&[("train.txt", b""), ("test.txt", b"a b")]);
    assert!(matches!(fault, DataFault::Empty), "{fault}");
    let fault = text_fault(&[("train.txt", b"a\xff"), ("test.txt", b"a b")]);
    assert!(matches!(fault, DataFault::BadText { offset: 1 }), "{fault}");
    let fault = text_fault(&[("train.txt", b"a"), ("wiki.train.tokens", b"a"), ("test.txt", b"a b")]);
    assert!(matches!(fault, DataFault::Ambiguous { part: "train", .. }), "{fault}");
    let fault = text_fault(&[("test.txt", b"a b")]);
    assert!(matches!(fault, DataFault::Missing { .. }), "{fault}");
    let fault = text_fault(&[("train.txt", b"a b")]);
    assert!(matches!(fault, DataFault::Missing { .. }), "{fault}");
    let fault = text_fault(&[("train.txt", b"a b"), ("test.txt", b"\n")]);
    assert!(matches!(fault, DataFault::TooShort { tokens: 1 }), "{fault}");
    let error = text::load(Path::new("/nonexistent"), Level::Words).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent: "), "{error}");
}

#[test]
fn the_folder_with_the_files_is_found_inside_the_one_given() {
    use gradwire_trainer::data::Source;
    let outer = tempfile::tempdir().unwrap();
    let inner = outer.path().join("cifar-10/cifar-10-batches-bin");
    std::fs::create_dir_all(&inner).unwrap();
    let error = Source::Cifar10.load(Some(outer.path())).unwrap_err();
    assert_eq!(error.file, outer.path(), "the folder that was given");
    std::fs::write(inner.join("data_batch_1.bin"), record(3, 10)).unwrap();
    std::fs::write(inner.join("test_batch.bin"), record(9, 10)).unwrap();
    for given in [outer.path(), inner.parent().unwrap(), &inner] {
        let dataset = Source::Cifar10.load(Some(given)).unwrap();
        assert_eq!(labels_of(&dataset, Part::Train), [3], "{}", given.display());
    }
    let corpus = outer.path().join("ptb");
    std::fs::create_dir(&corpus).unwrap();
    for (name, text) in [("ptb.train.txt", "a b c"), ("ptb.test.txt", "c a")] {
        std::fs::write(corpus.join(name), text).unwrap();
    }
    let dataset = Source::Ptb.load(Some(outer.path())).unwrap();
    assert_eq!((dataset.name(), dataset.examples(Part::Train)), ("ptb", 3));
    // What is there and damaged is not looked for elsewhere.
    std::fs::write(outer.path().join("train.txt"), "").unwrap();
    std::fs::write(outer.path().join("test.txt"), "a").unwrap();
    let error = Source::Ptb.load(Some(outer.path())).unwrap_err();
    assert!(matches!(error.fault, DataFault::Empty), "{error}");
}

/// The names of the parts of a corpus, with the training part under a name of the test's.
fn corpus(train: (&str, &[u8])) -> [(String, Vec<u8>); 3] {
    let sentence = b"the cat sat on the mat\n".repeat(20);
    let part = |name: &str| (name.to_owned(), sentence.clone());
    [(train.0.to_owned(), train.1.to_vec()), part("valid.txt"), part("test.txt")]
}

fn load_corpus(files: &[(String, Vec<u8>)], level: Level) -> Result<Dataset, String> {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, content)| put(&folder, name, content));
    text::load(folder.path(), level).map_err(|error| error.to_string())
}

#[test]
fn what_is_no_text_is_named_in_every_part() {
    let utf16: Vec<u8> = "\u{feff}the cat".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let cases: [(&[u8], &str); 11] = [
        (b"<!DOCTYPE html>\n<html><title>403 Forbidden</title>", "this is an HTML page: the download gave"),
        (b"\n <html lang=\"en\">", "this is an HTML page: "),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "this is a pointer of Git LFS: fetch"),
        (b"PK\x03\x04\x14\0 the cat", "this is a zip archive: unpack it first"),
        (b"PAR1\x15\x04 the cat", "this is a Parquet file: write its text"),
        (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}", "this is a Python pickle: "),
        (&utf16, "this is UTF-16 text: save it as UTF-8"),
        (&[0; 4096], "this is nothing but zeros: "),
        (b"the cat\0sat", "control byte 0x00 at byte 7"),
        (b"the \x1b[31mcat", "control byte 0x1b at byte 4"),
        (b"the cat\x7f", "control byte 0x7f at byte 7"),
    ];
    for level in [Level::Words, Level::Characters] {
        for (content, expected) in cases {
            for part in ["train.txt", "valid.txt", "test.txt"] {
                let mut files = corpus(("train.txt", b"the cat sat on the mat\n"));
                files
                    .iter_mut()
                    .filter(|(name, _)| name == part)
                    .for_each(|(_, text)| *text = content.to_vec());
                let said = load_corpus(&files, level).unwrap_err();
                assert!(said.contains(&format!("{part}: {expected}")), "{part}: {said}");
            }
        }
        let mut files = corpus(("train.txt", b"the cat sat on the mat\n"));
        files[2].1 = b"\n\n\n \n".to_vec();
        assert!(load_corpus(&files, level).unwrap_err().ends_with("test.txt: empty data set"));
    }
    for fine in [&b"a\tb\x0cc\r\nd e"[..], "größe ¶ 名前\u{85}x".as_bytes(), b"{\"a\": 1} is text here"]
    {
        load_corpus(&corpus(("train.txt", fine)), Level::Words).unwrap();
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_word() {
    let vocabulary = |mark: &str| {
        let marked = format!("{mark}the cat sat on the mat\n");
        let Ok(Dataset::Text(text)) = load_corpus(&corpus(("train.txt", marked.as_bytes())), Level::Words)
        else {
            panic!()
        };
        (text.vocabulary().len(), text.unknown_share(Part::Test))
    };
    assert_eq!(vocabulary("\u{feff}"), vocabulary(""));
    assert_eq!(vocabulary("").1, 0.0);
}

#[test]
fn backups_and_hidden_files_are_no_parts_and_validation_is_one() {
    for beside in [
        ".train.txt.swp",
        "train.txt~",
        "._train.txt",
        ".train.txt",
        "#train.txt#",
        "train.txt.bak",
        "train.txt.orig",
        "train.txt.part",
        ".#train.txt",
    ] {
        let mut files = corpus(("train.txt", b"the cat sat on the mat\n")).to_vec();
        files.push((beside.to_owned(), b"b0VIM 9.0\0\0".to_vec()));
        load_corpus(&files, Level::Words).unwrap_or_else(|said| panic!("{beside}: {said}"));
    }
    for name in ["validation.txt", "wiki.validation.tokens"] {
        let mut files = corpus(("train.txt", b"the cat sat on the mat\n"));
        files[1].0 = name.to_owned();
        files[1].1 = b"the dog".to_vec();
        let Ok(Dataset::Text(text)) = load_corpus(&files, Level::Words) else { panic!("{name}") };
        assert_eq!((text.part(Part::Valid).len(), text.has_valid()), (3, true), "{name}");
    }
    let mut both = corpus(("train.txt", b"the cat sat on the mat\n")).to_vec();
    both.push(("validation.txt".to_owned(), b"the cat".to_vec()));
    assert!(load_corpus(&both, Level::Words).unwrap_err().contains("more than one file for the valid part"));
}

/// As where a data set was moved, and the links to it were not.
#[cfg(unix)]
#[test]
fn links_to_nothing_in_place_of_data_are_named() {
    for (source, name) in [
        (Source::Text, "train.txt"),
        (Source::Ptb, "ptb.train.txt"),
        (Source::Mnist, "train-images-idx3-ubyte"),
        (Source::Cifar10, "data_batch_1.bin"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("gone/data", folder.path().join(name)).unwrap();
        let said = source.load(Some(folder.path())).unwrap_err().to_string();
        assert!(said.ends_with(&format!("; {name} is a link to gone/data, which does not exist")), "{said}");
    }
    // One of several files: the others alone would be other data.
    let folder = tempfile::tempdir().unwrap();
    for name in ["data_batch_1.bin", "test_batch.bin"] {
        std::fs::write(folder.path().join(name), [0; 3073]).unwrap();
    }
    assert!(Source::Cifar10.load(Some(folder.path())).is_ok());
    std::os::unix::fs::symlink("gone", folder.path().join("data_batch_3.bin")).unwrap();
    let said = Source::Cifar10.load(Some(folder.path())).unwrap_err().to_string();
    assert!(said.ends_with("; data_batch_3.bin is a link to gone, which does not exist"), "{said}");
}

#[test]
fn the_parts_of_a_text_are_stated_and_one_of_another_text_is_doubted() {
    let mut files = corpus(("train.txt", b"the cat sat on the mat\n"));
    files[1].1 = b"the dog sat\n".to_vec();
    files[2].1 = b"la vie en rose\n".to_vec();
    let data = load_corpus(&files, Level::Words).unwrap();
    let about = data.about().unwrap();
    let expected = "7 tokens in the training part, 4 in the validation part (25.00 % of them unknown), \
                    5 in the test part (80.00 % of them unknown); 7 different tokens";
    assert!(about.ends_with(expected), "{about}");
    assert!(data.doubt().unwrap().contains("25 % of the validation part are unknown"));
    files[1].1 = b"the cat sat\n".to_vec();
    assert!(load_corpus(&files, Level::Words).unwrap().doubt().unwrap().contains("80 % of the test part"));
    files[2].1 = b"the cat sat on the mat on the dog\n".to_vec();
    assert_eq!(load_corpus(&files, Level::Words).unwrap().doubt(), None);
}

#[test]
fn images_that_are_something_else_are_named() {
    let page = b"<!DOCTYPE html>\n<html><title>403 Forbidden</title>";
    for name in [TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS] {
        let other = if name.contains("images") { idx_labels(1, &[0]) } else { idx_images([1; 3], &[0]) };
        let kind = if name.contains("images") { "labels" } else { "images" };
        for (content, expected) in [
            (page.to_vec(), "this is an HTML page: ".to_owned()),
            (Vec::new(), "this is an empty file: ".to_owned()),
            (gzip(&gzip(&idx_labels(1, &[0]))), "this is a gzip file: unpack it first".to_owned()),
            (other, format!("this is an IDX file of {kind}")),
            (words(&[0xd03, 1, 1, 1]), "this is an IDX file of another type or rank: ".to_owned()),
        ] {
            let folder = good_idx();
            put(&folder, name, &content);
            let said = load_idx(&folder).unwrap_err().to_string();
            assert!(said.contains(&format!("{name}: {expected}")), "{name}: {said}");
        }
    }
    let folder = good_cifar();
    put(&folder, "data_batch_1.bin", page);
    assert!(
        cifar::load(folder.path())
            .unwrap_err()
            .to_string()
            .contains("data_batch_1.bin: this is an HTML page")
    );
}

#[test]
fn archives_and_the_version_for_python_are_recognised_beside_what_is_missing() {
    let said = |load: &dyn Fn(&Path) -> Result<Dataset, DataError>, name: &str| {
        let folder = tempfile::tempdir().unwrap();
        put(&folder, name, b"");
        load(folder.path()).unwrap_err().to_string()
    };
    let (cifar10, mnist) = (|path: &Path| cifar::load(path), |path: &Path| idx::load("mnist", path));
    for name in ["data_batch_1", "cifar-10-batches-py"] {
        assert!(said(&cifar10, name).contains("the version for Python: download the binary version"));
    }
    for name in ["cifar-10-binary.tar.gz", "cifar.zip", "cifar.tgz"] {
        let expected = format!("{name} is an archive: unpack it there");
        assert!(said(&cifar10, name).ends_with(&expected), "{}", said(&cifar10, name));
        assert!(said(&mnist, name).ends_with(&expected));
    }
    let words = |path: &Path| text::load(path, Level::Words);
    assert!(said(&words, "train-00000.parquet").contains("train-00000.parquet is a Parquet file: write its"));
}
