//! The message that a rank sends in place of a frame if its gradient cannot be encoded.

use crate::codec::Parser;
use crate::error::{DecodeError, EncodeError};
use crate::frame::header::{HEADER_BYTES, Header};
use crate::frame::open_for;
use crate::gradient::layout::LayoutRef;
use crate::limits::Limits;
use crate::wire::ids::CodecId;
use crate::wire::reader::Reader;
use crate::wire::writer::{MAX_VARINT_BYTES, Writer};

/// A message in place of the frame of a step. The gradient of its sender cannot be encoded, so no rank needs
/// to wait for it.
///
/// It holds no units. [`Frame::parse`](crate::Frame::parse) refuses it as `Void`, so that no reader mistakes
/// it for a gradient of zeros.
///
/// # Examples
/// ```
/// use gradwire::codecs::Dense;
/// use gradwire::format::VoidFrame;
/// use gradwire::{EncodeError, Gather, LayoutRef};
///
/// let (layout, mut out) = (LayoutRef::flat(4), [0; VoidFrame::MAX_BYTES]);
/// // What `encode` said of the gradient of step 7.
/// let refused = EncodeError::NonFiniteInput { index: 2 };
/// let void = VoidFrame::of(Dense::F32.id(), 7, &refused).unwrap();
/// let bytes = void.write(&layout, &mut out).unwrap();
/// assert_eq!(bytes, 26);
/// assert_eq!(VoidFrame::parse(&out[..bytes], &layout), Ok(Some(void)));
/// assert_eq!((void.step, void.index), (7, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoidFrame {
    /// The method that would have made the frame.
    pub codec: CodecId,
    /// The step that the frame would have belonged to.
    pub step: u64,
    /// The coordinate that caused the error, counted from the start of the layout.
    pub index: usize,
}

impl VoidFrame {
    /// Bytes of the longest void frame.
    pub const MAX_BYTES: usize = HEADER_BYTES + 2 * MAX_VARINT_BYTES;

    /// The void frame for a gradient that was refused with `error`; `None` for errors that the gradient did
    /// not cause.
    #[must_use]
    pub fn of(codec: CodecId, step: u64, error: &EncodeError) -> Option<Self> {
        match *error {
            EncodeError::NonFiniteInput { index }
            | EncodeError::ValueOverflow { index }
            | EncodeError::Experiment { index, .. } => Some(Self { codec, step, index }),
            _ => None,
        }
    }

    /// Writes the frame to the front of `out` and returns its bytes.
    ///
    /// # Errors
    /// `BufferTooSmall` for fewer than [`MAX_BYTES`](Self::MAX_BYTES).
    ///
    /// # Panics
    /// When `index` is not below the length of the layout.
    pub fn write(&self, layout: &LayoutRef<'_>, out: &mut [u8]) -> Result<usize, EncodeError> {
        assert!(self.index < layout.len(), "coordinate beyond the layout");
        let too_small = EncodeError::BufferTooSmall { needed: Self::MAX_BYTES, actual: out.len() };
        let (out, _) = out.split_first_chunk_mut::<{ Self::MAX_BYTES }>().ok_or(too_small)?;
        let (header, body) = out.split_at_mut(HEADER_BYTES);
        let mut writer = Writer::new(body);
        writer.varint(self.step);
        writer.varint(self.index as u64);
        header.copy_from_slice(&self.header(layout, writer.len()).to_bytes(&writer));
        Ok(HEADER_BYTES + writer.len())
    }

    fn header(&self, layout: &LayoutRef<'_>, body_bytes: usize) -> Header {
        Header { is_void: true, ..Header::new(self.codec, layout, 0, body_bytes) }
    }

    /// Checks `bytes` completely. `None` for a frame that is not void; only its header, length and checksum
    /// were checked.
    ///
    /// # Errors
    /// Every way in which bytes fail to be a void frame for this layout; `IndexOutOfRange` for a coordinate
    /// beyond it.
    pub fn parse(bytes: &[u8], layout: &LayoutRef<'_>) -> Result<Option<Self>, DecodeError> {
        let (header, body) = open_for(bytes, layout, &Limits::for_layout(layout), Parser::NONE)?;
        if !header.is_void {
            return Ok(None);
        }
        let mut reader = Reader::new(body);
        let (step, index) = (reader.varint()?, reader.varint()?);
        reader.finish()?;
        let index = usize::try_from(index).ok().filter(|&index| index < layout.len());
        let index = index.ok_or(DecodeError::IndexOutOfRange)?;
        Ok(Some(Self { codec: header.codec, step, index }))
    }
}
