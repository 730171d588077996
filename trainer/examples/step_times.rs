//! Milliseconds that one worker takes for a gradient: forward, backward, and the copy into the flat slice.
//!
//! `cargo run --release -p gradwire-trainer --example step_times` prints a line of JSON per model.
//! `benches/steps_against_pytorch.py` runs it and puts PyTorch on the same shapes beside it.

use std::time::Instant;

use gradwire_trainer::data::{Batch, Task};
use gradwire_trainer::model::{
    GptConfig, LstmConfig, ModelConfig, ModelError, ModelKind, Moment, ResNetConfig,
};
use gradwire_trainer::rng::{Draws, Purpose};

// As in the program `trainer`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn images(count: usize, [channels, height, width]: [usize; 3]) -> Batch {
    let mut draws = Draws::new(1, Purpose::Weights, 0, 1);
    let features = (0..count * channels * height * width).map(|_| draws.normal_f32()).collect();
    let labels = (0..count).map(|_| draws.below(10) as u32).collect();
    Batch::Images { shape: [count, channels, height, width], features, labels }
}

fn tokens(shape: [usize; 2], vocabulary: usize) -> Batch {
    let mut draws = Draws::new(1, Purpose::Weights, 0, 1);
    let mut tokens = || (0..shape[0] * shape[1]).map(|_| draws.below(vocabulary) as u32).collect();
    Batch::Tokens { shape, inputs: tokens(), targets: tokens() }
}

/// The median over `steps` gradients, after two that warm up.
fn time(name: &str, config: &ModelConfig, task: &Task, batch: &Batch, steps: u64) -> Result<(), ModelError> {
    let mut model = config.build(task, 1)?;
    let mut grad = vec![0.0; model.len()];
    let mut times = Vec::new();
    for step in 0..steps + 2 {
        let started = Instant::now();
        model.begin(Moment { seed: 1, rank: 0, step, starts_epoch: step == 0 });
        model.forward_backward(batch, &mut grad)?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let times = &mut times[2..];
    times.sort_by(f64::total_cmp);
    println!("{{\"model\": \"{name}\", \"params\": {}, \"ms\": {:.3}}}", model.len(), times[times.len() / 2]);
    Ok(())
}

fn main() -> Result<(), ModelError> {
    let grey = Task::Images { shape: [1, 28, 28], classes: 10 };
    let colour = Task::Images { shape: [3, 32, 32], classes: 10 };
    let (letters, words) = (Task::Tokens { vocabulary: 65 }, Task::Tokens { vocabulary: 10_000 });
    time("mlp", &ModelKind::Mlp.suited_to(&grey), &grey, &images(32, [1, 28, 28]), 100)?;
    time("cnn", &ModelKind::Cnn.suited_to(&colour), &colour, &images(32, [3, 32, 32]), 10)?;
    let resnet = ModelConfig::ResNet20(ResNetConfig::default());
    time("resnet20", &resnet, &colour, &images(32, [3, 32, 32]), 5)?;
    let gpt = ModelConfig::Gpt(GptConfig::default());
    time("gpt", &gpt, &letters, &tokens([32, 32], 65), 20)?;
    let lstm = ModelConfig::Lstm(LstmConfig { dropout: 0.2, ..LstmConfig::default() });
    time("lstm", &lstm, &words, &tokens([64, 35], 10_000), 5)
}
