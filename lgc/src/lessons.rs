//! What the autoencoder learns from: the loss of each instance, and its gradient.

use crate::autoencoder::{Autoencoder, DECODER_PARAMS, ENCODER_PARAMS, Trace, mean, params_with};

/// The values of all workers in one step, normalised.
#[derive(Clone, Copy, Debug)]
pub enum Lesson<'v> {
    /// One decoder makes the mean of the values from the mean latent. The loss is the mean square of what
    /// lacks.
    Mean {
        /// Of each worker.
        workers: &'v [&'v [f32]],
        /// Some values of the mean, and zeros between them.
        innovation: &'v [f32],
        /// The mean of the values.
        mean: &'v [f32],
    },
    /// A decoder for each worker makes its values from the latent of one. The loss is half of the sum of the
    /// mean squares of what lacks, and half of the sum of those of the differences between any two latents.
    Each {
        /// Of each worker.
        workers: &'v [&'v [f32]],
        /// Some values of each worker, and zeros between them.
        innovations: &'v [Vec<f32>],
        /// The worker whose latent is decoded.
        leader: usize,
        /// Number of decoders. Worker i has the one of number i modulo that.
        decoders: usize,
    },
}

impl Lesson<'_> {
    /// Adds the gradient of the loss to `grads`, and returns the loss.
    ///
    /// # Panics
    /// If there are no workers, or if lengths differ.
    pub fn learn(&self, params: &[f32], grads: &mut [f32]) -> f32 {
        match *self {
            Self::Mean { workers, innovation, mean } => learn_mean(params, workers, innovation, mean, grads),
            Self::Each { workers, innovations, leader, decoders } => {
                assert_eq!(params.len(), params_with(decoders), "another number of parameters");
                Each { params, decoders, workers, leader }.learn(innovations, grads)
            }
        }
    }
}

/// What the decoded values lack.
pub(crate) fn missing(decoded: &[f32], values: &[f32]) -> Vec<f32> {
    assert_eq!(decoded.len(), values.len(), "decoded values and values differ in length");
    decoded.iter().zip(values).map(|(made, value)| made - value).collect()
}

fn scaled(by: f32, values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| by * value).collect()
}

fn mean_square(values: &[f32]) -> f32 {
    values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32
}

fn learn_mean(
    params: &[f32],
    workers: &[&[f32]],
    innovation: &[f32],
    target: &[f32],
    grads: &mut [f32],
) -> f32 {
    let autoencoder = Autoencoder::new(params, 0);
    let traces: Vec<_> = workers.iter().map(|values| autoencoder.encode(values)).collect();
    let decoded = autoencoder.decode(&mean(traces.iter().map(Trace::last)), innovation);
    let missing = missing(&decoded.values, target);
    let change = scaled(2.0 / target.len() as f32, &missing);
    let (of_encoder, of_decoder) = grads.split_at_mut(ENCODER_PARAMS);
    let latent = autoencoder.decode_back(&decoded, change, of_decoder);
    let share: Vec<f32> = latent.iter().map(|change| change / workers.len() as f32).collect();
    traces.iter().for_each(|trace| autoencoder.encode_back(trace, share.clone(), of_encoder));
    mean_square(&missing)
}

struct Each<'v> {
    params: &'v [f32],
    decoders: usize,
    workers: &'v [&'v [f32]],
    leader: usize,
}

impl Each<'_> {
    fn learn(&self, innovations: &[Vec<f32>], grads: &mut [f32]) -> f32 {
        let encoder = Autoencoder::new(self.params, 0);
        let traces: Vec<_> = self.workers.iter().map(|values| encoder.encode(values)).collect();
        let (of_encoder, of_decoders) = grads.split_at_mut(ENCODER_PARAMS);
        let (mut loss, of_latent) = self.decode_all(traces[self.leader].last(), innovations, of_decoders);
        let middle = mean(traces.iter().map(Trace::last));
        for (worker, trace) in traces.iter().enumerate() {
            // The squares of all differences between two add up to those of the differences to the mean,
            // times twice the number of workers.
            let away = missing(trace.last(), &middle);
            let workers = traces.len() as f32;
            loss += workers * mean_square(&away);
            let mut change = scaled(2.0 * workers / away.len() as f32, &away);
            if worker == self.leader {
                change.iter_mut().zip(&of_latent).for_each(|(change, more)| *change += more);
            }
            encoder.encode_back(trace, change, of_encoder);
        }
        loss
    }

    /// The first half of the loss, and its gradient with respect to the latent. Adds those of the decoders.
    fn decode_all(
        &self,
        latent: &[f32],
        innovations: &[Vec<f32>],
        of_decoders: &mut [f32],
    ) -> (f32, Vec<f32>) {
        let (mut loss, mut of_latent) = (0.0, vec![0.0; latent.len()]);
        for (worker, (values, innovation)) in self.workers.iter().zip(innovations).enumerate() {
            let number = worker % self.decoders;
            let autoencoder = Autoencoder::new(self.params, number);
            let decoded = autoencoder.decode(latent, innovation);
            let missing = missing(&decoded.values, values);
            loss += 0.5 * mean_square(&missing);
            let change = scaled(1.0 / missing.len() as f32, &missing);
            let grads = &mut of_decoders[number * DECODER_PARAMS..][..DECODER_PARAMS];
            let change = autoencoder.decode_back(&decoded, change, grads);
            of_latent.iter_mut().zip(change).for_each(|(sum, change)| *sum += change);
        }
        (loss, of_latent)
    }
}
