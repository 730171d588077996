//! Memories beside the step: saved, read by codecs, decayed, and moved to another layout.

use gradwire::{
    DecayError, Encoder, Grad, LayoutRef, Memory, MemoryView, SaveError, Source, Spec, StepKey, Unit,
    UnitState,
};
use gradwire_tests::inputs::Input;
use gradwire_tests::run::bits;

#[test]
fn a_buffer_that_is_too_small_is_named_with_both_sizes_and_stays_as_it_was() {
    let layout = LayoutRef::flat(3);
    let memory = Memory::new(vec![1.0; 3])
        .with_momentum(vec![2.0; 3])
        .with_states(vec![UnitState::default(); 2])
        .with_factors(vec![3.0; 5]);
    let needed = memory.saved_bytes().unwrap();
    assert_eq!(needed, 24 + 12 + 12 + (4 + 32) + (8 + 20));
    for actual in [0, 1, needed - 1] {
        let mut out = vec![0xa5; actual];
        let error = memory.save(&layout, &mut out).unwrap_err();
        assert_eq!(error, SaveError::BufferTooSmall { needed, actual });
        assert!(out.iter().all(|&byte| byte == 0xa5), "{actual} bytes were written to");
    }
    let error = memory.save(&layout, &mut []).unwrap_err();
    assert_eq!(error.to_string(), "buffer holds 0 bytes, the saved memory needs 112");
    assert_eq!(memory.save(&layout, &mut vec![0; needed + 1]), Ok(needed));
}

#[test]
fn a_view_holds_the_momentum_of_its_part_and_all_states_and_factors() {
    let state = |word| UnitState::from_words([word; 4]);
    let memory = Memory::new(vec![1.0, 2.0, 3.0, 4.0])
        .with_momentum(vec![5.0, 6.0, 7.0, 8.0])
        .with_states(vec![state(1), state(2)])
        .with_factors(vec![9.0]);
    let view = memory.view(1..3);
    assert_eq!((view.residual, view.momentum), (&[2.0, 3.0][..], Some(&[6.0, 7.0][..])));
    assert_eq!((view.states, view.factors), (&[state(1), state(2)][..], &[9.0][..]));
    let plain = Memory::new(vec![1.0; 2]);
    let view = plain.view(0..2);
    assert!(view.momentum.is_none() && view.states.is_empty() && view.factors.is_empty());
}

#[test]
#[should_panic(expected = "residual and momentum differ in length")]
fn a_view_whose_momentum_has_another_length_is_refused() {
    let _ = MemoryView::new(&[0.0; 3]).with_momentum(&[0.0; 2]);
}

#[test]
fn decay_multiplies_the_residual_once_and_leaves_the_rest() {
    for (input, factor) in
        [(Input::Heavy(1), 0.9), (Input::Denormal(2), 0.3), (Input::Normal(3), f32::MIN_POSITIVE)]
    {
        let values = input.values(100);
        let state = UnitState::from_words([1, 2, 3, 4]);
        let mut memory = Memory::new(values.clone())
            .with_momentum(values.clone())
            .with_states(vec![state])
            .with_factors(vec![0.5]);
        assert_eq!(memory.decay(factor), Ok(()));
        let expected: Vec<f32> = values.iter().map(|kept| kept * factor).collect();
        assert_eq!(bits(memory.residual()), bits(&expected));
        assert_eq!(bits(memory.momentum().unwrap()), bits(&values));
        assert_eq!((memory.states(), memory.factors()), (&[state][..], &[0.5][..]));
        memory.decay(1.0).unwrap();
        assert_eq!(bits(memory.residual()), bits(&expected), "1 changes nothing");
        memory.decay(0.0).unwrap();
        assert_eq!(bits(memory.residual()), [0; 100], "0 starts anew, without negative zeros");
    }
}

#[test]
fn decay_refuses_what_is_no_fraction_and_changes_nothing() {
    let values = Input::Heavy(1).values(50);
    let mut memory = Memory::new(values.clone());
    let above = f32::from_bits(1.0f32.to_bits() + 1);
    for factor in [above, 2.0, f32::INFINITY, -f32::MIN_POSITIVE, -1.0, f32::NEG_INFINITY, f32::NAN] {
        assert_eq!(memory.decay(factor), Err(DecayError), "{factor}");
        assert_eq!(bits(memory.residual()), bits(&values), "{factor}");
    }
    assert_eq!(memory.decay(-0.0), Ok(()), "zero, whatever its sign");
    assert_eq!(bits(memory.residual()), [0; 50]);
}

/// What an encode makes of a memory does not depend on how it came to its residual: the bound that it carries along is one.
#[test]
fn encodes_behind_a_decay_are_those_of_a_fresh_memory() {
    let (n, layout) = (300, LayoutRef::flat(300));
    let encode = |spec: &Spec, step: u64, grad: &[f32], memory: &mut Memory<'_>| {
        let key = StepKey { seed: 1, step, source: Source::Rank(0) };
        let mut encoder = Encoder::new();
        let frame =
            encoder.encode(&spec.codec, key, &layout, &[Unit::whole(n)], Grad::F32(grad), Some(memory));
        frame.map(<[u8]>::to_vec)
    };
    for spelling in ["topk:density=0.01", "qsgd:rounding=nearest", "bf16:memory=ef"] {
        let spec = Spec::parse(spelling).unwrap();
        for factor in [1.0, 0.7, 0.001, 0.0] {
            let mut memory = Memory::for_spec(&spec, &layout).unwrap();
            let large: Vec<f32> = Input::Normal(1).values(n).iter().map(|value| value * 1e36).collect();
            encode(&spec, 0, &large, &mut memory).unwrap();
            memory.decay(factor).unwrap();
            let mut fresh = Memory::new(memory.residual().to_vec());
            // Sums of which some overflow, unless nothing was kept.
            let largest: Vec<f32> = fresh.residual().iter().map(|kept| f32::MAX.copysign(*kept)).collect();
            let sums = encode(&spec, 1, &largest, &mut memory);
            assert_eq!(sums, encode(&spec, 1, &largest, &mut fresh), "{spelling} {factor}");
            let grad = Input::Heavy(2).values(n);
            let frame = encode(&spec, 2, &grad, &mut memory).unwrap();
            assert_eq!(frame, encode(&spec, 2, &grad, &mut fresh).unwrap(), "{spelling} {factor}");
            assert_eq!(bits(memory.residual()), bits(fresh.residual()), "{spelling} {factor}");
        }
    }
}
