//! A worker's part in setting the density of each step.

use std::time::{Duration, Instant};

use gradwire::arithmetic::gain::Gain;
use gradwire::registry::LinearCodec;
use gradwire::{Codec, Density, EncodeError, Grad, LayoutRef, Memory, Selection, StepInput, StepKey, Unit};
use gradwire_transports::collective::{self, Fold, Scalar};
use gradwire_transports::exchange::ExchangeError;
use gradwire_transports::{Tag, Transport};

use super::{NO_DEADLINE, StepError, Worker};
use crate::adapt::{
    Accordion, AccordionSettings, Agreed, By, ByLoss, Choice, Decided, Gravac, Level, List, Plan,
};
use crate::agreement::Agreement;
use crate::job::Job;
use crate::record::StepRecord;

/// The unit of the scalars that a decision is made from. No gradient has as many units.
const UNIT_OF_DECISIONS: u32 = u32::MAX - 2;

/// What sets the densities of a run, with what it remembers of the steps so far.
pub(super) enum Steering<'a> {
    List(&'a List),
    Gravac(Box<GravacSteering>),
    Accordion(Box<Accordion>),
    Loss(LossSteering),
}

pub(super) struct LossSteering {
    by_loss: ByLoss,
    /// Time spent on agreeing on the loss in the step under way.
    agreed: Duration,
}

pub(super) struct GravacSteering {
    gravac: Gravac,
    /// The units by the codecs whose gains are measured.
    groups: Vec<(Codec, Vec<Unit>)>,
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
                groups: job.units_by_codec(),
                seconds: 0.0,
                measured: Duration::ZERO,
                agreed: Duration::ZERO,
            })),
            Plan::Accordion(settings) => {
                let units = units_of(job, settings);
                Self::Accordion(Box::new(Accordion::new(*settings, job.steps_per_epoch, &units)))
            }
            Plan::Loss(list) => {
                Self::Loss(LossSteering { by_loss: ByLoss::new(list), agreed: Duration::ZERO })
            }
        })
    }

    /// The state of a controller, the same at every worker; empty if there is none.
    pub(super) fn state(&self) -> Vec<u8> {
        let bytes = match self {
            Self::List(_) => return Vec::new(),
            Self::Gravac(steering) => postcard::to_stdvec(&steering.gravac),
            Self::Accordion(accordion) => postcard::to_stdvec(accordion),
            Self::Loss(steering) => postcard::to_stdvec(&steering.by_loss),
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
            Self::Loss(steering) => {
                let read: ByLoss = postcard::from_bytes(state).map_err(foreign)?;
                if !read.continues(&steering.by_loss) {
                    return Err("state of a controller with another list".to_owned());
                }
                steering.by_loss = read;
            }
        }
        Ok(())
    }

    /// What the step before this one was sent with, if that may be ranks; before the first step, what the
    /// first is sent with.
    pub(super) fn before(&self, next_step: u64) -> Option<Decided> {
        match self {
            Self::List(list) => Some(list.at(next_step.saturating_sub(1)).clone()),
            Self::Accordion(accordion) => Some(accordion.now()),
            Self::Gravac(_) | Self::Loss(_) => None,
        }
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
            Self::Loss(steering) => [Duration::ZERO, steering.agreed],
            _ => [Duration::ZERO; 2],
        }
    }

    /// Takes the time of a step, which had this decision. If the step sent everything, the time of measuring
    /// gains does not count.
    fn finish(&mut self, elapsed: Duration, decided: &Decided) {
        if let Self::Gravac(steering) = self {
            let spared = if decided.choice() == Choice::Dense { steering.measured } else { Duration::ZERO };
            steering.seconds = elapsed.saturating_sub(spared).as_secs_f64();
        }
    }
}

/// The units of a run. A tensor that is sent whole at both ranks counts as sent dense, because it has no
/// regime, and so does one whose codec has neither rank nor density.
fn units_of(job: &Job, settings: &AccordionSettings) -> Vec<Unit> {
    let mut units = job.units_with(|codec| codec.density().is_some() || codec.rank().is_some());
    let (By::Layer, Level::Rank(lowest), Codec::Linear(LinearCodec::PowerSgd(codec))) =
        (settings.by, settings.high, job.spec.codec)
    else {
        return units;
    };
    let compresses = |shape: &[usize]| codec.with_rank(lowest).is_some_and(|codec| codec.compresses(shape));
    for (unit, tensor) in units.iter_mut().zip(job.layout.tensors()) {
        unit.dense |= !compresses(&tensor.shape);
    }
    units
}

impl GravacSteering {
    /// This worker's gain at the two levels, and the time of its last step. What was selected for them stays
    /// in `selection`, to be sent; of several codecs, that of the last. A gradient that cannot be encoded has
    /// the gain 0: the exchange tells all others what is wrong with it.
    fn measure(
        &mut self,
        layout: &LayoutRef<'_>,
        key: StepKey,
        grad: &[f32],
        memory: Option<&Memory<'static>>,
        selection: &mut Selection,
    ) -> [f64; 3] {
        let (started, levels) = (Instant::now(), self.gravac.levels());
        let sum = self.groups.iter().try_fold([Gain::default(); 2], |mut sum, (codec, units)| {
            let step = StepInput { key, layout, units, grad: Grad::F32(grad) };
            let gains = selection.select(codec, &step, memory, &levels)?;
            sum.iter_mut().zip(gains).for_each(|(sum, gain)| *sum += *gain);
            Ok::<_, EncodeError>(sum)
        });
        let of = |gains: [Gain; 2]| [0, 1].map(|at| sent_at(levels[at], gains[at]).ratio());
        let [gain_min, gain] = sum.map_or([0.0; 2], of);
        self.measured = started.elapsed();
        [gain_min, gain, self.seconds]
    }
}

impl<T: Transport> Worker<'_, T> {
    /// Decides the density or the rank of a step, as all other workers do; none without `adapt`.
    pub(super) fn decide(&mut self, step: u64) -> Result<Option<Decided>, StepError> {
        let (key, job) = (self.key(step), self.job);
        Ok(Some(match &mut self.steering {
            None => return Ok(None),
            Some(Steering::List(list)) => list.at(step).clone(),
            Some(Steering::Loss(steering)) => steering.by_loss.decide().into(),
            Some(Steering::Accordion(accordion)) => accordion.decide(step, job.lr(step)),
            Some(Steering::Gravac(steering)) => {
                let (layout, memory) = (&job.layout.as_ref(), self.turns[0].memory.as_ref());
                let own = steering.measure(layout, key, &self.grad, memory, &mut self.selection);
                let started = Instant::now();
                let agreed = agreed(&mut self.transport, step, own)?;
                steering.agreed = started.elapsed();
                steering.gravac.decide(agreed).into()
            }
        }))
    }

    /// Agrees with all other workers on the training loss of a step, if that sets the density.
    pub(super) fn observe_loss(&mut self, step: u64, loss: f32) -> Result<(), StepError> {
        let Some(Steering::Loss(steering)) = &mut self.steering else { return Ok(()) };
        let started = Instant::now();
        steering.by_loss.observe(mean_loss(&mut self.transport, step, loss)?);
        steering.agreed = started.elapsed();
        Ok(())
    }

    /// Continues at the ranks that were decided, if they are ranks, with the same residual. With fragments
    /// nothing is decided.
    pub(super) fn set_ranks(&mut self, decided: &Decided) -> Result<(), ExchangeError> {
        // A codec with a rank has a memory.
        let turn = &mut self.turns[0];
        let (Agreement::Mean(means), Some(memory)) = (&mut turn.agreement, &mut turn.memory) else {
            return Ok(());
        };
        match decided {
            Decided::Rank { rank, .. } => means.set_rank(*rank, memory),
            Decided::Ranks { ranks, .. } => means.set_ranks(ranks, memory),
            Decided::Density(_) | Decided::Densities { .. } => Ok(()),
        }
    }

    /// Gives the memory, before anything is loaded into it, the form that it had before a step.
    pub(super) fn reshape_memory(&mut self, next_step: u64) -> Result<(), ExchangeError> {
        let decided = self.steering.as_ref().and_then(|steering| steering.before(next_step));
        decided.map_or(Ok(()), |decided| self.set_ranks(&decided))
    }

    /// Writes down what was decided for a step that began then, and what deciding took.
    pub(super) fn note_decision(&mut self, record: &mut StepRecord, began: Instant) {
        record.adapt = self.decision.take();
        let (Some(steering), Some(decided)) = (&mut self.steering, &record.adapt) else { return };
        steering.finish(began.elapsed(), decided);
        let [measured, agreed] = steering.spent();
        record.encode += measured;
        record.exchange += agreed;
    }
}

/// A step at density 1 is dense. Redsync's frame at that density would not be: its threshold is above the
/// mean.
fn sent_at(density: Density, gain: Gain) -> Gain {
    if density.fraction() == 1.0 { Gain { sent: gain.whole, ..gain } } else { gain }
}

/// The mean of all workers' gains and the longest time, the same bits at each of them.
fn agreed(transport: &mut dyn Transport, step: u64, own: [f64; 3]) -> Result<Agreed, StepError> {
    let membership = transport.membership();
    let (tag, world) = (Tag::new(membership.epoch, step).unit(UNIT_OF_DECISIONS), membership.world() as f64);
    let [gain_min, gain, seconds] = own.map(Scalar::F64);
    let mut scalars = [(Fold::Sum, gain_min), (Fold::Sum, gain), (Fold::Max, seconds)];
    collective::agree(transport, tag, &mut scalars, NO_DEADLINE)
        .map_err(|error| StepError::Exchange(error.into()))?;
    let [(_, Scalar::F64(gain_min)), (_, Scalar::F64(gain)), (_, Scalar::F64(seconds))] = scalars else {
        unreachable!("scalars keep their types");
    };
    Ok(Agreed { gain_min: gain_min / world, gain: gain / world, seconds })
}

/// The mean of all workers' losses, the same bits at each of them.
fn mean_loss(transport: &mut dyn Transport, step: u64, loss: f32) -> Result<f64, StepError> {
    let membership = transport.membership();
    let (tag, world) = (Tag::new(membership.epoch, step).unit(UNIT_OF_DECISIONS), membership.world() as f64);
    let mut scalars = [(Fold::Sum, Scalar::F64(loss.into()))];
    collective::agree(transport, tag, &mut scalars, NO_DEADLINE)
        .map_err(|error| StepError::Exchange(error.into()))?;
    let [(_, Scalar::F64(sum))] = scalars else { unreachable!("scalars keep their types") };
    Ok(sum / world)
}

#[cfg(test)]
mod tests {
    use gradwire::{Layout, Source, Spec, Trial};
    use gradwire_transports::local;

    use super::*;
    use crate::adapt::GravacSettings;
    use crate::rng::{Draws, Purpose};

    const LEN: usize = 4000;

    /// The gains that are measured at these densities, and those of the frames that the codec would write.
    fn gains(codec: &str, [first, second]: [f64; 2]) -> [[f64; 2]; 2] {
        let spec = Spec::parse(codec).unwrap();
        let layout = Layout::packed([("w", vec![40, 99]), ("b", vec![40])]).unwrap();
        let units: Vec<Unit> = spec.units.units(&layout.as_ref()).collect();
        let mut draws = Draws::new(5, Purpose::Shuffle, 0, 0);
        let mut normal = || (0..LEN).map(|_| draws.normal_f32()).collect::<Vec<f32>>();
        let (grad, before) = (normal(), normal());
        let mut kept = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
        kept.residual_mut().copy_from_slice(&before);
        let (key, layout) = (StepKey { seed: 3, step: 8, source: Source::Rank(1) }, layout.as_ref());
        let settings = GravacSettings { min: 1.0 / first, max: 1.0 / second, ..GravacSettings::default() };
        let (gravac, zero) = (Gravac::new(settings, 4), Duration::ZERO);
        let (levels, groups) = (gravac.levels(), vec![(spec.codec, units.clone())]);
        let mut steering = GravacSteering { gravac, groups, seconds: 2.0, measured: zero, agreed: zero };
        let mut selection = Selection::new();
        let [gain_min, gain, seconds] = steering.measure(&layout, key, &grad, Some(&kept), &mut selection);
        assert_eq!((seconds, kept.residual()), (2.0, &before[..]), "{codec}");
        assert!(levels.iter().all(|&level| selection.position(level).is_some()), "{codec}");
        let encoded = levels.map(|density| {
            let (mut trial, codec) = (Trial::new(), spec.codec.with_density(density));
            let input = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&grad) };
            let tried = trial.encode(&codec, &input, Some(&kept));
            tried.unwrap().gain.ratio()
        });
        [[gain_min, gain], encoded]
    }

    /// Also where the two densities are so near each other that little is lost from one to the next.
    #[test]
    fn gains_are_those_of_the_frames_that_would_be_sent() {
        for codec in [
            "topk",
            "topk:unit=tensor",
            "topk:dense_1d=true",
            "topk:chunk=1024",
            "dgc:momentum=0",
            "redsync",
            "sidco:stages=2",
            "randomk",
            "randomk:unit=tensor,dense_1d=true",
        ] {
            for levels in [[0.1, 0.05], [0.1, 0.06], [0.1, 0.1]] {
                let [measured, encoded] = gains(codec, levels);
                assert_eq!(measured, encoded, "{codec} at {levels:?}");
            }
        }
    }

    #[test]
    fn everything_has_the_gain_1() {
        for codec in ["topk", "topk:chunk=64", "redsync", "randomk"] {
            let [measured, _] = gains(codec, [1.0, 1.0]);
            assert!(measured.iter().all(|gain| (gain - 1.0).abs() < 1e-12), "{codec}: {measured:?}");
        }
    }

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

    #[test]
    fn workers_agree_on_the_mean_of_their_losses() {
        let workers = local::world(3)
            .into_iter()
            .zip([0.5, 0.25, 3.0])
            .map(|(mut end, own)| std::thread::spawn(move || mean_loss(&mut end, 7, own).unwrap()));
        let workers: Vec<_> = workers.collect();
        let all: Vec<f64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        assert_eq!(all, [1.25; 3]);
    }
}
