//! Large coordinates, the same at every rank, so that values alone are summed.

mod feedback;
mod leader;
mod sketch;
mod sketched;
mod spelling;

use crate::built::Full;
use crate::codec::{
    Capabilities, EncodeUnit, Law, Linear, Payload, Reduction, Round, UnitInput, UnitStep, begin_unit,
};
use crate::codecs::dense::Dense;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels;
use crate::memory::{Keeper, Memory, MemoryView, StateLen};
use crate::scratch::{LinearScratch, LinearScratchLen, Scratch, ScratchLen};
use crate::wire::writer::Writer;

use feedback::End;
pub use feedback::SharedFeedback;
use leader::Led;
pub use sketch::SketchSize;
use sketched::Sketched;

/// k = clamp(round(density·n), 1, n) coordinates of a unit, the same at every rank. Values of
/// p = residual + gradient are summed there; bytes do not grow with the number of workers, as those of top-k
/// do. [`SharedBy`] says how the coordinates are found.
///
/// A unit for which that would be no shorter than all its values is sent whole, in one round.
///
/// What is sent and what is kept are p, bit for bit: a worker keeps p, and zero where the mean has a
/// coordinate. [`SharedFeedback`] has two other ways. There are no frames: one worker alone does not know
/// which coordinates are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedK {
    density: Density,
    by: SharedBy,
    feedback: SharedFeedback,
}

/// How the workers find the coordinates of [`SharedK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedBy {
    /// From a count-sketch of all p. Two rounds, both sums of f32.
    ///
    /// The first sums the sketches. Its sum is the sketch of the sum of all p, and says of every coordinate
    /// about how large that sum is: the lower median over the rows. The m = k·candidates coordinates for
    /// which it says most are the same at every rank; zeros are never among them. The second round sums their
    /// values. With more than one candidate for each of the k, the k largest of these exact sums are sent,
    /// ties to the lowest coordinate, and the others stay.
    ///
    /// # Determinism
    /// Row j of a sketch hashes by draw j of the shared stream of (seed, step, unit), so every step has
    /// hashes of its own. Block b of 16 neighbours goes to the cells from 16·(⌊h/2³²⌋·B >> 32) on, where
    /// h = absorb(draw, b), as in the fingerprint of a layout (FORMAT.md, section 3), and B is the number of
    /// blocks of 16 columns. Coordinate j of the block is added to cell j xor (h mod 16), with the sign that
    /// bit 4 + j of h says, blocks ascending.
    ///
    /// # Source
    /// ARC-Top-K (arXiv 2510.26709), which sums a small sketch to agree on coordinates; its kind of sketch is
    /// not this one, and its feedback is [`SharedFeedback::Estimate`]. Ivkin et al.: Communication-efficient
    /// Distributed SGD with Sketching (arXiv 1903.04488), SketchedSGD, for several candidates and their exact
    /// values; the momentum that its workers have is left to the optimizer. Count-sketch: [`SketchSize`].
    Sketch {
        /// The size of the sketch.
        size: SketchSize,
        /// Coordinates whose exact values are summed for each that is sent; 0 counts as 1.
        candidates: u8,
    },
    /// The k coordinates of largest |p| of one worker, ties to the lowest, without zeros: of another worker
    /// in each step, by chance. Three rounds: the largest of one f32 of each worker finds the leader, a sum
    /// of k i32, 0 but for the leader's, says where, and a sum of f32 has the values.
    ///
    /// # Determinism
    /// The bid of rank r is x xor (x >> 12), times 10,368,889 modulo 2²⁴, where x = (r·o + a) modulo 2²⁴, and
    /// a and o are the high and the low half of draw 0 of the shared stream of (seed, step, unit), the lowest
    /// bit of o set. No two of 2²⁴ ranks bid the same. In the second round a coordinate is sent as its
    /// position in the unit, plus 1; what is no ascending position inside the unit is left out.
    ///
    /// # Source
    /// CLT-k of ScaleCom (Chen et al., NeurIPS 2020), whose leaders take turns by rank, and whose feedback
    /// has a [low-pass filter](SharedFeedback::Residual). Here the leader is drawn, so that nobody needs to
    /// know who takes part.
    Leader,
}

impl SharedBy {
    /// How many candidates there are by default.
    pub const CANDIDATES: u8 = 8;
    /// By a sketch of the size by default.
    pub const DEFAULT: Self = Self::Sketch { size: SketchSize::DEFAULT, candidates: Self::CANDIDATES };
}

/// 2⁷²: sums of up to 2³² values, over 2²² workers, stay finite.
const BOUND: f32 = f32::from_bits((127 + 72) << 23);

impl SharedK {
    /// At `density`, by coordinates that are found so, with [`SharedFeedback::DEFAULT`].
    #[must_use]
    pub fn new(density: Density, by: SharedBy) -> Self {
        Self { density, by, feedback: SharedFeedback::DEFAULT }
    }

    /// With this feedback, if its factor is in its range.
    #[must_use]
    pub fn with_feedback(self, feedback: SharedFeedback) -> Option<Self> {
        feedback.is_valid().then_some(Self { feedback, ..self })
    }

    /// The density.
    #[must_use]
    pub fn density(&self) -> Density {
        self.density
    }

    /// How the coordinates are found.
    #[must_use]
    pub fn by(&self) -> SharedBy {
        self.by
    }

    /// What is kept for the next step.
    #[must_use]
    pub fn feedback(&self) -> SharedFeedback {
        self.feedback
    }

    /// How a unit of this length is sent.
    fn way(&self, len: usize) -> Way {
        let k = self.density.count(len);
        let found = match self.by {
            SharedBy::Sketch { size, candidates } => {
                Sketched::shorter(len, k, size, candidates).map(Way::Sketched)
            }
            SharedBy::Leader => Led::shorter(len, k).map(Way::Led),
        };
        found.unwrap_or(Way::Whole)
    }
}

/// How a unit is sent.
enum Way {
    Whole,
    Sketched(Sketched),
    Led(Led),
}

impl Way {
    /// Working memory for a unit of this length.
    fn scratch_len(&self, len: usize) -> LinearScratchLen {
        match self {
            Self::Whole => LinearScratchLen { words: len, floats: len, ints: 0 },
            Self::Sketched(way) => way.scratch_len(len),
            Self::Led(way) => way.scratch_len(len),
        }
    }
}

impl EncodeUnit for SharedK {
    fn capabilities(&self) -> Capabilities {
        let law = match self.feedback {
            SharedFeedback::Residual { lowpass: 1.0 } => Law::Exact,
            SharedFeedback::Residual { .. } => Law::Filtered,
            SharedFeedback::Estimate { .. } => Law::State,
        };
        Capabilities { law, has_frames: false, needs_full: true, ..Dense::F32.capabilities() }
    }

    fn max_body_bytes(&self, _len: usize) -> Option<usize> {
        Some(0)
    }

    fn unit_scratch_len(&self, _len: usize) -> ScratchLen {
        ScratchLen::default()
    }

    fn state_len(&self, layout: &LayoutRef<'_>, units: usize, _keeper: Keeper) -> StateLen {
        self.kept_len(layout, units)
    }

    fn encode_body(
        &self,
        _input: UnitInput<'_, '_>,
        _scratch: &mut Scratch<'_>,
        _writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        Err(EncodeError::NoFrames)
    }
}

/// Behind the scratch words of the way: the momenta of this step.
impl Linear for SharedK {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
        let needed = self.way(unit.len).scratch_len(unit.len);
        LinearScratchLen { words: needed.words.saturating_add(self.feedback.words(unit.len)), ..needed }
    }

    fn held(&self, len: usize) -> usize {
        if let Way::Whole = self.way(len) { len } else { self.density.count(len) }
    }

    fn kept_len(&self, layout: &LayoutRef<'_>, _units: usize) -> StateLen {
        self.feedback.kept_len(layout.len())
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let residual = self.feedback.residual(memory);
        let (unit, needed) = (step.unit, self.round_scratch_len(step.layout, step.unit, step.workers));
        begin_unit(needed, unit, grad, residual, BOUND, scratch)?;
        let way = self.way(unit.len);
        let (words, momenta) = scratch.words.split_at_mut(way.scratch_len(unit.len).words);
        self.feedback.begin(memory, unit, &mut words[..unit.len], momenta)?;
        let (reduction, payload_len) = match way {
            Way::Whole => {
                let p = kernels::floats_of(&scratch.words[..unit.len]);
                scratch.floats[..unit.len].copy_from_slice(p);
                (Reduction::SumF32, unit.len)
            }
            Way::Sketched(way) => way.begin(&step.key.shared_selection(unit.id), unit.len, scratch),
            Way::Led(way) => way.begin(step.key, unit, scratch),
        };
        Ok(Round { index: 0, reduction, unit: *unit, payload_len })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        match round.reduction {
            Reduction::SumI32 => Payload::I32(&mut scratch.ints[..round.payload_len]),
            _ => Payload::F32(&mut scratch.floats[..round.payload_len]),
        }
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        round.assert_mean(mean, step.workers);
        let (unit, way) = (round.unit, self.way(round.unit.len));
        let (words, momenta) = scratch.words.split_at_mut(way.scratch_len(unit.len).words);
        let (feedback, contributors) = (self.feedback, step.workers);
        let end = End { feedback, unit, contributors, momenta, mean, memory };
        let mut scratch = LinearScratch { words, floats: scratch.floats, ints: scratch.ints };
        match way {
            Way::Whole => {
                let sums = scratch.floats[..unit.len].iter().copied();
                end.conclude(&scratch.words[..unit.len], sums.enumerate());
                None
            }
            Way::Sketched(way) => way.advance(round, &mut scratch, end),
            Way::Led(way) => way.advance(round, &mut scratch, end),
        }
    }

    fn abandon(&self, round: Round, scratch: &mut LinearScratch<'_>, memory: Option<&mut Memory<'_>>) {
        // The exchange restores the arrays of an estimate, which has no residual.
        if let (SharedFeedback::Residual { .. }, Some(memory)) = (self.feedback, memory) {
            memory.keep_all(&scratch.words[..round.unit.len]);
        }
    }
}
