//! What a rank says with the frames of a bucket: where it is, and what has to be alike at all ranks.

use std::fmt::Write;

/// Bytes before the bitmap.
const FIXED: usize = 20;

/// As it travels: status, flags, length of the bitmap, bucket, step, checksum; the bitmap; the hashes.
/// Numbers are little-endian.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Says {
    /// Whether a gradient of this rank is not finite, or overflows in its codec.
    pub(super) is_broken: bool,
    pub(super) bucket: u32,
    pub(super) step: u64,
    /// A checksum of scale, learning rate, codecs, steps discarded and the tensors of the bucket.
    pub(super) agreed: u32,
    /// A bit for each tensor that this rank used; empty if ranks do not tell.
    pub(super) used: Vec<u8>,
    /// A hash for each of so many neighbouring tensors of the parameters; empty where they are not compared.
    pub(super) hashes: Vec<u32>,
}

impl Says {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.is_broken), 0];
        out.extend_from_slice(&(self.used.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.bucket.to_le_bytes());
        out.extend_from_slice(&self.step.to_le_bytes());
        out.extend_from_slice(&self.agreed.to_le_bytes());
        out.extend_from_slice(&self.used);
        self.hashes.iter().for_each(|hash| out.extend_from_slice(&hash.to_le_bytes()));
        out
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>()?;
        let word = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let used = usize::from(u16::from_le_bytes([fixed[2], fixed[3]]));
        let (used, hashes) = rest.split_at_checked(used)?;
        let (hashes, []) = hashes.as_chunks::<4>() else { return None };
        Some(Self {
            is_broken: fixed[0] != 0,
            bucket: word(4),
            step: u64::from(word(8)) | u64::from(word(12)) << 32,
            agreed: word(16),
            used: used.to_vec(),
            hashes: hashes.iter().map(|hash| u32::from_le_bytes(*hash)).collect(),
        })
    }
}

/// What ranks that are not at the same place differ in, with the values of those that were heard.
pub(super) fn difference(own: &Says, all: &[Option<Says>]) -> Option<String> {
    let heard = || all.iter().flatten();
    let text = |what: &str, of: fn(&Says) -> u64| {
        let values: Vec<u64> = heard().map(of).collect();
        let differs = values.windows(2).any(|pair| pair[0] != pair[1]);
        let place = format!("step {}, bucket {}", own.step, own.bucket);
        differs.then(|| format!("{place}: the ranks differ in {what}: {values:?}"))
    };
    let agreed = "scale, learning rate, density, steps discarded, or tensors of the bucket";
    text("step", |says| says.step)
        .or_else(|| text("bucket", |says| u64::from(says.bucket)))
        .or_else(|| text(agreed, |says| u64::from(says.agreed)))
}

/// The first hash that is not what the first rank with hashes has: its position, that rank, and the ranks
/// that differ.
pub(super) fn other_parameters(all: &[Option<Says>]) -> Option<(usize, usize, Vec<usize>)> {
    let hashed = || {
        let ranks = all.iter().enumerate();
        ranks
            .filter_map(|(rank, says)| Some((rank, &says.as_ref()?.hashes)))
            .filter(|(_, all)| !all.is_empty())
    };
    let (first, expected) = hashed().next()?;
    (0..expected.len()).find_map(|at| {
        let differs =
            |(rank, hashes): (usize, &Vec<u32>)| (hashes.get(at) != expected.get(at)).then_some(rank);
        let others: Vec<usize> = hashed().filter_map(differs).collect();
        (!others.is_empty()).then_some((at, first, others))
    })
}

/// Tensors that any rank used.
pub(super) fn union(all: &[Option<Says>]) -> Vec<u8> {
    let mut union = Vec::new();
    for says in all.iter().flatten() {
        union.resize(union.len().max(says.used.len()), 0);
        union.iter_mut().zip(&says.used).for_each(|(all, own)| *all |= own);
    }
    union
}

/// A list of ranks, as sentences name them.
pub(super) fn listed(ranks: &[usize]) -> String {
    let mut text = String::from("[");
    for (at, rank) in ranks.iter().enumerate() {
        let _ = write!(text, "{}{rank}", if at == 0 { "" } else { ", " });
    }
    text + "]"
}
