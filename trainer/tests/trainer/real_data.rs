//! The real data sets in the folder `data` of the one that `GRADWIRE_DATA` names; skipped, and saying so,
//! where it is not set.

use std::io::Write;
use std::path::{Path, PathBuf};

use gradwire_trainer::config::{RunConfig, Settings};
use gradwire_trainer::data::{Dataset, Level, Part, cifar, idx, text};
use gradwire_trainer::job::Job;
use gradwire_trainer::run::run;

use crate::{Quiet, word};

/// The folder of one data set, or a line on standard error that says the test did not run.
#[expect(clippy::explicit_write, reason = "the harness swallows what the macros print in a test that passes")]
fn folder(test: &str, data: &str) -> Option<PathBuf> {
    let root = std::env::var_os("GRADWIRE_DATA").filter(|root| !root.is_empty());
    let folder = root.map(|root| Path::new(&root).join("data").join(data));
    if folder.is_none() {
        writeln!(std::io::stderr(), "SKIPPED {test}: GRADWIRE_DATA is not set").unwrap();
    }
    folder
}

#[test]
fn fashion_mnist_has_the_published_counts() {
    let Some(folder) = folder("fashion_mnist_has_the_published_counts", "fashion-mnist") else { return };
    let Dataset::Images(images) = idx::load("fashion-mnist", &folder).unwrap() else { unreachable!() };
    assert_eq!(images.shape(), [1, 28, 28]);
    assert_eq!(images.part(Part::Train).class_counts(10), [6_000; 10]);
    assert_eq!(images.part(Part::Test).class_counts(10), [1_000; 10]);
    let scaling = images.scaling();
    assert!(
        (scaling.mean[0] - 0.2860).abs() < 1e-4 && (scaling.deviation[0] - 0.3530).abs() < 1e-4,
        "{scaling:?}"
    );
}

#[test]
fn cifar_10_has_the_published_colours() {
    let Some(folder) = folder("cifar_10_has_the_published_colours", "cifar-10/cifar-10-batches-bin") else {
        return;
    };
    let Dataset::Images(images) = cifar::load(&folder).unwrap() else { unreachable!() };
    let (train, test) = (images.part(Part::Train).len(), images.part(Part::Test).len());
    assert!(train > 0 && train.is_multiple_of(10_000) && test > 0, "{train} {test}");
    let scaling = images.scaling();
    for (channel, (mean, deviation)) in
        [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)].into_iter().enumerate()
    {
        // A part of the data set has a slightly different mean.
        assert!((scaling.mean[channel] - mean).abs() < 5e-3, "{scaling:?}");
        assert!((scaling.deviation[channel] - deviation).abs() < 5e-3, "{scaling:?}");
    }
}

#[test]
fn penn_treebank_has_the_published_counts() {
    let Some(folder) = folder("penn_treebank_has_the_published_counts", "ptb") else { return };
    let Dataset::Text(corpus) = text::load(&folder, Level::Words).unwrap() else { unreachable!() };
    let counts = [Part::Train, Part::Valid, Part::Test].map(|part| corpus.part(part).len());
    assert_eq!(counts, [929_589, 73_760, 82_430]);
    assert_eq!(corpus.vocabulary().len(), 10_000);
}

#[test]
fn wikitext_2_has_the_published_counts() {
    let Some(folder) = folder("wikitext_2_has_the_published_counts", "wikitext-2") else { return };
    let Dataset::Text(corpus) = text::load(&folder.join("test.txt"), Level::Words).unwrap() else {
        unreachable!()
    };
    assert_eq!(corpus.part(Part::Train).len() + corpus.part(Part::Test).len(), 245_569);
}

/// Trains a few steps on a data set of the user's, as the command line would.
fn trains(test: &str, data: &str, folder_name: &str) {
    let Some(folder) = folder(test, folder_name) else { return };
    let settings = Settings {
        data: Some(word(data)),
        data_dir: Some(folder),
        codec: Some("topk:density=0.01".to_owned()),
        batch: Some(32),
        workers: Some(2),
        steps: Some(8),
        eval_every: Some(0),
        ..Settings::default()
    };
    let job = Job::prepare(RunConfig::resolve(&settings).unwrap()).unwrap();
    let summary = run(&job, &mut Quiet::default()).unwrap().summary;
    println!("{data}: loss {:.3}, accuracy {:.3}", summary.final_loss, summary.accuracy);
    assert!(summary.final_loss.is_finite() && summary.ratio.unwrap() > 50.0, "{summary:?}");
}

#[test]
fn fashion_mnist_trains() {
    trains("fashion_mnist_trains", "fashion-mnist", "fashion-mnist");
}

#[test]
fn cifar_10_trains() {
    trains("cifar_10_trains", "cifar-10", "cifar-10/cifar-10-batches-bin");
}

#[test]
fn penn_treebank_trains() {
    trains("penn_treebank_trains", "characters", "ptb");
}
