//! Runs that end when validation gets no better, and evaluations that workers share.

use gradwire_trainer::checkpoint::latest;
use gradwire_trainer::config::{ExchangeKind, RunConfig, Settings, TransportKind};
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;
use gradwire_trainer::record::folder::Folder;
use gradwire_trainer::run::in_folder::{resume_into, run_into};
use gradwire_trainer::run::{Outcome, run};

use crate::{Quiet, digits_job, led};

/// A run at a rate that makes its loss jump up and down, which is evaluated every third step.
fn restless(limit: Option<u64>) -> Job {
    digits_job("none", 120, |settings| {
        (settings.lr, settings.eval_every, settings.early_stop) = (Some(2.0), Some(3), limit);
        settings.checkpoint_every = Some(9);
    })
}

/// After how many steps a run that evaluated so ends, and after how many its loss was smallest.
fn expected(metrics: &[Metrics], limit: usize) -> (u64, u64) {
    let losses: Vec<(u64, f64)> =
        metrics.iter().filter_map(|line| Some((line.step + 1, line.eval_loss?))).collect();
    let (mut best, mut worse) = ((0, f64::INFINITY), 0);
    for (steps, loss) in losses {
        if loss < best.1 {
            (best, worse) = ((steps, loss), 0);
        } else {
            worse += 1;
        }
        if worse == limit {
            return (steps, best.0);
        }
    }
    (metrics.len() as u64, best.0)
}

fn timeless(outcome: &Outcome) -> (u64, Option<u64>, String, u64, u64) {
    let summary = &outcome.summary;
    let [loss, accuracy] = [summary.final_loss, summary.accuracy].map(f64::to_bits);
    (summary.steps, summary.best_steps, summary.params_hash.clone(), loss, accuracy)
}

#[test]
fn a_run_ends_after_so_many_evaluations_without_a_better_one_and_is_tested_where_it_was_best() {
    let whole = run(&restless(None), &mut Quiet::default()).unwrap();
    let (steps, best) = expected(&whole.metrics, 4);
    assert!(steps < 120 && best < steps, "{steps} {best}");
    let stopped = run(&restless(Some(4)), &mut Quiet::default()).unwrap();
    assert_eq!((stopped.summary.steps, stopped.summary.best_steps), (steps, Some(best)));
    assert_eq!(stopped.metrics.len() as u64, steps);
    // The digits have no validation part of their own: the smallest loss is that of the test.
    let smallest = stopped.metrics[best as usize - 1].eval_loss.unwrap();
    assert_eq!(stopped.summary.final_loss, smallest);
    let note = format!("the validation loss was smallest after {best} of {steps} steps");
    assert!(stopped.summary.notes.iter().any(|line| line.contains(&note)), "{:?}", stopped.summary.notes);
}

#[test]
fn processes_end_a_run_early_where_threads_do() {
    let job = restless(Some(4));
    let threads = run(&job, &mut Quiet::default()).unwrap();
    assert_eq!(timeless(&led(&job)), timeless(&threads));
}

/// From every checkpoint: also from the last one, behind which there is nothing to do.
#[test]
fn a_run_that_goes_on_from_a_checkpoint_ends_early_where_it_would_have() {
    let folder = tempfile::tempdir().unwrap();
    let job = restless(Some(4));
    let whole = run_into(&job, &Folder::create(folder.path(), false).unwrap(), "", 0).unwrap();
    let mut paths: Vec<_> = std::fs::read_dir(folder.path().join("checkpoints")).unwrap().collect();
    assert_eq!(paths.len(), 2);
    for path in paths.drain(..) {
        let checkpoint = latest(&path.unwrap().path()).unwrap().read_all(&job.layout).unwrap();
        assert!(checkpoint.best.is_some());
        let run = Folder::open(folder.path()).unwrap();
        let resumed = resume_into(&job, &run, &checkpoint, "", 0).unwrap();
        assert_eq!(timeless(&resumed), timeless(&whole), "from step {}", checkpoint.steps);
    }
}

#[test]
fn images_are_evaluated_by_all_workers_with_the_result_of_one() {
    let by = |workers| {
        let job = digits_job("none", 3, |settings| {
            // One batch for one worker, in the order of the sums of the run with several.
            (settings.workers, settings.batch) = (Some(workers), Some(32));
            (settings.exchange, settings.eval_every) = (Some(ExchangeKind::AllGather), Some(1));
            settings.accumulate = Some(4 / workers);
        });
        run(&job, &mut Quiet::default()).unwrap()
    };
    let (one, four) = (by(1), by(4));
    assert_eq!(one.summary.params_hash, four.summary.params_hash);
    assert_eq!(one.summary.accuracy, four.summary.accuracy);
    assert!((one.summary.final_loss - four.summary.final_loss).abs() < 1e-12);
    for (a, b) in one.metrics.iter().zip(&four.metrics) {
        assert_eq!(a.accuracy, b.accuracy);
    }
    // What evaluating takes is no part of the traffic.
    let quiet = digits_job("none", 3, |settings| {
        (settings.batch, settings.exchange) = (Some(32), Some(ExchangeKind::AllGather));
    });
    let quiet = run(&quiet, &mut Quiet::default()).unwrap();
    assert_eq!(four.summary.bytes_up, quiet.summary.bytes_up);
}

#[test]
fn what_cannot_end_early_is_refused_in_words() {
    let refused = |change: fn(&mut Settings)| {
        let mut settings = Settings { early_stop: Some(3), ..Settings::default() };
        change(&mut settings);
        RunConfig::resolve(&settings).unwrap_err().to_string()
    };
    let never = refused(|settings| settings.eval_every = Some(0));
    assert_eq!(never, "early_stop with eval_every = 0: it needs evaluations");
    assert_eq!(refused(|settings| settings.early_stop = Some(0)), "early_stop = 0: expected at least 1");
    let gossip = refused(|settings| settings.codec = Some("dpsgd".to_owned()));
    assert!(gossip.starts_with("early_stop with gossip"), "{gossip}");
    let served = refused(|settings| settings.transport = Some(TransportKind::Zmq));
    assert!(served.starts_with("early_stop with transport = zmq"), "{served}");
}
