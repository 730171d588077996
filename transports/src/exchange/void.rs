//! A rank whose gradient cannot be encoded tells all others, so that none waits for it. The step is void for
//! all.
//!
//! It sends a void frame (FORMAT.md, section 4.2). On routes that carry frames, the void frame takes the
//! place of the frame that the rank would have sent next. A rank that waits for that frame, or for the frame
//! of another rank, finds it. On routes that carry payloads, it is a *note*: a message of its own, in a unit
//! that no round has. A rank that waits there for a message finds it too. A rank that has its message never
//! looks.

use gradwire::LayoutRef;
use gradwire::format::VoidFrame;

use super::error::ExchangeError;
use crate::rank::Rank;
use crate::tag::Tag;

/// The rank that cannot take part in a step, and the coordinate that cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Void {
    pub(super) rank: Rank,
    pub(super) index: usize,
}

impl Void {
    /// The content of a void frame of that step from `rank`; `None` for any other message.
    pub(super) fn read(rank: Rank, message: &[u8], layout: &LayoutRef<'_>, step: u64) -> Option<Self> {
        let void = VoidFrame::parse(message, layout).ok()??;
        (void.step == step).then_some(Self { rank, index: void.index })
    }
}

/// A void frame as it travels.
#[derive(Debug)]
pub(crate) struct VoidMessage {
    bytes: [u8; VoidFrame::MAX_BYTES],
    len: usize,
}

impl VoidMessage {
    /// # Panics
    /// When the coordinate is outside the layout.
    pub(crate) fn new(void: &VoidFrame, layout: &LayoutRef<'_>) -> Self {
        let mut bytes = [0; VoidFrame::MAX_BYTES];
        let len = void.write(layout, &mut bytes).expect("there is room for the longest one");
        Self { bytes, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl From<Void> for ExchangeError {
    fn from(Void { rank, index }: Void) -> Self {
        Self::Void { rank, index }
    }
}

/// The tag of notes.
pub(crate) fn note_tag(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(0)
}

/// Whether a message may be a void frame, by its length.
pub(super) fn is_void_frame(message: &[u8]) -> bool {
    message.len() <= VoidFrame::MAX_BYTES
}
