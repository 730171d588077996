//! What spellings, lists and the trainer need to know about a codec.

use crate::coding::values::ValueChoice;
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// A codec that has a spelling. Lists, help and generic tests take everything from here.
pub(crate) trait Spelled: Described + Copy + Sized + 'static {
    /// The names that spellings begin with. A name that has a codec number of its own on the wire comes with
    /// it.
    const NAMES: &'static [(&'static str, Option<CodecId>)];

    /// How the bodies of its frames are laid out, except those of units that are sent dense.
    const KIND: Kind;

    /// The keys, separated by spaces, in the order in which they are listed.
    const KEYS: &'static str;

    /// What the codec does, in one line.
    const SUMMARY: &'static str;

    /// Where it pays, in one line.
    const SUITS: &'static str;

    /// What it costs besides the bytes that it sends, in one line.
    const COSTS: &'static str;

    /// Spellings that together reach everything the codec can do. Golden frames, property tests, benches and
    /// fuzz targets use them.
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

/// Questions that any codec must answer, whatever its type.
pub(crate) trait Described {
    /// The name that its spelling begins with.
    fn name(&self) -> &'static str;

    /// Prints the main parameters, and every other that differs from its default.
    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result;

    /// The memory that the codec uses by default. Biased codecs use error feedback. Unbiased codecs use none,
    /// and neither do casts, whose bias is half a unit in the last place, nor codecs with which error
    /// feedback would not converge. Codecs that have momentum use error feedback with momentum.
    fn default_memory(&self) -> MemoryChoice;

    /// Why these parameters do not go together, or with a memory, if that `keeps` what is not sent.
    fn conflict(&self, keeps: bool) -> Option<&'static str>;

    /// Why the codec's output cannot be cut into packets, if it cannot.
    fn packet_conflict(&self) -> Option<&'static str>;

    /// Epochs of warm-up where none are given.
    fn default_warmup(&self) -> u32 {
        0
    }

    /// Whether tensors of one dimension are sent dense by default.
    fn default_dense_1d(&self) -> bool {
        false
    }

    /// Whether every tensor is a unit of its own by default.
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

    /// The value coder, for codecs whose frames hold chosen coordinates.
    fn sparse_values(&self) -> Option<ValueChoice> {
        None
    }

    /// The norm that one of `workers` shortens its whole gradient to before it encodes, of codecs that clip.
    fn local_clip(&self, workers: u32) -> Option<f64> {
        let _ = workers;
        None
    }

    /// Whether the codec sends a sum of several gradients as steps of SGD, so that no other optimizer may
    /// apply it.
    fn accumulates_steps(&self) -> bool {
        false
    }

    /// Whether its mean is that of the unchanged gradients, so that a plain all-reduce can compute it as
    /// well.
    fn is_plain_sum(&self) -> bool {
        false
    }
}

/// Why linear codecs have no packets.
pub(crate) const SUMMED: &str =
    "max_packet_bytes: a linear codec has no frames to cut; its payloads are summed";

/// One codec in the list of all codecs.
#[derive(Clone, Copy, Debug)]
pub struct CodecEntry {
    /// The names that spellings begin with. A name that has a codec number of its own on the wire comes with
    /// it.
    pub names: &'static [(&'static str, Option<CodecId>)],
    /// `gather`, `linear` or `gossip`.
    pub kind: &'static str,
    /// How the bodies of its frames are laid out, except those of units that are sent dense.
    pub(crate) body: Kind,
    /// The keys, separated by spaces.
    pub keys: &'static str,
    /// Keys of a codec of another crate with their defaults, separated by commas; empty for other codecs.
    pub defaults: &'static str,
    /// What the codec does, in one line.
    pub summary: &'static str,
    /// Where it pays, in one line; empty for codecs of other crates.
    pub suits: &'static str,
    /// What it costs besides the bytes that it sends, in one line; empty for codecs of other crates.
    pub costs: &'static str,
    /// Spellings that between them reach everything the codec can do.
    pub examples: &'static [&'static str],
}

impl CodecEntry {
    pub(crate) const fn of<C: Spelled>(kind: &'static str) -> Self {
        Self {
            names: C::NAMES,
            kind,
            body: C::KIND,
            keys: C::KEYS,
            defaults: "",
            summary: C::SUMMARY,
            suits: C::SUITS,
            costs: C::COSTS,
            examples: C::EXAMPLES,
        }
    }
}
