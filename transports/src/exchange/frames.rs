//! The frames of a part in an all-gather, and how one of them is read.

use gradwire::{Encoder, Unit};

use super::error::ExchangeError;
use super::head::{self, Head};
use super::incoming::{Incoming, Requirements};
use super::message::Message;
use super::parts::Part;
use super::step::Step;
use super::version::TAIL;
use super::void::refusal;

/// The frames of a part: this rank's own, and by position in the membership those of the others.
#[derive(Debug, Default)]
pub(super) struct Frames {
    pub(super) own: Encoder,
    /// Of an added part: the head, as long as that says, and the own frames behind it.
    pub(super) headed: Vec<u8>,
    head_bytes: usize,
    pub(super) others: Vec<Vec<u8>>,
    /// The position of the member whose frame is added next, and the coordinates that those before it hold.
    pub(super) next: usize,
    pub(super) held: usize,
}

impl Frames {
    /// This rank's own frames of a part; empty if it lacks all of its units.
    pub(super) fn own(&self, part: Part<'_>) -> &[u8] {
        let is_added = part.says.is_some();
        if is_added { &self.headed[self.head_bytes..self.headed.len() - 1] } else { self.own.frame() }
    }

    /// The message of an added part. Its room is what it takes: frames may be long.
    pub(super) fn put_behind_head(&mut self, part: Part<'_>, frames: &[u8]) {
        head::write(part, &mut self.headed);
        self.head_bytes = self.headed.len();
        self.headed.reserve_exact(frames.len() + 1);
        self.headed.extend_from_slice(frames);
        self.headed.push(TAIL);
    }
}

/// Checks the message of a member about a part and shows it to `look`, if the member has any unit of it.
/// Returns what `look` returns, and 0 without it.
pub(super) fn visit(
    (incoming, present): (&mut Incoming, &mut Vec<Unit>),
    frames: &Frames,
    step: &mut Step<'_>,
    part: Part<'_>,
    position: usize,
    look: impl FnOnce(&Message<'_>) -> usize,
) -> Result<usize, ExchangeError> {
    let (rank, layout) = (step.members().as_slice()[position], step.layout.as_ref());
    let (units, bytes) = if rank == step.rank() {
        (part.own, frames.own(part))
    } else if part.says.is_some() {
        let message = &frames.others[position];
        if let Some(refusal) = refusal(rank, message, &layout, step.key.step) {
            return Err(refusal);
        }
        let head = Head::read(message, part).ok_or(ExchangeError::WrongUnits { rank })?;
        present.clear();
        present.extend(head.present(part));
        (&present[..], head.rest)
    } else {
        (part.units, &frames.others[position][..])
    };
    if units.is_empty() {
        return if bytes.is_empty() { Ok(0) } else { Err(ExchangeError::WrongUnits { rank }) };
    }
    let expected = Requirements::part(step, units);
    Ok(look(&incoming.parse(rank, bytes, &layout, &expected)?))
}
