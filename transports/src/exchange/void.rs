//! A rank whose gradient cannot be encoded says so, so that nobody waits for it: the step is void for all.
//!
//! The note is a message of its own, the coordinate as u64 LE, in a unit that no frame and no round has. Who waits for a message
//! that does not come looks for notes again and again; who gets what it waits for never looks.

use std::time::Duration;

use gradwire::EncodeError;

use super::error::ExchangeError;
use crate::collective;
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// Before the first look for notes. Each wait is twice as long as the one before, so that a transport which ends a job when a
/// peer stops answering still sees a long wait.
const FIRST_LOOK: Duration = Duration::from_millis(2);

/// Who cannot take part in a step, and the coordinate that is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Void {
    pub(super) rank: Rank,
    pub(super) index: usize,
}

impl Void {
    /// What the gradient of `rank` was refused for, if all have to know it.
    pub(super) fn of(rank: Rank, error: &ExchangeError) -> Option<Self> {
        match *error {
            ExchangeError::Encode(
                EncodeError::NonFiniteInput { index }
                | EncodeError::ValueOverflow { index }
                | EncodeError::Experiment { index, .. },
            ) => Some(Self { rank, index }),
            _ => None,
        }
    }

    pub(super) fn write(self) -> [u8; 8] {
        (self.index as u64).to_le_bytes()
    }

    /// The note of a rank about one of `len` coordinates, told by its length: no frame is that short, and what announces packets
    /// is shorter. Anything else is none.
    pub(super) fn read(rank: Rank, message: &[u8], len: usize) -> Option<Self> {
        let index = u64::from_le_bytes(message.try_into().ok()?);
        usize::try_from(index).ok().filter(|&index| index < len).map(|index| Self { rank, index })
    }

    /// Tells every peer.
    pub(super) fn tell(
        self,
        transport: &mut dyn Transport,
        step: Tag,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        let (me, note) = (transport.rank(), self.write());
        let peers = transport.membership().ranks;
        // One that is gone does not keep the others from hearing it.
        let told = peers
            .iter()
            .filter(|&rank| rank != me)
            .map(|to| transport.send(to, note_tag(step), &note, deadline));
        told.fold(Ok(()), Result::and)
    }
}

impl From<Void> for ExchangeError {
    fn from(Void { rank, index }: Void) -> Self {
        Self::Void { rank, index }
    }
}

fn note_tag(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(0)
}

/// A transport whose waits end when somebody says that the step is void.
pub(super) struct Watched<'a> {
    pub(super) transport: &'a mut dyn Transport,
    /// The tag of the step.
    pub(super) step: Tag,
    /// What was said.
    pub(super) void: &'a mut Option<Void>,
}

impl Watched<'_> {
    /// Whether a peer has said so.
    fn look(&mut self) -> bool {
        let (me, mut note) = (self.transport.rank(), Vec::new());
        for from in self.transport.membership().ranks.iter().filter(|&rank| rank != me) {
            if self.transport.recv(from, note_tag(self.step), &mut note, Deadline::now()).is_ok() {
                *self.void = Void::read(from, &note, usize::MAX);
            }
            if self.void.is_some() {
                return true;
            }
        }
        false
    }

    /// As a transport's `recv`; but when the step is void, `Timeout`, and what was said is in `void`.
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
                // A rank may say so and leave.
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
