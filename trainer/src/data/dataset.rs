//! A data set of either kind, and its description for a model.

use super::{Images, Part, Text};

/// A larger share of unknown tokens is that of another text: in the usual corpora it is below 5 %.
const MOST_UNKNOWN: f64 = 0.2;

/// A task: what to train on and what to test on.
#[derive(Clone, Debug)]
pub enum Dataset {
    /// Classification of images.
    Images(Images),
    /// Prediction of the next token.
    Text(Text),
}

/// What a model must know about a data set: the shape of its input and of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Channels, height and width of an image, and the number of classes.
    Images {
        /// Channels, height, width.
        shape: [usize; 3],
        /// Labels are below this.
        classes: usize,
    },
    /// The number of different tokens.
    Tokens {
        /// Tokens are below this.
        vocabulary: usize,
    },
}

impl Task {
    /// What a prediction is one of: classes, or tokens.
    pub fn choices(&self) -> usize {
        match *self {
            Self::Images { classes, .. } => classes,
            Self::Tokens { vocabulary } => vocabulary,
        }
    }
}

impl Dataset {
    /// Short name, as reports print it.
    pub fn name(&self) -> &str {
        match self {
            Self::Images(images) => images.name(),
            Self::Text(text) => text.name(),
        }
    }

    /// What a model must know.
    pub fn task(&self) -> Task {
        match self {
            Self::Images(images) => Task::Images { shape: images.shape(), classes: images.classes() },
            Self::Text(text) => Task::Tokens { vocabulary: text.vocabulary().len() },
        }
    }

    /// The sizes of the parts of a text, and what its other parts have in common with the training part.
    pub fn about(&self) -> Option<String> {
        let Self::Text(text) = self else { return None };
        let part = |part: Part, name: &str| {
            let share = 100.0 * text.unknown_share(part);
            format!("{} in the {name} part ({share:.2} % of them unknown)", text.part(part).len())
        };
        let valid = if text.has_valid() { part(Part::Valid, "validation") + ", " } else { String::new() };
        Some(format!(
            "{}: {} tokens in the training part, {valid}{}; {} different tokens",
            text.name(),
            text.part(Part::Train).len(),
            part(Part::Test, "test"),
            text.vocabulary().len()
        ))
    }

    /// Why a part of a text seems to be of another text than the training part, if one does.
    pub fn doubt(&self) -> Option<String> {
        let Self::Text(text) = self else { return None };
        let shares = [(Part::Valid, "validation"), (Part::Test, "test")];
        let odd = shares.into_iter().find(|(part, _)| text.unknown_share(*part) > MOST_UNKNOWN)?;
        let (share, name) = (100.0 * text.unknown_share(odd.0), odd.1);
        Some(format!(
            "{}: {share:.0} % of the {name} part are unknown to the training part: is it of the same text?",
            text.name()
        ))
    }

    /// A checksum of everything that a model sees of it.
    pub fn crc32(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        match self {
            Self::Images(images) => {
                let parts = [Part::Train, Part::Valid, Part::Test].into_iter();
                parts.for_each(|part| images.part(part).add_to(&mut sum));
            }
            Self::Text(text) => {
                for part in [Part::Train, Part::Valid, Part::Test] {
                    text.part(part).iter().for_each(|token| sum.update(&token.to_le_bytes()));
                    sum.update(b"\n");
                }
                (0..text.vocabulary().len() as u32)
                    .for_each(|token| sum.update(text.vocabulary().symbol(token).as_bytes()));
            }
        }
        sum.finalize()
    }

    /// Number of examples: images, or tokens that can be predicted.
    pub fn examples(&self, part: Part) -> usize {
        match self {
            Self::Images(images) => images.part(part).len(),
            Self::Text(text) => text.part(part).len().saturating_sub(1),
        }
    }
}
