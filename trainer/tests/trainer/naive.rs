//! The forward passes again in `f64`, written for clarity: loops over indices, no tensors. It shares no code
//! with the models but the layout of their parameters.

use gradwire_trainer::data::Batch;

/// Parameters by name.
pub(crate) struct Params<'a> {
    pub(crate) layout: &'a [(String, Vec<usize>)],
    pub(crate) values: &'a [f64],
}

impl Params<'_> {
    fn get(&self, name: &str) -> &[f64] {
        let mut start = 0;
        for (known, shape) in self.layout {
            let len: usize = shape.iter().product();
            if known == name {
                return &self.values[start..start + len];
            }
            start += len;
        }
        panic!("no parameter {name}");
    }

    fn has(&self, name: &str) -> bool {
        self.layout.iter().any(|(known, _)| known == name)
    }
}

/// `x · weight + bias` of one row.
fn linear(params: &Params<'_>, name: &str, x: &[f64]) -> Vec<f64> {
    let (weight, bias) = (params.get(&format!("{name}.weight")), params.get(&format!("{name}.bias")));
    let mut y = bias.to_vec();
    for (i, value) in x.iter().enumerate() {
        for (j, sum) in y.iter_mut().enumerate() {
            *sum += value * weight[i * bias.len() + j];
        }
    }
    y
}

fn relu(x: Vec<f64>) -> Vec<f64> {
    x.into_iter().map(|value| value.max(0.0)).collect()
}

/// Minus the logarithm of the probability of the target.
fn cross_entropy(logits: &[f64], target: u32) -> f64 {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - max).exp()).sum();
    max + sum.ln() - logits[target as usize]
}

fn images(batch: &Batch) -> (Vec<Vec<f64>>, [usize; 3]) {
    let Batch::Images { shape: [count, channels, height, width], features, .. } = batch else { panic!() };
    let size = features.len() / count;
    let images =
        features.chunks(size).map(|image| image.iter().map(|&value| f64::from(value)).collect()).collect();
    (images, [*channels, *height, *width])
}

fn mean_loss(rows: impl Iterator<Item = Vec<f64>>, batch: &Batch) -> f64 {
    let losses: Vec<f64> =
        rows.zip(batch.targets()).map(|(logits, &target)| cross_entropy(&logits, target)).collect();
    assert_eq!(losses.len(), batch.predictions());
    losses.iter().sum::<f64>() / losses.len() as f64
}

/// Loss of the fully connected network.
pub(crate) fn mlp(params: &Params<'_>, batch: &Batch) -> f64 {
    let forward = |mut x: Vec<f64>| {
        let mut n = 0;
        while params.has(&format!("layers.{n}.weight")) {
            x = linear(params, &format!("layers.{n}"), &if n == 0 { x } else { relu(x) });
            n += 1;
        }
        x
    };
    mean_loss(images(batch).0.into_iter().map(forward), batch)
}

/// 3×3 convolution with a border of zeros.
fn convolve(params: &Params<'_>, name: &str, x: &[f64], [channels, height, width]: [usize; 3]) -> Vec<f64> {
    let (weight, bias) = (params.get(&format!("{name}.weight")), params.get(&format!("{name}.bias")));
    let mut y = Vec::new();
    for (out, bias) in bias.iter().enumerate() {
        for row in 0..height {
            for column in 0..width {
                let mut sum = *bias;
                for channel in 0..channels {
                    for (kr, kc) in (0..9).map(|n| (n / 3, n % 3)) {
                        let (r, c) = (row + kr, column + kc);
                        if (1..=height).contains(&r) && (1..=width).contains(&c) {
                            let tap = weight[((out * channels + channel) * 3 + kr) * 3 + kc];
                            sum += tap * x[(channel * height + r - 1) * width + c - 1];
                        }
                    }
                }
                y.push(sum);
            }
        }
    }
    y
}

/// 2×2 maximum; an odd last row or column is dropped.
fn pool(x: &[f64], [channels, height, width]: [usize; 3]) -> Vec<f64> {
    let mut y = Vec::new();
    for channel in 0..channels {
        for row in 0..height / 2 {
            for column in 0..width / 2 {
                let at = |r, c| x[(channel * height + 2 * row + r) * width + 2 * column + c];
                y.push(at(0, 0).max(at(0, 1)).max(at(1, 0)).max(at(1, 1)));
            }
        }
    }
    y
}

/// Loss of the convolutional network.
pub(crate) fn cnn(params: &Params<'_>, batch: &Batch) -> f64 {
    let (images, image_shape) = images(batch);
    let forward = |mut x: Vec<f64>| {
        let mut shape = image_shape;
        for name in ["conv1", "conv2"] {
            x = relu(convolve(params, name, &x, shape));
            shape[0] = params.get(&format!("{name}.bias")).len();
            x = pool(&x, shape);
            shape = [shape[0], shape[1] / 2, shape[2] / 2];
        }
        linear(params, "output", &relu(linear(params, "hidden", &x)))
    };
    mean_loss(images.into_iter().map(forward), batch)
}

fn normalise(params: &Params<'_>, name: &str, x: &[f64]) -> Vec<f64> {
    let (gain, shift) = (params.get(&format!("{name}.gain")), params.get(&format!("{name}.shift")));
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (variance + 1e-5).sqrt();
    (0..x.len()).map(|i| (x[i] - mean) * scale * gain[i] + shift[i]).collect()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x / 2_f64.sqrt()))
}

fn add(x: &mut [Vec<f64>], y: &[Vec<f64>]) {
    for (x, y) in x.iter_mut().zip(y) {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    }
}

/// Every token attends to itself and those before it.
fn attend(params: &Params<'_>, name: &str, x: &[Vec<f64>], heads: usize) -> Vec<Vec<f64>> {
    let width = x[0].len();
    let size = width / heads;
    let mixed: Vec<Vec<f64>> = x.iter().map(|row| linear(params, &format!("{name}.qkv"), row)).collect();
    let mut outputs = Vec::new();
    for now in 0..x.len() {
        let mut joined = vec![0.0; width];
        for head in 0..heads {
            let part = |token: usize, third: usize| &mixed[token][third * width + head * size..][..size];
            let score = |token| {
                let dot: f64 = part(now, 0).iter().zip(part(token, 1)).map(|(q, k)| q * k).sum();
                (dot / (size as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = (0..=now).map(score).collect();
            let total: f64 = scores.iter().sum();
            for (token, score) in scores.iter().enumerate() {
                for (i, value) in part(token, 2).iter().enumerate() {
                    joined[head * size + i] += score / total * value;
                }
            }
        }
        outputs.push(linear(params, &format!("{name}.out"), &joined));
    }
    outputs
}

/// Loss of the transformer.
pub(crate) fn gpt(params: &Params<'_>, batch: &Batch, heads: usize) -> f64 {
    let Batch::Tokens { shape: [_, tokens], inputs, .. } = batch else { panic!() };
    let (embedding, positions, head) = (params.get("embedding"), params.get("positions"), params.get("head"));
    let width = params.get("norm.gain").len();
    let vocabulary = head.len() / width;
    let mut rows = Vec::new();
    for window in inputs.chunks(*tokens) {
        let begin = |(place, &token): (usize, &u32)| -> Vec<f64> {
            (0..width).map(|i| embedding[token as usize * width + i] + positions[place * width + i]).collect()
        };
        let mut x: Vec<Vec<f64>> = window.iter().enumerate().map(begin).collect();
        for n in 0.. {
            let block = format!("blocks.{n}");
            if !params.has(&format!("{block}.norm1.gain")) {
                break;
            }
            let normed: Vec<_> =
                x.iter().map(|row| normalise(params, &format!("{block}.norm1"), row)).collect();
            add(&mut x, &attend(params, &format!("{block}.attention"), &normed, heads));
            let feed = |row: &Vec<f64>| {
                let normed = normalise(params, &format!("{block}.norm2"), row);
                let wide = linear(params, &format!("{block}.mlp.up"), &normed).into_iter().map(gelu);
                linear(params, &format!("{block}.mlp.down"), &wide.collect::<Vec<_>>())
            };
            let fed: Vec<_> = x.iter().map(feed).collect();
            add(&mut x, &fed);
        }
        for row in &x {
            let normed = normalise(params, "norm", row);
            rows.push(
                (0..vocabulary)
                    .map(|j| (0..width).map(|i| normed[i] * head[i * vocabulary + j]).sum())
                    .collect(),
            );
        }
    }
    mean_loss(rows.into_iter(), batch)
}

/// `[input, forget, candidate, output]` of a cell, and then its state and output.
fn cell(params: &Params<'_>, layer: &str, x: &[f64], [output, cell]: &mut [Vec<f64>; 2]) {
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut gates = linear(params, &format!("{layer}.input"), x);
    let recurrent = linear(params, &format!("{layer}.hidden"), output);
    gates.iter_mut().zip(recurrent).for_each(|(gate, more)| *gate += more);
    let width = cell.len();
    for j in 0..width {
        let [enter, keep, candidate, out] = [0, 1, 2, 3].map(|gate| gates[gate * width + j]);
        cell[j] = logistic(keep) * cell[j] + logistic(enter) * candidate.tanh();
        output[j] = logistic(out) * cell[j].tanh();
    }
}

/// Loss of the recurrent network, each window from its beginning.
pub(crate) fn lstm(params: &Params<'_>, batch: &Batch) -> f64 {
    let Batch::Tokens { shape: [_, tokens], inputs, .. } = batch else { panic!() };
    let embedding = params.get("embedding");
    let width = params.get("layers.0.hidden.bias").len() / 4;
    let row_of = |token: u32| embedding[token as usize * width..][..width].to_vec();
    let mut rows = Vec::new();
    for window in inputs.chunks(*tokens) {
        let mut states = Vec::new();
        for &token in window {
            let mut x = row_of(token);
            let mut n = 0;
            while params.has(&format!("layers.{n}.input.weight")) {
                if states.len() == n {
                    states.push([vec![0.0; width], vec![0.0; width]]);
                }
                cell(params, &format!("layers.{n}"), &x, &mut states[n]);
                x = states[n][0].clone();
                n += 1;
            }
            let score = |row: &[f64]| row.iter().zip(&x).map(|(a, b)| a * b).sum();
            rows.push(embedding.chunks(width).map(score).collect());
        }
    }
    mean_loss(rows.into_iter(), batch)
}

/// A square convolution of 3×3 with a border of zeros and without a bias.
fn correlate(weight: &[f64], x: &[f64], [channels, height, width]: [usize; 3], stride: usize) -> Vec<f64> {
    let mut y = Vec::new();
    for taps in weight.chunks(9 * channels) {
        for (row, column) in (0..height / stride).flat_map(|r| (0..width / stride).map(move |c| (r, c))) {
            let mut sum = 0.0;
            for (n, tap) in taps.iter().enumerate() {
                let (r, c) = (row * stride + n % 9 / 3, column * stride + n % 3);
                if (1..=height).contains(&r) && (1..=width).contains(&c) {
                    sum += tap * x[(n / 9 * height + r - 1) * width + c - 1];
                }
            }
            y.push(sum);
        }
    }
    y
}

/// Convolution and normalisation over the batch; returns the new shape.
fn correlate_and_norm(
    params: &Params<'_>,
    name: &str,
    x: &[Vec<f64>],
    [channels, height, width]: [usize; 3],
    stride: usize,
) -> (Vec<Vec<f64>>, [usize; 3]) {
    let weight = params.get(&format!("{name}.weight"));
    let mut y: Vec<Vec<f64>> =
        x.iter().map(|x| correlate(weight, x, [channels, height, width], stride)).collect();
    let shape = [weight.len() / 9 / channels, height / stride, width / stride];
    let [gain, shift] = ["gain", "shift"].map(|part| params.get(&format!("{name}.norm.{part}")));
    let places = shape[1] * shape[2];
    for channel in 0..shape[0] {
        let own = channel * places..(channel + 1) * places;
        let all: Vec<f64> = y.iter().flat_map(|y| y[own.clone()].to_vec()).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / all.len() as f64;
        let scale = gain[channel] / (variance + 1e-5).sqrt();
        for value in y.iter_mut().flat_map(|y| &mut y[own.clone()]) {
            *value = (*value - mean) * scale + shift[channel];
        }
    }
    (y, shape)
}

/// Loss of the residual network in training.
pub(crate) fn resnet(params: &Params<'_>, batch: &Batch) -> f64 {
    let (images, shape) = images(batch);
    let relu_all = |x: Vec<Vec<f64>>| x.into_iter().map(relu).collect::<Vec<_>>();
    let (x, mut shape) = correlate_and_norm(params, "first", &images, shape, 1);
    let mut x = relu_all(x);
    for (stage, block) in (0..3).flat_map(|stage| (0..3).map(move |block| (stage, block))) {
        let stride = if stage > 0 && block == 0 { 2 } else { 1 };
        let name = format!("stages.{stage}.{block}");
        let (inner, new_shape) = correlate_and_norm(params, &format!("{name}.first"), &x, shape, stride);
        let (mut sum, _) =
            correlate_and_norm(params, &format!("{name}.second"), &relu_all(inner), new_shape, 1);
        for (sum, x) in sum.iter_mut().zip(&x) {
            for (place, value) in x.iter().enumerate() {
                let (channel, row, column) =
                    (place / (shape[1] * shape[2]), place / shape[2] % shape[1], place % shape[2]);
                if row.is_multiple_of(stride) && column.is_multiple_of(stride) {
                    sum[(channel * new_shape[1] + row / stride) * new_shape[2] + column / stride] += value;
                }
            }
        }
        (x, shape) = (relu_all(sum), new_shape);
    }
    let places = shape[1] * shape[2];
    let means =
        |x: Vec<f64>| x.chunks(places).map(|of| of.iter().sum::<f64>() / places as f64).collect::<Vec<_>>();
    mean_loss(x.into_iter().map(|x| linear(params, "output", &means(x))), batch)
}
