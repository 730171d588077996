//! The thread of a hook: encodes what Python hands over, exchanges, decodes, and says when it is done. It
//! takes the GIL only to call back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gradwire_transports::exchange::{ExchangeError, Machine, Progress, Work};
use gradwire_transports::{Deadline, FIRST_RETRY, Transport, now, post, wait};
use pyo3::prelude::*;

use super::bucket::{Bucket, Travelling};
use super::kept::Kept;
use super::lane::{Kind, Lane};
use super::lanes::Lanes;
use super::probe;
use super::shared::{Failure, Last, Shared};
use super::step::{Step, raised};

/// How long the last message of a step may take to leave the process.
const FLUSHING: Duration = Duration::from_secs(1);
/// How long a hook that ends waits for its last messages to be delivered, and after a failure.
const LEAVING: Duration = Duration::from_secs(2);
const LEAVING_FAILED: Duration = Duration::from_millis(250);

pub(super) struct Engine {
    pub(super) shared: Arc<Shared>,
    pub(super) transport: Box<dyn Transport>,
    pub(super) lanes: Lanes,
    pub(super) rank: u32,
    pub(super) seed: u64,
    pub(super) timeout: Duration,
    /// Of the parameters that are compared.
    pub(super) names: Vec<String>,
    /// Called after a step, if somebody wants to know; it returns how many elements a dense exchange has
    /// that is to be measured, and is called again with the seconds.
    pub(super) after: Py<PyAny>,
    pub(super) step: Step,
    pub(super) patience: Duration,
}

/// What a turn did.
#[derive(PartialEq)]
enum Turn {
    Worked,
    /// Nothing happens before a message comes.
    Waiting,
    /// There is nothing to wait for but the next bucket.
    Idle,
}

impl Engine {
    pub(super) fn run(mut self) {
        self.patience = FIRST_RETRY;
        while let Some(bucket) = self.shared.next() {
            let mut next = Some(bucket);
            while let Some(bucket) = next {
                self.take(bucket);
                next = self.work();
            }
        }
        self.give_up();
        let leaving = if self.shared.lock().failure.is_some() { LEAVING_FAILED } else { LEAVING };
        // A peer that is gone confirms nothing, and then there is nothing left to do.
        let _ = self.transport.close(Deadline::after(leaving));
        Python::attach(|_| drop((self.step, self.after)));
        self.shared.change(|state| state.has_ended = true);
    }

    /// Works until the next bucket comes, which is returned, or there is nothing to do.
    fn work(&mut self) -> Option<Py<Bucket>> {
        loop {
            let mut state = self.shared.lock();
            if state.is_closed || state.under_way.is_broken_off {
                drop(state);
                self.give_up();
                return None;
            }
            if let Some(bucket) = state.work.queue.pop_front() {
                return Some(bucket);
            }
            drop(state);
            match self.turn() {
                Ok(Turn::Worked) => {}
                Ok(Turn::Waiting) => self.wait(),
                Ok(Turn::Idle) => return None,
                Err(failure) => self.fail(failure),
            }
        }
    }

    pub(super) fn wait(&mut self) {
        let began = Instant::now();
        let _traced = self.step.buckets.front().and_then(|bucket| bucket.trace("gradwire.exchange"));
        wait(&mut self.lanes, &mut *self.transport, Deadline::NEVER, &mut self.patience);
        self.shared.spend(Work::Exchange, began);
    }

    pub(super) fn post(&mut self) {
        post(&mut self.lanes, &mut *self.transport, &mut self.patience);
    }

    /// Takes a bucket: begins the step with the first one, and adds it.
    fn take(&mut self, bucket: Py<Bucket>) {
        let travelling = Python::attach(|py| Travelling::of(py, bucket));
        if self.shared.is_over() {
            self.resolve(vec![travelling]);
            return;
        }
        let (index, began) = (travelling.index, Instant::now());
        let opened = if index == 0 { self.open(&travelling) } else { Ok(()) };
        self.step.buckets.push_back(travelling);
        let added = opened.and_then(|()| self.add());
        self.shared.spend(Work::Encode, began);
        self.post();
        if let Err(failure) = added {
            self.fail(failure);
        }
    }

    /// One piece of work of each lane, and whatever became complete by it.
    fn turn(&mut self) -> Result<Turn, Failure> {
        self.post();
        self.renew();
        self.step.compare(&self.lanes, self.rank)?;
        let mut turn = Turn::Idle;
        for at in self.lanes.active.clone() {
            let began = Instant::now();
            let progress = self.advance(at).map_err(|error| self.step.named(self.rank, error, Vec::new()))?;
            self.lanes.all[at].is_waiting = matches!(progress, Progress::Waiting | Progress::Lent);
            match progress {
                Progress::Worked(work) => {
                    self.shared.spend(work, began);
                    turn = Turn::Worked;
                }
                Progress::Waiting | Progress::Lent if turn == Turn::Idle => turn = Turn::Waiting,
                _ => {}
            }
        }
        if self.conclude()? {
            return Ok(Turn::Worked);
        }
        if turn == Turn::Idle && Machine::outgoing(&self.lanes).is_some() {
            turn = Turn::Waiting;
        }
        Ok(turn)
    }

    fn advance(&mut self, at: usize) -> Result<Progress<()>, ExchangeError> {
        let Lane { machine, places, kind, .. } = &mut self.lanes.all[at];
        if *kind != Kind::Sums {
            return machine.advance_apart(places, None, now());
        }
        let mut kept = self.shared.kept();
        if self.shared.lock().under_way.is_broken_off {
            return Ok(Progress::Waiting);
        }
        let memory = kept[at].as_mut().map(|kept| kept.both().1);
        machine.advance_apart(places, memory, now())
    }

    // --- the end of a step ---------------------------------------------------------------------------------

    /// All buckets are means here: asks whether they are at all ranks.
    pub(super) fn agree(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let by = now().saturating_add(nanos(self.timeout) / 3 * 4);
        while !self.lanes.active().all(|(_, lane)| lane.is_done) {
            if self.shared.is_over() {
                return Err(Failure::Other(format!("step {}: it was broken off", self.step.step)));
            }
            self.post();
            self.renew();
            let mut is_waiting = true;
            for at in self.lanes.active.clone() {
                let lane = &mut self.lanes.all[at];
                if lane.is_done {
                    continue;
                }
                lane.is_waiting = true;
                match lane.machine.complete_apart(&mut lane.places, None, now(), by) {
                    Ok(Progress::Done(report)) => {
                        (lane.is_done, lane.is_waiting, is_waiting) = (true, false, false);
                        let held = lane.machine.held_by_all().unwrap_or(report.held * self.lanes.world);
                        let totals = &mut self.shared.lock().totals;
                        totals.frame_bytes += report.frame_bytes as u64;
                        totals.held += held as u64;
                    }
                    Ok(Progress::Worked(_)) => is_waiting = false,
                    Ok(_) => {}
                    Err(error) => return Err(self.step.named(self.rank, error, Vec::new())),
                }
            }
            if is_waiting {
                wait(&mut self.lanes, &mut *self.transport, Deadline::NEVER, &mut self.patience);
            }
        }
        // If this process ends now, the others still hear that it has the means.
        self.shared.flush(FLUSHING);
        self.shared.spend(Work::Exchange, began);
        self.hold()
    }

    /// From here on the step holds, unless it came to nothing.
    fn hold(&mut self) -> Result<(), Failure> {
        let mut kept = self.shared.kept();
        let state = &mut *self.shared.lock();
        if state.under_way.is_broken_off {
            return Err(Failure::Other(format!("step {}: it was broken off", self.step.step)));
        }
        if self.step.is_bad {
            state.totals.skipped += 1;
            self.shared.undo(&mut kept, state);
        } else {
            state.under_way.lanes.iter().for_each(|at| kept[*at].iter_mut().for_each(Kept::hold));
        }
        state.at.last = if self.step.is_bad { Last::Void } else { Last::Holds };
        (state.under_way.has_begun, state.under_way.is_any) = (false, false);
        state.at.step += 1;
        state.totals.done += 1;
        (state.totals.sent, state.totals.received) = (self.lanes.sent, self.lanes.received);
        state.totals.messages = self.lanes.messages;
        Ok(())
    }

    /// Work that backward does not wait for.
    pub(super) fn end_step(&mut self) {
        let step = self.step.step;
        for kept in self.shared.kept().iter_mut().flatten() {
            kept.end_step();
        }
        let wanted =
            Python::attach(|py| self.after.call1(py, (step, None::<f64>))?.extract::<Option<usize>>(py));
        match wanted {
            Ok(None) => {}
            Ok(Some(count)) => {
                let (number, by) = (self.lanes.next_number(), Deadline::after(self.timeout));
                match probe::dense_seconds(&mut *self.transport, number, count, by) {
                    Ok(seconds) => Python::attach(|py| drop(self.after.call1(py, (step, seconds)))),
                    Err(error) => {
                        let failure = self.step.named(self.rank, error.into(), Vec::new());
                        self.fail(failure);
                    }
                }
            }
            Err(error) => {
                let failure = Python::attach(|py| raised(py, error));
                self.shared.change(|state| {
                    state.failure.get_or_insert(failure);
                });
            }
        }
        self.shared.change(|state| state.work.pending -= 1);
    }

    /// Nobody waits any longer.
    fn give_up(&mut self) {
        self.lanes.abandon();
        self.resolve_all();
        // Nobody waits for the state with the GIL, nor for the GIL with the state.
        let queue = std::mem::take(&mut self.shared.lock().work.queue);
        let left: Vec<Travelling> =
            Python::attach(|py| queue.into_iter().map(|bucket| Travelling::of(py, bucket)).collect());
        self.resolve(left);
    }

    pub(super) fn resolve_all(&mut self) {
        let buckets = std::mem::take(&mut self.step.buckets);
        self.resolve(buckets.into());
    }

    /// The gradients of these buckets will never be means.
    fn resolve(&mut self, buckets: Vec<Travelling>) {
        let count = buckets.len();
        for bucket in &buckets {
            for (lane, tensors, _) in &bucket.shares {
                self.lanes.all[*lane].forget(tensors);
            }
        }
        Python::attach(|py| {
            for bucket in buckets {
                // What it raises has nowhere to go.
                let _ = bucket.done(py, &[]);
            }
        });
        self.shared.change(|state| {
            state.work.unresolved -= count;
            state.work.pending -= count;
            state.work.moved = Instant::now();
        });
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
