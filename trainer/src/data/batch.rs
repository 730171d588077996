//! Sharded, seeded batches that depend only on the epoch and the step.

use std::ops::Range;

use super::augment::augment;
use super::{Dataset, Images, Part, Text};
use crate::range::{RangeError, require};
use crate::rng::{Draws, Purpose};

/// The input of a model in one step.
#[derive(Clone, Debug, PartialEq)]
pub enum Batch {
    /// Images and their classes.
    Images {
        /// Number of images, channels, height, width.
        shape: [usize; 4],
        /// One image after the other, channel by channel, row by row.
        features: Vec<f32>,
        /// One per image.
        labels: Vec<u32>,
    },
    /// Windows of a text, and for every token the one that follows it.
    Tokens {
        /// Number of windows, tokens of each.
        shape: [usize; 2],
        /// One window after the other.
        inputs: Vec<u32>,
        /// As long as `inputs`.
        targets: Vec<u32>,
    },
}

impl Batch {
    /// Number of predictions that the loss is the mean of: images, or tokens.
    pub fn predictions(&self) -> usize {
        match self {
            Self::Images { labels, .. } => labels.len(),
            Self::Tokens { targets, .. } => targets.len(),
        }
    }

    /// The classes or tokens that are to be predicted.
    pub fn targets(&self) -> &[u32] {
        match self {
            Self::Images { labels, .. } => labels,
            Self::Tokens { targets, .. } => targets,
        }
    }
}

/// Which items each worker sees at each step: a seeded shuffle per epoch, cut into global batches, each cut
/// into one piece per worker.
///
/// The global batch of a step is the same for every world as long as `batch * world` is. Items that do not
/// fill a global batch at the end of an epoch are left out of it, so that every gradient is a mean over
/// equally many items; the next epoch leaves out others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    seed: u64,
    items: usize,
    batch: usize,
    rank: usize,
    world: usize,
}

impl Plan {
    /// The plan of worker `rank` of `world` that takes `batch` of `items` items at a step.
    ///
    /// # Errors
    ///
    /// If a number is zero, `rank` is not below `world`, or there are fewer items than workers, or than a
    /// step needs.
    pub fn new(seed: u64, items: usize, batch: usize, rank: usize, world: usize) -> Result<Self, RangeError> {
        require(world > 0, "workers", world, "at least 1")?;
        require(rank < world, "rank", rank, format!("below {world}"))?;
        let most = items / world;
        let fewer = if items > 0 { ", or fewer workers" } else { "" };
        let too_few = format!("at least {world}, one for each worker{fewer}");
        require(most > 0, "training examples", items, too_few)?;
        require(
            batch > 0 && batch <= most,
            "batch",
            batch,
            format!("1 to {most}, so at most {} for all: there are {items} examples", most * world),
        )?;
        Ok(Self { seed, items, batch, rank, world })
    }

    /// Steps until every item (but for an incomplete global batch) was seen once.
    pub fn steps_per_epoch(&self) -> usize {
        self.items / (self.batch * self.world)
    }

    /// The order of all items in an epoch.
    pub fn order(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.items).collect();
        Draws::new(self.seed, Purpose::Shuffle, epoch, 0).shuffle(&mut order);
        order
    }

    /// The place of this worker's items of a step in the order of its epoch.
    ///
    /// # Panics
    ///
    /// If `step` is not below [`Plan::steps_per_epoch`].
    pub fn range(&self, step: usize) -> Range<usize> {
        assert!(step < self.steps_per_epoch(), "step {step} is behind the end of the epoch");
        let start = (step * self.world + self.rank) * self.batch;
        start..start + self.batch
    }
}

/// The training batches of one worker.
///
/// Resuming needs no state: a batch depends on the data set, the plan, the epoch and the step. The order of
/// the last epoch is kept only to save time.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    dataset: &'a Dataset,
    plan: Plan,
    context: usize,
    order: Option<(u64, Vec<usize>)>,
    streams: Option<Streams>,
    augments: bool,
}

impl<'a> Batches<'a> {
    /// Batches of `batch` items for worker `rank` of `world`; an item is an image or a window of `context`
    /// tokens.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`], and if `context` is zero for a text.
    ///
    /// # Examples
    ///
    /// ```
    /// use gradwire_trainer::data::{Batches, optdigits};
    ///
    /// let digits = optdigits::load()?;
    /// let mut batches = Batches::new(&digits, 7, 32, 0, 4, 0)?;
    /// assert_eq!(batches.steps_per_epoch(), 1198 / (4 * 32));
    /// assert_eq!(batches.batch(3, 5), batches.batch(3, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        dataset: &'a Dataset,
        seed: u64,
        batch: usize,
        rank: usize,
        world: usize,
        context: usize,
    ) -> Result<Self, RangeError> {
        let items = match dataset {
            Dataset::Images(images) => images.part(Part::Train).len(),
            Dataset::Text(text) => {
                require(context > 0, "context", context, "at least 1")?;
                training_windows(text, context)
            }
        };
        let plan = Plan::new(seed, items, batch, rank, world)?;
        Ok(Self { dataset, plan, context, order: None, streams: None, augments: false })
    }

    /// Windows of `context` tokens that continue where those of the previous step ended: the text is cut into
    /// `batch · world` streams of the same length, of which worker `rank` reads `batch`.
    ///
    /// Tokens at the end of a stream that do not fill a window are left out of the epoch. Each epoch begins
    /// at another of the first tokens, and so leaves out others.
    ///
    /// # Errors
    ///
    /// If a number is zero, `rank` is not below `world`, `dataset` holds images, or it is too short for a
    /// window in every stream.
    pub fn streams(
        dataset: &'a Dataset,
        seed: u64,
        batch: usize,
        rank: usize,
        world: usize,
        context: usize,
    ) -> Result<Self, RangeError> {
        let Dataset::Text(text) = dataset else {
            return Err(RangeError::new("data", dataset.name(), "a text, which can be read in streams"));
        };
        require(context > 0, "context", context, "at least 1")?;
        let predicted = text.part(Part::Train).len() - 1;
        let plan = Plan::new(seed, predicted / context, batch, rank, world)?;
        let len = predicted / (batch * world);
        Ok(Self {
            dataset,
            plan,
            context,
            order: None,
            streams: Some(Streams { len, context }),
            augments: false,
        })
    }

    /// Moves and mirrors every image at random, as [`augment`](super::augment) says. A text stays as it is.
    pub fn augmented(self) -> Self {
        Self { augments: true, ..self }
    }

    /// Steps of one epoch.
    pub fn steps_per_epoch(&self) -> usize {
        self.streams.map_or(self.plan.steps_per_epoch(), |streams| streams.len / streams.context)
    }

    /// The batch of a step of an epoch, both counted from 0.
    ///
    /// # Panics
    ///
    /// If `step` is not below [`Batches::steps_per_epoch`].
    pub fn batch(&mut self, epoch: u64, step: usize) -> Batch {
        if let (Some(streams), Dataset::Text(text)) = (self.streams, self.dataset) {
            let first = streams.first(self.plan.seed, epoch) + step * self.context;
            assert!(step < self.steps_per_epoch(), "step {step} is behind the end of the epoch");
            let own = self.plan.rank * self.plan.batch..(self.plan.rank + 1) * self.plan.batch;
            return token_batch(
                text.part(Part::Train),
                own.map(|number| number * streams.len + first),
                self.context,
            );
        }
        let range = self.plan.range(step);
        if self.order.as_ref().is_none_or(|(kept, _)| *kept != epoch) {
            self.order = None;
        }
        let (_, order) = self.order.get_or_insert_with(|| (epoch, self.plan.order(epoch)));
        let items = &order[range];
        match self.dataset {
            Dataset::Images(images) => {
                let mut batch = image_batch(images, Part::Train, items.iter().copied());
                if self.augments {
                    augment(&mut batch, self.plan.seed, epoch, items);
                }
                batch
            }
            Dataset::Text(text) => {
                let offset = Draws::new(self.plan.seed, Purpose::Offset, epoch, 0).below(self.context);
                let starts = items.iter().map(|item| offset + item * self.context);
                token_batch(text.part(Part::Train), starts, self.context)
            }
        }
    }
}

/// How a text is cut into streams.
#[derive(Clone, Copy, Debug)]
struct Streams {
    /// Tokens that each predicts.
    len: usize,
    context: usize,
}

impl Streams {
    /// Where every stream begins in an epoch.
    fn first(self, seed: u64, epoch: u64) -> usize {
        Draws::new(seed, Purpose::Offset, epoch, 0).below(self.len % self.context + 1)
    }
}

/// Windows of an epoch, wherever the first of them begins: any of the first `context` tokens.
fn training_windows(text: &Text, context: usize) -> usize {
    text.part(Part::Train).len().saturating_sub(context) / context
}

fn image_batch(images: &Images, part: Part, items: impl ExactSizeIterator<Item = usize>) -> Batch {
    let [channels, height, width] = images.shape();
    let shape = [items.len(), channels, height, width];
    let set = images.part(part);
    let mut features = Vec::with_capacity(shape.iter().product());
    let mut labels = Vec::with_capacity(items.len());
    for item in items {
        images.scaling().push_features(set.pixels(item), &mut features);
        labels.push(set.label(item));
    }
    Batch::Images { shape, features, labels }
}

fn token_batch(tokens: &[u32], starts: impl ExactSizeIterator<Item = usize>, context: usize) -> Batch {
    let shape = [starts.len(), context];
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for start in starts {
        inputs.extend_from_slice(&tokens[start..start + context]);
        targets.extend_from_slice(&tokens[start + 1..start + 1 + context]);
    }
    Batch::Tokens { shape, inputs, targets }
}

impl Dataset {
    /// A whole part in order, `items` images or windows of `context` tokens at once; the last batch may be
    /// smaller.
    ///
    /// Every image comes once. Every token of a text except the first is predicted once: windows do not
    /// overlap, and the last one, which may be shorter, comes alone.
    ///
    /// # Panics
    ///
    /// If `items` is zero, or `context` is for a text.
    pub fn in_order(&self, part: Part, items: usize, context: usize) -> Box<dyn Iterator<Item = Batch> + '_> {
        match self {
            Self::Images(images) => {
                let len = images.part(part).len();
                let firsts = (0..len).step_by(items);
                Box::new(firsts.map(move |first| image_batch(images, part, first..len.min(first + items))))
            }
            Self::Text(text) => {
                let tokens = text.part(part);
                let predicted = tokens.len() - 1;
                let (whole, rest) = (predicted / context, predicted % context);
                let full = (0..whole).step_by(items).map(move |first| {
                    let starts = (first..whole.min(first + items)).map(|window| window * context);
                    token_batch(tokens, starts, context)
                });
                let short = (rest > 0).then(|| token_batch(tokens, std::iter::once(whole * context), rest));
                Box::new(full.chain(short))
            }
        }
    }
}
