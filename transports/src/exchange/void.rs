//! A rank whose gradient cannot be encoded tells all others, so that none waits for it. The step is void for
//! all. So does a rank that fails in its caller's code, with a text.
//!
//! It sends a void frame (FORMAT.md, section 4.2). On routes that carry frames, the void frame takes the
//! place of the frame that the rank would have sent next. A rank that waits for that frame, or for the frame
//! of another rank, finds it. On routes that carry payloads, it is a *note*: a message of its own, in a unit
//! that no round has. A rank that waits there for a message finds it too. A rank that has its message never
//! looks. A failure takes the same places.

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

/// The longest text of a failure in bytes.
const MAX_TEXT: usize = 512;

/// The beginning of a text that travels, cut between two characters.
pub(super) fn cut_text(text: &str) -> &str {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

/// A failure of a caller's own as it travels: a byte that no frame begins with, and its text.
#[derive(Debug)]
pub(super) struct Failure;

/// The first byte of a failure.
const FAILURE: u8 = 0xe1;

impl Failure {
    pub(super) fn write(text: &str, out: &mut Vec<u8>) {
        out.clear();
        out.push(FAILURE);
        out.extend_from_slice(cut_text(text).as_bytes());
    }

    /// The text of a message that is a failure.
    pub(super) fn read(message: &[u8]) -> Option<String> {
        let [FAILURE, text @ ..] = message else { return None };
        Some(text_of(text))
    }
}

/// The text in bytes that a peer has sent.
pub(super) fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]).into_owned()
}

/// Why there is no message of `rank` in the place of this one: it is void, or it has failed. `None` for any
/// other message.
pub(super) fn refusal(
    rank: Rank,
    message: &[u8],
    layout: &LayoutRef<'_>,
    step: u64,
) -> Option<ExchangeError> {
    let failed = Failure::read(message).map(|text| ExchangeError::Failed { rank, text });
    failed.or_else(|| Void::read(rank, message, layout, step).map(Into::into))
}

/// The tag of notes.
pub(crate) fn note_tag(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(0)
}

/// Whether a message may take the place of another, by its length.
pub(super) fn is_short(message: &[u8]) -> bool {
    message.len() <= VoidFrame::MAX_BYTES.max(1 + MAX_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let mut message = Vec::new();
        for (text, len) in
            [("", 0), ("broken", 6), (&"é".repeat(300), 512), (&format!("a{}", "é".repeat(300)), 511)]
        {
            Failure::write(text, &mut message);
            let read = Failure::read(&message).unwrap();
            assert!(text.starts_with(&read) && read.len() == len && is_short(&message));
        }
        assert_eq!(Failure::read(b"GW\x01"), None);
        assert_eq!(Failure::read(&[0xe1, 0xff]), Some("\u{fffd}".to_owned()));
    }
}
