//! Several threads give the frames, the memory, the errors and the sums of one.

use gradwire::half::bf16;
use gradwire::plan::Plan;
use gradwire::state::{MemoryChoice, UnitState};
use gradwire::{
    Decoder, EncodeError, Encoder, Grad, LayoutRef, Limits, Memory, Parallel, Source, Spec, StepInput,
    StepKey, Unit,
};
use gradwire_tests::inputs::Input;
use gradwire_tests::spellings::{and_examples, has_frames};
use proptest::prelude::*;
use std::sync::LazyLock;

const CODERS: [&str; 27] = [
    "none",
    "bf16:memory=ef",
    "f16:memory=ef",
    "bf16",
    "topk:density=0.1",
    "topk:density=0.1,memory=none",
    "topk:density=0.01",
    "topk:density=0.7,values=q4",
    "topk:density=0.001,index=small,values=bf16",
    "threshold:value=0.5",
    "dgc:density=0.01",
    "dgc:density=0.05,momentum=0",
    "sidco:density=0.02",
    "redsync:density=0.02",
    "qsgd:bits=4,entropy=fixed",
    "qsgd:bits=4",
    "qsgd:bits=4,entropy=rans,norm=l2",
    "qsgd:bits=3,entropy=elias,bucket=100",
    "qsgd:bits=5,entropy=fixed,bucket=100000",
    "qsgd:bits=8,entropy=adaptive,bucket=1000",
    "qsgd:bits=ternary,entropy=fixed",
    "qsgd:bits=ternary,bucket=7",
    "qsgd:bits=4,rounding=nearest",
    "qsgd:bits=4,bucket=4294967295,entropy=fixed,rounding=nearest",
    "qsgd:bits=4,rounding=nearest,memory=none",
    "randomk:density=0.05",
    "maxnorm:bits=8",
];

fn spellings() -> Vec<&'static str> {
    and_examples(&CODERS, has_frames)
}

static POOLS: LazyLock<Vec<rayon::ThreadPool>> = LazyLock::new(|| {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    [1, 2, 3, 8].map(pool).into()
});

/// What a worker keeps from step to step.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    residual: Vec<u32>,
    momentum: Vec<u32>,
    states: Vec<UnitState>,
}

/// The frame or the error of a step, and what is kept then.
type Outcome = (Result<Vec<u8>, EncodeError>, Option<Kept>);

/// How the steps are encoded.
#[derive(Clone, Copy, Default)]
struct Way<'a> {
    /// In parts, on these threads.
    pool: Option<&'a rayon::ThreadPool>,
    /// Each step to another memory. For codecs that keep a residual and no momentum.
    is_beside: bool,
}

/// Frames, or errors, of three steps, and what is kept after each.
fn run(spec: &Spec, steps: &[Vec<f32>; 3], units: &[Unit], narrow: bool, way: Way<'_>) -> Vec<Outcome> {
    let len = steps[0].len();
    let (shapes, mut encoder) = (LayoutRef::flat(len), Encoder::new());
    let [mut memory, mut other] = [(); 2].map(|()| Memory::for_spec(spec, &shapes));
    let step = |(step, values): (u64, &Vec<f32>)| {
        let key = StepKey { seed: 5, step, source: Source::Rank(1) };
        let halves: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
        let grad = if narrow { Grad::Bf16(&halves) } else { Grad::F32(values) };
        let threaded = Parallel(spec.codec);
        let frame = if way.is_beside {
            let grads: Vec<_> = units.iter().map(|unit| grad.slice(unit.start, unit.len)).collect();
            let (before, beside) = (memory.as_ref().unwrap(), other.as_mut().unwrap());
            let step = StepInput { key, layout: &shapes, units, grad: &grads[..] };
            match way.pool {
                None => encoder.encode_beside(&spec.codec, &step, before, beside),
                Some(pool) => pool.install(|| encoder.encode_beside(&threaded, &step, before, beside)),
            }
        } else {
            let step = StepInput { key, layout: &shapes, units, grad };
            match way.pool {
                None => encoder.encode(&spec.codec, &step, memory.as_mut()),
                Some(pool) => pool.install(|| encoder.encode(&threaded, &step, memory.as_mut())),
            }
        };
        if way.is_beside && frame.is_ok() {
            std::mem::swap(&mut memory, &mut other);
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        let kept = memory.as_ref().map(|memory| Kept {
            residual: bits(memory.residual()),
            momentum: bits(memory.momentum().unwrap_or_default()),
            states: memory.states().to_vec(),
        });
        (frame.map(<[u8]>::to_vec), kept)
    };
    (0..).zip(steps).map(step).collect()
}

fn same_on_every_pool(spelling: &str, steps: &[Vec<f32>; 3], units: &[Unit], narrow: bool) {
    let spec = Spec::parse(spelling).unwrap();
    let expected = run(&spec, steps, units, narrow, Way::default());
    let keeps_beside = spec.memory == MemoryChoice::ErrorFeedback;
    for is_beside in [false, true].into_iter().filter(|is_beside| !is_beside || keeps_beside) {
        for pool in std::iter::once(None).chain(POOLS.iter().map(Some)) {
            let found = run(&spec, steps, units, narrow, Way { pool, is_beside });
            let threads = pool.map(rayon::ThreadPool::current_num_threads);
            assert!(found == expected, "{spelling}, beside: {is_beside}, threads: {threads:?}");
        }
    }
}

/// Two units, so that a memory is lent in parts, or one.
fn units(len: usize, cut: usize) -> Vec<Unit> {
    let (first, second) =
        (Unit { len: cut, ..Unit::whole(len) }, Unit { start: cut, len: len - cut, id: 1, dense: false });
    if cut == 0 { vec![Unit::whole(len)] } else { vec![first, second] }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn frames_memories_and_errors_do_not_depend_on_threads(
        spelling in prop::sample::select(spellings()),
        len in prop_oneof![Just(0usize), 1usize..1000, 65_000usize..70_000, 100_000usize..300_000],
        cut in 0usize..3,
        kind in 0..6,
        seed in any::<u64>(),
        narrow in any::<bool>(),
        bad in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let steps = [0, 1, 2].map(|step| {
            let seed = seed.wrapping_add(step);
            let mut values = match kind {
                0 => Input::Normal(seed),
                1 => Input::Heavy(seed),
                2 => Input::Ties(seed),
                3 => Input::Sparse(seed),
                4 => Input::Zero,
                _ => Input::Uneven(seed),
            }.values(len);
            if let Some(bad) = bad && step == 1 && len > 0 {
                values[bad.index(len)] = if seed % 2 == 0 { f32::NAN } else { f32::MAX };
            }
            values
        });
        let units = units(len, if len > 10 { cut * len / 3 } else { 0 });
        same_on_every_pool(spelling, &steps, &units, narrow);
    }
}

#[test]
fn every_codec_gives_the_same_bytes_on_any_number_of_threads() {
    let steps = [1, 2, 3].map(|seed| Input::Heavy(seed).values(150_001));
    for spelling in spellings() {
        same_on_every_pool(spelling, &steps, &[Unit::whole(150_001)], false);
    }
}

/// One part has far more of the largest values than its share of the candidates holds.
#[test]
fn large_values_that_crowd_one_part_are_all_selected() {
    let loud = |i: usize| if (20_000..30_000).contains(&i) { 100.0 } else { 0.01 };
    let crowded = Input::Normal(4).values(300_000);
    let crowded: Vec<f32> = crowded.iter().enumerate().map(|(i, value)| value * loud(i)).collect();
    for spelling in ["topk:density=0.033", "topk:density=0.1", "topk:density=0.033,memory=none"] {
        same_on_every_pool(
            spelling,
            &[crowded.clone(), crowded.clone(), crowded.clone()],
            &[Unit::whole(300_000)],
            false,
        );
    }
}

#[test]
fn of_several_bad_values_the_first_is_named() {
    let mut values = vec![1.0; 200_000];
    for at in [70_000, 70_001, 199_999] {
        values[at] = f32::NAN;
    }
    for spelling in spellings() {
        let spec = Spec::parse(spelling).unwrap();
        let steps = [values.clone(), values.clone(), values.clone()];
        for (frame, _) in
            run(&spec, &steps, &[Unit::whole(200_000)], false, Way { pool: POOLS.last(), ..Way::default() })
        {
            assert_eq!(frame, Err(EncodeError::NonFiniteInput { index: 70_000 }), "{spelling}");
        }
    }
}

#[test]
fn units_that_are_added_side_by_side_have_the_same_sums() {
    let lens = [70_000, 1, 33, 40_000, 90_000];
    let starts = lens.iter().scan(3, |end, len| Some(std::mem::replace(end, *end + len)));
    let unit = |(id, (start, &len))| Unit { id, start, len, dense: len == 33 };
    let units: Vec<Unit> = (0..).zip(starts.zip(&lens)).map(unit).collect();
    let values = Input::Heavy(8).values(200_040);
    let layout = LayoutRef::flat(values.len());
    for spelling in spellings() {
        let spec = Spec::parse(spelling).unwrap();
        let key = StepKey { seed: 5, step: 0, source: Source::Rank(1) };
        let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&values) };
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let plan = || Plan::of_units(&spec, units.clone(), &layout);
        let mut memory = Memory::for_plan(&plan(), &layout);
        let bytes = encoder.encode(&spec.codec, &step, memory.as_mut()).unwrap();
        let frame = decoder.parse(bytes, &layout, &Limits::for_layout(&layout)).unwrap();
        let added = |pool: Option<&rayon::ThreadPool>| {
            let plan = if pool.is_some() { plan().on_threads() } else { plan() };
            let mut sums: Vec<Vec<f32>> = lens.map(|len| Input::Normal(9).values(len)).into();
            let places = sums.iter_mut().map(|sum| &mut sum[..]);
            let parts: Vec<_> = frame.units().zip(places).collect();
            match pool {
                None => plan.add_units(0.75, parts),
                Some(pool) => pool.install(|| plan.add_units(0.75, parts)),
            }
            let bits = sums.into_iter().flatten().map(f32::to_bits);
            bits.collect::<Vec<_>>()
        };
        let mut flat = vec![0.0; values.len()];
        units.iter().for_each(|unit| flat[unit.range()].copy_from_slice(&Input::Normal(9).values(unit.len)));
        frame.add_scaled_to(0.75, &mut flat);
        let expected: Vec<u32> =
            units.iter().flat_map(|unit| &flat[unit.range()]).map(|x| x.to_bits()).collect();
        assert!(added(None) == expected, "{spelling}, one by one");
        assert!(added(POOLS.last()) == expected, "{spelling}, side by side");
    }
}
