//! How much of a gradient is sent: the same as encoding and decoding say, and nothing changes.

use gradwire::registry::{CODECS, Law};
use gradwire::state::MemoryChoice;
use gradwire::{Codec, Grad, Source, Spec, StepInput, StepKey, Trial, Unit};
use gradwire_tests::inputs::Input;
use gradwire_tests::naive::gain::squares;
use gradwire_tests::run::{self, Kept};

const KEY: StepKey = StepKey { seed: 3, step: 4, source: Source::Rank(1) };

fn sum(residual: &[f32], grad: &[f32]) -> Vec<f32> {
    residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect()
}

/// All codecs of the list that make frames, with the memory that they ask for.
#[test]
fn a_trial_gives_the_frame_and_the_gain_of_the_encode_and_keeps_the_memory() {
    let layout = run::layout(&[vec![40, 30], vec![77], vec![9, 5, 8]]);
    let (layout, n) = (layout.as_ref(), 1637);
    let mut trial = Trial::new();
    let mut tried_codecs = 0;
    for example in CODECS.iter().flat_map(|entry| entry.examples) {
        let spec = Spec::parse(example).unwrap();
        if !spec.codec.capabilities().has_frames || matches!(spec.codec, Codec::Gossip(_)) {
            continue;
        }
        let units: Vec<Unit> = spec.units.units(&layout).collect();
        let grad = Input::Normal(8).values(n);
        let mut kept = Kept::new(&spec, n, &units);
        if let Some(kept) = &mut kept {
            kept.residual = Input::Heavy(9).values(n);
            kept.momentum.iter_mut().for_each(|momentum| *momentum = Input::Normal(10).values(n));
        }
        let before = kept.as_ref().map(Kept::words);
        let tried = {
            let memory = kept.as_mut().map(Kept::lend);
            let input = StepInput { key: KEY, layout: &layout, units: &units, grad: Grad::F32(&grad) };
            let tried = trial.encode(&spec.codec, &input, memory.as_ref());
            tried.map(|tried| (tried.frame.to_vec(), tried.gain)).unwrap()
        };
        assert_eq!(kept.as_ref().map(Kept::words), before, "{spec}");
        let mut memory = kept.as_mut().map(Kept::lend);
        let p_before = memory.as_ref().map(|memory| memory.residual().to_vec());
        let frame = run::encode_with(&spec.codec, KEY, &layout, &units, Grad::F32(&grad), memory.as_mut(), 0);
        assert_eq!(frame.as_ref(), Ok(&tried.0), "{spec}");
        let (mut sent, mut whole) = (0.0, 0.0);
        run::parse(&tried.0, &layout, &run::no_limits(), |frame| {
            for unit in frame.units() {
                let mut values = Vec::new();
                unit.for_each(|_, value| values.push(value));
                sent += squares(&values);
                let grad = &grad[unit.range()];
                let p = p_before.as_ref().map(|kept| sum(&kept[unit.range()], grad));
                whole += squares(&p.unwrap_or_else(|| grad.to_vec()));
            }
        })
        .unwrap();
        assert_eq!(tried.1.sent.to_bits(), f64::to_bits(sent), "{spec}");
        if spec.codec.capabilities().law == Law::Rounded {
            assert!((tried.1.whole / whole - 1.0).abs() < 1e-6, "{spec}");
        } else if spec.memory != MemoryChoice::Momentum {
            assert_eq!(tried.1.whole.to_bits(), whole.to_bits(), "{spec}");
        }
        tried_codecs += 1;
    }
    assert!(tried_codecs > 20, "{tried_codecs}");
}
