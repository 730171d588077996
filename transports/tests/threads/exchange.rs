//! The exchanges over the in-process transport: the mean, its order, its divisor, and that nothing is lost.

use std::thread;
use std::time::Duration;

use gradwire::plan::Plan;
use gradwire::random::Stream;
use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepInput, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Report, Route, ServerOptions};
use gradwire_transports::layer::{FaultInjector, FaultPlan};
use gradwire_transports::{Deadline, Rank, Transport, TransportError, local};

const SPECS: [&str; 9] = [
    "none",
    "bf16",
    "topk:density=0.05",
    "topk:density=0.05,values=q4,dense_1d=true",
    "threshold:value=1.5,unit=tensor",
    "qsgd:bits=4,bucket=64",
    "qsgd:bits=4,bucket=64,rounding=nearest",
    "randomk:density=0.1",
    "randomk:density=0.1,block=tile",
];

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 33]), ("b", vec![33]), ("v", vec![7, 11])]).unwrap()
}

/// A gradient with heavy tails, different on every rank and step.
fn gradient(rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream: Stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    (0..len as u64)
        .map(|i| {
            let uniform = stream.u64_at(i) as u32 as f32 / u32::MAX as f32 - 0.5;
            uniform * uniform * uniform * 16.0
        })
        .collect()
}

fn key(rank: u32, step: u64) -> StepKey {
    StepKey { seed: 7, step, source: Source::Rank(rank) }
}

/// One worker: runs `steps` and returns every mean with its report, and the residual.
struct Worker {
    transport: Box<dyn Transport>,
    exchange: Exchange,
    residual: Vec<f32>,
    keeps: bool,
    wait: Duration,
}

impl Worker {
    fn new(transport: Box<dyn Transport>, spec: &str, route: Route) -> Self {
        let spec = Spec::parse(spec).unwrap();
        let layout = layout();
        let residual = vec![0.0; layout.len()];
        let keeps = spec.memory == MemoryChoice::ErrorFeedback;
        let exchange = Exchange::new(spec, layout, route).unwrap();
        Self { transport, exchange, residual, keeps, wait: Duration::from_secs(20) }
    }

    fn step(&mut self, step: u64) -> Result<(Vec<f32>, Report), ExchangeError> {
        let rank = self.transport.rank().0;
        let grad = gradient(rank, step, self.residual.len());
        let mut mean = vec![f32::NAN; self.residual.len()];
        let mut memory = Memory::new(&mut self.residual);
        let mut memory = self.keeps.then_some(&mut memory);
        let deadline = Deadline::after(self.wait);
        let transport = self.transport.as_mut();
        self.exchange.start(transport, key(rank, step), Grad::F32(&grad), memory.as_deref_mut(), deadline)?;
        let report = self.exchange.finish(transport, &mut mean, memory, deadline)?;
        Ok((mean, report))
    }
}

/// Runs one closure a rank on threads of their own and returns what they return, in rank order.
fn on_threads<T: Send>(workers: Vec<Worker>, run: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn workers(world: u32, spec: &str, route: &Route) -> Vec<Worker> {
    let transports = local::world(world).into_iter();
    transports.map(|transport| Worker::new(Box::new(transport), spec, route.clone())).collect()
}

/// ‖sent‖² and ‖p‖², p = fl(residual + gradient), which is sent + kept.
#[test]
fn a_measured_step_reports_how_much_of_its_gradient_each_rank_sent() {
    let server = || Route::Server(ServerOptions::default());
    for (spec, route, messages) in [
        ("topk:density=0.05", Route::AllGather, 1),
        ("topk:density=0.05,unit=tensor", Route::AllGather, 3),
        ("topk:density=0.05,values=q4", Route::SparseAllReduce, 1),
        ("qsgd:bits=4,bucket=64,rounding=nearest", server(), 1),
        ("topk:density=0.05,max_packet_bytes=128", server(), 1),
        ("bf16:memory=none", Route::AllGather, 1),
        ("randomk:density=0.1", Route::AllReduce { wire: Wire::F32 }, 1),
    ] {
        let run = |measures: bool| {
            on_threads(workers(3, spec, &route), |mut worker| {
                worker.exchange =
                    if messages > 1 { worker.exchange.pipelined(messages).unwrap() } else { worker.exchange };
                worker.exchange = if measures { worker.exchange.measuring_gain() } else { worker.exchange };
                (0..3u64)
                    .map(|step| {
                        let before = worker.residual.clone();
                        let (mean, report) = worker.step(step).unwrap();
                        let grad = gradient(worker.transport.rank().0, step, before.len());
                        let p = before.iter().zip(&grad).map(|(kept, grad)| kept + grad);
                        let whole: f64 = p.clone().map(|p| f64::from(p).powi(2)).sum();
                        let sent =
                            p.zip(&worker.residual).map(|(p, kept)| f64::from(p - kept).powi(2)).sum::<f64>();
                        (bits(&mean), bits(&worker.residual), report.gain, [sent, whole])
                    })
                    .collect::<Vec<_>>()
            })
        };
        let (measured, plain) = (run(true), run(false));
        for (measured, plain) in measured.iter().flatten().zip(plain.iter().flatten()) {
            assert_eq!((&measured.0, &measured.1, plain.2), (&plain.0, &plain.1, None), "{spec}");
            let Some(gain) = measured.2 else {
                assert!(matches!(route, Route::AllReduce { .. }), "{spec}: not measured");
                continue;
            };
            // A cast keeps nothing back, and sends all but its rounding.
            let close = if spec.starts_with("bf16") { 1e-2 } else { 1e-12 };
            for (gain, expected) in [gain.sent, gain.whole].into_iter().zip(measured.3) {
                assert!((gain / expected - 1.0).abs() < close, "{spec}: {gain} for {expected}");
            }
        }
    }
}

/// Schedules and controllers set the density between steps; every rank alike.
#[test]
fn densities_are_set_between_steps_and_take_effect_at_once() {
    let density = |fraction| gradwire::Density::new(fraction).unwrap();
    for (spec, route) in [
        ("topk:density=0.01", Route::AllGather),
        ("topk:density=0.01", Route::Server(ServerOptions::default())),
        ("randomk:density=0.01", Route::AllReduce { wire: Wire::F32 }),
    ] {
        let held = on_threads(workers(3, spec, &route), |mut worker| {
            let fractions = [0.01, 0.5, 0.1];
            (0..3u64)
                .zip(fractions)
                .map(|(step, fraction)| {
                    worker.exchange.set_density(density(fraction)).unwrap();
                    worker.step(step).unwrap().1.held
                })
                .collect::<Vec<_>>()
        });
        let n = layout().len();
        assert!(
            held.iter().all(|held| *held == [0.01, 0.5, 0.1].map(|f| density(f).count(n))),
            "{spec}: {held:?}"
        );
    }
    let mut worker = workers(1, "topk:density=0.01", &Route::AllGather).remove(0);
    let grad = gradient(0, 0, layout().len());
    let never = Deadline::NEVER;
    let mut memory = Memory::new(vec![0.0; grad.len()]);
    let transport = worker.transport.as_mut();
    worker.exchange.start(transport, key(0, 0), Grad::F32(&grad), Some(&mut memory), never).unwrap();
    assert_eq!(worker.exchange.set_density(density(0.5)), Err(ExchangeError::Busy));
}

/// A step after `set_codec` is the step of a new exchange with that codec from the same memory, bit for bit.
#[test]
fn a_step_after_set_codec_is_that_of_a_new_exchange_with_it() {
    let ring = || Route::AllReduce { wire: Wire::F32 };
    for (first, second, route) in [
        ("topk:density=0.05", "qsgd:bits=4,bucket=64,rounding=nearest,norm=max,memory=ef", Route::AllGather),
        ("topk:density=0.05", "topk:density=0.3,values=q4", Route::SparseAllReduce),
        ("threshold:value=1.5", "topk:density=0.2", Route::Server(ServerOptions::default())),
        ("randomk:density=0.1", "randomk:density=0.4", ring()),
        ("none", "maxnorm:bits=8", ring()),
        ("maxnorm:bits=8", "none", Route::Tree { wire: Wire::F32 }),
    ] {
        let run = |is_new: bool| {
            on_threads(workers(3, first, &route), |mut worker| {
                let mut bits_of_all = bits(&worker.step(0).unwrap().0);
                let codec = Spec::parse(second).unwrap().codec;
                if is_new {
                    let spec = Spec { codec, ..Spec::parse(first).unwrap() };
                    worker.exchange = Exchange::new(spec, layout(), route.clone()).unwrap();
                } else {
                    worker.exchange.set_codec(codec).unwrap();
                }
                for step in 1..3 {
                    bits_of_all.extend(bits(&worker.step(step).unwrap().0));
                }
                bits_of_all.extend(bits(&worker.residual));
                bits_of_all
            })
        };
        let [set, new] = [false, true].map(run);
        assert_eq!(set, new, "{first} to {second}");
    }
}

#[test]
fn a_codec_that_cannot_follow_is_refused_by_name_and_changes_nothing() {
    let ring = Route::AllReduce { wire: Wire::F32 };
    for (first, second, route, expected) in [
        ("randomk:density=0.1", "topk:density=0.1", ring.clone(), ExchangeError::NotLinear { codec: "topk" }),
        (
            "topk:density=0.1",
            "qsgd:bits=4",
            Route::SparseAllReduce,
            ExchangeError::NotSparse { codec: "qsgd" },
        ),
        ("none", "powersgd:rank=2", Route::AllGather, ExchangeError::NoFrames { codec: "powersgd" }),
        ("none", "dpsgd", ring.clone(), ExchangeError::Gossip { codec: "dpsgd" }),
        ("randomk:density=0.1", "powersgd:rank=2", ring, ExchangeError::OtherMemory { codec: "powersgd" }),
    ] {
        let mut worker = workers(1, first, &route).remove(0);
        let refused = worker.exchange.set_codec(Spec::parse(second).unwrap().codec);
        assert_eq!(refused, Err(expected));
        let mean = worker.step(0).unwrap().0;
        assert_eq!(bits(&mean), bits(&workers(1, first, &route).remove(0).step(0).unwrap().0), "{first}");
    }
    let mut packets =
        workers(1, "topk:density=0.1,max_packet_bytes=256", &Route::Server(ServerOptions::default()));
    let refused = packets[0].exchange.set_codec(Spec::parse("dgc:density=0.1").unwrap().codec);
    assert!(matches!(refused, Err(ExchangeError::Conflict { codec: "dgc", .. })), "{refused:?}");
}

/// Units are encoded apart, so a unit is sent as it would be if all units had its density.
#[test]
fn each_unit_is_sent_at_its_own_density_on_every_route() {
    let density = |fraction| gradwire::Density::new(fraction).unwrap();
    let fractions = [0.05, 1.0, 0.3];
    let ring = || Route::AllReduce { wire: Wire::F32 };
    for (spec, route, messages) in [
        ("topk:unit=tensor", Route::AllGather, 1),
        ("topk:unit=tensor,values=q4", Route::AllGather, 3),
        ("topk:unit=tensor", Route::SparseAllReduce, 2),
        ("topk:unit=tensor,dense_1d=true", Route::Server(ServerOptions::default()), 1),
        ("randomk:unit=tensor", Route::AllGather, 1),
        ("randomk:unit=tensor", ring(), 3),
        ("randomk:unit=tensor,dense_1d=true", Route::Tree { wire: Wire::F32 }, 1),
    ] {
        let run = |set: &(dyn Fn(&mut Exchange) + Sync)| {
            on_threads(workers(3, spec, &route), |mut worker| {
                if messages > 1 {
                    worker.exchange = worker.exchange.pipelined(messages).unwrap();
                }
                let step = |step| {
                    set(&mut worker.exchange);
                    let (mean, report) = worker.step(step).unwrap();
                    (mean, worker.residual.clone(), report.held)
                };
                (0..3).map(step).collect::<Vec<_>>()
            })
        };
        let apart = run(&|exchange| exchange.set_densities(&fractions.map(density)).unwrap());
        let (layout, units) = (layout(), Spec::parse(spec).unwrap().units);
        for (unit, fraction) in units.units(&layout.as_ref()).zip(fractions) {
            let alike = run(&|exchange| exchange.set_density(density(fraction)).unwrap());
            for (apart, alike) in apart.iter().flatten().zip(alike.iter().flatten()) {
                for (a, b) in [(&apart.0, &alike.0), (&apart.1, &alike.1)] {
                    assert_eq!(bits(&a[unit.range()]), bits(&b[unit.range()]), "{spec}: unit {}", unit.id);
                }
            }
        }
        let held = density(0.05).count(660) + 33 + density(0.3).count(77);
        assert!(apart.iter().flatten().all(|step| step.2 == held), "{spec}: {held}");
        // The next codec is for all units again.
        let after = |exchange: &mut Exchange| {
            exchange.set_densities(&fractions.map(density)).unwrap();
            exchange.set_density(density(0.3)).unwrap();
        };
        let [first, second] = [run(&after), run(&|exchange| exchange.set_density(density(0.3)).unwrap())]
            .map(|run| run[0][2].clone());
        assert_eq!((bits(&first.0), first.2), (bits(&second.0), second.2), "{spec}");
    }
}

#[test]
fn densities_of_units_are_refused_where_there_are_none() {
    let densities = [0.1; 3].map(|fraction| gradwire::Density::new(fraction).unwrap());
    let server = Route::Server(ServerOptions::default());
    for (spec, route) in
        [("qsgd:bits=4,unit=tensor", &Route::AllGather), ("topk:unit=tensor,max_packet_bytes=256", &server)]
    {
        let refused = workers(1, spec, route).remove(0).exchange.set_densities(&densities);
        assert!(matches!(refused, Err(ExchangeError::Conflict { .. })), "{spec}: {refused:?}");
    }
    let mut worker = workers(1, "topk:unit=tensor", &Route::AllGather).remove(0);
    let grad = gradient(0, 0, layout().len());
    let mut memory = Memory::new(vec![0.0; grad.len()]);
    let transport = worker.transport.as_mut();
    worker
        .exchange
        .start(transport, key(0, 0), Grad::F32(&grad), Some(&mut memory), Deadline::NEVER)
        .unwrap();
    assert_eq!(worker.exchange.set_densities(&densities), Err(ExchangeError::Busy));
}

/// `w` of 20 × 33 and `v` of 7 × 11: at rank 5 the factors of `v` are longer than `v`, so it travels whole.
#[test]
fn a_rank_is_set_between_steps_and_the_residual_stays() {
    let ranks = [3, 3, 1, 5, 2, 5];
    for route in [Route::AllReduce { wire: Wire::F32 }, Route::Tree { wire: Wire::F32 }] {
        let spec = |rank: u16| Spec::parse(&format!("powersgd:rank={rank},min_rate=1")).unwrap();
        let factors_of = |rank: u16| {
            let columns = usize::from(rank);
            columns * 33 + if rank < 5 { columns * 11 } else { 0 }
        };
        let transports: Vec<Worker> = workers(3, "powersgd:rank=3,min_rate=1", &route);
        let run = |mut worker: Worker| {
            let (layout, rank) = (layout(), worker.transport.rank().0);
            let mut memory = Memory::for_spec(&spec(3), &layout.as_ref()).unwrap();
            let mut seen = Vec::new();
            for (step, now) in (0..).zip(ranks) {
                let before: (Vec<f32>, Vec<f32>) = (memory.residual().to_vec(), memory.factors().to_vec());
                worker.exchange.set_rank(now, &mut memory).unwrap();
                assert_eq!(bits(memory.residual()), bits(&before.0), "bit for bit");
                assert_eq!(memory.factors().len(), factors_of(now));
                // The first columns of `w` are those of before, and new ones are zero.
                let kept = before.1.len().min(33 * usize::from(now));
                let had = if step == 0 { 3 } else { ranks[step as usize - 1] };
                let kept = kept.min(33 * usize::from(had));
                assert_eq!(bits(&memory.factors()[..kept]), bits(&before.1[..kept]));
                assert!(memory.factors()[kept..33 * usize::from(now)].iter().all(|&new| new == 0.0));
                let grad = gradient(rank, step, layout.len());
                let mut mean = vec![0.0; layout.len()];
                let transport = worker.transport.as_mut();
                let (of, by) = (Grad::F32(&grad), Deadline::after(worker.wait));
                worker.exchange.start(transport, key(rank, step), of, Some(&mut memory), by).unwrap();
                let report = worker.exchange.finish(transport, &mut mean, Some(&mut memory), by).unwrap();
                let p: Vec<f32> = before.0.iter().zip(&grad).map(|(kept, grad)| kept + grad).collect();
                seen.push((mean, p, memory.residual().to_vec(), report.frame_bytes));
            }
            seen
        };
        let all = on_threads(transports, run);
        for (step, now) in ranks.into_iter().enumerate() {
            let steps: Vec<_> = all.iter().map(|worker| &worker[step]).collect();
            assert!(steps.iter().all(|other| bits(&other.0) == bits(&steps[0].0)), "one mean");
            // P and Q of `w`, those of `v` or all of it, and `b`.
            let of_v = if now < 5 { usize::from(now) * 18 } else { 77 };
            assert_eq!(steps[0].3, 4 * (usize::from(now) * 53 + of_v + 33), "rank {now}");
            for at in 0..steps[0].0.len() {
                let (mut sent, mut p, mut kept) = (0.0, 0.0, 0.0);
                for (mean, corrected, residual, _) in &steps {
                    sent += f64::from(mean[at]);
                    p += f64::from(corrected[at]);
                    kept += f64::from(residual[at]);
                }
                assert!((sent + kept - p).abs() < 1e-4, "step {step}, {at}: {sent} + {kept} of {p}");
            }
        }
    }
}

/// Each unit at its ranks is as in a model whose units all have them.
#[test]
fn ranks_of_units_are_set_between_steps() {
    let ranks = [[2, 2, 2], [3, 1, 2], [1, 1, 4], [1, 1, 1], [5, 9, 2]];
    let steps = ranks.len() as u64;
    let ring = || Route::AllReduce { wire: Wire::F32 };
    for (route, parts) in [(ring(), 1), (ring(), 3), (Route::Tree { wire: Wire::F32 }, 1)] {
        let spec = "powersgd:rank=1,min_rate=1,unit=tensor";
        let run = |ranks: &(dyn Fn(usize) -> [u16; 3] + Sync)| {
            on_threads(workers(3, spec, &route), |worker: Worker| {
                let Worker { mut transport, exchange, wait, .. } = worker;
                let mut exchange = if parts > 1 { exchange.pipelined(parts).unwrap() } else { exchange };
                let (layout, rank) = (layout(), transport.rank().0);
                let mut memory = Memory::for_spec(&Spec::parse(spec).unwrap(), &layout.as_ref()).unwrap();
                let step = |step: u64| {
                    let before = bits(memory.residual());
                    exchange.set_ranks(&ranks(step as usize), &mut memory).unwrap();
                    assert_eq!(bits(memory.residual()), before);
                    let (grad, mut mean) = (gradient(rank, step, layout.len()), vec![0.0; layout.len()]);
                    let (of, by) = (Grad::F32(&grad), Deadline::after(wait));
                    let transport = transport.as_mut();
                    exchange.start(transport, key(rank, step), of, Some(&mut memory), by).unwrap();
                    exchange.finish(transport, &mut mean, Some(&mut memory), by).unwrap();
                    (bits(&mean), bits(memory.residual()), memory.factors().len())
                };
                (0..steps).map(step).collect::<Vec<_>>()
            })
        };
        let apart = run(&|step| ranks[step]);
        let (layout, units) = (layout(), Spec::parse(spec).unwrap().units);
        for (at, unit) in units.units(&layout.as_ref()).enumerate() {
            let alike = run(&|step| [ranks[step][at]; 3]);
            for (apart, alike) in apart.iter().flatten().zip(alike.iter().flatten()) {
                assert_eq!(apart.0[unit.range()], alike.0[unit.range()], "unit {at} by {route:?}");
                assert_eq!(apart.1[unit.range()], alike.1[unit.range()], "unit {at} by {route:?}");
            }
        }
        // 33 columns of `w`, and 11 of `v` unless its factors are longer than it is.
        let factors: Vec<usize> = apart[0].iter().map(|step| step.2).collect();
        assert_eq!(factors, [66 + 22, 99 + 22, 33 + 44, 33 + 11, 165 + 22]);
    }
}

#[test]
fn while_ranks_differ_no_other_codec_is_taken() {
    let spec = Spec::parse("powersgd:rank=1,min_rate=1,unit=tensor").unwrap();
    let mut exchange = Exchange::new(spec, layout(), Route::AllReduce { wire: Wire::F32 }).unwrap();
    let mut memory = Memory::for_spec(&spec, &layout().as_ref()).unwrap();
    exchange.set_ranks(&[2, 1, 1], &mut memory).unwrap();
    assert_eq!(exchange.set_codec(spec.codec), Err(ExchangeError::OtherMemory { codec: "powersgd" }));
    exchange.set_ranks(&[1, 1, 1], &mut memory).unwrap();
    assert_eq!(exchange.set_codec(spec.codec), Ok(()));
}

#[test]
fn a_rank_that_cannot_be_set_is_refused_and_changes_nothing() {
    let ring = Route::AllReduce { wire: Wire::F32 };
    let mut memory = Memory::new(vec![0.0; layout().len()]);
    let conflict =
        |refused: Result<(), ExchangeError>| matches!(refused, Err(ExchangeError::Conflict { .. }));
    assert!(conflict(workers(1, "randomk", &ring).remove(0).exchange.set_rank(2, &mut memory)));
    let mut worker = workers(1, "powersgd:rank=1", &ring).remove(0);
    assert!(conflict(worker.exchange.set_rank(257, &mut memory)));
    let incomplete = ExchangeError::Encode(gradwire::EncodeError::MemoryIncomplete);
    assert_eq!(worker.exchange.set_rank(2, &mut memory), Err(incomplete), "a memory without factors");
    assert!(memory.factors().is_empty());
}

/// The mean by definition: every rank's own frame, decoded alone and added in rank order.
fn serial_means(world: u32, spec: &str, steps: u64) -> Vec<Vec<f32>> {
    let spec = Spec::parse(spec).unwrap();
    let layout = layout();
    let layout = layout.as_ref();
    let units: Vec<_> = spec.units.units(&layout).collect();
    let mut residuals = vec![vec![0.0; layout.len()]; world as usize];
    let (mut encoder, mut decoder) = (gradwire::Encoder::new(), gradwire::Decoder::new());
    (0..steps)
        .map(|step| {
            let mut sum = vec![0.0f32; layout.len()];
            for rank in 0..world {
                let grad = gradient(rank, step, layout.len());
                let mut memory = Memory::new(&mut residuals[rank as usize]);
                let memory = (spec.memory == MemoryChoice::ErrorFeedback).then_some(&mut memory);
                let grad = Grad::F32(&grad);
                let input = StepInput { key: key(rank, step), layout: &layout, units: &units, grad };
                let frame = encoder.encode(&spec.codec, &input, memory).unwrap();
                let limits = gradwire::Limits::for_layout(&layout);
                decoder.parse(frame, &layout, &limits).unwrap().add_scaled_to(1.0, &mut sum);
            }
            sum.iter().map(|sum| sum / world as f32).collect()
        })
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn gathered_and_served_means_are_the_frames_added_in_rank_order() {
    for route in [Route::AllGather, Route::Server(ServerOptions::default())] {
        for spec in SPECS {
            for world in 1..=4 {
                let expected = serial_means(world, spec, 3);
                let means = on_threads(workers(world, spec, &route), |mut worker| {
                    (0..3).map(|step| worker.step(step).unwrap().0).collect::<Vec<_>>()
                });
                for mean in &means {
                    for (mean, expected) in mean.iter().zip(&expected) {
                        assert_eq!(bits(mean), bits(expected), "{spec} over {world}");
                    }
                }
            }
        }
    }
}

#[test]
fn reduced_means_are_alike_on_all_ranks_and_near_the_serial_ones() {
    for wire in [Wire::F32, Wire::Bf16] {
        for spec in ["none", "randomk:density=0.1", "randomk:density=0.1,estimator=unbiased,dense_1d=true"] {
            for world in 1..=5 {
                let expected = serial_means(world, spec, 2);
                let route = Route::AllReduce { wire };
                let means = on_threads(workers(world, spec, &route), |mut worker| {
                    (0..2).map(|step| worker.step(step).unwrap().0).collect::<Vec<_>>()
                });
                for mean in &means {
                    assert_eq!(mean, &means[0], "{spec} over {world}");
                }
                // One rounding to 8 bits a hop for bf16; a few to 24 bits for f32.
                let tolerance = if wire == Wire::Bf16 { 0.1 } else { 1e-5 };
                let near = |a: &f32, b: &f32| (a - b).abs() <= tolerance * b.abs().max(1.0);
                let pairs = means[0].iter().flatten().zip(expected.iter().flatten());
                assert!(pairs.into_iter().all(|(a, b)| near(a, b)), "{spec} over {world}");
            }
        }
    }
}

/// The written order: neighbours first.
#[test]
fn a_tree_sums_neighbours_first_and_all_ranks_apply_the_same_mean() {
    let len = layout().len();
    let of = |rank| gradient(rank, 0, len);
    let sum = |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    for world in 1..=5 {
        let expected = match world {
            1 => of(0),
            2 => sum(&of(0), &of(1)),
            3 => sum(&sum(&of(0), &of(1)), &of(2)),
            _ => sum(&sum(&of(0), &of(1)), &sum(&of(2), &of(3))),
        };
        let expected = if world == 5 { sum(&expected, &of(4)) } else { expected };
        let expected: Vec<f32> = expected.iter().map(|sum| sum / world as f32).collect();
        let route = Route::Tree { wire: Wire::F32 };
        let results = on_threads(workers(world, "none", &route), |mut worker| worker.step(0).unwrap());
        for (mean, report) in &results {
            assert_eq!(bits(mean), bits(&expected), "{world} ranks");
            assert_eq!((report.frame_bytes, report.contributors.len()), (4 * len, world as usize));
        }
    }
    let refused = Exchange::new(Spec::parse("topk").unwrap(), layout(), Route::Tree { wire: Wire::F32 });
    assert!(matches!(refused, Err(ExchangeError::NotLinear { .. })));
}

#[test]
fn a_codec_of_two_rounds_agrees_on_its_range_before_it_sums() {
    for (world, (spec, levels)) in (1..=4).flat_map(|world| {
        let one_scale = ("maxnorm:bits=8,dense_1d=true", 127.0);
        [one_scale, ("maxnorm:bits=8+16,dense_1d=true", 127.0), ("maxnorm:bits=6+12", 31.0)]
            .map(|spec| (world, spec))
    }) {
        let expected = serial_means(world, "none", 1);
        let route = Route::AllReduce { wire: Wire::F32 };
        let results = on_threads(workers(world, spec, &route), |mut worker| worker.step(0).unwrap());
        let largest =
            (0..world).flat_map(|rank| gradient(rank, 0, layout().len())).fold(0.0, |m, g| g.abs().max(m));
        for (mean, report) in &results {
            assert_eq!(bits(mean), bits(&results[0].0), "{spec} over {world}");
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= largest / levels * 1.001;
            assert!(mean.iter().zip(&expected[0]).all(near), "{spec} over {world}");
            assert_eq!(report.held, layout().len());
            // A level of 8 bits and its share of the sum take 9 to 10 bits, three to a word.
            assert!(report.frame_bytes < layout().len() * 4 * 2 / 3, "{} bytes", report.frame_bytes);
        }
    }
}

#[test]
fn factors_are_summed_around_the_ring_and_make_one_mean() {
    let (layout, steps) = (layout(), 4);
    // 20·33 and 7·11 in factors of 53·2 and 18·2; 33 whole.
    let (first, second) = (40 + 33 + 14, 66 + 22);
    let spec = Spec::parse("powersgd:rank=2").unwrap();
    for world in 1..=5 {
        let results =
            on_threads(workers(world, "powersgd:rank=2", &Route::AllReduce { wire: Wire::F32 }), |worker| {
                let Worker { mut transport, mut exchange, .. } = worker;
                let mut memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
                let (rank, deadline) = (transport.rank().0, Deadline::after(Duration::from_secs(20)));
                let (mut applied, mut mean) = (vec![0.0f64; layout.len()], vec![f32::NAN; layout.len()]);
                for step in 0..steps {
                    let grad = gradient(rank, step, layout.len());
                    let transport = transport.as_mut();
                    exchange
                        .start(transport, key(rank, step), Grad::F32(&grad), Some(&mut memory), deadline)
                        .unwrap();
                    let report = exchange.finish(transport, &mut mean, Some(&mut memory), deadline).unwrap();
                    assert_eq!(report.frame_bytes, 4 * (first + second));
                    applied
                        .iter_mut()
                        .zip(&mean)
                        .for_each(|(sum, &mean)| *sum += f64::from(mean) * f64::from(world));
                }
                (
                    applied,
                    memory.residual().to_vec(),
                    bits(memory.factors()),
                    // Less the version at the end of each message.
                    transport.counters().up.payload_bytes - transport.counters().up.messages,
                )
            });
        let residuals: Vec<_> = results.iter().map(|result| result.1.clone()).collect();
        assert_conserved(&results[0].0, &residuals, steps);
        for result in &results {
            assert_eq!((&result.0, &result.2), (&results[0].0, &results[0].2), "replicas of {world} differ");
        }
        let sent: u64 = results.iter().map(|result| result.3).sum();
        assert_eq!(sent, u64::from(world - 1) * 2 * steps * 4 * (first + second) as u64);
    }
}

#[test]
fn a_codec_of_rounds_alone_is_refused_where_frames_are_sent() {
    for route in [Route::AllGather, Route::SparseAllReduce] {
        let error = Exchange::new(Spec::parse("powersgd").unwrap(), layout(), route).unwrap_err();
        assert_eq!(error, ExchangeError::NoFrames { codec: "powersgd" });
    }
}

#[test]
fn a_native_sum_fails_where_there_is_no_library_and_nothing_is_lost() {
    let transport = local::world(1).swap_remove(0);
    let mut worker =
        Worker::new(Box::new(transport), "randomk:density=0.5", Route::Native { wire: Wire::F32 });
    let error = worker.step(0).unwrap_err();
    let unsupported = TransportError::Unsupported { operation: "native all-reduce" };
    assert_eq!(error, ExchangeError::Transport(unsupported));
    assert_eq!(worker.residual, gradient(0, 0, worker.residual.len()));
}

#[test]
fn a_codec_that_cannot_be_summed_is_refused_where_all_reduce_is_asked_for() {
    let spec = Spec::parse("topk").unwrap();
    let route = Route::AllReduce { wire: Wire::F32 };
    let error = Exchange::new(spec, layout(), route).unwrap_err();
    assert_eq!(error, ExchangeError::NotLinear { codec: "topk" });
    assert_eq!(Exchange::best_route(&Plan::of(&spec, &layout().as_ref())), Route::AllGather);
    let gossip = Exchange::new(Spec::parse("dpsgd").unwrap(), layout(), Route::AllGather).unwrap_err();
    assert_eq!(gossip, ExchangeError::Gossip { codec: "dpsgd" });
    assert!(matches!(
        Exchange::best_route(&Plan::of(&Spec::parse("none").unwrap(), &layout().as_ref())),
        Route::AllReduce { .. }
    ));
}

#[test]
fn a_gathered_frame_is_charged_once_for_every_peer() {
    let traffic = on_threads(workers(3, "topk:density=0.05", &Route::AllGather), |mut worker| {
        let before = worker.transport.counters();
        let report = worker.step(0).unwrap().1;
        let traffic = worker.transport.counters() - before;
        (report.frame_bytes as u64, traffic)
    });
    let all: u64 = traffic.iter().map(|(frame, _)| frame).sum();
    for (frame, traffic) in traffic {
        // A message is a frame and the version of the exchange.
        assert_eq!(traffic.up.payload_bytes, 2 * (frame + 1));
        assert_eq!(traffic.down.payload_bytes, all - frame + 2);
    }
}

/// What was applied (mean · contributors, summed over steps) and what is kept must be all that there was, but
/// for the rounding of the additions.
fn assert_conserved(applied: &[f64], residuals: &[Vec<f32>], steps: u64) {
    let mut totals = vec![0.0f64; applied.len()];
    for (rank, step) in (0..residuals.len() as u32).flat_map(|rank| (0..steps).map(move |step| (rank, step)))
    {
        let grad = gradient(rank, step, totals.len());
        totals.iter_mut().zip(grad).for_each(|(total, value)| *total += f64::from(value));
    }
    for (i, (applied, total)) in applied.iter().zip(totals).enumerate() {
        let kept: f64 = residuals.iter().map(|residual| f64::from(residual[i])).sum();
        assert!((applied + kept - total).abs() < 1e-4, "coordinate {i}: {applied} + {kept} != {total}");
    }
}

#[test]
fn frames_lost_on_the_way_to_a_server_are_given_back_and_nothing_is_lost() {
    // Only what goes up may be dropped: a lost verdict leaves a worker in doubt, which is another test.
    let options =
        ServerOptions { quorum: 1, patience: Some(Duration::from_millis(100)), ..ServerOptions::default() };
    let route = Route::Server(options);
    let steps = 25;
    for spec in ["topk:density=0.05", "topk:density=0.05,values=q8", "qsgd:bits=4,bucket=64,rounding=nearest"]
    {
        let set = lossy_uplinks(4, 0.3, spec, &route);
        let results = on_threads(set, |mut worker| {
            let mut applied = vec![0.0f64; worker.residual.len()];
            let mut contributions = 0;
            for step in 0..steps {
                let (mean, report) = worker.step(step).unwrap();
                contributions += report.contributors.len();
                let count = report.contributors.len() as f64;
                applied.iter_mut().zip(&mean).for_each(|(sum, &mean)| *sum += f64::from(mean) * count);
            }
            // The worker as well: nobody leaves while another, late in the last step, still sends to it.
            (applied, contributions, worker)
        });
        let contributions = results[0].1;
        // Of the 75 that travel 22 are dropped on average, with a deviation of 4; on a busy machine some come
        // late.
        assert!((50..=95).contains(&contributions), "{contributions} of 100 frames arrived");
        let residuals: Vec<_> = results.iter().map(|result| result.2.residual.clone()).collect();
        assert_conserved(&results[0].0, &residuals, steps);
        assert!(results.iter().all(|result| result.0 == results[0].0), "replicas differ");
    }
}

/// Workers whose messages are dropped with that probability, and a server whose messages are not.
fn lossy_uplinks(world: u32, drop: f64, spec: &str, route: &Route) -> Vec<Worker> {
    let transports = local::world(world).into_iter().enumerate();
    transports
        .map(|(rank, transport)| {
            let drop = if rank == 0 { 0.0 } else { drop };
            let transport =
                FaultInjector::new(transport, FaultPlan { seed: 3, drop, ..FaultPlan::default() });
            Worker::new(Box::new(transport), spec, route.clone())
        })
        .collect()
}

#[test]
fn a_step_that_fails_leaves_everything_in_the_memory() {
    // Rank 1 is cut off from rank 0's messages: its step fails, and its residual is the whole gradient.
    let set = lossy_uplinks(2, 0.0, "topk:density=0.05", &Route::AllGather);
    let results = on_threads(set, |mut worker| {
        worker.wait = Duration::from_millis(200);
        if worker.transport.rank() == Rank(0) {
            return None;
        }
        Some((worker.step(0).unwrap_err(), worker.residual))
    });
    let (error, residual) = results[1].as_ref().unwrap();
    let gone = matches!(
        error,
        ExchangeError::Transport(TransportError::Timeout { .. } | TransportError::Disconnected { .. })
    );
    assert!(gone, "{error}");
    assert_eq!(bits(residual), bits(&gradient(1, 0, residual.len())));
}

#[test]
fn an_all_reduce_that_fails_leaves_everything_in_the_memory() {
    let route = Route::AllReduce { wire: Wire::F32 };
    let results = on_threads(workers(3, "randomk:density=0.1,unit=tensor", &route), |mut worker| {
        worker.wait = Duration::from_millis(200);
        if worker.transport.rank() == Rank(2) {
            return None;
        }
        Some((worker.transport.rank().0, worker.step(0).is_err(), worker.residual))
    });
    for (rank, failed, residual) in results.into_iter().flatten() {
        assert!(failed);
        assert_eq!(bits(&residual), bits(&gradient(rank, 0, residual.len())));
    }
}

#[test]
fn a_server_without_its_quorum_refuses_the_step_and_all_keep_everything() {
    let options = ServerOptions { patience: Some(Duration::from_millis(50)), ..ServerOptions::default() };
    let set = lossy_uplinks(3, 1.0, "topk:density=0.05", &Route::Server(options));
    for (rank, (error, residual)) in
        on_threads(set, |mut worker| (worker.step(0).unwrap_err(), worker.residual)).into_iter().enumerate()
    {
        assert!(matches!(error, ExchangeError::NoQuorum { .. }), "{error}");
        assert_eq!(bits(&residual), bits(&gradient(rank as u32, 0, residual.len())));
    }
}

#[test]
fn a_damaged_frame_is_refused_by_the_server_and_given_back_by_its_sender() {
    let options = ServerOptions { quorum: 1, ..ServerOptions::default() };
    let route = Route::Server(options);
    let transports = local::world(3).into_iter().enumerate();
    let set = transports
        .map(|(rank, transport)| {
            let flip = if rank == 2 { 1.0 } else { 0.0 };
            let transport =
                FaultInjector::new(transport, FaultPlan { seed: 5, flip, ..FaultPlan::default() });
            Worker::new(Box::new(transport), "topk:density=0.05", route.clone())
        })
        .collect();
    let results = on_threads(set, |mut worker| {
        let (_, report) = worker.step(0).unwrap();
        (report, worker.residual)
    });
    assert_eq!(results[0].0.refused.len(), 1);
    assert_eq!(results[0].0.refused[0].0, Rank(2));
    for (report, _) in &results {
        assert_eq!(report.contributors.as_slice(), [Rank(0), Rank(1)]);
    }
    assert_eq!(bits(&results[2].1), bits(&gradient(2, 0, results[2].1.len())));
}

#[test]
fn a_compressed_downlink_keeps_back_what_it_does_not_send() {
    let downlink = Spec::parse("topk:density=0.05").unwrap();
    let route = Route::Server(ServerOptions { downlink, ..ServerOptions::default() });
    let results = on_threads(workers(2, "none", &route), |mut worker| {
        let mut applied = vec![0.0f64; worker.residual.len()];
        for step in 0..60 {
            let mean = worker.step(step).unwrap().0;
            assert!(mean.iter().filter(|value| **value != 0.0).count() <= 39);
            applied.iter_mut().zip(&mean).for_each(|(sum, &mean)| *sum += f64::from(mean));
        }
        applied
    });
    assert_eq!(results[0], results[1]);
    // Without the server's memory the small coordinates would never arrive.
    let arrived = results[0].iter().filter(|value| **value != 0.0).count();
    assert!(arrived > results[0].len() / 2, "{arrived} coordinates arrived");
}

#[test]
fn a_mean_that_overflows_is_refused_and_names_the_rank() {
    let results = on_threads(workers(3, "none", &Route::AllGather), |mut worker| {
        let rank = worker.transport.rank().0;
        let mut grad = vec![0.0; worker.residual.len()];
        grad[5] = if rank > 0 { f32::MAX } else { 1.0 };
        let mut mean = vec![0.0; grad.len()];
        let deadline = Deadline::after(worker.wait);
        let transport = worker.transport.as_mut();
        worker.exchange.start(transport, key(rank, 0), Grad::F32(&grad), None, deadline).unwrap();
        worker.exchange.finish(transport, &mut mean, None, deadline).unwrap_err()
    });
    for error in results {
        assert_eq!(error, ExchangeError::NonFiniteMean { index: 5, rank: Some(Rank(2)) });
    }
}

#[test]
fn a_frame_of_another_step_is_refused() {
    let results = on_threads(workers(2, "topk:density=0.05", &Route::AllGather), |mut worker| {
        let rank = worker.transport.rank().0;
        let grad = gradient(rank, 0, worker.residual.len());
        let mut memory = Memory::new(&mut worker.residual);
        let deadline = Deadline::after(Duration::from_millis(300));
        let transport = worker.transport.as_mut();
        let key = key(rank, u64::from(rank));
        worker.exchange.start(transport, key, Grad::F32(&grad), Some(&mut memory), deadline).unwrap();
        let mut mean = vec![0.0; grad.len()];
        worker.exchange.finish(transport, &mut mean, Some(&mut memory), deadline).is_err()
    });
    assert_eq!(results, [true, true]);
}

#[test]
fn start_and_finish_take_turns() {
    let mut worker = workers(1, "none", &Route::AllGather).remove(0);
    let mut mean = vec![0.0; worker.residual.len()];
    let transport = worker.transport.as_mut();
    let finish = worker.exchange.finish(transport, &mut mean, None, Deadline::NEVER);
    assert_eq!(finish.unwrap_err(), ExchangeError::NotStarted);
    let grad = vec![0.0; mean.len()];
    let mut start = || worker.exchange.start(transport, key(0, 0), Grad::F32(&grad), None, Deadline::NEVER);
    assert_eq!(start(), Ok(()));
    assert_eq!(start(), Err(ExchangeError::Busy));
}

/// One gradient that is not finite makes the step void for all, at once, and the next step goes on.
#[test]
fn a_gradient_that_is_not_finite_is_known_to_every_rank_in_the_same_step() {
    let server = |server| Route::Server(ServerOptions { server: Rank(server), ..ServerOptions::default() });
    let wire = Wire::F32;
    for (spec, route) in [
        ("topk:density=0.05", Route::AllGather),
        ("qsgd:bits=4,bucket=64", Route::AllGather),
        ("topk:density=0.05", Route::SparseAllReduce),
        ("randomk:density=0.1", Route::AllReduce { wire }),
        ("randomk:density=0.1,unit=tensor", Route::AllReduce { wire }),
        ("maxnorm:bits=8", Route::AllReduce { wire }),
        ("randomk:density=0.1", Route::Tree { wire }),
        ("topk:density=0.05", server(0)),
        ("topk:density=0.05", server(1)),
        ("topk:density=0.05,max_packet_bytes=256", server(0)),
    ] {
        for world in [2, 4] {
            for bad in [0, world - 1] {
                let steps = on_threads(workers(world, spec, &route), |mut worker| {
                    let rank = worker.transport.rank().0;
                    let first = worker.step(0).unwrap().0;
                    let mut everything = worker.residual.clone();
                    let mut grad = gradient(rank, 1, everything.len());
                    if rank == bad {
                        grad[17] = f32::INFINITY;
                    }
                    let (Worker { transport, exchange, residual, keeps, .. }, begun) =
                        (&mut worker, std::time::Instant::now());
                    let mut memory = Memory::new(&mut *residual);
                    let mut memory = keeps.then_some(&mut memory);
                    let (deadline, transport) =
                        (Deadline::after(Duration::from_secs(20)), transport.as_mut());
                    let mut mean = vec![0.0; grad.len()];
                    let started = exchange.start(
                        transport,
                        key(rank, 1),
                        Grad::F32(&grad),
                        memory.as_deref_mut(),
                        deadline,
                    );
                    let error = match started {
                        Err(error) => error,
                        Ok(()) => exchange.finish(transport, &mut mean, memory, deadline).unwrap_err(),
                    };
                    assert!(begun.elapsed() < Duration::from_secs(10), "{spec}: at once");
                    if rank == bad {
                        let index = 17;
                        assert_eq!(
                            error,
                            ExchangeError::Encode(gradwire::EncodeError::NonFiniteInput { index })
                        );
                    } else {
                        match error {
                            ExchangeError::NoQuorum { void, .. } if matches!(route, Route::Server(_)) => {
                                assert_eq!(void, Some((Rank(bad), 17)), "{spec}");
                            }
                            other => assert_eq!(
                                other,
                                ExchangeError::Void { rank: Rank(bad), index: 17 },
                                "{spec}"
                            ),
                        }
                        if worker.keeps {
                            everything.iter_mut().zip(&grad).for_each(|(kept, grad)| *kept += grad);
                        }
                    }
                    assert_eq!(bits(&worker.residual), bits(&everything), "{spec}: everything is kept");
                    [first, worker.step(2).unwrap().0].map(|mean| bits(&mean))
                });
                assert!(steps.iter().all(|means| *means == steps[0]), "{spec} over {world}");
            }
        }
    }
}

/// A server that has its quorum goes on without a worker that has nothing to send, and does not wait for it.
#[test]
fn a_quorum_goes_on_without_a_gradient_that_is_not_finite() {
    let route = Route::Server(ServerOptions { quorum: 2, ..ServerOptions::default() });
    let results = on_threads(workers(3, "topk:density=0.5", &route), |mut worker| {
        let rank = worker.transport.rank().0;
        if rank < 2 {
            return Some(worker.step(0).unwrap());
        }
        let grad = vec![f32::NAN; worker.residual.len()];
        let Worker { transport, exchange, residual, .. } = &mut worker;
        let mut memory = Memory::new(&mut *residual);
        let transport = transport.as_mut();
        let never = Deadline::NEVER;
        exchange.start(transport, key(2, 0), Grad::F32(&grad), Some(&mut memory), never).unwrap_err();
        None
    });
    for (mean, report) in results.iter().flatten() {
        assert_eq!(report.contributors.as_slice(), [Rank(0), Rank(1)]);
        assert_eq!(bits(mean), bits(&results[0].as_ref().unwrap().0));
    }
}
