//! The autoencoder of values, how gradients pass it, and how its output follows the latent.

use crate::layer::Layer;

/// The encoder's layers, each with a LeakyReLU after it.
pub(crate) const ENCODER: [Layer; 5] = [
    Layer::down(1, 64, 3, 2),
    Layer::down(64, 128, 3, 2),
    Layer::down(128, 256, 3, 2),
    Layer::down(256, 64, 3, 2),
    Layer::down(64, 4, 1, 1),
];

/// The decoder's layers, each with a LeakyReLU after it.
pub(crate) const DECODER: [Layer; 4] =
    [Layer::up(4, 32, 3, 2), Layer::up(32, 64, 3, 2), Layer::up(64, 128, 3, 2), Layer::up(128, 32, 3, 2)];

/// The last layer, linear: of what the decoder made, and of the innovation as one channel more.
pub(crate) const OUTPUT: Layer = Layer::down(33, 1, 1, 1);

/// Number of the encoder's parameters.
pub(crate) const ENCODER_PARAMS: usize = params(&ENCODER);

/// Number of a decoder's parameters, with those of its output layer behind them.
pub(crate) const DECODER_PARAMS: usize = params(&DECODER) + OUTPUT.params();

/// Number of all parameters with so many decoders: those of the encoder, and then of each decoder.
#[must_use]
pub const fn params_with(decoders: usize) -> usize {
    ENCODER_PARAMS + decoders * DECODER_PARAMS
}

/// The fewest values for which there is an autoencoder.
pub const MIN_VALUES: usize = 64;

/// What a LeakyReLU multiplies negative values with.
const LEAK: f32 = 0.01;

const fn params(layers: &[Layer]) -> usize {
    let (mut sum, mut at) = (0, 0);
    while at < layers.len() {
        sum += layers[at].params();
        at += 1;
    }
    sum
}

/// The parameters of the encoder and of one decoder.
#[derive(Clone, Copy, Debug)]
pub struct Autoencoder<'p> {
    encoder: &'p [f32],
    /// With those of its output layer behind them.
    decoder: &'p [f32],
}

/// Activations of consecutive layers, the input first.
#[derive(Clone, Debug)]
pub struct Trace(Vec<Vec<f32>>);

impl Trace {
    /// What the last layer made.
    #[must_use]
    pub fn last(&self) -> &[f32] {
        self.0.last().expect("an input")
    }
}

/// A decoded latent.
#[derive(Clone, Debug)]
pub struct Decoded {
    layers: Trace,
    /// The channels that the output layer sees.
    seen: Vec<f32>,
    /// The values.
    pub values: Vec<f32>,
}

/// Floats of the latent of so many values.
///
/// # Panics
/// For fewer than [`MIN_VALUES`].
#[must_use]
pub fn latent_len(values: usize) -> usize {
    assert!(values >= MIN_VALUES, "too few values for an autoencoder");
    let positions = ENCODER.iter().try_fold(values, |len, layer| layer.positions(len));
    4 * positions.expect("enough values for every layer")
}

fn leaky(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = if *value > 0.0 { *value } else { LEAK * *value });
}

/// Multiplies with the slope of the LeakyReLU that made `activations`.
fn through_leaky(activations: &[f32], changes: &mut [f32]) {
    for (change, activation) in changes.iter_mut().zip(activations) {
        *change *= if *activation > 0.0 { 1.0 } else { LEAK };
    }
}

/// The part of the parameters that each layer has, in order.
fn parts<'p>(mut params: &'p [f32], layers: &[Layer]) -> Vec<&'p [f32]> {
    let next = |layer: &Layer| {
        let (own, rest) = params.split_at(layer.params());
        params = rest;
        own
    };
    layers.iter().map(next).collect()
}

fn forward(params: &[f32], layers: &[Layer], input: &[f32]) -> Trace {
    let mut trace = vec![input.to_vec()];
    for (at, (layer, params)) in layers.iter().zip(parts(params, layers)).enumerate() {
        let mut out = layer.forward(params, &trace[at]);
        leaky(&mut out);
        trace.push(out);
    }
    Trace(trace)
}

/// Adds the gradients of all layers to `grads`, and returns that of the input.
fn backward(
    params: &[f32],
    layers: &[Layer],
    trace: &Trace,
    outputs: Vec<f32>,
    mut grads: &mut [f32],
) -> Vec<f32> {
    let mut change = outputs;
    for (at, (layer, params)) in layers.iter().zip(parts(params, layers)).enumerate().rev() {
        through_leaky(&trace.0[at + 1], &mut change);
        let (rest, own) = grads.split_at_mut(grads.len() - layer.params());
        change = layer.backward(params, &trace.0[at], &change, own);
        grads = rest;
    }
    change
}

/// Where each of `len` positions comes from in a line of `from`: the nearest one before it.
fn resized(len: usize, from: usize) -> impl Iterator<Item = usize> {
    (0..len).map(move |at| at * from / len)
}

impl<'p> Autoencoder<'p> {
    /// With the decoder of that number, from 0.
    ///
    /// # Panics
    /// If there are no parameters of that decoder.
    #[must_use]
    pub fn new(params: &'p [f32], decoder: usize) -> Self {
        let (encoder, decoders) = params.split_at(ENCODER_PARAMS);
        Self { encoder, decoder: &decoders[decoder * DECODER_PARAMS..][..DECODER_PARAMS] }
    }

    /// The parameters of the decoder's layers but the last one.
    fn decoder(&self) -> &'p [f32] {
        &self.decoder[..DECODER_PARAMS - OUTPUT.params()]
    }

    fn output(&self) -> &'p [f32] {
        &self.decoder[DECODER_PARAMS - OUTPUT.params()..]
    }

    /// The latent of these values is the last activation.
    #[must_use]
    pub fn encode(&self, values: &[f32]) -> Trace {
        forward(self.encoder, &ENCODER, values)
    }

    /// The values of a latent. `innovation` has as many, most of them zero.
    #[must_use]
    pub fn decode(&self, latent: &[f32], innovation: &[f32]) -> Decoded {
        let layers = forward(self.decoder(), &DECODER, latent);
        let seen = seen(layers.last(), innovation);
        let values = OUTPUT.forward(self.output(), &seen);
        Decoded { layers, seen, values }
    }

    /// By how much the values change, to first order, when the latent changes by this: linear in `change`.
    #[must_use]
    pub fn decode_change(&self, decoded: &Decoded, change: &[f32]) -> Vec<f32> {
        let mut change = change.to_vec();
        for (at, (layer, params)) in DECODER.iter().zip(parts(self.decoder(), &DECODER)).enumerate() {
            change = layer.forward_change(params, &change);
            through_leaky(&decoded.layers.0[at + 1], &mut change);
        }
        let same = vec![0.0; decoded.values.len()];
        OUTPUT.forward_change(self.output(), &seen(&change, &same))
    }

    /// Adds the encoder's gradient, from that of a latent, to `grads`.
    pub(crate) fn encode_back(&self, trace: &Trace, latent: Vec<f32>, grads: &mut [f32]) {
        backward(self.encoder, &ENCODER, trace, latent, grads);
    }

    /// From the gradient of the values: adds that of the decoder to `grads`, and returns that of the latent.
    pub(crate) fn decode_back(&self, decoded: &Decoded, values: Vec<f32>, grads: &mut [f32]) -> Vec<f32> {
        let (grads, of_output) = grads.split_at_mut(DECODER_PARAMS - OUTPUT.params());
        let of_seen = OUTPUT.backward(self.output(), &decoded.seen, &values, of_output);
        let (channels, made) = (OUTPUT.from - 1, decoded.layers.last());
        let mut of_made = vec![0.0; made.len()];
        let positions = made.len() / channels;
        for (own, from) in of_seen.chunks_exact(OUTPUT.from).zip(resized(values.len(), positions)) {
            let sums = &mut of_made[from * channels..][..channels];
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        backward(self.decoder(), &DECODER, &decoded.layers, of_made, grads)
    }
}

/// What the output layer sees: the decoder's channels, resized, and the innovation.
fn seen(made: &[f32], innovation: &[f32]) -> Vec<f32> {
    let channels = OUTPUT.from - 1;
    let mut seen = Vec::with_capacity(innovation.len() * OUTPUT.from);
    for (own, from) in innovation.iter().zip(resized(innovation.len(), made.len() / channels)) {
        seen.extend_from_slice(&made[from * channels..][..channels]);
        seen.push(*own);
    }
    seen
}

/// The mean of slices of one length, added in order.
///
/// # Panics
/// If there are none.
pub fn mean<'a>(mut slices: impl Iterator<Item = &'a [f32]>) -> Vec<f32> {
    let mut sum = slices.next().expect("at least one").to_vec();
    let mut count = 1.0;
    for slice in slices {
        sum.iter_mut().zip(slice).for_each(|(sum, value)| *sum += value);
        count += 1.0;
    }
    sum.iter_mut().for_each(|sum| *sum /= count);
    sum
}

/// Parameters to begin with: weights uniform within ±√(6/n), where n values are added up, and biases of 0.
/// `draw` returns a number from 0 to below 1 for each position.
#[must_use]
pub fn initial(decoders: usize, draw: impl Fn(u64) -> f32) -> Vec<f32> {
    let mut params = Vec::with_capacity(params_with(decoders));
    let of_decoders = (0..decoders).flat_map(|_| DECODER.iter().chain([&OUTPUT]));
    for layer in ENCODER.iter().chain(of_decoders) {
        let bound = (6.0 / layer.fan_in() as f32).sqrt();
        for _ in 0..layer.params() - layer.to {
            params.push(bound * (2.0 * draw(params.len() as u64) - 1.0));
        }
        params.resize(params.len() + layer.to, 0.0);
    }
    params
}
