//! A rank whose gradient cannot be encoded tells all others, so that none waits for it. The step is void for
//! all.
//!
//! It sends a void frame (FORMAT.md, section 4.2). On routes that carry frames, the void frame takes the
//! place of the frame that the rank would have sent next. A rank that waits for that frame finds it; a rank
//! that waits long for another frame looks for it. On routes that carry payloads, it is a *note*: a message
//! of its own, in a unit that no round has. A rank that waits there for a message looks for notes at
//! intervals. A rank that gets its message at once never looks.

use std::time::Duration;

use gradwire::format::VoidFrame;
use gradwire::{Layout, LayoutRef};

use super::error::ExchangeError;
use super::step::Step;
use crate::collective;
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// The wait before the first look for notes. Each further wait is twice as long, so that a transport which
/// ends a job when a peer stops answering still sees a long wait.
const FIRST_LOOK: Duration = Duration::from_millis(2);

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

/// Reads void frames of a step.
pub(super) struct Reader<'a> {
    pub(super) layout: &'a Layout,
    pub(super) step: u64,
}

impl Reader<'_> {
    /// The content of a void frame from `rank`; `None` for any other message.
    pub(super) fn void_of(&self, rank: Rank, message: &[u8]) -> Option<Void> {
        Void::read(rank, message, &self.layout.as_ref(), self.step)
    }
}

/// This rank's void frame for a gradient that was refused; `None` if something else failed.
pub(super) fn void_frame(step: &Step<'_>, error: &ExchangeError) -> Option<VoidFrame> {
    let ExchangeError::Encode(error) = error else { return None };
    VoidFrame::of(step.codec().id(), step.key.step, error)
}

/// A void frame as it travels.
#[derive(Debug)]
pub(super) struct VoidMessage {
    bytes: [u8; VoidFrame::MAX_BYTES],
    len: usize,
}

impl VoidMessage {
    /// # Panics
    /// When the coordinate is outside the layout.
    pub(super) fn new(void: &VoidFrame, layout: &LayoutRef<'_>) -> Self {
        let mut bytes = [0; VoidFrame::MAX_BYTES];
        let len = void.write(layout, &mut bytes).expect("there is room for the longest one");
        Self { bytes, len }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Tells every peer, also if another peer is gone.
    pub(super) fn tell(&self, step: &mut Step<'_>, tag: Tag) -> Result<(), TransportError> {
        let members = step.transport.membership().ranks;
        let mut told = Ok(());
        for (_, to) in step.others_in(&members) {
            told = told.and(step.send(to, tag, self.bytes()));
        }
        told
    }
}

impl From<Void> for ExchangeError {
    fn from(Void { rank, index }: Void) -> Self {
        Self::Void { rank, index }
    }
}

/// The tag of notes.
pub(super) fn note_tag(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(0)
}

/// A transport whose waits end when a note arrives.
pub(super) struct Watched<'a> {
    pub(super) transport: &'a mut dyn Transport,
    /// The tag of the step.
    pub(super) step: Tag,
    /// The note and its sender.
    pub(super) note: &'a mut Option<(Rank, Vec<u8>)>,
}

impl Watched<'_> {
    /// Whether a peer has sent a note.
    fn look(&mut self) -> bool {
        let (me, mut message) = (self.transport.rank(), Vec::new());
        let members = self.transport.membership().ranks;
        let mut others = members.iter().filter(|&rank| rank != me);
        let from = others.find(|&from| {
            self.transport.recv(from, note_tag(self.step), &mut message, Deadline::now()).is_ok()
        });
        if let Some(from) = from {
            *self.note = Some((from, message));
        }
        from.is_some()
    }

    /// As a transport's `recv`, but returns `Timeout` when there is a note, which is then in `note`.
    pub(super) fn wait(
        &mut self,
        from: Rank,
        tag: Tag,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let mut patience = FIRST_LOOK;
        loop {
            let until = deadline.earlier(Deadline::after(patience));
            patience = patience.saturating_mul(2);
            match self.transport.recv(from, tag, into, until) {
                Err(timeout @ TransportError::Timeout { .. }) => {
                    if self.look() || deadline.has_passed() {
                        return Err(timeout);
                    }
                }
                // A rank may send a note and leave.
                Err(gone @ TransportError::Disconnected { .. }) => {
                    self.look();
                    return Err(gone);
                }
                received => return received,
            }
        }
    }
}

impl collective::Endpoint for Watched<'_> {
    fn rank(&self) -> Rank {
        Transport::rank(&*self.transport)
    }

    fn membership(&self) -> Membership {
        Transport::membership(&*self.transport)
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        self.transport.send(to, tag, payload, deadline)
    }

    fn recv(
        &mut self,
        from: Rank,
        tag: Tag,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        self.wait(from, tag, into, deadline)
    }
}
