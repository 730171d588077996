//! AdamW of which workers exchange the updates: what it is without compression, and that with compression
//! nothing gets lost.

use gradwire::Memory;
use gradwire_trainer::checkpoint::Checkpoint;
use gradwire_trainer::config::{RunConfig, ScheduleKind, Settings};
use gradwire_trainer::fragments::Fragment;
use gradwire_trainer::job::Job;
use gradwire_trainer::record::Metrics;
use gradwire_trainer::run::{Observer, run};

use crate::command_line::trainer;
use crate::means::{Heard, heard_by};
use crate::{Quiet, digits_job, word};

fn job(optimizer: &str, codec: &str, steps: u64, change: impl FnOnce(&mut Settings)) -> Job {
    digits_job(codec, steps, |settings| {
        settings.optimizer = Some(word(optimizer));
        (settings.schedule, settings.warmup) = (Some(ScheduleKind::Cosine), Some(3));
        (settings.beta2, settings.clip) = (Some(0.95), Some(0.5));
        change(settings);
    })
}

#[test]
fn dense_updates_of_one_worker_make_the_bits_of_adamw() {
    let changes: [fn(&mut Settings); 5] = [
        |_| (),
        |settings| settings.weight_decay = Some(0.0),
        |settings| settings.accumulate = Some(4),
        |settings| settings.delayed = Some(true),
        |settings| (settings.beta2, settings.clip) = (None, None),
    ];
    let mut seen = Vec::new();
    for change in changes {
        let hash = |optimizer| {
            let job = job(optimizer, "none", 12, |settings| {
                settings.workers = Some(1);
                change(settings);
            });
            run(&job, &mut Quiet::default()).unwrap().summary.params_hash
        };
        assert_eq!(hash("adamw-updates"), hash("adamw"));
        seen.push(hash("adamw"));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), changes.len(), "a change that changes nothing");
}

/// The updates of one worker, in `f64` and written down once more: clipped gradients, moments, quotients.
pub(crate) fn naive_updates(grads: &[Vec<f32>], clip: f64, beta2: f64) -> Vec<Vec<f64>> {
    let len = grads[0].len();
    let (mut mean, mut square) = (vec![0.0; len], vec![0.0; len]);
    let one = |(at, grad): (usize, &Vec<f32>)| -> Vec<f64> {
        let norm = grad.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let (shorter, count) = ((clip / norm).min(1.0), at as i32 + 1);
        let of = |n: usize| {
            let g = f64::from(grad[n]) * shorter;
            mean[n] = 0.9 * mean[n] + 0.1 * g;
            square[n] = beta2 * square[n] + (1.0 - beta2) * g * g;
            let root = (square[n] / (1.0 - beta2.powi(count))).sqrt();
            mean[n] / (1.0 - 0.9_f64.powi(count)) / (root + 1e-8)
        };
        (0..len).map(of).collect()
    };
    grads.iter().enumerate().map(one).collect()
}

/// Keeps the checkpoint of the end.
#[derive(Default)]
pub(crate) struct Last(pub(crate) Option<Checkpoint>);

impl Observer for Last {
    fn step(&mut self, _: &Metrics) -> Result<(), String> {
        Ok(())
    }

    fn refused(&mut self, step: u64, why: &str) {
        panic!("step {step}: {why}");
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        self.0 = Some(checkpoint.clone());
        Ok(())
    }
}

/// What each worker keeps back at the end.
pub(crate) fn residuals(job: &Job, checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    let residual = |kept: &Vec<u8>| {
        let file = safetensors::SafeTensors::deserialize(kept).unwrap();
        let of_fragment = |(at, fragment): (usize, &Fragment)| {
            let layout = fragment.layout.as_ref();
            let Some(mut memory) = Memory::for_spec(&job.spec, &layout) else {
                return vec![0.0; layout.len()];
            };
            let name = if at == 0 { "memory".to_owned() } else { format!("memory.{at}") };
            memory.load(&layout, file.tensor(&name).unwrap().data()).unwrap();
            memory.residual().to_vec()
        };
        job.fragments.iter().enumerate().flat_map(of_fragment).collect()
    };
    checkpoint.memories.iter().map(residual).collect()
}

/// Without weight decay, parameters move by the rate times the mean update of each step, except for what
/// workers still keep back, which counts at the last rate.
fn assert_conserved(job: &Job, heard: &[Heard], checkpoint: &Checkpoint) {
    let updates: Vec<_> = heard.iter().map(|worker| naive_updates(&worker.grads, 0.5, 0.95)).collect();
    let residuals = residuals(job, checkpoint);
    let (workers, last) = (heard.len() as f64, f64::from(job.schedule.lr(job.steps - 1)));
    let [first, end] = [heard[0].params.first().unwrap(), heard[0].params.last().unwrap()];
    let mut farthest = 0.0_f64;
    for at in 0..first.len() {
        let lr = |step: usize| f64::from(job.schedule.lr(step as u64));
        let due: f64 = updates
            .iter()
            .flat_map(|of| of.iter().enumerate())
            .map(|(step, update)| lr(step) * update[at])
            .sum();
        let kept: f64 = residuals.iter().map(|residual| last * f64::from(residual[at])).sum();
        let moved = f64::from(first[at]) - f64::from(end[at]);
        farthest = farthest.max((due / workers - kept / workers - moved).abs());
    }
    // Updates have values of about 1, the sum of all rates is about 0.02.
    assert!(farthest < 2e-6, "{}: {farthest}", job.config.codec);
}

#[test]
fn what_is_kept_back_and_what_moves_the_parameters_is_the_sum_of_all_updates() {
    let codecs = [
        ("none", "auto"),
        ("topk:density=0.02", "auto"),
        ("topk:density=0.02,values=q4", "sparse"),
        ("topk:density=0.05,chunk=64", "server"),
        ("randomk:density=0.1", "auto"),
        ("threshold:value=0.9", "auto"),
        ("efsign", "auto"),
        ("powersgd:rank=2", "auto"),
        ("qsgd:bits=4,rounding=nearest", "auto"),
    ];
    for (codec, exchange) in codecs {
        let job = job("adamw-updates", codec, 14, |settings| {
            (settings.exchange, settings.weight_decay) = (Some(word(exchange)), Some(0.0));
            (settings.workers, settings.batch) = (Some(3), Some(48));
            settings.checkpoint_every = Some(14);
        });
        let mut last = Last::default();
        let heard = heard_by(&job, &mut last);
        assert_conserved(&job, &heard, &last.0.unwrap());
    }
}

/// What moves in the steps of one worker is the largest of residual + update, by as much, outside of the
/// decay. Which of equal ones moves is not asked: in the first step all updates are 1 or -1, up to rounding.
#[test]
fn top_k_of_updates_takes_the_steps_of_a_naive_form() {
    let (density, decay) = (0.03, 0.2);
    let job = job("adamw-updates", &format!("topk:density={density}"), 8, |settings| {
        (settings.workers, settings.batch, settings.weight_decay) = (Some(1), Some(16), Some(decay));
    });
    let heard = &heard_by(&job, &mut Quiet::default())[0];
    let (len, updates) = (job.layout.len(), naive_updates(&heard.grads, 0.5, 0.95));
    let (mut kept, mut last_rate) = (vec![0.0; len], None);
    for (step, update) in updates.iter().enumerate() {
        let lr = f64::from(job.schedule.lr(step as u64));
        let before = last_rate.replace(lr).unwrap_or(lr);
        kept.iter_mut().zip(update).for_each(|(kept, update)| *kept = *kept * before / lr + update);
        let moved = |at: usize| {
            let [from, to] = [step, step + 1].map(|of| f64::from(heard.params[of][at]));
            from * (1.0 - lr * decay) - to
        };
        let (sent, others): (Vec<usize>, Vec<usize>) = (0..len).partition(|&at| moved(at).abs() > 0.1 * lr);
        assert_eq!(sent.len(), (density * len as f64).round() as usize, "step {step}");
        let largest = others.iter().map(|&at| kept[at].abs()).fold(0.0, f64::max);
        for at in sent {
            assert!((moved(at) - lr * kept[at]).abs() < 1e-6, "step {step}: {} {}", moved(at), lr * kept[at]);
            assert!(kept[at].abs() > largest - 1e-4, "step {step}: {} {largest}", kept[at]);
            kept[at] = 0.0;
        }
        assert!(others.iter().all(|&at| moved(at).abs() < 1e-6), "step {step}: what was not sent moves");
    }
}

#[test]
fn a_note_says_which_codecs_adamw_and_muon_do_not_go_with_and_what_does() {
    let notes = |codec: &str, optimizer: &str, local_steps| {
        let (codec, optimizer) = (Some(codec.to_owned()), Some(word(optimizer)));
        let settings = Settings { codec, optimizer, local_steps, ..Settings::default() };
        RunConfig::resolve(&settings).unwrap().notes().join("; ")
    };
    let says =
        |notes: String| notes.contains("trains worse on what") && notes.contains("qsgd:bits=4 goes with it");
    for codec in ["topk", "randomk", "threshold:value=1", "sidco", "redsync", "powersgd", "efsign"] {
        assert!(says(notes(codec, "adamw", None)), "{codec}");
        assert!(says(notes(codec, "muon", None)), "{codec}");
        assert!(!says(notes(codec, "adamw-updates", None)), "{codec}");
        assert!(!says(notes(codec, "adamw", Some(4))), "{codec}: local steps exchange no gradients");
        assert!(!says(notes(codec, "sgd", None)), "{codec}");
    }
    for codec in ["none", "qsgd", "maxnorm", "bf16", "choco", "powergossip", "dpsgd"] {
        assert!(!says(notes(codec, "adamw", None)), "{codec}");
        assert!(!says(notes(codec, "muon", None)), "{codec}");
    }
}

#[test]
fn the_codec_of_a_rule_is_compared_with_the_optimizer_too() {
    let doubt = |rules: &str, optimizer: &str| {
        let (rules, optimizer) = (Some(rules.to_owned()), Some(word(optimizer)));
        RunConfig::resolve(&Settings { rules, optimizer, ..Settings::default() }).unwrap().doubt()
    };
    for (rules, misfit) in [
        ("embed.*=topk:density=0.001; qsgd:bits=4", "on what topk:density=0.001 leaves"),
        ("*.bias=none; embed.*=efsign; none", "on what efsign leaves"),
        ("*.bias=none; topk", "on what topk:density=0.01 leaves"),
    ] {
        let said = doubt(rules, "adamw").unwrap();
        assert!(said.contains(misfit), "{said}");
        assert_eq!(doubt(rules, "sgd"), None, "{rules}");
    }
    assert_eq!(doubt("*.bias=none; qsgd:bits=4", "adamw"), None);
}

#[test]
fn what_does_not_go_together_is_said_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    for (optimizer, is_said) in [("adamw", true), ("sgd", false)] {
        let arguments =
            ["train", "--steps", "3", "--codec", "topk", "--optimizer", optimizer, "--out", optimizer];
        let output = trainer(folder.path(), &arguments);
        let lines = String::from_utf8(output.stderr).unwrap();
        let first = lines.lines().next().unwrap();
        assert!(output.status.success() && lines.contains(": step 1/3, loss "), "{lines}");
        assert_eq!(first.contains("adamw trains worse on what topk:density=0.01 leaves"), is_said, "{lines}");
    }
}

#[test]
fn what_does_not_go_with_updates_is_refused_in_words() {
    let refused = |optimizer: &str, change: fn(&mut Settings)| {
        let mut settings = Settings { optimizer: Some(word(optimizer)), ..Settings::default() };
        change(&mut settings);
        RunConfig::resolve(&settings).unwrap_err().to_string()
    };
    assert_eq!(
        refused("adamw-updates", |settings| settings.clip_mean = Some(1.0)),
        "clip_mean with optimizer = adamw-updates: the mean is one of updates; clip shortens gradients"
    );
    assert_eq!(
        refused("adamw-updates", |settings| settings.codec = Some("dpsgd".to_owned())),
        "optimizer = adamw-updates with codec = dpsgd: gossip exchanges models; use adamw"
    );
    assert_eq!(
        refused("sgd", |settings| settings.beta2 = Some(0.95)),
        "beta2 with optimizer = sgd: it belongs to adamw, adamw-updates and muon"
    );
    let momentum = refused("adamw-updates", |settings| settings.momentum = Some(0.9));
    assert_eq!(
        momentum,
        "momentum with optimizer = adamw-updates: it has moments of its own; momentum belongs to sgd"
    );
}

#[test]
fn a_second_momentum_beside_that_of_a_codec_is_refused() {
    let resolved = |codec: &str, change: fn(&mut Settings)| {
        let mut settings = Settings { codec: Some(codec.to_owned()), ..Settings::default() };
        change(&mut settings);
        RunConfig::resolve(&settings).map(|_| ()).map_err(|error| error.to_string())
    };
    let momentum: fn(&mut Settings) = |settings| settings.momentum = Some(0.9);
    let nesterov: fn(&mut Settings) =
        |settings| (settings.momentum, settings.nesterov) = (Some(0.9), Some(true));
    for codec in ["dgc", "sketch:momentum=0.5", "sketch:moments=amsgrad"] {
        for change in [momentum, nesterov] {
            let why = resolved(codec, change).unwrap_err();
            assert!(why.ends_with("the codec has its own momentum; set it in the codec"), "{codec}: {why}");
        }
        assert_eq!(resolved(codec, |settings| settings.momentum = Some(0.0)), Ok(()), "{codec}");
    }
    for codec in ["topk", "dgc:momentum=0", "sketch:momentum=0", "sketch:error=workers", "none"] {
        assert_eq!(resolved(codec, momentum), Ok(()), "{codec}");
    }
}
