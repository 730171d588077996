//! From chosen coordinates to the body of a sparse unit.

use crate::built::Full;
use crate::codec::UnitInput;
use crate::coding::index::IndexChoice;
use crate::coding::values::codebook::COVERED_BOUND;
use crate::coding::values::{Entries, Prepared, Rounding, ValueChoice};
use crate::kernels::{self, Candidates};
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// How positions and values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SparseCoding {
    pub(crate) index: IndexChoice,
    pub(crate) values: ValueChoice,
    /// How values are rounded to a codebook. Values in a fixed format are rounded to the nearest.
    pub(crate) rounding: Rounding,
}

impl SparseCoding {
    /// With values rounded to the nearest.
    pub(crate) fn new(index: IndexChoice, values: ValueChoice) -> Self {
        Self { index, values, rounding: Rounding::Nearest }
    }

    /// Whether values are rounded by draws.
    pub(crate) fn is_stochastic(self) -> bool {
        self.rounding == Rounding::Stochastic && self.values.codebook_log2().is_some_and(|log2| log2 > 0)
    }

    /// Decides the value that each entry is sent as.
    fn prepare(self, input: &UnitInput<'_, '_>, entries: &mut Entries<'_>) -> Prepared {
        // A small build has refused stochastic rounding.
        let draws = Full::build().filter(|_| self.is_stochastic()).map(|_| input.key.rounding(input.unit.id));
        self.values.prepare(entries, draws.as_ref(), self.index.packs_values())
    }

    /// Values must stay below this magnitude.
    pub(crate) fn overflow_bound(self) -> f32 {
        if self.is_stochastic() { COVERED_BOUND } else { self.values.overflow_bound() }
    }

    /// Whether it needs a part that only a [`Full`](crate::built::Full) build has.
    pub(crate) fn needs_full(self) -> bool {
        self.index.needs_full() || self.values.needs_full()
    }

    /// Whether values in a fixed format may be in planes.
    fn may_be_planes(self) -> bool {
        self.index.packs_values() && self.values.format().fixed_bytes().is_some()
    }

    /// Whether every value may have a symbol.
    pub(crate) fn has_symbols(self) -> bool {
        self.may_be_planes() || self.values.format().fixed_bytes().is_none()
    }
}

/// Largest body of a unit of `len` elements with at most `k` entries.
pub(crate) fn max_body_bytes(coding: SparseCoding, k: usize, len: usize) -> Option<usize> {
    let index = coding.index.max_section_bytes(k, len)?;
    let values = coding.values.max_section_bytes(k, coding.may_be_planes())?;
    index.checked_add(values)?.checked_add(MAX_VARINT_BYTES + 1)
}

/// Working memory for a unit of `len` elements: candidates in two parts of `capacity` elements each; the
/// decoded value of each of at most `k` entries; and memory that first fits a codebook and then holds the
/// models of the index coder.
pub(crate) fn scratch_len(coding: SparseCoding, k: usize, len: usize, capacity: usize) -> ScratchLen {
    let bytes = if coding.has_symbols() { k } else { 0 };
    let more = coding.values.fit_words().max(coding.index.scratch_words(len));
    ScratchLen { words: capacity.saturating_mul(2).saturating_add(k).saturating_add(more), bytes }
}

/// Cuts the scratch memory into candidates and the rest.
pub(crate) fn split_scratch<'s>(
    scratch: &'s mut Scratch<'_>,
    capacity: usize,
) -> (Candidates<'s>, Scratch<'s>) {
    let (indices, words) = scratch.words.split_at_mut(capacity);
    let (values, words) = words.split_at_mut(capacity);
    (Candidates { indices, values, len: 0 }, Scratch { words, bytes: scratch.bytes })
}

/// The candidates, with memory for their coded form.
fn entries<'e>(coding: SparseCoding, candidates: Candidates<'e>, scratch: Scratch<'e>) -> Entries<'e> {
    let k = candidates.len;
    let (decoded, fit) = scratch.words.split_at_mut(k);
    Entries {
        indices: &mut candidates.indices[..k],
        values: &mut candidates.values[..k],
        decoded,
        symbols: &mut scratch.bytes[..if coding.has_symbols() { k } else { 0 }],
        fit,
    }
}

/// Writes the body of a unit whose entries are the candidates, and commits the memory. The memory holds p:
/// the decoded value of each entry is subtracted from it, and the momentum there, if any, becomes 0. Cannot
/// fail.
pub(crate) fn encode_selected(
    coding: SparseCoding,
    input: UnitInput<'_, '_>,
    candidates: Candidates<'_>,
    scratch: Scratch<'_>,
    writer: &mut Writer<'_>,
) {
    let mut entries = entries(coding, candidates, scratch);
    let prepared = coding.prepare(&input, &mut entries);
    let kept = prepared.kept();
    writer.varint(kept as u64);
    if kept > 0 {
        let coding_byte = writer.len();
        writer.u8(0);
        let (indices, memory) = (&mut entries.indices[..kept], &mut *entries.fit);
        let coder = coding.index.write(indices, input.span(), memory, usize::MAX, writer);
        let coder = coder.expect("a section stays below its bound");
        let format = prepared.write(&mut entries, writer);
        writer.patch(coding_byte, coder.number() | format.number() << 4);
    }
    if let Some(memory) = input.memory {
        commit(&entries, kept, memory);
        if Full::build().and(input.momentum).is_some() {
            // Momentum left there would go on in an outdated direction.
            memory.mask_momentum(&entries.indices[..kept]);
        }
    }
}

/// Largest body with a single entry: the count, the coders, a position and a value.
pub(crate) fn least_body_bytes(coding: SparseCoding, len: usize) -> usize {
    let index = coding.index.max_section_bytes(1, len).unwrap_or(usize::MAX);
    index.saturating_add(coding.values.max_entry_bytes()).saturating_add(2)
}

/// Decides the value that each candidate is sent as.
pub(super) fn decide(
    coding: SparseCoding,
    input: &UnitInput<'_, '_>,
    candidates: Candidates<'_>,
    scratch: Scratch<'_>,
) -> Prepared {
    coding.prepare(input, &mut entries(coding, candidates, scratch))
}

/// At the coordinate of each entry sent, sets residual = p − decoded, which is exact.
fn commit(entries: &Entries<'_>, kept: usize, memory: &mut Memory<'_>) {
    let mut bound = memory.magnitude_bound();
    let residual = memory.residual_mut();
    let sent = entries.indices.iter().zip(entries.values.iter()).zip(entries.decoded.iter());
    for (i, ((&index, &value), &decoded)) in sent.take(kept).enumerate() {
        if let Some(&later) = Full::build().and_then(|_| entries.indices.get(i + kernels::FETCH_AHEAD)) {
            kernels::fetch(residual, later as usize);
        }
        let rest = f32::from_bits(value) - f32::from_bits(decoded);
        residual[index as usize] = rest;
        bound = bound.max(rest.abs());
    }
    memory.set_magnitude_bound(bound);
}
