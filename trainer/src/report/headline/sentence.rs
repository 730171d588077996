//! The words of a headline.

use super::{Finding, Headline};

/// Some words of the sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// As they are.
    Plain(&'a str),
    /// The spelling of a codec.
    Code(&'a str),
    /// What matters most.
    Strong(&'a str),
}

use Piece::{Code, Plain, Strong};

impl Headline {
    /// The sentence, in pieces.
    pub fn pieces(&self) -> Vec<Piece<'_>> {
        let (codec, dense) = (Code(&self.label), Code(&self.dense));
        let dense_quality = Plain(&self.dense_quality);
        let moved = [codec, Plain(" moved "), Strong(&self.saved), Plain(" fewer bytes")];
        let ended = [Plain(" and ended with "), Strong(&self.quality)];
        let nearest =
            [Plain(" of dense training ("), dense, Plain("; "), dense_quality, Plain("). The nearest, ")];
        match &self.finding {
            Finding::Kept(difference) => {
                let than = [Plain(" than dense training ("), dense, Plain(")")];
                let other = [Plain(", dense training with "), dense_quality, Plain(". Difference: ")];
                let end = [Plain(difference), Plain(". No loss shows.")];
                [&moved[..], &than, &ended, &other, &end].concat()
            }
            Finding::Lost(difference) => {
                let end = [Plain(". Difference: "), Plain(difference), Plain(".")];
                [&[Plain("No codec kept the quality")][..], &nearest, &moved, &ended, &end].concat()
            }
            Finding::Unclear(difference) => {
                let end = [Plain(". Difference: "), Plain(difference), Plain(". More seeds would tell.")];
                [&[Plain("No codec is sure to keep the quality")][..], &nearest, &moved, &ended, &end]
                    .concat()
            }
            Finding::OneSeed => {
                let begin =
                    [Plain("One seed cannot say whether a codec keeps the quality; try --seeds 5. Here ")];
                let end = [Plain(", dense training ("), dense, Plain(") with "), dense_quality, Plain(".")];
                [&begin[..], &moved, &ended, &end].concat()
            }
            Finding::NotLearned(guess) => {
                let begin =
                    [Plain("Dense training ("), dense, Plain(") has hardly learned: "), dense_quality];
                let end =
                    [Plain(", where guessing gets "), Plain(guess), Plain(". No codec can be judged by it.")];
                [&begin[..], &end].concat()
            }
        }
    }

    /// The sentence, without markup.
    pub fn text(&self) -> String {
        let words = |piece: &Piece<'_>| match *piece {
            Plain(text) | Code(text) | Strong(text) => text.to_owned(),
        };
        self.pieces().iter().map(words).collect()
    }
}
