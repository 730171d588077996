//! A step of what was selected before it: the mean, the memory and the errors of a step of the gradient.

use std::thread;

use gradwire::random::Stream;
use gradwire::{Density, Grad, Layout, Memory, Selection, Source, Spec, StepInput, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::{Deadline, Transport, local};

const RANKS: u32 = 3;
const STEPS: u64 = 5;
/// In this step the gradient of rank 1 is not finite.
const BROKEN: u64 = 3;

fn layout() -> Layout {
    Layout::packed([("w", vec![9, 20]), ("b", vec![150]), ("v", vec![12, 14]), ("none", vec![0])]).unwrap()
}

fn gradient(rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream: Stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let value = |i| (stream.u64_at(i) as u32 as f32 / u32::MAX as f32 - 0.5).powi(3) * 16.0;
    let mut values: Vec<f32> = (0..len as u64).map(value).collect();
    if (rank, step) == (1, BROKEN) {
        values[7] = f32::NAN;
    }
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A step's mean or error, and what the memory then holds.
type Done = (Result<Vec<u32>, String>, Vec<u32>, Vec<u32>);

fn work(mut transport: impl Transport, mut exchange: Exchange, spec: Spec, selects: bool) -> Vec<Done> {
    let (layout, rank, by) = (layout(), transport.rank().0, Deadline::NEVER);
    let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    let (mut selection, mut mean) = (Selection::new(), vec![0.0; layout.len()]);
    let step = |step: u64| {
        let values = gradient(rank, step, layout.len());
        let (key, grad) = (StepKey { seed: 1, step, source: Source::Rank(rank) }, Grad::F32(&values));
        let densities = [0.3, 0.05].map(|share| Density::new(share).unwrap());
        let at = step as usize % 2;
        let units = exchange.units().to_vec();
        let input = StepInput { key, layout: &layout.as_ref(), units: &units, grad };
        let selected = selects && selection.select(&spec.codec, &input, memory.as_ref(), &densities).is_ok();
        let started = if selected {
            exchange.start_selected(&mut transport, &mut selection, at, memory.as_mut(), by)
        } else {
            exchange.set_codec(spec.codec.with_density(densities[at])).unwrap();
            exchange.start(&mut transport, key, grad, memory.as_mut(), by)
        };
        let finished = started.and_then(|()| {
            let report = exchange.finish(&mut transport, &mut mean, memory.as_mut(), by)?;
            assert_eq!(report.contributors.len(), RANKS as usize);
            Ok(bits(&mean))
        });
        let kept = memory.as_ref().map(|memory| bits(memory.residual())).unwrap_or_default();
        let momentum = memory.as_ref().and_then(Memory::momentum).map(bits).unwrap_or_default();
        (finished.map_err(|error| error.to_string()), kept, momentum)
    };
    (0..STEPS).map(step).collect()
}

fn run(spelling: &'static str, route: &Route, parts: usize, undoes: bool, selects: bool) -> Vec<Vec<Done>> {
    let ranks = local::world(RANKS).into_iter().map(|end| {
        let spec = Spec::parse(spelling).unwrap();
        let mut exchange = Exchange::new(spec, layout(), route.clone()).unwrap();
        if parts > 1 {
            exchange = exchange.pipelined(parts).unwrap();
        }
        let exchange = if undoes { exchange.undoing() } else { exchange };
        thread::spawn(move || work(end, exchange, spec, selects))
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn a_selected_step_is_the_step_of_its_gradient() {
    let server = || Route::Server(ServerOptions::default());
    let ring = || Route::AllReduce { wire: Wire::F32 };
    for (spelling, route, parts, undoes) in [
        ("topk:unit=model", Route::AllGather, 1, false),
        ("topk:unit=tensor,values=q8", Route::AllGather, 3, false),
        ("dgc:unit=tensor", Route::AllGather, 1, true),
        ("dgc:unit=tensor,dense_1d=false", Route::AllGather, 2, false),
        ("topk:unit=tensor,memory=none", Route::AllGather, 1, false),
        ("dgc:unit=tensor", Route::SparseAllReduce, 1, false),
        ("topk:unit=tensor,dense_1d=true", Route::SparseAllReduce, 3, false),
        ("topk:unit=tensor", server(), 1, false),
        ("topk:chunk=64", Route::AllGather, 1, false),
        ("topk:chunk=64,unit=tensor,dense_1d=true", Route::SparseAllReduce, 2, true),
        ("sidco:stages=2", Route::AllGather, 1, false),
        ("randomk:unit=tensor", Route::AllGather, 2, false),
        ("randomk:unit=tensor,dense_1d=true", server(), 1, true),
        ("randomk", ring(), 1, false),
        ("randomk:unit=tensor,dense_1d=true", ring(), 3, true),
        ("randomk:unit=tensor,memory=none", ring(), 1, false),
        ("randomk:unit=tensor,estimator=unbiased", ring(), 2, false),
        ("randomk:block=run", ring(), 1, false),
        ("randomk:block=tile", Route::AllGather, 2, false),
        ("randomk:block=tile", ring(), 3, true),
        ("randomk:unit=tensor", Route::AllReduce { wire: Wire::Bf16 }, 1, false),
        ("randomk:unit=tensor", Route::Tree { wire: Wire::F32 }, 1, false),
    ] {
        let [plain, selected] = [false, true].map(|selects| run(spelling, &route, parts, undoes, selects));
        assert_eq!(selected, plain, "{spelling} by {route:?} in {parts}");
        for (rank, steps) in plain.iter().enumerate() {
            for (step, (mean, ..)) in steps.iter().enumerate() {
                assert_eq!(mean.is_ok(), step as u64 != BROKEN, "{spelling}: step {step} of rank {rank}");
            }
        }
    }
}

#[test]
fn sums_take_no_selection_of_a_codec_of_frames() {
    let (layout, route) = (layout(), Route::AllReduce { wire: Wire::F32 });
    let mut exchange = Exchange::new(Spec::parse("randomk").unwrap(), layout.clone(), route).unwrap();
    let (mut end, mut selection) = (local::world(1).remove(0), Selection::new());
    let (codec, layout) = (Spec::parse("topk").unwrap().codec, layout.as_ref());
    let (values, tenth) = (gradient(0, 0, layout.len()), Density::new(0.1).unwrap());
    let (key, grad) = (StepKey { seed: 1, step: 0, source: Source::Rank(0) }, Grad::F32(&values));
    let mut memory = Memory::new(vec![0.5; layout.len()]);
    let input = StepInput { key, layout: &layout, units: exchange.units(), grad };
    selection.select(&codec, &input, Some(&memory), &[tenth]).unwrap();
    let started = exchange.start_selected(&mut end, &mut selection, 0, Some(&mut memory), Deadline::NEVER);
    assert_eq!(started, Err(ExchangeError::NotLinear { codec: "topk" }));
    assert_eq!(memory.residual(), vec![0.5; layout.len()]);
}

#[test]
#[should_panic(expected = "packets are cut from the gradient")]
fn packets_take_no_selection() {
    let spec = Spec::parse("topk:max_packet_bytes=500").unwrap();
    let route = Route::Server(ServerOptions::default());
    let mut exchange = Exchange::new(spec, layout(), route).unwrap();
    let mut end = local::world(1).remove(0);
    let _ = exchange.start_selected(&mut end, &mut Selection::new(), 0, None, Deadline::NEVER);
}
