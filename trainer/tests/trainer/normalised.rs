//! The residual network: its gradient, and the statistics that its normalisations keep.

use gradwire_trainer::checkpoint::{Store, latest};
use gradwire_trainer::config::{RunConfig, Settings};
use gradwire_trainer::data::{Batch, Batches, Dataset, Task, optdigits};
use gradwire_trainer::job::Job;
use gradwire_trainer::model::{Model, ModelKind};
use gradwire_trainer::rng::{Draws, Purpose};

use crate::naive::{self, Params};
use crate::{checkpoints, digits_job, word};

/// Means and variances of 19 normalisations.
const STATISTICS: usize = 2 * (7 * 16 + 6 * 32 + 6 * 64);

fn built(task: &Task) -> Box<dyn Model> {
    ModelKind::Resnet20.suited_to(task).build(task, 5).unwrap()
}

fn batch(dataset: &Dataset, count: usize) -> Batch {
    Batches::new(dataset, 1, count, 0, 1, 0).unwrap().batch(0, 0)
}

#[test]
fn it_has_the_published_number_of_parameters() {
    let model = built(&Task::Images { shape: [3, 32, 32], classes: 10 });
    assert_eq!((model.len(), model.carried().len()), (269_722, STATISTICS));
    let task = Task::Images { shape: [1, 10, 10], classes: 10 };
    assert!(ModelKind::Resnet20.suited_to(&task).build(&task, 1).is_err());
}

/// The gradient along a direction in every tensor, and along directions in all of them.
#[test]
fn resnet_gradients_are_right() {
    let digits = optdigits::load().unwrap();
    let (mut model, batch) = (built(&digits.task()), batch(&digits, 3));
    let layout = model.layout();
    let (mut params, mut grad) = (vec![0.0; model.len()], vec![f32::NAN; model.len()]);
    model.params(&mut params);
    let mut draws = Draws::new(3, Purpose::Weights, 0, 1);
    params.iter_mut().for_each(|param| *param += 0.02 * draws.normal_f32());
    model.set_params(&params);
    let loss = f64::from(model.forward_backward(&batch, &mut grad).unwrap());
    let values: Vec<f64> = params.iter().map(|&param| f64::from(param)).collect();
    let at = |values: &[f64]| naive::resnet(&Params { layout: &layout, values }, &batch);
    assert!((loss - at(&values)).abs() < 1e-5 * loss, "{loss} instead of {}", at(&values));
    let mut start = 0;
    let mut ranges: Vec<_> = vec![0..values.len(); 2];
    for (_, shape) in &layout {
        let end = start + shape.iter().product::<usize>();
        ranges.push(start..end);
        start = end;
    }
    for range in ranges {
        let direction: Vec<f64> = range.clone().map(|_| f64::from(draws.normal_f32())).collect();
        let length = direction.iter().map(|d| d * d).sum::<f64>().sqrt();
        let moved = |step: f64| {
            let mut moved = values.clone();
            moved[range.clone()]
                .iter_mut()
                .zip(&direction)
                .for_each(|(value, d)| *value += step / length * d);
            at(&moved)
        };
        let slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
        let own = &grad[range.clone()];
        let expected: f64 = own.iter().zip(&direction).map(|(&g, d)| f64::from(g) * d / length).sum();
        let norm = own.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        assert!(
            (slope - expected).abs() < 1e-3 * norm,
            "{range:?}: {expected} instead of {slope}, of {norm}"
        );
    }
}

#[test]
fn evaluation_uses_the_running_statistics_and_does_not_move_them() {
    let digits = optdigits::load().unwrap();
    let (mut model, batch) = (built(&digits.task()), batch(&digits, 64));
    let mut grad = vec![0.0; model.len()];
    let mean = |model: &mut dyn Model| {
        let score = model.evaluate(&batch).unwrap();
        score.loss_sum / score.count as f64
    };
    let before = mean(model.as_mut());
    let first = model.forward_backward(&batch, &mut grad).unwrap();
    for _ in 0..150 {
        assert_eq!(model.forward_backward(&batch, &mut grad).unwrap(), first, "no gradient depends on them");
    }
    let carried = model.carried();
    let after = mean(model.as_mut());
    assert!((after - f64::from(first)).abs() < 0.02, "{after} instead of {first}");
    assert!((before - f64::from(first)).abs() > 0.1, "{before}, {first}");
    assert_eq!(model.carried(), carried);
    let mut other = built(&digits.task());
    other.carry(&carried).unwrap();
    assert_eq!(mean(other.as_mut()), after);
    assert!(other.carry(&carried[1..]).is_err());
}

fn job(steps: u64) -> Job {
    digits_job("topk:density=0.1", steps, |settings| {
        settings.model = Some(ModelKind::Resnet20);
        settings.augment = Some(true);
        (settings.workers, settings.batch) = (Some(2), Some(32));
        (settings.hash_every, settings.checkpoint_every) = (Some(1), Some(3));
    })
}

#[test]
fn workers_have_statistics_of_their_own_until_one_evaluates() {
    let (outcome, keeper) = checkpoints::run(&job(6), None);
    outcome.unwrap();
    let [middle, end] = &keeper.checkpoints[..] else { panic!("{}", keeper.checkpoints.len()) };
    assert_ne!(middle.carried[0], middle.carried[1]);
    assert_eq!(end.carried[0], end.carried[1]);
    assert!(end.carried.iter().all(|carried| carried.len() == STATISTICS));
}

#[test]
fn a_resumed_run_ends_with_the_same_bits_and_statistics() {
    let job = job(6);
    let (whole, keeper) = checkpoints::run(&job, None);
    let folder = tempfile::tempdir().unwrap();
    Store::of_run(folder.path()).write(&keeper.checkpoints[0], &job.layout).unwrap();
    let middle = latest(folder.path()).unwrap().read_all(&job.layout).unwrap();
    let (resumed, rest) = checkpoints::run(&job, Some((&middle, &keeper.metrics[..3])));
    let [whole, resumed] = [whole, resumed].map(|outcome| outcome.unwrap().summary);
    assert_eq!((resumed.params_hash, resumed.final_loss), (whole.params_hash, whole.final_loss));
    assert_eq!(rest.checkpoints.last().unwrap().carried, keeper.checkpoints[1].carried);
}

/// The best parameters meet the statistics that they had, also behind a checkpoint.
#[test]
fn a_run_that_ends_early_is_tested_with_the_statistics_of_its_best_step() {
    let restless = digits_job("none", 60, |settings| {
        settings.model = Some(ModelKind::Resnet20);
        (settings.workers, settings.batch) = (Some(2), Some(32));
        (settings.lr, settings.eval_every, settings.early_stop) = (Some(3.0), Some(2), Some(3));
        settings.checkpoint_every = Some(2);
    });
    let (whole, keeper) = checkpoints::run(&restless, None);
    let whole = whole.unwrap().summary;
    let best = whole.best_steps.unwrap();
    assert_eq!(whole.steps, best + 6);
    let smallest = keeper.metrics[best as usize - 1].eval_loss.unwrap();
    assert_eq!(whole.final_loss, smallest);
    let folder = tempfile::tempdir().unwrap();
    let kept = keeper.checkpoints.iter().find(|checkpoint| checkpoint.steps == best + 2).unwrap();
    Store::of_run(folder.path()).write(kept, &restless.layout).unwrap();
    let middle = latest(folder.path()).unwrap().read_all(&restless.layout).unwrap();
    let (resumed, _) = checkpoints::run(&restless, Some((&middle, &keeper.metrics[..best as usize + 2])));
    assert_eq!(resumed.unwrap().summary.final_loss, smallest);
}

#[test]
fn it_learns_the_digits() {
    let job = digits_job("none", 60, |settings| {
        settings.model = Some(ModelKind::Resnet20);
        (settings.workers, settings.batch) = (Some(2), Some(64));
    });
    let (outcome, _) = checkpoints::run(&job, None);
    let accuracy = outcome.unwrap().summary.accuracy;
    println!("accuracy {accuracy:.4}");
    assert!(accuracy > 0.85, "{accuracy}");
}

#[test]
fn images_are_augmented_where_that_helps() {
    let resolved = |data: &str, augment: Option<bool>| {
        let (data, model) = (Some(word(data)), Some(ModelKind::Resnet20));
        RunConfig::resolve(&Settings { data, model, augment, ..Settings::default() }).unwrap().augment
    };
    assert_eq!([resolved("cifar-10", None), resolved("optdigits", None)], [Some(true), Some(false)]);
    assert_eq!(resolved("cifar-10", Some(false)), Some(false));
    let settings = Settings { augment: Some(true), ..Settings::default() };
    let error = RunConfig::resolve(&settings).unwrap_err();
    assert_eq!(error.to_string(), "augment with model = mlp: it belongs to resnet20");
}
