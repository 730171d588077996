//! Rows with made-up results, for tests.

use serde_json::json;

use super::{Comparison, Entry};
use crate::config::{RunConfig, Settings};
use crate::record::{Metrics, Summary};
use crate::run::Outcome;

/// A comparison of these rows: images of ten classes, or text of ten tokens.
pub(crate) fn comparison(entries: Vec<Entry>) -> Comparison {
    let config = entries[0].config.clone();
    let seeds = entries[0].outcomes.len();
    Comparison { entries, config, params: 1, steps: 1, seeds, is_text: false, choices: 10 }
}

/// A row of one run for each quality, with seeds from 1: an accuracy up to 1, or a perplexity above it. The
/// loss on the validation part at the end is the quality too.
pub(crate) fn entry(codec: &str, lr: f64, qualities: &[f64], bytes: u64) -> Entry {
    let settings = Settings { codec: Some(codec.to_owned()), lr: Some(lr), ..Settings::default() };
    let config = RunConfig::resolve(&settings).unwrap();
    let seeded = (1..).zip(qualities);
    let outcomes = seeded.map(|(seed, &quality)| outcome(codec, seed, quality, bytes)).collect();
    Entry { label: codec.to_owned(), config, outcomes, broken: Vec::new() }
}

fn outcome(codec: &str, seed: u64, quality: f64, bytes: u64) -> Outcome {
    let mut summary = json!({
        "codec": codec, "data": "d", "model": "m", "params": 1, "workers": 2, "seed": seed, "steps": 1,
        "refused_steps": 0, "final_loss": 0.5, "train_loss": 0.5, "accuracy": quality,
        "accuracy_resolution": 0.001, "bytes_up": bytes, "bytes_down": bytes, "ratio": 1.0,
        "wire_ratio": 1.0, "seconds": 1.0, "compute_seconds": 1.0, "encode_seconds": 1.0,
        "exchange_seconds": 1.0, "decode_seconds": 1.0, "break_even_gbps": null, "params_hash": "",
        "notes": [],
    });
    if quality > 1.0 {
        summary["perplexity"] = json!(quality);
    }
    let metrics = json!({
        "step": 0, "epoch": 0, "loss": 0.5, "lr": 0.1, "bytes_up": bytes, "bytes_down": bytes, "ratio": 1.0,
        "wire_ratio": 1.0, "contributors": 2, "encode_ns": 1, "exchange_ns": 1, "decode_ns": 1,
        "residual_norm": 0.0, "density": 1.0, "target_density": null, "eval_loss": quality,
    });
    let summary: Summary = serde_json::from_value(summary).unwrap();
    let metrics: Metrics = serde_json::from_value(metrics).unwrap();
    Outcome { summary, metrics: vec![metrics], counters: Vec::new() }
}
