//! A linear codec with rounds of masks and of minima.

use std::thread;

use gradwire::plan::Plan;
use gradwire::rounds::{LinearScratch, LinearScratchLen, MemoryView, Payload, Reduction, Round, UnitStep};
use gradwire::{EncodeError, Grad, Layout, LayoutRef, Linear, Memory, Source, StepKey, Unit, UnitPolicy};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route};
use gradwire_transports::{Deadline, Transport, local};

const RING: Route = Route::AllReduce { wire: Wire::Bf16 };
const TREE: Route = Route::Tree { wire: Wire::Bf16 };
const OWNERS: Route = Route::Owners { wire: Wire::Bf16 };

/// The smallest gradient in sixteenths, and not less than zero if no worker's is negative: one round of
/// votes, one of minima.
#[derive(Debug)]
struct Votes;

impl Linear for Votes {
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
        LinearScratchLen { words: unit.len + unit.len.div_ceil(32), floats: 0, ints: unit.len }
    }

    fn held(&self, len: usize) -> usize {
        len
    }

    fn most_contributors(&self) -> u32 {
        5
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        _: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        let Grad::F32(grad) = grad else { panic!("a gradient of f32") };
        let (p, masks) = scratch.words.split_at_mut(step.unit.len);
        masks.fill(0);
        for (at, value) in grad.iter().enumerate() {
            p[at] = value.to_bits();
            scratch.ints[at] = (value * 16.0).floor() as i32;
            masks[at / 32] |= u32::from(*value >= 0.0) << (at % 32);
        }
        let payload_len = step.unit.len.div_ceil(32);
        Ok(Round { index: 0, reduction: Reduction::And, unit: *step.unit, payload_len })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        match round.reduction {
            Reduction::And => Payload::U32(&mut scratch.words[round.unit.len..][..round.payload_len]),
            _ => Payload::I32(&mut scratch.ints[..round.payload_len]),
        }
    }

    fn advance(
        &self,
        _: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        _: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        if round.reduction == Reduction::And {
            let payload_len = round.unit.len;
            return Some(Round { index: 1, reduction: Reduction::MinI32, payload_len, ..round });
        }
        let masks = &scratch.words[round.unit.len..];
        for (at, mean) in mean.iter_mut().enumerate() {
            let none_is_negative = masks[at / 32] >> (at % 32) & 1 == 1;
            *mean = scratch.ints[at] as f32 + if none_is_negative { 0.5 } else { 0.0 };
        }
        None
    }
}

fn gradient(rank: u32, len: usize) -> Vec<f32> {
    let stream = StepKey { seed: 3, step: len as u64, source: Source::Rank(rank) }.stream(0);
    (0..len as u64).map(|at| (stream.u64_at(at) as u32 % 2000) as f32 / 100.0 - 4.0).collect()
}

/// What one rank has after a step.
fn step(mut transport: impl Transport, route: Route, len: usize) -> Result<Vec<f32>, ExchangeError> {
    let cut = len / 3;
    let layout = Layout::packed([("v", vec![cut]), ("w", vec![len - cut])]).unwrap();
    let units = UnitPolicy { per_tensor: true, ..UnitPolicy::default() };
    let plan = Plan::of_linear(Votes, units, &layout.as_ref());
    let mut exchange = Exchange::new(plan, layout, route).unwrap();
    let rank = transport.rank().0;
    let key = StepKey { seed: 1, step: 0, source: Source::Rank(rank) };
    let (mut mean, grad) = (vec![f32::NAN; len], gradient(rank, len));
    exchange.start(&mut transport, key, Grad::F32(&grad), None, Deadline::NEVER)?;
    exchange.finish(&mut transport, &mut mean, None, Deadline::NEVER)?;
    Ok(mean)
}

#[test]
fn rounds_of_votes_and_minima_are_reduced_as_by_hand() {
    let owners = [1, 2, 3, 4, 5].map(|world| (OWNERS, world));
    let others = [(RING, 1), (RING, 2), (RING, 5), (TREE, 1), (TREE, 4), (TREE, 5)];
    for (route, world) in others.into_iter().chain(owners) {
        for len in [0, 1, 31, 33, 100, 257] {
            let all: Vec<_> = (0..world).map(|rank| gradient(rank, len)).collect();
            let expected: Vec<f32> = (0..len)
                .map(|at| {
                    let least = all.iter().map(|grad| (grad[at] * 16.0).floor() as i32).min().unwrap();
                    let half = if all.iter().all(|grad| grad[at] >= 0.0) { 0.5 } else { 0.0 };
                    least as f32 + half
                })
                .collect();
            let spawn = |end| {
                let route = route.clone();
                thread::spawn(move || step(end, route, len))
            };
            let ends: Vec<_> = local::world(world).into_iter().map(spawn).collect();
            for end in ends {
                assert_eq!(end.join().unwrap().unwrap(), expected, "{route:?} of {world}, {len}");
            }
        }
    }
}

#[test]
fn more_workers_than_a_sum_has_room_for_are_refused_before_anything_is_sent() {
    for end in local::world(6) {
        let codec = std::any::type_name::<Votes>();
        let refused = ExchangeError::TooManyWorkers { codec, workers: 6, most: 5 };
        assert_eq!(step(end, RING, 9), Err(refused));
    }
}
