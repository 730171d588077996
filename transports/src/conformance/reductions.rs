//! Reductions, bit for bit against a serial computation in the written order.

use std::fmt::Debug;

use super::peer::{Check, Peer, patience};
use super::reference::{Inputs, expected_max, expected_sum_f32, expected_sum_i32, expected_tree_sum_f32};
use crate::collective::{Reduce, Scratch, Wire, segment, tree_all_reduce};
use crate::counters::Traffic;
use crate::error::TransportError;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "a sum of f32 has the written order at every rank", run: sum_f32 },
    Check { name: "a sum of f32 over bf16 is rounded once per hop, also at its owner", run: sum_bf16 },
    Check { name: "a sum of i32 wraps", run: sum_i32 },
    Check { name: "a maximum keeps NaN and the sign of zero", run: max },
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

/// Runs `check` for each length, with tags and inputs of its own.
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
    let (tag, mut scratch) = (peer.tag(step), Scratch::new());
    let contributors = peer.transport.all_reduce(tag, data, &mut scratch, patience()).unwrap();
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
                tree_all_reduce(peer.transport, tag, sum, &mut Scratch::new(), patience()).unwrap();
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

fn reduce_scatter(peer: &mut Peer<'_>) {
    for_each_length(peer, |peer, step, inputs| {
        for (chunk, wire) in [Wire::F32, Wire::Bf16].into_iter().enumerate() {
            let mut data = inputs.f32(peer.position());
            let (tag, mut scratch) = (peer.tag(step).chunk(chunk as u32), Scratch::new());
            let sum = Reduce::SumF32(&mut data, wire);
            let (contributors, own) =
                peer.transport.reduce_scatter(tag, sum, &mut scratch, patience()).unwrap();
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
        // What goes ahead: every segment but this rank's own, then every one but its successor's. What comes from
        // behind is the same for the rank behind.
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
    let (tag, mut scratch) = (peer.tag(0), Scratch::new());
    let sum = Reduce::SumF32(&mut data, Wire::F32);
    let error = peer.transport.all_reduce(tag, sum, &mut scratch, patience()).unwrap_err();
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
        let unsupported = [
            native_of(peer, step, 0, Reduce::SumF32(&mut sum, Wire::F32)),
            native_of(peer, step, 1, Reduce::SumF32(&mut rounded, Wire::Bf16)),
            native_of(peer, step, 2, Reduce::SumI32(&mut ints)),
            native_of(peer, step, 3, Reduce::MaxF32(&mut max)),
        ];
        assert!(unsupported.iter().all(|none| *none == unsupported[0]), "all reductions, or none");
        if unsupported[0] {
            return;
        }
        assert_replicas_agree(peer, step, &sum, inputs, 1e-6);
        // Every operand is rounded, and every partial sum: 2^-9 each time.
        let bound = peer.world() as f64 / 256.0;
        assert_replicas_agree(peer, step + STEPS_OF_LENGTHS, &rounded, inputs, bound);
        assert_same(ints, expected_sum_i32(&all(peer, |position| inputs.i32(position))), inputs, peer);
        let expected = expected_max(&all(peer, |position| inputs.special_f32(position)));
        assert_same(bits(&max), bits(&expected), inputs, peer);
    });
}

/// Whether there is no such operation.
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

/// The same bits at every rank, and as close to the sum as `bound` says, relative to the sum of magnitudes.
fn assert_replicas_agree(peer: &mut Peer<'_>, step: u64, data: &[f32], inputs: Inputs, bound: f64) {
    let own: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut out = crate::collective::Gathered::new();
    peer.transport.all_gather(peer.tag(step), &own, &mut out, patience()).unwrap();
    assert!(out.iter().all(|(_, bytes)| bytes == own));
    for (at, value) in data.iter().enumerate() {
        let column: Vec<f64> = all(peer, |position| f64::from(inputs.f32(position)[at]));
        let (sum, size) = column.iter().fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
        assert!((f64::from(*value) - sum).abs() <= size * bound);
    }
}
