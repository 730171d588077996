//! Replicas that only meet their neighbours.

use gradwire_trainer::config::{ExchangeKind, RunConfig, Settings, TopologyKind, WireKind};
use gradwire_trainer::data::Part;
use gradwire_trainer::job::Job;
use gradwire_trainer::model::eval::evaluate;
use gradwire_trainer::record::Summary;
use gradwire_trainer::run::run;

use crate::{Quiet, digits_job, word};

const TOPOLOGIES: [&str; 4] = ["ring", "torus", "complete", "exponential"];

/// A run of six workers: on a ring each meets two of the five others, on a torus three.
fn summary(codec: &str, topology: Option<&str>, seed: u64) -> Summary {
    let job = digits_job(codec, 100, |settings| {
        (settings.seed, settings.lr) = (Some(seed), Some(0.1));
        (settings.workers, settings.batch) = (Some(6), Some(126));
        settings.topology = topology.map(word);
    });
    run(&job, &mut Quiet::default()).unwrap().summary
}

#[test]
fn gossip_trains_as_well_as_the_mean_on_every_topology_and_repeats_bit_by_bit() {
    let dense = summary("none", None, 3);
    let mut hashes = Vec::new();
    for topology in TOPOLOGIES {
        let mixed = summary("dpsgd", Some(topology), 3);
        assert!(
            mixed.accuracy > dense.accuracy - 0.02,
            "{topology}: {} against {}",
            mixed.accuracy,
            dense.accuracy
        );
        assert_eq!(mixed.params_hash, summary("dpsgd", Some(topology), 3).params_hash, "{topology}");
        assert!(mixed.notes.iter().any(|note| note.contains("those of their mean")));
        hashes.push(mixed.params_hash);
    }
    hashes.push(summary("dpsgd", Some("ring"), 4).params_hash);
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 5, "topology and seed matter");
    assert_eq!(summary("dpsgd", None, 3).params_hash, summary("dpsgd", Some("ring"), 3).params_hash);
}

/// Who moves all the way to the mean of all models applies the mean of all gradients, but for rounding.
#[test]
fn on_the_complete_graph_gossip_is_descent_along_the_mean() {
    let (mixed, dense) = (summary("dpsgd", Some("complete"), 5), summary("none", None, 5));
    assert!(
        (mixed.final_loss - dense.final_loss).abs() < 1e-3,
        "{} and {}",
        mixed.final_loss,
        dense.final_loss
    );
    // Each model goes to five others; around the ring, each gradient is sent ten sixths times.
    let ratio = mixed.bytes_up as f64 / dense.bytes_up as f64;
    assert!((2.9..3.1).contains(&ratio), "{ratio}");
}

/// Against a mean and distances in f64, of the replicas of the last checkpoint.
fn evaluates_the_mean(job: &Job) {
    let (outcome, keeper) = crate::checkpoints::run(job, None);
    let (outcome, made) = (outcome.unwrap(), keeper.checkpoints.last().unwrap());
    let replicas: Vec<&[f32]> = made.replicas.iter().map(|replica| &replica.params[..]).collect();
    let (world, codec) = (replicas.len() as f64, &job.config.codec);
    assert_eq!(replicas.len(), job.config.workers);
    let mean: Vec<f64> = (0..job.layout.len())
        .map(|at| replicas.iter().map(|params| f64::from(params[at])).sum::<f64>() / world)
        .collect();
    let square = |params: &[f32]| -> f64 {
        params.iter().zip(&mean).map(|(own, mean)| (f64::from(*own) - mean).powi(2)).sum()
    };
    let apart = (replicas.iter().map(|params| square(params)).sum::<f64>() / world).sqrt();
    let loss = |params: &[f32]| {
        let mut model = job.build_model().unwrap();
        model.set_params(params);
        let (items, context) = job.model.at_once();
        evaluate(model.as_mut(), &job.dataset, Part::Test, items, context).unwrap().loss()
    };
    let (summary, expected) =
        (&outcome.summary, loss(&mean.iter().map(|&value| value as f32).collect::<Vec<_>>()));
    let is_near = |one: f64, other: f64| (one - other).abs() < 1e-5 * other;
    assert!(is_near(summary.final_loss, expected), "{codec}: {} {expected}", summary.final_loss);
    assert!(is_near(summary.consensus_distance.unwrap(), apart), "{codec}: {summary:?} {apart}");
    assert!(replicas.iter().all(|params| !is_near(loss(params), expected)), "{codec}");
    for line in &outcome.metrics {
        let is_due = (line.step + 1).is_multiple_of(4);
        assert_eq!(
            (line.eval_loss.is_some(), line.consensus_distance.is_some()),
            (is_due, is_due),
            "{codec}"
        );
    }
}

#[test]
fn what_is_evaluated_is_the_mean_of_all_replicas() {
    let each =
        |settings: &mut Settings| (settings.eval_every, settings.checkpoint_every) = (Some(4), Some(12));
    for codec in ["dpsgd", "powergossip:rank=1", "choco:density=0.1"] {
        evaluates_the_mean(&digits_job(codec, 12, |settings| {
            (settings.workers, settings.batch) = (Some(6), Some(126));
            each(settings);
        }));
    }
    // One worker reads all of a text.
    let mut settings = crate::recurrent::settings(4, 1);
    (settings.codec, settings.steps, settings.epochs) = (Some("dpsgd".into()), Some(12), None);
    each(&mut settings);
    evaluates_the_mean(&crate::recurrent::job_of(&settings));
    assert_eq!(summary("none", None, 3).consensus_distance, None, "replicas are the same");
}

/// Factors are far smaller than the models, and train as well.
#[test]
fn gossip_of_factors_trains_as_well_as_that_of_whole_models_for_fewer_bytes() {
    let (whole, thin) = (summary("dpsgd", Some("ring"), 3), summary("powergossip:rank=1", Some("ring"), 3));
    assert!(thin.accuracy > whole.accuracy - 0.02, "{} against {}", thin.accuracy, whole.accuracy);
    assert!(thin.bytes_up < whole.bytes_up / 8, "{} and {}", thin.bytes_up, whole.bytes_up);
    let again = summary("powergossip:rank=1", Some("ring"), 3);
    assert_eq!(thin.params_hash, again.params_hash);
}

#[test]
fn what_does_not_go_with_gossip_is_refused_in_words() {
    let refused = |change: fn(&mut Settings), why: &str| {
        let mut settings = Settings::default();
        change(&mut settings);
        let error = RunConfig::resolve(&settings).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(
        |settings| settings.exchange = Some(ExchangeKind::Gossip),
        "use codec dpsgd or powergossip or choco",
    );
    refused(|settings| settings.topology = Some(TopologyKind::Ring), "topology with codec");
    refused(
        |settings| {
            (settings.codec, settings.exchange) = (Some("dpsgd".into()), Some(ExchangeKind::AllGather));
        },
        "neighbours exchange their models; use gossip",
    );
    refused(
        |settings| {
            (settings.codec, settings.wire) = (Some("dpsgd".into()), Some(WireKind::Bf16));
        },
        "wire with exchange",
    );
}
