//! Rules by tensor name in the exchange: the messages of `Encoder::encode_plan`, one for each part and peer,
//! and the mean of what they decode to, by every route.

use std::thread;
use std::time::Duration;

use gradwire::format::Header;
use gradwire::plan::Plan;
use gradwire::rules::Rules;
use gradwire::{
    Decoder, Density, Encoder, Grad, Layout, Limits, Memory, Source, Spec, StepInput, StepKey, Unit,
};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Report, Route, ServerOptions};
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Rank, Transport};

const WORLD: u32 = 3;
const STEPS: u64 = 4;

/// Dense, sparse in one unit and by tensor, unbiased, with momentum, with states of units; three of them need
/// a memory and two have none.
const MIXED: &str = "*.bias=none; conv1*=topk:density=0.1,values=q4; conv2*=topk:density=0.2,unit=tensor; \
     head*=qsgd:bits=4; tail*=dgc:density=0.05,momentum=0.9; sidco:density=0.1";
const LINEAR: &str = "*.bias=none; conv*=randomk:density=0.25,unit=tensor; randomk:density=0.5,unit=tensor";

fn rules(text: &str) -> Rules {
    Rules::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn layout() -> Layout {
    Layout::packed([
        ("conv1", vec![12, 9]),
        ("conv1.bias", vec![12]),
        ("conv2", vec![8, 12]),
        ("conv2.bias", vec![8]),
        ("body", vec![40, 3]),
        ("head", vec![10, 8]),
        ("tail", vec![30, 5]),
        ("tail.bias", vec![30]),
        ("end", vec![9]),
    ])
    .unwrap()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let uniform = |i: u64| stream.u64_at(i) as u32 as f32 / u32::MAX as f32 - 0.5;
    (0..layout().len() as u64).map(|i| uniform(i).powi(3) * 16.0).collect()
}

fn key(rank: u32, step: u64) -> StepKey {
    StepKey { seed: 7, step, source: Source::Rank(rank) }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn saved(memory: &Memory<'_>) -> Vec<u8> {
    let mut bytes = vec![0; memory.saved_bytes().unwrap()];
    memory.save(&layout().as_ref(), &mut bytes).unwrap();
    bytes
}

/// One rank, with the memory that its rules ask for.
struct Worker {
    transport: LocalTransport,
    exchange: Exchange,
    memory: Option<Memory<'static>>,
}

impl Worker {
    fn rank(&self) -> u32 {
        self.transport.rank().0
    }

    fn step_of(&mut self, step: u64, grad: &[f32]) -> Result<(Vec<f32>, Report), ExchangeError> {
        let (key, by) = (key(self.rank(), step), Deadline::after(Duration::from_secs(20)));
        let mut mean = vec![f32::NAN; grad.len()];
        self.exchange.start(&mut self.transport, key, Grad::F32(grad), self.memory.as_mut(), by)?;
        let report = self.exchange.finish(&mut self.transport, &mut mean, self.memory.as_mut(), by)?;
        Ok((mean, report))
    }

    fn step(&mut self, step: u64) -> (Vec<f32>, Report) {
        let grad = gradient(self.rank(), step);
        self.step_of(step, &grad).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn worker(transport: LocalTransport, text: &str, route: &Route) -> Worker {
    let plan = Plan::of_rules(&rules(text), &layout().as_ref());
    let memory = Memory::for_plan(&plan, &layout().as_ref());
    let exchange = Exchange::new(plan, layout(), route.clone()).unwrap();
    Worker { transport, exchange, memory }
}

/// Runs one closure a rank and returns what they return, in rank order.
fn on_ranks<T: Send>(text: &str, route: &Route, run: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let ranks = local::world(WORLD).into_iter();
        let ranks: Vec<_> =
            ranks.map(|transport| scope.spawn(move || run(worker(transport, text, route)))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The units of each part of a step, as an exchange cuts them.
fn message(plan: &Plan, units: &[Unit], rank: u32, step: u64, memory: Option<&mut Memory<'_>>) -> Vec<u8> {
    let (layout, grad) = (layout(), gradient(rank, step));
    let (layout, grad) = (layout.as_ref(), Grad::F32(&grad));
    let input = StepInput { key: key(rank, step), layout: &layout, units, grad };
    Encoder::new().encode_plan(plan, &input, memory).unwrap().to_vec()
}

/// By definition: what every rank's messages decode to, added in rank order; and the memories afterwards.
fn by_hand(text: &str) -> (Vec<Vec<f32>>, Vec<Option<Vec<u8>>>) {
    let layout = layout();
    let plan = Plan::of_rules(&rules(text), &layout.as_ref());
    let mut memories: Vec<_> = (0..WORLD).map(|_| Memory::for_plan(&plan, &layout.as_ref())).collect();
    let means = (0..STEPS).map(|step| {
        let mut sum = vec![0.0; layout.len()];
        for (rank, memory) in (0..WORLD).zip(&mut memories) {
            let bytes = message(&plan, plan.units(), rank, step, memory.as_mut());
            let (mut decoder, limits) = (Decoder::new(), Limits::for_layout(&layout.as_ref()));
            let frames = decoder.parse_plan(&plan, plan.units(), &bytes, &layout.as_ref(), &limits).unwrap();
            frames.add_scaled_to(1.0, &mut sum);
        }
        sum.iter().map(|value| value / WORLD as f32).collect()
    });
    let means = means.collect();
    (means, memories.iter().map(|memory| memory.as_ref().map(saved)).collect())
}

#[test]
fn the_mean_and_the_memories_are_those_of_the_messages_of_all_ranks() {
    let server = Route::Server(ServerOptions::default());
    for text in [MIXED, LINEAR, "*.bias=none; f16", "topk:density=0.1"] {
        let (means, memories) = by_hand(text);
        for (route, parts) in [
            (Route::AllGather, 1),
            (Route::AllGather, 4),
            (Route::SparseAllReduce, 1),
            (Route::SparseAllReduce, 3),
            (server.clone(), 1),
        ] {
            if route == Route::SparseAllReduce && !text.contains("topk") {
                continue;
            }
            let ranks = on_ranks(text, &route, |mut worker| {
                if parts > 1 {
                    worker.exchange = worker.exchange.pipelined(parts).unwrap();
                }
                let means: Vec<_> = (0..STEPS).map(|step| worker.step(step).0).collect();
                (means, worker.memory.as_ref().map(saved))
            });
            for (rank, (found, kept)) in ranks.into_iter().enumerate() {
                for (step, (found, mean)) in found.iter().zip(&means).enumerate() {
                    // A sparse sum of nothing is +0.0 where the sum of frames may be −0.0.
                    let same = found
                        .iter()
                        .zip(mean)
                        .all(|(a, b)| a.to_bits() == b.to_bits() || *a == 0.0 && *b == 0.0);
                    assert!(same, "{text} by {route:?} in {parts}, step {step}");
                }
                assert_eq!(kept, memories[rank], "{text} by {route:?} in {parts}");
            }
        }
    }
}

#[test]
fn a_rank_sends_a_peer_one_message_with_the_frames_of_all_groups() {
    for parts in [1, 3] {
        let counted = on_ranks(MIXED, &Route::AllGather, |mut worker| {
            worker.exchange = worker.exchange.pipelined(parts).unwrap();
            let (_, report) = worker.step(0);
            (worker.transport.counters().up, report.frame_bytes)
        });
        let plan = Plan::of_rules(&rules(MIXED), &layout().as_ref());
        for (rank, (sent, frame_bytes)) in (0..WORLD).zip(counted) {
            assert_eq!(sent.messages, parts as u64 * u64::from(WORLD - 1));
            // Each message ends with the version of the exchange.
            let frames = sent.payload_bytes - sent.messages;
            assert_eq!(frames, frame_bytes as u64 * u64::from(WORLD - 1));
            let mut memory = Memory::for_plan(&plan, &layout().as_ref());
            let whole = message(&plan, plan.units(), rank, 0, memory.as_mut());
            if parts == 1 {
                assert_eq!(frame_bytes, whole.len());
            }
            let (mut rest, mut frames) = (&whole[..], 0);
            while !rest.is_empty() {
                rest = &rest[Header::parse(rest).unwrap().frame_bytes() as usize..];
                frames += 1;
            }
            assert_eq!(frames, 6, "a frame for each group");
        }
    }
}

/// The same units, each at the density of its rule, by one codec.
#[test]
fn sums_by_rules_are_those_of_a_density_for_each_unit() {
    let density = |share| Density::new(share).unwrap();
    for route in [Route::AllReduce { wire: Wire::F32 }, Route::Tree { wire: Wire::F32 }] {
        let text = "conv*=randomk:density=0.25,unit=tensor; randomk:density=0.5,unit=tensor";
        let by_rules = on_ranks(text, &route, |mut worker| {
            let means: Vec<_> = (0..STEPS).map(|step| bits(&worker.step(step).0)).collect();
            (means, saved(worker.memory.as_ref().unwrap()))
        });
        let by_units = on_ranks("randomk:unit=tensor", &route, |mut worker| {
            let layout = layout();
            let of = |tensor: gradwire::TensorRef<'_>| {
                density(if tensor.name.starts_with("conv") { 0.25 } else { 0.5 })
            };
            let densities: Vec<_> = layout.as_ref().tensors().map(of).collect();
            worker.exchange.set_densities(&densities).unwrap();
            let means: Vec<_> = (0..STEPS).map(|step| bits(&worker.step(step).0)).collect();
            (means, saved(worker.memory.as_ref().unwrap()))
        });
        assert_eq!(by_rules, by_units, "{route:?}");
    }
}

/// Σ over the ranks of residual + gradient = mean · N + Σ of what is kept, of linear rules with a memory for
/// some tensors alone.
#[test]
fn sums_by_rules_lose_nothing() {
    for route in [Route::AllReduce { wire: Wire::F32 }, Route::Tree { wire: Wire::F32 }] {
        let ranks = on_ranks(LINEAR, &route, |mut worker| {
            let means: Vec<_> = (0..STEPS).map(|step| worker.step(step).0).collect();
            (means, worker.memory.unwrap().residual().to_vec())
        });
        for i in 0..layout().len() {
            let sent: f64 = ranks[0].0.iter().map(|mean| f64::from(mean[i]) * f64::from(WORLD)).sum();
            let kept: f64 = ranks.iter().map(|(_, residual)| f64::from(residual[i])).sum();
            let all =
                (0..WORLD).flat_map(|rank| (0..STEPS).map(move |step| f64::from(gradient(rank, step)[i])));
            let all: f64 = all.sum();
            assert!((sent + kept - all).abs() < 1e-4 * (1.0 + all.abs()), "{i}: {sent} + {kept} for {all}");
        }
        let bias = 108..120;
        assert!(ranks.iter().all(|(_, residual)| residual[bias.clone()].iter().all(|&kept| kept == 0.0)));
    }
}

#[test]
fn a_gradient_that_one_group_refuses_voids_the_step_at_all_ranks_and_loses_nothing_kept() {
    let server = Route::Server(ServerOptions::default());
    for (text, route) in [
        (MIXED, Route::AllGather),
        (MIXED, Route::SparseAllReduce),
        (MIXED, server),
        (LINEAR, Route::AllReduce { wire: Wire::F32 }),
    ] {
        let at = layout().len() - 3;
        on_ranks(text, &route, |mut worker| {
            worker.exchange = worker.exchange.undoing();
            worker.step(0);
            let before = saved(worker.memory.as_ref().unwrap());
            let mut grad = gradient(worker.rank(), 1);
            if worker.rank() == 1 {
                grad[at] = f32::NAN;
            }
            let error = worker.step_of(1, &grad).unwrap_err();
            match worker.rank() {
                1 => assert!(matches!(error, ExchangeError::Encode(_)), "{error}"),
                _ if matches!(route, Route::Server(_)) => assert!(error.is_void(), "{error}"),
                _ => assert_eq!(error, ExchangeError::Void { rank: Rank(1), index: at }),
            }
            assert_eq!(saved(worker.memory.as_ref().unwrap()), before, "{route:?}");
            worker.step(2);
        });
    }
}

/// Groups that keep a residual get back what the mean did not include.
#[test]
fn a_step_that_another_rank_voids_is_given_back_to_the_groups_that_keep() {
    on_ranks(MIXED, &Route::AllGather, |mut worker| {
        let mut grad = gradient(worker.rank(), 0);
        if worker.rank() == 1 {
            grad[0] = f32::INFINITY;
        }
        worker.step_of(0, &grad).unwrap_err();
        let memory = worker.memory.as_ref().unwrap();
        if worker.rank() != 1 {
            let kept = memory.residual();
            assert_eq!(bits(&kept[..108]), bits(&grad[..108]), "conv1");
            assert_eq!(bits(&kept[224..344]), bits(&grad[224..344]), "body");
            assert!(kept[108..120].iter().all(|&kept| kept == 0.0), "conv1.bias keeps nothing");
        }
    });
}

#[test]
fn ranks_with_other_rules_refuse_each_other() {
    for other in
        ["conv1=topk:density=0.1; sidco:density=0.1", "*.bias=none; qsgd:bits=4", "sidco:density=0.1"]
    {
        let transports = local::world(2).into_iter();
        thread::scope(|scope| {
            for (transport, text) in transports.zip(["*.bias=none; sidco:density=0.1", other]) {
                scope.spawn(move || {
                    let mut worker = worker(transport, text, &Route::AllGather);
                    let grad = gradient(worker.rank(), 0);
                    let error = worker.step_of(0, &grad).unwrap_err();
                    let rank = Rank(1 - worker.rank());
                    let is_refused = error == ExchangeError::WrongUnits { rank }
                        || matches!(error, ExchangeError::Frame { rank: of, .. } if of == rank);
                    assert!(is_refused, "{other}: {error}");
                });
            }
        });
    }
}

#[test]
fn densities_are_set_for_the_groups_that_have_one() {
    let text = "*.bias=none; conv*=topk:density=0.1,unit=tensor,warmup=2; randomk:density=0.5,unit=tensor";
    let [spelled, set] = [text, &text.replace("0.1", "0.9").replace("0.5", "0.9")].map(|text| {
        on_ranks(text, &Route::AllGather, |mut worker| {
            if text.contains("0.9") {
                let layout = layout();
                let plan = Plan::of_rules(&rules(text), &layout.as_ref());
                let of = |unit: &Unit| if plan.group_of(unit).rule == 1 { 0.1 } else { 0.5 };
                let densities = plan.units().iter().map(|unit| Density::new(of(unit)).unwrap());
                worker.exchange.set_densities(&densities.collect::<Vec<_>>()).unwrap();
            }
            bits(&worker.step(0).0)
        })
    });
    assert_eq!(spelled, set);
}

#[test]
fn routes_refuse_rules_that_do_not_fit_by_the_name_of_the_codec() {
    let refused = |text: &str, route| Exchange::new(&rules(text), layout(), route).map(|_| ()).unwrap_err();
    let ring = Route::AllReduce { wire: Wire::F32 };
    assert_eq!(refused(MIXED, ring), ExchangeError::NotLinear { codec: "topk" });
    assert_eq!(
        refused("*.bias=none; bf16", Route::SparseAllReduce),
        ExchangeError::NotSparse { codec: "none" }
    );
    let mut exchange = Exchange::new(&rules(MIXED), layout(), Route::AllGather).unwrap();
    let refused = exchange.set_codec(Spec::parse("topk").unwrap().codec).unwrap_err();
    assert!(matches!(refused, ExchangeError::Conflict { codec: "topk", .. }), "{refused}");
    let best = |text: &str| Exchange::best_route(&Plan::of_rules(&rules(text), &layout().as_ref()));
    assert_eq!((best(MIXED), best(LINEAR)), (Route::AllGather, Route::AllReduce { wire: Wire::F32 }));
}
