//! Joins a machine to any transport: sends what is queued, sleeps until a message comes, hands it in.

use std::time::{Duration, Instant};

use gradwire::{Grad, Memory, Selection, StepKey};

use crate::clock::{at, nanos, now, since_origin};
use crate::collective::Reduce;
use crate::error::TransportError;
use crate::exchange::{Care, Drive, Exchange, ExchangeError, Machine, NewPart, Next, Report, Setting, Work};
use crate::gossip::{Mixed, Mixer};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// How long a message that found no room waits before it is tried again, unless something arrives meanwhile.
/// Each further wait is twice as long, so that a transport which ends a job when a peer stops answering still
/// sees a long wait.
pub const FIRST_RETRY: Duration = Duration::from_millis(1);

impl Exchange {
    /// Encodes `grad` and sends everything that can be sent without waiting for other ranks. It waits for
    /// others only with [rounds before a frame](crate::exchange#rounds-before-a-frame) and in
    /// [several parts](Self::pipelined). The memory is the one that the spelling asks for, as
    /// [`Memory::for_spec`] makes it.
    ///
    /// Every member starts the same steps in the same order, and finishes each before it starts the next.
    ///
    /// # Errors
    /// `Encode` (the memory is then as it was), `Transport` (the memory holds residual + gradient), `Busy`.
    /// With rounds before a frame and in several parts, also the errors of [`finish`](Self::finish) except
    /// `NonFiniteMean`; the memory then holds residual + gradient. In such a round also `NonFinitePayload`.
    ///
    /// # Panics
    /// When `grad` or the memory has another length than the layout.
    pub fn start(
        &mut self,
        transport: &mut dyn Transport,
        key: StepKey,
        grad: Grad<'_>,
        memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        let step = self.step(setting_of(transport), key, grad, memory, now(), nanos(deadline))?;
        retire(transport, key);
        drive(step, transport, deadline).map(drop)
    }

    /// As [`start`](Self::start) with the codec of the [`Selection`] at the density with position `at`, which
    /// it [sets](Self::set_codec) first. Frames or payloads, memory and mean are the same, bit for bit; the
    /// gradient is not read again. The selection was made with this exchange's layout and
    /// [`units`](Self::units), with the key of the step, and with this memory, and was not kept yet.
    ///
    /// # Errors
    /// Those of [`set_codec`](Self::set_codec), and then the memory is as it was; those of
    /// [`start`](Self::start) except for `Encode`: the selection has refused such gradients.
    ///
    /// # Panics
    /// When nothing is selected, when there is no such density, for a selection of other units or another
    /// layout, and with packets, which are cut from the gradient.
    pub fn start_selected(
        &mut self,
        transport: &mut dyn Transport,
        selection: &mut Selection,
        at: usize,
        memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        let (setting, by, key) = (setting_of(transport), nanos(deadline), selection.key());
        let step = self.selected_step(setting, selection, at, memory, now(), by)?;
        key.into_iter().for_each(|key| retire(transport, key));
        drive(step, transport, deadline).map(drop)
    }

    /// Receives, decodes in rank order, and writes the mean over the contributors to `mean`, one element a
    /// coordinate, every one of them finite.
    ///
    /// # Errors
    /// `NotStarted`, `Transport`, `Void`, `Frame`, `WrongStep`, `WrongUnits`, `NonFiniteMean`, `NoQuorum`,
    /// `NoSum`, `Downlink`; `NotGivenBack` with any of them as its cause. The step is then refused: the
    /// memory holds residual + gradient (but see [`ExchangeError::Transport`] for a server that is gone), and
    /// `mean` is unspecified.
    ///
    /// # Panics
    /// When `mean` or the memory has another length than the layout.
    ///
    /// # Determinism
    /// The mean has the same bits at every rank and on every transport, in whatever order messages arrive.
    pub fn finish(
        &mut self,
        transport: &mut dyn Transport,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
        deadline: Deadline,
    ) -> Result<Report, ExchangeError> {
        drive(self.encoded_step(memory)?.complete(mean, nanos(deadline)), transport, deadline)
    }

    /// Begins a step whose parts are [added](Self::add_part) one by one: see
    /// [`begin_in_parts`](Self::begin_in_parts). [`finish`](Self::finish) ends it.
    ///
    /// # Errors
    /// Those of [`begin_in_parts`](Self::begin_in_parts).
    pub fn start_in_parts(
        &mut self,
        transport: &mut dyn Transport,
        key: StepKey,
        memory: Option<&Memory<'_>>,
        deadline: Deadline,
    ) -> Result<(), ExchangeError> {
        self.begin_in_parts(setting_of(transport), key, memory, now(), nanos(deadline))?;
        retire(transport, key);
        Ok(())
    }

    /// [Adds](Self::add) a part, and sends what can be sent at once. Returns its number.
    ///
    /// # Errors
    /// Those of [`add`](Self::add).
    ///
    /// # Panics
    /// As it.
    pub fn add_part(
        &mut self,
        transport: &mut dyn Transport,
        part: &NewPart<'_>,
        grad: Grad<'_>,
        memory: Option<&mut Memory<'_>>,
    ) -> Result<usize, ExchangeError> {
        let start = Instant::now();
        let number = self.add(part, grad, memory, now())?;
        self.spend(Work::Encode, start.elapsed());
        post(self, transport, &mut { FIRST_RETRY });
        Ok(number)
    }

    /// Works on the parts that were added, until the mean of each is in `mean` or that time has come. Returns
    /// whether there is nothing left to do for them. With [`Deadline::now`], it takes what has arrived.
    ///
    /// # Errors
    /// Those of [`advance`](Self::advance).
    ///
    /// # Panics
    /// As it.
    pub fn take_parts(
        &mut self,
        transport: &mut dyn Transport,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
        until: Deadline,
    ) -> Result<bool, ExchangeError> {
        Ok(drive_until(self.adding(mean, memory), transport, until, until)?.is_some())
    }
}

impl Mixer {
    /// Moves `model` towards the models of its neighbours in the current membership.
    ///
    /// # Errors
    /// `Encode` for a model that is not finite, `Void` at its neighbours, `NotAgreed` if a step failed at a
    /// neighbour in another way; `Transport`; `NonFinitePayload`. Model and edges are then as they were. A
    /// neighbour that received everything may still have moved. Then the mean of the models has moved too,
    /// by at most the edge's weight times their difference.
    ///
    /// # Panics
    /// When `model` has another length than the layout.
    pub fn mix(
        &mut self,
        transport: &mut dyn Transport,
        key: StepKey,
        model: &mut [f32],
        deadline: Deadline,
    ) -> Result<Mixed, ExchangeError> {
        let step = self.step(setting_of(transport), key, model, now(), nanos(deadline))?;
        retire(transport, key);
        drive(step, transport, deadline)
    }
}

/// What a step needs to know of the transport.
fn setting_of(transport: &dyn Transport) -> Setting {
    let (rank, membership) = (transport.rank(), transport.membership());
    Setting { rank, membership, is_fail_stop: transport.is_fail_stop() }
}

/// Forgets the messages of the steps before this one.
fn retire(transport: &mut dyn Transport, key: StepKey) {
    transport.retire(Tag::new(transport.membership().epoch, key.step));
}

/// Works until the step is done, which gives up by itself.
fn drive<S: Drive>(
    step: S,
    transport: &mut dyn Transport,
    deadline: Deadline,
) -> Result<S::Done, ExchangeError> {
    drive_until(step, transport, deadline, Deadline::NEVER).map(|done| done.expect("it has no other end"))
}

/// Works until the step is done, or, without anything to do, until that time. Sleeps in
/// [`Transport::recv_any`] while it waits.
fn drive_until<S: Drive>(
    mut step: S,
    transport: &mut dyn Transport,
    deadline: Deadline,
    until: Deadline,
) -> Result<Option<S::Done>, ExchangeError> {
    let (mut mark, mut patience) = (Instant::now(), FIRST_RETRY);
    let mut time = since_origin(mark);
    // Reading the clock takes as long as some pieces of work: it is read once for each.
    let mut spend = |machine: &mut dyn Machine, kind| {
        let spent = std::mem::replace(&mut mark, Instant::now());
        machine.spend(kind, mark - spent);
        since_origin(mark)
    };
    loop {
        if post(step.machine(), transport, &mut patience) {
            time = spend(step.machine(), Work::Exchange);
        }
        let (next, kind) = match step.work(time)? {
            Next::Done(done) => return Ok(Some(done)),
            Next::Worked(step, kind) => (step, kind),
            Next::Waiting(mut step) => {
                let has_come = wait(step.machine(), transport, until, &mut patience);
                if !has_come && until.has_passed() {
                    return Ok(None);
                }
                (step, Work::Exchange)
            }
            Next::Lent(mut step) => {
                let mut sum =
                    |tag, data: Reduce<'_>| transport.native_all_reduce(tag, data, deadline).map(|_| ());
                step.machine().sum_lent(&mut sum);
                (step, Work::Exchange)
            }
        };
        step = next;
        time = spend(step.machine(), kind);
    }
}

/// Sends all of a machine's messages for which there is room. Together with [`wait`], for callers that drive
/// a machine themselves, because they wait for something else beside messages; `patience` begins with
/// [`FIRST_RETRY`]. Returns whether there was anything to send.
pub fn post(machine: &mut dyn Machine, transport: &mut dyn Transport, patience: &mut Duration) -> bool {
    let mut has_any = false;
    while let Some(is_sent) = post_next(machine, transport, Deadline::now) {
        has_any = true;
        if is_sent {
            *patience = FIRST_RETRY;
        }
    }
    has_any
}

/// Sends the next message, waiting for room until the deadline; `None` if nothing is to be sent.
fn post_next(
    machine: &mut dyn Machine,
    transport: &mut dyn Transport,
    by: impl FnOnce() -> Deadline,
) -> Option<bool> {
    let next = machine.outgoing()?;
    let sent = match next.care {
        Care::Packet(until) => transport.send_packet(next.to, next.tag, next.bytes, at(until)),
        _ => transport.send(next.to, next.tag, next.bytes, by()),
    };
    let (id, is_sent) = (next.id, sent.is_ok());
    match sent {
        Ok(()) => machine.sent(id),
        Err(TransportError::NoRoom { .. }) => machine.no_room(id, now()),
        Err(error) => machine.not_sent(id, error),
    }
    Some(is_sent)
}

/// Sleeps until a message comes, until it is time to try again to send, or until a deadline. Returns whether
/// a message came or left.
pub fn wait(
    machine: &mut dyn Machine,
    transport: &mut dyn Transport,
    until: Deadline,
    patience: &mut Duration,
) -> bool {
    let mut until = at(machine.deadline()).earlier(until);
    if machine.is_full() {
        until = until.earlier(Deadline::after(*patience));
        *patience = patience.saturating_mul(2);
    }
    let mut message = machine.lend();
    let wanted = machine.wanted();
    if wanted.is_empty() {
        machine.give(message);
        machine.retry();
        return post_next(machine, transport, || until) == Some(true);
    }
    let received = transport.recv_any(wanted, &mut message, until);
    let has_come = received.is_ok();
    match received {
        Ok((from, tag)) => {
            // It was asked for. A second one counts for nothing.
            let _ = machine.receive(from, tag, message);
        }
        Err(error) => {
            machine.give(message);
            match error {
                TransportError::Timeout { .. } => {}
                TransportError::Disconnected { rank } => machine.not_here(rank),
                error => machine.network_failed(error),
            }
        }
    }
    machine.retry();
    has_come
}
