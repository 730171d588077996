//! CIFAR-10: binary records of 3,073 bytes, plain or gzip.
//!
//! A record is the label and 3,072 pixels: the red, the green and the blue plane of a 32×32 image, row by
//! row.

use std::path::Path;

use super::{DataError, DataFault, Dataset, ImageSet, Images, Scaling, file};

/// Image size: channels, height, width.
pub const SHAPE: [usize; 3] = [3, 32, 32];

/// Ten classes.
pub const CLASSES: usize = 10;

/// Label and pixels.
pub const RECORD_BYTES: usize = 3_073;

/// Ten times the official length of a file.
const MAX_FILE_BYTES: u64 = 10 * 10_000 * RECORD_BYTES as u64;

/// The official numbers of the training files.
const TRAIN_FILES: std::ops::RangeInclusive<u32> = 1..=5;

/// Reads every `data_batch_1.bin` … `data_batch_5.bin` that is there, and `test_batch.bin` (each also with
/// `.gz`), and standardises the features by channel.
///
/// # Errors
///
/// `Missing` without any training file or without the test file, also of the version for Python; else
/// [`DataError`] names the file.
pub fn load(folder: &Path) -> Result<Dataset, DataError> {
    let names = TRAIN_FILES.map(|n| format!("data_batch_{n}.bin"));
    let mut present = Vec::new();
    for name in names {
        match file::find(folder, &[&name]) {
            Ok(path) => present.push(path),
            // What is there and cannot be read is not left out in silence.
            Err(error) if folder.join(&name).is_symlink() => return Err(error),
            Err(_) => {}
        }
    }
    if present.is_empty() {
        return Err(file::missing(folder, "data_batch_1.bin (or .gz)"));
    }
    let test_file = file::find(folder, &["test_batch.bin"])?;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for path in &present {
        read_records(path, &mut pixels, &mut labels)?;
    }
    let train = ImageSet::new(SHAPE, pixels, labels, CLASSES).map_err(|fault| fault.of(folder))?;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    read_records(&test_file, &mut pixels, &mut labels)?;
    let test = ImageSet::new(SHAPE, pixels, labels, CLASSES).map_err(|fault| fault.of(&test_file))?;
    let scaling = Scaling::standard(255.0, &train);
    let images = Images::new("cifar-10", CLASSES, scaling, train, test);
    images.map(Dataset::Images).map_err(|fault| fault.of(folder))
}

fn read_records(path: &Path, pixels: &mut Vec<u8>, labels: &mut Vec<u8>) -> Result<(), DataError> {
    let bytes = file::read(path, MAX_FILE_BYTES)?;
    push_records(&bytes, pixels, labels).map_err(|fault| fault.of(path).seen(&bytes, ""))
}

/// Appends the pixels and labels of a file.
fn push_records(bytes: &[u8], pixels: &mut Vec<u8>, labels: &mut Vec<u8>) -> Result<(), DataFault> {
    let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
    if !rest.is_empty() {
        return Err(DataFault::BadRecordSize {
            bytes: bytes.len() as u64,
            record_bytes: RECORD_BYTES as u64,
        });
    }
    if records.is_empty() {
        return Err(DataFault::Empty);
    }
    for (record, [label, image @ ..]) in records.iter().enumerate() {
        if usize::from(*label) >= CLASSES {
            let label = u64::from(*label);
            return Err(DataFault::LabelOutOfRange { record, label, classes: CLASSES });
        }
        labels.push(*label);
        pixels.extend_from_slice(image);
    }
    Ok(())
}
