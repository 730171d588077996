//! CHOCO against its definition, which keeps what is believed for each rank and not for each edge.

use gradwire_transports::gossip::Topology;

use super::{SHAPES, TOPOLOGIES, assert_mean_stays, bits, drawn, fresh, layout, mixed, spread, wide};

const STEPS: u64 = 12;

/// What neighbours are sent of differences: of each tensor the share of `density`, ties to the lowest.
fn compressed(differences: &[f32], density: f64, signs: bool) -> Vec<f32> {
    let (mut sent, mut offset) = (vec![0.0; differences.len()], 0);
    for (_, shape) in SHAPES {
        let len: usize = shape.iter().product();
        let part = &differences[offset..offset + len];
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_by(|a, b| part[*b].abs().total_cmp(&part[*a].abs()).then(a.cmp(b)));
        order.truncate(((density * len as f64).round() as usize).max(1));
        order.sort_unstable();
        let mean = order.iter().map(|&at| f64::from(part[at].abs())).sum::<f64>() / order.len() as f64;
        for at in order {
            sent[offset + at] = if signs { (mean as f32).copysign(part[at]) } else { part[at] };
        }
        offset += len;
    }
    sent
}

/// All ranks in one place, with the f32 arithmetic of a rank.
fn naive(
    topology: Topology,
    density: f64,
    signs: bool,
    diffusion: f32,
    mut models: Vec<Vec<f32>>,
) -> Vec<Vec<f32>> {
    let world = models.len();
    let mut believed = vec![vec![0.0f32; layout().len()]; world];
    let far = topology.weight(world) * diffusion;
    for _ in 0..STEPS {
        for (model, believed) in models.iter().zip(&mut believed) {
            let differences: Vec<f32> = model.iter().zip(&*believed).map(|(x, b)| x - b).collect();
            let sent = compressed(&differences, density, signs);
            believed.iter_mut().zip(sent).for_each(|(believed, sent)| *believed += sent);
        }
        for (rank, model) in models.iter_mut().enumerate() {
            for neighbour in topology.neighbours(world, rank) {
                let pairs = believed[neighbour].iter().zip(&believed[rank]);
                model.iter_mut().zip(pairs).for_each(|(x, (other, own))| *x += far * (other - own));
            }
        }
    }
    models
}

#[test]
fn models_move_as_defined_on_every_topology() {
    for (world, topology) in [5, 6, 3, 8].into_iter().zip(TOPOLOGIES) {
        for (spelling, density, signs, diffusion) in [
            ("choco:density=0.1", 0.1, false, 0.05),
            ("choco:density=0.3,diffusion=0.2", 0.3, false, 0.2),
            ("choco:density=1,values=sign,diffusion=0.45", 1.0, true, 0.45),
            ("choco:density=0.3,values=sign,diffusion=0.1", 0.3, true, 0.1),
        ] {
            let begun = fresh(world);
            let models = begun.iter().map(|(model, _)| model.clone()).collect();
            let expected = naive(topology, density, signs, diffusion, models);
            let moved = mixed(spelling, topology, begun, 0..STEPS).0;
            let expected: Vec<Vec<u32>> =
                expected.iter().map(|model| model.iter().map(|value| value.to_bits()).collect()).collect();
            assert_eq!(bits(&moved), expected, "{spelling}, {topology:?}");
        }
    }
}

/// With gradients of zero.
#[test]
fn the_mean_stays_and_models_meet() {
    for spelling in ["choco:density=0.3,diffusion=0.2", "choco:density=1,values=sign,diffusion=0.2"] {
        for (topology, world) in [(Topology::Ring, 8), (Topology::Torus, 9)] {
            let begun = wide(&fresh(world));
            let ended = wide(&mixed(spelling, topology, fresh(world), 0..300).0);
            assert!(spread(&ended) < 0.01 * spread(&begun), "{spelling}, {topology:?}: {}", spread(&ended));
            assert_mean_stays(&begun, &ended, &format!("{spelling}, {topology:?}"));
        }
    }
}

/// With gradients of zero, and whatever the edges have learned by then.
#[test]
fn the_mean_stays_and_models_do_not_part_on_any_graph() {
    for (seed, topology) in (0..3).flat_map(|seed| TOPOLOGIES.map(|topology| (seed, topology))) {
        let spelling = match seed {
            0 => "choco:density=0.1,diffusion=0.05",
            1 => "choco:density=0.3,diffusion=0.2",
            _ => "choco:density=1,values=sign,diffusion=0.2",
        };
        for world in [2, 3, 5, 8, 12] {
            let begun = drawn(seed, world);
            let [before, after] = [begun.clone(), mixed(spelling, topology, begun, 0..20 + 10 * seed).0]
                .map(|states| wide(&states));
            let what = format!("{spelling}, {topology:?} of {world}");
            assert!(spread(&after) < spread(&before), "{what}: {} from {}", spread(&after), spread(&before));
            assert_mean_stays(&before, &after, &what);
        }
    }
}

#[test]
fn an_edge_costs_positions_and_values_or_signs() {
    let sent = |spelling| mixed(spelling, Topology::Ring, fresh(4), 0..1).1;
    // Tensors of 63, 9, 60 and 4 elements; 8 bytes are the fingerprint.
    assert_eq!(sent("choco:density=0.1"), [2 * (8 + 4 * 2 * (6 + 1 + 6 + 1)); 4]);
    assert_eq!(sent("choco:density=1,values=sign"), [2 * (8 + 4 * (4 + 3 + 1 + 3 + 1)); 4]);
    assert_eq!(sent("choco:density=0.1,dense_1d"), [2 * (8 + 4 * (2 * (6 + 6) + 9 + 4)); 4]);
}

#[test]
fn a_run_goes_on_from_what_its_edges_keep_to_the_same_bits() {
    for spelling in ["choco:density=0.1", "choco:density=1,values=sign"] {
        let whole = mixed(spelling, Topology::Exponential, fresh(6), 0..7).0;
        let half = mixed(spelling, Topology::Exponential, fresh(6), 0..3).0;
        assert_eq!(mixed(spelling, Topology::Exponential, half, 3..7).0, whole);
    }
}
