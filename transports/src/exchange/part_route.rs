//! What a route does with the parts of a step.

use gradwire::{DecodeError, Grad, Memory};

use super::error::ExchangeError;
use super::means::Means;
use super::parts::Part;
use super::report::Work;
use super::step::Step;
use crate::tag::{Tag, Wanted};

/// What one call of a poll did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The message that is needed next is not here. The poll goes on when it is.
    Waiting,
    /// A payload is lent to the library of the network. The poll goes on when it is summed.
    Lent,
    /// A piece of the poll.
    Busy(Work),
    /// The rest of the poll. The part has more to do, after those in flight behind it.
    More,
    /// The rest of the part: `mean` holds its share.
    Complete,
}

/// What a route does with each part. Every rank makes the same calls with the same parts in the same order.
pub(super) trait InParts {
    /// Whether a rank whose gradient cannot be encoded sends notes. Routes without frames need them, because
    /// no void frame can take the place of a frame there.
    const HAS_NOTES: bool = false;

    /// Frees the buffers of earlier steps.
    fn free(&mut self) {}

    /// Sets the number of parts of a step.
    fn set_parts(&mut self, count: usize);

    fn begin_step(&mut self);

    /// Runs the rounds before the frame, in which all ranks agree on a few numbers, as far as it can. Returns
    /// whether they are over. The memory is only read. If this rank's gradient is refused, its void frame
    /// takes the place of its next message; the caller sends it as for the first part.
    fn agree(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<bool, ExchangeError> {
        let _ = (step, grad, memory);
        Ok(true)
    }

    /// Encodes a part of the gradient. After an error the memory is as it was.
    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError>;

    /// Encodes a part whose gradient stands in a place for each of its own units.
    fn encode_apart(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grads: &[Grad<'_>],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let _ = (step, part, grads, memory);
        Err(ExchangeError::NoParts { route: "frames" })
    }

    /// Encodes a part whose gradient stands in a place for each of its own units, and whose residuals are in
    /// another memory: see [`Exchange::add_beside`](super::Exchange::add_beside). After an error `memory`
    /// holds nothing of use.
    fn encode_beside(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grads: &[Grad<'_>],
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<(), ExchangeError> {
        let _ = (step, part, grads, before, memory);
        Err(ExchangeError::NoParts { route: "sums" })
    }

    /// Queues the first messages of a part.
    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError>;

    /// The bytes of a [frame](super::port::Body::Frame) that was queued.
    fn frame(&self, part: usize, place: usize) -> &[u8];

    /// The tag of a void frame: that of the part's first messages, whose place it takes, or that of notes.
    fn void_tag(&self, step: &Step<'_>, at: usize) -> Tag;

    /// Whether this rank has promised to go on with the step, whatever its caller says.
    fn is_promised(&self) -> bool {
        false
    }

    /// The tag of the messages of an added part that begin with a head. Those of other parts differ in the
    /// chunk alone. `None` for a route without added parts.
    fn head_tag(&self, step: &Step<'_>, at: usize) -> Option<Tag> {
        let _ = (step, at);
        None
    }

    /// The message of the member at that position that began with a head; of this rank its own.
    fn headed(&self, part: usize, position: Option<usize>) -> &[u8] {
        let _ = (part, position);
        &[]
    }

    /// One piece of a poll of a part: takes a message that the part waits for, and queues what comes next.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError>;

    /// Makes the mean of a part from the results of all polls, and checks that it is finite.
    fn conclude(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<(), ExchangeError>;

    /// Returns to the memory what `encode` took from it.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError>;

    /// Asks for whatever the others may still send of a step that failed here, so that their notes find room
    /// behind it.
    fn drain(&mut self, step: &mut Step<'_>) {
        let (members, tag) = (step.members(), step.tag);
        step.others_in(&members).for_each(|(_, from)| step.port.ask(Wanted::chunks(from, tag, u32::MAX)));
    }

    /// Bytes of this rank's own frames or payloads.
    fn frame_bytes(&self) -> usize;

    /// Coordinates that this rank sent.
    fn held(&self) -> usize;

    /// Coordinates that all ranks sent; `None` where every rank sends as many.
    fn held_by_all(&self) -> Option<usize> {
        None
    }
}
