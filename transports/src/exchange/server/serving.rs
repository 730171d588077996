//! What the rank does that is the server: it gathers, makes the mean, and answers.

use gradwire::arithmetic::{divide, first_non_finite};
use gradwire::format::Divisor;

use super::{Phase, Refused, Server, VERDICT, up_tag, verdict_tag};
use crate::exchange::error::ExchangeError;
use crate::exchange::incoming::Requirements;
use crate::exchange::own::Own;
use crate::exchange::packets::{Collected, Sum};
use crate::exchange::port::{Body, Care};
use crate::exchange::report::{Progress, Report, Work};
use crate::exchange::step::Step;
use crate::exchange::verdict;
use crate::exchange::version::TAIL;
use crate::exchange::void::Void;
use crate::rank::Rank;

impl Server {
    /// Adds what the member at that position sent, if it comes in time and is accepted.
    pub(super) fn gather(
        &mut self,
        step: &mut Step<'_>,
        position: usize,
        sum: &mut [f32],
    ) -> Result<Progress<Report>, ExchangeError> {
        let members = step.members();
        let Some(&rank) = members.as_slice().get(position) else {
            return self.go_on(Phase::Dividing, Work::Exchange);
        };
        step.port.deadline = self.patient_until;
        step.port.failure()?;
        let collected = if step.packets().is_some() {
            self.add_packets(step, (rank, position), sum)?
        } else {
            self.add_frame(step, (rank, position), sum)?
        };
        match collected {
            Collected::Waiting => {
                if self.has_quorum_without(step, position) {
                    step.port.do_without(rank);
                }
                Ok(Progress::Waiting)
            }
            Collected::One => Ok(Progress::Worked(Work::Decode)),
            Collected::All => self.go_on(Phase::Gathering(position + 1), Work::Decode),
        }
    }

    /// Whether the members that are here are enough without the one at that position.
    fn has_quorum_without(&self, step: &Step<'_>, position: usize) -> bool {
        if self.options.quorum == 0 || self.kind().is_summed() {
            return false;
        }
        let (members, me) = (step.members(), step.rank());
        let behind = members.as_slice().iter().skip(position + 1);
        let here = behind.filter(|&&rank| rank == me || step.port.has_any(rank)).count();
        self.arrived.len() + here >= self.options.quorum
    }

    fn add_frame(
        &mut self,
        step: &mut Step<'_>,
        (rank, position): (Rank, usize),
        sum: &mut [f32],
    ) -> Result<Collected, ExchangeError> {
        let tag = up_tag(step.tag, self.round());
        if rank == step.rank() {
            return self.add(step, (rank, position), None, sum).map(|()| Collected::All);
        }
        let Some(message) = step.port.find(rank, tag) else {
            let is_over = step.port.is_lost(rank, tag) || step.port.is_over(self.patient_until);
            return Ok(if is_over { Collected::All } else { Collected::Waiting });
        };
        let added = self.add(step, (rank, position), Some(&message), sum);
        step.port.give(message);
        added.map(|()| Collected::All)
    }

    /// Adds what a rank sent, this rank's own if nothing is given, or notes why it is not accepted.
    fn add(
        &mut self,
        step: &Step<'_>,
        (rank, position): (Rank, usize),
        frame: Option<&[u8]>,
        sum: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let added = match &mut self.own {
            Own::Payloads(served) => {
                frame.map_or(Ok(()), |message| served.add(step, (rank, position), message))
            }
            _ => self.add_message(step, rank, frame, sum),
        };
        match added {
            Ok(()) => self.arrived.push(rank),
            Err(ExchangeError::Void { rank, index }) => {
                self.void.get_or_insert(Void { rank, index });
            }
            Err(ExchangeError::Failed { rank, text }) => {
                self.told.get_or_insert((rank, text));
            }
            Err(error) => refuse(&mut self.refused, error)?,
        }
        Ok(())
    }

    fn add_message(
        &mut self,
        step: &Step<'_>,
        rank: Rank,
        frame: Option<&[u8]>,
        sum: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let (frame, expected) = (frame.or(self.own.part(0)).unwrap_or(&[]), Requirements::up(step));
        let parsed = self.incoming.parse(rank, frame, &step.layout.as_ref(), &expected);
        parsed.map(|message| {
            let weight = self.norm_cap.as_mut().map_or(1.0, |cap| cap.weigh(rank, &message));
            message.add_scaled_to(weight, sum);
            if step.divisor == Divisor::Senders {
                self.senders.add(&message);
            }
        })
    }

    fn add_packets(
        &mut self,
        step: &mut Step<'_>,
        worker: (Rank, usize),
        values: &mut [f32],
    ) -> Result<Collected, ExchangeError> {
        let (layout, expected) = (step.layout.as_ref(), Requirements::up(step));
        let mut sum = Sum { incoming: &mut self.incoming, layout, expected, values };
        let mut collected = Ok(Collected::All);
        if worker.0 == step.rank() {
            self.packets.add_own(worker, &self.own, &mut sum)?;
        } else {
            let mut refuse = |error| refuse(&mut self.refused, error);
            collected = self.packets.collect(step, worker, self.patient_until, &mut sum, &mut refuse);
        }
        match collected {
            Err(ExchangeError::Void { rank, index }) => {
                self.void.get_or_insert(Void { rank, index });
                collected = Ok(Collected::All);
            }
            Err(ExchangeError::Failed { rank, text }) => {
                self.told.get_or_insert((rank, text));
                collected = Ok(Collected::All);
            }
            _ => {}
        }
        if collected == Ok(Collected::All) && self.packets.packet_set(worker.1).ones() > 0 {
            self.arrived.push(worker.0);
        }
        collected
    }

    /// Divides the sum, if there is a quorum.
    pub(super) fn make_mean(
        &mut self,
        step: &mut Step<'_>,
        mean: &mut [f32],
    ) -> Result<Progress<Report>, ExchangeError> {
        let (arrived, members) = (self.arrived.len(), step.members().len());
        let is_summed = self.kind().is_summed();
        let quorum = if self.options.quorum == 0 || is_summed { members } else { self.options.quorum };
        if arrived < quorum {
            step.port.require_version()?;
            if let Some((rank, text)) = self.told.clone() {
                return Err(ExchangeError::Failed { rank, text });
            }
            let void = self.void.map(|void| (void.rank, void.index));
            let refused = std::mem::take(&mut self.refused);
            return Err(ExchangeError::NoQuorum { arrived, quorum, refused, void });
        }
        if is_summed {
            return self.go_on(Phase::Answering(0), Work::Exchange);
        }
        let index = if step.packets().is_some() {
            self.packets.divide(mean);
            first_non_finite(mean)
        } else if step.divisor == Divisor::Senders {
            self.senders.divide(mean, 0..mean.len())
        } else {
            divide(mean, arrived)
        };
        match index {
            Some(index) => Err(ExchangeError::NonFiniteMean { index, rank: None }),
            None => self.go_on(Phase::EncodingMean, Work::Decode),
        }
    }

    pub(super) fn encode_mean(
        &mut self,
        step: &Step<'_>,
        mean: &[f32],
    ) -> Result<Progress<Report>, ExchangeError> {
        self.downlink.encode(step, mean)?;
        self.has_encoded_mean = true;
        self.go_on(Phase::Answering(0), Work::Encode)
    }

    /// Queues the answer for the member at that position. All have the same one, unless it names the packets
    /// of its receiver: then each answer leaves before the next is written. A worker that is gone is not an
    /// error.
    pub(super) fn answer(
        &mut self,
        step: &mut Step<'_>,
        position: usize,
    ) -> Result<Progress<Report>, ExchangeError> {
        let (members, has_packets) = (step.members(), step.packets().is_some());
        let is_last = position == members.len();
        step.port.deadline = self.by;
        step.port.failure()?;
        if (is_last || has_packets) && !step.port.is_empty() && step.port.now < self.by {
            return Ok(Progress::Waiting);
        }
        if is_last {
            return self.go_on(Phase::Applying, Work::Exchange);
        }
        if has_packets || position == 0 {
            let packet_set = has_packets.then(|| self.packets.packet_set(position));
            let is_summed = self.kind().is_summed();
            let frame = if is_summed { &[][..] } else { self.downlink.frame() };
            let start = verdict::write(&self.arrived, packet_set, frame, &mut self.verdict);
            if let Own::Payloads(served) = &mut self.own {
                served.write(step, &mut self.verdict)?;
            }
            self.mean_at = start..self.verdict.len();
            self.verdict.push(TAIL);
        }
        let rank = members.as_slice()[position];
        if rank == step.rank() {
            if has_packets {
                self.packet_set.clone_from(self.packets.packet_set(position));
            }
        } else {
            let body = Body::Frame { part: VERDICT, place: 0 };
            step.port.queue(rank, verdict_tag(step.tag, self.round()), body, Care::Until(self.by));
        }
        self.go_on(Phase::Answering(position + 1), Work::Exchange)
    }
}

/// Records a refusal for a rank; the first reason counts.
fn refuse(refused: &mut Refused, error: ExchangeError) -> Result<(), ExchangeError> {
    match error {
        ExchangeError::Frame { rank, error } => {
            if refused.last().is_none_or(|(last, _)| *last != rank) {
                refused.push((rank, error));
            }
            Ok(())
        }
        // An honest peer sends a frame of another step or codec only if the run has a bug.
        other => Err(other),
    }
}
