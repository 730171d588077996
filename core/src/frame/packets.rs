//! A gradient as several frames, each complete and no longer than a packet.
//!
//! The codec first decides for the whole unit what it sends, exactly as for one frame: the same k, the same
//! codebook, the same levels. Then it cuts the unit into pieces. A piece is a range of the unit, and on the
//! wire a unit of its own. Each packet holds as much as fits, counted in exact bytes.

use crate::built::Full;
use crate::codec::{Cut, Cuts, Decided, EncodeUnit, PacketSize, Piece, UnitInput};
use crate::corrected::{BLOCK, Pass};
use crate::error::EncodeError;
use crate::frame::gather::StepInput;
use crate::frame::header::HEADER_BYTES;
use crate::frame::message::{self, codec_of};
use crate::gradient::grad::Grad;
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::kernels::Isa;
use crate::memory::Memory;
use crate::momentum::Momentum;
use crate::rng::key::StepKey;
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::unit_header::Cursor;
use crate::wire::writer::{Writer, varint_len};
use core::fmt;
use core::ops::Range;

/// Bytes that an entropy coder may write beyond its final length.
const SLACK: usize = 32;

/// Working memory for the packets of these units: the decisions for one unit, and room for one body.
pub(crate) fn scratch_len(codec: &dyn EncodeUnit, units: &[Unit], size: PacketSize) -> ScratchLen {
    let unit = decided_len(codec, units);
    ScratchLen { words: unit.words, bytes: unit.bytes.saturating_add(size.bytes() + SLACK) }
}

/// Working memory to decide any of these units, or to encode it if it cannot be cut.
fn decided_len(codec: &dyn EncodeUnit, units: &[Unit]) -> ScratchLen {
    let needs = units.iter().map(|unit| {
        let codec = codec_of(codec, unit);
        codec
            .as_cut()
            .map_or_else(|| codec.unit_scratch_len(unit.len), |cut| cut.decided_scratch_len(unit.len))
    });
    needs.fold(ScratchLen::default(), ScratchLen::max)
}

/// The packets of one gradient, to be drawn one after the other into the caller's buffer.
///
/// Every packet is a frame: [`Frame::parse`](crate::Frame::parse) decodes it alone, in any order, whether or
/// not the others arrive. The sum of the packets holds what one frame of the same gradient would hold.
///
/// The memory changes packet by packet. Before the first packet it is fl(residual + gradient), and drawing a
/// packet subtracts exactly its content. So the memory keeps what was not drawn, and [`Memory::give_back`]
/// can return each lost packet alone.
///
/// # Examples
#[cfg_attr(feature = "full", doc = "```")]
#[cfg_attr(not(feature = "full"), doc = "```ignore")]
/// use gradwire::{Density, Frame, Gather, Grad, LayoutRef, Limits, Memory, Scratch, Source};
/// use gradwire::codecs::IndexChoice;
/// use gradwire::packets::PacketSize;
/// use gradwire::{StepInput, StepKey, Unit};
/// use gradwire::codecs::{TopK, ValueChoice};
///
/// let grad: [f32; 100] = core::array::from_fn(|i| i as f32);
/// let (layout, units) = (LayoutRef::flat(100), [Unit::whole(100)]);
/// let codec = TopK::new(Density::new(0.2).unwrap(), IndexChoice::Auto, ValueChoice::F32);
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let size = PacketSize::new(64).unwrap();
/// let (mut residual, mut words, mut bytes) = ([0.0; 100], [0; 512], [0; 128]);
/// let mut memory = Memory::new(&mut residual);
/// let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
/// let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&grad) };
///
/// let mut packets = codec.packets(&step, Some(&mut memory), &mut scratch, size).unwrap();
/// let (mut packet, mut sum, mut count) = ([0; 64], [0.0; 100], 0);
/// while let Some(bytes) = packets.next_into(&mut packet) {
///     let mut words = [0; 128];
///     let frame = Frame::parse(&packet[..bytes], &layout, &Limits::for_layout(&layout), &mut words).unwrap();
///     frame.add_scaled_to(1.0, &mut sum);
///     count += 1;
/// }
/// assert_eq!(count, 3);
/// assert_eq!((sum[79], sum[80], sum[99]), (0.0, 80.0, 99.0));
/// assert_eq!((memory.residual()[79], memory.residual()[80]), (79.0, 0.0));
/// ```
pub struct Packets<'a> {
    codec: &'a dyn EncodeUnit,
    step: StepInput<'a>,
    memory: Option<Memory<'a>>,
    size: PacketSize,
    words: &'a mut [u32],
    bytes: &'a mut [u8],
    body: &'a mut [u8],
    /// The unit that is being cut, and its next atom.
    unit: usize,
    atom: usize,
    decided: Option<Decided>,
}

impl fmt::Debug for Packets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packets").field("size", &self.size).field("unit", &self.unit).finish_non_exhaustive()
    }
}

/// See [`Gather::packets`](crate::Gather::packets).
pub(crate) fn begin<'a>(
    codec: &'a dyn EncodeUnit,
    step: &StepInput<'a>,
    memory: Option<&'a mut Memory<'_>>,
    scratch: &'a mut Scratch<'_>,
    size: PacketSize,
) -> Result<Packets<'a>, EncodeError> {
    let StepInput { key, layout, units, grad } = *step;
    let encoding = message::Encoding::new(codec, step);
    encoding.check_lengths(memory.as_deref())?;
    Full::build().ok_or(EncodeError::NotBuilt)?;
    message::check_units(layout, units)?;
    if units.iter().any(|unit| codec_of(codec, unit).as_cut().is_none()) {
        return Err(EncodeError::NoPackets);
    }
    encoding.check_parts(memory.as_deref())?;
    let needed = scratch_len(codec, units, size);
    if !scratch.holds(needed) {
        return Err(EncodeError::ScratchTooSmall { needed });
    }
    let needed = units.iter().map(|unit| least_packet_bytes(codec, key, unit)).max().unwrap_or(0);
    if needed > size.bytes() {
        return Err(EncodeError::PacketTooSmall { needed });
    }
    encoding.check_values(memory.as_deref())?;
    let (bytes, body) = scratch.bytes.split_at_mut(decided_len(codec, units).bytes);
    let words = &mut *scratch.words;
    let mut memory = memory.map(|memory| {
        // The final residual is known only after the last packet was drawn.
        memory.residual_mut();
        memory.slice(0..layout.len())
    });
    for unit in units {
        if let Some(memory) = &mut memory {
            let grad = grad.slice(unit.start, unit.len);
            add_gradient(grad, message::momentum_of(codec_of(codec, unit)), memory.slice(unit.range()));
        }
    }
    let (unit, atom, decided) = (0, 0, None);
    Ok(Packets { codec, step: *step, memory, size, words, bytes, body, unit, atom, decided })
}

/// residual = fl(residual + gradient), or what momentum makes of the gradient.
fn add_gradient(grad: Grad<'_>, rule: Option<Momentum>, mut memory: Memory<'_>) {
    let (residual, momentum) = memory.parts_mut();
    let mut pass = Pass::new(grad, residual, 0, f32::INFINITY).with_momentum(rule.zip(momentum));
    let (isa, mut room) = (Isa::best(), [0; BLOCK]);
    for block in pass.blocks() {
        // Every value was checked before.
        let _ = pass.values(isa, block, &mut room);
    }
}

/// The most bytes of a packet that holds one atom of the unit.
fn least_packet_bytes(codec: &dyn EncodeUnit, key: StepKey, unit: &Unit) -> usize {
    let fields = [u64::from(unit.id), (unit.start + unit.len) as u64, unit.len as u64, key.step];
    let header: usize = HEADER_BYTES + fields.map(varint_len).iter().sum::<usize>() + 1;
    let body = codec_of(codec, unit).as_cut().map_or(usize::MAX, |cut| cut.least_body_bytes(unit.len));
    header.saturating_add(body)
}

impl<'a> Packets<'a> {
    /// Writes the next packet to the front of `out` and returns its bytes; `None` after the last packet.
    ///
    /// # Panics
    /// When `out` is shorter than the packet size.
    pub fn next_into(&mut self, out: &mut [u8]) -> Option<usize> {
        assert!(out.len() >= self.size.bytes(), "buffer shorter than a packet");
        let mut written = self.write_step();
        let (mut cursor, mut pieces) = (Cursor::default(), 0);
        while let Some(unit) = self.step.units.get(self.unit) {
            let (atoms, start) = (self.decided()?.atoms, self.atom);
            let Some((end, bytes)) = self.largest_piece(cursor, written) else { break };
            self.commit(start..end);
            let covered = self.covered(start..end);
            cursor.pass(&Unit { start: covered.start, len: covered.len(), ..*unit });
            written += bytes;
            pieces += 1;
            self.atom = end;
            if end < atoms {
                break;
            }
            (self.unit, self.atom, self.decided) = (self.unit + 1, 0, None);
        }
        if pieces == 0 {
            return None;
        }
        let (header, body) = out.split_at_mut(HEADER_BYTES);
        let mut writer = Writer::new(body);
        writer.bytes(&self.body[..written]);
        header.copy_from_slice(&self.encoding().header(pieces, written).to_bytes(&writer));
        Some(HEADER_BYTES + written)
    }

    fn encoding(&self) -> message::Encoding<'_> {
        message::Encoding::new(self.codec, &self.step)
    }

    /// Begins the body; returns its bytes.
    fn write_step(&mut self) -> usize {
        let mut writer = Writer::new(self.body);
        writer.varint(self.step.key.step);
        writer.len()
    }

    /// The current unit, and its codec.
    fn unit_and_codec(&self) -> Option<(&'a Unit, &'a dyn Cut)> {
        let unit = self.step.units.get(self.unit)?;
        Some((unit, codec_of(self.codec, unit).as_cut()?))
    }

    /// What the codec decided for the unit; decided on the first call.
    fn decided(&mut self) -> Option<&Decided> {
        if self.decided.is_none() {
            let (unit, codec) = self.unit_and_codec()?;
            // With a memory, the codec encodes what the memory holds now.
            let (grad, state) = match &mut self.memory {
                Some(memory) => {
                    let (residual, state) = memory.residual_and_state(unit.id);
                    (Grad::F32(&residual[unit.range()]), state)
                }
                None => (self.step.grad.slice(unit.start, unit.len), None),
            };
            let input = UnitInput {
                key: self.step.key,
                layout: self.step.layout,
                unit,
                grad,
                memory: None,
                initial: None,
                momentum: None,
                state,
                #[cfg(feature = "parallel")]
                threads: 1,
            };
            let mut scratch = Scratch { words: self.words, bytes: self.bytes };
            // Every value was checked before the first packet.
            self.decided = codec.decide(input, &mut scratch).ok();
        }
        self.decided.as_ref()
    }

    /// Coordinates of the layout that a piece of the current unit covers.
    fn covered(&self, atoms: Range<usize>) -> Range<usize> {
        let (Some(decided), Some((unit, codec))) = (&self.decided, self.unit_and_codec()) else {
            return 0..0;
        };
        let within = codec.coordinates(decided, self.words, atoms, unit.len);
        unit.start + within.start..unit.start + within.end
    }

    /// The end of the largest piece that fits after the `written` bytes of the body, and its bytes; the piece
    /// is then written. `None` if not even one atom fits.
    fn largest_piece(&mut self, cursor: Cursor, written: usize) -> Option<(usize, usize)> {
        let (start, (_, codec)) = (self.atom, self.unit_and_codec()?);
        let decided = self.decided.as_ref()?;
        let atoms = decided.atoms;
        let (mut first, other) = codec.cuts(decided, start, self.size);
        if let Some(fitting) = self.fitting(cursor, written, start, first.most) {
            if fitting == 0 && first.most > 0 {
                return None;
            }
            first.most = fitting;
        }
        for Cuts { grain, most } in core::iter::once(first).chain(other) {
            let end = |count: usize| start.saturating_add(count.saturating_mul(grain)).min(atoms);
            if let Some(bytes) = self.write_piece(cursor, written, start..end(most)) {
                return Some((end(most), bytes));
            }
            let (mut fits, mut fails) = (0, most);
            while fits + 1 < fails {
                let middle = fits + (fails - fits) / 2;
                match self.write_piece(cursor, written, start..end(middle)) {
                    Some(_) => fits = middle,
                    None => fails = middle,
                }
            }
            if fits > 0 {
                let bytes = self.write_piece(cursor, written, start..end(fits))?;
                return Some((end(fits), bytes));
            }
        }
        None
    }

    /// How many of the `most` atoms from `start` on fit after the `written` bytes of the body, if that is
    /// known without trying.
    fn fitting(&mut self, cursor: Cursor, written: usize, start: usize, most: usize) -> Option<usize> {
        let (unit, codec) = self.unit_and_codec()?;
        let left = self.size.bytes().saturating_sub(HEADER_BYTES + written);
        let piece_unit = |len: usize| Unit { start: unit.start + start, len, ..*unit };
        let room = |len: usize| left.saturating_sub(cursor.header_bytes(&piece_unit(len)));
        codec.fitting(start..start + most, unit.len, self.bytes, &room)
    }

    /// Writes the unit header and the body of a piece after the `written` bytes of the packet's body, if they
    /// fit; returns their bytes.
    fn write_piece(&mut self, mut cursor: Cursor, written: usize, atoms: Range<usize>) -> Option<usize> {
        let (unit, codec) = self.unit_and_codec()?;
        let covered = self.covered(atoms.clone());
        let decided = self.decided.as_ref()?;
        let piece_unit = Unit { start: covered.start, len: covered.len(), ..*unit };
        let left = self.size.bytes().checked_sub(HEADER_BYTES + written)?;
        let room = left.checked_sub(cursor.header_bytes(&piece_unit))?;
        let mut writer = Writer::new(&mut self.body[written..]);
        cursor.write(&mut writer, &piece_unit, codec_of(self.codec, unit).capabilities().kind);
        let span = Span { layout: self.step.layout, start: covered.start, len: covered.len() };
        let piece = Piece { atoms, span, start: unit.start, len: unit.len, room };
        let values = match &self.memory {
            Some(memory) => Grad::F32(&memory.residual()[covered]),
            None => self.step.grad.slice(covered.start, covered.len()),
        };
        let mut scratch = Scratch { words: self.words, bytes: self.bytes };
        let fits = codec.write_piece(decided, &piece, values, &mut scratch, &mut writer);
        fits.then_some(writer.len())
    }

    /// Subtracts the content of a piece from the memory.
    fn commit(&mut self, atoms: Range<usize>) {
        let Some((unit, codec)) = self.unit_and_codec() else { return };
        let (Some(memory), Some(decided)) = (&mut self.memory, &self.decided) else { return };
        let mut scratch = Scratch { words: self.words, bytes: self.bytes };
        codec.commit_piece(decided, atoms, &mut scratch, &mut memory.slice(unit.range()));
    }
}
