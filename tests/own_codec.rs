//! Codecs of other crates with a spelling: registered once, they are read, printed, planned, encoded and
//! decoded like every other, and each thing that can go wrong has its error.

use gradwire::codecs::DenseSum;
use gradwire::experiments::{
    BodyOutline, EncodeBody, Experiment, Keys, OwnCodec, ParseBody, Refused, RegisterError, UnitBody,
    UnitSource,
};
use gradwire::format::CodecId;
use gradwire::plan::{Plan, PlanError};
use gradwire::registry::{Law, codecs};
use gradwire::rules::Rules;
use gradwire::state::MemoryChoice;
use gradwire::{
    Codec, DecodeError, Decoder, Density, EncodeError, Encoder, Gather, Grad, Layout, Limits, Memory,
    Scratch, Source, Spec, SpecError, StepInput, StepKey,
};
use gradwire_tests::run::bits;
use std::sync::Once;

/// The first coordinates of a unit as f32, as many as the density says, each rounded up by one draw in two
/// to a multiple of `step`.
#[derive(Debug)]
struct Head {
    step: f32,
    /// Does not send coordinates above this.
    most: f32,
}

impl Head {
    fn read<'k>(keys: &Keys<'k>) -> Result<Self, SpecError<'k>> {
        let finite = |value: &f32| value.is_finite() && *value > 0.0;
        let step = keys
            .number("step", "a number, not negative", |step: &f32| step.is_finite() && *step >= 0.0)?
            .ok_or(SpecError::MissingKey("step"))?;
        Ok(Self { step, most: keys.number("most", "a number above 0", finite)?.unwrap_or(f32::MAX) })
    }
}

impl ParseBody for Head {
    fn experiment(&self) -> Experiment {
        Experiment::new(0xf2).unwrap()
    }

    fn name(&self) -> &'static str {
        "head"
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        let Some(count) = body.bytes.first_chunk() else {
            return Ok(BodyOutline { bytes: 4, ..Default::default() });
        };
        let held = u32::from_le_bytes(*count) as usize;
        Ok(BodyOutline { bytes: held.saturating_mul(4).saturating_add(4), held, scratch_words: 0 })
    }

    fn visit(&self, body: &UnitBody<'_>, _: &[u32], f: &mut dyn FnMut(usize, f32)) {
        let values = body.bytes[4..].chunks_exact(4);
        values.enumerate().for_each(|(at, bytes)| f(at, f32::from_le_bytes(bytes.try_into().unwrap())));
    }
}

impl EncodeBody for Head {
    fn law(&self) -> Law {
        Law::Rounded
    }

    fn overflow_bound(&self) -> f32 {
        1e30
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        len.checked_mul(4)?.checked_add(4)
    }

    fn encode_body(
        &self,
        source: &UnitSource<'_>,
        values: &[f32],
        _: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        let held = source.density.expect("it was registered with a density").count(values.len());
        out[..4].copy_from_slice(&(held as u32).to_le_bytes());
        let draws = source.draws();
        for (at, (value, bytes)) in values[..held].iter().zip(out[4..].chunks_exact_mut(4)).enumerate() {
            if value.abs() > self.most {
                return Err(Refused::at(at, "more than it sends"));
            }
            let up = if draws.u64_at(at as u64) % 2 == 1 { self.step } else { 0.0 };
            bytes.copy_from_slice(&(value + up).to_le_bytes());
        }
        Ok(4 + 4 * held)
    }
}

fn head(name: &str) -> OwnCodec {
    let codec = OwnCodec::gather(name, "the first coordinates", Head::read).keys("step=0 most");
    codec.density(Density::new(0.5).unwrap())
}

/// Registers `x:head` and `x:total`, once for all tests of this process.
fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        head("head").examples(&["x:head", "x:head:density=0.25,step=2"]).register().unwrap();
        let total = OwnCodec::linear("total", "plain sums", Law::NotKept, |_| Ok(DenseSum));
        total.examples(&["x:total"]).register().unwrap();
    });
}

fn spec(spelling: &str) -> Spec {
    register();
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"))
}

fn layout() -> Layout {
    Layout::packed([("a", vec![8]), ("b", vec![4]), ("c", vec![4])]).unwrap()
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 7, step, source: Source::Rank(1) }
}

#[test]
fn spellings_print_as_they_were_read_and_equal_ones_are_one_codec() {
    for spelling in [
        "x:head:density=0.5",
        "x:head:density=0.25,step=2",
        "x:head:density=0.5,step=2,most=9",
        "x:head:density=0.5,warmup=2,memory=none,unit=tensor,dense_below=5,dense_1d=true",
        "x:total",
        "x:total:unit=tensor",
    ] {
        assert_eq!(spec(spelling).to_string(), spelling);
    }
    assert_eq!(spec("x:head"), spec("x:head:density=0.5,memory=ef"));
    assert_eq!(spec("x:head:most=9,step=2"), spec("x:head:step=2,most=9"));
    assert_ne!(spec("x:head:step=2"), spec("x:head"));
    assert_ne!(spec("x:head"), spec("x:head:density=0.25"));
    let spec = spec("x:head:density=0.125,warmup=4,step=2");
    assert!(spec.codec_in(0).density().unwrap().fraction() > 0.5, "the warm-up begins high");
    assert_eq!((spec.codec_in(9), spec.memory), (spec.codec, MemoryChoice::ErrorFeedback));
    assert_eq!(spec.codec.target_count(&[gradwire::Unit::whole(16)]), Some(2));
}

#[test]
fn it_stands_in_every_list_of_names() {
    register();
    assert!(["x:head", "x:total", "topk"].iter().all(|name| Spec::names().contains(name)));
    let listed: Vec<_> = codecs().filter(|entry| entry.names[0].0.starts_with("x:")).collect();
    let [head, total] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((head.kind, total.kind), ("gather", "linear"));
    assert_eq!(head.keys, "density warmup step most memory decay unit dense_below dense_1d");
    assert_eq!(total.keys, "memory decay unit dense_below dense_1d");
    assert_eq!((head.defaults, total.defaults), ("density=0.5,step=0", ""));
    assert_eq!((head.summary, head.examples.len()), ("the first coordinates", 2));
    assert_eq!(CodecId::new(0xf2).name(), Some("x:head"));
    assert_eq!(CodecId::new(0xf1).name(), None);
    let error = Spec::parse("x:heat").unwrap_err().to_string();
    assert!(error.starts_with("unknown codec 'x:heat'") && error.contains("x:head"), "{error}");
}

#[test]
fn bad_spellings_name_the_key_and_what_is_allowed() {
    register();
    for (spelling, told) in [
        ("x:head:most=0", "most=0: expected a number above 0"),
        ("x:head:density=2", "density=2: expected a fraction from 1e-9 to 1"),
        ("x:head:step=1,step=1", "key 'step' is given twice"),
        ("x:head:max_packet_bytes=99", "x:head has no key 'max_packet_bytes'"),
        ("x:total:density=0.5", "x:total has no key 'density'"),
        ("x:total:memory=ef", "memory=ef: this codec says that it keeps nothing"),
        ("x:head:memory=momentum", "memory=momentum: it belongs to dgc"),
        ("x:", "unknown codec 'x:'"),
        ("x", "unknown codec 'x'"),
        ("head", "unknown codec 'head'"),
    ] {
        let error = Spec::parse(spelling).unwrap_err().to_string();
        assert!(error.starts_with(told), "{spelling}: {error}");
    }
}

#[test]
fn what_cannot_be_registered_says_why_and_is_not_known() {
    register();
    let other = |name: &str, keys: &str, examples: &[&str]| {
        let codec = OwnCodec::linear(name, "", Law::NotKept, |keys| {
            keys.number("n", "a whole number", |_: &u32| true).map(|_| DenseSum)
        });
        codec.keys(keys).examples(examples).register().unwrap_err()
    };
    for name in ["", "Total", "a:b", "a,b", "ü", "a-name-that-is-longer-than-32-chars"] {
        assert_eq!(other(name, "", &["x:total"]), RegisterError::Name(name.to_owned()));
    }
    assert_eq!(other("total", "", &["x:total"]), RegisterError::NameTaken("x:total".to_owned()));
    for keys in ["n n", "unit", "n  m", "density", "warmup"] {
        let error = other("new", keys, &["x:new"]);
        assert!(matches!(error, RegisterError::Key(_)), "{keys}");
        assert!(
            error.to_string().ends_with("or one of gradwire's own, such as memory or density"),
            "{error}"
        );
    }
    assert_eq!(other("new", "n", &[]), RegisterError::NoExample("x:new".to_owned()));
    for (example, why) in [
        ("x:new:n=a", "n=a: expected a whole number"),
        ("x:newer", "expected a spelling of 'x:new'"),
        ("new", "expected a spelling of 'x:new'"),
    ] {
        let (spelling, why) = (example.to_owned(), why.to_owned());
        assert_eq!(other("new", "n", &[example]), RegisterError::Example { spelling, why });
    }
    let taken = head("other").examples(&["x:other"]).register().unwrap_err();
    assert_eq!(taken.to_string(), "number 0xf2: codec 'x:head' has it");
    assert!(Spec::parse("x:new").is_err() && Spec::parse("x:other").is_err());
}

#[test]
fn frames_add_up_and_every_reader_of_the_process_knows_them() {
    let (spec, layout) = (spec("x:head:density=0.25,dense_below=5,unit=tensor"), layout());
    let layout = layout.as_ref();
    let units: Vec<_> = spec.units.units(&layout).collect();
    let mut memory = Memory::for_spec(&spec, &layout).expect("error feedback by default");
    let values: Vec<f32> = (0..16).map(|at| at as f32 + 0.5).collect();
    let mut encoder = Encoder::new();
    let input = StepInput { key: key(3), layout: &layout, units: &units, grad: Grad::F32(&values) };
    let frame = encoder.encode(&spec.codec, &input, Some(&mut memory));
    let frame = frame.unwrap().to_vec();
    let (mut decoder, mut sum) = (Decoder::new(), [0.0; 16]);
    let parsed = decoder.parse(&frame, &layout, &Limits::for_layout(&layout)).unwrap();
    assert_eq!((parsed.header().codec.name(), parsed.step()), (Some("x:head"), 3));
    parsed.add_scaled_to(1.0, &mut sum);
    // Two of the eight coordinates of `a`, and the small tensors whole.
    assert_eq!(sum[..8], [0.5, 1.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let total: Vec<f32> = sum.iter().zip(memory.residual()).map(|(sent, kept)| sent + kept).collect();
    assert_eq!(bits(&total), bits(&values));
    // Every byte is still checked.
    for at in 0..frame.len() {
        let mut damaged = frame.clone();
        damaged[at] ^= 0x10;
        assert!(Decoder::new().parse(&damaged, &layout, &Limits::for_layout(&layout)).is_err(), "{at}");
    }
    let mut unknown = frame;
    unknown[3] = 0xf1;
    let refused = Decoder::new().parse(&unknown, &layout, &Limits::for_layout(&layout)).unwrap_err();
    assert_eq!(refused, DecodeError::UnknownCodec(0xf1));
}

#[test]
fn an_encode_that_is_refused_names_the_coordinate_and_changes_nothing() {
    let layout = layout();
    let layout = layout.as_ref();
    for (spelling, index, value, error) in [
        (
            "x:head:density=1,most=9,unit=tensor",
            9,
            10.0,
            EncodeError::Experiment { unit: 1, index: 9, why: "more than it sends" },
        ),
        ("x:head:density=1", 13, 2e30, EncodeError::ValueOverflow { index: 13 }),
        ("x:head:density=1", 14, f32::NAN, EncodeError::NonFiniteInput { index: 14 }),
    ] {
        let spec = spec(spelling);
        let mut memory = Memory::for_spec(&spec, &layout).unwrap();
        memory.residual_mut().fill(0.25);
        let mut grad = [1.0; 16];
        grad[index] = value;
        let units: Vec<_> = spec.units.units(&layout).collect();
        let mut encoder = Encoder::new();
        let input = StepInput { key: key(0), layout: &layout, units: &units, grad: Grad::F32(&grad) };
        let encoded = encoder.encode(&spec.codec, &input, Some(&mut memory));
        assert_eq!((encoded.err(), memory.residual()), (Some(error), &[0.25; 16][..]), "{spelling}");
    }
}

/// The frames of both groups, or the error, and the memory after it.
fn by_rules(rules: &str, grad: &[f32; 16]) -> (Result<Vec<u8>, EncodeError>, Vec<f32>) {
    register();
    let (rules, layout) = (Rules::parse(rules).unwrap(), layout());
    let layout = layout.as_ref();
    let plan = Plan::of_rules(&rules, &layout);
    let mut memory = Memory::for_plan(&plan, &layout).unwrap();
    memory.residual_mut().fill(0.25);
    let step = StepInput { key: key(5), layout: &layout, units: plan.units(), grad: Grad::F32(grad) };
    let mut encoder = Encoder::new();
    let encoded = encoder.encode_plan(&plan, &step, Some(&mut memory)).map(<[u8]>::to_vec);
    if let Ok(bytes) = &encoded {
        let (mut decoder, mut total) = (Decoder::new(), memory.residual().to_vec());
        let limits = Limits::for_layout(&layout);
        let frames = decoder.parse_plan(&plan, plan.units(), bytes, &layout, &limits).unwrap();
        assert_eq!(frames.frames().len(), plan.groups().len());
        frames.add_scaled_to(1.0, &mut total);
        let p: Vec<f32> = grad.iter().map(|value| 0.25 + value).collect();
        assert_eq!(bits(&total), bits(&p), "sent and kept add up");
    }
    (encoded, memory.residual().to_vec())
}

#[test]
fn rules_send_all_groups_or_none() {
    let grad: [f32; 16] = std::array::from_fn(|at| at as f32);
    let two = "a=x:head:most=9;b=topk:density=0.5;x:head:density=0.25";
    assert!(by_rules(two, &grad).0.is_ok());
    // Before, between and after groups of this crate's codecs; the first, or the last, is refused.
    for rules in [
        "a=x:head:most=2,density=1;b=topk:density=0.5;x:head",
        "a=topk:density=0.5;b=x:head:density=1,most=9;none:memory=none",
        "a=x:head;b=topk:density=0.5;x:head:most=1,density=1",
    ] {
        let (refused, memory) = by_rules(rules, &grad);
        assert!(matches!(refused, Err(EncodeError::Experiment { .. })), "{rules}: {refused:?}");
        assert_eq!(memory, [0.25; 16], "{rules}");
    }
    let mut bad = grad;
    bad[9] = f32::INFINITY;
    let (refused, memory) = by_rules("a=x:head;b=topk:density=0.5;x:head", &bad);
    assert_eq!((refused, memory), (Err(EncodeError::NonFiniteInput { index: 9 }), vec![0.25; 16]));
    // The bytes are those of each group alone.
    let (alone, _) = by_rules("x:head", &grad);
    let layout = layout();
    let plan = Plan::of(&spec("x:head"), &layout.as_ref());
    let mut encoder = Encoder::new();
    let mut memory = Memory::new(vec![0.25; 16]);
    let (codec, units) = (plan.groups()[0].codec(), plan.units());
    let input = StepInput { key: key(5), layout: &layout.as_ref(), units, grad: Grad::F32(&grad) };
    let frame = encoder.encode(codec, &input, Some(&mut memory)).unwrap();
    assert_eq!(alone.unwrap(), frame);
}

#[test]
fn the_density_changes_for_all_units_between_steps_but_not_for_each() {
    let layout = layout();
    let layout = layout.as_ref();
    let mut plan = Plan::of(&spec("x:head:density=1,unit=tensor,memory=none"), &layout);
    let held = |plan: &Plan| {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let step =
            StepInput { key: key(0), layout: &layout, units: plan.units(), grad: Grad::F32(&[1.0; 16]) };
        let bytes = encoder.encode_plan(plan, &step, None).unwrap().to_vec();
        let frame = decoder.parse(&bytes, &layout, &Limits::for_layout(&layout)).unwrap();
        frame.units().map(|unit| unit.info().held).sum::<usize>()
    };
    assert_eq!(held(&plan), 16);
    plan.set_density(Density::new(0.25).unwrap());
    assert_eq!(held(&plan), 4);
    let refused = plan.set_densities(&[Density::new(0.5).unwrap(); 3]).unwrap_err();
    assert!(matches!(refused, PlanError::Conflict { codec: "x:head", .. }), "{refused}");
    assert_eq!(held(&plan), 4);
}

#[test]
fn its_draws_are_its_own() {
    let (one, layout) = (key(4), layout());
    let unit = gradwire::Unit::whole(16);
    let own = one.experiment(unit.id);
    assert_ne!(own.block(0), one.stream(unit.id).block(0));
    assert_ne!(own.block(0), StepKey { source: Source::Rank(2), ..one }.experiment(unit.id).block(0));
    // Values that a step of 1 rounds up are those of odd draws.
    let spec = spec("x:head:density=1,step=1,memory=none");
    let (mut encoder, mut decoder, mut sum) = (Encoder::new(), Decoder::new(), [0.0; 16]);
    let layout = layout.as_ref();
    let input = StepInput { key: one, layout: &layout, units: &[unit], grad: Grad::F32(&[0.0; 16]) };
    let frame = encoder.encode(&spec.codec, &input, None).unwrap();
    decoder.parse(frame, &layout, &Limits::for_layout(&layout)).unwrap().add_scaled_to(1.0, &mut sum);
    let drawn: Vec<f32> = (0..16).map(|at| (own.u64_at(at) % 2) as f32).collect();
    assert_eq!(sum[..], drawn[..]);
    assert!(drawn.contains(&0.0) && drawn.contains(&1.0));
}

#[test]
fn a_linear_one_has_rounds_and_no_frames() {
    let spec = spec("x:total");
    assert!(spec.codec.as_linear().is_some() && !spec.codec.capabilities().has_frames);
    let Codec::Linear(codec) = spec.codec else { panic!("{spec}") };
    assert_eq!(codec.rounds().held(12), 12);
    let layout = layout();
    let layout = layout.as_ref();
    let units = [gradwire::Unit::whole(16)];
    let mut encoder = Encoder::new();
    let input = StepInput { key: key(0), layout: &layout, units: &units, grad: Grad::F32(&[1.0; 16]) };
    let refused = encoder.encode(&spec.codec, &input, None);
    assert_eq!(refused.unwrap_err(), EncodeError::NoFrames);
    let error = Rules::parse("a=x:total; none").unwrap_err().to_string();
    assert!(error.contains("cannot be a rule"), "{error}");
    assert!(spec.codec.max_frame_bytes(&units).is_some());
}
