//! Memories beside the step: saved, read by codecs, decayed, and moved to another layout.

use gradwire::{LayoutRef, Memory, MemoryView, SaveError, UnitState};

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
