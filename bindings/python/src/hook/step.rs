//! A step under way: how it begins, how buckets join it, and how they become means.

use std::collections::VecDeque;
use std::time::Instant;

use gradwire_transports::exchange::{ExchangeError, Machine, PartState, Setting, Work};
use gradwire_transports::{Rank, Tag, now};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::bucket::Travelling;
use super::engine::{Engine, nanos};
use super::lane::Lane;
use super::lanes::Lanes;
use super::says::{Says, difference, listed, other_parameters, union};
use super::shared::Failure;
use crate::errors;
use crate::names::{EncodeError, Source, StepKey};

/// Hashes that travel with a bucket; with more parameters, neighbours share one.
const MOST_HASHES: usize = 2048;

#[derive(Default)]
pub(super) struct Step {
    /// Those that are no means yet.
    pub(super) buckets: VecDeque<Travelling>,
    pub(super) step: u64,
    /// The bucket that comes next.
    expected: u32,
    /// Whether a gradient or a mean is not finite, so that the step comes to nothing.
    pub(super) is_bad: bool,
}

impl Step {
    /// Compares what ranks said of the parts under way, before anything of it is read.
    pub(super) fn compare(&self, lanes: &Lanes, rank: u32) -> Result<(), Failure> {
        for (lane, _, part) in self.buckets.iter().flat_map(|bucket| &bucket.shares) {
            let Some(said) = part.and_then(|part| lanes.all[*lane].said.get(part)) else { continue };
            let Some(own) = &said[rank as usize] else { continue };
            if let Some(text) = difference(own, said) {
                return Err(Failure::Told { kind: 'O', rank, text });
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Begins a step with its first bucket. One that was under way is forgotten, as at all ranks.
    pub(super) fn open(&mut self, bucket: &Travelling) -> Result<(), Failure> {
        self.lanes.abandon();
        self.resolve_all();
        let opening = Python::attach(|py| bucket.bucket.borrow_mut(py).opening.take());
        let Some(opening) = opening else {
            return Err(Failure::Other("a step without an opening".to_owned()));
        };
        let step = self.shared.begin_step(&opening);
        self.lanes.set_codecs(&opening);
        (self.step.step, self.step.expected, self.step.is_bad) = (step, 0, false);
        let number = self.lanes.next_number();
        let members = self.transport.membership();
        let key = StepKey { seed: self.seed, step, source: Source::Rank(self.rank) };
        let by = now().saturating_add(nanos(self.timeout));
        self.lanes.active.clone_from(&opening.lanes);
        self.lanes.free_others();
        for at in &opening.lanes {
            let lane = &mut self.lanes.all[*at];
            lane.begin_step();
            let setting = Setting { rank: Rank(self.rank), membership: members.clone(), is_fail_stop: true };
            lane.machine.number(number + *at as u64);
            let begun = lane.machine.begin_in_parts(setting, key, None, now(), by);
            begun.map_err(|error| Failure::Other(error.to_string()))?;
        }
        self.transport.retire(Tag::new(members.epoch, number));
        Ok(())
    }

    /// Adds the bucket that came last.
    pub(super) fn add(&mut self) -> Result<(), Failure> {
        let Some(mut bucket) = self.step.buckets.pop_back() else { return Ok(()) };
        let located = Python::attach(|py| {
            let failure = bucket.bucket.borrow_mut(py).failure.take();
            match failure {
                Some(failure) => Err(Failure::Raised(failure)),
                None => bucket.locate(py).map_err(|error| raised(py, error)),
            }
        });
        let added = located.and_then(|parameters| {
            if bucket.index == self.step.expected {
                self.step.expected += 1;
                return self.encode(&mut bucket, &parameters);
            }
            let text = format!("DDP gave bucket {}, expected {}", bucket.index, self.step.expected);
            Err(Python::attach(|py| raised(py, PyRuntimeError::new_err(text))))
        });
        self.step.buckets.push_back(bucket);
        added
    }

    fn encode(&mut self, bucket: &mut Travelling, parameters: &[(usize, usize)]) -> Result<(), Failure> {
        let _traced = bucket.trace("gradwire.encode");
        let (agreed, used) = Python::attach(|py| {
            let mut content = bucket.bucket.borrow_mut(py);
            (content.agreed, std::mem::take(&mut content.used))
        });
        let (step, is_broken, index) = (self.step.step, false, bucket.index);
        let hashes = hashes_of(parameters);
        let mut says = Says { is_broken, bucket: index, step, agreed, used, hashes };
        let by = now().saturating_add(nanos(self.timeout));
        for at in 0..bucket.shares.len() {
            let (lane, tensors, part) = &mut bucket.shares[at];
            let lane_number = *lane;
            let lane: &mut Lane = &mut self.lanes.all[lane_number];
            let mut kept = self.shared.kept();
            if self.shared.lock().under_way.is_broken_off {
                return Ok(());
            }
            let lacks_all = says.is_broken || self.step.is_bad;
            let mut added = lane.add(tensors, lacks_all, &says.write(), kept[lane_number].as_mut(), now());
            if let Err(ExchangeError::Encode(
                EncodeError::NonFiniteInput { .. } | EncodeError::ValueOverflow { .. },
            )) = added
            {
                says.is_broken = true;
                added = lane.add(tensors, true, &says.write(), kept[lane_number].as_mut(), now());
            }
            drop(kept);
            match added {
                Ok(number) => {
                    *part = Some(number);
                    lane.note(number, self.rank as usize, self.lanes.world, says.clone());
                    lane.machine.wait_until(by);
                }
                Err(error) => return Err(Python::attach(|py| raised(py, errors::exchange(error)))),
            }
        }
        bucket.is_broken = says.is_broken;
        Ok(())
    }

    /// Ranks wait for each other from when anything last moved between them: on a slow link a bucket takes
    /// its time.
    pub(super) fn renew(&mut self) {
        let Some(moved) = self.shared.moved() else { return };
        let by = now().saturating_add(nanos(self.timeout.saturating_sub(moved.elapsed())));
        for (_, lane) in self.lanes.active() {
            if by > Machine::deadline(&lane.machine) {
                lane.machine.wait_until(by);
            }
        }
        let work = &mut self.shared.lock().work;
        work.moved = work.moved.max(moved);
    }

    /// Buckets whose parts are complete become means, in their order. Returns whether there was one.
    pub(super) fn conclude(&mut self) -> Result<bool, Failure> {
        let mut has_any = false;
        while let Some(bucket) = self.step.buckets.front() {
            let state = |(lane, _, part): &(usize, _, Option<usize>)| {
                (*lane, part.map_or(PartState::Travelling, |part| self.lanes.all[*lane].state(part)))
            };
            let states: Vec<_> = bucket.shares.iter().map(state).collect();
            if let Some((lane, _)) = states.iter().find(|(_, state)| *state == PartState::Void) {
                // First it has to hear what others say of it.
                if self.lanes.all[*lane].is_waiting {
                    break;
                }
                return Err(self.verdict(*lane));
            }
            if states.iter().any(|(_, state)| *state == PartState::Travelling) {
                break;
            }
            let is_finite = states.iter().all(|(_, state)| *state == PartState::Complete);
            self.finish(is_finite)?;
            has_any = true;
        }
        Ok(has_any)
    }

    /// The first bucket is complete.
    fn finish(&mut self, is_finite: bool) -> Result<(), Failure> {
        let Some(bucket) = self.step.buckets.front() else { return Ok(()) };
        let said: Vec<&Vec<Option<Says>>> = bucket
            .shares
            .iter()
            .filter_map(|(lane, _, part)| self.lanes.all[*lane].said.get((*part)?))
            .collect();
        let is_broken = |said: &&Vec<Option<Says>>| said.iter().flatten().any(|says| says.is_broken);
        self.step.is_bad |= !is_finite || said.iter().any(is_broken);
        let mut used = Vec::new();
        if let Some(said) = said.first() {
            used = union(said);
            if let Some((at, first, others)) = other_parameters(said) {
                let each = self.names.len().div_ceil(MOST_HASHES).max(1);
                let name = self.names.get(at * each).map_or("a parameter", String::as_str);
                let place = format!("step {}: {name}", self.step.step);
                let text = format!("{place} is not what rank {first} has, at ranks {}", listed(&others));
                return Err(Failure::Told { kind: 'R', rank: self.rank, text });
            }
            let is_checked = said.iter().flatten().any(|says| !says.hashes.is_empty());
            self.shared.lock().totals.checks += u64::from(is_checked);
        }
        self.give_means()?;
        let Some(bucket) = self.step.buckets.front() else { return Ok(()) };
        let is_last = bucket.is_last;
        self.shared.lock().totals.dense_bytes += 4 * bucket.elements;
        if is_last {
            self.agree()?;
        }
        self.let_go(&used, is_last);
        Ok(())
    }

    /// Puts the means of the first bucket where Python looks for them.
    fn give_means(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let (is_bad, Some(bucket)) = (self.step.is_bad, self.step.buckets.front()) else { return Ok(()) };
        let _traced = bucket.trace("gradwire.decode");
        for (lane, tensors, _) in bucket.shares.iter().filter(|_| is_bad) {
            self.lanes.all[*lane].spoil(tensors);
        }
        if bucket.has_store {
            Python::attach(|py| bucket.store(py, is_bad).map_err(|error| raised(py, error)))?;
        }
        self.shared.spend(Work::Decode, began);
        Ok(())
    }

    /// The first bucket is done. After the last one, the step is.
    fn let_go(&mut self, used: &[u8], is_last: bool) {
        let Some(bucket) = self.step.buckets.pop_front() else { return };
        bucket.shares.iter().for_each(|(lane, tensors, _)| self.lanes.all[*lane].forget(tensors));
        let by = now().saturating_add(nanos(self.timeout));
        self.lanes.active().for_each(|(_, lane)| lane.machine.wait_until(by));
        if is_last {
            self.lanes.active.clear();
        }
        Python::attach(|py| drop(bucket.done(py, used)));
        self.shared.change(|state| {
            state.work.unresolved -= 1;
            state.work.pending -= usize::from(!is_last);
            state.work.moved = Instant::now();
        });
        if is_last {
            self.end_step();
        }
    }
}

/// An exception of Python ends the exchange.
pub(super) fn raised(py: Python<'_>, error: PyErr) -> Failure {
    Failure::Raised(error.into_value(py).into_any())
}

fn hashes_of(parameters: &[(usize, usize)]) -> Vec<u32> {
    let each = parameters.len().div_ceil(MOST_HASHES).max(1);
    let hash = |some: &[(usize, usize)]| {
        let mut hasher = crc32fast::Hasher::new();
        for (address, bytes) in some.iter().filter(|(_, bytes)| *bytes > 0) {
            // SAFETY: Python keeps the parameters in place until the bucket is done, and changes them in no
            // step.
            hasher.update(unsafe { std::slice::from_raw_parts(*address as *const u8, *bytes) });
        }
        hasher.finalize()
    };
    parameters.chunks(each).map(hash).collect()
}
