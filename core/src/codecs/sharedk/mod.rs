//! The largest coordinates of the sum, the same at every rank, so that values alone are summed.

mod sketch;
mod spelling;

use crate::built::Full;
use crate::codec::{Capabilities, EncodeUnit, Law, Linear, Payload, Reduction, Round, UnitInput, begin_unit};
use crate::codecs::dense::Dense;
use crate::codecs::topk::radix_cut;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::kernels;
use crate::memory::{Memory, MemoryView};
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, LinearScratchLen, Scratch, ScratchLen};
use crate::wire::writer::Writer;

use sketch::KEY_WORDS;
pub use sketch::SketchSize;

/// k = clamp(round(density·n), 1, n) coordinates of a unit, the same at every rank, from a count-sketch of
/// the workers' p = residual + gradient.
///
/// Two rounds, both sums of f32. The first sums the sketches. Its sum is the sketch of the sum of all p, and
/// says of every coordinate about how large that sum is: the lower median over the rows. The m = k·candidates
/// coordinates for which it says most are the same at every rank; zeros are never among them. The second
/// round sums their values. With more than one candidate for each of the k, the k largest of these exact sums
/// are sent, ties to the lowest coordinate, and the others stay. Bytes do not grow with the number of
/// workers, as those of top-k do.
///
/// A unit of which sketch and values would be no shorter than all its values is sent whole, in one round.
///
/// What is sent and what is kept are p, bit for bit: a worker keeps p, and zero where the mean has a
/// coordinate. There are no frames: one worker alone does not know which coordinates are sent.
///
/// # Determinism
/// Row j of a sketch hashes by draw j of the shared stream of (seed, step, unit), so every step has hashes of
/// its own. Block b of 16 neighbours goes to the cells from 16·(⌊h/2³²⌋·B >> 32) on, where h = absorb(draw,
/// b), as in the fingerprint of a layout (FORMAT.md, section 3), and B is the number of blocks of 16 columns.
/// Coordinate j of the block is added to cell j xor (h mod 16), with the sign that bit 4 + j of h says,
/// blocks ascending.
///
/// # Source
/// ARC-Top-K (arXiv 2510.26709), which sums a small sketch to agree on coordinates; its kind of sketch is not
/// this one, and its feedback is EF21M. Ivkin et al.: Communication-efficient Distributed SGD with Sketching
/// (arXiv 1903.04488) for several candidates and their exact values; the momentum that its workers have is
/// left to the optimizer. Count-sketch: [`SketchSize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedK {
    density: Density,
    size: SketchSize,
    candidates: u8,
}

/// 2⁷²: sums of up to 2³² values, over 2²² workers, stay finite.
const BOUND: f32 = f32::from_bits((127 + 72) << 23);

impl SharedK {
    /// How many candidates there are by default.
    pub const CANDIDATES: u8 = 8;

    /// At `density`, by a sketch of this size, with as many candidates as by default.
    #[must_use]
    pub fn new(density: Density, size: SketchSize) -> Self {
        Self { density, size, candidates: Self::CANDIDATES }
    }

    /// With the exact values of so many candidates for each coordinate that is sent; 0 counts as 1.
    #[must_use]
    pub fn with_candidates(self, candidates: u8) -> Self {
        Self { candidates: candidates.max(1), ..self }
    }

    /// The density.
    #[must_use]
    pub fn density(&self) -> Density {
        self.density
    }

    /// The size of the sketch.
    #[must_use]
    pub fn size(&self) -> SketchSize {
        self.size
    }

    /// How many coordinates have their exact values summed for each that is sent.
    #[must_use]
    pub fn candidates(&self) -> u8 {
        self.candidates
    }

    /// Candidates in a unit.
    fn most(&self, len: usize) -> usize {
        self.density.count(len).saturating_mul(usize::from(self.candidates)).min(len)
    }

    /// Cells of the sketch of a unit, or none if the unit is sent whole.
    fn cells(&self, len: usize) -> Option<usize> {
        let cells = self.size.cells(self.most(len));
        (cells.saturating_add(self.most(len)) < len).then_some(cells)
    }
}

/// The words of the scratch memory.
struct Parts<'s> {
    /// p of the unit, where [`Linear::abandon`] expects it.
    p: &'s mut [u32],
    keys: &'s mut [u32],
    /// What the sketch says of each coordinate.
    estimates: &'s mut [u32],
    /// The candidates, ascending.
    indices: &'s mut [u32],
}

impl<'s> Parts<'s> {
    fn of(words: &'s mut [u32], len: usize) -> Self {
        let (p, words) = words.split_at_mut(len);
        let (keys, words) = words.split_at_mut(KEY_WORDS);
        let (estimates, indices) = words.split_at_mut(len);
        Self { p, keys, estimates, indices }
    }
}

impl EncodeUnit for SharedK {
    fn capabilities(&self) -> Capabilities {
        Capabilities { law: Law::Exact, has_frames: false, needs_full: true, ..Dense::F32.capabilities() }
    }

    fn max_body_bytes(&self, _len: usize) -> Option<usize> {
        Some(0)
    }

    fn unit_scratch_len(&self, _len: usize) -> ScratchLen {
        ScratchLen::default()
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

impl Linear for SharedK {
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        let Some(cells) = self.cells(len) else {
            return LinearScratchLen { words: len, floats: len, ints: 0 };
        };
        let most = self.most(len);
        let words = len.saturating_mul(2).saturating_add(KEY_WORDS).saturating_add(most);
        LinearScratchLen { words, floats: cells.max(most), ints: 0 }
    }

    fn held(&self, len: usize) -> usize {
        self.cells(len).map_or(len, |_| self.density.count(len))
    }

    fn begin(
        &self,
        key: StepKey,
        _layout: &LayoutRef<'_>,
        unit: &Unit,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let residual = memory.map(|memory| memory.residual);
        begin_unit(self.round_scratch_len(unit.len), unit, grad, residual, BOUND, scratch)?;
        let round = |payload_len| Round { index: 0, reduction: Reduction::SumF32, unit: *unit, payload_len };
        let Some(cells) = self.cells(unit.len) else {
            let values = scratch.words.iter().map(|&bits| f32::from_bits(bits));
            scratch.floats[..unit.len].iter_mut().zip(values).for_each(|(sent, value)| *sent = value);
            return Ok(round(unit.len));
        };
        let parts = Parts::of(scratch.words, unit.len);
        self.size.draw_keys(&key.shared_selection(unit.id), parts.keys);
        self.size.fill(parts.p, parts.keys, &mut scratch.floats[..cells]);
        Ok(round(cells))
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        Payload::F32(&mut scratch.floats[..round.payload_len])
    }

    fn advance(
        &self,
        _layout: &LayoutRef<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        contributors: u32,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        round.assert_mean(mean, contributors);
        let sums = &mut scratch.floats[..round.payload_len];
        if self.cells(round.unit.len).is_none() {
            mean.iter_mut().zip(&*sums).for_each(|(mean, sum)| *mean = sum / contributors as f32);
            if let Some(memory) = memory {
                memory.residual_mut().fill(0.0);
            }
            return None;
        }
        let parts = Parts::of(scratch.words, round.unit.len);
        if round.index == 0 {
            self.size.estimate(sums, parts.keys, parts.estimates);
            let found = radix_cut(parts.estimates, self.most(round.unit.len)).positions(parts.estimates);
            let mut payload_len = 0;
            for ((index, value), at) in parts.indices.iter_mut().zip(&mut *scratch.floats).zip(found) {
                (*index, *value) = (at as u32, f32::from_bits(parts.p[at]));
                payload_len += 1;
            }
            return Some(Round { index: 1, payload_len, ..round });
        }
        mean.fill(0.0);
        let mut kept = memory.map(|memory| {
            memory.keep_all(parts.p);
            memory.residual_mut()
        });
        let sums = kernels::bits_of(sums);
        for at in radix_cut(sums, self.density.count(round.unit.len)).positions(sums) {
            let index = parts.indices[at] as usize;
            mean[index] = f32::from_bits(sums[at]) / contributors as f32;
            if let Some(residual) = &mut kept {
                residual[index] = 0.0;
            }
        }
        None
    }
}
