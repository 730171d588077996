//! What becomes of a step that fails: who is told, and what it is called.

use std::time::Duration;

use gradwire_transports::exchange::{ExchangeError, Progress};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, nanos, now, wait};
use pyo3::prelude::*;

use super::engine::Engine;
use super::shared::Failure;
use super::step::Step;

/// How long other ranks are told of a failure.
const TELLING: Duration = Duration::from_secs(2);
/// How long a rank that fails waits for the others to come to the step. Until then they may need its process:
/// in DDP's `join` and for its buffers, they wait for each other in the process group.
const COMING: Duration = Duration::from_secs(5);
/// The unit in the tag of what ranks say then. No gradient has it; the exchange uses the two after it.
const HEARD: u32 = u32::MAX - 2;

impl Engine {
    /// A part is void: why.
    pub(super) fn verdict(&mut self, at: usize) -> Failure {
        let missing = self.lanes.all[at].machine.missing().iter().map(|rank| rank.0).collect();
        match self.complete_failed(&[at]) {
            Some(error) => self.step.named(self.rank, error, missing),
            None => Failure::Other(format!("step {}: it failed without a reason", self.step.step)),
        }
    }

    /// Completes lanes whose step has failed, so that all others are told. Returns the first error.
    fn complete_failed(&mut self, lanes: &[usize]) -> Option<ExchangeError> {
        let by = Deadline::after(TELLING);
        let mut first = None;
        let mut left = lanes.to_vec();
        while !left.is_empty() && !by.has_passed() {
            self.post();
            let mut is_waiting = true;
            left.retain(|at| {
                let lane = &mut self.lanes.all[*at];
                let until = nanos(by);
                match lane.machine.complete_apart(&mut lane.places, None, now(), until) {
                    Ok(Progress::Worked(_)) => is_waiting = false,
                    Ok(Progress::Waiting | Progress::Lent) => lane.is_waiting = true,
                    Ok(Progress::Done(_)) | Err(ExchangeError::NotStarted) => return false,
                    Err(error) => {
                        first.get_or_insert(error);
                        return false;
                    }
                }
                true
            });
            if is_waiting && !left.is_empty() {
                wait(&mut self.lanes, &mut *self.transport, by, &mut self.patience);
            }
        }
        first
    }

    /// Tells the others, if it is this rank that fails, and returns to the state that the step began with.
    pub(super) fn fail(&mut self, failure: Failure) {
        let told = failure.told_by(self.rank);
        if let Some(text) = &told {
            let active = self.lanes.active.clone();
            active.iter().for_each(|at| self.lanes.all[*at].machine.fail(text));
            self.complete_failed(&active);
        }
        self.meet(told.is_some());
        if told.is_some() {
            // Python may end this process as soon as it knows.
            self.shared.flush(TELLING);
        }
        self.lanes.abandon();
        let mut kept = self.shared.kept();
        self.shared.change(|state| {
            self.shared.undo(&mut kept, state);
            state.failure.get_or_insert(failure);
        });
        drop(kept);
        self.resolve_all();
    }

    /// Says that this rank is at a step that has failed. If it is this one that fails, waits until the others
    /// have said it too.
    fn meet(&mut self, waits: bool) {
        let members = Transport::membership(&*self.transport);
        let tag = Tag::new(members.epoch, self.lanes.number()).unit(HEARD);
        let others: Vec<Rank> = members.ranks.iter().filter(|rank| rank.0 != self.rank).collect();
        for to in &others {
            // Whoever is gone needs to hear of nothing.
            let _ = self.transport.send(*to, tag, &[], Deadline::now());
        }
        let (by, mut said) = (Deadline::after(COMING.min(self.timeout)), Vec::new());
        for from in others.iter().filter(|_| waits) {
            // The wait also ends for a bucket that was handed over.
            while let Err(TransportError::Timeout { .. }) = self.transport.recv(*from, tag, &mut said, by)
                && !by.has_passed()
                && !self.shared.is_over()
            {}
        }
    }
}

impl Step {
    /// What an error of an exchange in this step is to the ranks.
    pub(super) fn named(&self, own: u32, error: ExchangeError, missing: Vec<u32>) -> Failure {
        let bucket = self.buckets.front().map_or(0, |bucket| bucket.index);
        let lost = |ranks: Vec<u32>, text: String| {
            let ranks = ranks.into_iter().filter(|rank| *rank != own).collect();
            Failure::Lost { ranks, bucket, text }
        };
        match error {
            ExchangeError::Failed { rank, text } if rank.0 != own => {
                let kind = text.chars().next().unwrap_or('E');
                Failure::Told { kind, rank: rank.0, text: text.chars().skip(1).collect() }
            }
            ExchangeError::Transport(error @ TransportError::Timeout { .. }) if !missing.is_empty() => {
                lost(missing, error.to_string())
            }
            ExchangeError::Transport(error) if error.peer().is_some() => {
                lost(error.peer().iter().map(|rank| rank.0).collect(), error.to_string())
            }
            ExchangeError::NotAgreed { rank } | ExchangeError::Undecided { missing: rank } => {
                lost(vec![rank.0], error.to_string())
            }
            error => Failure::Other(format!("step {}, bucket {bucket}: {error}", self.step)),
        }
    }
}

impl Failure {
    /// What the others hear of it if it is that of this rank; `None` if they know of it.
    fn told_by(&self, own: u32) -> Option<String> {
        match self {
            Failure::Raised(error) => Some(Python::attach(|py| {
                let error = error.bind(py);
                let name = error.get_type().name().map_or_else(|_| String::new(), |name| name.to_string());
                format!("E{name}: {}", error.str().map_or_else(|_| String::new(), |text| text.to_string()))
            })),
            Failure::Told { kind, rank, text } if *rank == own => Some(format!("{kind}{text}")),
            Failure::Other(text) => Some(format!("EExchangeError: {text}")),
            Failure::Told { .. } | Failure::Lost { .. } => None,
        }
    }
}
