//! Models that move towards their neighbours': against the definition, over every topology.

use std::thread;
use std::time::Duration;

use gradwire::random::Stream;
use gradwire::{EncodeError, Layout, Source, Spec, StepKey, UnitPolicy};
use gradwire_transports::exchange::ExchangeError;
use gradwire_transports::gossip::{Mixed, Mixer, Topology};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::common::learned::Learned;

const TOPOLOGIES: [Topology; 4] =
    [Topology::Ring, Topology::Torus, Topology::Complete, Topology::Exponential];
const PATIENCE: Duration = Duration::from_secs(60);

fn layout() -> Layout {
    Layout::packed([("w", vec![9, 7]), ("b", vec![5])]).unwrap()
}

fn model(rank: u32) -> Vec<f32> {
    drawn(5, rank)
}

fn drawn(seed: u64, rank: u32) -> Vec<f32> {
    let stream: Stream = StepKey { seed, step: 0, source: Source::Rank(rank) }.stream(0);
    (0..layout().len() as u64).map(|i| stream.u64_at(i) as i32 as f32 / 1e9).collect()
}

fn key(rank: u32, step: u64) -> StepKey {
    StepKey { seed: 7, step, source: Source::Rank(rank) }
}

fn mixer(spelling: &str, topology: Topology) -> Mixer {
    Mixer::new(Spec::parse(spelling).unwrap(), layout(), topology).unwrap()
}

/// Every rank's model after `steps`, and what it said of the last one.
fn mixed(world: u32, topology: Topology, steps: u64) -> Vec<(Vec<f32>, Mixed)> {
    mixed_from((0..world).map(model).collect(), topology, steps)
}

fn mixed_from(models: Vec<Vec<f32>>, topology: Topology, steps: u64) -> Vec<(Vec<f32>, Mixed)> {
    let run = move |mut transport: LocalTransport, mut model: Vec<f32>| {
        let (rank, mut mixer) = (transport.rank().0, mixer("dpsgd", topology));
        let mut last = None;
        for step in 1..=steps {
            last = mixer.mix(&mut transport, key(rank, step), &mut model, Deadline::after(PATIENCE)).ok();
        }
        (model, last.unwrap())
    };
    let ends = local::world(models.len() as u32).into_iter().zip(models);
    let threads: Vec<_> = ends.map(|(end, model)| thread::spawn(move || run(end, model))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// One step by definition: x + w·(x' − x) for each neighbour x', ascending.
fn by_definition(models: &[Vec<f32>], topology: Topology) -> Vec<Vec<f32>> {
    let (world, weight) = (models.len(), topology.weight(models.len()));
    let moved = |(at, model): (usize, &Vec<f32>)| {
        let mut moved = model.clone();
        for neighbour in topology.neighbours(world, at) {
            let pairs = models[neighbour].iter().zip(model);
            moved
                .iter_mut()
                .zip(pairs)
                .for_each(|(value, (theirs, mine))| *value += weight * (theirs - mine));
        }
        moved
    };
    models.iter().enumerate().map(moved).collect()
}

fn bits(models: &[Vec<f32>]) -> Vec<Vec<u32>> {
    models.iter().map(|model| model.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Largest distance of a model from the mean of all, over the coordinates.
fn spread(models: &[Vec<f32>]) -> f64 {
    let mean = |i: usize| models.iter().map(|model| f64::from(model[i])).sum::<f64>() / models.len() as f64;
    let distance =
        |i: usize| models.iter().map(move |model| (f64::from(model[i]) - mean(i)).abs()).fold(0.0, f64::max);
    (0..models[0].len()).map(distance).fold(0.0, f64::max)
}

#[test]
fn models_move_as_defined_bit_for_bit() {
    for topology in TOPOLOGIES {
        for world in 1..=9 {
            let mut expected: Vec<Vec<f32>> = (0..world).map(model).collect();
            for _ in 0..3 {
                expected = by_definition(&expected, topology);
            }
            let models: Vec<Vec<f32>> =
                mixed(world, topology, 3).into_iter().map(|(model, _)| model).collect();
            assert_eq!(bits(&models), bits(&expected), "{topology:?} of {world}");
        }
    }
}

/// The eigenvectors of the mixing matrix, each with its eigenvalue: waves of every frequency over the graph,
/// cos + sin, so that they are real. The first is the mean.
fn waves(topology: Topology, world: usize) -> Vec<(f64, Vec<f64>)> {
    let is_grid = topology == Topology::Torus;
    let rows = (1..=world.isqrt()).rev().find(|rows| is_grid && world.is_multiple_of(*rows)).unwrap_or(1);
    let columns = world / rows;
    let near = topology.neighbours(world, 0);
    let wave = |number: usize| {
        let turns = |at: usize| {
            let down = (number / columns * (at / columns)) as f64 / rows as f64;
            let across = (number % columns * (at % columns)) as f64 / columns as f64;
            std::f64::consts::TAU * (down + across)
        };
        let sum = 1.0 + near.iter().map(|at| turns(*at).cos()).sum::<f64>();
        let heights = (0..world).map(|at| turns(at).cos() + turns(at).sin());
        (sum / (1.0 + near.len() as f64), heights.collect())
    };
    (0..world).map(wave).collect()
}

/// The mean stays, and each wave of the differences decays by its eigenvalue.
#[test]
fn the_mean_stays_and_differences_decay_by_the_eigenvalues_of_the_graph() {
    for (seed, topology) in (0..3).flat_map(|seed| TOPOLOGIES.map(|topology| (seed, topology))) {
        for world in 1..=12 {
            let (before, steps) =
                ((0..world).map(|rank| drawn(seed, rank)).collect::<Vec<_>>(), 1 + 4 * seed);
            let after: Vec<_> =
                mixed_from(before.clone(), topology, steps).into_iter().map(|(model, _)| model).collect();
            for (at, (eigenvalue, wave)) in waves(topology, world as usize).iter().enumerate() {
                assert!(if at == 0 { *eigenvalue == 1.0 } else { *eigenvalue < 1.0 - 1e-3 });
                for i in 0..layout().len() {
                    let share = |models: &[Vec<f32>]| {
                        models.iter().zip(wave).map(|(model, w)| f64::from(model[i]) * w).sum::<f64>()
                    };
                    let off = share(&after) - eigenvalue.powi(steps as i32) * share(&before);
                    assert!(
                        off.abs() < 1e-5,
                        "{topology:?} of {world}, seed {seed}: wave {at} at {i}: {off}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_neighbour_is_charged_once() {
    let (_, report) = mixed(9, Topology::Torus, 1).swap_remove(4);
    assert_eq!(report.neighbours.as_slice(), [1, 3, 5, 7].map(Rank));
    assert_eq!(report.sent_bytes, 4 * 4 * layout().len());
}

#[test]
fn a_codec_that_makes_a_mean_is_refused() {
    let error = Mixer::new(Spec::parse("topk").unwrap(), layout(), Topology::Ring).unwrap_err();
    assert_eq!(error, ExchangeError::NotGossip { codec: "topk" });
}

/// Rank 0 mixes with rank 1, which sends `payload` and nothing else; returns the error, after a look at the
/// model.
fn refusal(payload: Option<Vec<u8>>, broken: impl Fn(&mut Vec<f32>)) -> ExchangeError {
    let [mut a, mut b] = local::world(2).try_into().unwrap();
    let (mut mixer, mut model) = (mixer("dpsgd", Topology::Ring), model(0));
    broken(&mut model);
    let before = bits(std::slice::from_ref(&model));
    if let Some(mut payload) = payload {
        payload.push(0xe1);
        // The tag of a gossip round: the sixth kind of collective, round 0.
        let tag = Tag::new(0, 1).chunk(1 << 31 | 6 << 27);
        b.send(Rank(0), tag, &payload, Deadline::NEVER).unwrap();
    }
    let deadline = Deadline::after(Duration::from_millis(50));
    let error = mixer.mix(&mut a, key(0, 1), &mut model, deadline).unwrap_err();
    assert_eq!(bits(&[model]), before, "an error leaves the model as it was");
    error
}

#[test]
fn what_a_neighbour_should_not_send_leaves_the_model_as_it_was() {
    let n = layout().len();
    let short = refusal(Some(vec![0; 4 * n - 1]), |_| ());
    assert!(
        matches!(short, ExchangeError::Transport(TransportError::WrongLength { from: Rank(1), .. })),
        "{short}"
    );
    let mut payload = vec![0; 4 * n];
    payload[4 * 17..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert_eq!(refusal(Some(payload), |_| ()), ExchangeError::NonFinitePayload { rank: Rank(1), index: 17 });
    let silent = refusal(None, |_| ());
    assert!(
        matches!(silent, ExchangeError::Transport(TransportError::Timeout { from: Rank(1), .. })),
        "{silent}"
    );
    let infinite = refusal(None, |model| model[3] = f32::INFINITY);
    assert_eq!(infinite, ExchangeError::Encode(EncodeError::NonFiniteInput { index: 3 }));
}

#[test]
fn a_neighbour_learns_that_a_model_is_not_finite_and_does_not_wait() {
    let ends = local::world(2).into_iter().map(|mut transport| {
        thread::spawn(move || {
            let rank = transport.rank().0;
            let (mut mixer, mut model) = (mixer("dpsgd", Topology::Ring), model(rank));
            if rank == 1 {
                model[17] = f32::NAN;
            }
            let mixed = mixer.mix(&mut transport, key(rank, 1), &mut model, Deadline::after(PATIENCE));
            // Nobody leaves before both know.
            (mixed, transport)
        })
    });
    let ends: Vec<_> = ends.collect();
    let [low, high] =
        ends.into_iter().map(|end| end.join().unwrap().0).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(high, Err(ExchangeError::Encode(EncodeError::NonFiniteInput { index: 17 })));
    assert_eq!(low, Err(ExchangeError::Void { rank: Rank(1), index: 17 }));
}

/// What the edges of a rank keep.
type Edges = Vec<(Rank, Vec<f32>)>;

/// Mixes a rank's model from one step to another, with edges that learn, and returns it with its edges.
fn learn(
    mut transport: LocalTransport,
    mut model: Vec<f32>,
    edges: &Edges,
    steps: std::ops::Range<u64>,
) -> (Vec<f32>, Edges) {
    let (rank, units) = (transport.rank(), UnitPolicy::default());
    let mut mixer = Mixer::with_codec(Learned, units, layout(), Topology::Exponential);
    for (neighbour, kept) in edges {
        assert!(mixer.restore_edge(rank, *neighbour, kept));
    }
    for step in steps {
        mixer.mix(&mut transport, key(rank.0, step), &mut model, Deadline::after(PATIENCE)).unwrap();
    }
    let edges = mixer.edges().map(|(rank, kept)| (rank, kept.to_vec())).collect();
    (model, edges)
}

/// Runs [`learn`] at all ranks.
fn learned(
    world: u32,
    states: Vec<(Vec<f32>, Edges)>,
    steps: std::ops::Range<u64>,
) -> Vec<(Vec<f32>, Edges)> {
    let spawn = |(transport, (model, edges)): (LocalTransport, (Vec<f32>, Edges))| {
        let steps = steps.clone();
        thread::spawn(move || learn(transport, model, &edges, steps))
    };
    let threads: Vec<_> = local::world(world).into_iter().zip(states).map(spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn fresh(world: u32) -> Vec<(Vec<f32>, Edges)> {
    (0..world).map(|rank| (model(rank), Vec::new())).collect()
}

fn models(states: &[(Vec<f32>, Edges)]) -> Vec<Vec<f32>> {
    states.iter().map(|(model, _)| model.clone()).collect()
}

#[test]
fn edges_that_learn_keep_the_mean_and_the_same_at_both_ends_and_bring_models_together() {
    let (world, before) = (6, models(&fresh(6)));
    let after = learned(world, fresh(world), 0..60);
    assert!(spread(&models(&after)) < 0.25 * spread(&before), "{}", spread(&models(&after)));
    for at in 0..layout().len() {
        let mean = |models: &[Vec<f32>]| models.iter().map(|model| f64::from(model[at])).sum::<f64>();
        assert!((mean(&before) - mean(&models(&after))).abs() < 1e-4, "coordinate {at}");
    }
    for (rank, (_, edges)) in after.iter().enumerate() {
        assert_eq!(edges.len(), 4, "the neighbours at ±1 and ±2");
        for (neighbour, kept) in edges {
            let theirs = &after[neighbour.0 as usize].1;
            let other = theirs.iter().find(|(near, _)| near.0 as usize == rank).unwrap();
            assert_eq!(bits(std::slice::from_ref(kept)), bits(std::slice::from_ref(&other.1)));
            assert!(kept.iter().any(|value| *value != 0.0));
        }
    }
}

#[test]
fn edges_continue_from_what_was_saved_to_the_same_bits() {
    let whole = learned(5, fresh(5), 0..9);
    let half = learned(5, fresh(5), 0..4);
    assert_eq!(bits(&models(&learned(5, half.clone(), 4..9))), bits(&models(&whole)));
    // Without what the edges kept, it goes otherwise.
    let forgotten = half.into_iter().map(|(model, _)| (model, Vec::new())).collect();
    assert_ne!(bits(&models(&learned(5, forgotten, 4..9))), bits(&models(&whole)));
}

#[test]
fn ends_that_keep_different_things_begin_afresh() {
    let half = learned(3, fresh(3), 0..4);
    let forgetful = |who: &[usize]| {
        let mut states = half.clone();
        who.iter().for_each(|at| states[*at].1.clear());
        bits(&models(&learned(3, states, 4..6)))
    };
    // One end that has lost what it kept is as good as both.
    let edge_lost = |a: usize, b: usize| {
        let mut states = half.clone();
        states[a].1.retain(|(rank, _)| rank.0 as usize != b);
        states[b].1.retain(|(rank, _)| rank.0 as usize != a);
        states
    };
    assert_eq!(forgetful(&[0, 1]), forgetful(&[0, 1, 2]));
    let mut one = half.clone();
    one[2].1.retain(|(rank, _)| rank.0 != 1);
    let both = edge_lost(1, 2);
    assert_eq!(bits(&models(&learned(3, one, 4..6))), bits(&models(&learned(3, both, 4..6))));
    assert_ne!(forgetful(&[]), forgetful(&[0]));
    // What does not fit is not taken.
    let mut mixer = Mixer::with_codec(Learned, UnitPolicy::default(), layout(), Topology::Ring);
    assert!(!mixer.restore_edge(Rank(0), Rank(1), &[1.0]));
}
