//! Codecs between two neighbours.

use crate::error::EncodeError;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, LinearScratchLen};

/// Two neighbours, by rank; `low` is below `high`. Both ends use the same edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The lower rank.
    pub low: u32,
    /// The higher rank.
    pub high: u32,
}

/// One round of one unit at one end of an edge. All but `is_low` is the same at both ends.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The key of the step; its source is [`Shared`](crate::Source::Shared).
    pub key: StepKey,
    /// The edge.
    pub edge: Edge,
    /// Whether this end is the lower rank.
    pub is_low: bool,
    /// The layout of the model.
    pub layout: &'a LayoutRef<'a>,
    /// The unit.
    pub unit: &'a Unit,
    /// The number of the round, from 0.
    pub round: u32,
}

/// A codec between two neighbours, on the difference of their models instead of on gradients.
///
/// In each round of a step, both ends of an edge exchange a payload and move their models. All edges of a
/// round use the models at its start. The next round starts from the models that all edges have moved.
///
/// What a codec keeps from step to step belongs to an edge: a slice of f32 for each unit, which is the same
/// at both ends, bit for bit. Before the first step of an edge it is zeros. A step that fails leaves it as it
/// was, and if the two ends ever differ, because only one of them could end a step, both start from zeros
/// again. So a codec computes what it keeps only from what both ends know: the payloads, the key and the
/// edge.
pub trait Gossip: Send + Sync {
    /// Working memory of one unit of `len` elements. It belongs to the unit and the edge for the whole step.
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen;

    /// Rounds of a step, at least 1.
    fn rounds(&self) -> u32 {
        1
    }

    /// Elements that each end keeps of a unit.
    fn kept_len(&self, layout: &LayoutRef<'_>, unit: &Unit) -> usize {
        let _ = (layout, unit);
        0
    }

    /// What this end sends in the round. The payloads of the two ends have the same length. `model` and
    /// `kept` are those of the unit.
    ///
    /// # Errors
    /// As the variants of [`EncodeError`] say.
    ///
    /// # Panics
    /// When `model` or `kept` has another length than the codec says.
    fn payload<'s>(
        &self,
        turn: &Turn<'_>,
        model: &[f32],
        kept: &mut [f32],
        scratch: &'s mut LinearScratch<'_>,
    ) -> Result<&'s [f32], EncodeError>;

    /// Takes the neighbour's payload of the round, whose values are finite, and moves `model` towards the
    /// neighbour's by `weight`, the edge's entry of the mixing matrix. Other edges may have moved it since
    /// [`payload`](Self::payload).
    ///
    /// # Panics
    /// When `theirs` has another length than this end's payload, or `model` or `kept` than the codec says.
    fn advance(
        &self,
        turn: &Turn<'_>,
        theirs: &[f32],
        weight: f32,
        model: &mut [f32],
        kept: &mut [f32],
        scratch: &mut LinearScratch<'_>,
    );
}
