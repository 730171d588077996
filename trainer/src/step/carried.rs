//! What models carry beside their parameters, where workers take the mean of it.

use gradwire_transports::collective::{self, Gathered};
use gradwire_transports::exchange::ExchangeError;
use gradwire_transports::{Tag, Transport};

use super::{NO_DEADLINE, StepError, Worker};
use crate::model::ModelError;

/// After all units of a gradient.
const UNIT: u32 = u32::MAX;

impl<T: Transport> Worker<'_, T> {
    /// Replaces the state that models carry by its mean over all workers, if that state is statistics and a
    /// worker evaluates after this step. All workers call this, and all then carry the same bits.
    pub(super) fn average_carried(&mut self, step: u64) -> Result<(), StepError> {
        if !self.model.is_carried_averaged() || !self.job.is_due(self.job.config.eval_every, step) {
            return Ok(());
        }
        let own: Vec<u8> = self.model.carried().iter().flat_map(|value| value.to_le_bytes()).collect();
        let epoch = self.transport.membership().epoch;
        let tag = Tag { epoch, step, unit: UNIT, chunk: 0 };
        let mut all = Gathered::new();
        collective::all_gather(&mut self.transport, tag, &own, &mut all, NO_DEADLINE)
            .map_err(ExchangeError::from)?;
        let mean = mean(all.iter().map(|(_, payload)| payload));
        Ok(self.model.carry(&mean).map_err(ModelError::Batch)?)
    }
}

/// The mean of numbers as they travel, added in `f64` in the order of the ranks.
fn mean<'a>(payloads: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<f32> {
    let count = payloads.len() as f64;
    let mut sums = Vec::new();
    for payload in payloads {
        let values = payload.as_chunks().0;
        sums.resize(values.len(), 0.0);
        let values = values.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes)));
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    sums.iter().map(|sum| (sum / count) as f32).collect()
}
