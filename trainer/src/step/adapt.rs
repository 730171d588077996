//! A worker's part in setting the density of each step.

use std::time::{Duration, Instant};

use gradwire::{Grad, LayoutRef, Memory, Selection, Spec, StepKey, Unit};
use gradwire_transports::collective::{Fold, Scalar};
use gradwire_transports::{Tag, Transport};

use super::gains::{Gains, Gradient};
use super::{NO_DEADLINE, StepError, Worker};
use crate::adapt::{Accordion, Agreed, Choice, Decision, Gravac, List, Plan};
use crate::job::Job;
use crate::record::StepRecord;

/// The unit of the scalars that a decision is made from. No gradient has as many units.
const UNIT_OF_DECISIONS: u32 = u32::MAX - 2;

/// What sets the densities of a run, with what it remembers of the steps so far.
pub(super) enum Steering<'a> {
    List(&'a List),
    Gravac(Box<GravacSteering>),
    Accordion(Box<Accordion>),
}

pub(super) struct GravacSteering {
    gravac: Gravac,
    gains: Gains,
    units: Vec<Unit>,
    /// Seconds of the step before, 0 if they are not known.
    seconds: f64,
    /// Time spent on measuring gains, and on agreeing on them, in the step under way.
    measured: Duration,
    agreed: Duration,
}

impl<'a> Steering<'a> {
    /// What the job asks for, before its first step.
    pub(super) fn of(job: &'a Job) -> Option<Self> {
        Some(match job.adapt.as_ref()? {
            Plan::List(list) => Self::List(list),
            Plan::Gravac(settings) => Self::Gravac(Box::new(GravacSteering {
                gravac: Gravac::new(*settings, job.config.workers),
                gains: Gains::default(),
                units: job.spec.units.units(&job.layout.as_ref()).collect(),
                seconds: 0.0,
                measured: Duration::ZERO,
                agreed: Duration::ZERO,
            })),
            Plan::Accordion(settings) => {
                Self::Accordion(Box::new(Accordion::new(*settings, job.steps_per_epoch, job.layout.len())))
            }
        })
    }

    /// The state of a controller, the same at every worker; empty if there is none.
    pub(super) fn state(&self) -> Vec<u8> {
        let bytes = match self {
            Self::List(_) => return Vec::new(),
            Self::Gravac(steering) => postcard::to_stdvec(&steering.gravac),
            Self::Accordion(accordion) => postcard::to_stdvec(accordion),
        };
        // Numbers and lists of them: nothing that could not be written.
        bytes.unwrap_or_default()
    }

    /// Continues from [`state`](Self::state). The error says why it is not one of this run.
    pub(super) fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let foreign = |error: postcard::Error| format!("state of another controller: {error}");
        match self {
            Self::List(_) => {}
            Self::Gravac(steering) => {
                let read: Gravac = postcard::from_bytes(state).map_err(foreign)?;
                if !steering.gravac.is_continued_by(&read) {
                    return Err("state of a controller with other settings".to_owned());
                }
                steering.gravac = read;
            }
            Self::Accordion(accordion) => {
                let read: Accordion = postcard::from_bytes(state).map_err(foreign)?;
                if !read.continues(accordion) {
                    return Err("state of a controller with other settings, or of another model".to_owned());
                }
                **accordion = read;
            }
        }
        Ok(())
    }

    /// Takes the mean that all workers apply.
    pub(super) fn observe(&mut self, mean: &[f32]) {
        if let Self::Accordion(accordion) = self {
            accordion.observe(mean);
        }
    }

    /// Time that the decision took on top of the exchange: measuring, and waiting for the others.
    fn spent(&self) -> [Duration; 2] {
        match self {
            Self::Gravac(steering) => [steering.measured, steering.agreed],
            _ => [Duration::ZERO; 2],
        }
    }

    /// Takes the time of a step, which had this decision. If the step sent everything, the time of measuring
    /// gains does not count.
    fn finish(&mut self, elapsed: Duration, decision: &Decision) {
        if let Self::Gravac(steering) = self {
            let spared = if decision.choice == Choice::Dense { steering.measured } else { Duration::ZERO };
            steering.seconds = elapsed.saturating_sub(spared).as_secs_f64();
        }
    }
}

impl GravacSteering {
    /// This worker's gain at the two levels, and the time of its last step. What was selected for them stays
    /// in `selection`, if the codec fits. A gradient that cannot be encoded has the gain 0: the exchange tells
    /// all others what is wrong with it.
    fn measure(
        &mut self,
        (spec, layout): (&Spec, &LayoutRef<'_>),
        key: StepKey,
        grad: &[f32],
        memory: Option<&Memory<'static>>,
        selection: &mut Selection,
    ) -> [f64; 3] {
        let started = Instant::now();
        let grad = Grad::F32(grad);
        let gradient = Gradient { codec: &spec.codec, key, layout, units: &self.units, grad, memory };
        let gains = self.gains.of(&gradient, self.gravac.levels(), selection);
        let [gain_min, gain] = gains.unwrap_or_default();
        self.measured = started.elapsed();
        [gain_min, gain, self.seconds]
    }
}

impl<T: Transport> Worker<'_, T> {
    /// Decides the density of a step, as all other workers do; none without `adapt`.
    pub(super) fn decide(&mut self, step: u64) -> Result<Option<Decision>, StepError> {
        let (key, job) = (self.key(step), self.job);
        Ok(Some(match &mut self.steering {
            None => return Ok(None),
            Some(Steering::List(list)) => list.at(step),
            Some(Steering::Accordion(accordion)) => accordion.decide(step, job.schedule.lr(step)),
            Some(Steering::Gravac(steering)) => {
                let (of, memory) = ((&job.spec, &job.layout.as_ref()), self.memory.as_ref());
                let own = steering.measure(of, key, &self.grad, memory, &mut self.selection);
                let started = Instant::now();
                let agreed = agreed(&mut self.transport, step, own)?;
                steering.agreed = started.elapsed();
                steering.gravac.decide(agreed)
            }
        }))
    }

    /// Writes down what was decided for a step that began then, and what deciding took.
    pub(super) fn note_decision(&mut self, record: &mut StepRecord, began: Instant) {
        record.adapt = self.decision.take();
        let (Some(steering), Some(decision)) = (&mut self.steering, &record.adapt) else { return };
        steering.finish(began.elapsed(), decision);
        let [measured, agreed] = steering.spent();
        record.encode += measured;
        record.exchange += agreed;
    }
}

/// The mean of all workers' gains and the longest time, the same bits at each of them.
fn agreed(transport: &mut dyn Transport, step: u64, own: [f64; 3]) -> Result<Agreed, StepError> {
    let membership = transport.membership();
    let (tag, world) = (Tag::new(membership.epoch, step).unit(UNIT_OF_DECISIONS), membership.world() as f64);
    let [gain_min, gain, seconds] = own.map(Scalar::F64);
    let mut scalars = [(Fold::Sum, gain_min), (Fold::Sum, gain), (Fold::Max, seconds)];
    transport.agree(tag, &mut scalars, NO_DEADLINE).map_err(|error| StepError::Exchange(error.into()))?;
    let [(_, Scalar::F64(gain_min)), (_, Scalar::F64(gain)), (_, Scalar::F64(seconds))] = scalars else {
        unreachable!("scalars keep their types");
    };
    Ok(Agreed { gain_min: gain_min / world, gain: gain / world, seconds })
}

#[cfg(test)]
mod tests {
    use gradwire_transports::local;

    use super::*;

    /// The longest time counts, not the mean; a worker that does not know its own says 0.
    #[test]
    fn workers_agree_on_the_mean_of_their_gains_and_the_longest_time() {
        let own = [[0.9, 0.5, 0.25], [0.6, 0.25, 4.0], [0.3, 0.0, 0.0]];
        let ends = local::world(3).into_iter().zip(own);
        let workers =
            ends.map(|(mut end, own)| std::thread::spawn(move || agreed(&mut end, 7, own).unwrap()));
        let workers: Vec<_> = workers.collect();
        let all: Vec<Agreed> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        let sum = (0.9 + 0.6) + 0.3;
        let expected = Agreed { gain_min: sum / 3.0, gain: 0.25, seconds: 4.0 };
        assert_eq!(all, [expected; 3]);
    }
}
