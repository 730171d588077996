//! How the two ends are linked: what must be equal at both, and the bounds of what is sent.

use gradwire::{Gather, Spec, Unit};
use gradwire_transports::Rank;
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::zmq::{
    Event, Log, Returns, Roster, Security, Terms, Topology, ZmqLimits, ZmqOptions,
};
use tracing::{info, warn};

use crate::job::Job;
use crate::network::with_settings;

/// The server's rank.
pub(super) const SERVER: Rank = Rank(0);
/// Bound on the bytes that a state takes for one tensor, besides its name.
const STATE_LINE: usize = 256;
/// Bound on the bytes of any other header and of the messages around it.
const SLACK: usize = 64 << 10;

/// Messages that a queue holds, if their bytes find room.
const MESSAGES: usize = 4096;

/// Everything that must be equal at both ends.
fn terms(job: &Job, downlink: &Spec) -> Terms {
    with_settings(Terms::new(&job.layout.as_ref(), &job.spec), job).with("downlink", downlink)
}

/// Bounds from the most that codec, downlink and state can make.
fn limits(job: &Job, downlink: &Spec, may_miss: u32) -> ZmqLimits {
    let units = job.units();
    let bytes = |codec: &dyn Gather, units: &[Unit]| codec.max_frame_bytes(units).unwrap_or(usize::MAX);
    let up = job.plan.groups().iter().map(|group| bytes(group.codec(), &group.units));
    let up = up.fold(0, usize::saturating_add);
    // Parameters and at most two slices of the optimizer, each tensor with a line of its own.
    let lines: usize =
        job.layout.tensors().iter().map(|tensor| tensor.as_ref().name.len() + STATE_LINE).sum();
    let state = job.layout.len().saturating_mul(4).saturating_add(lines).saturating_mul(3);
    let names = job.config.workers * 4;
    let longest = [up, bytes(&downlink.codec, units), state].into_iter().max().unwrap_or(0);
    let max_message_bytes = longest.saturating_add(names + SLACK);
    // The answers of all steps that a worker may miss, and one state, wait for it.
    let answers = may_miss as usize + 3;
    // Packets are full but for the last one of each unit.
    let packets = job.spec.packets.map_or(0, |size| 2 * (longest / size.bytes() + units.len()));
    // While a state is on its way over a slow link, the answers of further steps wait behind it.
    let messages = MESSAGES.max(16 * answers).saturating_add(packets);
    let outbox = InboxLimits { messages, bytes: max_message_bytes.saturating_mul(answers) };
    let inbox = InboxLimits { messages: MESSAGES, bytes: max_message_bytes };
    let limits = ZmqLimits { inbox, outbox, max_message_bytes, ..ZmqLimits::default() };
    match job.spec.packets {
        // A packet is a chunk, however short it is: more of them fill a link.
        Some(_) => ZmqLimits { chunk_bytes: 64 << 10, window: 256, ..limits },
        None => limits,
    }
}

/// Everything that a link of this job is told.
pub(super) fn options(
    job: &Job,
    (rank, roster): (Rank, Roster),
    security: Security,
    (downlink, may_miss): (&Spec, u32),
) -> ZmqOptions {
    let topology = Topology::Star { server: SERVER };
    let mut options = ZmqOptions::new(rank, roster, topology, security, terms(job, downlink));
    options.returns = Returns::AtAnyTime;
    options.limits = limits(job, downlink, may_miss);
    options.log = Log::new(|event| match event {
        Event::Joined { .. } | Event::Resumed { .. } | Event::Listed { .. } => info!("{event}"),
        _ => warn!("{event}"),
    });
    options
}
