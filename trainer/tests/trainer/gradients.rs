//! Gradients of every model against central differences of the naive forward pass in `f64`.
//!
//! Two comparisons per model: along random directions over all parameters at once, so that no parameter is
//! left out, and at single coordinates of every tensor, so that an error names the tensor.

use gradwire_trainer::data::{Batch, Task};
use gradwire_trainer::model::{CnnConfig, GptConfig, LstmConfig, MlpConfig, ModelConfig, ModelKind};
use gradwire_trainer::rng::{Draws, Purpose};

use crate::naive::{self, Params};

/// Step of the differences: error of the formula about 1e-10, of rounding about 1e-11.
const STEP: f64 = 1e-5;

/// The gradient is computed in `f32`: relative to the largest entry of its tensor it must be this close.
const TOLERANCE: f64 = 5e-6;

/// Relative to the slope along the gradient itself.
const DIRECTION_TOLERANCE: f64 = 2e-7;

/// The same for the loss, relative.
const LOSS_TOLERANCE: f64 = 1e-6;

const COORDINATES_PER_TENSOR: usize = 40;

const DIRECTIONS: u64 = 4;

fn draws(number: u64) -> Draws {
    Draws::new(99, Purpose::Weights, number, 1)
}

fn image_batch(count: usize, [channels, height, width]: [usize; 3], classes: usize) -> Batch {
    let mut draws = draws(0);
    let features = (0..count * channels * height * width).map(|_| draws.normal_f32()).collect();
    let labels = (0..count).map(|_| draws.below(classes) as u32).collect();
    Batch::Images { shape: [count, channels, height, width], features, labels }
}

fn token_batch(shape: [usize; 2], vocabulary: usize) -> Batch {
    let mut draws = draws(1);
    let mut tokens = || (0..shape[0] * shape[1]).map(|_| draws.below(vocabulary) as u32).collect();
    Batch::Tokens { shape, inputs: tokens(), targets: tokens() }
}

/// Compares the model's gradient with differences of `loss`, at parameters moved by `noise` from the initial
/// ones: biases and gains would be special otherwise.
fn compare(
    config: &ModelConfig,
    task: &Task,
    batch: &Batch,
    noise: f32,
    loss: impl Fn(&Params<'_>, &Batch) -> f64,
) {
    let mut model = config.build(task, 5).unwrap();
    let layout = model.layout();
    let (mut params, mut grad) = (vec![0.0; model.len()], vec![f32::NAN; model.len()]);
    model.params(&mut params);
    let mut moved = draws(2);
    params.iter_mut().for_each(|param| *param += noise * moved.normal_f32());
    model.set_params(&params);
    let from_model = f64::from(model.forward_backward(batch, &mut grad).unwrap());

    let mut values: Vec<f64> = params.iter().map(|&param| f64::from(param)).collect();
    let at = |values: &[f64]| loss(&Params { layout: &layout, values }, batch);
    let from_naive = at(&values);
    let error = (from_model - from_naive).abs() / from_naive;
    assert!(error < LOSS_TOLERANCE, "loss {from_model} instead of {from_naive}");
    let score = model.evaluate(batch).unwrap();
    assert!(
        (score.loss_sum / score.count as f64 - from_naive).abs() / from_naive < LOSS_TOLERANCE,
        "{score:?}"
    );

    compare_directions(&values, &grad, &at);
    let mut start = 0;
    for (name, shape) in &layout {
        let len: usize = shape.iter().product();
        compare_tensor(name, start..start + len, &mut values, &grad, &at);
        start += len;
    }
}

fn compare_directions(values: &[f64], grad: &[f32], at: &impl Fn(&[f64]) -> f64) {
    let norm = grad.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    let mut worst = 0.0_f64;
    for number in 0..DIRECTIONS {
        let mut draws = draws(10 + number);
        let direction: Vec<f64> = values.iter().map(|_| f64::from(draws.normal_f32())).collect();
        let length = direction.iter().map(|d| d * d).sum::<f64>().sqrt();
        let moved = |step: f64| -> Vec<f64> {
            values.iter().zip(&direction).map(|(value, d)| value + step / length * d).collect()
        };
        let slope = (at(&moved(STEP)) - at(&moved(-STEP))) / (2.0 * STEP);
        let expected: f64 = grad.iter().zip(&direction).map(|(&g, d)| f64::from(g) * d / length).sum();
        worst = worst.max((slope - expected).abs() / norm);
    }
    println!("along directions: {worst:.1e}");
    assert!(worst < DIRECTION_TOLERANCE, "along a direction: {worst:e}");
}

fn compare_tensor(
    name: &str,
    range: std::ops::Range<usize>,
    values: &mut [f64],
    grad: &[f32],
    at: &impl Fn(&[f64]) -> f64,
) {
    let largest = grad[range.clone()].iter().fold(0.0, |max: f64, &g| max.max(f64::from(g).abs()));
    // The bias of a key shifts all scores of a softmax alike; its gradient is nothing but rounding.
    let scale = largest.max(1e-4);
    let mut draws = draws(range.start as u64);
    let mut worst = 0.0_f64;
    for _ in 0..COORDINATES_PER_TENSOR.min(range.len()) {
        let coordinate = range.start + draws.below(range.len());
        let kept = values[coordinate];
        values[coordinate] = kept + STEP;
        let above = at(values);
        values[coordinate] = kept - STEP;
        let slope = (above - at(values)) / (2.0 * STEP);
        values[coordinate] = kept;
        let error = (slope - f64::from(grad[coordinate])).abs() / scale;
        assert!(
            error < TOLERANCE,
            "{name}[{}]: {} instead of {slope}",
            coordinate - range.start,
            grad[coordinate]
        );
        worst = worst.max(error);
    }
    println!("{name}: {worst:.1e} of {largest:.1e}");
}

#[test]
fn mlp_gradients_are_right() {
    let task = Task::Images { shape: [1, 8, 8], classes: 10 };
    let config = ModelConfig::Mlp(MlpConfig { hidden: vec![24, 17] });
    compare(&config, &task, &image_batch(6, [1, 8, 8], 10), 0.05, naive::mlp);
}

#[test]
fn a_network_without_hidden_layers_is_right() {
    let task = Task::Images { shape: [2, 3, 2], classes: 3 };
    let config = ModelConfig::Mlp(MlpConfig { hidden: vec![] });
    compare(&config, &task, &image_batch(1, [2, 3, 2], 3), 0.05, naive::mlp);
}

#[test]
fn cnn_gradients_are_right() {
    let task = Task::Images { shape: [1, 8, 8], classes: 10 };
    let config = ModelKind::Cnn.suited_to(&task);
    compare(&config, &task, &image_batch(3, [1, 8, 8], 10), 0.05, naive::cnn);
}

#[test]
fn cnn_gradients_are_right_for_odd_sizes_and_colours() {
    let task = Task::Images { shape: [3, 9, 7], classes: 4 };
    let config = ModelConfig::Cnn(CnnConfig { channels: [5, 3], hidden: 7 });
    compare(&config, &task, &image_batch(2, [3, 9, 7], 4), 0.05, naive::cnn);
}

#[test]
fn gpt_gradients_are_right() {
    let task = Task::Tokens { vocabulary: 11 };
    let config = ModelConfig::Gpt(GptConfig { context: 8, width: 12, heads: 3, layers: 2 });
    for tokens in [8, 5, 1] {
        compare(&config, &task, &token_batch([3, tokens], 11), 0.2, |params, batch| {
            naive::gpt(params, batch, 3)
        });
    }
}

#[test]
fn the_same_token_twice_adds_its_gradients() {
    let task = Task::Tokens { vocabulary: 3 };
    let config = ModelConfig::Gpt(GptConfig { context: 6, width: 8, heads: 1, layers: 1 });
    let batch = Batch::Tokens { shape: [1, 6], inputs: vec![1; 6], targets: vec![0, 1, 2, 0, 1, 2] };
    compare(&config, &task, &batch, 0.2, |params, batch| naive::gpt(params, batch, 1));
}

#[test]
fn lstm_gradients_are_right() {
    let task = Task::Tokens { vocabulary: 11 };
    for (layers, tokens) in [(2, 6), (1, 5), (3, 1)] {
        let config = ModelConfig::Lstm(LstmConfig { context: 6, width: 7, layers, dropout: 0.0 });
        compare(&config, &task, &token_batch([3, tokens], 11), 0.3, naive::lstm);
    }
}

/// More words than are scored at once with the other rows of the batch, and not a multiple of any width of a
/// vector.
#[test]
fn lstm_gradients_are_right_where_the_rows_are_scored_in_pieces() {
    let task = Task::Tokens { vocabulary: 50_021 };
    let config = ModelConfig::Lstm(LstmConfig { context: 10, width: 3, layers: 1, dropout: 0.0 });
    let mut model = config.build(&task, 5).unwrap();
    let Batch::Tokens { shape, inputs, targets } = token_batch([10, 10], 50_021) else { panic!() };
    let cut = |rows: std::ops::Range<usize>| {
        let part = |of: &[u32]| of[rows.start * 10..rows.end * 10].to_vec();
        Batch::Tokens { shape: [rows.len(), 10], inputs: part(&inputs), targets: part(&targets) }
    };
    let mut gradient_of = |batch: &Batch| {
        let mut grad = vec![f32::NAN; model.len()];
        (f64::from(model.forward_backward(batch, &mut grad).unwrap()), grad)
    };
    let whole = Batch::Tokens { shape, inputs: inputs.clone(), targets: targets.clone() };
    let (loss, grad) = gradient_of(&whole);
    let pieces: Vec<_> = (0..5).map(|n| gradient_of(&cut(2 * n..2 * n + 2))).collect();
    let mean = pieces.iter().map(|(loss, _)| loss / 5.0).sum::<f64>();
    assert!((loss - mean).abs() < 1e-5, "{loss} instead of {mean}");
    let largest = grad.iter().fold(0.0, |max: f32, g| max.max(g.abs()));
    for (at, &g) in grad.iter().enumerate() {
        let mean = pieces.iter().map(|(_, piece)| piece[at] / 5.0).sum::<f32>();
        assert!((g - mean).abs() < 1e-5 * largest, "{at}: {g} instead of {mean}");
    }
}
