//! What it takes to know two gains before an encode: encode alone; gains, dropped, and then the encode of the
//! whole gradient; gains, and then the frame of what was selected. For random-k also as a sum: the rounds of
//! a single worker, from the gradient to the mean.
//!
//! Densities 0.1 and 0.01 of 4 M elements, sent at 0.01. The three take turns, so that each round compares
//! them under the same load; printed are the medians of the rounds, and of their ratios to the encode.

use std::time::Instant;

use gradwire::registry::LinearCodec;
use gradwire::rounds::{Round, RoundBuffers, UnitStep};
use gradwire::{
    Density, Encoder, Grad, LayoutRef, Memory, Selection, Source, Spec, StepInput, StepKey, Unit,
};
use gradwire_benches::{Gradient, Input, Settings};

const LEN: usize = 1 << 22;
const ROUNDS: u64 = 21;

fn main() {
    println!("| codec | encode, ms | gains and encode | gains and what was selected |");
    println!("| --- | --- | --- | --- |");
    let gradient = Gradient::new(Input::Heavy, LEN, &Settings::from_env());
    for (spelling, is_summed) in [
        ("topk", false),
        ("topk:chunk=4096", false),
        ("topk:chunk=64", false),
        ("dgc:momentum=0", false),
        ("dgc", false),
        ("redsync", false),
        ("sidco:stages=2", false),
        ("randomk", false),
        ("randomk", true),
    ] {
        let mut ways = [(); 3].map(|()| Way::new(spelling, is_summed, &gradient));
        let mut rounds = Vec::new();
        for step in 0..ROUNDS {
            let [alone, twice, reused] = &mut ways;
            rounds.push([alone.encode(step), twice.measure_and_encode(step), reused.select_and_send(step)]);
        }
        assert!(ways.iter().all(|way| way.memory.residual() == ways[0].memory.residual()), "{spelling}");
        let ratio = |at: usize| median(rounds.iter().map(|round| round[at] / round[0]).collect());
        let alone = median(rounds.iter().map(|round| round[0]).collect());
        let how = if is_summed { ", summed" } else { "" };
        println!("| `{spelling}`{how} | {:.1} | {:.2} × | {:.2} × |", alone * 1e3, ratio(1), ratio(2));
    }
}

struct Way<'g> {
    spec: Spec,
    gradient: &'g Gradient,
    memory: Memory<'static>,
    encoder: Encoder,
    selection: Selection,
    densities: [Density; 2],
    /// If payloads are summed.
    sum: Option<Sum>,
}

/// The rounds of a single worker, at the density that is sent.
struct Sum {
    codec: LinearCodec,
    buffers: RoundBuffers,
    mean: Vec<f32>,
}

/// The step of a single worker.
fn alone<'a>(step: u64, layout: &'a LayoutRef<'a>, unit: &'a Unit) -> UnitStep<'a> {
    UnitStep { key: key(step), layout, unit, workers: 1, place: 0 }
}

impl Sum {
    fn new(codec: LinearCodec) -> Self {
        let mut buffers = RoundBuffers::new();
        buffers.grow(codec.rounds().round_scratch_len(&LayoutRef::flat(LEN), &Unit::whole(LEN), 1));
        Self { codec, buffers, mean: vec![0.0; LEN] }
    }

    /// Ends the rounds; the payload is the sum.
    fn end(&mut self, step: &UnitStep<'_>, round: Round, memory: &mut Memory<'_>) {
        let scratch = &mut self.buffers.scratch();
        let next = self.codec.rounds().advance(step, round, scratch, &mut self.mean, Some(memory));
        assert!(next.is_none(), "one round");
    }
}

impl<'g> Way<'g> {
    fn new(spelling: &str, is_summed: bool, gradient: &'g Gradient) -> Self {
        let spec = Spec::parse(spelling).expect("a spelling");
        let memory = Memory::for_spec(&spec, &LayoutRef::flat(LEN)).expect("a memory");
        let densities = [0.1, 0.01].map(|share| Density::new(share).expect("a density"));
        let (encoder, selection) = (Encoder::new(), Selection::new());
        let codec = spec.codec.with_density(densities[1]);
        let sum = is_summed.then(|| Sum::new(codec.as_linear().expect("a linear codec")));
        Self { spec, gradient, memory, encoder, selection, densities, sum }
    }

    fn encode(&mut self, step: u64) -> f64 {
        timed(|| self.encode_whole(step))
    }

    fn measure_and_encode(&mut self, step: u64) -> f64 {
        timed(|| {
            self.select(step);
            self.encode_whole(step);
        })
    }

    fn select_and_send(&mut self, step: u64) -> f64 {
        timed(|| {
            self.select(step);
            let (layout, units) = (LayoutRef::flat(LEN), [Unit::whole(LEN)]);
            let Self { memory, encoder, selection, sum, .. } = self;
            if let Some(sum) = sum {
                let alone = alone(step, &layout, &units[0]);
                let round = selection.begin(1, &alone, &mut sum.buffers.scratch());
                return sum.end(&alone, round.expect("buffers that are large enough"), memory);
            }
            selection.keep(memory);
            selection.encode(encoder, 1, &layout, &units, Some(memory));
        })
    }

    fn encode_whole(&mut self, step: u64) {
        let (layout, units, grad) =
            (LayoutRef::flat(LEN), [Unit::whole(LEN)], Grad::F32(self.gradient.step(step)));
        let Self { spec, memory, encoder, densities, sum, .. } = self;
        if let Some(sum) = sum {
            let (alone, view) = (alone(step, &layout, &units[0]), memory.view(0..LEN));
            let round = sum.codec.rounds().begin(&alone, grad, Some(view), &mut sum.buffers.scratch());
            return sum.end(&alone, round.expect("a gradient of finite values"), memory);
        }
        let codec = spec.codec.with_density(densities[1]);
        let input = StepInput { key: key(step), layout: &layout, units: &units, grad };
        let frame = encoder.encode(&codec, &input, Some(memory));
        frame.expect("a gradient of finite values");
    }

    fn select(&mut self, step: u64) {
        let (layout, units, grad) =
            (LayoutRef::flat(LEN), [Unit::whole(LEN)], Grad::F32(self.gradient.step(step)));
        let Self { spec, selection, memory, densities, .. } = self;
        let input = StepInput { key: key(step), layout: &layout, units: &units, grad };
        let gains = selection.select(&spec.codec, &input, Some(memory), densities);
        gains.expect("a gradient of finite values");
    }
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 1, step, source: Source::Rank(0) }
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
