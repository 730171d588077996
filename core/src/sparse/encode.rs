//! From chosen coordinates to the body of a sparse unit.

use crate::index::IndexChoice;
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::values::{Entries, ValueChoice};
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// How positions and values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct SparseCoding {
    pub(crate) index: IndexChoice,
    pub(crate) values: ValueChoice,
}

/// Largest body of a unit of `len` elements with at most `k` entries.
pub(crate) fn max_body_bytes(coding: SparseCoding, k: usize, len: usize) -> Option<usize> {
    let index = coding.index.max_section_bytes(k, len)?;
    let values = coding.values.max_section_bytes(k)?;
    index.checked_add(values)?.checked_add(MAX_VARINT_BYTES + 1)
}

/// Working memory: p, and for each entry its position, its value and what that decodes to.
pub(crate) fn scratch_len(coding: SparseCoding, k: usize, len: usize) -> ScratchLen {
    let bytes = if coding.values.format().fixed_bytes().is_none() { k } else { 0 };
    ScratchLen { words: len.saturating_add(k.saturating_mul(3)), bytes }
}

/// Cuts the scratch memory into p and the entries.
pub(crate) fn split_scratch<'s>(scratch: &'s mut Scratch<'_>, len: usize) -> (&'s mut [u32], Scratch<'s>) {
    let (p, words) = scratch.words.split_at_mut(len);
    (p, Scratch { words, bytes: scratch.bytes })
}

/// Writes the body of a unit whose entries are the `k` positions at the front of `scratch.words`, and commits the
/// memory: the residual becomes `p`, less what each entry decodes to. Cannot fail.
pub(crate) fn encode_selected(
    coding: SparseCoding,
    p: &[u32],
    k: usize,
    memory: Option<&mut Memory<'_>>,
    scratch: Scratch<'_>,
    writer: &mut Writer<'_>,
) {
    let (indices, words) = scratch.words.split_at_mut(k);
    let (values, words) = words.split_at_mut(k);
    let is_coded = coding.values.format().fixed_bytes().is_none();
    let mut entries = Entries {
        indices,
        values,
        decoded: &mut words[..k],
        symbols: &mut scratch.bytes[..if is_coded { k } else { 0 }],
    };
    for (value, &index) in entries.values.iter_mut().zip(entries.indices.iter()) {
        *value = p[index as usize];
    }
    let prepared = coding.values.prepare(&mut entries);
    let kept = prepared.kept();
    writer.varint(kept as u64);
    if kept > 0 {
        let coder = coding.index.choose(&entries.indices[..kept], p.len());
        let format = coding.values.format();
        writer.u8(coder as u8 | (format as u8) << 4);
        coder.write(&entries.indices[..kept], p.len(), writer);
        prepared.write(format, &entries, writer);
    }
    if let Some(memory) = memory {
        commit(p, &entries, kept, memory);
    }
}

/// residual = p − decoded, which is exact at every entry and p elsewhere.
fn commit(p: &[u32], entries: &Entries<'_>, kept: usize, memory: &mut Memory<'_>) {
    memory.keep_all(p);
    let residual = memory.residual_mut();
    let sent = entries.indices.iter().zip(entries.values.iter()).zip(entries.decoded.iter());
    for ((&index, &value), &decoded) in sent.take(kept) {
        residual[index as usize] = f32::from_bits(value) - f32::from_bits(decoded);
    }
}
