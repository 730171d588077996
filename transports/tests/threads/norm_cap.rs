//! The cap on norms at a parameter server: who is scaled down, by how much, and that nobody else is touched.

use std::thread;
use std::time::Duration;

use gradwire::random::Stream;
use gradwire::{Decoder, Encoder, Grad, Layout, Limits, Memory, Source, Spec, StepInput, StepKey};
use gradwire_transports::exchange::{Capped, Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::{Deadline, Rank, Transport, local};

const WORLD: u32 = 4;
const STEPS: u64 = 12;
/// Who sends too much, and from which step on.
const LOUD: (u32, u64) = (2, 5);
const SPECS: [&str; 4] = ["none", "bf16", "topk:density=0.05", "qsgd:bits=4,bucket=64,rounding=nearest"];

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 33]), ("b", vec![33]), ("v", vec![7, 11])]).unwrap()
}

fn key(rank: u32, step: u64) -> StepKey {
    StepKey { seed: 7, step, source: Source::Rank(rank) }
}

/// The loud rank's is as the others' until it is `gain` times that.
fn gradient(rank: u32, step: u64, gain: f32) -> Vec<f32> {
    let stream: Stream = StepKey { seed: 5, step, source: Source::Rank(rank) }.stream(0);
    let gain = if rank == LOUD.0 && step >= LOUD.1 { gain } else { 1.0 };
    let value = |i| (stream.u64_at(i) as u32 as f32 / u32::MAX as f32 - 0.5) * gain;
    (0..layout().len() as u64).map(value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What a worker saw: the mean of each step, what was capped, and what it keeps back at the end.
#[derive(Debug, PartialEq)]
struct Seen {
    means: Vec<Vec<u32>>,
    capped: Vec<Vec<Capped>>,
    residual: Vec<u32>,
}

fn run(spec: &str, norm_cap: Option<f32>, gain: f32) -> Vec<Seen> {
    let spec = Spec::parse(spec).unwrap();
    let worker = |mut transport: local::LocalTransport| {
        let route = Route::Server(ServerOptions { norm_cap, ..ServerOptions::default() });
        let mut exchange = Exchange::new(spec, layout(), route).unwrap();
        let mut memory = Memory::for_spec(&spec, &layout().as_ref());
        let (rank, deadline) = (transport.rank().0, Deadline::after(Duration::from_secs(60)));
        let mut seen = Seen { means: Vec::new(), capped: Vec::new(), residual: Vec::new() };
        for step in 0..STEPS {
            let (grad, mut mean) = (gradient(rank, step, gain), vec![0.0; layout().len()]);
            let grad = Grad::F32(&grad);
            exchange.start(&mut transport, key(rank, step), grad, memory.as_mut(), deadline).unwrap();
            let report = exchange.finish(&mut transport, &mut mean, memory.as_mut(), deadline).unwrap();
            assert_eq!(report.contributors.len(), WORLD as usize);
            seen.means.push(bits(&mean));
            seen.capped.push(report.capped);
        }
        Seen { residual: memory.map(|memory| bits(memory.residual())).unwrap_or_default(), ..seen }
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            local::world(WORLD).into_iter().map(|transport| scope.spawn(|| worker(transport))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The same by definition: frames decoded alone, norms and medians of all frames so far, added in rank order.
/// Also the sum of what was cut off.
fn serial(spec: &str, norm_cap: Option<f32>, gain: f32) -> (Vec<Seen>, Vec<f64>) {
    let (spec, layout) = (Spec::parse(spec).unwrap(), layout());
    let layout = layout.as_ref();
    let units: Vec<_> = spec.units.units(&layout).collect();
    let mut memories: Vec<_> = (0..WORLD).map(|_| Memory::for_spec(&spec, &layout)).collect();
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let (mut means, mut norms, mut lost) = (Vec::new(), Vec::<f64>::new(), vec![0.0; layout.len()]);
    let mut capped = vec![Vec::new(); STEPS as usize];
    for step in 0..STEPS {
        let mut sum = vec![0.0f32; layout.len()];
        for (rank, memory) in (0..WORLD).zip(&mut memories) {
            let grad = gradient(rank, step, gain);
            let (grad, memory) = (Grad::F32(&grad), memory.as_mut());
            let input = StepInput { key: key(rank, step), layout: &layout, units: &units, grad };
            let frame = encoder.encode(&spec.codec, &input, memory).unwrap();
            let frame = decoder.parse(frame, &layout, &Limits::for_layout(&layout)).unwrap();
            let mut decoded = vec![0.0f32; layout.len()];
            frame.add_scaled_to(1.0, &mut decoded);
            let norm = decoded.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            let mut last: Vec<f64> = norms.iter().copied().rev().take(64).collect();
            last.sort_by(f64::total_cmp);
            let median = if last.len() < 8 { f64::INFINITY } else { last[(last.len() - 1) / 2] };
            let bound = norm_cap.map_or(f64::INFINITY, |cap| f64::from(cap) * median);
            let weight = if norm > bound { (bound / norm) as f32 } else { 1.0 };
            if norm > bound {
                let lost_norm = norm * (1.0 - f64::from(weight));
                capped[step as usize].push(Capped { rank: Rank(rank), norm, median, lost_norm });
            }
            sum.iter_mut().zip(&decoded).for_each(|(sum, value)| *sum += weight * value);
            let cut = 1.0 - f64::from(weight);
            lost.iter_mut().zip(&decoded).for_each(|(lost, &value)| *lost += f64::from(value) * cut);
            norms.push(norm);
        }
        means.push(bits(&sum.iter().map(|sum| sum / WORLD as f32).collect::<Vec<_>>()));
    }
    let seen = |(rank, memory): (usize, Option<Memory<'_>>)| Seen {
        means: means.clone(),
        capped: if rank == 0 { capped.clone() } else { vec![Vec::new(); STEPS as usize] },
        residual: memory.map(|memory| bits(memory.residual())).unwrap_or_default(),
    };
    (memories.into_iter().enumerate().map(seen).collect(), lost)
}

#[test]
fn a_frame_a_thousand_times_as_long_is_scaled_down_and_named_and_others_are_not() {
    for spec in SPECS {
        let seen = run(spec, Some(3.0), 1000.0);
        assert!(seen == serial(spec, Some(3.0), 1000.0).0, "{spec}");
        for (step, capped) in (0u64..).zip(&seen[0].capped) {
            let ranks: Vec<u32> = capped.iter().map(|capped| capped.rank.0).collect();
            assert_eq!(ranks, if step < LOUD.1 { vec![] } else { vec![LOUD.0] }, "{spec}, step {step}");
        }
    }
}

#[test]
fn without_a_cap_as_by_default_and_with_nobody_too_long_nothing_changes() {
    assert_eq!(ServerOptions::default().norm_cap, None);
    for spec in SPECS {
        assert!(run(spec, None, 1000.0) == serial(spec, None, 1000.0).0, "{spec}");
        let all_alike = run(spec, None, 1.0);
        assert!(all_alike == run(spec, Some(3.0), 1.0), "{spec}");
        assert!(all_alike[0].capped.iter().all(Vec::is_empty), "{spec}");
    }
}

/// Sent is applied, kept, or reported as lost.
#[test]
fn what_is_cut_off_is_all_that_is_missing() {
    for spec in ["none", "topk:density=0.05"] {
        let seen = run(spec, Some(3.0), 1000.0);
        let (_, lost) = serial(spec, Some(3.0), 1000.0);
        let mut missing = vec![0.0f64; lost.len()];
        let mut subtract = |values: &[u32], times: f64| {
            let values = values.iter().map(|&bits| f64::from(f32::from_bits(bits)));
            missing.iter_mut().zip(values).for_each(|(missing, value)| *missing -= times * value);
        };
        for step in 0..STEPS {
            (0..WORLD).for_each(|rank| subtract(&bits(&gradient(rank, step, 1000.0)), -1.0));
            subtract(&seen[0].means[step as usize], f64::from(WORLD));
        }
        seen.iter().for_each(|seen| subtract(&seen.residual, 1.0));
        for (missing, lost) in missing.iter().zip(&lost) {
            assert!((missing - lost).abs() < 0.02, "{spec}: {missing} is missing, {lost} was cut off");
        }
        let reported: f64 = seen[0].capped.iter().flatten().map(|capped| capped.lost_norm).sum();
        let norm = missing.iter().map(|missing| missing * missing).sum::<f64>().sqrt();
        assert!(norm > 1000.0 && norm <= reported * 1.0001, "{spec}: {norm} of {reported}");
    }
}

#[test]
fn caps_below_1_and_caps_of_packets_are_refused_by_name() {
    let exchange = |spec, multiple| {
        let route = Route::Server(ServerOptions { norm_cap: Some(multiple), ..ServerOptions::default() });
        Exchange::new(Spec::parse(spec).unwrap(), layout(), route).map(|_| ())
    };
    assert_eq!(exchange("topk", 1.0), Ok(()));
    assert_eq!(exchange("topk", 0.5), Err(ExchangeError::NormCap { multiple: 0.5 }));
    let error = exchange("topk:max_packet_bytes=256", 4.0).unwrap_err();
    assert_eq!(error, ExchangeError::CappedPackets);
    assert!(error.to_string().contains("max_packet_bytes"), "{error}");
}
