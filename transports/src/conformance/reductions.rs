//! Reductions, compared bit for bit with a serial computation in the order that the contract states.

use std::fmt::Debug;

use super::peer::{Check, Peer, patience};
use super::reference::{Inputs, expected_max, expected_sum_f32, expected_sum_i32, expected_tree_sum_f32};
use crate::collective::{self, Buffers, Fold, Reduce, Scalar, Wire, segment, tree_all_reduce};
use crate::counters::Traffic;
use crate::error::TransportError;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "a sum of f32 has the written order at every rank", run: sum_f32 },
    Check { name: "a sum of f32 over bf16 is rounded once per hop, also at its owner", run: sum_bf16 },
    Check { name: "a sum of i32 wraps", run: sum_i32 },
    Check { name: "a maximum keeps NaN and the sign of zero", run: max },
    Check { name: "a minimum and a conjunction of masks are those of all ranks", run: min_and_masks },
    Check { name: "counts of votes are those of all ranks", run: votes },
    Check { name: "what one rank has, and what all have, reaches all", run: copies },
    Check { name: "scalars are agreed on bit for bit, over ranks ascending", run: scalars },
    Check { name: "scalars of other types, folds or numbers are an error", run: other_scalars },
    Check { name: "a reduce-scatter leaves each rank its own segment", run: reduce_scatter },
    Check { name: "a tree reduces neighbours first, on every wire", run: tree },
    Check { name: "a ring moves the bytes that its formula says", run: ring_bytes },
    Check { name: "vectors of different lengths are an error", run: different_lengths },
    Check { name: "native reductions are the same everywhere, or not offered", run: native },
];

/// Lengths around the world's size, and one that fills several segments.
fn lengths(world: usize) -> [usize; 7] {
    [0, 1, world.saturating_sub(1), world, world + 1, 3 * world + 1, 1003]
}

/// More steps than there are lengths.
const STEPS_OF_LENGTHS: u64 = 100;

/// Runs `check` for each length, with separate tags and inputs.
fn for_each_length(peer: &mut Peer<'_>, mut check: impl FnMut(&mut Peer<'_>, u64, Inputs)) {
    for (step, len) in lengths(peer.world()).into_iter().enumerate() {
        check(peer, step as u64, Inputs { seed: 77 + step as u64, len });
    }
}

fn all<T>(peer: &Peer<'_>, of: impl Fn(usize) -> T) -> Vec<T> {
    (0..peer.world()).map(of).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn all_reduce(peer: &mut Peer<'_>, step: u64, data: Reduce<'_>) {
    let (tag, mut scratch) = (peer.tag(step), Buffers::new());
    let contributors = collective::all_reduce(peer.transport, tag, data, &mut scratch, patience()).unwrap();
    assert_eq!(contributors.as_slice(), peer.ranks());
}

fn assert_same<T: PartialEq + Debug>(actual: T, expected: T, inputs: Inputs, peer: &Peer<'_>) {
    assert_eq!(actual, expected, "{inputs:?} at {} of {}", peer.rank(), peer.world());
}

fn sum_over(peer: &mut Peer<'_>, wire: Wire) {
    for_each_length(peer, |peer, step, inputs| {
        let mut data = inputs.f32(peer.position());
        all_reduce(peer, step, Reduce::SumF32(&mut data, wire));
        let expected = expected_sum_f32(&all(peer, |position| inputs.f32(position)), wire, true);
        assert_same(bits(&data), bits(&expected), inputs, peer);
    });
}

fn tree(peer: &mut Peer<'_>) {
    for (round, wire) in [Wire::F32, Wire::Bf16].into_iter().enumerate() {
        for_each_length(peer, |peer, step, inputs| {
            let (tag, mut data) = (peer.tag(step).chunk(round as u32), inputs.f32(peer.position()));
            let sum = Reduce::SumF32(&mut data, wire);
            let contributors =
                tree_all_reduce(peer.transport, tag, sum, &mut Buffers::new(), patience()).unwrap();
            assert_eq!(contributors.as_slice(), peer.ranks());
            let expected = expected_tree_sum_f32(&all(peer, |position| inputs.f32(position)), wire);
            assert_same(bits(&data), bits(&expected), inputs, peer);
        });
    }
}

fn sum_f32(peer: &mut Peer<'_>) {
    sum_over(peer, Wire::F32);
}

fn sum_bf16(peer: &mut Peer<'_>) {
    sum_over(peer, Wire::Bf16);
}

fn sum_i32(peer: &mut Peer<'_>) {
    for_each_length(peer, |peer, step, inputs| {
        let mut data = inputs.i32(peer.position());
        all_reduce(peer, step, Reduce::SumI32(&mut data));
        let expected = expected_sum_i32(&all(peer, |position| inputs.i32(position)));
        assert_same(data, expected, inputs, peer);
    });
}

fn max(peer: &mut Peer<'_>) {
    for_each_length(peer, |peer, step, inputs| {
        let mut data = inputs.special_f32(peer.position());
        all_reduce(peer, step, Reduce::MaxF32(&mut data));
        let expected = expected_max(&all(peer, |position| inputs.special_f32(position)));
        assert_same(bits(&data), bits(&expected), inputs, peer);
    });
}

/// Sums of bytes that wrap.
fn votes(peer: &mut Peer<'_>) {
    for_each_length(peer, |peer, step, inputs| {
        let votes = |position| inputs.i32(position).iter().map(|&value| value as u8).collect::<Vec<u8>>();
        let mut expected = vec![0_u8; inputs.len];
        for theirs in all(peer, votes) {
            expected.iter_mut().zip(theirs).for_each(|(sum, vote)| *sum = sum.wrapping_add(vote));
        }
        let (mut ring, mut tree) = (votes(peer.position()), votes(peer.position()));
        all_reduce(peer, step, Reduce::SumU8(&mut ring));
        let tag = peer.tag(step).chunk(1);
        tree_all_reduce(peer.transport, tag, Reduce::SumU8(&mut tree), &mut Buffers::new(), patience())
            .unwrap();
        assert_same([ring, tree], [expected.clone(), expected], inputs, peer);
    });
}

/// Whatever a rank has in the places of others.
fn copies(peer: &mut Peer<'_>) {
    for_each_length(peer, |peer, step, inputs| {
        let (world, me) = (peer.world(), peer.position());
        let own = |position| inputs.i32(position).iter().map(|&value| value as u8).collect::<Vec<u8>>();
        let part = |position| segment(inputs.len, world, position);
        let gathered: Vec<u8> =
            (0..world).flat_map(|position| own(position)[part(position)].to_vec()).collect();
        let (mut ring, mut tree) = (own(me), own(me));
        all_reduce(peer, step, Reduce::Gather(&mut ring));
        let tag = peer.tag(step).chunk(1);
        let by_tree = Reduce::Gather(&mut tree);
        tree_all_reduce(peer.transport, tag, by_tree, &mut Buffers::new(), patience()).unwrap();
        assert_same([ring, tree], [gathered.clone(), gathered], inputs, peer);
        for from in 0..world {
            let (mut ring, mut tree) = (own(me), own(me));
            let [first, second] = [0, 1].map(|way| peer.tag(step).chunk(2 + 2 * from as u32 + way));
            let by_ring = Reduce::Broadcast(&mut ring, from);
            collective::all_reduce(peer.transport, first, by_ring, &mut Buffers::new(), patience()).unwrap();
            let by_tree = Reduce::Broadcast(&mut tree, from);
            tree_all_reduce(peer.transport, second, by_tree, &mut Buffers::new(), patience()).unwrap();
            assert_same([ring, tree], [own(from), own(from)], inputs, peer);
        }
    });
}

fn min_and_masks(peer: &mut Peer<'_>) {
    for_each_length(peer, |peer, step, inputs| {
        let masks = |position: usize| -> Vec<u32> {
            inputs.i32(position).iter().map(|value| value.cast_unsigned() | 0x00ff_0000).collect()
        };
        let inputs_of_all = all(peer, |position| inputs.i32(position));
        let least: Vec<i32> =
            (0..inputs.len).map(|at| inputs_of_all.iter().map(|values| values[at]).min().unwrap()).collect();
        let masks_of_all = all(peer, masks);
        let common: Vec<u32> = (0..inputs.len)
            .map(|at| masks_of_all.iter().fold(u32::MAX, |all, values| all & values[at]))
            .collect();
        let (mut ring, mut tree) = (inputs.i32(peer.position()), inputs.i32(peer.position()));
        all_reduce(peer, step, Reduce::MinI32(&mut ring));
        let tag = peer.tag(step).chunk(1);
        tree_all_reduce(peer.transport, tag, Reduce::MinI32(&mut tree), &mut Buffers::new(), patience())
            .unwrap();
        assert_same([ring, tree], [least.clone(), least], inputs, peer);
        let (mut ring, mut tree) = (masks(peer.position()), masks(peer.position()));
        let (first, second) = (peer.tag(step).chunk(2), peer.tag(step).chunk(3));
        collective::all_reduce(
            peer.transport,
            first,
            Reduce::And(&mut ring),
            &mut Buffers::new(),
            patience(),
        )
        .unwrap();
        tree_all_reduce(peer.transport, second, Reduce::And(&mut tree), &mut Buffers::new(), patience())
            .unwrap();
        assert_same([ring, tree], [common.clone(), common], inputs, peer);
    });
}

/// Every type with every fold, on inputs with NaN, infinities and both zeros. The expected values are
/// computed in another way.
fn scalars(peer: &mut Peer<'_>) {
    let inputs = Inputs { seed: 5, len: 60 };
    for at in 0..inputs.len {
        let floats = all(peer, |position| inputs.special_f32(position)[at]);
        let doubles: Vec<f64> = floats.iter().map(|&value| f64::from(value) / 3.0).collect();
        let ints = all(peer, |position| i64::from(inputs.i32(position)[at]) << (at % 33));
        let me = peer.position();
        let folds = [Fold::Min, Fold::Max, Fold::Sum];
        let mut scalars: Vec<_> = folds
            .iter()
            .flat_map(|&fold| {
                [Scalar::F32(floats[me]), Scalar::F64(doubles[me]), Scalar::I64(ints[me])].map(|s| (fold, s))
            })
            .collect();
        let tag = peer.tag(at as u64);
        let members = collective::agree(peer.transport, tag, &mut scalars, patience()).unwrap();
        assert_eq!(members.as_slice(), peer.ranks());
        for (fold, scalar) in scalars {
            match scalar {
                Scalar::F32(value) => assert_eq!(
                    value.to_bits(),
                    expected_f32(fold, &floats).to_bits(),
                    "{fold:?} of {floats:?}"
                ),
                Scalar::F64(value) => assert_eq!(
                    value.to_bits(),
                    expected_f64(fold, &doubles).to_bits(),
                    "{fold:?} of {doubles:?}"
                ),
                Scalar::I64(value) => {
                    let expected = match fold {
                        Fold::Min => *ints.iter().min().unwrap(),
                        Fold::Max => *ints.iter().max().unwrap(),
                        Fold::Sum => ints.iter().fold(0, |sum: i64, value| sum.wrapping_add(*value)),
                    };
                    assert_eq!(value, expected, "{fold:?} of {ints:?}");
                }
            }
        }
    }
}

fn expected_f32(fold: Fold, values: &[f32]) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    let folded = match fold {
        _ if values.iter().any(|value| value.is_nan()) => f32::NAN,
        Fold::Min => sorted[0],
        Fold::Max => sorted[sorted.len() - 1],
        Fold::Sum => values[1..].iter().fold(values[0], |sum, value| sum + value),
    };
    if folded.is_nan() { f32::from_bits(0x7fc0_0000) } else { folded }
}

fn expected_f64(fold: Fold, values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let folded = match fold {
        _ if values.iter().any(|value| value.is_nan()) => f64::NAN,
        Fold::Min => sorted[0],
        Fold::Max => sorted[sorted.len() - 1],
        Fold::Sum => values[1..].iter().fold(values[0], |sum, value| sum + value),
    };
    if folded.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { folded }
}

fn other_scalars(peer: &mut Peer<'_>) {
    if peer.world() == 1 {
        return;
    }
    let is_first = peer.position() == 0;
    let same = (Fold::Sum, Scalar::F32(1.0));
    for (step, other) in
        [vec![(Fold::Max, Scalar::F32(1.0))], vec![(Fold::Sum, Scalar::F64(1.0))], vec![same; 2], vec![]]
            .into_iter()
            .enumerate()
    {
        let mut scalars = if is_first { other.clone() } else { vec![same] };
        let before = scalars.clone();
        let tag = peer.tag(step as u64);
        let agreed = collective::agree(peer.transport, tag, &mut scalars, patience());
        assert!(matches!(agreed, Err(TransportError::OtherScalars { .. })), "{agreed:?}");
        assert_eq!(scalars, before);
    }
}

fn reduce_scatter(peer: &mut Peer<'_>) {
    for_each_length(peer, |peer, step, inputs| {
        for (chunk, wire) in [Wire::F32, Wire::Bf16].into_iter().enumerate() {
            let mut data = inputs.f32(peer.position());
            let (tag, mut scratch) = (peer.tag(step).chunk(chunk as u32), Buffers::new());
            let sum = Reduce::SumF32(&mut data, wire);
            let (contributors, own) =
                collective::reduce_scatter(peer.transport, tag, sum, &mut scratch, patience()).unwrap();
            assert_eq!(contributors.as_slice(), peer.ranks());
            assert_eq!(own, segment(inputs.len, peer.world(), peer.position()));
            let expected = expected_sum_f32(&all(peer, |position| inputs.f32(position)), wire, false);
            assert_same(bits(&data[own.clone()]), bits(&expected[own]), inputs, peer);
        }
    });
}

fn ring_bytes(peer: &mut Peer<'_>) {
    let (world, me) = (peer.world(), peer.position());
    for_each_length(peer, |peer, step, inputs| {
        let before = peer.transport.counters();
        all_reduce(peer, step, Reduce::SumI32(&mut inputs.i32(me)));
        let elements = |position: usize| segment(inputs.len, world, position % world).len();
        // A rank sends every segment except its own, then every one except its successor's. It receives the
        // same from the rank before it.
        let up = 2 * inputs.len - elements(me) - elements(me + 1);
        let down = 2 * inputs.len - elements(me + world - 1) - elements(me);
        let messages = 2 * (world as u64 - 1);
        let expected = |elements: usize| (messages, if world == 1 { 0 } else { 4 * elements as u64 });
        let counted = |traffic: Traffic| (traffic.messages, traffic.payload_bytes);
        let moved = peer.transport.counters() - before;
        assert_eq!((counted(moved.up), counted(moved.down)), (expected(up), expected(down)));
    });
}

fn different_lengths(peer: &mut Peer<'_>) {
    if peer.world() == 1 {
        return;
    }
    // Every rank has a vector twice as long as its predecessor's, or a much shorter one.
    let mut data = vec![1.0_f32; 100 << peer.position()];
    let (tag, mut scratch) = (peer.tag(0), Buffers::new());
    let sum = Reduce::SumF32(&mut data, Wire::F32);
    let error = collective::all_reduce(peer.transport, tag, sum, &mut scratch, patience()).unwrap_err();
    let expected = segment(
        100 << peer.position(),
        peer.world(),
        (peer.position() + 2 * peer.world() - 2) % peer.world(),
    );
    assert!(
        matches!(error, TransportError::WrongLength { expected: bytes, .. } if bytes == 4 * expected.len()),
        "{error:?}"
    );
}

fn native(peer: &mut Peer<'_>) {
    for_each_length(peer, |peer, step, inputs| {
        let position = peer.position();
        let (mut sum, mut rounded) = (inputs.f32(position), inputs.f32(position));
        let (mut ints, mut max) = (inputs.i32(position), inputs.special_f32(position));
        let mask =
            |position: usize| inputs.i32(position).into_iter().map(i32::cast_unsigned).collect::<Vec<_>>();
        let (mut least, mut masks) = (inputs.i32(position), mask(position));
        let bytes = |position| mask(position).iter().map(|&mask| mask as u8).collect::<Vec<u8>>();
        let [mut votes, mut gathered, mut sent] = [bytes(position), bytes(position), bytes(position)];
        let unsupported = [
            native_of(peer, step, 0, Reduce::SumF32(&mut sum, Wire::F32)),
            native_of(peer, step, 1, Reduce::SumF32(&mut rounded, Wire::Bf16)),
            native_of(peer, step, 2, Reduce::SumI32(&mut ints)),
            native_of(peer, step, 3, Reduce::MaxF32(&mut max)),
            native_of(peer, step, 4, Reduce::MinI32(&mut least)),
            native_of(peer, step, 5, Reduce::And(&mut masks)),
            native_of(peer, step, 6, Reduce::SumU8(&mut votes)),
            native_of(peer, step, 7, Reduce::Gather(&mut gathered)),
            native_of(peer, step, 8, Reduce::Broadcast(&mut sent, 0)),
        ];
        assert!(unsupported.iter().all(|none| *none == unsupported[0]), "all reductions, or none");
        if unsupported[0] {
            return;
        }
        assert_replicas_agree(peer, step, &sum, inputs, 1e-6);
        // Each operand and each partial sum is rounded, by at most 2⁻⁹ of it: twice for each worker.
        let bound = peer.world() as f64 / 256.0;
        assert_replicas_agree(peer, step + STEPS_OF_LENGTHS, &rounded, inputs, bound);
        assert_same(ints, expected_sum_i32(&all(peer, |position| inputs.i32(position))), inputs, peer);
        let expected = expected_max(&all(peer, |position| inputs.special_f32(position)));
        assert_same(bits(&max), bits(&expected), inputs, peer);
        let (ints_of_all, masks_of_all) = (all(peer, |position| inputs.i32(position)), all(peer, mask));
        for at in 0..inputs.len {
            assert_eq!(least[at], ints_of_all.iter().map(|values| values[at]).min().unwrap());
            let counts = masks_of_all.iter().map(|values| values[at] as u8);
            assert_eq!(votes[at], counts.fold(0, u8::wrapping_add));
            let owner =
                (0..peer.world()).find(|&owner| segment(inputs.len, peer.world(), owner).contains(&at));
            assert_eq!([gathered[at], sent[at]], [bytes(owner.unwrap())[at], bytes(0)[at]]);
            assert_eq!(masks[at], masks_of_all.iter().fold(u32::MAX, |all, values| all & values[at]));
        }
    });
}

/// Returns whether the transport lacks this operation.
fn native_of(peer: &mut Peer<'_>, step: u64, chunk: u32, data: Reduce<'_>) -> bool {
    let tag = peer.tag(step).chunk(chunk);
    match peer.transport.native_all_reduce(tag, data, patience()) {
        Err(error) => {
            assert_eq!(error, TransportError::Unsupported { operation: "native all-reduce" });
            true
        }
        Ok(contributors) => {
            assert_eq!(contributors.as_slice(), peer.ranks());
            false
        }
    }
}

/// Asserts that every rank has the same bits, and that they differ from the sum by at most `bound` times the
/// sum of magnitudes.
fn assert_replicas_agree(peer: &mut Peer<'_>, step: u64, data: &[f32], inputs: Inputs, bound: f64) {
    let own: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut out = collective::Gathered::new();
    let tag = peer.tag(step);
    collective::all_gather(peer.transport, tag, &own, &mut out, patience()).unwrap();
    assert!(out.iter().all(|(_, bytes)| bytes == own));
    for (at, value) in data.iter().enumerate() {
        let column: Vec<f64> = all(peer, |position| f64::from(inputs.f32(position)[at]));
        let (sum, size) = column.iter().fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
        assert!((f64::from(*value) - sum).abs() <= size * bound);
    }
}
