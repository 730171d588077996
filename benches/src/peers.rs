//! What else one could do in Rust: general compression, sorting, and other coders of indices and levels.

use std::hint::black_box;

use bitpacking::{BitPacker, BitPacker4x};
use constriction::stream::model::{
    SmallContiguousCategoricalEntropyModel, SmallContiguousLookupDecoderModel,
};
use constriction::stream::queue::{SmallRangeDecoder, SmallRangeEncoder};
use constriction::stream::{Decode, Encode};

use crate::buffer::Aligned;
use crate::inputs::Gradient;

/// The gradient's bytes as they lie in memory on a little-endian machine.
#[must_use]
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// `zstd` on bytes.
pub struct Zstd {
    input: Vec<u8>,
    compressed: Vec<u8>,
    restored: Vec<u8>,
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

impl Zstd {
    /// Level `level` on `input`, compressed once, and checked.
    ///
    /// # Panics
    /// When the library fails.
    #[must_use]
    pub fn new(input: Vec<u8>, level: i32) -> Self {
        let mut zstd = Self {
            compressed: Vec::with_capacity(zstd::zstd_safe::compress_bound(input.len())),
            restored: Vec::with_capacity(input.len()),
            compressor: zstd::bulk::Compressor::new(level).expect("a compressor"),
            decompressor: zstd::bulk::Decompressor::new().expect("a decompressor"),
            input,
        };
        zstd.compress();
        zstd.decompress();
        assert!(zstd.restored == zstd.input, "zstd gives back what it was given");
        zstd
    }

    /// Compresses.
    ///
    /// # Panics
    /// When the library fails.
    pub fn compress(&mut self) {
        self.compressed.clear();
        let bytes = self.compressor.compress_to_buffer(black_box(&self.input), &mut self.compressed);
        black_box(bytes.expect("room for the worst case"));
    }

    /// Decompresses, and adds nothing up.
    ///
    /// # Panics
    /// When the library fails.
    pub fn decompress(&mut self) {
        self.restored.clear();
        let bytes = self.decompressor.decompress_to_buffer(black_box(&self.compressed), &mut self.restored);
        black_box(bytes.expect("room for the input"));
    }

    /// Bytes of the compressed input.
    #[must_use]
    pub fn compressed_bytes(&self) -> usize {
        self.compressed.len()
    }
}

/// How a naive top-k finds the k largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Sorts all positions by magnitude.
    Sort,
    /// Partitions the positions around the k-th (`select_nth_unstable_by`).
    Partition,
}

/// Error feedback and top-k as one writes them down first: positions ordered by magnitude, then raw index and
/// value pairs.
pub struct NaiveTopK<'g> {
    gradient: &'g Gradient,
    selection: Selection,
    k: usize,
    step: u64,
    residual: Aligned,
    order: Vec<u32>,
    message: Vec<u8>,
}

impl<'g> NaiveTopK<'g> {
    /// Keeps `k` values a step.
    #[must_use]
    pub fn new(gradient: &'g Gradient, selection: Selection, k: usize) -> Self {
        let residual = Aligned::filled(gradient.len(), 0.0);
        let message = Vec::with_capacity(8 * k);
        Self { gradient, selection, k, step: 0, residual, order: vec![0; gradient.len()], message }
    }

    /// One step: add, select, write the pairs in order of position, clear what was sent.
    pub fn encode(&mut self) {
        let residual = self.residual.as_mut_slice();
        let grad = black_box(self.gradient.step(self.step));
        residual.iter_mut().zip(grad).for_each(|(residual, grad)| *residual += grad);
        self.step += 1;
        (0..).zip(&mut self.order).for_each(|(i, slot)| *slot = i);
        let larger = |a: &u32, b: &u32| {
            residual[*b as usize].abs().total_cmp(&residual[*a as usize].abs()).then(a.cmp(b))
        };
        match self.selection {
            Selection::Sort => self.order.sort_unstable_by(larger),
            Selection::Partition => {
                self.order.select_nth_unstable_by(self.k - 1, larger);
            }
        }
        let selected = &mut self.order[..self.k];
        selected.sort_unstable();
        self.message.clear();
        for &i in &*selected {
            self.message.extend(i.to_le_bytes());
            self.message.extend(residual[i as usize].to_le_bytes());
            residual[i as usize] = 0.0;
        }
        black_box(&self.message);
    }

    /// Positions of the last step, ascending.
    #[must_use]
    pub fn positions(&self) -> &[u32] {
        &self.order[..self.k]
    }

    /// Bytes of the last step's pairs.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        self.message.len()
    }
}

/// Ascending positions as differences of a common width for every 128 of them (`bitpacking`); the rest stays
/// raw.
pub struct PackedPositions {
    positions: Vec<u32>,
    packer: BitPacker4x,
    widths: Vec<u8>,
    packed: Vec<u8>,
    restored: Vec<u32>,
}

impl PackedPositions {
    /// Packs once, and checks that it can be undone.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn new(positions: Vec<u32>) -> Self {
        let blocks = positions.len() / BitPacker4x::BLOCK_LEN;
        let mut coder = Self {
            packer: BitPacker4x::new(),
            widths: Vec::with_capacity(blocks),
            packed: vec![0; 4 * positions.len()],
            restored: vec![0; positions.len()],
            positions,
        };
        coder.encode();
        coder.decode();
        let whole = blocks * BitPacker4x::BLOCK_LEN;
        assert!(
            coder.restored[..whole] == coder.positions[..whole],
            "bitpacking gives back what it was given"
        );
        coder
    }

    /// Packs the positions.
    pub fn encode(&mut self) {
        self.widths.clear();
        let (mut at, mut last) = (0, 0);
        for block in black_box(&self.positions).chunks_exact(BitPacker4x::BLOCK_LEN) {
            let width = self.packer.num_bits_sorted(last, block);
            at += self.packer.compress_sorted(last, block, &mut self.packed[at..], width);
            self.widths.push(width);
            last = block[BitPacker4x::BLOCK_LEN - 1];
        }
        black_box(&self.packed);
    }

    /// Unpacks them.
    pub fn decode(&mut self) {
        let (mut at, mut last) = (0, 0);
        let blocks = self.restored.chunks_exact_mut(BitPacker4x::BLOCK_LEN);
        for (block, &width) in blocks.zip(&self.widths) {
            at += self.packer.decompress_sorted(last, &black_box(&self.packed)[at..], block, width);
            last = block[BitPacker4x::BLOCK_LEN - 1];
        }
        black_box(&self.restored);
    }

    /// Bytes of the packed positions, their widths and the raw rest.
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        let block_bytes = |&width: &u8| 1 + usize::from(width) * BitPacker4x::BLOCK_LEN / 8;
        let rest = self.positions.len() % BitPacker4x::BLOCK_LEN;
        self.widths.iter().map(block_bytes).sum::<usize>() + 4 * rest
    }
}

/// Levels of 4 bits under a model of their frequencies (`constriction`'s range coder). The levels are made
/// beforehand: this is the entropy coder alone.
pub struct RangeCoder {
    symbols: Vec<usize>,
    model: SmallContiguousCategoricalEntropyModel,
    /// The same model with a table for decoding, without which the symbol is searched for.
    lookup: SmallContiguousLookupDecoderModel,
    words: Vec<u16>,
}

/// Levels of 4 bits: −7 to 7.
const ALPHABET: usize = 15;
/// Coordinates that share a largest value.
const BUCKET: usize = 512;

impl RangeCoder {
    /// The levels of nearest rounding with one scale a bucket, coded once, and checked.
    ///
    /// # Panics
    /// When they cannot be decoded.
    #[must_use]
    pub fn new(values: &[f32]) -> Self {
        let symbols: Vec<usize> = values.chunks(BUCKET).flat_map(levels).collect();
        let mut counts = [1.0f64; ALPHABET];
        symbols.iter().for_each(|&symbol| counts[symbol] += 1.0);
        let model =
            SmallContiguousCategoricalEntropyModel::from_floating_point_probabilities_fast(&counts, None)
                .expect("counts above zero");
        let lookup = model.to_lookup_decoder_model();
        let mut coder = Self { symbols, model, lookup, words: Vec::new() };
        coder.encode();
        let restored: Vec<usize> = coder.decoder().map(|symbol| symbol.expect("a symbol")).collect();
        assert!(restored == coder.symbols, "constriction gives back what it was given");
        coder
    }

    /// Codes all levels.
    ///
    /// # Panics
    /// When the library fails.
    pub fn encode(&mut self) {
        let mut encoder = SmallRangeEncoder::new();
        let symbols = black_box(&self.symbols).iter().copied();
        encoder.encode_iid_symbols(symbols, &self.model).expect("symbols of the model");
        self.words = encoder.into_compressed().expect("words of 16 bits");
    }

    /// Decodes all levels.
    ///
    /// # Panics
    /// When the library fails.
    pub fn decode(&self) {
        self.decoder().for_each(|symbol| {
            black_box(symbol.expect("a symbol"));
        });
    }

    fn decoder(&self) -> impl Iterator<Item = Result<usize, impl std::fmt::Debug>> + '_ {
        let mut decoder = SmallRangeDecoder::from_compressed(self.words.clone()).expect("words of 16 bits");
        (0..self.symbols.len()).map(move |_| decoder.decode_symbol(&self.lookup))
    }

    /// Bytes of the coded levels, without a table and without scales.
    #[must_use]
    pub fn coded_bytes(&self) -> usize {
        2 * self.words.len()
    }
}

/// Levels of one bucket, counted from the lowest.
fn levels(bucket: &[f32]) -> Vec<usize> {
    let largest = bucket.iter().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    bucket
        .iter()
        .map(|value| (value / largest * 7.0).round() as i32 + 7)
        .map(|level| level as usize)
        .collect()
}
