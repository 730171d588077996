//! From chosen coordinates to the body of a sparse unit.

use crate::built::Full;
use crate::gather::UnitInput;
use crate::index::IndexChoice;
use crate::kernels::Candidates;
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::values::{Entries, ValueChoice, ValueFormat};
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// How positions and values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct SparseCoding {
    pub(crate) index: IndexChoice,
    pub(crate) values: ValueChoice,
}

impl SparseCoding {
    /// Whether it needs a part that only a [`Full`](crate::built::Full) build has.
    pub(crate) fn needs_full(self) -> bool {
        self.values.format() == ValueFormat::Codebook
    }
}

/// Largest body of a unit of `len` elements with at most `k` entries.
pub(crate) fn max_body_bytes(coding: SparseCoding, k: usize, len: usize) -> Option<usize> {
    let index = coding.index.max_section_bytes(k, len)?;
    let values = coding.values.max_section_bytes(k)?;
    index.checked_add(values)?.checked_add(MAX_VARINT_BYTES + 1)
}

/// Working memory: candidates in two parts of `capacity` elements each, and for each of at most `k` entries what its
/// value decodes to.
pub(crate) fn scratch_len(coding: SparseCoding, k: usize, capacity: usize) -> ScratchLen {
    let bytes = if coding.values.format().fixed_bytes().is_none() { k } else { 0 };
    ScratchLen { words: capacity.saturating_mul(2).saturating_add(k), bytes }
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

/// Writes the body of a unit whose entries are the candidates, and commits the memory, which holds p: it loses what each
/// entry decodes to, and the momentum where there is one. Cannot fail.
pub(crate) fn encode_selected(
    coding: SparseCoding,
    input: UnitInput<'_, '_>,
    candidates: Candidates<'_>,
    scratch: Scratch<'_>,
    writer: &mut Writer<'_>,
) {
    let k = candidates.len;
    let is_coded = coding.values.format().fixed_bytes().is_none();
    let mut entries = Entries {
        indices: &mut candidates.indices[..k],
        values: &mut candidates.values[..k],
        decoded: &mut scratch.words[..k],
        symbols: &mut scratch.bytes[..if is_coded { k } else { 0 }],
    };
    let prepared = coding.values.prepare(&mut entries);
    let kept = prepared.kept();
    writer.varint(kept as u64);
    if kept > 0 {
        let indices = coding.index.plan(&entries.indices[..kept], input.span());
        let format = coding.values.format();
        writer.u8(indices.coder() as u8 | (format as u8) << 4);
        indices.write(writer);
        prepared.write(format, &entries, writer);
    }
    if let Some(memory) = input.memory {
        commit(&entries, kept, memory);
        if Full::build().and(input.momentum).is_some() {
            // It would carry on in a direction that is out of date.
            memory.mask_momentum(&entries.indices[..kept]);
        }
    }
}

/// Where an entry was sent, residual = p − decoded, which is exact.
fn commit(entries: &Entries<'_>, kept: usize, memory: &mut Memory<'_>) {
    let mut largest = memory.largest();
    let residual = memory.residual_mut();
    let sent = entries.indices.iter().zip(entries.values.iter()).zip(entries.decoded.iter());
    for ((&index, &value), &decoded) in sent.take(kept) {
        let rest = f32::from_bits(value) - f32::from_bits(decoded);
        residual[index as usize] = rest;
        largest = largest.max(rest.abs());
    }
    memory.bound_by(largest);
}
