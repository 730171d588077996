//! What a dense exchange takes on this link.

use std::time::Instant;

use gradwire_transports::collective::{Buffers, Endpoint, Reduce, Wire, all_reduce};
use gradwire_transports::{Deadline, Membership, Rank, Tag, Transport, TransportError};

/// At most so many elements are sent.
const MOST: usize = 1 << 19;
/// A few more give what a message takes whatever its length.
const LESS: usize = 32;
const TIMES: u32 = 3;

/// Seconds that a ring over all ranks takes for so many float32, from two of at most 2 MiB. All ranks call it
/// together, with a number that no step has.
pub(super) fn dense_seconds(
    transport: &mut dyn Transport,
    number: u64,
    count: usize,
    deadline: Deadline,
) -> Result<f64, TransportError> {
    let (some, few) = (count.min(MOST), count.min(MOST / LESS));
    let tag = Tag::new(Transport::membership(transport).epoch, number);
    let long = shortest(transport, tag, some, deadline)?;
    let short = shortest(transport, tag.unit(1), few, deadline)?;
    if some == few {
        return Ok(long);
    }
    Ok(short + (long - short).max(0.0) * (count - few) as f64 / (some - few) as f64)
}

/// A transport whose waits nobody ends: another bucket may come meanwhile.
struct Undisturbed<'a>(&'a mut dyn Transport);

impl Endpoint for Undisturbed<'_> {
    fn rank(&self) -> Rank {
        Transport::rank(self.0)
    }

    fn membership(&self) -> Membership {
        Transport::membership(self.0)
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        Transport::send(self.0, to, tag, payload, deadline)
    }

    fn recv(
        &mut self,
        from: Rank,
        tag: Tag,
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        loop {
            match Transport::recv(self.0, from, tag, into, deadline) {
                Err(TransportError::Timeout { .. }) if !deadline.has_passed() => {}
                received => return received,
            }
        }
    }
}

/// The shortest of three, as ranks come to the first at different times.
fn shortest(
    transport: &mut dyn Transport,
    tag: Tag,
    count: usize,
    deadline: Deadline,
) -> Result<f64, TransportError> {
    let (mut values, mut buffers, mut least) = (vec![0.0; count], Buffers::new(), f64::INFINITY);
    for chunk in 0..TIMES {
        let began = Instant::now();
        let sum = Reduce::SumF32(&mut values, Wire::F32);
        all_reduce(&mut Undisturbed(transport), tag.chunk(chunk), sum, &mut buffers, deadline)?;
        least = least.min(began.elapsed().as_secs_f64());
    }
    Ok(least)
}
