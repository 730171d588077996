//! Every codec of the list keeps the law that it states, on the examples that it gives.

use gradwire::registry::{CODECS, Law};
use gradwire::state::MemoryChoice;
use gradwire::{Codec, Decoder, Encoder, Grad, Layout, Limits, Memory, Source, Spec, StepKey};
use gradwire_tests::inputs::Input;
use gradwire_tests::run;

/// Two matrices and a vector.
fn layout() -> Layout {
    run::layout(&[vec![40, 30], vec![77], vec![9, 5, 8]])
}

/// What one step of a codec with error feedback did.
struct Step {
    /// fl(residual + gradient)
    p: Vec<f32>,
    sent: Vec<f32>,
    kept: Vec<f32>,
    /// What is kept once the frame was given back.
    given_back: Vec<f32>,
}

fn step(spec: &Spec, residual: &[f32], grad: &[f32]) -> Step {
    let layout = layout();
    let (layout, units) = (layout.as_ref(), spec.units.units(&layout.as_ref()).collect::<Vec<_>>());
    let key = StepKey { seed: 5, step: 6, source: Source::Rank(1) };
    let mut kept = residual.to_vec();
    let mut memory = Memory::new(&mut kept);
    let states = if spec.codec.capabilities().adapts { units.len() } else { 0 };
    memory = memory.with_states(vec![Default::default(); states]);
    let mut encoder = Encoder::new();
    let frame =
        encoder.encode(&spec.codec, key, &layout, &units, Grad::F32(grad), Some(&mut memory)).unwrap();
    let mut decoder = Decoder::new();
    let frame = decoder.parse(frame, &layout, &Limits::for_layout(&layout)).unwrap();
    let (mut sent, kept) = (vec![0.0; grad.len()], memory.residual().to_vec());
    frame.add_scaled_to(1.0, &mut sent);
    memory.give_back(&frame);
    let given_back = memory.residual().to_vec();
    let p = residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect();
    Step { p, sent, kept, given_back }
}

/// The examples of all codecs that have frames and plain error feedback.
fn examples(law: Law) -> Vec<Spec> {
    let specs = CODECS.iter().flat_map(|entry| entry.examples).map(|example| Spec::parse(example).unwrap());
    let has_law = |spec: &Spec| {
        let capabilities = spec.codec.capabilities();
        let is_framed = capabilities.has_frames && !matches!(spec.codec, Codec::Gossip(_));
        is_framed && capabilities.law == law && spec.memory == MemoryChoice::ErrorFeedback
    };
    specs.filter(has_law).collect()
}

fn inputs(n: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let tiny: Vec<f32> = Input::Normal(3).values(n).iter().map(|value| value * 1e-30).collect();
    let mut mixed = tiny.clone();
    mixed.iter_mut().step_by(7).for_each(|value| *value *= 1e32);
    vec![
        (Input::Normal(1).values(n), Input::Normal(2).values(n)),
        (vec![0.0; n], mixed),
        (tiny, Input::Normal(4).values(n)),
        (vec![0.0; n], vec![0.0; n]),
    ]
}

fn bits(values: &[f32]) -> Vec<u32> {
    // A −0.0 in a residual counts as 0.
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

#[test]
fn what_is_sent_and_kept_adds_up_exactly_where_that_is_the_law() {
    let specs = examples(Law::Exact);
    assert!(specs.len() >= 8, "{}", specs.len());
    for spec in specs {
        for (residual, grad) in inputs(layout().len()) {
            let Step { p, sent, kept, given_back } = step(&spec, &residual, &grad);
            let sum: Vec<f32> = sent.iter().zip(&kept).map(|(sent, kept)| sent + kept).collect();
            assert_eq!(bits(&sum), bits(&p), "{spec}");
            assert_eq!(bits(&given_back), bits(&p), "{spec}: given back");
        }
    }
}

#[test]
fn what_is_kept_is_the_rounded_difference_where_that_is_the_law() {
    for spec in examples(Law::Rounded) {
        for (residual, grad) in inputs(layout().len()) {
            let Step { p, sent, kept, given_back } = step(&spec, &residual, &grad);
            for i in 0..p.len() {
                assert_eq!(
                    (p[i] - sent[i] + 0.0).to_bits(),
                    (kept[i] + 0.0).to_bits(),
                    "{spec}: coordinate {i}"
                );
                let bound = (f64::from(p[i].abs()) + f64::from(sent[i].abs())) * 2f64.powi(-23);
                let error = (f64::from(given_back[i]) - f64::from(p[i])).abs();
                assert!(error <= bound, "{spec}: coordinate {i} comes back off by {error}");
            }
        }
    }
}

#[test]
fn every_example_is_printed_as_a_spelling_of_itself() {
    for example in CODECS.iter().flat_map(|entry| entry.examples) {
        let spec = Spec::parse(example).unwrap_or_else(|error| panic!("{example}: {error}"));
        assert_eq!(Spec::parse(&spec.to_string()).as_ref(), Ok(&spec), "{example}");
    }
}

#[test]
fn names_and_numbers_are_those_of_the_list() {
    for entry in CODECS {
        for (name, id) in entry.names {
            assert!(Spec::names().contains(name));
            assert!(id.is_none_or(|id| id.name() == Some(name)), "{name}");
        }
    }
}
