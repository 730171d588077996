//! Processes that `mpirun` has started as ranks, over the MPI library of the machine.
//!
//! In each process, one thread (the communication thread) starts MPI and makes all its calls
//! (`MPI_THREAD_FUNNELED` is enough). Messages move while the caller computes. They are tagged, bounded and
//! counted as on every transport. MPI's own tags are too narrow, so the tag travels after the payload. Sums
//! use the ring of [`collective`](crate::collective), in its written order;
//! [`native_all_reduce`](crate::Transport::native_all_reduce) is the library's own.
//!
//! # Fail-stop
//! A job lives and dies as a whole: a rank can leave it only by [`Transport::close`], which all ranks call at
//! the end.
//!
//! | what happens on one rank | the job ends with |
//! | --- | --- |
//! | a panic, in any thread | [`PANIC_EXIT_CODE`] |
//! | an error that the program hands to [`abort`] | the code that it gives |
//! | its transport is dropped without `close` | [`DROPPED_EXIT_CODE`] |
//! | it stops answering, because it is stopped or hangs | [`WATCHDOG_EXIT_CODE`], after [`MpiOptions::patience`] |
//! | it is killed, or calls `exit` | what the launcher makes of it, never 0: with glibc, `exit(0)` becomes [`DROPPED_EXIT_CODE`] |
//!
//! If a deadline of the caller passes, the call returns an error as on every transport, and the job
//! continues. The watchdog ends the job if a wait lasts longer than [`MpiOptions::patience`]. So the patience
//! must exceed the longest time for which a healthy rank lets the others wait. After a failure, start the job
//! again.
//!
//! # Memory
//! For each sender a rank stores what [`InboxLimits`](crate::inbox::InboxLimits) allow and one more message,
//! and as much again for each receiver. The library may also hold up to 64 KiB from each sender, and the
//! first parts of messages that wait there, which its protocol sends ahead. A sender copies each message
//! once.
//!
//! # Slow links
//! Over TCP, Open MPI asks before it sends more than 64 KiB. The answer waits behind the data that its sender
//! has already queued on the link, so at 100 Mbit/s a ring can take twice as long. Set the parameters
//! `btl_tcp_eager_limit`, `btl_tcp_rndv_eager_limit` and `btl_tcp_max_send_size` of `mpirun --mca` to
//! 1048576: Open MPI then sends shorter messages at once, from buffers of that size.

mod abort;
mod algorithm;
mod credit;
mod engine;
mod envelope;
mod error;
mod exit_code;
mod hand_over;
mod library;
mod options;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use half::bf16;

pub use self::abort::abort;
pub use self::algorithm::NativeAllReduce;
use self::engine::Engine;
use self::envelope::ENVELOPE_BYTES;
pub use self::error::MpiError;
pub use self::exit_code::{DROPPED_EXIT_CODE, PANIC_EXIT_CODE, WATCHDOG_EXIT_CODE};
use self::hand_over::HandOver;
use self::library::{Library, Loan};
pub use self::options::MpiOptions;
use crate::collective::{self, Buffers, Reduce, Wire, segment};
use crate::counters::{Counters, Traffic};
use crate::error::TransportError;
use crate::mailbox::Mailbox;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

/// This process as a rank of the job.
///
/// Dropping it finalizes MPI, which waits until every rank has closed its transport. See the [module](self)
/// for how a job ends otherwise.
#[derive(Debug)]
pub struct MpiTransport {
    rank: Rank,
    members: Membership,
    max_message_bytes: usize,
    patience: Duration,
    native: NativeAllReduce,
    hand_over: Arc<HandOver>,
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
    counters: Counters,
    /// For native sums over bfloat16.
    narrow: Vec<u16>,
    scratch: Buffers,
    closed: bool,
}

/// What the communication thread reports once MPI is running.
struct Started {
    rank: usize,
    world: usize,
    native: NativeAllReduce,
    hand_over: Arc<HandOver>,
    mailbox: Arc<Mailbox>,
}

impl MpiTransport {
    /// Starts MPI and joins the job, with the ranks of `MPI_COMM_WORLD` in epoch 0. Without a launcher, it is
    /// a job of one rank. From now on a panic in any thread ends the job.
    ///
    /// # Errors
    /// `StartedBefore`, `NoThreads`.
    pub fn start(options: &MpiOptions) -> Result<Self, MpiError> {
        abort::on_panic();
        let (sender, receiver) = channel();
        let (own, patience) = (options.clone(), options.patience);
        let thread = thread::Builder::new()
            .name("mpi".to_owned())
            .spawn(move || communicate(&own, &sender))
            .unwrap_or_else(|error| abort(1, &format!("no thread for MPI: {error}")));
        let Ok(started) = receiver.recv_timeout(patience) else { watchdog(&"MPI did not start", patience) };
        let Started { rank, world, native, hand_over, mailbox } = started?;
        Ok(Self {
            rank: Rank(rank as u32),
            members: Membership { epoch: 0, ranks: RankSet::contiguous(world as u32) },
            max_message_bytes: options.max_message_bytes,
            patience,
            native,
            hand_over,
            mailbox,
            thread: Some(thread),
            counters: Counters::default(),
            narrow: Vec::new(),
            scratch: Buffers::new(),
            closed: false,
        })
    }

    /// What is known about the all-reduce behind [`native_all_reduce`](Transport::native_all_reduce).
    pub fn native(&self) -> &NativeAllReduce {
        &self.native
    }

    /// Leaves the messages of all steps so far behind, those that arrive later too, and numbers steps afresh:
    /// after a step that failed at all ranks, another run begins so. Every rank calls it at the same point.
    pub fn begin_epoch(&mut self) {
        self.members.epoch += 1;
        self.mailbox.retire(Tag::new(self.members.epoch, 0));
    }

    fn ensure_open(&self) -> Result<(), TransportError> {
        if self.closed { Err(TransportError::Closed) } else { Ok(()) }
    }

    /// The place of a peer among the ranks.
    fn peer(&self, rank: Rank) -> Result<usize, TransportError> {
        let member = rank != self.rank && self.members.ranks.contains(rank);
        if member { Ok(rank.0 as usize) } else { Err(TransportError::NotAPeer { rank }) }
    }

    /// Waits until the caller's deadline, but not longer than the patience of the job allows.
    fn watched<R>(
        &self,
        deadline: Deadline,
        wait: impl FnOnce(Deadline) -> Result<R, TransportError>,
    ) -> Result<R, TransportError> {
        let result = wait(deadline.earlier(Deadline::after(self.patience)));
        let waited = matches!(result, Err(TransportError::Timeout { .. } | TransportError::NoRoom { .. }));
        match result {
            Err(error) if waited && !deadline.has_passed() => watchdog(&error, self.patience),
            other => other,
        }
    }

    /// The communication thread works on the slice until it returns it, so this call returns only on success.
    fn sum(&self, loan: Loan, tag: Tag, deadline: Deadline) {
        let patience = deadline.remaining().map_or(self.patience, |left| left.min(self.patience));
        if !self.hand_over.lend(loan, Deadline::after(patience)) {
            watchdog(&format!("native all-reduce not finished ({tag})"), patience);
        }
    }

    /// A library does not report the bytes that it sends. Those of a ring are counted: no algorithm needs
    /// fewer.
    fn count_ring(&mut self, len: usize, element_bytes: usize) {
        let (world, me) = (self.members.world(), self.rank.0 as usize);
        if world == 1 {
            return;
        }
        let elements = |position: usize| segment(len, world, position % world).len();
        let messages = 2 * (world as u64 - 1);
        let traffic = |elements: usize| Traffic {
            messages,
            payload_bytes: (elements * element_bytes) as u64,
            envelope_bytes: 0,
        };
        self.counters.up += traffic(2 * len - elements(me) - elements(me + 1));
        self.counters.down += traffic(2 * len - elements(me + world - 1) - elements(me));
    }
}

/// Runs the communication thread from start to end.
fn communicate(options: &MpiOptions, started: &Sender<Result<Started, MpiError>>) {
    let library = match Library::start(options.piece_bytes, options.prefer_ring) {
        Ok(library) => library,
        Err(error) => return drop(started.send(Err(error))),
    };
    abort::is_communication_thread();
    let (rank, world) = (library.rank(), library.world());
    abort::know_rank(rank as u32);
    let hand_over = Arc::new(HandOver::new(world, options.limits));
    let mailbox = Arc::new(Mailbox::new(world, options.limits));
    let engine = Engine::new(library, Arc::clone(&hand_over), Arc::clone(&mailbox), options);
    let native = NativeAllReduce::of_running_library();
    // If starting took longer than the patience, the caller is gone and the job is already ending.
    let _ = started.send(Ok(Started { rank, world, native, hand_over, mailbox }));
    engine.run();
}

fn watchdog(what: &dyn fmt::Display, patience: Duration) -> ! {
    let seconds = patience.as_secs_f64();
    abort(WATCHDOG_EXIT_CODE, &format!("{what}: a rank has stopped answering for {seconds} s, the job ends"))
}

impl Drop for MpiTransport {
    fn drop(&mut self) {
        if !self.closed {
            abort(DROPPED_EXIT_CODE, &"left the job without closing its transport, the job ends");
        }
        if !self.hand_over.wait_for_end(Deadline::after(self.patience)) {
            watchdog(&"not all ranks have left", self.patience);
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has ended the job.
            let _ = thread.join();
        }
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn membership(&self) -> Membership {
        self.members.clone()
    }

    fn is_fail_stop(&self) -> bool {
        true
    }

    fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// Tag and length. What MPI adds is not counted.
    fn envelope_bytes(&self, _payload_bytes: usize) -> usize {
        ENVELOPE_BYTES
    }

    fn send(&mut self, to: Rank, tag: Tag, payload: &[u8], deadline: Deadline) -> Result<(), TransportError> {
        self.ensure_open()?;
        self.peer(to)?;
        let (bytes, limit) = (payload.len(), self.max_message_bytes);
        if bytes > limit {
            return Err(TransportError::TooLarge { to, tag, bytes, limit });
        }
        self.watched(deadline, |by| self.hand_over.post(to, tag, payload, by))?;
        self.counters.up += Traffic::message(bytes, ENVELOPE_BYTES);
        Ok(())
    }

    fn recv_any(
        &mut self,
        wanted: &[Wanted],
        into: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<(Rank, Tag), TransportError> {
        self.ensure_open()?;
        let mut take = |by| self.mailbox.take(wanted, |rank| self.peer(rank), into, by);
        let taken = match take(Deadline::now()) {
            Err(TransportError::Timeout { .. }) => {
                self.hand_over.while_waiting(|| self.watched(deadline, take))
            }
            taken => taken,
        };
        let found = taken?;
        self.hand_over.let_go();
        self.counters.down += Traffic::message(into.len(), ENVELOPE_BYTES);
        Ok(found)
    }

    /// Makes the communication thread poll at once. It also polls often by itself.
    fn try_progress(&mut self) -> Result<(), TransportError> {
        self.ensure_open()?;
        self.hand_over.nudge();
        Ok(())
    }

    fn retire(&mut self, before: Tag) {
        self.mailbox.retire(before);
    }

    /// # Errors
    /// `Closed`; `NoRoom` with a rank that has not taken everything at the deadline.
    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        self.ensure_open()?;
        self.closed = true;
        self.watched(deadline, |by| self.hand_over.leave(self.rank.0 as usize, by))
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    /// The library makes sums of f32, bfloat16 and i32. The ring makes all others: maxima, because MPI has no
    /// such rules for NaN; and minima, conjunctions, counts of votes and copies, because they are short. The
    /// bytes are counted as those of a ring, because the library does not report the bytes that it sends.
    fn native_all_reduce(
        &mut self,
        tag: Tag,
        data: Reduce<'_>,
        deadline: Deadline,
    ) -> Result<RankSet, TransportError> {
        self.ensure_open()?;
        if tag.epoch != self.members.epoch {
            return Err(TransportError::WrongEpoch { tag, current: self.members.epoch });
        }
        let (len, element_bytes) = (data.len(), data.element_bytes());
        match data {
            Reduce::SumF32(data, Wire::F32) => self.sum(Loan::f32(data), tag, deadline),
            Reduce::SumF32(data, Wire::Bf16) => {
                let mut narrow = std::mem::take(&mut self.narrow);
                narrow.clear();
                narrow.extend(data.iter().map(|x| bf16::from_f32(*x).to_bits()));
                self.sum(Loan::bf16(&mut narrow), tag, deadline);
                data.iter_mut().zip(&narrow).for_each(|(x, bits)| *x = bf16::from_bits(*bits).to_f32());
                self.narrow = narrow;
            }
            Reduce::SumI32(data) => self.sum(Loan::i32(data), tag, deadline),
            exact => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let result = collective::all_reduce(self, tag, exact, &mut scratch, deadline);
                self.scratch = scratch;
                return result;
            }
        }
        self.count_ring(len, element_bytes);
        Ok(self.members.ranks.clone())
    }
}
