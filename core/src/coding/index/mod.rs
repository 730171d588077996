//! Index coders: they write the ascending positions of the entries of a sparse unit in few bytes.

mod bitmap;
mod chunks;
mod context;
mod raw;
mod rice;

use self::context::Adaptive;
use crate::built::Full;
use crate::error::{DecodeError, Field};
use crate::gradient::layout::Span;
use crate::keys::Words;
use crate::wire::reader::Reader;
use crate::wire::writer::{Writer, varint_len};

/// How the positions of one unit are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexCoder {
    Raw,
    Bitmap,
    Rice,
    Context(Full),
    ContextMax(Full),
    Chunks(Full),
}

impl IndexCoder {
    pub(crate) fn from_wire(coder: u8) -> Result<Self, DecodeError> {
        Ok(match coder {
            0 => Self::Raw,
            1 => Self::Bitmap,
            2 => Self::Rice,
            3 | 4 | 6 => Self::of_full_build(coder, Full::required()?),
            _ => return Err(DecodeError::InvalidField(Field::Coding)),
        })
    }

    /// One of the coders that only a [`Full`] build has; one rule refuses all of them elsewhere.
    fn of_full_build(coder: u8, full: Full) -> Self {
        match coder {
            3 => Self::Context(full),
            4 => Self::ContextMax(full),
            _ => Self::Chunks(full),
        }
    }

    /// The number on the wire.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Bitmap => 1,
            Self::Rice => 2,
            Self::Context(_) => 3,
            Self::ContextMax(_) => 4,
            Self::Chunks(_) => 6,
        }
    }

    /// Name as in a codec spelling.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Bitmap => "bitmap",
            Self::Rice => "rice",
            Self::Context(_) => "context",
            Self::ContextMax(_) => "context-max",
            Self::Chunks(_) => "chunks",
        }
    }
}

/// Which index coder the encoder uses: the key `index=` of a spelling. `small` and `smallest` also decide how
/// values are written.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum IndexChoice {
    /// The cheapest of `raw`, `bitmap` and `rice` by exact bytes; ties go to the first named.
    #[default]
    Auto,
    /// Every position in as many bits as the largest possible one needs.
    Raw,
    /// One bit a coordinate.
    Bitmap,
    /// Gaps in Rice codes, with the best parameter of each block.
    Rice,
    /// Gaps under adaptive models that know the tensors, their rows and columns, in a range coder: the fewest
    /// bytes for positions that cluster, at some ten times the time.
    Context,
    /// One decision for each coordinate under models that are mixed and learn: fewer bytes still, for the
    /// slowest links.
    ContextMax,
    /// The cheapest of `raw`, `bitmap`, `rice` and `context`. Also packs the values, where that is shorter:
    /// it entropy codes the predictable bits of f32, f16 and bf16, and the changes of sign of values from a
    /// codebook. They decode to the same numbers.
    Small,
    /// As `small`, for values too, but with `context-max` among the coders, unless `context` shows that the
    /// positions have no order.
    Smallest,
    /// Rice codes whose parameter follows from what remains of a chunk: for
    /// [chunks](crate::codecs::TopK::with_chunk) with the same number of entries each. No packets.
    Chunks,
}

impl IndexChoice {
    /// The words of the key `index=`.
    pub(crate) const WORDS: Words<Self> = Words {
        words: &["auto", "raw", "bitmap", "rice", "context", "context-max", "small", "smallest", "chunks"],
        values: &[
            Self::Auto,
            Self::Raw,
            Self::Bitmap,
            Self::Rice,
            Self::Context,
            Self::ContextMax,
            Self::Small,
            Self::Smallest,
            Self::Chunks,
        ],
    };

    /// Largest number of bytes that the section of `k` positions below `len` can take.
    pub(crate) fn max_section_bytes(self, k: usize, len: usize) -> Option<usize> {
        match self {
            Self::Bitmap => Some(bitmap::section_bytes(len)),
            // `auto` takes the smallest, which is never above `raw`.
            Self::Auto | Self::Raw | Self::Small | Self::Smallest => raw::section_bytes(k, len),
            Self::Rice => with_length(rice::max_section_bytes(k, len)?),
            Self::Context | Self::ContextMax => {
                with_length(Full::build().and_then(|_| context::max_section_bytes(k, len))?)
            }
            Self::Chunks => with_length(Full::build().and_then(|_| chunks::max_section_bytes(k, len))?),
        }
    }

    /// Whether values are entropy coded too, where that is shorter: the other effect of `small` and
    /// `smallest`.
    pub(crate) fn packs_values(self) -> bool {
        matches!(self, Self::Small | Self::Smallest)
    }

    /// Whether a run of entries takes few bytes, however far apart they are, so that it can be a packet.
    /// False if every coordinate or every chunk takes bits.
    pub(crate) fn is_cut(self) -> bool {
        !matches!(self, Self::Bitmap | Self::Chunks)
    }

    /// Words of working memory that the models of a unit of `len` elements need.
    pub(crate) fn scratch_words(self, len: usize) -> usize {
        let words =
            |coders: &[Adaptive]| coders.iter().map(|coder| coder.scratch_words(len)).max().unwrap_or(0);
        Full::build().map_or(0, |_| words(self.adaptive()))
    }

    /// Whether it needs what only a [`Full`] build has.
    pub(crate) fn needs_full(self) -> bool {
        self == Self::Chunks || !self.adaptive().is_empty()
    }

    /// The coders that measure a section by writing it.
    fn adaptive(self) -> &'static [Adaptive] {
        match self {
            Self::Raw | Self::Bitmap | Self::Rice | Self::Auto | Self::Chunks => &[],
            Self::Context | Self::Small => &[Adaptive::Gaps],
            Self::ContextMax => &[Adaptive::Coordinates],
            Self::Smallest => &[Adaptive::Gaps, Adaptive::Coordinates],
        }
    }

    /// Writes the section of `indices`, ascending and inside `span`, which do not change. Returns the coder,
    /// chosen by exact section bytes, never by features or machine. If the section takes more than `room`
    /// bytes, returns `None` and writes nothing. `memory` has [`scratch_words`](Self::scratch_words).
    pub(crate) fn write(
        self,
        indices: &mut [u32],
        span: Span<'_>,
        memory: &mut [u32],
        room: usize,
        writer: &mut Writer<'_>,
    ) -> Option<IndexCoder> {
        debug_assert!(span.is_inside(), "units lie inside the layout");
        if let Some(full) = Full::build().filter(|_| self == Self::Chunks) {
            return write_chunks(full, indices, span.len, room, writer);
        }
        let plan = self.plan(indices, span.len);
        let least = plan
            .map_or(self.max_section_bytes(indices.len(), span.len)?, |plan| plan.bytes().saturating_sub(1));
        let modelled = write_modelled(self.adaptive(), indices, span, memory, room.min(least), writer);
        modelled.or_else(|| {
            let plan = plan.filter(|plan| plan.bytes() <= room)?;
            Some(plan.write(indices, span.len, writer))
        })
    }

    /// The cheapest of the coders that measure sections without writing them; the first of equals.
    fn plan(self, indices: &[u32], len: usize) -> Option<Plan> {
        match self {
            Self::Raw => Some(Plan::raw(indices, len)),
            Self::Bitmap => Some(Plan::bitmap(len)),
            Self::Rice => Some(Plan::rice(indices)),
            Self::Auto | Self::Small | Self::Smallest => {
                let plans = [Plan::raw(indices, len), Plan::bitmap(len), Plan::rice(indices)];
                plans.into_iter().min_by_key(Plan::bytes)
            }
            Self::Context | Self::ContextMax | Self::Chunks => None,
        }
    }
}

/// Bytes of a section with its length in front.
fn with_length(bytes: usize) -> Option<usize> {
    bytes.checked_add(varint_len(bytes as u64))
}

/// Writes the section of positions in chunks, if it takes no more than `room` bytes, its length included.
/// This is not a [`Plan`], because on a small machine it would double the size of one.
fn write_chunks(
    full: Full,
    indices: &[u32],
    len: usize,
    room: usize,
    writer: &mut Writer<'_>,
) -> Option<IndexCoder> {
    let shape = chunks::Shape::measure(indices, len);
    with_length(shape.section_bytes()).filter(|&bytes| bytes <= room)?;
    writer.varint(shape.section_bytes() as u64);
    chunks::write(indices, len, shape, writer);
    Some(IndexCoder::Chunks(full))
}

/// Writes the shortest section of some coders, the first of equals, if it takes at most `room` bytes, its
/// length included, and returns the coder; otherwise writes nothing. The spare part of the writer's buffer
/// holds `room` bytes. A coder is tried only if the one before it finds order in the positions.
fn write_modelled(
    coders: &[Adaptive],
    indices: &mut [u32],
    span: Span<'_>,
    memory: &mut [u32],
    room: usize,
    writer: &mut Writer<'_>,
) -> Option<IndexCoder> {
    let full = Full::build()?;
    // A section is written after room for the longest length field that it can have, and the next one after
    // it; the shortest is moved to its place.
    let first = (1..=room).find(|&first| varint_len((room - first) as u64) <= first)?;
    let spare = writer.spare();
    let (mut shortest, mut room, mut start) = (None, room, first);
    for &coder in coders {
        let bytes = coder.write(indices, span, memory, &mut spare[start..])?;
        let total = with_length(bytes)?;
        if total <= room {
            if start + bytes > spare.len() {
                start = first;
                coder.write(indices, span, memory, &mut spare[start..])?;
            }
            shortest = Some((coder, start, bytes));
            (room, start) = (total - 1, start + bytes);
        }
        if !context::finds_order(bytes, indices, span.len) {
            break;
        }
    }
    let (coder, start, bytes) = shortest?;
    spare.copy_within(start..start + bytes, varint_len(bytes as u64));
    writer.varint(bytes as u64);
    writer.advance(bytes);
    Some(match coder {
        Adaptive::Gaps => IndexCoder::Context(full),
        Adaptive::Coordinates => IndexCoder::ContextMax(full),
    })
}

/// A coder that measures its section before it writes it: its exact bytes.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Raw(usize),
    Bitmap(usize),
    Rice(rice::Planes),
}

impl Plan {
    fn raw(indices: &[u32], len: usize) -> Self {
        Self::Raw(raw::section_bytes(indices.len(), len).unwrap_or(usize::MAX))
    }

    fn bitmap(len: usize) -> Self {
        Self::Bitmap(bitmap::section_bytes(len))
    }

    fn rice(indices: &[u32]) -> Self {
        Self::Rice(rice::Planes::measure(indices))
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Raw(bytes) | Self::Bitmap(bytes) => *bytes,
            Self::Rice(planes) => with_length(planes.section_bytes()).unwrap_or(usize::MAX),
        }
    }

    /// Writes the section of the positions it was measured for.
    fn write(&self, indices: &[u32], len: usize, writer: &mut Writer<'_>) -> IndexCoder {
        match self {
            Self::Raw(_) => {
                raw::write(indices, len, writer);
                IndexCoder::Raw
            }
            Self::Bitmap(_) => {
                bitmap::write(indices, len, writer);
                IndexCoder::Bitmap
            }
            Self::Rice(planes) => {
                writer.varint(planes.section_bytes() as u64);
                rice::write(indices, *planes, writer.reserve(planes.section_bytes()));
                IndexCoder::Rice
            }
        }
    }
}

impl IndexCoder {
    /// Takes the bytes of the section of `k` positions below `len` off the reader, undecoded.
    pub(crate) fn section<'a>(
        self,
        k: usize,
        len: usize,
        reader: &mut Reader<'a>,
    ) -> Result<&'a [u8], DecodeError> {
        let bytes = match self {
            Self::Raw => raw::section_bytes(k, len).ok_or(DecodeError::InvalidField(Field::Entries))?,
            Self::Bitmap => bitmap::section_bytes(len),
            Self::Rice | Self::Context(_) | Self::ContextMax(_) | Self::Chunks(_) => reader.varint_usize()?,
        };
        // Memory for `k` positions must be backed by received bytes: in Rice codes an entry takes at least
        // one bit.
        let needed = match self {
            Self::Raw | Self::Bitmap => 0,
            Self::Rice | Self::Chunks(_) => k.div_ceil(8),
            Self::Context(_) | Self::ContextMax(_) => context::min_section_bytes(k),
        };
        if needed > bytes {
            return Err(DecodeError::Truncated { needed, actual: bytes });
        }
        reader.take(bytes)
    }

    /// Words of working memory that decoding takes, besides the positions.
    pub(crate) fn scratch_words(self, len: usize) -> usize {
        match self {
            Self::Raw | Self::Bitmap | Self::Rice | Self::Chunks(_) => 0,
            Self::Context(_) => Adaptive::Gaps.scratch_words(len),
            Self::ContextMax(_) => Adaptive::Coordinates.scratch_words(len),
        }
    }

    /// Decodes a section into `indices`, one word an entry; the result ascends and stays inside `span`.
    /// `memory` has [`scratch_words`](Self::scratch_words).
    pub(crate) fn read(
        self,
        section: &[u8],
        span: Span<'_>,
        indices: &mut [u32],
        memory: &mut [u32],
    ) -> Result<(), DecodeError> {
        debug_assert!(span.is_inside(), "units lie inside the layout");
        let len = span.len;
        match self {
            Self::Raw => raw::read(section, len, indices),
            Self::Bitmap => bitmap::read(section, len, indices),
            Self::Rice => rice::read(section, len, indices),
            Self::Context(_) => Adaptive::Gaps.read(section, span, indices, memory),
            Self::ContextMax(_) => Adaptive::Coordinates.read(section, span, indices, memory),
            Self::Chunks(_) => chunks::read(section, len, indices),
        }
    }
}

// A full build compares all coders. A small build has the same code without the coders that it leaves out.
#[cfg(all(test, feature = "full"))]
mod tests {
    extern crate std;
    use super::*;
    use crate::gradient::layout::{LayoutRef, TensorRef};
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    fn round_trip(choice: IndexChoice, indices: &[u32], span: Span<'_>) -> usize {
        let (k, len) = (indices.len(), span.len);
        let mut memory = vec![0xdead_beef; choice.scratch_words(len)];
        let mut out = vec![0xa5; choice.max_section_bytes(k, len).unwrap() + 5];
        let mut writer = Writer::new(&mut out);
        let mut kept = indices.to_vec();
        let coder = choice.write(&mut kept, span, &mut memory, usize::MAX, &mut writer).unwrap();
        assert_eq!(kept, indices);
        let written = writer.len();
        assert!(written <= choice.max_section_bytes(k, len).unwrap(), "{choice:?}");
        let mut reader = Reader::new(&out[..written]);
        let section = coder.section(k, len, &mut reader).unwrap();
        reader.finish().unwrap();
        let mut decoded = vec![0; k];
        let mut memory = vec![0xfeed_f00d; coder.scratch_words(len)];
        coder.read(section, span, &mut decoded, &mut memory).unwrap();
        assert_eq!(decoded, indices, "{coder:?}");
        written
    }

    const ALL: [IndexChoice; 9] = [
        IndexChoice::Raw,
        IndexChoice::Bitmap,
        IndexChoice::Rice,
        IndexChoice::Context,
        IndexChoice::ContextMax,
        IndexChoice::Auto,
        IndexChoice::Small,
        IndexChoice::Smallest,
        IndexChoice::Chunks,
    ];

    /// All coders round-trip, and a choice is never longer than its alternatives.
    fn all_round_trip(indices: &[u32], span: Span<'_>) {
        let [raw, bitmap, rice, context, max, auto, small, smallest, _] =
            ALL.map(|choice| round_trip(choice, indices, span));
        assert_eq!(auto, raw.min(bitmap).min(rice));
        assert_eq!(small, auto.min(context));
        let without_length = (1..=context).find(|&bytes| with_length(bytes) == Some(context)).unwrap();
        let is_tried = context::finds_order(without_length, indices, span.len);
        assert_eq!(smallest, if is_tried { small.min(max) } else { small });
    }

    fn whole<'l>(layout: &'l LayoutRef<'l>) -> Span<'l> {
        Span { layout, start: 0, len: layout.len() }
    }

    #[test]
    fn every_subset_of_small_units_round_trips() {
        for len in 1..=9usize {
            for mask in 1..1u32 << len {
                let indices: Vec<u32> = (0..len as u32).filter(|i| mask >> i & 1 == 1).collect();
                all_round_trip(&indices, whole(&LayoutRef::flat(len)));
            }
        }
    }

    #[test]
    fn the_largest_positions_round_trip() {
        for len in [1 << 16, (1 << 16) + 1, u32::MAX as usize] {
            let last = (len - 1) as u32;
            let layout = LayoutRef::flat(len);
            for choice in [IndexChoice::Raw, IndexChoice::Rice, IndexChoice::Context] {
                round_trip(choice, &[last], whole(&layout));
                round_trip(choice, &[0, last], whole(&layout));
                round_trip(choice, &[0, 1, last - 1, last], whole(&layout));
            }
        }
    }

    /// Tensors of none to four dimensions and of no elements, with `rows` and `width` for those that have
    /// them.
    fn shapes(rows: usize, width: usize) -> Vec<(Vec<usize>, usize)> {
        let matrices = [vec![rows, width], vec![width, rows], vec![1, rows]];
        let others = [vec![], vec![0, 3], vec![width], vec![2, 3, 3, 3]];
        let mut offset = 0;
        let place = |shape: Vec<usize>| {
            let start = offset;
            offset += shape.iter().product::<usize>();
            (shape, start)
        };
        others.into_iter().chain(matrices).map(place).collect()
    }

    fn table(shapes: &[(Vec<usize>, usize)]) -> Vec<TensorRef<'_>> {
        shapes.iter().map(|(shape, offset)| TensorRef { name: "", shape, offset: *offset }).collect()
    }

    /// Columns of a matrix, and one more. Miri takes minutes for a hundred thousand coordinates.
    const WIDEST: usize = if cfg!(miri) { 40 } else { 2100 };

    proptest! {
        #[test]
        fn random_subsets_round_trip(
            gaps in proptest::collection::vec(prop_oneof![0u32..4, 0u32..300, 0u32..20_000], 1..700),
            slack in 0u32..1000,
        ) {
            let indices: Vec<u32> = gaps.iter().scan(0u32, |next, gap| {
                let index = *next + gap;
                *next = index + 1;
                Some(index)
            }).collect();
            let len = (indices.last().unwrap() + 1 + slack) as usize;
            all_round_trip(&indices, whole(&LayoutRef::flat(len)));
        }

        #[test]
        fn subsets_of_any_unit_of_many_tensors_round_trip(
            (rows, width) in (1usize..12, 1..WIDEST),
            (start, end) in (0.0..1.0, 0.0..1.0),
            density in 1u32..100,
            seed in any::<u32>(),
        ) {
            let shapes = shapes(rows, width);
            let tensors = table(&shapes);
            let layout = LayoutRef::new(&tensors).unwrap();
            let at = |share: f64| (share * layout.len() as f64) as usize;
            let (start, end) = (at(f64::min(start, end)), at(f64::max(start, end)) + 1);
            let mut state = seed;
            let indices: Vec<u32> = (0..(end - start) as u32).filter(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % 100 < density
            }).collect();
            prop_assume!(!indices.is_empty());
            all_round_trip(&indices, Span { layout: &layout, start, len: end - start });
        }

        #[test]
        fn any_bytes_decode_or_are_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            k in 1usize..300,
            (rows, width) in (1usize..30, 1usize..60),
        ) {
            let shapes = shapes(rows, width);
            let tensors = table(&shapes);
            let layout = LayoutRef::new(&tensors).unwrap();
            let len = layout.len();
            let modelled = Full::build().map(|full| {
                [IndexCoder::Context(full), IndexCoder::ContextMax(full), IndexCoder::Chunks(full)]
            });
            let coders = [IndexCoder::Raw, IndexCoder::Bitmap, IndexCoder::Rice];
            for coder in coders.into_iter().chain(modelled.into_iter().flatten()) {
                let mut reader = Reader::new(&bytes);
                let mut decoded = vec![0; k.min(len)];
                let mut memory = vec![0; coder.scratch_words(len)];
                let Ok(section) = coder.section(decoded.len(), len, &mut reader) else { continue };
                if coder.read(section, whole(&layout), &mut decoded, &mut memory).is_ok() {
                    prop_assert!(decoded.windows(2).all(|pair| pair[0] < pair[1]));
                    prop_assert!((*decoded.last().unwrap() as usize) < len);
                }
            }
        }
    }
}
