//! How the gradients of a step become one mean over the workers.
//!
//! An [`Exchange`] belongs to one rank. [`start`](Exchange::start) encodes and sends;
//! [`finish`](Exchange::finish) receives, decodes and divides. Work that a rank does between the two overlaps
//! with the network.
//!
//! Inside, a step is a machine without I/O: [`begin`](Exchange::begin), [`encode`](Exchange::encode) and
//! [`complete`](Exchange::complete) do its work, [`outgoing`](Machine::outgoing) gives messages to send, and
//! [`receive`](Machine::receive) takes those that arrived. `start` and `finish` drive it over a
//! [`Transport`](crate::Transport). Over another network, write a driver of your own: the example
//! `own_network` is one.
//!
//! | route | codecs | order of the sum | bytes each rank sends |
//! | --- | --- | --- | --- |
//! | [`Route::AllGather`] | all | ranks ascending, coordinates ascending | (N−1)·frame |
//! | [`Route::SparseAllReduce`] | sparse | as all-gather, at the owner of each coordinate | about (N−1)/N·(frame + union of all frames) |
//! | [`Route::AllReduce`] | linear | [`collective::reduce_scatter`](crate::collective::reduce_scatter) | 2(N−1)/N·payload |
//! | [`Route::Tree`] | linear | [`collective::tree_all_reduce`](crate::collective::tree_all_reduce) | payload; at most ⌈log₂N⌉·payload |
//! | [`Route::Owners`] | linear | ranks ascending | 2(N−1)/N·payload |
//! | [`Route::Native`] | linear | chosen by the library | chosen by the library |
//! | [`Route::Server`] | all | ranks ascending at the server; its frame is what all decode | frame; the server (N−1)·downlink |
//! | the same without frames | linear | the server's own, then the others, ranks ascending | payload; the server (N−1)·payload |
//!
//! Around the ring, and by owners, all units travel at the same time. With [`Exchange::pipelined`],
//! encoding, travel and decoding overlap.
//!
//! Frames are added as they are decoded, so the sum takes the same memory for any number of workers. The
//! divisor is the number of workers whose frame entered the sum. A rank decodes its own frame as every other
//! rank does.
//!
//! # What is encoded how
//! A [`Plan`] says it: a spelling, rules by tensor name, or a codec of another crate ([`Plan::of_gather`] by
//! [`Route::AllGather`] and [`Route::Server`], [`Plan::of_linear`] by the routes of sums). The example
//! `own_codec` has a codec in one file. All groups of a plan travel together: a rank sends a peer one message
//! for each part of the step, with a frame for each group. The routes of sums take plans whose codecs are all
//! linear, and sparse all-reduce those with a sparse codec.
//!
//! # Parts that are added
//! By [`Route::AllGather`], [`Route::SparseAllReduce`] and [`Route::Owners`], a step may begin before its
//! gradient is there: [`begin_in_parts`](Exchange::begin_in_parts), then [`add`](Exchange::add) for each
//! part, that is, for some units in any order. Earlier parts travel meanwhile, and the mean of each is there
//! as soon as [`part`](Exchange::part) says so. A rank may lack units of a part, and its caller may say a few
//! bytes with it. Means and memories have the bits of a step in one. A rank sends a peer one message for each
//! part, or for each part and round.
//!
//! # A rank whose caller fails
//! [`fail`](Exchange::fail) tells all other ranks in the same step, with a text: their step fails with
//! [`ExchangeError::Failed`].
//!
//! # Rounds before a frame
//! A codec may let all ranks agree on a few numbers before any of them encodes, for instance on one scale:
//! [`RoundsFirst`](gradwire::rounds::RoundsFirst). By [`Route::AllGather`] every rank then sends its numbers
//! to all others, and [`start`](Exchange::start) waits for theirs. Numbers are reduced in rank order, so all
//! ranks have the same bits. A step that fails in a round has the same consequences as one that fails later:
//! a rank whose gradient is refused makes it void, and its own memory stays as it was. The others keep
//! residual + gradient unless steps that fail are undone. Other routes refuse such a codec by name.
//!
//! # A server's own codec and state
//! The server encodes the mean with [`ServerOptions::downlink`], with error feedback if that spelling has it.
//! Or it uses the codec of [`Exchange::with_downlink`] and its memory, which may have named arrays. The
//! server applies the mean that it sent. For the server too, sent + kept = residual + mean: bit for bit, or
//! by the law of the codec. Save [`Exchange::downlink_memory`] with a checkpoint.
//!
//! # A server of payloads
//! Some linear codecs have rounds and no frames (`powersgd`, `sharedk`, `maxnorm` with two scales or a
//! density). A server then reduces their payloads: in each round every worker sends it one message, and it
//! answers with the reductions. Nothing is decoded on the way, so there is no downlink, no norm cap and no
//! mean over senders. The sums need every member, whatever the quorum: without one, the step fails at all
//! ranks with [`NoQuorum`](ExchangeError::NoQuorum), and with [`WrongUnits`](ExchangeError::WrongUnits) at
//! the server if a payload has another length. A rank that misses the answer of the last round has no mean,
//! as with frames.
//!
//! # Packets
//! With `max_packet_bytes`, a worker of [`Route::Server`] sends its gradient as packets that may be lost
//! ([`send_packet`](crate::Transport::send_packet)). A lost packet loses a range, not the step. Each
//! coordinate of the mean is divided by the number of workers whose packet with that coordinate arrived. The
//! server's answer tells each worker which of its packets did not arrive. On other routes no rank could tell
//! all others.
//!
//! # Void steps
//! If a rank cannot encode its gradient, because it is not finite, it says so in the same step. Every other
//! rank's step fails with [`ExchangeError::Void`], which names the rank and the coordinate.
//!
//! | route | how the others learn of it |
//! | --- | --- |
//! | frames | a [void frame](gradwire::format::VoidFrame) takes the place of the rank's frame |
//! | payloads | the void frame is a message of its own, which the others see while they wait |
//! | server | a server that has a quorum without that rank continues; otherwise the error is [`ExchangeError::NoQuorum`], which also names rank and coordinate |
//! | [`Route::Native`] | as with payloads: all ranks wait for each other before they enter the library |
//!
//! | | the rank itself | all others |
//! | --- | --- | --- |
//! | by default | the memory is as it was; in [several parts](Exchange::pipelined), what was encoded before is given back | everything is given back: the residual is fl(residual + gradient), momentum and states are as the encode left them |
//! | [`Exchange::undoing`] | the memory is as it was | the memory is as it was |
//!
//! So by default, error feedback keeps the gradients of the other ranks, and a later step sends them. With
//! the option they are dropped, and so is the gradient of a step that fails in any other way. This suits
//! trainers that skip a step whose loss was scaled too far.
//!
//! # The end of a step
//! Over a transport that is [fail-stop](crate::Transport::is_fail_stop), a step of all-gather, sparse
//! all-reduce or all-reduce can fail at one rank and succeed at another only if a rank is about to end the
//! job, or if a deadline passes in between. Over any other transport, such as ZeroMQ, all ranks vote at the
//! end of a step: each says whether it has the mean, and no rank uses the mean unless all have it. So if a
//! frame reached some ranks and not others, all ranks undo the step. This costs two messages of two bytes to
//! each peer a step, and the wait for one of them: one latency. Frames must arrive within three quarters of
//! the time that [`finish`](Exchange::finish) is given.
//!
//! | at a rank, [`finish`](Exchange::finish) gives | then at all others the step |
//! | --- | --- |
//! | `Ok` | is `Ok`, or `Undecided` |
//! | [`Undecided`](ExchangeError::Undecided) | may be anything |
//! | any other error, or an error of [`start`](Exchange::start) | failed |
//!
//! `Undecided` cannot be avoided entirely, because the sender of a last message cannot know that it arrives.
//! It happens only if all frames arrived, then another rank's vote was lost, and then also every message of
//! those ranks that have that vote. With three ranks or more, no single broken connection causes it, wherever
//! in the step it breaks. With two ranks, a connection that breaks between the frame and the vote does. A
//! rank that leaves in between counts as a lost vote. A rank that gets `Undecided` has undone the step; it
//! must fetch the parameters anew or leave. With a server, one rank decides: see
//! [`Transport`](ExchangeError::Transport).
//!
//! # Versions
//! Every message ends with a byte that has the version of these messages, except for packets, which follow a
//! message that has it. Ranks of two versions refuse each other by name, with
//! [`OtherVersion`](ExchangeError::OtherVersion), before they read anything else. A server refuses the frame
//! of such a worker as any that it cannot read, so that no worker can fail the steps of all; without a quorum
//! it names the version.
//!
//! # Conservation
//! Whatever the mean does not include goes back to the sender's `Memory`: the gradient of a step that
//! failed, or a frame or packet that was lost, that the server refused, or that it did not wait for. With a
//! norm cap, off by default, a server scales down frames whose norm is too large. What it cuts off is lost,
//! and [`Report::capped`] says whose it was and how much. So every part of a gradient was applied, is kept,
//! or was reported as lost.

mod all_gather;
mod all_reduce;
mod choice;
mod downlink;
pub(crate) mod driven;
mod ending;
mod entry;
mod error;
mod fit;
mod frames;
mod head;
mod in_parts;
mod incoming;
mod intake;
mod machine;
mod making;
mod means;
mod measure;
mod message;
mod norm_cap;
mod own;
mod owners;
mod packet_set;
mod packets;
mod part_route;
mod parts;
mod payload;
mod pipeline;
pub(crate) mod port;
mod refusal;
mod report;
mod rounds_first;
mod route;
mod senders;
mod served;
mod server;
mod settings;
mod sparse;
mod step;
mod typed;
mod typed_adding;
mod verdict;
mod version;
pub(crate) mod void;
mod vote;

use gradwire::format::Divisor;
use gradwire::plan::Plan;
use gradwire::state::Snapshot;
use gradwire::{Layout, StepKey};

use crate::inbox::InboxLimits;
use crate::tag::Tag;

use self::all_gather::AllGather;
use self::all_reduce::AllReduce;
pub use self::driven::Machine;
pub use self::error::ExchangeError;
use self::fit::Kind;
pub use self::machine::{Outgoing, Setting};
pub use self::means::Means;
use self::measure::Measure;
pub use self::norm_cap::Capped;
use self::owners::Owners;
pub use self::parts::{NewPart, PartState};
use self::pipeline::Pipeline;
pub use self::port::Care;
use self::port::Port;
pub use self::refusal::Refusal;
use self::report::Clock;
pub use self::report::{PacketTally, Progress, Report, Work};
pub use self::route::{Route, ServerOptions};
use self::server::Server;
use self::sparse::SparseAllReduce;
pub use self::typed::{Completing, Drive, Encoded, Encoding, Next, Step};
pub use self::typed_adding::Adding;

/// One rank's part of every step's exchange: settings, and buffers that are reused from step to step.
///
/// # Examples
/// Two ranks; each sends half of its coordinates and keeps the rest back.
/// ```
/// use std::thread;
///
/// use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
/// use gradwire_transports::exchange::{Exchange, Route};
/// use gradwire_transports::{Deadline, Transport, local};
///
/// let spec = Spec::parse("topk:density=0.5").unwrap();
/// let layout = Layout::packed([("w", vec![4])]).unwrap();
/// let grads = [[1.0, 8.0, 0.5, -6.0], [4.0, 2.0, 0.25, -8.0]];
/// let ranks: Vec<_> = local::world(2)
///     .into_iter()
///     .map(|mut end| {
///         let (layout, rank) = (layout.clone(), end.rank().0);
///         thread::spawn(move || {
///             let mut memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
///             let mut exchange = Exchange::new(spec, layout, Route::AllGather).unwrap();
///             let (key, mut mean) = (StepKey { seed: 1, step: 0, source: Source::Rank(rank) }, [0.0; 4]);
///             let (grad, by) = (Grad::F32(&grads[rank as usize]), Deadline::NEVER);
///             exchange.start(&mut end, key, grad, Some(&mut memory), by).unwrap();
///             exchange.finish(&mut end, &mut mean, Some(&mut memory), by).unwrap();
///             (mean, memory.residual().to_vec())
///         })
///     })
///     .collect();
/// let kept = [[1.0, 0.0, 0.5, 0.0], [0.0, 2.0, 0.25, 0.0]];
/// for (rank, kept) in ranks.into_iter().zip(kept) {
///     assert_eq!(rank.join().unwrap(), ([2.0, 4.0, 0.0, -7.0], kept.to_vec()));
/// }
/// ```
#[derive(Debug)]
pub struct Exchange {
    plan: Plan,
    layout: Layout,
    route: State,
    divisor: Divisor,
    port: Port,
    /// The memory before the step, if steps that fail are undone.
    before: Option<Snapshot>,
    /// The arrays of linear codecs before the step, if there are any.
    arrays: Option<Snapshot>,
    started: Option<Started>,
    /// The number of the next step in tags, if it is not the step itself.
    number: Option<u64>,
    clock: Clock,
    /// Measures gains, if that was requested.
    measure: Option<Measure>,
}

#[derive(Debug)]
enum State {
    AllGather(Box<Pipeline<AllGather>>),
    SparseAllReduce(Box<Pipeline<SparseAllReduce>>),
    AllReduce(Box<Pipeline<AllReduce>>),
    Owners(Box<Pipeline<Owners>>),
    Server(Box<Server>),
}

/// A step that has begun.
#[derive(Clone, Copy, Debug)]
struct Started {
    key: StepKey,
    tag: Tag,
    /// Whether all parts are encoded.
    is_encoded: bool,
    /// Whether the mean was asked for.
    is_finishing: bool,
}

/// Messages of each sender that may wait here before anybody has asked for them: as much as a rank of
/// [`local`](crate::local) stores.
pub(crate) const EARLY: InboxLimits = InboxLimits { messages: 4096, bytes: 1 << 30 };

impl State {
    fn kind(&self) -> Kind {
        match self {
            Self::AllGather(_) => Kind::Frames,
            Self::SparseAllReduce(_) => Kind::SparseFrames,
            Self::AllReduce(_) | Self::Owners(_) => Kind::Sums,
            Self::Server(server) => server.kind(),
        }
    }
}
