//! What spellings, lists and the trainer need to know of a codec.

use crate::coding::values::ValueChoice;
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// A codec that has a spelling. Everything that lists, help and generic tests say of it comes from here.
pub(crate) trait Spelled: Described + Copy + Sized + 'static {
    /// The names that spellings begin with, and the number of each on the wire where it has one of its own.
    const NAMES: &'static [(&'static str, Option<CodecId>)];

    /// How bodies of its frames are laid out, besides those of units that are sent dense.
    const KIND: Kind;

    /// The keys, separated by spaces, in the order in which they are listed.
    const KEYS: &'static str;

    /// What the codec does, in one line.
    const SUMMARY: &'static str;

    /// Spellings that between them reach everything the codec can do: golden frames, property tests, benches
    /// and fuzz targets go by them.
    const EXAMPLES: &'static [&'static str];

    /// The codec of a spelling, `name` being one of [`NAMES`](Self::NAMES).
    ///
    /// # Errors
    /// [`SpecError`], which names the key and what is allowed.
    fn parse<'a>(name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>>;

    /// The same codec at another density; a codec that has none is as it was.
    fn with_density(self, density: Density) -> Self {
        let _ = density;
        self
    }
}

/// What can be asked of a codec of any type.
pub(crate) trait Described {
    /// The name that its spelling begins with.
    fn name(&self) -> &'static str;

    /// Prints the main parameters, and every other that differs from its default.
    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result;

    /// Error feedback for biased codecs, none for unbiased ones and for casts, whose bias is half a unit in
    /// the last place; and none where error feedback would not converge. With momentum for codecs that have
    /// momentum.
    fn default_memory(&self) -> MemoryChoice;

    /// Why these parameters, or they and this memory, do not go together, if they do not.
    fn conflict(&self, memory: MemoryChoice) -> Option<&'static str>;

    /// Why what the codec sends cannot be cut into packets, if it cannot.
    fn packet_conflict(&self) -> Option<&'static str>;

    /// Epochs of warm-up where none are given.
    fn default_warmup(&self) -> u32 {
        0
    }

    /// Whether tensors of one dimension are sent dense where nothing is said.
    fn default_dense_1d(&self) -> bool {
        false
    }

    /// Whether every tensor is a unit of its own where nothing is said.
    fn default_per_tensor(&self) -> bool {
        false
    }

    /// The density, of codecs that have one.
    fn density(&self) -> Option<Density> {
        None
    }

    /// Entries that a frame should hold of a unit of `len` elements, of codecs that have a density.
    fn target_count(&self, len: usize) -> Option<usize> {
        Some(self.density()?.count(len))
    }

    /// The value coder, of codecs whose frames hold chosen coordinates.
    fn sparse_values(&self) -> Option<ValueChoice> {
        None
    }

    /// The norm that one of `workers` shortens its whole gradient to before it encodes, of codecs that clip.
    fn local_clip(&self, workers: u32) -> Option<f64> {
        let _ = workers;
        None
    }

    /// Whether what is sent adds up several gradients as steps of SGD, so that no other optimizer may apply
    /// it.
    fn accumulates_steps(&self) -> bool {
        false
    }

    /// Whether its mean is that of the gradients as they are, so that it may ride on a plain all-reduce as
    /// well.
    fn is_plain_sum(&self) -> bool {
        false
    }
}

/// Why linear codecs have no packets.
pub(crate) const SUMMED: &str =
    "max_packet_bytes: a linear codec has no frames to cut; its payloads are summed";

/// `memory=momentum` for a codec without.
pub(crate) const NO_MOMENTUM: &str = "memory=momentum: it belongs to dgc, with a momentum above 0";

/// One codec of the list of all.
#[derive(Clone, Copy, Debug)]
pub struct CodecEntry {
    /// The names that spellings begin with, and the number of each on the wire where it has one of its own.
    pub names: &'static [(&'static str, Option<CodecId>)],
    /// `gather`, `linear` or `gossip`.
    pub kind: &'static str,
    /// How bodies of its frames are laid out, besides those of units that are sent dense.
    pub(crate) body: Kind,
    /// The keys, separated by spaces.
    pub keys: &'static str,
    /// What the codec does, in one line.
    pub summary: &'static str,
    /// Spellings that between them reach everything the codec can do.
    pub examples: &'static [&'static str],
}

impl CodecEntry {
    pub(crate) const fn of<C: Spelled>(kind: &'static str) -> Self {
        let (keys, summary, examples) = (C::KEYS, C::SUMMARY, C::EXAMPLES);
        Self { names: C::NAMES, kind, body: C::KIND, keys, summary, examples }
    }
}
