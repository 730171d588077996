//! The autoencoder once more, from its description alone: f64, channels first, one loop for each index.

/// What a layer is: channels in and out, width of the kernel, stride, whether it is transposed.
type Kind = (usize, usize, usize, usize, bool);

const ENCODER: [Kind; 5] = [
    (1, 64, 3, 2, false),
    (64, 128, 3, 2, false),
    (128, 256, 3, 2, false),
    (256, 64, 3, 2, false),
    (64, 4, 1, 1, false),
];
const DECODER: [Kind; 4] =
    [(4, 32, 3, 2, true), (32, 64, 3, 2, true), (64, 128, 3, 2, true), (128, 32, 3, 2, true)];

fn params_of((from, to, kernel, ..): Kind) -> usize {
    from * to * kernel + to
}

/// `signal[channel][position]`.
type Signal = Vec<Vec<f64>>;

fn convolution(params: &[f64], (from, to, kernel, stride, is_up): Kind, input: &Signal) -> Signal {
    let len = input[0].len();
    let positions = if is_up { (len - 1) * stride + kernel } else { (len - kernel) / stride + 1 };
    let biases = &params[from * to * kernel..];
    let mut out: Signal = (0..to).map(|channel| vec![biases[channel]; positions]).collect();
    for i in 0..from {
        for o in 0..to {
            for k in 0..kernel {
                if is_up {
                    let weight = params[(i * kernel + k) * to + o];
                    (0..len).for_each(|x| out[o][x * stride + k] += weight * input[i][x]);
                } else {
                    let weight = params[(k * from + i) * to + o];
                    (0..positions).for_each(|x| out[o][x] += weight * input[i][x * stride + k]);
                }
            }
        }
    }
    out
}

fn layers(mut params: &[f64], kinds: &[Kind], mut signal: Signal) -> Signal {
    for kind in kinds {
        let (own, rest) = params.split_at(params_of(*kind));
        signal = convolution(own, *kind, &signal);
        signal.iter_mut().flatten().for_each(|value| *value = value.max(0.0) + 0.01 * value.min(0.0));
        params = rest;
    }
    signal
}

/// The latent: all channels of the first position, then of the second.
pub(crate) fn encode(params: &[f64], values: &[f64]) -> Vec<f64> {
    let signal = layers(params, &ENCODER, vec![values.to_vec()]);
    (0..signal[0].len()).flat_map(|x| signal.iter().map(move |channel| channel[x])).collect()
}

/// The values of a latent, by the decoder of that number.
pub(crate) fn decode(params: &[f64], number: usize, latent: &[f64], innovation: &[f64]) -> Vec<f64> {
    let [encoder, decoder]: [usize; 2] =
        [&ENCODER[..], &DECODER[..]].map(|layers| layers.iter().map(|kind| params_of(*kind)).sum());
    let params = &params[encoder + number * (decoder + 34)..][..decoder + 34];
    let latent = (0..4).map(|channel| latent.iter().skip(channel).step_by(4).copied().collect()).collect();
    let made = layers(params, &DECODER, latent);
    let [output @ .., bias] = &params[DECODER.iter().map(|kind| params_of(*kind)).sum()..] else { panic!() };
    let nearest = |x: usize| x * made[0].len() / innovation.len();
    let value = |x: usize| {
        let own: f64 = made.iter().zip(output).map(|(channel, weight)| weight * channel[nearest(x)]).sum();
        own + output[32] * innovation[x] + bias
    };
    (0..innovation.len()).map(value).collect()
}

/// Mean square of what the values decoded from the mean latent lack to the target.
pub(crate) fn loss(params: &[f64], workers: &[Vec<f64>], innovation: &[f64], target: &[f64]) -> f64 {
    let latents: Vec<_> = workers.iter().map(|values| encode(params, values)).collect();
    let mean: Vec<f64> = (0..latents[0].len())
        .map(|at| latents.iter().map(|latent| latent[at]).sum::<f64>() / latents.len() as f64)
        .collect();
    let made = decode(params, 0, &mean, innovation);
    mean_square(&made, target)
}

fn mean_square(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / b.len() as f64
}

/// Half of what the values decoded from the leader's latent lack, a decoder for each worker, and half of what
/// the latents of any two workers differ by.
pub(crate) fn loss_of_each(
    params: &[f64],
    decoders: usize,
    leader: usize,
    workers: &[Vec<f64>],
    innovations: &[Vec<f64>],
) -> f64 {
    let latents: Vec<_> = workers.iter().map(|values| encode(params, values)).collect();
    let mut loss = 0.0;
    for (i, values) in workers.iter().enumerate() {
        loss += mean_square(&decode(params, i % decoders, &latents[leader], &innovations[i]), values) / 2.0;
        for j in (0..workers.len()).filter(|j| *j != i) {
            loss += mean_square(&latents[i], &latents[j]) / 2.0;
        }
    }
    loss
}
