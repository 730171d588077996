//! Every loader on files made here: plain, gzip, and each way a file can be wrong.

use std::io::Write;
use std::path::Path;

use flate2::{Compression, write::GzEncoder};
use gradwire_trainer::data::{Batch, DataError, DataFault, Dataset, Level, Part, cifar, idx, text};
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
