//! PowerGossip against its definition: differences of whole matrices, in f64.

use std::collections::BTreeMap;

use gradwire_transports::gossip::Topology;

use super::{SHAPES, State, TOPOLOGIES, assert_mean_stays, bits, drawn, fresh, mixed, spread, wide};

/// The definition, by whole matrices in f64. Factors are matrices of one column for each rank.
struct Naive {
    rank: usize,
    iterations: u64,
    diffusion: f64,
    topology: Topology,
    models: Vec<Vec<f64>>,
    /// P and Q of each matrix, by the lower and the higher end of an edge.
    edges: BTreeMap<(usize, usize), Vec<[Columns; 2]>>,
}

type Columns = Vec<Vec<f64>>;

/// The matrices that have more rows and columns than the rank: offset, rows and columns.
fn matrices(rank: usize) -> Vec<(usize, usize, usize)> {
    let mut offset = 0;
    let mut found = Vec::new();
    for (_, shape) in SHAPES {
        let len: usize = shape.iter().product();
        let cols = len / shape[0];
        if shape.len() > 1 && rank < shape[0].min(cols) {
            found.push((offset, shape[0], cols));
        }
        offset += len;
    }
    found
}

fn orthonormal(columns: &mut Columns) {
    for at in 0..columns.len() {
        let (done, rest) = columns.split_at_mut(at);
        let column = &mut rest[0];
        for u in &*done {
            let share: f64 = u.iter().zip(&*column).map(|(a, b)| a * b).sum();
            column.iter_mut().zip(u).for_each(|(v, u)| *v -= share * u);
        }
        let norm = column.iter().map(|v| v * v).sum::<f64>().sqrt();
        column.iter_mut().for_each(|v| *v /= norm);
    }
}

impl Naive {
    /// Goes on from what a run has.
    fn of(rank: usize, iterations: u64, diffusion: f64, topology: Topology, states: &[State]) -> Self {
        let models = states.iter().map(|(model, _)| model.iter().map(|v| f64::from(*v)).collect()).collect();
        let mut edges = BTreeMap::new();
        for (me, (_, kept)) in states.iter().enumerate() {
            for (neighbour, kept) in kept {
                let mut values = kept.iter().map(|v| f64::from(*v));
                let mut columns = |len: usize| -> Columns {
                    (0..rank).map(|_| values.by_ref().take(len).collect()).collect()
                };
                let factors =
                    matrices(rank).iter().map(|(_, rows, cols)| [columns(*rows), columns(*cols)]).collect();
                let other = neighbour.0 as usize;
                edges.insert((me.min(other), me.max(other)), factors);
            }
        }
        Self { rank, iterations, diffusion, topology, models, edges }
    }

    fn step(&mut self, step: u64) {
        (0..self.iterations).for_each(|round| self.iteration(step * self.iterations + round, round == 0));
    }

    /// All edges use the models at the start.
    fn iteration(&mut self, count: u64, is_first: bool) {
        let (before, weight) = (self.models.clone(), f64::from(self.topology.weight(self.models.len())));
        for ((low, high), factors) in &mut self.edges {
            let difference = |at: usize| before[*high][at] - before[*low][at];
            let mut moves = vec![0.0; before[0].len()];
            if is_first {
                (0..moves.len()).for_each(|at| moves[at] = difference(at));
            }
            for ((offset, rows, cols), [p, q]) in matrices(self.rank).into_iter().zip(factors) {
                let d = |row: usize, col: usize| difference(offset + row * cols + col);
                if count.is_multiple_of(2) {
                    orthonormal(q);
                    let row = |q: &Vec<f64>, row| (0..cols).map(|col| d(row, col) * q[col]).sum();
                    *p = q.iter().map(|q| (0..rows).map(|at| row(q, at)).collect()).collect();
                } else {
                    orthonormal(p);
                    let col = |p: &Vec<f64>, col| (0..rows).map(|row| d(row, col) * p[row]).sum();
                    *q = p.iter().map(|p| (0..cols).map(|at| col(p, at)).collect()).collect();
                }
                for at in 0..rows * cols {
                    let product: f64 = p.iter().zip(&*q).map(|(p, q)| p[at / cols] * q[at % cols]).sum();
                    moves[offset + at] = self.diffusion * product;
                }
            }
            for (at, far) in moves.iter().enumerate() {
                self.models[*low][at] += weight * far;
                self.models[*high][at] -= weight * far;
            }
        }
    }
}

#[test]
fn models_move_as_defined_on_every_topology() {
    for (world, topology) in [5, 6, 3, 8].into_iter().zip(TOPOLOGIES) {
        for (spelling, rank, iterations, diffusion) in [
            ("powergossip:rank=1", 1, 1, 1.0),
            ("powergossip:rank=2,iterations=3", 2, 3, 1.0),
            ("powergossip:rank=1,iterations=2,diffusion=1.3", 1, 2, 1.3),
        ] {
            // The first step draws the factors.
            let mut states = mixed(spelling, topology, fresh(world), 0..1).0;
            for step in 1..6 {
                let mut naive = Naive::of(rank, iterations, diffusion, topology, &states);
                naive.step(step);
                states = mixed(spelling, topology, states, step..step + 1).0;
                for (moved, expected) in wide(&states).iter().zip(&naive.models) {
                    for (at, (moved, expected)) in moved.iter().zip(expected).enumerate() {
                        let off = (moved - expected).abs();
                        assert!(
                            off < 1e-4,
                            "{spelling}, {topology:?}, step {step}: {moved}, {expected} at {at}"
                        );
                    }
                }
            }
        }
    }
}

/// With gradients of zero.
#[test]
fn the_mean_stays_and_models_meet_as_fast_as_predicted() {
    for (seed, topology) in (0..2).flat_map(|seed| TOPOLOGIES.map(|topology| (seed, topology))) {
        for world in [2, 3, 4, 6, 8, 9, 11] {
            let (spelling, rank, iterations, steps) = match seed {
                0 => ("powergossip:rank=1,iterations=2", 1, 2, 40),
                _ => ("powergossip:rank=2", 2, 1, 20),
            };
            let begun = drawn(seed, world);
            let first = mixed(spelling, topology, begun.clone(), 0..1).0;
            let mut naive = Naive::of(rank, iterations, 1.0, topology, &first);
            (1..steps).for_each(|step| naive.step(step));
            let last = mixed(spelling, topology, first, 1..steps).0;
            let (begun, ended, predicted) = (wide(&begun), wide(&last), spread(&naive.models));
            let what = format!("{spelling}, {topology:?} of {world}");
            let far = (spread(&ended) - predicted).abs();
            let rounding = 1e-5 * spread(&begun);
            assert!(
                far < 0.05 * predicted + rounding,
                "{what}: a spread of {}, not {predicted}",
                spread(&ended)
            );
            let least = if seed == 0 && world <= 9 { 0.1 } else { 0.4 };
            assert!(predicted < least * spread(&begun), "{what}: {predicted} from {}", spread(&begun));
            assert_mean_stays(&begun, &ended, &what);
        }
    }
}

/// So no end has the other's matrices: of one it hears a factor in each round, and keeps two.
#[test]
fn an_edge_keeps_two_factors_of_each_matrix_and_nothing_of_vectors() {
    for (spelling, rank) in [("powergossip:rank=1", 1), ("powergossip:rank=2,iterations=3", 2)] {
        for (_, edges) in mixed(spelling, Topology::Ring, fresh(3), 0..3).0 {
            let kept: Vec<_> = edges.iter().map(|(_, kept)| kept.len()).collect();
            assert_eq!(kept, [rank * (9 + 7 + 4 + 15); 2], "{spelling}");
        }
    }
}

/// Two ends at a weight of 1/2: each round takes what its factors hold away from what they differ by.
#[test]
fn two_models_are_equal_once_rounds_have_taken_all_ranks_of_their_difference() {
    let (states, _) = mixed("powergossip:rank=2,iterations=10", Topology::Ring, fresh(2), 0..1);
    let far = states[0].0.iter().zip(&states[1].0).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Around a ring of two, the weight is 1/2; the matrices have ranks of at most 7 and 4.
    assert!(far < 1e-4, "{far}");
}

#[test]
fn factors_as_large_as_their_matrices_are_plain_gossip() {
    let thick = mixed("powergossip:rank=9", Topology::Ring, fresh(5), 0..4).0;
    let plain = mixed("dpsgd", Topology::Ring, fresh(5), 0..4).0;
    assert_eq!(bits(&thick), bits(&plain));
}

#[test]
fn an_edge_costs_a_factor_of_each_matrix_and_the_vectors_once_a_step() {
    let sent = |spelling, steps| mixed(spelling, Topology::Ring, fresh(4), 0..steps).1;
    let vectors = 9 + 4;
    // Even rounds send columns of rows, odd ones those of columns; 8 bytes are the fingerprint.
    assert_eq!(sent("powergossip:rank=1", 1), [2 * (8 + 4 * (vectors + 9 + 4)); 4]);
    assert_eq!(sent("powergossip:rank=1", 2), [2 * (8 + 4 * (vectors + 7 + 15)); 4]);
    assert_eq!(
        sent("powergossip:rank=2,iterations=2", 1),
        [2 * (8 + 4 * (vectors + 2 * (9 + 4 + 7 + 15))); 4]
    );
}

#[test]
fn a_run_goes_on_from_its_factors_to_the_same_bits() {
    let spelling = "powergossip:rank=2,iterations=2";
    let whole = mixed(spelling, Topology::Exponential, fresh(6), 0..7).0;
    let half = mixed(spelling, Topology::Exponential, fresh(6), 0..3).0;
    assert_eq!(mixed(spelling, Topology::Exponential, half, 3..7).0, whole);
}
