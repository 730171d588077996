//! Reads what a frame says about itself, without the memory that decoding takes.

use super::{FrameUnit, UnitInfo, Walk, open, scratch_words};
use crate::codec::Parser;
use crate::error::DecodeError;
use crate::frame::header::Header;
use crate::limits::Limits;

/// A frame whose header, checksum and structure are correct. Positions and values were not checked and may be
/// wrong.
///
/// For inspection without the layout. Takes time in proportion to the bytes of the frame, whatever they
/// claim, and no memory.
///
/// # Examples
#[cfg_attr(feature = "alloc", doc = "```")]
#[cfg_attr(not(feature = "alloc"), doc = "```ignore")]
/// use gradwire::{Encoder, Grad, LayoutRef, Limits, Source, StepInput, StepKey, Unit};
/// use gradwire::format::Outline;
/// use gradwire::codecs::Dense;
///
/// let (layout, units) = (LayoutRef::flat(3), [Unit::whole(3)]);
/// let key = StepKey { seed: 1, step: 7, source: Source::Rank(0) };
/// let mut encoder = Encoder::new();
/// let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&[1.0, 2.0, 3.0]) };
/// let frame = encoder.encode(&Dense::Bf16, &step, None).unwrap();
/// let outline = Outline::read(frame, &Limits::for_layout(&layout)).unwrap();
/// let unit = outline.units().next().unwrap();
/// assert_eq!((outline.step(), unit.kind, unit.held, unit.body_bytes), (7, "dense", 3, 7));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Outline<'a> {
    header: Header,
    step: u64,
    body: &'a [u8],
}

impl<'a> Outline<'a> {
    /// Reads header and structure, against the limits.
    ///
    /// # Errors
    /// As [`Frame::parse`](crate::Frame::parse), for header and structure, except for the layout.
    pub fn read(bytes: &'a [u8], limits: &Limits) -> Result<Self, DecodeError> {
        let (header, body) = open(bytes, limits, Parser::NONE)?;
        scratch_words(&header, body, usize::MAX, limits, Parser::NONE)?;
        let step = Walk::new(&header, body, usize::MAX, Parser::NONE)?.step;
        Ok(Self { header, step, body })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The step that the frame belongs to.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The parts of the units, in ascending order.
    pub fn units(&self) -> impl Iterator<Item = UnitInfo> + use<'a> {
        let mut walk = Walk::new(&self.header, self.body, usize::MAX, Parser::NONE).ok();
        core::iter::from_fn(move || {
            // Reading the same bytes succeeded, so nothing can fail here.
            let walk = walk.as_mut()?;
            let (unit, body) = walk.next().ok()??;
            let bytes = walk.body_bytes;
            Some(FrameUnit::new(walk.codec, unit, body, bytes, &[]).info())
        })
    }
}
