//! Tiny Shakespeare: 1,115,394 characters that ship with the trainer.
//!
//! # Split
//!
//! The first 90 % is the training part (1,003,854 characters), the rest the test part (111,540). The 65
//! distinct characters, in the order of their code points, are the vocabulary.
//!
//! # Source
//!
//! William Shakespeare, compiled by Andrej Karpathy; see [`DATA_LICENSES`](super::DATA_LICENSES).

use super::{DataError, DataFault, Dataset, Level, Text, file};

static SHIPPED: &[u8] = include_bytes!("../../data/tinyshakespeare.txt.gz");

/// The shipped text, by characters.
///
/// # Errors
///
/// None with the file that ships with the trainer.
pub fn load() -> Result<Dataset, DataError> {
    parse().map(Dataset::Text).map_err(|fault| fault.of("tinyshakespeare.txt.gz"))
}

fn parse() -> Result<Text, DataFault> {
    let text = file::inflate(SHIPPED, 4 << 20)?;
    let text = String::from_utf8(text)
        .map_err(|error| DataFault::BadText { offset: error.utf8_error().valid_up_to() })?;
    Text::from_one("tiny-shakespeare", Level::Characters, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Part;

    #[test]
    fn the_shipped_text_has_the_published_counts() {
        let text = parse().unwrap();
        assert_eq!(text.vocabulary().len(), 65);
        assert_eq!(text.part(Part::Train).len(), 1_003_854);
        assert_eq!(text.part(Part::Test).len(), 111_540);
        let beginning: String =
            text.part(Part::Train)[..14].iter().map(|&token| text.vocabulary().symbol(token)).collect();
        assert_eq!(beginning, "First Citizen:");
    }
}
