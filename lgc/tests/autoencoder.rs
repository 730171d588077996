//! The autoencoder against a naive form in f64: values, gradients, and that it learns.

mod naive;

use gradwire::{Source, StepKey};
use gradwire_lgc::adam::Adam;
use gradwire_lgc::autoencoder::{Autoencoder, initial, latent_len, mean, params_with};
use gradwire_lgc::lessons::Lesson;

fn uniform(seed: u64, at: u64) -> f32 {
    let stream = StepKey { seed, step: 0, source: Source::Shared }.stream(0);
    (stream.u64_at(at) >> 40) as f32 / (1u64 << 24) as f32
}

/// With biases that are not zero, so that a bias that is forgotten shows.
fn parameters(decoders: usize) -> Vec<f32> {
    let weights = initial(decoders, |at| uniform(1, at));
    weights.iter().zip(0..).map(|(weight, at)| weight + 0.1 * (uniform(2, at) - 0.5)).collect()
}

fn values(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64).map(|at| 3.0 * (uniform(seed, at) - 0.5)).collect()
}

/// Most are zero.
fn innovation(len: usize) -> Vec<f32> {
    values(3, len).into_iter().zip(0..).map(|(value, at)| if at % 7 == 2 { value } else { 0.0 }).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

fn assert_near(made: &[f32], expected: &[f64]) {
    assert_eq!(made.len(), expected.len());
    let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    for (at, (made, expected)) in made.iter().zip(expected).enumerate() {
        assert!((f64::from(*made) - expected).abs() < 1e-4 * largest, "{at}: {made}, not {expected}");
    }
}

const LENS: [usize; 8] = [64, 65, 66, 67, 79, 100, 331, 1000];

#[test]
fn it_has_the_parameters_of_the_specification() {
    let (encoder, decoder, output) = (172_996, 43_648, 34);
    for decoders in [1, 4] {
        assert_eq!(params_with(decoders), encoder + decoders * (decoder + output));
        assert_eq!(initial(decoders, |at| uniform(1, at)).len(), params_with(decoders));
    }
}

#[test]
fn a_latent_has_about_a_quarter_of_the_values() {
    for (values, latent) in [(64, 4 * 3), (66, 4 * 3), (79, 4 * 4), (100, 4 * 5), (1000, 4 * 61)] {
        assert_eq!(latent_len(values), latent, "{values}");
    }
}

#[test]
fn it_encodes_and_decodes_as_the_naive_form_does() {
    let params = parameters(2);
    let (autoencoder, naive) = (Autoencoder::new(&params, 1), wide(&params));
    for len in LENS {
        let (values, innovation) = (values(4, len), innovation(len));
        let latent = autoencoder.encode(&values);
        assert_eq!(latent.last().len(), latent_len(len));
        assert_near(latent.last(), &naive::encode(&naive, &wide(&values)));
        let decoded = autoencoder.decode(latent.last(), &innovation);
        assert_near(&decoded.values, &naive::decode(&naive, 1, &wide(latent.last()), &wide(&innovation)));
    }
}

#[test]
fn a_small_change_of_the_latent_changes_the_values_as_predicted() {
    let params = parameters(2);
    let (autoencoder, naive) = (Autoencoder::new(&params, 1), wide(&params));
    for len in LENS {
        let innovation = innovation(len);
        let (latent, change) = (values(5, latent_len(len)), values(6, latent_len(len)));
        let decoded = autoencoder.decode(&latent, &innovation);
        let moved = |by: f64| {
            let latent: Vec<_> = wide(&latent).iter().zip(wide(&change)).map(|(z, d)| z + by * d).collect();
            naive::decode(&naive, 1, &latent, &wide(&innovation))
        };
        let (after, before) = (moved(1e-7), moved(-1e-7));
        let slopes: Vec<_> =
            after.iter().zip(before).map(|(after, before)| (after - before) / 2e-7).collect();
        assert_near(&autoencoder.decode_change(&decoded, &change), &slopes);
        let none = autoencoder.decode_change(&decoded, &vec![0.0; change.len()]);
        assert!(none.iter().all(|value| *value == 0.0), "linear: no change, no change");
    }
}

/// Compares the gradient of a lesson with finite differences of a naive loss.
fn assert_slopes(params: &[f32], lesson: Lesson<'_>, naive: impl Fn(&[f64]) -> f64) {
    let mut grads = vec![0.0; params.len()];
    let loss = lesson.learn(params, &mut grads);
    let mut moved = wide(params);
    assert!((f64::from(loss) - naive(&moved)).abs() < 1e-5 * naive(&moved));
    let largest = grads.iter().fold(0.0, |largest: f32, grad| largest.max(grad.abs()));
    // Parameters of every layer, the last ones among them.
    for at in (0..params.len()).step_by(params.len() / 120).chain(params.len() - 40..params.len()) {
        let mut at_distance = |by: f64| {
            moved[at] = f64::from(params[at]) + by;
            let loss = naive(&moved);
            moved[at] = f64::from(params[at]);
            loss
        };
        let slope = (at_distance(1e-6) - at_distance(-1e-6)) / 2e-6;
        let off = (f64::from(grads[at]) - slope).abs();
        assert!(off < 1e-4 * f64::from(largest), "{lesson:?}, parameter {at}: {}, not {slope}", grads[at]);
    }
}

#[test]
fn the_gradient_of_one_decoder_is_that_of_finite_differences() {
    let params = parameters(1);
    for (len, workers) in [(64, 1), (67, 3), (100, 2)] {
        let own: Vec<_> = (0..workers).map(|worker| values(10 + worker, len)).collect();
        let (innovation, mean) = (innovation(len), mean(own.iter().map(Vec::as_slice)));
        let slices: Vec<_> = own.iter().map(Vec::as_slice).collect();
        let lesson = Lesson::Mean { workers: &slices, innovation: &innovation, mean: &mean };
        let own: Vec<_> = own.iter().map(|values| wide(values)).collect();
        let (innovation, mean) = (wide(&innovation), wide(&mean));
        assert_slopes(&params, lesson, |params| naive::loss(params, &own, &innovation, &mean));
    }
}

#[test]
fn the_gradient_of_a_decoder_for_each_worker_is_that_of_finite_differences() {
    for (len, workers, decoders, leader) in [(64, 1, 1, 0), (67, 3, 3, 1), (100, 3, 2, 2)] {
        let params = parameters(decoders);
        let own: Vec<_> = (0..workers).map(|worker| values(10 + worker, len)).collect();
        let slices: Vec<_> = own.iter().map(Vec::as_slice).collect();
        let some = |values: &Vec<f32>| {
            values.iter().zip(0..).map(|(value, at)| if at % 9 == 4 { *value } else { 0.0 }).collect()
        };
        let innovations: Vec<Vec<f32>> = own.iter().map(some).collect();
        let lesson = Lesson::Each { workers: &slices, innovations: &innovations, leader, decoders };
        let [own, innovations]: [Vec<Vec<f64>>; 2] =
            [&own, &innovations].map(|all| all.iter().map(|values| wide(values)).collect());
        assert_slopes(&params, lesson, |params| {
            naive::loss_of_each(params, decoders, leader, &own, &innovations)
        });
    }
}

/// Losses while it learns values of a few shapes, and the parameters at the end.
fn train(steps: u32) -> (Vec<f32>, Vec<f32>) {
    const LEN: usize = 128;
    let mut params = initial(1, |at| uniform(1, at));
    let (mut means, mut squares) = (vec![0.0; params.len()], vec![0.0; params.len()]);
    let mut losses = Vec::new();
    for step in 1..=steps {
        let [place, height] = [0, 1].map(|at| uniform(7, 2 * u64::from(step) + at));
        let shape: Vec<f32> = (0..LEN)
            .map(|at| (1.0 + height) * (0.12 * at as f32 + 6.0 * place).clamp(0.0, 9.0).min(2.0) - height)
            .collect();
        let workers: Vec<Vec<f32>> = (0..3)
            .map(|worker| shape.iter().map(|value| value * (0.8 + 0.2 * worker as f32)).collect())
            .collect();
        let slices: Vec<_> = workers.iter().map(Vec::as_slice).collect();
        let mut grads = vec![0.0; params.len()];
        let lesson = Lesson::Mean { workers: &slices, innovation: &[0.0; LEN], mean: &shape };
        losses.push(lesson.learn(&params, &mut grads));
        Adam { means: &mut means, squares: &mut squares }.step(&mut params, &grads, step, 1e-3);
    }
    (losses, params)
}

#[test]
fn it_learns_what_values_have_in_common_and_twice_to_the_same_bits() {
    let (losses, params) = train(150);
    let [before, after] = [&losses[..10], &losses[140..]].map(|part| part.iter().sum::<f32>() / 10.0);
    assert!(after < 0.05 * before, "from {before} to {after}");
    let (again, same) = train(150);
    assert!(losses == again && params == same);
}
