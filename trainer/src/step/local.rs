//! The steps that a worker takes alone before an exchange.
//!
//! Without fragments, all parameters are exchanged after some steps, and the next steps begin where that led.
//! With fragments only those of one part are: the others go on from where the steps led.

use gradwire_transports::Transport;

use super::Worker;
use super::own::Own;
use crate::model::ModelError;

impl<T: Transport> Worker<'_, T> {
    /// This worker's own steps from where it is. What it then sends is how far they led since the last
    /// exchange of these parameters, with the sign of a gradient. Returns the mean of their losses.
    pub(super) fn take_local_steps(&mut self, step: u64) -> Result<f32, ModelError> {
        let (count, mut loss) = (self.job.batches_per_step(), 0.0);
        let from = self.begin_alone(step);
        for batch in step * count..(step + 1) * count {
            loss += self.clipped_gradient(batch)?;
            if let Some(Own::Local { optimizer, params, .. }) = &mut self.own {
                optimizer.step(params, &self.grad, self.job.schedule.lr(batch));
                self.model.set_params(params);
            }
        }
        if let Some(Own::Local { params, .. }) = &self.own {
            let range = self.job.fragment_of_ways(step).range.clone();
            let led = from[range.clone()].iter().zip(&params[range.clone()]);
            self.grad[..range.start].fill(0.0);
            self.grad[range.end..].fill(0.0);
            self.grad[range].iter_mut().zip(led).for_each(|(way, (from, to))| *way = from - to);
        }
        Ok(loss / count as f32)
    }

    /// Goes to where the steps begin. Returns from where ways are counted.
    ///
    /// Without fragments these are the same: the parameters that all have; in a delayed run, where the last
    /// steps led from there, which is on its way.
    fn begin_alone(&mut self, step: u64) -> Vec<f32> {
        let mut from = self.params.clone();
        let is_late = self.job.config.is_delayed() && step > 0;
        let Some(Own::Local { params, sent, is_apart, .. }) = &mut self.own else { return from };
        if !*is_apart {
            if is_late {
                from.iter_mut().zip(&self.grad).for_each(|(param, way)| *param -= way);
            }
            params.copy_from_slice(&from);
        } else if is_late {
            let under_way = self.turns[self.job.turn(step)].fragment.range.clone();
            sent.clear();
            sent.extend_from_slice(&params[under_way]);
        }
        if is_late || *is_apart {
            self.model.set_params(params);
        }
        from
    }

    /// With fragments: goes to where the exchange of one led, and what its steps did meanwhile is added.
    pub(super) fn settle(&mut self, step: u64) {
        let range = self.turns[self.job.turn(step)].fragment.range.clone();
        let Some(Own::Local { params, sent, is_apart: true, .. }) = &mut self.own else { return };
        let places = params[range.clone()].iter_mut().zip(&self.params[range]);
        if self.job.config.is_delayed() {
            places.zip(sent).for_each(|((place, agreed), sent)| *place = agreed + (*place - *sent));
        } else {
            places.for_each(|(place, agreed)| *place = *agreed);
        }
    }
}
