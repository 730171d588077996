//! Workers that take some steps alone before they exchange how far these led.

use gradwire_trainer::config::{OptimizerKind, RunConfig, ScheduleKind, Settings};
use gradwire_trainer::job::Job;
use gradwire_trainer::run::run;

use crate::means::{Heard, heard_by};
use crate::updates::{Last, naive_updates, residuals};
use crate::{Quiet, digits_job};

/// A change of the settings.
type Change = fn(&mut Settings);

const LOCAL: usize = 4;

fn job(codec: &str, steps: u64, change: impl FnOnce(&mut Settings)) -> Job {
    digits_job(codec, steps, |settings| {
        (settings.optimizer, settings.beta2) = (Some(OptimizerKind::Adamw), Some(0.95));
        (settings.schedule, settings.warmup) = (Some(ScheduleKind::Cosine), Some(1));
        (settings.local_steps, settings.clip) = (Some(LOCAL as u64), Some(0.5));
        (settings.workers, settings.batch, settings.weight_decay) = (Some(3), Some(24), Some(0.1));
        change(settings);
    })
}

/// The parameters that all have: before the first exchange, and after each.
fn shared(heard: &Heard) -> Vec<&Vec<f32>> {
    heard.params.iter().step_by(LOCAL + 1).collect()
}

fn farthest(expected: &[f64], found: &[f32]) -> f64 {
    let far = expected.iter().zip(found).map(|(expected, &found)| (expected - f64::from(found)).abs());
    far.fold(0.0, f64::max)
}

/// The place of one worker after its steps from these parameters, by its updates.
fn led(job: &Job, from: &[f64], updates: &[Vec<f64>], exchange: usize) -> Vec<f64> {
    let mut params = from.to_vec();
    for batch in exchange * LOCAL..(exchange + 1) * LOCAL {
        let lr = f64::from(job.schedule.lr(batch as u64));
        let update = params.iter_mut().zip(&updates[batch]);
        update.for_each(|(param, update)| *param = *param * (1.0 - lr * 0.1) - lr * update);
    }
    params
}

/// DiLoCo, written down once more in `f64`: workers keep their moments, and the mean of their ways goes
/// through Nesterov's momentum.
#[test]
fn dense_local_steps_take_the_steps_of_a_naive_form() {
    for (rate, momentum) in [(1.0, 0.0), (0.7, 0.9)] {
        let job = job("none", 5, |settings| {
            (settings.outer_lr, settings.outer_momentum) = (Some(rate), Some(momentum));
        });
        let heard = heard_by(&job, &mut Quiet::default());
        let updates: Vec<_> = heard.iter().map(|worker| naive_updates(&worker.grads, 0.5, 0.95)).collect();
        let mut params: Vec<f64> = heard[0].params[0].iter().map(|&param| f64::from(param)).collect();
        let mut velocity = vec![0.0; params.len()];
        for exchange in 0..5 {
            let ends: Vec<_> = updates.iter().map(|updates| led(&job, &params, updates, exchange)).collect();
            for at in 0..params.len() {
                let way = ends.iter().map(|end| params[at] - end[at]).sum::<f64>() / 3.0;
                velocity[at] = momentum * velocity[at] + way;
                params[at] -= rate * if momentum > 0.0 { way + momentum * velocity[at] } else { way };
            }
            for worker in &heard {
                let far = farthest(&params, shared(worker)[exchange + 1]);
                assert!(far < 2e-6, "momentum {momentum}, exchange {exchange}: {far}");
            }
        }
    }
}

/// Ways travel while workers go on from their own places: each mean comes one exchange late.
#[test]
fn delayed_local_steps_take_the_steps_of_a_naive_form() {
    for (rate, momentum) in [(1.0, 0.0), (0.7, 0.9)] {
        let job = job("none", 5, |settings| {
            (settings.outer_lr, settings.outer_momentum) = (Some(rate), Some(momentum));
            settings.delayed = Some(true);
        });
        let heard = heard_by(&job, &mut Quiet::default());
        let updates: Vec<_> = heard.iter().map(|worker| naive_updates(&worker.grads, 0.5, 0.95)).collect();
        let mut params: Vec<f64> = heard[0].params[0].iter().map(|&param| f64::from(param)).collect();
        let (mut velocity, mut places) = (vec![0.0; params.len()], vec![params.clone(); 3]);
        let mut under_way: Option<Vec<Vec<f64>>> = None;
        for exchange in 0..5 {
            let ends: Vec<_> = places
                .iter()
                .zip(&updates)
                .map(|(place, updates)| led(&job, place, updates, exchange))
                .collect();
            let ways: Vec<Vec<f64>> = places
                .iter()
                .zip(&ends)
                .map(|(place, end)| place.iter().zip(end).map(|(from, to)| from - to).collect())
                .collect();
            for at in 0..params.len() {
                let Some(late) = &under_way else { break };
                let way = late.iter().map(|way| way[at]).sum::<f64>() / 3.0;
                velocity[at] = momentum * velocity[at] + way;
                params[at] -= rate * if momentum > 0.0 { way + momentum * velocity[at] } else { way };
            }
            for (place, way) in places.iter_mut().zip(&ways) {
                *place = params.iter().zip(way).map(|(param, way)| param - way).collect();
            }
            under_way = Some(ways);
            for worker in &heard {
                // After the first exchange, workers go to their own places before they begin.
                let after = &worker.params[LOCAL + 1 + exchange * (LOCAL + 2)];
                let far = farthest(&params, after);
                assert!(far < 2e-6, "momentum {momentum}, exchange {exchange}: {far}");
            }
        }
        assert!(heard[0].params[0] != heard[0].params[LOCAL + 1 + 4 * (LOCAL + 2)]);
    }
}

/// One worker's way is added to where it began, which rounds once more.
#[test]
fn dense_local_steps_of_one_worker_are_those_of_training_without() {
    let alone = |settings: &mut Settings| (settings.workers, settings.batch) = (Some(1), Some(8));
    let local = heard_by(&job("none", 5, alone), &mut Quiet::default());
    let plain = job("none", 20, |settings| {
        alone(settings);
        (settings.local_steps, settings.warmup) = (None, Some(LOCAL as u64));
    });
    let plain = heard_by(&plain, &mut Quiet::default());
    let expected: Vec<f64> = plain[0].params.last().unwrap().iter().map(|&param| f64::from(param)).collect();
    let far = farthest(&expected, shared(&local[0])[5]);
    // Gradients at parameters that differ in the last bit differ a little, and updates have values of about
    // 1.
    assert!(far < 2e-5, "{far}");
}

#[test]
fn what_is_kept_back_and_what_moves_the_parameters_is_the_sum_of_all_ways() {
    let codecs = [
        "topk:density=0.02",
        "topk:density=0.1,values=q4",
        "efsign",
        "qsgd:bits=2,rounding=nearest",
        "powersgd:rank=2",
    ];
    for codec in codecs {
        let job = job(codec, 6, |settings| settings.checkpoint_every = Some(6));
        let mut last = Last::default();
        let heard = heard_by(&job, &mut last);
        let residuals = residuals(&job, &last.0.unwrap());
        let places = shared(&heard[0]);
        let mut due: Vec<f64> = places[0].iter().map(|&param| f64::from(param)).collect();
        for (worker, residual) in heard.iter().zip(&residuals) {
            for (exchange, before) in places[..6].iter().enumerate() {
                let end = &worker.params[exchange * (LOCAL + 1) + LOCAL];
                let ways = due.iter_mut().zip(before.iter().zip(end));
                ways.for_each(|(due, (from, to))| *due -= f64::from(from - to) / 3.0);
            }
            due.iter_mut().zip(residual).for_each(|(due, kept)| *due += f64::from(*kept) / 3.0);
        }
        let far = farthest(&due, places[6]);
        assert!(far < 2e-6, "{codec}: {far}");
        assert!(residuals.iter().flatten().any(|&kept| kept != 0.0), "{codec} keeps nothing back");
    }
}

/// The largest of residual and way is sent; what is kept counts less with each exchange.
#[test]
fn a_residual_that_decays_takes_the_steps_of_a_naive_form() {
    let job = job("topk:density=0.03,decay=0.5", 6, |settings| {
        (settings.workers, settings.batch) = (Some(1), Some(8));
    });
    let heard = &heard_by(&job, &mut Quiet::default())[0];
    let (places, len) = (shared(heard), job.layout.len());
    let mut kept = vec![0.0; len];
    for exchange in 0..6 {
        let [from, after] = [0, 1].map(|more| places[exchange + more]);
        let end = &heard.params[exchange * (LOCAL + 1) + LOCAL];
        let ways = from.iter().zip(end).map(|(from, to)| f64::from(from - to));
        kept.iter_mut().zip(ways).for_each(|(kept, way)| *kept = 0.5 * *kept + way);
        let moved = |at: usize| f64::from(from[at]) - f64::from(after[at]);
        let (sent, others): (Vec<usize>, Vec<usize>) = (0..len).partition(|&at| moved(at) != 0.0);
        assert_eq!(sent.len(), (0.03 * len as f64).round() as usize, "exchange {exchange}");
        let largest = others.iter().map(|&at| kept[at].abs()).fold(0.0, f64::max);
        for at in sent {
            assert!((moved(at) - kept[at]).abs() < 1e-6, "exchange {exchange}: {} {}", moved(at), kept[at]);
            assert!(kept[at].abs() > largest - 1e-6, "exchange {exchange}: {} {largest}", kept[at]);
            kept[at] = 0.0;
        }
    }
}

#[test]
fn an_epoch_of_local_steps_is_one_pass_over_the_data() {
    let steps = |local| digits_job("none", 1, |settings| settings.local_steps = local).steps_per_epoch;
    assert_eq!(steps(Some(3)), steps(None) / 3);
    let job = digits_job("none", 1, |settings| settings.local_steps = Some(2));
    assert_eq!(run(&job, &mut Quiet::default()).unwrap().summary.steps, 1);
    let settings = Settings { local_steps: Some(1 << 40), ..Settings::default() };
    let refused = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap_err().to_string();
    assert!(refused.contains("local_steps = 1099511627776: expected at most"), "{refused}");
}

#[test]
fn what_does_not_go_with_local_steps_is_refused_in_words() {
    let refused = |change: fn(&mut Settings)| {
        let mut settings = Settings { local_steps: Some(4), ..Settings::default() };
        change(&mut settings);
        RunConfig::resolve(&settings).unwrap_err().to_string()
    };
    let cases: [(Change, &str); 8] = [
        (|settings| settings.local_steps = Some(1), "local_steps = 1: expected at least 2"),
        (|settings| settings.outer_lr = Some(0.0), "outer_lr = 0: expected above 0"),
        (|settings| settings.outer_momentum = Some(1.0), "outer_momentum = 1: expected at least 0, below 1"),
        (
            |settings| (settings.local_steps, settings.outer_lr) = (None, Some(1.0)),
            "they belong to local_steps",
        ),
        (|settings| settings.codec = Some("dgc".to_owned()), "local_steps = 4 with codec = dgc"),
        (|settings| settings.codec = Some("dpsgd".to_owned()), "local_steps = 4 with codec = dpsgd"),
        (|settings| settings.optimizer = Some(OptimizerKind::AdamwUpdates), "use adamw"),
        (|settings| settings.clip_mean = Some(1.0), "clip shortens gradients"),
    ];
    for (change, why) in cases {
        let message = refused(change);
        assert!(message.contains(why), "{message}");
    }
}
