//! What a spelling says.

use gradwire::experiments::Keys;
use gradwire::{Density, SpecError};

use crate::autoencoder::{MIN_VALUES, latent_len};
use crate::lead::HEAD;
use crate::sketch::CELLS;

/// LGC with its settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lgc {
    pub(crate) top: Density,
    /// Steps at the start in which all values are sent.
    pub(crate) dense_steps: u64,
    /// Steps after them that train the autoencoder.
    pub(crate) train_steps: u64,
    /// The largest share of the energy that a decoded mean may lack.
    pub(crate) gate: f32,
    pub(crate) order: Order,
    /// Decoders, one for each worker; `None` if one decodes the mean.
    pub(crate) apart: Option<usize>,
}

/// In which order a leader sends its positions, which is the order of the values in the autoencoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By the leader's values, descending, so that they fall smoothly.
    Value,
    /// Ascending.
    Index,
}

/// One value of the leader's, out of so many, is part of the innovation.
const VALUES_TO_INNOVATION: usize = 100;

impl Lgc {
    /// The keys, with their defaults.
    pub(crate) const KEYS: &'static str =
        "top=0.01 dense_steps=200 train_steps=300 gate=0.5 order=value decoders=0";

    pub(crate) fn read<'k>(keys: &Keys<'k>) -> Result<Self, SpecError<'k>> {
        let missing = |key| move || SpecError::MissingKey(key);
        let steps = |key| keys.number(key, "a whole number of steps", |_| true)?.ok_or_else(missing(key));
        let gate = keys.number("gate", "a number from 0 to below 1", |gate| (0.0..1.0).contains(gate))?;
        let order = keys.one_of("order", &["value", "index"])?;
        let decoders = keys.number("decoders", "a number of workers, to 256", |count| *count <= 256usize)?;
        Ok(Self {
            top: keys.density("top")?.ok_or_else(missing("top"))?,
            dense_steps: steps("dense_steps")?,
            train_steps: steps("train_steps")?,
            gate: gate.ok_or_else(missing("gate"))?,
            order: if order == Some(1) { Order::Index } else { Order::Value },
            apart: decoders.filter(|count| *count > 0),
        })
    }

    /// How many decoders its autoencoders have.
    pub(crate) fn decoders(&self) -> usize {
        self.apart.unwrap_or(1)
    }

    /// How many coordinates of a unit of this length are sent, and how; `None` if all of them are, because a
    /// latent would be no shorter, or because there are too many for positions of 31 bits.
    pub(crate) fn sizes(&self, len: usize) -> Option<Sizes> {
        let k = self.top.count(len);
        if k < MIN_VALUES || i32::try_from(len).is_err() {
            return None;
        }
        let (latent, innovation) = (latent_len(k), k / VALUES_TO_INNOVATION);
        let led = if self.apart.is_some() { latent } else { 0 };
        let sizes = Sizes { k, latent, innovation, led };
        (sizes.summed() < k && 2 * k < len).then_some(sizes)
    }
}

/// Lengths of what is sent for a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Coordinates.
    pub(crate) k: usize,
    /// Floats of the latent.
    pub(crate) latent: usize,
    /// Coordinates whose values are sent besides.
    pub(crate) innovation: usize,
    /// Floats of the latent that the leader's message has.
    pub(crate) led: usize,
}

impl Sizes {
    /// Words of the leader's message: the head, positions, and a latent.
    pub(crate) fn message(&self) -> usize {
        HEAD + self.k + self.led
    }

    /// Words of a worker's part of what is gathered: its vote and its values.
    pub(crate) fn part(&self) -> usize {
        1 + self.k
    }

    /// Floats of a latent step's sum: the latent, the sketch, the innovation, and a vote.
    pub(crate) fn summed(&self) -> usize {
        self.latent + CELLS + self.innovation + 1
    }
}
