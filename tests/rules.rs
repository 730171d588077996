//! Rules by tensor name: which tensor is sent how, a frame for each group, all of them or none, and nothing
//! lost in silence.

use gradwire::format::{Header, Limit, Outline};
use gradwire::plan::{GroupsDecodeError, Plan};
use gradwire::registry::{CODECS, Law};
use gradwire::rules::{Rules, RulesProblem};
use gradwire::{
    Codec, DecodeError, Decoder, EncodeError, Encoder, Grad, Layout, LayoutRef, Limits, Memory, Source, Spec,
    StepInput, StepKey,
};
use gradwire_tests::inputs::Input;
use gradwire_tests::messages::{self, Message};
use gradwire_tests::naive::{self, checksum::crc32c};
use gradwire_tests::run::{Kept, bits, no_limits};
use gradwire_tests::spellings::{and_examples, has_frames};
use gradwire_tests::{manifest, run};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const NAMES: [&str; 9] = [
    "embed.weight",
    "fc1.weight",
    "fc1.bias",
    "fc2.weight",
    "fc2.bias",
    "norm.weight",
    "norm.bias",
    "head:0",
    "a,b=c;d+e f%",
];

const SHAPES: [&[usize]; 9] = [&[], &[0], &[1], &[7], &[40], &[3, 5], &[12, 9], &[2, 3, 4], &[33, 8]];

const PATTERNS: [&str; 9] =
    ["*.bias", "*.weight", "fc?.*", "fc[12].weight", "norm*", "embed.*", "head:0", "[!f]*", "*,*=*;* *%"];

/// Every kind of body, law and memory.
const KINDS: [&str; 17] = [
    "none",
    "f16:memory=ef",
    "bf16",
    "topk:density=0.1",
    "topk:density=0.3,values=q4,unit=tensor",
    "topk:density=0.2,memory=none",
    "topk:density=0.1,dense_1d",
    "topk:density=0.2,index=small",
    "threshold:value=0.5,dense_below=10",
    "dgc:density=0.2,momentum=0.5",
    "sidco:density=0.2",
    "redsync:density=0.2",
    "qsgd:bits=4",
    "qsgd:bits=4,bucket=16,rounding=nearest,memory=ef",
    "randomk:density=0.2",
    "efsign",
    "efsign:unit=model,memory=none",
];

fn key(step: u64) -> StepKey {
    StepKey { seed: 5, step, source: Source::Rank(3) }
}

fn spec(spelling: &str) -> Spec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"))
}

fn rules(text: &str) -> Rules {
    Rules::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn layout(tensors: &[(&str, &[usize])]) -> Layout {
    Layout::packed(tensors.iter().map(|&(name, shape)| (name, shape.to_vec()))).unwrap()
}

/// The frames of a step, in buffers that are new.
fn encode(
    groups: &Plan,
    step: u64,
    layout: &LayoutRef<'_>,
    grad: Grad<'_>,
    kept: Option<&mut Kept>,
) -> Result<Vec<u8>, EncodeError> {
    let mut memory = kept.map(Kept::lend);
    let mut encoder = Encoder::new();
    let input = StepInput { key: key(step), layout, units: groups.units(), grad };
    encoder.encode_plan(groups, &input, memory.as_mut()).map(<[u8]>::to_vec)
}

/// A −0.0 in a residual counts as 0.
fn bits_of(value: f32) -> u32 {
    (value + 0.0).to_bits()
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let patterns = subsequence(&PATTERNS, 0..=4).prop_shuffle();
    (patterns, prop::collection::vec(select(and_examples(&KINDS, has_frames)), 5)).prop_map(
        |(patterns, spellings)| {
            let pairs: Vec<_> =
                patterns.iter().copied().zip(spellings.iter().map(|spelling| spec(spelling))).collect();
            Rules::new(&pairs, spec(spellings[4])).unwrap()
        },
    )
}

fn any_tensors() -> impl Strategy<Value = (Vec<String>, Vec<Vec<usize>>)> {
    let tensor = (select(&NAMES), select(&SHAPES));
    prop::collection::vec(tensor, 0..8).prop_map(|tensors| {
        let (names, shapes): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
        (names.into_iter().map(str::to_owned).collect(), shapes.into_iter().map(<[usize]>::to_vec).collect())
    })
}

/// What the laws of its group say of every coordinate after a step.
fn check_laws(groups: &Plan, before: &Kept, grad: &[f32], sent: &[f32], after: &Kept, given_back: &Kept) {
    for group in groups.groups() {
        for i in group.units.iter().flat_map(|unit| unit.range()) {
            if !group.keeps() {
                assert_eq!(after.residual[i].to_bits(), before.residual[i].to_bits(), "{}", group.spec);
                continue;
            }
            if group.spec.codec.momentum().is_some() {
                continue;
            }
            let p = before.residual[i] + grad[i];
            assert_eq!(bits_of(p - sent[i]), bits_of(after.residual[i]), "{}: coordinate {i}", group.spec);
            if group.spec.codec.capabilities().law == Law::Exact {
                assert_eq!(bits_of(sent[i] + after.residual[i]), bits_of(p), "{}", group.spec);
                assert_eq!(bits_of(given_back.residual[i]), bits_of(p), "{}: given back", group.spec);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn rules_send_and_keep_what_the_naive_reference_does(
        rules in any_rules(),
        (names, shapes) in any_tensors(),
        seed in 0u64..1000,
    ) {
        let layout = messages::layout(&names, &shapes);
        let (layout, groups) = (layout.as_ref(), Plan::of_rules(&rules, &layout.as_ref()));
        let naive_groups = naive::rules::groups(&rules, &names, &shapes);
        prop_assert_eq!(
            groups.groups().iter().map(|group| group.units.clone()).collect::<Vec<_>>(),
            naive_groups.iter().map(|group| group.units.clone()).collect::<Vec<_>>()
        );
        let mut kept = messages::kept(&groups, layout.len());
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        for step in 0..3 {
            let grad = Input::Normal(seed + step).values(layout.len());
            let before = kept.clone();
            let naive = naive::rules::frames(&naive_groups, key(step), &shapes, &grad, before.as_ref()).unwrap();
            let mut again = before.clone();
            let frames = encode(&groups, step, &layout, Grad::F32(&grad), again.as_mut()).unwrap();
            prop_assert_eq!(&frames, &naive.frame, "{}", rules);
            prop_assert_eq!(again.as_ref().map(Kept::words), naive.kept.as_ref().map(Kept::words), "{}", rules);
            // The same bytes in buffers that were used before.
            let mut memory = kept.as_mut().map(Kept::lend);
            let bytes = encoder.encode_plan(&groups, &StepInput { key: key(step), layout: &layout, units: groups.units(), grad: Grad::F32(&grad) }, memory.as_mut()).unwrap();
            prop_assert_eq!(bytes, &frames[..]);
            prop_assert_eq!(&kept, &again);

            let parsed = decoder.parse_plan(&groups, groups.units(), &frames, &layout, &Limits::for_layout(&layout)).unwrap();
            prop_assert_eq!(parsed.step(), step);
            let mut sent = vec![0.0; layout.len()];
            parsed.add_scaled_to(1.0, &mut sent);
            prop_assert_eq!(bits(&sent), bits(&naive.decoded));
            if let (Some(before), Some(after)) = (&before, &kept) {
                let mut given_back = after.clone();
                parsed.give_back_to(&mut given_back.lend());
                check_laws(&groups, before, &grad, &sent, after, &given_back);
            }
        }
    }

    #[test]
    fn rules_that_are_printed_read_back(rules in any_rules()) {
        let printed = rules.to_string();
        let spaced = printed.replace(';', " ; ");
        for text in [&printed, &spaced] {
            let parsed = Rules::parse(text);
            prop_assert_eq!(parsed.as_ref(), Ok(&rules), "{}", text);
        }
        prop_assert!(!printed.contains(char::is_whitespace));
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), rules in any_rules()) {
        let layout = LayoutRef::flat(40);
        let groups = Plan::of_rules(&rules, &layout);
        let parsed = Decoder::new().parse_plan(&groups, groups.units(), &bytes, &layout, &no_limits()).map(|_| ());
        prop_assert!(parsed.is_err());
    }
}

#[test]
fn one_rule_for_all_makes_the_frame_of_the_codec_alone() {
    let layout =
        layout(&[("a.weight", &[20, 9]), ("a.bias", &[20]), ("b", &[]), ("c", &[0]), ("d", &[7, 3, 5])]);
    let (layout, mut tried) = (layout.as_ref(), 0);
    let grad = Input::Normal(1).values(layout.len());
    for example in CODECS.iter().flat_map(|entry| entry.examples) {
        let spec = spec(example);
        let is_framed = spec.codec.capabilities().has_frames && !matches!(spec.codec, Codec::Gossip(_));
        if !is_framed || spec.packets.is_some() {
            assert!(Rules::parse(example).is_err(), "{example}");
            continue;
        }
        let rules = rules(example);
        assert_eq!((rules.to_string(), &rules), (spec.to_string(), &Rules::from(spec)));
        let (groups, units) =
            (Plan::of_rules(&rules, &layout), spec.units.units(&layout).collect::<Vec<_>>());
        assert_eq!(groups.groups()[0].units, units, "{example}");
        let mut memory = Memory::for_spec(&spec, &layout);
        let mut by_rules = Memory::for_plan(&groups, &layout);
        let (mut encoder, mut rules_encoder) = (Encoder::new(), Encoder::new());
        for step in 0..3 {
            let (key, grad) = (key(step), Grad::F32(&grad));
            let input = StepInput { key, layout: &layout, units: &units, grad };
            let frame = encoder.encode(&spec.codec, &input, memory.as_mut());
            let input = StepInput { key, layout: &layout, units: groups.units(), grad };
            let frames = rules_encoder.encode_plan(&groups, &input, by_rules.as_mut());
            assert_eq!(frame, frames, "{example}");
            let saved = |memory: &Option<Memory<'_>>| {
                let mut bytes = vec![0; memory.as_ref().map_or(0, |memory| memory.saved_bytes().unwrap())];
                memory.as_ref().map(|memory| memory.save(&layout, &mut bytes).unwrap());
                bytes
            };
            assert_eq!(saved(&memory), saved(&by_rules), "{example}");
        }
        tried += 1;
    }
    assert!(tried >= 20, "{tried}");
}

#[test]
fn the_first_rule_that_fits_wins() {
    let rules = rules("fc1.*=f16; *.bias=none; *=bf16");
    let codecs = ["fc1.bias", "fc2.bias", "fc2.weight", ""].map(|name| rules.spec_of(name).to_string());
    assert_eq!(codecs, ["f16", "none", "bf16", "bf16"]);
    assert_eq!(rules.rules()[2].pattern(), "*");
}

#[test]
fn rules_without_tensors_have_no_group() {
    let layout = layout(&[("a", &[3]), ("b", &[4])]);
    let groups = Plan::of_rules(&rules("x*=none; b=f16; y=bf16; topk"), &layout.as_ref());
    let found: Vec<_> = groups.groups().iter().map(|group| (group.rule, group.tensors.clone())).collect();
    assert_eq!(found, [(1, vec![1]), (3, vec![0])]);
    let empty = LayoutRef::new(&[]).unwrap();
    let groups = Plan::of_rules(&rules("x*=none; topk"), &empty);
    assert_eq!((groups.groups().len(), groups.groups()[0].rule, groups.units().len()), (1, 1, 1));
}

#[test]
fn a_unit_ends_where_a_tensor_of_another_group_lies() {
    let layout = layout(&[("a", &[2, 2]), ("b", &[3, 1]), ("bias", &[5]), ("c", &[6, 1]), ("d", &[7])]);
    let groups = Plan::of_rules(&rules("bias=none; topk:dense_1d"), &layout.as_ref());
    let units = |group: usize| {
        let units = groups.groups()[group].units.iter();
        units.map(|unit| (unit.id, unit.start, unit.len, unit.dense)).collect::<Vec<_>>()
    };
    assert_eq!(units(0), [(1, 7, 5, false)]);
    assert_eq!(units(1), [(0, 0, 7, false), (2, 12, 6, false), (3, 18, 7, true)]);
}

#[test]
fn no_two_groups_share_a_random_draw() {
    let layout = layout(&[("a", &[64]), ("b", &[64])]);
    let groups = Plan::of_rules(&rules("a=qsgd:bits=4; qsgd:bits=4"), &layout.as_ref());
    let grad: Vec<f32> = Input::Normal(9).values(64).repeat(2);
    let frames = encode(&groups, 0, &layout.as_ref(), Grad::F32(&grad), None).unwrap();
    let sent = messages_decoded(&groups, &frames, &layout.as_ref());
    assert_ne!(bits(&sent[..64]), bits(&sent[64..]));
}

fn messages_decoded(groups: &Plan, bytes: &[u8], layout: &LayoutRef<'_>) -> Vec<f32> {
    let mut sum = vec![0.0; layout.len()];
    let mut decoder = Decoder::new();
    decoder
        .parse_plan(groups, groups.units(), bytes, layout, &no_limits())
        .unwrap()
        .add_scaled_to(1.0, &mut sum);
    sum
}

#[test]
fn densities_warm_up_rule_by_rule() {
    let rules = rules("a=topk:density=0.001,warmup=4; b=none; topk:density=0.01");
    let densities = |rules: &Rules| {
        let densities = rules.rules().iter().map(|rule| rule.spec().codec.density());
        densities.map(|density| density.map(|density| density.to_string())).collect::<Vec<_>>()
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(densities(&rules.in_epoch(0)), [some("0.251188643"), None, some("0.01")]);
    assert_eq!(rules.in_epoch(4), rules);
}

#[test]
fn bad_rules_name_the_rule_and_what_is_wrong() {
    let pattern = "expected a pattern of names, with % , = : + ; and spaces escaped as in %2C";
    let never = "never reached: a rule before it has its pattern, or is for all";
    let last = "the last rule must be for all other tensors: a spelling alone";
    let empty = "expected PATTERN=SPELLING, or at the end a spelling";
    for (text, rule, why) in [
        ("", "", empty),
        ("topk;", "", empty),
        ("a=none;;topk", "", empty),
        ("a=;topk", "a=", empty),
        ("*.bias=none", "*.bias=none", last),
        ("a=none; b=f16", "b=f16", last),
        ("topk; a=none", "a=none", never),
        ("*=topk; none", "none", never),
        ("a=none; a=f16; topk", "a=f16", never),
        ("=none; topk", "=none", pattern),
        ("a b=none; topk", "a b=none", pattern),
        ("a,b=none; topk", "a,b=none", pattern),
        ("a%2=none; topk", "a%2=none", pattern),
        ("a%ff=none; topk", "a%ff=none", pattern),
        ("a=topk:density=7; topk", "a=topk:density=7", "density=7: expected a fraction from 1e-9 to 1"),
        (
            "a=powersgd; topk",
            "a=powersgd",
            "this codec has rounds between all workers and no frames, so it cannot be a rule",
        ),
        ("dpsgd", "dpsgd", "gossip mixes whole models: it cannot be a rule for some tensors"),
        (
            "topk:max_packet_bytes=1200",
            "topk:max_packet_bytes=1200",
            "max_packet_bytes: frames of rules are not cut into packets",
        ),
    ] {
        let error = Rules::parse(text).expect_err(text);
        assert_eq!(error.to_string(), format!("rule '{rule}': {why}"));
    }
    let error = Rules::parse("dense:0=none; topk").unwrap_err().to_string();
    assert!(error.starts_with("rule 'dense:0=none': unknown codec 'dense'"), "{error}");
    let error = Rules::new(&[("", spec("none"))], spec("topk")).unwrap_err();
    assert_eq!(error.why, RulesProblem::Pattern);
}

/// Four groups: one that keeps nothing, exact and rounded ones, and one with momentum.
const FOUR: &str = "*.bias=bf16; embed*=topk:density=0.1; head=dgc:density=0.1,momentum=0.5; efsign";

fn four() -> Layout {
    layout(&[
        ("embed", &[20, 5]),
        ("fc.weight", &[10, 4]),
        ("fc.bias", &[10]),
        ("head", &[6, 8]),
        ("head.bias", &[8]),
        ("tail", &[15]),
    ])
}

#[test]
fn an_encode_that_fails_in_any_group_changes_nothing() {
    let layout = four();
    let (layout, groups) = (layout.as_ref(), Plan::of_rules(&rules(FOUR), &layout.as_ref()));
    let good = Input::Normal(4).values(layout.len());
    let mut kept = messages::kept(&groups, layout.len()).unwrap();
    encode(&groups, 0, &layout, Grad::F32(&good), Some(&mut kept)).unwrap();
    let before = kept.words();
    let mut encoder = Encoder::new();
    let mut refuse = |kept: &mut Kept, grad: &[f32]| {
        let mut memory = kept.lend();
        let input = StepInput { key: key(1), layout: &layout, units: groups.units(), grad: Grad::F32(grad) };
        let error = encoder.encode_plan(&groups, &input, Some(&mut memory)).err();
        assert!(encoder.frame().is_empty());
        error
    };
    for index in 0..layout.len() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut grad = good.clone();
            grad[index] = bad;
            assert_eq!(refuse(&mut kept, &grad), Some(EncodeError::NonFiniteInput { index }));
            assert_eq!(kept.words(), before, "coordinate {index}");
        }
    }
    // Too large for bf16, in the groups of the biases alone.
    for index in (140..150).chain(198..206) {
        let mut grad = good.clone();
        grad[index] = f32::MAX;
        assert_eq!(refuse(&mut kept, &grad), Some(EncodeError::ValueOverflow { index }));
        assert_eq!(kept.words(), before);
    }
    // The third group finds no momentum.
    let mut lacking = Kept { momentum: None, ..kept.clone() };
    assert_eq!(refuse(&mut lacking, &good), Some(EncodeError::MemoryIncomplete));
    assert_eq!(lacking.residual, kept.residual);
    // And the step after all of this is as if nothing had been tried.
    let mut fresh = messages::kept(&groups, layout.len()).unwrap();
    encode(&groups, 0, &layout, Grad::F32(&good), Some(&mut fresh)).unwrap();
    let frames = |kept: &mut Kept| encode(&groups, 1, &layout, Grad::F32(&good), Some(kept));
    assert_eq!(frames(&mut kept), frames(&mut fresh));
    assert_eq!(kept, fresh);
}

#[test]
fn groups_keep_apart_what_they_keep() {
    let layout = four();
    let (layout, groups) = (layout.as_ref(), Plan::of_rules(&rules(FOUR), &layout.as_ref()));
    let grad = Input::Normal(5).values(layout.len());
    let mut memory = Memory::for_plan(&groups, &layout).unwrap();
    assert_eq!((memory.len(), memory.momentum().map(<[f32]>::len)), (layout.len(), Some(layout.len())));
    let input = StepInput { key: key(0), layout: &layout, units: groups.units(), grad: Grad::F32(&grad) };
    Encoder::new().encode_plan(&groups, &input, Some(&mut memory)).unwrap();
    let has = |values: &[f32], range: std::ops::Range<usize>| values[range].iter().any(|&value| value != 0.0);
    let (residual, momentum) = (memory.residual(), memory.momentum().unwrap());
    let kept = [0..100, 100..140, 140..150, 150..198, 198..206, 206..221].map(|range| has(residual, range));
    assert_eq!(kept, [true, true, false, true, false, true]);
    assert_eq!(
        (has(momentum, 0..150), has(momentum, 150..198), has(momentum, 198..221)),
        (false, true, false)
    );
    assert!(Memory::for_plan(&Plan::of_rules(&rules("a=none; bf16"), &layout), &layout).is_none());
}

#[test]
fn the_memory_of_groups_is_saved_and_moves_to_another_layout_by_name() {
    let layout = four();
    let (layout, rules) = (layout.as_ref(), rules(&FOUR.replace("efsign", "sidco:density=0.1,unit=tensor")));
    let groups = Plan::of_rules(&rules, &layout);
    let grad = Input::Normal(7).values(layout.len());
    let mut memory = Memory::for_plan(&groups, &layout).unwrap();
    assert_eq!(memory.states().len(), groups.units().len());
    let mut encoder = Encoder::new();
    let input = StepInput { key: key(0), layout: &layout, units: groups.units(), grad: Grad::F32(&grad) };
    encoder.encode_plan(&groups, &input, Some(&mut memory)).unwrap();
    let mut saved = vec![0; memory.saved_bytes().unwrap()];
    memory.save(&layout, &mut saved).unwrap();
    let mut loaded = Memory::for_plan(&groups, &layout).unwrap();
    loaded.load(&layout, &saved).unwrap();
    let mut step = |memory: &mut Memory<'_>| {
        let grad = Grad::F32(&grad);
        let input = StepInput { key: key(1), layout: &layout, units: groups.units(), grad };
        encoder.encode_plan(&groups, &input, Some(memory)).map(<[u8]>::to_vec)
    };
    assert_eq!(step(&mut loaded), step(&mut memory));

    let new = self::layout(&[("tail", &[15]), ("head", &[6, 8]), ("embed", &[20, 5])]);
    let new = new.as_ref();
    let mut moved = Memory::for_plan(&Plan::of_rules(&rules, &new), &new).unwrap();
    let report = memory.remap(&layout, &new, &mut moved, |_| ());
    assert_eq!((report.coordinates.kept, report.states.kept), (163, 3));
    let (old, new) = (memory.residual(), moved.residual());
    assert_eq!((&new[..15], &new[15..63], &new[63..]), (&old[206..], &old[150..198], &old[..100]));
    assert_eq!(moved.momentum().unwrap()[15..63], memory.momentum().unwrap()[150..198]);
    assert_eq!(moved.states()[0], memory.states()[5]);
}

/// Frames of [`FOUR`], one for each group.
fn four_frames(text: &str, step: u64) -> Vec<Vec<u8>> {
    let layout = four();
    let (layout, groups) = (layout.as_ref(), Plan::of_rules(&rules(text), &layout.as_ref()));
    let grad = Input::Normal(6).values(layout.len());
    let mut memory = Memory::for_plan(&groups, &layout);
    let mut encoder = Encoder::new();
    let input = StepInput { key: key(step), layout: &layout, units: groups.units(), grad: Grad::F32(&grad) };
    let all = encoder.encode_plan(&groups, &input, memory.as_mut()).unwrap().to_vec();
    let mut rest = &all[..];
    let mut next = || {
        let (frame, others) = rest.split_at(Header::parse(rest).unwrap().frame_bytes() as usize);
        rest = others;
        frame.to_vec()
    };
    let frames: Vec<_> = groups.groups().iter().map(|_| next()).collect();
    assert_eq!(frames.concat(), all);
    frames
}

fn refused(bytes: &[u8], limits: &Limits) -> GroupsDecodeError {
    let layout = four();
    let groups = Plan::of_rules(&rules(FOUR), &layout.as_ref());
    let result =
        Decoder::new().parse_plan(&groups, groups.units(), bytes, &layout.as_ref(), limits).map(|_| ());
    result.expect_err("what is wrong is refused")
}

#[test]
fn frames_that_are_cut_flipped_or_followed_by_more_are_refused() {
    let frames = four_frames(FOUR, 3).concat();
    for len in 0..frames.len() {
        let error = refused(&frames[..len], &no_limits());
        assert!(
            matches!(error, GroupsDecodeError::Frame { error: DecodeError::Truncated { .. }, .. }),
            "{len}: {error}"
        );
    }
    for bit in 0..8 * frames.len() {
        let mut flipped = frames.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        refused(&flipped, &no_limits());
    }
    let longer = [&frames[..], &[0]].concat();
    assert_eq!(refused(&longer, &no_limits()), GroupsDecodeError::TrailingBytes);
    assert_eq!(refused(&frames.repeat(2), &no_limits()), GroupsDecodeError::TrailingBytes);
}

/// A frame with its checksum made right.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c(&[&frame[..20], &frame[24..]].concat());
    frame[20..24].copy_from_slice(&checksum.to_le_bytes());
    frame
}

#[test]
fn frames_made_to_look_right_are_refused_or_stay_within_their_group() {
    let (layout, frames) = (four(), four_frames(FOUR, 3));
    let (layout, groups) = (layout.as_ref(), Plan::of_rules(&rules(FOUR), &layout.as_ref()));
    let (mut decoder, mut accepted) = (Decoder::new(), 0);
    for (group, frame) in frames.iter().enumerate() {
        for (at, change) in
            (0..frame.len()).flat_map(|at| [1, 2, 0x40, 0x80, 0xff].map(|change| (at, change)))
        {
            let mut changed = frames.clone();
            changed[group][at] ^= change;
            changed[group] = sealed(std::mem::take(&mut changed[group]));
            let bytes = changed.concat();
            let Ok(frames) =
                decoder.parse_plan(&groups, groups.units(), &bytes, &layout, &Limits::for_layout(&layout))
            else {
                continue;
            };
            accepted += 1;
            assert_eq!(frames.frames().len(), groups.groups().len());
            for (group, frame) in frames.frames() {
                let units = frame.units().map(|unit| (unit.id(), unit.range()));
                assert!(units.eq(group.units.iter().map(|unit| (unit.id, unit.range()))));
            }
            let mut sum = vec![0.0; layout.len()];
            frames.add_scaled_to(1.0, &mut sum);
            assert!(sum.iter().all(|value| value.is_finite()));
        }
    }
    assert!(accepted > 0, "values may be others");
}

#[test]
fn frames_of_other_groups_codecs_units_steps_and_divisors_are_refused() {
    let frames = four_frames(FOUR, 3);
    let with = |group: usize, frame: &[u8]| {
        let mut frames = frames.clone();
        frames[group] = frame.to_vec();
        refused(&frames.concat(), &no_limits())
    };
    let missing = DecodeError::Truncated { needed: 2, actual: 0 };
    assert_eq!(
        refused(&frames[..3].concat(), &no_limits()),
        GroupsDecodeError::Frame { rule: 3, error: missing }
    );
    let error = with(1, &frames[0]);
    assert!(matches!(error, GroupsDecodeError::Codec { rule: 1, .. }), "{error}");
    assert_eq!(error.to_string(), "frame of rule 2: codec 2 instead of 3");
    let others = four_frames(&FOUR.replace("embed*=topk:density=0.1", "embed*=topk:density=0.3"), 3);
    let layout = four();
    let accepted = [&frames[0], &others[1], &frames[2], &frames[3]].map(|frame| &frame[..]).concat();
    messages_decoded(&Plan::of_rules(&rules(FOUR), &layout.as_ref()), &accepted, &layout.as_ref());
    let others = four_frames(&FOUR.replace("embed*", "fc.weight"), 3);
    assert_eq!(with(1, &others[1]), GroupsDecodeError::Units { rule: 1 });
    let later = four_frames(FOUR, 4);
    assert_eq!(with(2, &later[2]), GroupsDecodeError::Mixed { rule: 2 });
    let mut by_senders = frames[3].clone();
    by_senders[4] |= 1;
    assert_eq!(with(3, &sealed(by_senders)), GroupsDecodeError::Mixed { rule: 3 });
    let codes = [
        GroupsDecodeError::Frame { rule: 0, error: DecodeError::BadMagic }.code(),
        error.code(),
        GroupsDecodeError::Units { rule: 1 }.code(),
        GroupsDecodeError::Mixed { rule: 1 }.code(),
        GroupsDecodeError::TrailingBytes.code(),
    ];
    assert_eq!(codes, [101, 151, 152, 153, 154]);
}

#[test]
fn limits_hold_for_the_frames_of_all_groups_together() {
    let (layout, frames) = (four(), four_frames(FOUR, 3));
    let (layout, groups) = (layout.as_ref(), Plan::of_rules(&rules(FOUR), &layout.as_ref()));
    let headers: Vec<Header> = frames.iter().map(|frame| Header::parse(frame).unwrap()).collect();
    let sum = |of: &dyn Fn(&Header) -> usize| headers.iter().map(of).sum::<usize>();
    let (body_bytes, units) =
        (sum(&|header| header.body_bytes as usize), sum(&|header| usize::from(header.unit_count)));
    let words = |frame: &Vec<u8>| gradwire::format::frame_scratch_len(frame, &layout, &no_limits()).unwrap();
    let words: usize = frames.iter().map(words).sum();
    let entries = |frame: &Vec<u8>| {
        let outline = Outline::read(frame, &no_limits()).unwrap();
        outline.units().filter(|unit| unit.kind == "sparse").map(|unit| unit.held).sum::<usize>()
    };
    let exact = Limits {
        max_elements: layout.len(),
        max_body_bytes: body_bytes,
        max_entries: frames.iter().map(entries).sum(),
        max_units: units,
        max_scratch_words: words,
        ..no_limits()
    };
    let all = frames.concat();
    assert!(Decoder::new().parse_plan(&groups, groups.units(), &all, &layout, &exact).is_ok());
    for (limits, limit) in [
        (Limits { max_elements: exact.max_elements - 1, ..exact }, Limit::Elements),
        (Limits { max_body_bytes: exact.max_body_bytes - 1, ..exact }, Limit::BodyBytes),
        (Limits { max_entries: exact.max_entries - 1, ..exact }, Limit::Entries),
        (Limits { max_units: exact.max_units - 1, ..exact }, Limit::Units),
        (Limits { max_scratch_words: exact.max_scratch_words - 1, ..exact }, Limit::ScratchWords),
    ] {
        let GroupsDecodeError::Frame { error, .. } = refused(&all, &limits) else {
            panic!("{limit:?}: another error")
        };
        assert_eq!(error, DecodeError::LimitExceeded(limit));
    }
}

#[test]
#[should_panic(expected = "plan and layout differ")]
fn groups_are_for_one_layout() {
    let groups = Plan::of_rules(&rules("topk"), &LayoutRef::flat(4));
    let _ = encode(&groups, 0, &LayoutRef::flat(5), Grad::F32(&[0.0; 5]), None);
}

#[test]
fn golden_messages_are_encoded_to_the_same_bytes_and_decode_to_the_stated_values() {
    for (message, stated) in messages::all() {
        let (bytes, kept) = message.encode().unwrap_or_else(|error| panic!("{}: {error}", message.name));
        assert!(bytes == message.bytes(), "{}: other bytes", message.name);
        let naive = message.encode_naively().unwrap();
        assert!(naive.frame == bytes && naive.kept == kept, "{}: the naive reference differs", message.name);
        assert_eq!(message.outcome(&bytes, kept.as_ref()), stated, "{}", message.name);
    }
}

#[test]
fn every_golden_message_has_its_line() {
    let names: Vec<_> = messages::all().into_iter().map(|(Message { name, .. }, _)| name).collect();
    let files = std::fs::read_dir(manifest::folder("messages")).expect("the folder can be listed");
    let paths = files.map(|file| file.expect("the folder can be listed").path());
    let mut found: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "bin"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(found, sorted);
}

#[test]
fn every_frame_of_a_golden_message_decodes_alone() {
    for (message, _) in messages::all() {
        let (layout, bytes) = (message.layout(), message.bytes());
        let (mut rest, mut sum) = (&bytes[..], vec![0.0; layout.len()]);
        while !rest.is_empty() {
            let (frame, behind) = rest.split_at(Header::parse(rest).unwrap().frame_bytes() as usize);
            let values = run::decode(frame, &layout.as_ref()).unwrap();
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            rest = behind;
        }
        let groups = Plan::of_rules(&message.rules, &layout.as_ref());
        assert_eq!(bits(&sum), bits(&messages_decoded(&groups, &bytes, &layout.as_ref())));
    }
}
