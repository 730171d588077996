//! This rank's end of an edge: what it keeps, says and hears.

use gradwire::arithmetic::first_non_finite;
use gradwire::rounds::{Edge, Gossip, RoundBuffers, Turn};
use gradwire::{EncodeError, LayoutRef, StepKey, Unit};

use crate::error::TransportError;
use crate::exchange::ExchangeError;
use crate::rank::Rank;
use crate::tag::Tag;

/// Bytes of a fingerprint, which stands before the payloads of a step's first message.
const FINGERPRINT: usize = 8;

/// What both ends of all edges do in a round.
#[derive(Clone, Copy)]
pub(super) struct Round<'a> {
    pub(super) codec: &'a dyn Gossip,
    /// Shared by all ranks.
    pub(super) key: StepKey,
    pub(super) layout: &'a LayoutRef<'a>,
    pub(super) units: &'a [Unit],
    pub(super) number: u32,
}

impl<'a> Round<'a> {
    fn turn(&self, edge: Edge, is_low: bool, unit: &'a Unit) -> Turn<'a> {
        Turn { key: self.key, edge, is_low, layout: self.layout, unit, round: self.number }
    }
}

/// One end of an edge.
#[derive(Debug)]
pub(super) struct End {
    pub(super) neighbour: Rank,
    edge: Edge,
    is_low: bool,
    /// What the codec keeps of all units, one after the other, and the same before the step.
    kept: Vec<f32>,
    before: Vec<f32>,
    /// The working memory of each unit, and the length of its payload in this round.
    units: Vec<(RoundBuffers, usize)>,
    /// The fingerprint of what was kept before this round.
    fingerprint: u64,
    /// The tag of the message that is to be heard in this round.
    pub(super) awaited: Tag,
    /// That message, and its values.
    pub(super) message: Vec<u8>,
    theirs: Vec<f32>,
    /// Whether it is read.
    pub(super) has_heard: bool,
    /// Whether both ends start from zeros in this step.
    pub(super) is_afresh: bool,
}

impl End {
    /// The end at rank `me` of the edge to `neighbour`, before its first step.
    pub(super) fn new(me: Rank, neighbour: Rank, kept_len: usize) -> Self {
        let edge = Edge { low: me.0.min(neighbour.0), high: me.0.max(neighbour.0) };
        let (kept, before) = (vec![0.0; kept_len], vec![0.0; kept_len]);
        let (units, message, theirs, fingerprint, awaited, has_heard, is_afresh) = Default::default();
        let is_low = me < neighbour;
        Self {
            neighbour,
            edge,
            is_low,
            kept,
            before,
            units,
            fingerprint,
            awaited,
            message,
            theirs,
            has_heard,
            is_afresh,
        }
    }

    /// What the codec keeps, of all units one after the other.
    pub(super) fn kept(&self) -> &[f32] {
        &self.kept
    }

    pub(super) fn kept_mut(&mut self) -> &mut [f32] {
        &mut self.kept
    }

    pub(super) fn begin_step(&mut self) {
        self.before.copy_from_slice(&self.kept);
    }

    /// The step has failed.
    pub(super) fn undo(&mut self) {
        self.kept.copy_from_slice(&self.before);
    }

    /// The two ends differ.
    pub(super) fn start_afresh(&mut self) {
        self.kept.fill(0.0);
    }

    /// Appends this end's payloads of the round to `message`, little-endian, after the fingerprint of what is
    /// kept where there is one.
    pub(super) fn speak(
        &mut self,
        round: &Round<'_>,
        model: &[f32],
        message: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        if self.has_fingerprint(round) {
            self.fingerprint = fingerprint(&self.kept);
            message.extend_from_slice(&self.fingerprint.to_le_bytes());
        }
        self.units.resize_with(round.units.len(), Default::default);
        let mut at = 0;
        for (unit, (buffers, len)) in round.units.iter().zip(&mut self.units) {
            buffers.grow(round.codec.round_scratch_len(unit.len));
            let kept_len = round.codec.kept_len(round.layout, unit);
            let (turn, kept) = (round.turn(self.edge, self.is_low, unit), &mut self.kept[at..at + kept_len]);
            let mut scratch = buffers.scratch();
            let payload = round.codec.payload(&turn, &model[unit.range()], kept, &mut scratch)?;
            message.extend(payload.iter().flat_map(|value| value.to_le_bytes()));
            (at, *len) = (at + kept_len, payload.len());
        }
        self.has_heard = false;
        Ok(())
    }

    fn has_fingerprint(&self, round: &Round<'_>) -> bool {
        round.number == 0 && !self.kept.is_empty()
    }

    /// Checks the neighbour's message. Returns whether both ends keep the same; if not, its values are of no
    /// use.
    pub(super) fn hear(&mut self, round: &Round<'_>) -> Result<bool, ExchangeError> {
        let head = if self.has_fingerprint(round) { FINGERPRINT } else { 0 };
        let payload: usize = self.units.iter().map(|(_, len)| len).sum();
        let (from, tag) = (self.neighbour, self.awaited);
        let (expected, actual) = (head + 4 * payload, self.message.len());
        if expected != actual {
            return Err(TransportError::WrongLength { from, tag, expected, actual }.into());
        }
        let (head, values) = self.message.split_at(head);
        self.theirs.clear();
        self.theirs.extend(values.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        if let Some(index) = first_non_finite(&self.theirs) {
            return Err(ExchangeError::NonFinitePayload { rank: from, index });
        }
        let is_same = head.is_empty() || head == self.fingerprint.to_le_bytes();
        self.has_heard = is_same;
        Ok(is_same)
    }

    /// Moves the model along this edge.
    pub(super) fn advance(&mut self, round: &Round<'_>, weight: f32, model: &mut [f32]) {
        let (mut at, mut theirs) = (0, &self.theirs[..]);
        for (unit, (buffers, len)) in round.units.iter().zip(&mut self.units) {
            let kept_len = round.codec.kept_len(round.layout, unit);
            let (turn, kept) = (round.turn(self.edge, self.is_low, unit), &mut self.kept[at..at + kept_len]);
            let (payload, rest) = theirs.split_at(*len);
            let (model, mut scratch) = (&mut model[unit.range()], buffers.scratch());
            round.codec.advance(&turn, payload, weight, model, kept, &mut scratch);
            (at, theirs) = (at + kept_len, rest);
        }
    }
}

/// FNV-1a over the words: two ends that differ anywhere differ here, except by a chance of 2⁻⁶⁴.
fn fingerprint(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
