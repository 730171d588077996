//! Units that are encoded once and then cut into pieces. Each piece is a unit of its own on the wire.

use crate::codec::unit::UnitInput;
use crate::coding::values::Prepared;
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
use crate::gradient::layout::Span;
use crate::memory::Memory;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::writer::Writer;
use core::fmt;
use core::ops::Range;

/// Largest number of bytes of one packet, header and checksum included: 64 to 65536.
///
/// # Examples
/// ```
/// use gradwire::packets::PacketSize;
/// assert_eq!(PacketSize::new(1200).unwrap().bytes(), 1200);
/// assert_eq!(PacketSize::new(63), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketSize(u32);

impl PacketSize {
    /// `bytes` from 64 to 65536, else `None`.
    #[must_use]
    pub fn new(bytes: u32) -> Option<Self> {
        (64..=65_536).contains(&bytes).then_some(Self(bytes))
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PacketSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The entries or levels that were chosen for one unit. Everything that grows with the unit is in the scratch
/// memory.
#[derive(Debug)]
pub struct Decided {
    /// Atoms of the unit. An *atom* cannot be cut: it is an entry of a sparse unit, or a coordinate of any
    /// other unit.
    pub(crate) atoms: usize,
    /// How the values of the entries are sent, for sparse units.
    pub(crate) values: Option<Prepared>,
}

/// Where a piece may end: `grain`, 2·`grain`, … `most`·`grain` atoms after its start, or at the end of the
/// unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    pub(crate) grain: usize,
    pub(crate) most: usize,
}

/// One piece that is being written.
pub struct Piece<'p> {
    pub(crate) atoms: Range<usize>,
    /// The coordinates of the piece, as a range of the layout.
    pub(crate) span: Span<'p>,
    /// First coordinate of the unit in the layout.
    pub(crate) start: usize,
    /// Coordinates of the unit.
    pub(crate) len: usize,
    /// Bytes that the body may take.
    pub(crate) room: usize,
}

/// A codec whose units can be cut.
pub trait Cut {
    /// Largest body of a piece with a single atom, out of a unit of `len` elements.
    fn least_body_bytes(&self, len: usize) -> usize;

    /// Working memory for the choices of [`decide`](Self::decide), for a unit of `len` elements.
    fn decided_scratch_len(&self, len: usize) -> ScratchLen;

    /// Chooses what is sent of a unit, without a memory, and leaves it in the scratch memory.
    ///
    /// # Errors
    /// The errors of [`Corrected::fold`](crate::corrected::Corrected::fold).
    fn decide(&self, input: UnitInput<'_, '_>, scratch: &mut Scratch<'_>) -> Result<Decided, EncodeError>;

    /// Coordinates of a unit of `len` elements that the piece with these atoms covers. Pieces that follow
    /// each other cover the unit without gaps.
    fn coordinates(&self, decided: &Decided, words: &[u32], atoms: Range<usize>, len: usize) -> Range<usize> {
        let _ = (decided, words, len);
        atoms
    }

    /// Where a piece that begins with atom `at` may end, and the alternative if none of these fits.
    fn cuts(&self, decided: &Decided, at: usize, size: PacketSize) -> (Cuts, Option<Cuts>);

    /// How many of these atoms fit bodies of at most `room(coordinates)` bytes, if that is known without
    /// trying. `len` is the length of the unit.
    fn fitting(
        &self,
        atoms: Range<usize>,
        len: usize,
        bytes: &mut [u8],
        room: &dyn Fn(usize) -> usize,
    ) -> Option<usize> {
        let _ = (atoms, len, bytes, room);
        None
    }

    /// Writes the body of a piece whose values are `values`, if it fits.
    fn write_piece(
        &self,
        decided: &Decided,
        piece: &Piece<'_>,
        values: Grad<'_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) -> bool;

    /// Subtracts the content of the piece with these atoms from the unit's memory.
    fn commit_piece(
        &self,
        decided: &Decided,
        atoms: Range<usize>,
        scratch: &mut Scratch<'_>,
        memory: &mut Memory<'_>,
    );
}
