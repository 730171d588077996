//! Every codec, with every coder, memory and input format, against the naive reference: byte for byte, in an
//! output buffer of exactly `max_frame_bytes` filled with 0xa5 and exactly `scratch_len` of dirty scratch
//! memory.

use gradwire::state::UnitState;
use gradwire::{Gather, Source, Spec, StepKey, Unit};
use gradwire_tests::inputs::Input;
use gradwire_tests::run::{self, Gradient, Kept, bits};
use gradwire_tests::spellings::{and_examples, has_frames};
use gradwire_tests::{naive, naive::encode::Job};
use proptest::prelude::*;

/// One encode, named well enough to repeat it.
#[derive(Clone, Debug)]
struct Case {
    spelling: String,
    key: StepKey,
    format: &'static str,
    shapes: Vec<Vec<usize>>,
    grad: Vec<f32>,
    before: Option<Kept>,
    units: Vec<Unit>,
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => prop::sample::select(vec![0, 1, 2, 3, 5, 7, 8, 9, 31, 33, 63, 65, 127, 128, 129, 255, 257, 511, 512, 513]),
        4 => 0usize..600,
        1 => prop::sample::select(vec![2047, 2048, 4097, 5000]),
    ]
}

fn inputs() -> impl Strategy<Value = Input> {
    let seeded = (any::<u64>(), 0..6).prop_map(|(seed, kind)| match kind {
        0 => Input::Normal(seed),
        1 => Input::Heavy(seed),
        2 => Input::Denormal(seed),
        3 => Input::Range(seed),
        4 => Input::Ties(seed),
        _ => Input::Sparse(seed),
    });
    prop_oneof![12 => seeded, 1 => Just(Input::Zero), 1 => Just(Input::NegativeZero)]
}

/// Inputs that half precision can hold, and so can the values that are sent in it.
fn moderate() -> impl Strategy<Value = Input> {
    (any::<u64>(), 0..4).prop_map(|(seed, kind)| match kind {
        0 => Input::Normal(seed),
        1 => Input::Heavy(seed),
        2 => Input::Denormal(seed),
        _ => Input::Ties(seed),
    })
}

fn keys() -> impl Strategy<Value = StepKey> {
    (any::<u64>(), prop_oneof![0u64..1000, any::<u64>()], 0u32..(1 << 30) - 1)
        .prop_map(|(seed, step, rank)| StepKey { seed, step, source: Source::Rank(rank) })
}

fn words(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(words)
}

fn spelling() -> BoxedStrategy<String> {
    let index =
        words(&["auto", "raw", "bitmap", "rice", "context", "context-max", "small", "smallest", "chunks"]);
    let values = words(&["f32", "f16", "bf16", "q8", "q4", "q2", "sign"]);
    let density = words(&["0.001", "0.01", "0.05", "0.3", "0.5", "0.9", "1"]);
    let dense =
        (words(&["none", "dpsgd", "f16", "bf16", "f16:memory=ef", "bf16:memory=ef"])).prop_map(str::to_owned);
    let memory = words(&["ef", "none"]);
    let chunk = words(&["", "", ",chunk=64", ",chunk=256", ",chunk=4096"]);
    let topk = (density.clone(), index.clone(), values.clone(), memory.clone(), chunk)
        .prop_map(|(d, i, v, m, c)| format!("topk:density={d},index={i},values={v},memory={m}{c}"));
    let drawn = (
        density.clone(),
        index.clone(),
        words(&["q8", "q4", "q2"]),
        words(&["topk", "sidco:stages=2", "dgc:momentum=0"]),
    )
        .prop_map(|(d, i, v, codec)| {
            let separator = if codec.contains(':') { ',' } else { ':' };
            format!("{codec}{separator}density={d},index={i},values={v},rounding=stochastic")
        });
    let least = words(&["0", "0.001", "0.5", "1", "2.5", "1e30"]);
    let threshold = (least, index.clone(), values.clone(), memory.clone())
        .prop_map(|(t, i, v, m)| format!("threshold:value={t},index={i},values={v},memory={m}"));
    let corrected = (density.clone(), index.clone(), values.clone()).prop_flat_map(|(d, i, v)| {
        let rest = words(&[
            "",
            ",nesterov",
            ",momentum=0.5,sample=0.2",
            ",sample=1",
            ",momentum=0",
            ",momentum=0,memory=none",
        ]);
        rest.prop_map(move |rest| format!("dgc:density={d},index={i},values={v}{rest}"))
    });
    let estimated = (density.clone(), index.clone(), values.clone(), words(&["exp", "gamma", "gp"]))
        .prop_flat_map(|(d, i, v, fit)| {
            let rest =
                words(&["", ",cap=exact", ",stages=1", ",stages=3,memory=none", ",stages=5,cap=exact"]);
            rest.prop_map(move |rest| format!("sidco:density={d},index={i},values={v},fit={fit}{rest}"))
        });
    let halved = (
        density.clone(),
        index.clone(),
        values.clone(),
        words(&["", ",width=0.01", ",width=0.5", ",memory=none"]),
    )
        .prop_map(|(d, i, v, rest)| format!("redsync:density={d},index={i},values={v}{rest}"));
    let bits = words(&["ternary", "2", "3", "4", "5", "6", "7", "8"]).prop_map(|bits| format!("bits={bits}"));
    let bits = prop_oneof![2 => bits, 1 => (1u8..=127).prop_map(|s| format!("levels={s}"))];
    let entropy = words(&["auto", "fixed", "elias", "rans", "adaptive"]);
    let bucket = words(&["1", "2", "5", "8", "64", "127", "128", "512", "100000"]);
    let norms = words(&["max", "l2", "max,sigmas=2.5", "max,sigmas=0.1"]);
    let stochastic = (bits.clone(), bucket.clone(), norms, entropy.clone())
        .prop_map(|(b, d, n, e)| format!("qsgd:{b},bucket={d},norm={n},entropy={e}"));
    let nearest = (bits, bucket, entropy, memory)
        .prop_map(|(b, d, e, m)| format!("qsgd:{b},bucket={d},entropy={e},rounding=nearest,memory={m}"));
    let blocks = words(&["none", "run", "tile"]);
    let randomk = (density, blocks, words(&["", ",memory=none", ",estimator=unbiased"]))
        .prop_map(|(d, block, rest)| format!("randomk:density={d},block={block}{rest}"));
    let maxnorm = words(&["bits=2", "bits=3", "bits=5", "bits=8", "levels=64", "levels=5,sigmas=1"])
        .prop_map(|b| format!("maxnorm:{b}"));
    let example = prop::sample::select(and_examples(&[], has_frames)).prop_map(str::to_owned);
    prop_oneof![4 => example, 2 => dense, 6 => topk, 3 => drawn, 4 => corrected, 4 => estimated, 3 => halved, 3 => threshold, 6 => stochastic, 4 => nearest, 3 => randomk, 1 => maxnorm].boxed()
}

/// Values that the narrow formats overflow on are an error of their own, proved elsewhere.
fn is_narrow(spelling: &str) -> bool {
    spelling.contains("f16") && !spelling.contains("bf16")
}

fn units(n: usize) -> impl Strategy<Value = Vec<Unit>> {
    let whole = Just(vec![Unit::whole(n)]);
    let cuts = prop::collection::vec((0u32..5, 0..=n, any::<bool>()), 1..6).prop_map(move |mut cuts| {
        cuts.sort_by_key(|&(_, end, _)| end);
        let (mut id, mut start, mut units) = (0, 0, Vec::new());
        for (more, end, flag) in cuts {
            let end = end.max(start);
            id += more;
            units.push(Unit { id, start, len: end - start, dense: flag && more == 1 });
            // Where the flag is set, a gap of one coordinate that no unit covers.
            start = (end + usize::from(flag)).min(n);
            id += 1;
        }
        units
    });
    prop_oneof![3 => whole, 1 => cuts]
}

/// The memory that the spelling asks for, with these values.
fn before(spelling: &str, n: usize, units: &[Unit], [residual, momentum]: [&Input; 2]) -> Option<Kept> {
    let mut kept = Kept::new(&Spec::parse(spelling).unwrap(), n, units)?;
    kept.residual = residual.values(n);
    if let Some(slot) = &mut kept.momentum {
        *slot = momentum.values(n);
    }
    // Anything may stand in a state: here what a few steps may leave, or any words.
    for (i, (state, word)) in kept.states.iter_mut().zip(momentum.values(4 * n.max(1))).enumerate() {
        let bits = word.to_bits();
        let left = [
            (bits % 3) | (bits & 256),
            bits >> 9 & 7,
            (bits as f32 / 2e9).to_bits(),
            (bits as f32 / 1e10).to_bits(),
        ];
        *state = UnitState::from_words(if i % 3 == 2 { [bits, !bits, bits / 3, 7 ^ bits] } else { left });
    }
    Some(kept)
}

/// One shape, a matrix, or a matrix with what does not fill a row behind it.
fn shapes(n: usize) -> impl Strategy<Value = Vec<Vec<usize>>> {
    let matrix = (1usize..70).prop_map(move |width| vec![vec![n / width, width], vec![n % width]]);
    let widths: Vec<_> = (1usize..70).filter(|width| n.is_multiple_of(*width)).collect();
    let whole = prop::sample::select(widths).prop_map(move |width| vec![vec![n / width, width]]);
    prop_oneof![Just(vec![vec![n]]), whole, matrix]
}

fn cases() -> impl Strategy<Value = Case> {
    (spelling(), lengths(), keys(), words(&["f32", "f32", "f16", "bf16"])).prop_flat_map(
        |(spelling, n, key, format)| {
            let input =
                if format == "f16" || is_narrow(&spelling) { moderate().boxed() } else { inputs().boxed() };
            let kept = if is_narrow(&spelling) { moderate().boxed() } else { inputs().boxed() };
            let kept = [kept.clone(), kept];
            (Just(spelling), Just(key), Just(format), input, kept, units(n), shapes(n)).prop_map(
                move |(spelling, key, format, grad, [residual, momentum], units, shapes)| {
                    let before = before(&spelling, n, &units, [&residual, &momentum]);
                    Case { spelling, key, format, shapes, grad: grad.values(n), before, units }
                },
            )
        },
    )
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let spec = Spec::parse(&case.spelling).unwrap();
    let gradient = Gradient::new(case.format, &case.grad);
    let layout = run::layout(&case.shapes);
    let layout = layout.as_ref();
    let (grad, shapes, codec, units) = (gradient.widened(), &case.shapes, &spec.codec, &case.units);
    let job = Job { codec, key: case.key, shapes, units, grad: &grad, before: case.before.as_ref() };
    let expected = naive::encode::encode(&job);
    let mut kept = [case.before.clone(), case.before.clone()];
    let [exact, dirty] = [0, 100].map(|more| {
        let mut memory = kept[usize::from(more > 0)].as_mut().map(Kept::lend);
        run::encode_with(codec, case.key, &layout, units, gradient.as_grad(), memory.as_mut(), more)
    });
    prop_assert_eq!(&dirty, &exact, "the bytes depend on what the scratch memory held");
    let expected = match (expected, exact) {
        (Err(expected), exact) => {
            prop_assert_eq!(exact, Err(expected));
            prop_assert_eq!(kept[0].as_ref().map(Kept::words), case.before.as_ref().map(Kept::words));
            return Ok(());
        }
        (Ok(expected), exact) => {
            prop_assert_eq!(exact.as_deref(), Ok(&expected.frame[..]));
            expected
        }
    };
    for kept in &kept {
        prop_assert_eq!(kept.as_ref().map(Kept::words), expected.kept.as_ref().map(Kept::words));
    }
    let decoded = run::decode(&expected.frame, &layout).unwrap();
    // An accumulator of zeros does not keep the sign of a zero.
    let sums: Vec<f32> = expected.decoded.iter().map(|value| 0.0 + value).collect();
    prop_assert_eq!(bits(&decoded), bits(&sums));
    let read = naive::decode::decode(&expected.frame, shapes).map_err(TestCaseError::fail)?;
    prop_assert_eq!(bits(&read.dense(case.grad.len())), bits(&sums));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 2_000 } else { 20_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_codec_is_the_naive_one_byte_for_byte(case in cases()) {
        check(&case)?;
    }

    #[test]
    fn non_finite_and_too_large_values_are_found_where_the_naive_reference_finds_them(
        mut case in cases(),
        position in any::<prop::sample::Index>(),
        bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -1e38, 65_520.0, 65_519.9, 2e33, 1e37]),
    ) {
        if !case.grad.is_empty() {
            let at = position.index(case.grad.len());
            case.grad[at] = bad;
        }
        check(&case)?;
    }
}

/// The slow paths: lanes, blocks and tables that only long units reach.
#[test]
fn long_units_are_the_naive_ones() {
    for (spelling, n, input) in [
        ("qsgd:bits=4,entropy=rans", 16_383, Input::Normal(1)),
        ("qsgd:bits=4,entropy=auto", 16_384, Input::Heavy(2)),
        ("qsgd:bits=8,norm=l2,entropy=elias", 20_000, Input::Normal(3)),
        ("qsgd:bits=8,entropy=auto,rounding=nearest", 20_000, Input::Normal(4)),
        ("qsgd:bits=4,bucket=4096,entropy=adaptive", 30_000, Input::Uneven(8)),
        ("qsgd:bits=7,bucket=8192,norm=l2,entropy=adaptive", 140_000, Input::Uneven(9)),
        ("qsgd:bits=2,bucket=100,entropy=auto", 100_000, Input::Uneven(10)),
        ("topk:density=0.2,values=q8", 20_000, Input::Normal(5)),
        ("topk:density=0.01,index=rice", 70_000, Input::Heavy(6)),
        ("topk:density=0.01,index=context", 70_000, Input::Heavy(6)),
        ("topk:density=0.01,index=context-max", 70_000, Input::Heavy(6)),
        ("randomk:density=0.01", 30_000, Input::Normal(7)),
        ("randomk:density=0.01,block=run", 30_000, Input::Normal(7)),
        ("dgc:density=0.01", 70_000, Input::Heavy(8)),
        ("redsync:density=0.01", 70_000, Input::Heavy(8)),
        ("redsync:density=0.001,width=0.0001", 70_000, Input::Normal(8)),
        ("sidco:density=0.01,fit=exp,stages=3", 70_000, Input::Heavy(8)),
        ("sidco:density=0.01,fit=gamma,stages=2", 70_000, Input::Normal(8)),
        ("sidco:density=0.001,fit=gp,stages=4,cap=exact", 70_000, Input::Heavy(8)),
        ("dgc:density=0.001,nesterov", 100_000, Input::Normal(9)),
    ] {
        let spec = Spec::parse(spelling).unwrap();
        let grad = input.values(n);
        let units = vec![Unit::whole(n)];
        let before = Kept::new(&spec, n, &units);
        let key = StepKey { seed: 3, step: 4, source: Source::Rank(5) };
        let (spelling, shapes) = (spelling.to_owned(), vec![vec![n]]);
        check(&Case { spelling, key, format: "f32", shapes, grad, before, units }).unwrap();
    }
}

/// Long units in whose sample the selection is mistaken: ramps, plateaus, and large values where few are
/// looked at.
#[test]
fn misleading_magnitudes_are_selected_like_the_naive_ones() {
    type Value = fn(usize) -> f32;
    let n = 20_000usize;
    let shapes: [(&str, Value); 8] = [
        ("rising", |i| i as f32),
        ("falling", |i| 20_000.0 - i as f32),
        ("equal", |_| 1.0),
        ("two values", |i| if i % 3 == 0 { -2.0 } else { 2.0 }),
        ("a plateau at the end", |i| if i < 15_000 { (i % 7) as f32 } else { 7.0 }),
        ("a plateau at the start", |i| if i < 5_000 { 7.0 } else { (i % 7) as f32 }),
        ("peaks between the samples", |i| if i % 64 == 63 { 1e3 + i as f32 } else { 1e-3 }),
        ("almost nothing", |i| if i % 5_001 == 5_000 { -1e-40 } else { 0.0 }),
    ];
    for (name, value) in shapes {
        let grad: Vec<f32> = (0..n).map(value).collect();
        for density in ["0.00005", "0.001", "0.01", "0.1", "0.4", "0.75"] {
            for residual in
                [None, Some(Input::Zero.values(n)), Some(grad.iter().map(|value| value / 2.0).collect())]
            {
                let memory = if residual.is_some() { "ef" } else { "none" };
                for codec in ["topk:", "dgc:momentum=0,sample=0.3,", "sidco:stages=2,"] {
                    let spelling = format!("{codec}density={density},index=bitmap,memory={memory}");
                    let key = StepKey { seed: 3, step: 4, source: Source::Rank(5) };
                    let (shapes, grad, units) = (vec![vec![n]], grad.clone(), vec![Unit::whole(n)]);
                    let before = residual.clone().map(|residual| Kept { residual, ..Kept::default() });
                    let case = Case { spelling, key, format: "f32", shapes, grad, before, units };
                    if let Err(error) = check(&case) {
                        panic!("{name}, {}: {}", case.spelling, first_line(&error.to_string()));
                    }
                }
            }
        }
    }
}

fn first_line(text: &str) -> &str {
    &text[..text.len().min(200)]
}

/// Tables for every shape of histogram, through codebooks whose symbols are few.
#[test]
fn frequency_tables_are_the_naive_ones_for_every_small_histogram() {
    let spec = Spec::parse("topk:density=1,values=q2,memory=none").unwrap();
    for a in 0..12usize {
        for b in 0..12 {
            for c in [0, 1, 2, 50, 400] {
                let grad: Vec<f32> = [(1.0, a), (-1.0, b), (8.0, c), (-8.0, a * b)]
                    .iter()
                    .flat_map(|&(value, count)| std::iter::repeat_n(value, count))
                    .collect();
                let key = StepKey { seed: 1, step: 1, source: Source::Rank(1) };
                let (spelling, n) = (spec.to_string(), grad.len());
                let (shapes, units) = (vec![vec![n]], vec![Unit::whole(n)]);
                check(&Case { spelling, key, format: "f32", shapes, grad, before: None, units }).unwrap();
            }
        }
    }
}

#[test]
fn bounds_are_at_least_what_is_written() {
    for golden in gradwire_tests::golden::all() {
        let bound = golden.spec.codec.max_frame_bytes(&golden.units).unwrap();
        assert!(golden.frame().len() <= bound, "{}", golden.name);
    }
}
