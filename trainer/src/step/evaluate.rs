//! How good a worker's model is, and whether it still gets better.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use gradwire::arithmetic::divide;
use gradwire_transports::collective::{self, Buffers, Fold, Reduce, Scalar, Wire};
use gradwire_transports::{Rank, Tag, Transport};

use super::{NO_DEADLINE, StepError, Worker};
use crate::checkpoint::Best;
use crate::data::{Dataset, Part};
use crate::model::eval::{Evaluation, share_of};
use crate::model::{ModelError, Score};

/// The step of all tags of evaluations: above all steps that are trained, and below that of records.
const STEP_OF_EVALUATIONS: u64 = u64::MAX - 1;
/// Values of a tag's chunk that remain for the high bits of a step.
const HIGH_STEPS: u64 = Tag::COLLECTIVE_CHUNKS as u64 / 2;

/// What became of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Measured {
    /// None was due here.
    Not,
    /// The user wants the run to end, and did not wait for it.
    CutShort,
    /// It is complete.
    As(Evaluation),
}

impl Measured {
    pub(crate) fn complete(self) -> Option<Evaluation> {
        if let Self::As(evaluation) = self { Some(evaluation) } else { None }
    }
}

impl From<Option<Evaluation>> for Measured {
    fn from(evaluation: Option<Evaluation>) -> Self {
        evaluation.map_or(Self::CutShort, Self::As)
    }
}

impl<T: Transport> Worker<'_, T> {
    /// Whether this worker evaluates after a step.
    pub(crate) fn evaluates(&self, step: u64) -> bool {
        self.takes_part() && self.job.is_due(self.job.config.eval_every, step)
    }

    /// Whether this worker evaluates at all. One is enough where replicas are the same.
    fn takes_part(&self) -> bool {
        self.rank() == Rank(0) || self.job.evaluates_together()
    }

    /// How good the model is on the validation part after a step, if that is due. In a run that may end early
    /// the best parameters are kept, and no evaluation is cut short: its end depends on each of them.
    pub(crate) fn validate(&mut self, step: u64) -> Result<Measured, StepError> {
        if !self.evaluates(step) {
            return Ok(Measured::Not);
        }
        let may_end_early = self.job.config.early_stop.is_some();
        let measured = self.evaluate_after(step + 1, Part::Valid, !may_end_early)?;
        let Measured::As(evaluation) = measured else { return Ok(measured) };
        let loss = evaluation.loss();
        let is_better = self.best.as_ref().map_or(!loss.is_nan(), |best| loss < best.loss);
        if may_end_early && is_better {
            self.best =
                Some(Best { steps: step + 1, loss, params: self.params.clone(), carried: self.statistics() });
        }
        Ok(measured)
    }

    /// Whether an evaluation was cut short in which all took part, so that all know.
    pub(crate) fn all_were_cut_short(&self, measured: Measured) -> bool {
        measured == Measured::CutShort && self.job.evaluates_together()
    }

    /// Whether so many evaluations in a row found nothing better that the run ends after so many steps. Every
    /// worker answers the same.
    pub(crate) fn has_learnt_enough(&self, steps: u64) -> bool {
        self.job.has_learnt_enough(self.best.as_ref().map_or(0, |best| best.steps), steps)
    }

    /// How good the model is on the test part in the end, where this worker takes part in that; `known` is
    /// its last evaluation on the validation part, if no step came after it. It may be cut short only if the
    /// run can come back to it.
    pub(crate) fn test(&mut self, known: Option<Evaluation>, may_cut: bool) -> Result<Measured, StepError> {
        if !self.takes_part() {
            return Ok(Measured::Not);
        }
        let Some(best) = self.best.clone() else {
            let known = known.filter(|_| self.job.validates_on_test());
            return known.map_or_else(|| self.evaluate(Part::Test, may_cut), |known| Ok(Measured::As(known)));
        };
        let (last, statistics) = (self.params.clone(), self.statistics());
        self.put(&best.params, &best.carried)?;
        let tested = self.evaluate(Part::Test, may_cut);
        self.put(&last, &statistics)?;
        tested
    }

    /// What models carry, if all workers carry the same when they evaluate.
    fn statistics(&self) -> Vec<f32> {
        if self.model.is_carried_averaged() { self.model.carried() } else { Vec::new() }
    }

    /// Replaces what the model predicts with.
    fn put(&mut self, params: &[f32], statistics: &[f32]) -> Result<(), StepError> {
        self.model.set_params(params);
        if self.model.is_carried_averaged() {
            self.model.carry(statistics).map_err(ModelError::Batch)?;
        }
        Ok(())
    }

    /// After how many steps the validation loss was smallest, in a run that may end early.
    pub(crate) fn best_steps(&self) -> Option<u64> {
        self.best.as_ref().map(|best| best.steps)
    }

    /// How good the model is on a part of the data, at the end of the run.
    pub(crate) fn evaluate(&mut self, part: Part, may_cut: bool) -> Result<Measured, StepError> {
        self.evaluate_after(self.job.steps, part, may_cut)
    }

    /// How good the model is after so many steps; of replicas that differ, their mean.
    fn evaluate_after(&mut self, steps: u64, part: Part, may_cut: bool) -> Result<Measured, StepError> {
        if !self.job.evaluates_together() {
            return Ok(self.score(part, (0, 1), may_cut)?.map(Evaluation::from).into());
        }
        let tag = evaluation_tag(&self.transport, steps, part);
        let workers = self.job.config.workers;
        let differ = self.job.config.replicas() > 1;
        let square = if differ { self.hold_mean(tag)? } else { 0.0 };
        let own = self.share_of_score(part, may_cut)?;
        if differ {
            self.model.set_params(&self.params);
        }
        let evaluation = |(score, squares): (Score, f64)| match differ {
            true => Evaluation::from(score).of_mean((squares / workers as f64).sqrt()),
            false => score.into(),
        };
        Ok(self.sum_of(own, square, tag)?.map(evaluation).into())
    }

    /// Replaces what the model predicts with by the mean of all replicas. Returns the square of the distance
    /// between that and this worker's.
    fn hold_mean(&mut self, tag: Tag) -> Result<f64, StepError> {
        // There is no mean of gradients where replicas differ.
        let mean = &mut self.mean;
        mean.copy_from_slice(&self.params);
        let sum = Reduce::SumF32(mean, Wire::F32);
        collective::all_reduce(&mut self.transport, tag, sum, &mut Buffers::new(), NO_DEADLINE)
            .map_err(|error| StepError::Exchange(error.into()))?;
        // A mean that is not finite is a loss that is not, and is seen there.
        let _ = divide(mean, self.job.config.workers);
        self.model.set_params(mean);
        let distances = self.params.iter().zip(&*mean).map(|(&own, &mean)| f64::from(own) - f64::from(mean));
        Ok(distances.map(|distance| distance * distance).sum())
    }

    /// The score of this worker's share, where all evaluate together; `None` if it was cut short.
    fn share_of_score(&mut self, part: Part, may_cut: bool) -> Result<Option<Score>, StepError> {
        let (rank, world) = (self.rank().0 as usize, self.job.config.workers);
        match self.job.dataset {
            Dataset::Images(_) => self.score(part, (rank, world), may_cut),
            // A text is read from its beginning to its end.
            Dataset::Text(_) if rank == 0 => self.score(part, (0, 1), may_cut),
            Dataset::Text(_) => Ok(Some(Score::default())),
        }
    }

    /// The score of this worker's share; `None` if it was cut short.
    fn score(
        &mut self,
        part: Part,
        share: (usize, usize),
        may_cut: bool,
    ) -> Result<Option<Score>, StepError> {
        let (job, is_first) = (self.job, self.rank() == Rank(0));
        let (interrupt, is_cut) = (self.interrupt.filter(|_| may_cut), Cell::new(false));
        let all = share_of(&job.dataset, part, job.model.at_once(), share);
        let (at_most, _) = all.size_hint();
        let mut batches = all.take_while(|_| {
            is_cut.set(interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed)));
            !is_cut.get()
        });
        if !is_first {
            let score = self.model.evaluate_in_order(&mut batches)?;
            return Ok(Some(score).filter(|_| !is_cut.get()));
        }
        // One worker shows how far all have come: shares differ by a batch.
        job.evaluating.begin(part, at_most);
        let score = self.model.evaluate_in_order(&mut batches.inspect(|_| job.evaluating.advance()));
        job.evaluating.end();
        Ok(Some(score?).filter(|_| !is_cut.get()))
    }

    /// The scores and squares of all workers, added up by rank: the same bits at each of them. `None` if any
    /// was cut short.
    fn sum_of(
        &mut self,
        own: Option<Score>,
        square: f64,
        tag: Tag,
    ) -> Result<Option<(Score, f64)>, StepError> {
        let count = |count: u64| (Fold::Sum, Scalar::I64(count.cast_signed()));
        let cut_short = count(own.is_none().into());
        let own = own.unwrap_or_default();
        let mut sums = [
            (Fold::Sum, Scalar::F64(own.loss_sum)),
            count(own.correct),
            count(own.count),
            cut_short,
            (Fold::Sum, Scalar::F64(square)),
        ];
        collective::agree(&mut self.transport, tag, &mut sums, NO_DEADLINE)
            .map_err(|error| StepError::Exchange(error.into()))?;
        let [Scalar::F64(loss_sum), Scalar::I64(correct), Scalar::I64(count), cut_short, Scalar::F64(square)] =
            sums.map(|(_, sum)| sum)
        else {
            unreachable!("scalars keep their types");
        };
        let score = Score { loss_sum, correct: correct.cast_unsigned(), count: count.cast_unsigned() };
        Ok(Some((score, square)).filter(|_| cut_short == Scalar::I64(0)))
    }
}

/// What the messages of one evaluation are called.
fn evaluation_tag(transport: &impl Transport, steps: u64, part: Part) -> Tag {
    let high = (steps >> 32) % HIGH_STEPS;
    let chunk = 2 * high as u32 + u32::from(part == Part::Test);
    Tag::new(transport.membership().epoch, STEP_OF_EVALUATIONS).unit(steps as u32).chunk(chunk)
}
