//! A text as numbers: its tokens, and the vocabulary that they are numbered by.

use std::collections::{BTreeSet, HashMap};

use super::{DataFault, Level, Part};

/// No vocabulary may be larger than this: four times that of WikiText-103.
const MAX_VOCABULARY: usize = 1 << 20;

/// Ends every line of a text that is read by words.
const END_OF_LINE: &str = "<eos>";

/// Replaces words that the training part does not have, if the training part itself has this word.
const UNKNOWN: &str = "<unk>";

/// The different tokens of a text and their numbers.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    symbols: Vec<String>,
    numbers: HashMap<String, u32>,
}

/// A tokenised text in two or three parts.
#[derive(Clone, Debug)]
pub struct Text {
    name: String,
    vocabulary: Vocabulary,
    train: Vec<u32>,
    valid: Option<Vec<u32>>,
    test: Vec<u32>,
    unknown: Unknown,
}

/// Tokens of a part that the training part does not have, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unknown {
    valid: usize,
    test: usize,
}

impl Vocabulary {
    /// Number of different tokens.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The text of a token.
    ///
    /// # Panics
    ///
    /// If `token` is not below [`Vocabulary::len`].
    pub fn symbol(&self, token: u32) -> &str {
        &self.symbols[token as usize]
    }

    /// The number of a symbol.
    pub fn token(&self, symbol: &str) -> Option<u32> {
        self.numbers.get(symbol).copied()
    }

    /// The number of a symbol, which is added if it is new.
    fn insert(&mut self, symbol: &str) -> Result<u32, DataFault> {
        if let Some(token) = self.token(symbol) {
            return Ok(token);
        }
        let (actual, limit) = (self.len() as u64 + 1, MAX_VOCABULARY as u64);
        if actual > limit {
            return Err(DataFault::TooLarge { what: "vocabulary", actual, limit });
        }
        let token = self.symbols.len() as u32;
        self.symbols.push(symbol.to_owned());
        self.numbers.insert(symbol.to_owned(), token);
        Ok(token)
    }
}

impl Text {
    /// Tokenises a text and uses the last tenth of the tokens as the test part.
    ///
    /// # Errors
    ///
    /// As [`Text::from_parts`].
    pub fn from_one(name: &str, level: Level, text: &str) -> Result<Self, DataFault> {
        let mut vocabulary = vocabulary_of(level, text)?;
        let (mut train, _) = encode(&mut vocabulary, level, text)?;
        let test = train.split_off(train.len() / 10 * 9 + train.len() % 10 * 9 / 10);
        Self::check(name, vocabulary, (train, None, test), Unknown::default())
    }

    /// Tokenises a text that comes in parts. The vocabulary is that of the training part: characters in the
    /// order of their code points, words in the order in which they appear first.
    ///
    /// Symbols that the training part lacks become `<unk>`, which joins the vocabulary if it is not in it
    /// yet.
    ///
    /// # Errors
    ///
    /// `Empty` if there is no token, `TooShort` if a part has fewer than two tokens, `TooLarge` for the
    /// vocabulary.
    pub fn from_parts(
        name: &str,
        level: Level,
        train: &str,
        valid: Option<&str>,
        test: &str,
    ) -> Result<Self, DataFault> {
        let mut vocabulary = vocabulary_of(level, train)?;
        let (train, _) = encode(&mut vocabulary, level, train)?;
        let valid = valid.map(|text| encode(&mut vocabulary, level, text)).transpose()?;
        let (test, unknown) = encode(&mut vocabulary, level, test)?;
        let (valid, of_valid) = valid.unzip();
        let unknown = Unknown { valid: of_valid.unwrap_or(unknown), test: unknown };
        Self::check(name, vocabulary, (train, valid, test), unknown)
    }

    fn check(
        name: &str,
        vocabulary: Vocabulary,
        (train, valid, test): (Vec<u32>, Option<Vec<u32>>, Vec<u32>),
        unknown: Unknown,
    ) -> Result<Self, DataFault> {
        for part in [Some(&train), valid.as_ref(), Some(&test)].into_iter().flatten() {
            match part.len() {
                0 => return Err(DataFault::Empty),
                1 => return Err(DataFault::TooShort { tokens: 1 }),
                _ => {}
            }
        }
        Ok(Self { name: name.to_owned(), vocabulary, train, valid, test, unknown })
    }

    /// The share of a part that the training part does not have: words that became `<unk>`.
    pub fn unknown_share(&self, part: Part) -> f64 {
        let unknown = match part {
            Part::Train => 0,
            Part::Valid => self.unknown.valid,
            Part::Test => self.unknown.test,
        };
        unknown as f64 / self.part(part).len() as f64
    }

    /// Short name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether there is a validation part of its own.
    pub fn has_valid(&self) -> bool {
        self.valid.is_some()
    }

    /// The different tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The tokens of one part, in order.
    pub fn part(&self, part: Part) -> &[u32] {
        match (part, &self.valid) {
            (Part::Train, _) => &self.train,
            (Part::Valid, Some(valid)) => valid,
            _ => &self.test,
        }
    }
}

/// Calls `visit` with every symbol of the text, in order.
fn each_symbol(
    level: Level,
    text: &str,
    mut visit: impl FnMut(&str) -> Result<(), DataFault>,
) -> Result<(), DataFault> {
    match level {
        Level::Characters => {
            let mut buffer = [0; 4];
            text.chars().try_for_each(|character| visit(character.encode_utf8(&mut buffer)))
        }
        Level::Words => text.lines().try_for_each(|line| {
            line.split_whitespace().try_for_each(&mut visit)?;
            visit(END_OF_LINE)
        }),
    }
}

fn vocabulary_of(level: Level, text: &str) -> Result<Vocabulary, DataFault> {
    let mut vocabulary = Vocabulary::default();
    match level {
        Level::Characters => {
            let distinct: BTreeSet<char> = text.chars().collect();
            for character in distinct {
                vocabulary.insert(character.encode_utf8(&mut [0; 4]))?;
            }
        }
        Level::Words => each_symbol(level, text, |symbol| vocabulary.insert(symbol).map(|_| ()))?,
    }
    Ok(vocabulary)
}

/// The tokens of a text, and how many of them are not in the vocabulary.
fn encode(vocabulary: &mut Vocabulary, level: Level, text: &str) -> Result<(Vec<u32>, usize), DataFault> {
    let (mut tokens, mut unknown) = (Vec::new(), 0);
    each_symbol(level, text, |symbol| {
        let known = vocabulary.token(symbol);
        unknown += usize::from(known.is_none());
        tokens.push(known.map_or_else(|| vocabulary.insert(UNKNOWN), Ok)?);
        Ok(())
    })?;
    Ok((tokens, unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_line_end_with_a_token() {
        let text = Text::from_parts("t", Level::Words, "a b\n\nb\n", None, "b a c").unwrap();
        let symbols = |part| text.part(part).iter().map(|&t| text.vocabulary().symbol(t)).collect::<Vec<_>>();
        assert_eq!(symbols(Part::Train), ["a", "b", "<eos>", "<eos>", "b", "<eos>"]);
        assert_eq!(symbols(Part::Test), ["b", "a", "<unk>", "<eos>"]);
        assert_eq!(symbols(Part::Valid), symbols(Part::Test));
    }

    #[test]
    fn characters_come_in_the_order_of_their_code_points() {
        let text = Text::from_one("t", Level::Characters, "ba\nbaéb\nbabababababa").unwrap();
        let symbols: Vec<&str> = (0..4).map(|token| text.vocabulary().symbol(token)).collect();
        assert_eq!(symbols, ["\n", "a", "b", "é"]);
        assert_eq!((text.part(Part::Train).len(), text.part(Part::Test).len()), (18, 2));
    }

    #[test]
    fn parts_without_a_pair_of_tokens_are_refused() {
        let fault = Text::from_parts("t", Level::Characters, "ab", None, "").unwrap_err();
        assert!(matches!(fault, DataFault::Empty), "{fault}");
        let fault = Text::from_parts("t", Level::Characters, "ab", None, "a").unwrap_err();
        assert!(matches!(fault, DataFault::TooShort { tokens: 1 }), "{fault}");
    }
}
