//! Muon: which tensors it moves, that all others move as with AdamW, and where it is refused.

use gradwire_trainer::config::{RunConfig, Settings};
use gradwire_trainer::job::Job;

use crate::means::heard_by;
use crate::{Quiet, word};

fn settings(optimizer: &str, change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings {
        optimizer: Some(word(optimizer)),
        codec: Some("none".to_owned()),
        steps: Some(2),
        eval_every: Some(0),
        ..Settings::default()
    };
    change(&mut settings);
    settings
}

fn job(optimizer: &str, change: impl FnOnce(&mut Settings)) -> Result<Job, String> {
    let config = RunConfig::resolve(&settings(optimizer, change)).unwrap();
    Job::prepare(config).map_err(|error| error.to_string())
}

/// The names of the tensors that the first step moves to other places than with AdamW.
fn moved_otherwise(change: fn(&mut Settings)) -> Vec<String> {
    let [muon, adamw] = ["muon", "adamw"].map(|optimizer| {
        let job = job(optimizer, change).unwrap();
        let params = heard_by(&job, &mut Quiet::default()).swap_remove(0).params.swap_remove(1);
        (job, params)
    });
    let tensors = muon.0.layout.tensors();
    let differs = |at: usize| muon.1[at].to_bits() != adamw.1[at].to_bits();
    let is_moved = |offset: usize, len: usize| (offset..offset + len).any(differs);
    tensors
        .iter()
        .filter(|tensor| is_moved(tensor.offset, tensor.shape.iter().product()))
        .map(|tensor| tensor.name.clone())
        .collect()
}

#[test]
fn matrices_between_the_first_and_the_last_layer_are_muons_and_all_else_is_adamws() {
    let of_block = |block: usize| {
        ["attention.qkv", "attention.out", "mlp.up", "mlp.down"]
            .map(|name| format!("blocks.{block}.{name}.weight"))
    };
    let gpt = moved_otherwise(|settings| {
        (settings.data, settings.batch) = (Some(word("tiny-shakespeare")), Some(4));
    });
    assert_eq!(gpt, [of_block(0), of_block(1)].concat());
    let mlp = moved_otherwise(|settings| settings.hidden = Some(vec![16, 16, 16]));
    assert_eq!(mlp.len(), 2, "{mlp:?}");
}

#[test]
fn a_model_without_such_a_matrix_is_refused() {
    let error = job("muon", |settings| settings.hidden = Some(vec![16])).unwrap_err();
    assert!(error.contains("no matrix between its first and its last layer"), "{error}");
    let cnn = job("muon", |settings| settings.model = Some(word("cnn"))).unwrap_err();
    assert!(cnn.contains("no matrix between its first and its last layer"), "{cnn}");
}
