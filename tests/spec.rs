//! Spellings: what is printed reads back, and every key does what it says in the frame.

use gradwire::state::MemoryChoice;
use gradwire::{Codec, Gather, Layout, Spec, SpecError, StepInput};
use gradwire_tests::golden;
use proptest::prelude::*;

fn spelling() -> impl Strategy<Value = String> {
    let pairs = [
        ("density", &["1", "0.5", "0.01", "1e-9", "0.123456789", "+0.1", "1e-3"][..]),
        ("index", &["auto", "raw", "bitmap", "rice"]),
        ("values", &["f32", "f16", "bf16", "q8", "q4", "q2", "sign"]),
        ("value", &["0", "-0", "0.5", "1e-45", "3.4028235e38", "1e10", "0.1"]),
        ("bits", &["4+8", "8+16", "2+2", "ternary", "2", "3", "4", "5", "6", "7", "8"]),
        ("levels", &["1", "5", "64", "127"]),
        ("chunk", &["64", "4096", "65536"]),
        ("by", &["sketch", "leader"]),
        ("rows", &["1", "3", "9"]),
        ("columns", &["1", "4", "255"]),
        ("candidates", &["1", "8", "255"]),
        ("feedback", &["residual", "ef21"]),
        ("lowpass", &["1", "0.1", "1e-45"]),
        ("bucket", &["1", "128", "512", "4294967295"]),
        ("norm", &["max", "l2"]),
        ("sigmas", &["2.5", "1e-45", "0.1", "3.4028235e38"]),
        ("entropy", &["auto", "fixed", "elias", "rans"]),
        ("rounding", &["stochastic", "nearest"]),
        ("block", &["none", "run", "tile"]),
        ("estimator", &["contraction", "unbiased"]),
        ("memory", &["none", "ef", "momentum", "state"]),
        ("unit", &["model", "tensor"]),
        ("dense_below", &["0", "1", "65536"]),
        ("dense_1d", &["true", "false"]),
        ("warmup", &["0", "4", "4294967295"]),
        ("momentum", &["0", "0.5", "0.9", "1e-45"]),
        ("moments", &["none", "amsgrad"]),
        ("squares", &["0", "0.999", "1e-45"]),
        ("floor", &["0.001", "1e-45", "3.4028235e38"]),
        ("nesterov", &["true", "false"]),
        ("clip", &["1", "0.25", "3.4028235e38"]),
        ("sample", &["1", "0.01", "0.001"]),
        ("fit", &["exp", "gamma", "gp"]),
        ("stages", &["auto", "1", "32"]),
        ("cap", &["none", "exact"]),
    ];
    let pair = prop::sample::select(pairs.to_vec()).prop_flat_map(|(key, values)| {
        prop::sample::select(values).prop_map(move |value| format!("{key}={value}"))
    });
    let name = prop::sample::select(Spec::names().to_vec());
    (name, prop::collection::vec(pair, 0..6)).prop_map(|(name, pairs)| format!("{name}:{}", pairs.join(",")))
}

/// What WRITER.md says of keys that a spelling leaves out: a spelling, and the same with the keys spelled
/// out, on each line.
#[test]
fn defaults_are_those_of_the_format() {
    let text = include_str!("../WRITER.md");
    let (_, block) = text.split_once("```defaults\n").expect("WRITER.md lists defaults");
    let (block, _) = block.split_once("```").expect("the list ends");
    for line in block.lines() {
        let (short, long) = line.split_once(' ').expect("two spellings");
        assert!(Spec::parse(short).is_ok(), "{short}");
        assert_eq!(Spec::parse(short), Spec::parse(long.trim()), "{short}");
    }
    assert!(block.contains(" dgc:density=0.001,sample=0.01,"), "the sample of `dgc`");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_reads_back_as_the_same(spelling in spelling()) {
        if let Ok(spec) = Spec::parse(&spelling) {
            let printed = spec.to_string();
            prop_assert_eq!(Spec::parse(&printed), Ok(spec), "{} is printed as {}", spelling, printed);
            prop_assert_eq!(Spec::parse(&printed).unwrap().to_string(), printed);
            prop_assert!(spec.conflict().is_none());
        }
    }

    #[test]
    fn any_text_is_a_spelling_or_an_error_that_can_be_shown(text in "\\PC{0,60}|(topk|qsgd):[a-z_=0-9.,-]{0,40}") {
        if let Err(error) = Spec::parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn golden_spellings_read_back() {
    for golden in golden::all() {
        assert_eq!(Spec::parse(&golden.spec.to_string()), Ok(golden.spec), "{}", golden.name);
    }
}

/// 2.5 % of 64 are 1.6, of the last 40 exactly 1, and of all 232 coordinates 5.8.
#[test]
fn every_chunk_has_its_own_share() {
    let layout = Layout::packed([("w", vec![3 * 64 + 40])]).unwrap();
    let grad: Vec<f32> = (0..layout.len()).map(|at| if at < 64 { 1000.0 + at as f32 } else { 1.0 }).collect();
    for (spelling, counts) in
        [("topk:density=0.025,chunk=64", [2, 2, 2, 1]), ("topk:density=0.025", [6, 0, 0, 0])]
    {
        let spec = Spec::parse(spelling).unwrap();
        let units: Vec<_> = spec.units.units(&layout.as_ref()).collect();
        let key = gradwire::StepKey { seed: 1, step: 0, source: gradwire::Source::Rank(0) };
        let mut encoder = gradwire::Encoder::new();
        let grad = gradwire::Grad::F32(&grad);
        let frame = encoder
            .encode(&spec.codec, &StepInput { key, layout: &layout.as_ref(), units: &units, grad }, None)
            .unwrap();
        let mut decoder = gradwire::Decoder::new();
        let limits = gradwire::Limits::for_layout(&layout.as_ref());
        let frame = decoder.parse(frame, &layout.as_ref(), &limits).unwrap();
        let mut found = [0; 4];
        frame.units().for_each(|unit| unit.for_each(|at, _| found[at / 64] += 1));
        assert_eq!(found, counts, "{spelling}");
        assert_eq!(spec.codec.target_count(&units), Some(counts.iter().sum()), "{spelling}");
    }
}

/// Numbers of levels that a width has are that width, so their frames are those of `bits`.
#[test]
fn levels_that_a_width_has_are_spelled_as_bits() {
    for name in ["qsgd", "maxnorm"] {
        for levels in 1u32..=127 {
            let spec = Spec::parse(&format!("{name}:levels={levels}")).map(|spec| spec.to_string()).unwrap();
            let bits = levels.ilog2() + 2;
            let is_full = (levels + 1).is_power_of_two();
            let shown = if is_full { format!("bits={bits}") } else { format!("levels={levels}") };
            assert!(spec.starts_with(&format!("{name}:{shown}")), "{spec} for {levels}");
        }
    }
}

#[test]
fn errors_name_the_key_and_what_is_allowed() {
    for (spelling, words) in [
        ("topk:density=7", ["density", "1e-9 to 1"]),
        ("topk:density=0", ["density", "1e-9 to 1"]),
        ("topk:density=-0.1", ["density", "1e-9 to 1"]),
        ("topk:index=huffman", ["index", "raw bitmap rice context context-max small smallest"]),
        ("qsgd:bits=1", ["bits", "ternary 2"]),
        ("topk:chunk=32", ["chunk", "power of two from 64 to 65536"]),
        ("topk:chunk=1000", ["chunk", "power of two from 64 to 65536"]),
        ("topk:chunk=131072", ["chunk", "power of two from 64 to 65536"]),
        ("dgc:chunk=64", ["chunk", "density"]),
        ("qsgd:levels=0", ["levels", "1 to 127"]),
        ("maxnorm:levels=128", ["levels", "1 to 127"]),
        ("qsgd:levels=5,bits=4", ["levels", "bits"]),
        ("maxnorm:bits=4,levels=7", ["levels", "bits"]),
        ("qsgd:bucket=4294967296", ["bucket", "1 to 4294967295"]),
        ("qsgd:norm=l1", ["norm", "max l2"]),
        ("qsgd:sigmas=0", ["sigmas", "above 0"]),
        ("maxnorm:sigmas=inf", ["sigmas", "above 0"]),
        ("qsgd:sigmas=2,norm=l2", ["sigmas", "norm=max"]),
        ("qsgd:sigmas=2,rounding=nearest,memory=ef", ["memory=ef", "without sigmas"]),
        ("maxnorm:sigmas=2,rounding=nearest,memory=ef", ["memory=ef", "without sigmas"]),
        ("maxnorm:sigmas=2,density=0.1", ["sigmas", "density"]),
        ("randomk:block=chunk", ["block", "none run tile"]),
        ("topk:block=run", ["block", "density"]),
        ("randomk:estimator=biased", ["estimator", "contraction unbiased"]),
        ("threshold:value=inf", ["value", "finite"]),
        ("threshold:value=NaN", ["value", "finite"]),
        ("topk:dense_below=-1", ["dense_below", "whole number"]),
        ("none:density=0.1", ["density", "memory"]),
        ("topk:memory=yes", ["memory", "none ef"]),
        ("dgc:momentum=1", ["momentum", "0 to below 1"]),
        ("dgc:momentum=-0.1", ["momentum", "0 to below 1"]),
        ("dgc:momentum=nan", ["momentum", "0 to below 1"]),
        ("dgc:clip=0", ["clip", "above 0"]),
        ("dgc:clip=inf", ["clip", "above 0"]),
        ("dgc:sample=0", ["sample", "1e-9 to 1"]),
        ("dgc:warmup=-1", ["warmup", "whole number"]),
        ("dgc:nesterov,momentum=0", ["nesterov", "momentum"]),
        ("dgc:memory=ef", ["memory", "momentum=0"]),
        ("dgc:memory=none", ["memory", "momentum=0"]),
        ("dgc:momentum=0,memory=momentum", ["memory=momentum", "dgc"]),
        ("topk:memory=momentum", ["memory=momentum", "dgc"]),
        ("topk:momentum=0.9", ["momentum", "density"]),
        ("topk:density=0.1,density=0.2", ["density", "twice"]),
        ("lgc", ["lgc", "topk"]),
        ("sidco:fit=laplace", ["fit", "exp gamma gp"]),
        ("sidco:stages=0", ["stages", "auto, or a whole number from 1 to 32"]),
        ("sidco:stages=33", ["stages", "1 to 32"]),
        ("sidco:cap=yes", ["cap", "none exact"]),
        ("sidco:memory=none", ["memory=none", "number of stages"]),
        ("sidco:memory=momentum", ["memory=momentum", "dgc"]),
        ("redsync:width=0", ["width", "2^-16 to below 1"]),
        ("redsync:width=1", ["width", "2^-16 to below 1"]),
        ("redsync:memory=momentum", ["memory=momentum", "dgc"]),
        ("", ["''", "topk"]),
        ("topk:,", ["''", "density"]),
        ("randomk:estimator=unbiased,memory=ef", ["estimator", "memory=ef"]),
        ("qsgd:memory=ef", ["memory=ef", "rounding=nearest"]),
        ("none:memory=ef", ["memory=ef", "none"]),
    ] {
        let shown = Spec::parse(spelling).expect_err(spelling).to_string();
        assert!(words.iter().all(|word| shown.contains(word)), "{spelling}: {shown}");
        assert!(!shown.contains('\n'), "{spelling}: more than one line");
    }
    assert!(matches!(Spec::parse("threshold"), Err(SpecError::MissingKey("value"))));
}

#[test]
fn biased_codecs_keep_a_memory_by_default() {
    for (spelling, memory) in [
        ("topk", MemoryChoice::ErrorFeedback),
        ("threshold:value=1", MemoryChoice::ErrorFeedback),
        ("randomk", MemoryChoice::ErrorFeedback),
        ("qsgd:rounding=nearest", MemoryChoice::ErrorFeedback),
        ("sidco", MemoryChoice::ErrorFeedback),
        ("redsync", MemoryChoice::ErrorFeedback),
        ("dgc", MemoryChoice::Momentum),
        ("dgc:momentum=0", MemoryChoice::ErrorFeedback),
        ("randomk:estimator=unbiased", MemoryChoice::None),
        ("qsgd", MemoryChoice::None),
        ("qsgd:rounding=nearest,sigmas=2", MemoryChoice::None),
        ("none", MemoryChoice::None),
    ] {
        assert_eq!(Spec::parse(spelling).unwrap().memory, memory, "{spelling}");
    }
}

#[test]
fn dgc_has_the_papers_parameters_by_default() {
    let spelled = "dgc:density=0.001,warmup=4,momentum=0.9,nesterov=false,sample=0.01,index=auto,values=f32,\
                   memory=momentum,unit=model,dense_below=0,dense_1d=true";
    assert_eq!(Spec::parse(spelled), Spec::parse("dgc"));
    assert_eq!(Spec::parse("dgc").unwrap().to_string(), "dgc:density=0.001,momentum=0.9");
    for kept in [
        "dgc:density=0.01,momentum=0,warmup=0,memory=none,dense_1d=false",
        "dgc:density=0.01,momentum=0.5,nesterov=true,clip=2.5,sample=0.001,index=rice,values=q4,warmup=9",
    ] {
        assert_eq!(Spec::parse(kept).unwrap().to_string(), kept);
    }
}

#[test]
fn sidco_spells_out_its_defaults() {
    let spelled = "sidco:density=0.01,warmup=0,fit=gp,stages=auto,cap=none,memory=ef";
    assert_eq!(Spec::parse(spelled), Spec::parse("sidco"));
    let kept = "sidco:density=0.001,fit=gamma,stages=3,cap=exact,values=q8,warmup=4,memory=none";
    assert_eq!(Spec::parse(kept).unwrap().to_string(), kept);
}

#[test]
fn densities_warm_up_epoch_by_epoch() {
    let densities = |spelling: &str| -> Vec<Option<String>> {
        let spec = Spec::parse(spelling).unwrap();
        (0..6).map(|epoch| spec.codec_in(epoch).density().map(|density| density.to_string())).collect()
    };
    let some = |texts: [&str; 6]| texts.map(|text| Some(text.to_owned())).to_vec();
    let paper = ["0.251188643", "0.063095734", "0.015848932", "0.003981072", "0.001", "0.001"];
    assert_eq!(densities("dgc"), some(paper));
    assert_eq!(densities("topk:density=0.001,warmup=4"), some(paper));
    assert_eq!(
        densities("randomk:density=0.01,warmup=1"),
        some(["0.1", "0.01", "0.01", "0.01", "0.01", "0.01"])
    );
    assert_eq!(densities("topk:density=1,warmup=9"), some(["1"; 6]));
    assert_eq!(densities("topk"), some(["0.01"; 6]));
    assert_eq!(densities("qsgd"), vec![None; 6]);
    let spec = Spec::parse("dgc:values=q4,nesterov").unwrap();
    assert_eq!(spec.codec_in(7), spec.codec, "nothing else changes");
    assert_eq!(spec.codec_in(0).with_density(spec.codec.density().unwrap()), spec.codec);
}

#[test]
fn what_is_sent_dense_counts() {
    let layout = Layout::packed([("a", vec![100, 10]), ("b", vec![10])]).unwrap();
    for (spelling, target) in
        [("dgc:density=0.01", Some(20)), ("topk:density=0.01", Some(10)), ("threshold:value=1", None)]
    {
        let spec = Spec::parse(spelling).unwrap();
        let units: Vec<_> = spec.units.units(&layout.as_ref()).collect();
        assert_eq!(spec.codec.target_count(&units), target, "{spelling}");
    }
}

#[test]
fn only_payloads_that_may_be_summed_are_linear() {
    for (spelling, linear) in [
        ("none", true),
        ("randomk", true),
        ("topk", false),
        ("qsgd", false),
        ("f16", false),
        ("threshold:value=1", false),
        ("dgc", false),
        ("sidco", false),
        ("redsync", false),
        ("dpsgd", false),
        ("powergossip", false),
        ("choco", false),
    ] {
        let codec = Spec::parse(spelling).unwrap().codec;
        assert_eq!(codec.as_linear().is_some(), linear, "{spelling}");
        assert_eq!(matches!(codec, Codec::Linear(_)), spelling == "randomk", "{spelling}");
    }
}

#[test]
fn units_cover_every_coordinate_once_in_order() {
    let shapes: Vec<Vec<usize>> = vec![vec![4, 4], vec![4], vec![], vec![0], vec![8, 4], vec![3]];
    let layout = Layout::packed(shapes.iter().map(|shape| ("t", shape.clone()))).unwrap();
    for spelling in [
        "topk",
        "topk:unit=tensor",
        "topk:dense_1d",
        "topk:dense_below=10",
        "topk:unit=tensor,dense_1d,dense_below=17",
    ] {
        let spec = Spec::parse(spelling).unwrap();
        let units: Vec<_> = spec.units.units(&layout.as_ref()).collect();
        let mut next = 0;
        for (id, unit) in units.iter().enumerate() {
            assert_eq!((unit.id as usize, unit.start), (id, next), "{spelling}");
            next = unit.range().end;
        }
        assert_eq!(next, layout.len(), "{spelling}");
        assert!(spec.codec.max_frame_bytes(&units).is_some());
    }
}
