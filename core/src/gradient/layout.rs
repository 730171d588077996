//! The tensor table of a flat gradient, borrowed or owned, and its fingerprint.

use super::unit::Unit;
use core::fmt;

/// One tensor of a layout: its name, its shape and where it starts in the flat gradient, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRef<'a> {
    /// Name as the trainer knows it. Not part of the fingerprint.
    pub name: &'a str,
    /// Row-major shape. An empty shape is a scalar of one element.
    pub shape: &'a [usize],
    /// First element in the flat gradient.
    pub offset: usize,
}

impl TensorRef<'_> {
    /// Number of elements, or `None` if the product of the shape overflows.
    #[must_use]
    pub fn checked_len(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))
    }
}

/// Why a table of tensors is not a layout. `tensor` is the position in the table.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The tensor starts before the one in front of it ends.
    Overlap {
        /// Position in the table.
        tensor: usize,
    },
    /// Elements between the tensor and the one in front of it belong to neither.
    Gap {
        /// Position in the table.
        tensor: usize,
    },
    /// The number of elements does not fit `usize`.
    Overflow {
        /// Position in the table.
        tensor: usize,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Overlap { tensor } => write!(f, "tensor {tensor} overlaps the one before it"),
            Self::Gap { tensor } => write!(f, "gap before tensor {tensor}"),
            Self::Overflow { tensor } => write!(f, "tensor {tensor} has more elements than can be addressed"),
        }
    }
}

impl core::error::Error for LayoutError {}

/// The ordered list of tensors of a flat gradient, borrowed from the caller. Needs no heap.
///
/// Tensors follow each other from offset 0, without gaps. Both ends of a wire hold the same layout; the
/// [fingerprint](Self::fingerprint) in every frame shows if they do not.
///
/// # Examples
/// ```
/// use gradwire::{LayoutRef, TensorRef};
/// let tensors = [
///     TensorRef { name: "fc.weight", shape: &[10, 64], offset: 0 },
///     TensorRef { name: "fc.bias", shape: &[10], offset: 640 },
/// ];
/// let layout = LayoutRef::new(&tensors).unwrap();
/// assert_eq!(layout.len(), 650);
/// assert_ne!(layout.fingerprint(), LayoutRef::flat(650).fingerprint());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LayoutRef<'a> {
    tensors: Tensors<'a>,
    len: usize,
    fingerprint: u64,
}

#[derive(Clone, Copy, Debug)]
enum Tensors<'a> {
    Flat([usize; 1]),
    /// One tensor in place of unknown shapes.
    Opaque([usize; 1]),
    Borrowed(&'a [TensorRef<'a>]),
    #[cfg(feature = "alloc")]
    Owned(&'a [Tensor]),
}

impl<'a> LayoutRef<'a> {
    /// A layout over the caller's table.
    ///
    /// # Errors
    /// [`LayoutError`] when tensors overlap, leave gaps, are not in order of offset, or do not fit `usize`.
    pub fn new(tensors: &'a [TensorRef<'a>]) -> Result<Self, LayoutError> {
        let len = total_len(tensors.iter().copied())?;
        Ok(Self {
            tensors: Tensors::Borrowed(tensors),
            len,
            fingerprint: fingerprint(tensors.len(), tensors.iter().map(|tensor| tensor.shape)),
        })
    }

    /// A single nameless one-dimensional tensor of `len` elements, for callers without shapes.
    #[must_use]
    pub fn flat(len: usize) -> Self {
        let shape = [len];
        let fingerprint = fingerprint(1, core::iter::once(&shape[..]));
        Self { tensors: Tensors::Flat(shape), len, fingerprint }
    }

    /// A layout with only a length and a fingerprint, for reading a frame from a file without its shapes. It
    /// has one nameless tensor, and trusts the fingerprint. Positions under `index=context` cannot be read
    /// without shapes: [`DecodeError::LayoutUnknown`](crate::DecodeError::LayoutUnknown).
    #[must_use]
    pub fn opaque(len: usize, fingerprint: u64) -> Self {
        let flat = Self::flat(len);
        let tensors = if flat.fingerprint == fingerprint { flat.tensors } else { Tensors::Opaque([len]) };
        Self { tensors, len, fingerprint }
    }

    /// Whether the shapes are not known: see [`opaque`](Self::opaque).
    pub(crate) fn is_opaque(&self) -> bool {
        matches!(self.tensors, Tensors::Opaque(_))
    }

    /// Elements of the flat gradient.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the flat gradient has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// 64-bit fingerprint over shapes and order (not names), as FORMAT.md defines it. An accident detector,
    /// not a cryptographic hash.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Number of tensors.
    #[must_use]
    pub fn tensor_count(&self) -> usize {
        match self.tensors {
            Tensors::Flat(_) | Tensors::Opaque(_) => 1,
            Tensors::Borrowed(tensors) => tensors.len(),
            #[cfg(feature = "alloc")]
            Tensors::Owned(tensors) => tensors.len(),
        }
    }

    /// The tensor at position `i` of the table, if there is one.
    #[must_use]
    pub fn tensor(&self, i: usize) -> Option<TensorRef<'_>> {
        match &self.tensors {
            Tensors::Flat(shape) | Tensors::Opaque(shape) => {
                (i == 0).then_some(TensorRef { name: "", shape, offset: 0 })
            }
            Tensors::Borrowed(tensors) => tensors.get(i).copied(),
            #[cfg(feature = "alloc")]
            Tensors::Owned(tensors) => tensors.get(i).map(Tensor::as_ref),
        }
    }

    /// The tensors in the order of the flat gradient.
    pub fn tensors(&self) -> impl Iterator<Item = TensorRef<'_>> {
        (0..self.tensor_count()).filter_map(|i| self.tensor(i))
    }
}

/// A range of the flat gradient, with the layout that says which tensors are in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'l> {
    pub(crate) layout: &'l LayoutRef<'l>,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl<'l> Span<'l> {
    /// That of a unit.
    pub(crate) fn of(layout: &'l LayoutRef<'l>, unit: &Unit) -> Self {
        Self { layout, start: unit.start, len: unit.len }
    }
}

/// The part of one tensor that lies in a [`Span`]. Positions count from the start of the span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Coordinates of a row, which is one index of the first dimension, if there are two or more dimensions.
    pub(crate) row: Option<usize>,
    /// The same, if there are exactly two dimensions.
    pub(crate) width: Option<usize>,
    /// The position of the first coordinate in its row.
    pub(crate) into_row: usize,
}

impl Part {
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }
}

impl Span<'_> {
    /// The tensors that the range covers or cuts, except empty ones.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        let (start, end) = (self.start, self.start + self.len);
        self.layout.tensors().filter_map(move |tensor| {
            let first = tensor.offset.max(start);
            let last = (tensor.offset + tensor.checked_len()?).min(end);
            (first < last).then(|| {
                let row = tensor.shape.get(1..).filter(|row| !row.is_empty());
                let row = row.map(|row| row.iter().product());
                Part {
                    start: first - start,
                    end: last - start,
                    row,
                    width: row.filter(|_| tensor.shape.len() == 2),
                    into_row: row.map_or(0, |row| (first - tensor.offset) % row),
                }
            })
        })
    }

    /// Whether the range lies inside the layout. It always does, because units are checked before a span is
    /// made.
    pub(crate) fn is_inside(&self) -> bool {
        self.start <= self.layout.len() && self.len <= self.layout.len() - self.start
    }
}

fn total_len<'a>(tensors: impl Iterator<Item = TensorRef<'a>>) -> Result<usize, LayoutError> {
    let mut end = 0usize;
    for (position, tensor) in tensors.enumerate() {
        if tensor.offset < end {
            return Err(LayoutError::Overlap { tensor: position });
        }
        if tensor.offset > end {
            return Err(LayoutError::Gap { tensor: position });
        }
        let len = tensor.checked_len().ok_or(LayoutError::Overflow { tensor: position })?;
        end = end.checked_add(len).ok_or(LayoutError::Overflow { tensor: position })?;
    }
    Ok(end)
}

/// Absorbs the number of tensors, then for each its rank and its dimensions, as 64-bit words.
fn fingerprint<'a>(count: usize, shapes: impl Iterator<Item = &'a [usize]>) -> u64 {
    let mut state = absorb(FINGERPRINT_START, count as u64);
    for shape in shapes {
        state = absorb(state, shape.len() as u64);
        for &dim in shape {
            state = absorb(state, dim as u64);
        }
    }
    state
}

/// ASCII "gradwire", little-endian. Any fixed value without a pattern would do.
const FINGERPRINT_START: u64 = u64::from_le_bytes(*b"gradwire");

/// One step of the fingerprint: xor the word in, then the finaliser of SplitMix64, a bijection with full
/// avalanche.
pub(crate) fn absorb(state: u64, word: u64) -> u64 {
    let mut z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(feature = "alloc")]
pub use owned::{Layout, Tensor};

#[cfg(feature = "alloc")]
mod owned {
    use super::{LayoutError, LayoutRef, TensorRef, Tensors, fingerprint, total_len};
    use alloc::{string::String, vec::Vec};

    /// One tensor of an owned [`Layout`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Tensor {
        /// Name as the trainer knows it. Not part of the fingerprint.
        pub name: String,
        /// Row-major shape.
        pub shape: Vec<usize>,
        /// First element in the flat gradient.
        pub offset: usize,
    }

    impl Tensor {
        /// The borrowed form.
        #[must_use]
        pub fn as_ref(&self) -> TensorRef<'_> {
            TensorRef { name: &self.name, shape: &self.shape, offset: self.offset }
        }
    }

    /// An owned layout; [`as_ref`](Self::as_ref) lends it to the codecs.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Layout {
        tensors: Vec<Tensor>,
        len: usize,
        fingerprint: u64,
    }

    impl Layout {
        /// A layout over tensors with stated offsets.
        ///
        /// # Errors
        /// As [`LayoutRef::new`].
        pub fn new(tensors: Vec<Tensor>) -> Result<Self, LayoutError> {
            let len = total_len(tensors.iter().map(Tensor::as_ref))?;
            let fingerprint =
                fingerprint(tensors.len(), tensors.iter().map(|tensor| tensor.shape.as_slice()));
            Ok(Self { tensors, len, fingerprint })
        }

        /// A layout of tensors placed one after the other in the given order.
        ///
        /// # Errors
        /// [`LayoutError::Overflow`] when the elements do not fit `usize`.
        pub fn packed<N: Into<String>>(
            tensors: impl IntoIterator<Item = (N, Vec<usize>)>,
        ) -> Result<Self, LayoutError> {
            let mut offset = 0usize;
            let mut table = Vec::new();
            for (position, (name, shape)) in tensors.into_iter().enumerate() {
                let tensor = Tensor { name: name.into(), shape, offset };
                let len = tensor.as_ref().checked_len();
                offset = len
                    .and_then(|len| offset.checked_add(len))
                    .ok_or(LayoutError::Overflow { tensor: position })?;
                table.push(tensor);
            }
            Self::new(table)
        }

        /// The borrowed form that codecs take.
        #[must_use]
        pub fn as_ref(&self) -> LayoutRef<'_> {
            LayoutRef { tensors: Tensors::Owned(&self.tensors), len: self.len, fingerprint: self.fingerprint }
        }

        /// Elements of the flat gradient.
        #[must_use]
        pub fn len(&self) -> usize {
            self.len
        }

        /// Whether the flat gradient has no elements.
        #[must_use]
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// The tensors in the order of the flat gradient.
        #[must_use]
        pub fn tensors(&self) -> &[Tensor] {
            &self.tensors
        }

        /// As [`LayoutRef::fingerprint`].
        #[must_use]
        pub fn fingerprint(&self) -> u64 {
            self.fingerprint
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_gaps_and_overflow_are_rejected() {
        let tensor = |shape, offset| TensorRef { name: "t", shape, offset };
        let new = |tensors: &[TensorRef<'_>]| LayoutRef::new(tensors).map(|layout| layout.len());
        assert_eq!(new(&[tensor(&[2, 3], 0), tensor(&[], 6)]), Ok(7));
        assert_eq!(new(&[tensor(&[2, 3], 0), tensor(&[4], 5)]), Err(LayoutError::Overlap { tensor: 1 }));
        assert_eq!(new(&[tensor(&[2, 3], 0), tensor(&[4], 7)]), Err(LayoutError::Gap { tensor: 1 }));
        assert_eq!(new(&[tensor(&[usize::MAX, 2], 0)]), Err(LayoutError::Overflow { tensor: 0 }));
        let table = [tensor(&[usize::MAX], 0), tensor(&[1], usize::MAX)];
        assert_eq!(new(&table), Err(LayoutError::Overflow { tensor: 1 }));
    }

    #[test]
    fn fingerprint_tells_shapes_and_order_but_not_names() {
        let print = |shapes: &[&[usize]]| fingerprint(shapes.len(), shapes.iter().copied());
        assert_eq!(print(&[&[6]]), LayoutRef::flat(6).fingerprint());
        assert_ne!(print(&[&[2, 3]]), print(&[&[3, 2]]));
        assert_ne!(print(&[&[2], &[3]]), print(&[&[3], &[2]]));
        assert_ne!(print(&[&[2, 3]]), print(&[&[2], &[3]]));
        assert_ne!(print(&[&[]]), print(&[]));
    }
}
