//! Workers that take steps alone, and exchange one part of the model after the other.

use gradwire_trainer::config::{OptimizerKind, RunConfig, ScheduleKind, Settings};
use gradwire_trainer::job::Job;

use crate::means::{Heard, heard_by};
use crate::updates::{Last, naive_updates, residuals};
use crate::{Quiet, digits_job};

/// Batches between two exchanges of the same part.
const LOCAL: usize = 6;
const WORKERS: usize = 3;

fn job(codec: &str, fragments: usize, steps: u64, change: impl FnOnce(&mut Settings)) -> Job {
    digits_job(codec, steps, |settings| {
        (settings.optimizer, settings.beta2) = (Some(OptimizerKind::Adamw), Some(0.95));
        (settings.schedule, settings.warmup) = (Some(ScheduleKind::Cosine), Some(1));
        (settings.local_steps, settings.fragments) = (Some(LOCAL as u64), Some(fragments));
        (settings.workers, settings.batch, settings.hidden) = (Some(WORKERS), Some(24), Some(vec![20, 16]));
        (settings.clip, settings.weight_decay) = (Some(0.5), Some(0.1));
        change(settings);
    })
}

/// The parameters that all have after each exchange: before it, a worker goes to its own place, and takes its
/// steps from there.
fn agreed(heard: &Heard, fragments: usize) -> Vec<&Vec<f32>> {
    heard.params.iter().step_by(LOCAL / fragments + 2).collect()
}

/// Streaming DiLoCo, written down once more in `f64`: with `is_late`, a part is on its way while the next
/// steps are taken, and what these did to it is added to where its exchange led.
fn naive(job: &Job, heard: &[Heard], (rate, momentum): (f64, f64), is_late: bool) -> Vec<Vec<f64>> {
    let updates: Vec<_> = heard.iter().map(|worker| naive_updates(&worker.grads, 0.5, 0.95)).collect();
    let (fragments, batches) = (job.fragments.len(), LOCAL / job.fragments.len());
    let mut params: Vec<f64> = heard[0].params[0].iter().map(|&param| f64::from(param)).collect();
    let (mut velocity, mut places) = (vec![0.0; params.len()], vec![params.clone(); WORKERS]);
    let (mut under_way, mut all) = (None, Vec::new());
    for step in 0..job.steps as usize {
        for (place, updates) in places.iter_mut().zip(&updates) {
            for batch in step * batches..(step + 1) * batches {
                let lr = f64::from(job.schedule.lr(batch as u64));
                let update = place.iter_mut().zip(&updates[batch]);
                update.for_each(|(param, update)| *param = *param * (1.0 - lr * 0.1) - lr * update);
            }
        }
        let sent = (step % fragments, places.clone());
        let arrives = if is_late { under_way.replace(sent) } else { Some(sent) };
        if let Some((fragment, sent)) = arrives {
            for at in job.fragments[fragment].range.clone() {
                let way = sent.iter().map(|place| params[at] - place[at]).sum::<f64>() / WORKERS as f64;
                velocity[at] = momentum * velocity[at] + way;
                params[at] -= rate * if momentum > 0.0 { way + momentum * velocity[at] } else { way };
                places.iter_mut().zip(&sent).for_each(|(place, sent)| place[at] += params[at] - sent[at]);
            }
        }
        all.push(params.clone());
    }
    all
}

#[test]
fn parts_that_are_exchanged_in_turn_take_the_steps_of_a_naive_form() {
    let outer = [(1.0, 0.0), (0.7, 0.9)];
    let cases = [2, 3].into_iter().flat_map(|count| outer.map(|outer| (count, outer)));
    for ((fragments, outer), is_late) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let job = job("none", fragments, 7, |settings| {
            (settings.outer_lr, settings.outer_momentum) = (Some(outer.0), Some(outer.1));
            settings.delayed = is_late.then_some(true);
        });
        let heard = heard_by(&job, &mut Quiet::default());
        let expected = naive(&job, &heard, outer, is_late);
        for worker in &heard {
            let found = &agreed(worker, fragments)[1..];
            assert_eq!(found.len(), expected.len());
            for (step, (expected, found)) in expected.iter().zip(found).enumerate() {
                let far = expected.iter().zip(*found).map(|(a, &b)| (a - f64::from(b)).abs());
                let far = far.fold(0.0, f64::max);
                assert!(far < 3e-6, "{fragments} fragments, {outer:?}, late {is_late}, step {step}: {far}");
            }
        }
    }
}

#[test]
fn an_exchange_moves_its_own_part_and_no_other() {
    for momentum in [0.0, 0.9] {
        let job = job("topk:density=0.1", 3, 6, |settings| settings.outer_momentum = Some(momentum));
        let heard = heard_by(&job, &mut Quiet::default());
        let places = agreed(&heard[0], 3);
        for (step, pair) in places.windows(2).enumerate() {
            let own = &job.fragments[step % 3].range;
            let moved = |at: &usize| pair[0][*at].to_bits() != pair[1][*at].to_bits();
            let moved: Vec<usize> = (0..job.layout.len()).filter(moved).collect();
            assert!(!moved.is_empty() && moved.iter().all(|at| own.contains(at)), "step {step}");
        }
    }
}

#[test]
fn what_is_kept_back_and_what_moves_the_parameters_is_the_sum_of_all_ways() {
    for codec in ["topk:density=0.02", "topk:density=0.1,values=q4,unit=tensor", "efsign", "powersgd:rank=2"]
    {
        let job = job(codec, 2, 6, |settings| settings.checkpoint_every = Some(6));
        let mut last = Last::default();
        let heard = heard_by(&job, &mut last);
        let residuals = residuals(&job, &last.0.unwrap());
        let places = agreed(&heard[0], 2);
        let mut due: Vec<f64> = places[0].iter().map(|&param| f64::from(param)).collect();
        for (worker, residual) in heard.iter().zip(&residuals) {
            for (exchange, before) in places[..6].iter().enumerate() {
                let end = &worker.params[(exchange + 1) * (LOCAL / 2 + 2) - 1];
                for at in job.fragments[exchange % 2].range.clone() {
                    due[at] -= f64::from(before[at] - end[at]) / WORKERS as f64;
                }
            }
            due.iter_mut().zip(residual).for_each(|(due, kept)| *due += f64::from(*kept) / WORKERS as f64);
        }
        let far = due.iter().zip(places[6]).map(|(due, &found)| (due - f64::from(found)).abs());
        let far = far.fold(0.0, f64::max);
        assert!(far < 2e-6, "{codec}: {far}");
        assert!(residuals.iter().flatten().any(|&kept| kept != 0.0), "{codec} keeps nothing back");
    }
}

#[test]
fn one_fragment_is_the_whole_model() {
    let whole = |fragments| job("topk:density=0.05", 1, 3, |settings| settings.fragments = fragments);
    let [named, not] = [Some(1), None].map(|fragments| heard_by(&whole(fragments), &mut Quiet::default()));
    let last =
        |heard: &[Heard]| heard[0].params.last().unwrap().iter().map(|p| p.to_bits()).collect::<Vec<_>>();
    assert_eq!(last(&named), last(&not));
}

#[test]
fn what_does_not_go_with_fragments_is_refused_in_words() {
    let refused = |settings: Settings| {
        let prepared = RunConfig::resolve(&settings).map_err(|error| error.to_string());
        prepared.and_then(|config| Job::prepare(config).map_err(|error| error.to_string())).unwrap_err()
    };
    let given = || Settings { local_steps: Some(60), fragments: Some(2), ..Settings::default() };
    for (settings, why) in [
        (Settings { local_steps: None, ..given() }, "fragments, outer_lr, outer_momentum: they belong to"),
        (Settings { fragments: Some(0), ..given() }, "fragments = 0: expected a divisor of local_steps"),
        (
            Settings { fragments: Some(7), ..given() },
            "fragments = 7: expected a divisor of local_steps, which are 60",
        ),
        (
            Settings { fragments: Some(60), ..given() },
            "fragments = 60: expected at most 4, the tensors of the model",
        ),
    ] {
        let message = refused(settings);
        assert!(message.contains(why), "{message}");
    }
}
