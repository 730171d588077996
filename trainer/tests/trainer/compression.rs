//! Compressed training at a fixed small budget: what converges, and what does not.

use gradwire_trainer::run::run;

use crate::{Quiet, digits_job};

/// 100 steps: a fifth of what it takes to train the digits to the end. At a long budget random-k with
/// feedback catches up on this easy task; here it is measured long before.
const STEPS: u64 = 100;

/// Accuracy on the test part, in percent, mean of three seeds.
fn accuracy(codec: &str) -> f64 {
    let of_seed = |seed| {
        let job = digits_job(codec, STEPS, |settings| {
            (settings.seed, settings.lr, settings.workers) = (Some(seed), Some(0.1), Some(4));
        });
        100.0 * run(&job, &mut Quiet::default()).unwrap().summary.accuracy
    };
    let accuracy = [1, 2, 3].map(of_seed).iter().sum::<f64>() / 3.0;
    println!("{codec}: {accuracy:.2} % after {STEPS} steps");
    accuracy
}

#[test]
fn error_feedback_keeps_up_with_dense_where_random_choice_and_forgetting_do_not() {
    let dense = accuracy("none");
    let topk = accuracy("topk:density=0.01");
    let forgetful = accuracy("topk:density=0.01,memory=none");
    let sidco = accuracy("sidco:density=0.01");
    let powersgd = accuracy("powersgd:rank=2");
    let randomk = accuracy("randomk:density=0.01");
    assert!(dense > 85.0, "dense training itself must work: {dense}");
    assert!((topk - dense).abs() <= 2.0, "topk {topk}, dense {dense}");
    assert!((sidco - dense).abs() <= 2.0, "sidco {sidco}, dense {dense}");
    assert!((powersgd - dense).abs() <= 2.0, "powersgd {powersgd}, dense {dense}");
    assert!(randomk <= dense - 10.0, "randomk {randomk}, dense {dense}");
    assert!(forgetful <= topk - 3.0, "without memory {forgetful}, with {topk}");
}

/// The same with momentum of 0.9, at a rate to match, over 200 steps; warm-up takes one of the ten epochs.
fn accuracy_with_momentum(codec: &str, momentum: Option<f64>) -> f64 {
    let of_seed = |seed| {
        let job = digits_job(codec, 2 * STEPS, |settings| {
            (settings.seed, settings.lr, settings.workers) = (Some(seed), Some(0.02), Some(4));
            settings.momentum = momentum;
        });
        100.0 * run(&job, &mut Quiet::default()).unwrap().summary.accuracy
    };
    let accuracy = [1, 2, 3].map(of_seed).iter().sum::<f64>() / 3.0;
    println!("{codec}, momentum {momentum:?}: {accuracy:.2} %");
    accuracy
}

#[test]
fn momentum_ahead_of_the_residual_keeps_up_with_dense_momentum() {
    let dense = accuracy_with_momentum("none", Some(0.9));
    let dgc = accuracy_with_momentum("dgc:density=0.01,warmup=1", None);
    assert!(dense > 90.0, "dense training itself must work: {dense}");
    assert!((dgc - dense).abs() <= 2.0, "dgc {dgc}, dense {dense}");
}

#[test]
fn the_quick_starts_codecs_reach_what_dense_reaches() {
    let dense = accuracy("none");
    for codec in gradwire_trainer::compare::quickstart::CODECS {
        let compressed = accuracy(codec);
        assert!((compressed - dense).abs() <= 2.0, "{codec} {compressed}, dense {dense}");
    }
}
