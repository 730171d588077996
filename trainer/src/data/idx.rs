//! MNIST and Fashion-MNIST: four IDX files in a folder, plain or gzip.
//!
//! An image file is the magic number `0x00000803`, the number of images, of rows and of columns, each a
//! big-endian 32-bit integer, and one byte per pixel. A label file is `0x00000801`, the number of labels, and
//! one byte per label.

use std::path::Path;

use super::{DataError, DataFault, Dataset, ImageSet, Images, Scaling, file, images::values_per_image};

/// Both data sets have ten classes.
pub const CLASSES: usize = 10;

const IMAGE_MAGIC: u32 = 0x0000_0803;
const LABEL_MAGIC: u32 = 0x0000_0801;

/// Reads `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
/// `t10k-labels-idx1-ubyte` (also spelled with a dot before `idx`, each also with `.gz`) and standardises the
/// features.
///
/// # Errors
///
/// [`DataError`] names the file; see [`DataFault`].
pub fn load(name: &str, folder: &Path) -> Result<Dataset, DataError> {
    let train = load_part(folder, "train")?;
    let test = load_part(folder, "t10k")?;
    let scaling = Scaling::standard(255.0, &train);
    let images = Images::new(name, CLASSES, scaling, train, test);
    images.map(Dataset::Images).map_err(|fault| fault.of(folder))
}

fn load_part(folder: &Path, part: &str) -> Result<ImageSet, DataError> {
    let [image_file, label_file] = [("images", 3), ("labels", 1)].map(|(kind, rank)| {
        let names = [format!("{part}-{kind}-idx{rank}-ubyte"), format!("{part}-{kind}.idx{rank}-ubyte")];
        file::find(folder, &[&names[0], &names[1]])
    });
    let (image_file, label_file) = (image_file?, label_file?);
    let images = file::read(&image_file, file::MAX_FILE_BYTES)?;
    let labels = file::read(&label_file, file::MAX_FILE_BYTES)?;
    let (shape, pixels) = parse_images(&images)
        .map_err(|fault| fault.of(&image_file).seen(&images, "an IDX file of images"))?;
    let labels = parse_labels(&labels)
        .map_err(|fault| fault.of(&label_file).seen(&labels, "an IDX file of labels"))?;
    check_counts(shape, pixels, labels, &label_file).map_err(|fault| fault.of(&image_file))?;
    // Any other fault is in a label.
    ImageSet::new(shape, pixels.to_vec(), labels.to_vec(), CLASSES).map_err(|fault| fault.of(&label_file))
}

fn check_counts(shape: [usize; 3], pixels: &[u8], labels: &[u8], label_file: &Path) -> Result<(), DataFault> {
    let images = pixels.len() / values_per_image(shape)?;
    if images == labels.len() {
        return Ok(());
    }
    Err(DataFault::CountMismatch {
        images,
        labels: labels.len(),
        label_file: label_file.display().to_string(),
    })
}

/// Shape and pixels of an image file.
pub(super) fn parse_images(bytes: &[u8]) -> Result<([usize; 3], &[u8]), DataFault> {
    let [count, rows, columns] = header(bytes, IMAGE_MAGIC)?;
    let shape = [1, rows as usize, columns as usize];
    let values = values_per_image(shape)?;
    // Below 2^50: the count has 32 bits, an image 18.
    Ok((shape, body(bytes, 16, u64::from(count) * values as u64)?))
}

/// The labels of a label file.
pub(super) fn parse_labels(bytes: &[u8]) -> Result<&[u8], DataFault> {
    let [count] = header(bytes, LABEL_MAGIC)?;
    body(bytes, 8, u64::from(count))
}

/// The dimensions after the magic number, which is checked.
fn header<const N: usize>(bytes: &[u8], expected: u32) -> Result<[u32; N], DataFault> {
    let actual = bytes.len() as u64;
    let truncated = DataFault::Truncated { needed: 4 + 4 * N as u64, actual };
    let (words, _) = bytes.as_chunks::<4>();
    let mut words = words.iter().map(|&word| u32::from_be_bytes(word));
    match words.next() {
        Some(magic) if magic == expected => {}
        Some(actual) => return Err(DataFault::BadMagic { expected, actual }),
        None => return Err(truncated),
    }
    let mut dimensions = [0; N];
    for dimension in &mut dimensions {
        let Some(word) = words.next() else { return Err(truncated) };
        *dimension = word;
    }
    Ok(dimensions)
}

/// The bytes after the header, if they are exactly `needed` bytes.
fn body(bytes: &[u8], header_bytes: usize, needed: u64) -> Result<&[u8], DataFault> {
    let body = &bytes[header_bytes..];
    let actual = body.len() as u64;
    if needed == 0 {
        return Err(DataFault::Empty);
    }
    if needed > file::MAX_FILE_BYTES {
        return Err(DataFault::TooLarge {
            what: "number of bytes",
            actual: needed,
            limit: file::MAX_FILE_BYTES,
        });
    }
    match actual.cmp(&needed) {
        std::cmp::Ordering::Less => Err(DataFault::Truncated { needed, actual }),
        std::cmp::Ordering::Equal => Ok(body),
        std::cmp::Ordering::Greater => Err(DataFault::TrailingBytes { count: actual - needed }),
    }
}
