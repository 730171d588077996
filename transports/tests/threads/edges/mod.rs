//! Codecs that keep something for each edge, against their definitions.

mod choco;
mod powergossip;

use std::thread;
use std::time::Duration;

use gradwire::{Layout, Source, Spec, StepKey};
use gradwire_transports::gossip::{Mixer, Topology};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Rank, Transport};

const PATIENCE: Duration = Duration::from_secs(60);
/// Two matrices, one of them of three dimensions, and two vectors.
const SHAPES: [(&str, &[usize]); 4] = [("w", &[9, 7]), ("b", &[9]), ("k", &[4, 3, 5]), ("c", &[4])];

fn layout() -> Layout {
    Layout::packed(SHAPES.map(|(name, shape)| (name, shape.to_vec()))).unwrap()
}

/// What each rank has: its model, and the factors of its edges.
type State = (Vec<f32>, Vec<(Rank, Vec<f32>)>);

const TOPOLOGIES: [Topology; 4] =
    [Topology::Ring, Topology::Torus, Topology::Complete, Topology::Exponential];

fn fresh(world: u32) -> Vec<State> {
    drawn(5, world)
}

/// Models without any edges yet.
fn drawn(seed: u64, world: u32) -> Vec<State> {
    let model = |rank| {
        let stream = StepKey { seed, step: 0, source: Source::Rank(rank) }.stream(0);
        (0..layout().len() as u64).map(|at| stream.u64_at(at) as i32 as f32 / 1e9).collect()
    };
    (0..world).map(|rank| (model(rank), Vec::new())).collect()
}

/// Mixes from one step to another, with zero gradients. Returns also the bytes that each rank sent in the
/// last step.
fn mixed(
    spelling: &'static str,
    topology: Topology,
    states: Vec<State>,
    steps: std::ops::Range<u64>,
) -> (Vec<State>, Vec<usize>) {
    let run = move |mut transport: LocalTransport, (mut model, edges): State, steps: std::ops::Range<u64>| {
        let me = transport.rank();
        let mut mixer = Mixer::new(Spec::parse(spelling).unwrap(), layout(), topology).unwrap();
        for (neighbour, kept) in edges {
            assert!(mixer.restore_edge(me, neighbour, &kept));
        }
        let mut sent = 0;
        for step in steps {
            let key = StepKey { seed: 7, step, source: Source::Rank(me.0) };
            sent = mixer.mix(&mut transport, key, &mut model, Deadline::after(PATIENCE)).unwrap().sent_bytes;
        }
        ((model, mixer.edges().map(|(rank, kept)| (rank, kept.to_vec())).collect()), sent)
    };
    let ends = local::world(states.len() as u32).into_iter().zip(states);
    let threads: Vec<_> = ends
        .map(|(transport, state)| {
            let steps = steps.clone();
            thread::spawn(move || run(transport, state, steps))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).unzip()
}

/// Root of the mean square distance of models from their mean.
fn spread(models: &[Vec<f64>]) -> f64 {
    let len = models[0].len();
    let squares = (0..len).map(|at| {
        let mean = models.iter().map(|model| model[at]).sum::<f64>() / models.len() as f64;
        models.iter().map(|model| (model[at] - mean).powi(2)).sum::<f64>()
    });
    (squares.sum::<f64>() / (len * models.len()) as f64).sqrt()
}

/// Every coordinate of the mean is where it was, within rounding.
fn assert_mean_stays(begun: &[Vec<f64>], ended: &[Vec<f64>], what: &str) {
    for at in 0..layout().len() {
        let sum = |models: &[Vec<f64>]| models.iter().map(|model| model[at]).sum::<f64>();
        let moved = (sum(begun) - sum(ended)).abs();
        assert!(moved < 1e-4, "{what}: coordinate {at} moved by {moved}");
    }
}

fn wide(states: &[State]) -> Vec<Vec<f64>> {
    states.iter().map(|(model, _)| model.iter().map(|value| f64::from(*value)).collect()).collect()
}

fn bits(states: &[State]) -> Vec<Vec<u32>> {
    states.iter().map(|(model, _)| model.iter().map(|value| value.to_bits()).collect()).collect()
}
