//! Sums by owners: in rank order, wherever an element lies.

use std::thread;

use gradwire::plan::Plan;
use gradwire::rules::Rules;
use gradwire::{Grad, Layout, Memory, Source, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::cost::ring_bytes;
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::{Counters, Deadline, Transport, local};
use half::bf16;

/// Values of very different size, so that the order of a sum shows.
fn gradient(rank: u32, at: usize) -> f32 {
    let stream = StepKey { seed: 8, step: 0, source: Source::Rank(rank) }.stream(0);
    let draw = stream.u64_at(at as u64);
    (draw as i32 as f32) * 2_f32.powi((draw >> 40) as i32 % 24 - 40)
}

/// The mean of a step at every rank. Elements are those of the places.
fn means(world: u32, rules: &str, route: &Route, parts: usize, places: &[usize]) -> Vec<Vec<f32>> {
    means_and_traffic(world, rules, route, parts, places).into_iter().map(|(mean, _)| mean).collect()
}

/// The same with what each rank sent and received.
fn means_and_traffic(
    world: u32,
    rules: &str,
    route: &Route,
    parts: usize,
    places: &[usize],
) -> Vec<(Vec<f32>, Counters)> {
    let ranks = local::world(world).into_iter().map(|mut end| {
        let (route, places, rules) = (route.clone(), places.to_vec(), Rules::parse(rules).unwrap());
        thread::spawn(move || {
            let (rank, cut) = (end.rank().0, places.len() / 3);
            let layout = Layout::packed([("a", vec![cut]), ("b", vec![places.len() - cut])]).unwrap();
            let mut memory = Memory::for_plan(&Plan::of_rules(&rules, &layout.as_ref()), &layout.as_ref());
            let mut exchange = Exchange::new(&rules, layout, route).unwrap().pipelined(parts).unwrap();
            let grad: Vec<f32> = places.iter().map(|&at| gradient(rank, at)).collect();
            let (key, by) = (StepKey { seed: 1, step: 0, source: Source::Rank(rank) }, Deadline::NEVER);
            let mut mean = vec![f32::NAN; grad.len()];
            exchange.start(&mut end, key, Grad::F32(&grad), memory.as_mut(), by).unwrap();
            exchange.finish(&mut end, &mut mean, memory.as_mut(), by).unwrap();
            (mean, end.counters())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

const EXACT: Route = Route::Owners { wire: Wire::F32 };
const NARROW: Route = Route::Owners { wire: Wire::Bf16 };

#[test]
fn a_sum_is_the_left_fold_over_the_ranks() {
    let rounded = |value: f32| bf16::from_f32(value).to_f32();
    let mut differ = false;
    for world in [1, 2, 3, 4, 7] {
        for len in [0, 1, 2, 3, 7, 100, 1000] {
            let places: Vec<usize> = (0..len).collect();
            let expected = |wire: &dyn Fn(f32) -> f32| -> Vec<f32> {
                let terms = |at| (0..world).map(move |rank| gradient(rank, at));
                let sum = |at| wire(terms(at).map(wire).reduce(|sum, term| sum + term).unwrap());
                places.iter().map(|&at| sum(at) / world as f32).collect()
            };
            for parts in [1, 2] {
                for mean in means(world, "b=none; none", &EXACT, parts, &places) {
                    assert_eq!(bits(&mean), bits(&expected(&|value| value)), "{world} ranks, {len} elements");
                }
                for mean in means(world, "b=none; none", &NARROW, parts, &places).iter().filter(|_| world > 1)
                {
                    assert_eq!(bits(mean), bits(&expected(&rounded)), "{world} ranks, {len} elements");
                }
            }
            let ring = means(world, "none", &Route::AllReduce { wire: Wire::F32 }, 1, &places);
            differ |= bits(&ring[0]) != bits(&expected(&|value| value));
        }
    }
    assert!(differ, "no sum here depends on its order");
}

/// Each of these payloads has several cuts, also with two units that are cut together.
#[test]
fn long_payloads_have_the_same_sums() {
    let places: Vec<usize> = (0..300_001).map(|at| at % 1009).collect();
    for world in [2, 3, 4, 7] {
        for route in [EXACT, NARROW] {
            let short = &means(world, "none", &route, 1, &places[..1009])[0];
            for rules in ["none", "b=none; none"] {
                for mean in means(world, rules, &route, 1, &places) {
                    let differs =
                        mean.iter().zip(&places).position(|(a, at)| a.to_bits() != short[*at].to_bits());
                    assert_eq!(differs, None, "{world} ranks, {rules}, {route:?}");
                }
            }
        }
    }
}

/// Also of long payloads, which are cut. Besides them, each message has the byte of its version. No rank
/// sends more than an element of each cut more than another.
#[test]
fn the_bytes_of_a_step_are_those_of_the_cost_model() {
    for (route, element_bytes) in [(EXACT, 4), (NARROW, 2)] {
        for (world, len) in [(1, 100), (2, 1), (3, 1000), (4, 300_001), (7, 300_001)] {
            let places: Vec<usize> = (0..len).map(|at| at % 1009).collect();
            let all = means_and_traffic(world, "none", &route, 1, &places);
            let without_versions = |(_, moved): &(_, Counters)| moved.up.payload_bytes - moved.up.messages;
            let sent: Vec<u64> = all.iter().map(without_versions).collect();
            let each = ring_bytes(world as usize, (element_bytes * len) as f64);
            assert_eq!(
                sent.iter().sum::<u64>(),
                (f64::from(world) * each).round() as u64,
                "{world}: {sent:?}"
            );
            let cuts = all[0].1.up.messages / 2 / u64::from(world - 1).max(1);
            let room = (element_bytes as u64 * cuts * u64::from(world)) as f64;
            assert!(sent.iter().all(|&sent| (sent as f64 - each).abs() <= room), "{world}: {sent:?}, {each}");
        }
    }
}

#[test]
fn an_element_has_the_same_sum_wherever_it_lies() {
    let places: Vec<usize> = (0..250).collect();
    let moved: Vec<usize> = places.iter().map(|at| at * 77 % 250).collect();
    for route in [EXACT, NARROW] {
        let (here, there) = (means(5, "none", &route, 1, &places), means(5, "none", &route, 1, &moved));
        for (at, place) in moved.iter().enumerate() {
            assert_eq!(there[0][at].to_bits(), here[0][*place].to_bits(), "{route:?}");
        }
    }
}

/// Sums of integers, maxima and votes have no order.
#[test]
fn payloads_whose_order_does_not_matter_are_those_of_a_ring() {
    let places: Vec<usize> = (0..90).collect();
    for spec in ["maxnorm:bits=8,unit=tensor", "maxnorm:bits=4"] {
        let ring = Route::AllReduce { wire: Wire::F32 };
        assert_eq!(means(4, spec, &EXACT, 2, &places), means(4, spec, &ring, 1, &places), "{spec}");
    }
}
