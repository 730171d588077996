//! Optical recognition of handwritten digits: the 1,797 images of 8×8 pixels that ship with the trainer.
//!
//! # Split
//!
//! Every third row of the file (the third, the sixth, …) is a test image: 1,198 training and 599 test images,
//! so the resolution of an accuracy is 0.17 percentage points. The rows run through the ten digits in turn;
//! three has no factor in common with ten, so both parts hold every digit about equally often. Writers appear
//! in both parts.
//!
//! # Source
//!
//! E. Alpaydin and C. Kaynak, 1998; see [`DATA_LICENSES`](super::DATA_LICENSES).

use super::{DataError, DataFault, Dataset, ImageSet, Images, Scaling, file};

/// Image size: channels, height, width.
pub const SHAPE: [usize; 3] = [1, 8, 8];

/// Ten digits.
pub const CLASSES: usize = 10;

/// Pixels are 0 … 16.
const FULL: u8 = 16;

/// One row in this many is a test image.
const TEST_EVERY: usize = 3;

static SHIPPED: &[u8] = include_bytes!("../../data/optdigits.csv.gz");

/// The shipped images, scaled to [0, 1].
///
/// # Errors
///
/// None with the file that ships with the trainer.
pub fn load() -> Result<Dataset, DataError> {
    parse(SHIPPED).map(Dataset::Images).map_err(|fault| fault.of("optdigits.csv.gz"))
}

fn parse(compressed: &[u8]) -> Result<Images, DataFault> {
    let table = file::inflate(compressed, 1 << 20)?;
    let table =
        std::str::from_utf8(&table).map_err(|error| DataFault::BadText { offset: error.valid_up_to() })?;
    let (mut train, mut test) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for (row, line) in table.lines().enumerate() {
        let values = parse_line(line).map_err(|what| DataFault::BadLine { line: row + 1, what })?;
        let part = if row % TEST_EVERY == TEST_EVERY - 1 { &mut test } else { &mut train };
        part.0.extend_from_slice(&values[..64]);
        part.1.push(values[64]);
    }
    let [train, test] = [train, test].map(|(pixels, labels)| ImageSet::new(SHAPE, pixels, labels, CLASSES));
    Images::new("optdigits", CLASSES, Scaling::unit(f32::from(FULL), 1), train?, test?)
}

/// 64 pixels and a label.
fn parse_line(line: &str) -> Result<[u8; 65], String> {
    let mut values = [0; 65];
    let mut fields = line.split(',');
    for (column, value) in values.iter_mut().enumerate() {
        let field = fields.next().ok_or_else(|| format!("{column} fields, expected 65"))?;
        *value = field.trim().parse().map_err(|_| format!("{field:?} is not a number below 256"))?;
        if column < 64 && *value > FULL {
            return Err(format!("pixel {value} is above {FULL}"));
        }
    }
    match fields.next() {
        Some(_) => Err("more than 65 fields".to_owned()),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Part;

    #[test]
    fn the_shipped_file_has_the_published_counts() {
        let images = parse(SHIPPED).unwrap();
        let [train, test] = [Part::Train, Part::Test].map(|part| images.part(part).class_counts(CLASSES));
        let total: Vec<usize> = train.iter().zip(&test).map(|(a, b)| a + b).collect();
        assert_eq!(total, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert_eq!((train.iter().sum::<usize>(), test.iter().sum::<usize>()), (1198, 599));
        assert!(test.iter().all(|&count| (50..=70).contains(&count)), "{test:?}");
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        let good = vec!["1"; 65].join(",");
        assert_eq!(parse_line(&good).unwrap(), [1; 65]);
        assert!(parse_line("1,2").unwrap_err().contains("2 fields"));
        assert!(parse_line(&format!("{good},1")).unwrap_err().contains("more than"));
        assert!(parse_line(&good.replacen('1', "17", 1)).unwrap_err().contains("above 16"));
        assert!(parse_line(&good.replacen('1', "x", 1)).unwrap_err().contains("not a number"));
    }
}
