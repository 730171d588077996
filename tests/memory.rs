//! Memories beside the step: saved, read by codecs, decayed, and moved to another layout.

use gradwire::{LayoutRef, Memory, SaveError, UnitState};

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
