//! Memories beside the step: saved, read by codecs, decayed, and moved to another layout.

use gradwire::format::Field;
use gradwire::rounds::MemoryView;
use gradwire::state::UnitState;
use gradwire::state::{ArrayLen, DecayError, Keeper, Moved, Remapped, SaveError, StateLen};
use gradwire::{
    DecodeError, Encoder, Grad, Layout, LayoutRef, Memory, Source, Spec, StepInput, StepKey, TensorRef, Unit,
};
use gradwire_tests::golden::parse_states;
use gradwire_tests::inputs::{Input, Words};
use gradwire_tests::manifest::{self, Line, digest};
use gradwire_tests::naive::checksum::crc32c;
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

/// What an encode makes of a memory does not depend on how it came to its residual: the bound that it carries
/// along is one.
#[test]
fn encodes_behind_a_decay_or_a_move_are_those_of_a_fresh_memory() {
    let (n, layout) = (300, LayoutRef::flat(300));
    let encode = |spec: &Spec, step: u64, grad: &[f32], memory: &mut Memory<'_>| {
        let key = StepKey { seed: 1, step, source: Source::Rank(0) };
        let mut encoder = Encoder::new();
        let input = StepInput { key, layout: &layout, units: &[Unit::whole(n)], grad: Grad::F32(grad) };
        let frame = encoder.encode(&spec.codec, &input, Some(memory));
        frame.map(<[u8]>::to_vec)
    };
    for spelling in ["topk:density=0.01", "qsgd:rounding=nearest", "bf16:memory=ef"] {
        let spec = Spec::parse(spelling).unwrap();
        for factor in [1.0, 0.7, 0.001, 0.0] {
            let mut memory = Memory::for_spec(&spec, &layout).unwrap();
            let large: Vec<f32> = Input::Normal(1).values(n).iter().map(|value| value * 1e36).collect();
            encode(&spec, 0, &large, &mut memory).unwrap();
            memory.decay(factor).unwrap();
            memory = memory.remapped(&spec, Keeper::Worker, &layout, &layout).0;
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

/// A layout of tensors of these names and shapes.
fn layout(tensors: &[(&str, &[usize])]) -> Layout {
    Layout::packed(tensors.iter().map(|(name, shape)| (*name, shape.to_vec()))).unwrap()
}

fn states(words: &[u32]) -> Vec<UnitState> {
    words.iter().map(|&word| UnitState::from_words([word, 0, 0, 1])).collect()
}

fn moved(kept: usize, dropped: usize, added: usize) -> (usize, usize, usize) {
    (kept, dropped, added)
}

fn counts(moved: Moved) -> (usize, usize, usize) {
    (moved.kept, moved.dropped, moved.added)
}

#[test]
fn a_remapped_memory_follows_the_names_and_tells_what_has_no_place() {
    let old = layout(&[("conv", &[2, 2]), ("gone", &[3]), ("fc", &[2, 1]), ("bias", &[1])]);
    let new = layout(&[("bias", &[1]), ("fc", &[1, 2]), ("conv", &[2, 2]), ("fresh", &[2])]);
    let (old, new) = (old.as_ref(), new.as_ref());
    let mut residual = vec![1.0, -0.0, 3.0, 4.0, 3.0, 0.0, -4.0, 6.0, 8.0, 7.0];
    let mut momentum: Vec<f32> = residual.iter().map(|value| value * 10.0).collect();
    let from = Memory::new(&mut residual).with_momentum(&mut momentum);
    let (mut residual, mut momentum) = (vec![f32::NAN; 9], vec![f32::NAN; 9]);
    let mut into = Memory::new(&mut residual).with_momentum(&mut momentum);
    let mut dropped = Vec::new();
    let report = from.remap(&old, &new, &mut into, |tensor| dropped.push(tensor));
    assert_eq!(bits(into.residual()), bits(&[7.0, 0.0, 0.0, 1.0, -0.0, 3.0, 4.0, 0.0, 0.0]));
    assert_eq!(bits(into.momentum().unwrap()), bits(&[70.0, 0.0, 0.0, 10.0, -0.0, 30.0, 40.0, 0.0, 0.0]));
    let told: Vec<_> =
        dropped.iter().map(|t| (t.name, t.len, t.norm, t.momentum_norm, t.is_reshaped)).collect();
    assert_eq!(told, [("gone", 3, 5.0, 50.0, false), ("fc", 2, 10.0, 100.0, true)]);
    assert_eq!(counts(report.coordinates), moved(5, 5, 4));
    assert_eq!((counts(report.states), counts(report.factors)), (moved(0, 0, 0), moved(0, 0, 0)));
    assert_eq!((report.dropped_norm, report.dropped_momentum_norm), (125f64.sqrt(), 12_500f64.sqrt()));
    assert!(!report.keeps_all());
}

#[test]
fn tensors_of_one_name_move_in_their_order() {
    let old = layout(&[("", &[1]), ("w", &[1]), ("", &[1]), ("", &[2])]);
    let new = layout(&[("", &[1]), ("", &[1]), ("w", &[1]), ("", &[1, 2])]);
    let mut into = Memory::new(vec![9.0; 5]);
    let mut dropped = Vec::new();
    let (old, new) = (old.as_ref(), new.as_ref());
    let memory = Memory::new(vec![1.0, 2.0, 3.0, 4.0, 5.0]);
    let report = memory.remap(&old, &new, &mut into, |tensor| dropped.push((tensor.len, tensor.is_reshaped)));
    assert_eq!(into.residual(), [1.0, 3.0, 2.0, 0.0, 0.0]);
    assert_eq!(dropped, [(2, true)]);
    let fewer = layout(&[("", &[1])]);
    let mut into = Memory::new(vec![9.0]);
    let mut dropped = Vec::new();
    memory.remap(&old, &fewer.as_ref(), &mut into, |tensor| dropped.push((tensor.len, tensor.is_reshaped)));
    assert_eq!(dropped, [(1, false), (1, false), (2, false)]);
    assert_eq!(report.coordinates.dropped, 2);
}

#[test]
fn layouts_that_do_not_know_their_shapes_share_nothing_but_with_themselves() {
    let memory = Memory::new(vec![1.0, 2.0]);
    let opaque = LayoutRef::opaque(2, 77);
    let kept = |old: &LayoutRef<'_>, new: &LayoutRef<'_>| {
        let mut into = Memory::new(vec![9.0; 2]);
        memory.remap(old, new, &mut into, |_| ()).coordinates.kept
    };
    assert_eq!(kept(&opaque, &opaque), 2);
    assert_eq!(kept(&opaque, &LayoutRef::opaque(2, 78)), 0);
    assert_eq!(kept(&opaque, &LayoutRef::flat(2)), 0);
    assert_eq!(kept(&LayoutRef::flat(2), &opaque), 0);
    assert_eq!(kept(&LayoutRef::flat(2), &LayoutRef::flat(2)), 2);
}

/// Moves a memory with these states and factors, and returns those of the new one with the report.
fn moved_parts(
    (old, new): (&Layout, &Layout),
    (from_states, to_states): (&[u32], usize),
    (from_factors, to_factors): (&[f32], usize),
) -> (Vec<UnitState>, Vec<f32>, Remapped) {
    let from = Memory::new(vec![0.0; old.len()])
        .with_states(states(from_states))
        .with_factors(from_factors.to_vec());
    let mut into = Memory::new(vec![0.0; new.len()])
        .with_states(states(&vec![9; to_states]))
        .with_factors(vec![9.0; to_factors]);
    let report = from.remap(&old.as_ref(), &new.as_ref(), &mut into, |_| ());
    (into.states().to_vec(), into.factors().to_vec(), report)
}

#[test]
fn states_move_where_each_tensor_is_a_unit_or_nothing_changed_its_place() {
    let old = layout(&[("a", &[1]), ("b", &[2]), ("c", &[3])]);
    let new = layout(&[("c", &[3]), ("d", &[1]), ("a", &[1]), ("b", &[3])]);
    let zero = UnitState::default();
    let parts = |to_states| moved_parts((&old, &new), (&[1, 2, 3], to_states), (&[], 0));
    let (moved_states, _, report) = parts(4);
    assert_eq!(moved_states, [states(&[3])[0], zero, states(&[1])[0], zero]);
    assert_eq!(counts(report.states), moved(2, 1, 2));
    let (moved_states, _, report) = parts(2);
    assert_eq!((moved_states, counts(report.states)), (vec![zero; 2], moved(0, 3, 2)));
    // Two units of three tensors: whose they were is not known in another layout.
    let (moved_states, _, report) = moved_parts((&old, &new), (&[1, 2], 2), (&[], 0));
    assert_eq!((moved_states, counts(report.states)), (vec![zero; 2], moved(0, 2, 2)));
    let (moved_states, _, report) = moved_parts((&old, &old), (&[1, 2], 2), (&[], 0));
    assert_eq!((moved_states, counts(report.states)), (states(&[1, 2]), moved(2, 0, 0)));
    assert!(report.keeps_all());
}

#[test]
fn factors_begin_anew_unless_nothing_changed_its_place() {
    let old = layout(&[("a", &[4, 4]), ("b", &[4, 4])]);
    let new = layout(&[("b", &[4, 4]), ("a", &[4, 4])]);
    let (_, factors, report) = moved_parts((&old, &new), (&[], 0), (&[1.0, 2.0], 2));
    assert_eq!((factors, counts(report.factors)), (vec![0.0; 2], moved(0, 2, 2)));
    let (_, factors, report) = moved_parts((&old, &old), (&[], 0), (&[1.0, 2.0], 2));
    assert_eq!((factors, counts(report.factors)), (vec![1.0, 2.0], moved(2, 0, 0)));
    let (_, factors, report) = moved_parts((&old, &old), (&[], 0), (&[1.0, 2.0], 3));
    assert_eq!((factors, counts(report.factors)), (vec![0.0; 3], moved(0, 2, 3)));
}

#[test]
fn a_new_memory_of_a_spelling_takes_the_factors_of_each_tensor_along() {
    let old = layout(&[("a", &[8, 9]), ("b", &[7]), ("c", &[10, 12]), ("d", &[6, 5])]);
    let new = layout(&[("c", &[10, 12]), ("e", &[9, 8]), ("d", &[6, 5])]);
    let spec = Spec::parse("powersgd:rank=1,min_rate=1").unwrap();
    let (old, new) = (old.as_ref(), new.as_ref());
    let factors: Vec<f32> = (1..=9 + 12 + 5).map(|value| value as f32).collect();
    let memory = Memory::new(Input::Normal(1).values(old.len())).with_factors(factors.clone());
    let (into, report, dropped) = memory.remapped(&spec, Keeper::Worker, &old, &new);
    assert_eq!(into.factors(), [&factors[9..21], &[0.0; 8], &factors[21..]].concat());
    assert_eq!(counts(report.factors), moved(17, 9, 8));
    assert_eq!(into.residual()[..120], memory.residual()[79..199]);
    assert_eq!(dropped.iter().map(|tensor| tensor.name).collect::<Vec<_>>(), ["a", "b"]);
    // Of another rank there is nothing to keep.
    let spec = Spec::parse("powersgd:rank=2,min_rate=1").unwrap();
    let (into, report, _) = memory.remapped(&spec, Keeper::Worker, &old, &new);
    assert_eq!(into.factors(), [0.0; 2 * (12 + 8 + 5)]);
    assert_eq!(counts(report.factors), moved(0, 26, 50));
}

#[test]
fn a_new_memory_of_a_spelling_has_momentum_and_states_as_the_old_one() {
    let old = layout(&[("a", &[2, 2]), ("b", &[3])]);
    let new = layout(&[("b", &[3]), ("a", &[2, 2]), ("c", &[1])]);
    let (old, new) = (old.as_ref(), new.as_ref());
    let spec = Spec::parse("dgc").unwrap();
    let memory = Memory::new(vec![1.0; 7]).with_momentum(vec![2.0; 7]);
    let (into, report, dropped) = memory.remapped(&spec, Keeper::Worker, &old, &new);
    assert_eq!(into.momentum(), Some(&[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0][..]));
    assert!(report.keeps_all() && dropped.is_empty());
    let spec = Spec::parse("sidco:unit=tensor").unwrap();
    let memory = Memory::new(vec![1.0; 7]).with_states(states(&[1, 2]));
    let (into, report, _) = memory.remapped(&spec, Keeper::Worker, &old, &new);
    assert_eq!(into.states(), [states(&[2, 1]), vec![UnitState::default()]].concat());
    assert_eq!(counts(report.states), moved(2, 0, 1));
}

/// Every coordinate against a table by name, over layouts made at random.
#[test]
fn what_is_kept_and_what_is_dropped_add_up_over_random_layouts() {
    let mut words = Words::new(5);
    let mut draw = |below: usize| words.next_u64() as usize % below;
    for _ in 0..300 {
        let mut tensors = |n: usize| -> Layout {
            let names = ["a", "b", "c", "d", "e"];
            let mut chosen: Vec<(&str, Vec<usize>)> = Vec::new();
            for _ in 0..n {
                let name = names[draw(5)];
                if chosen.iter().all(|(other, _)| *other != name) {
                    chosen.push((name, if draw(3) == 0 { vec![draw(3)] } else { vec![2, 1 + draw(2)] }));
                }
            }
            Layout::packed(chosen).unwrap()
        };
        let (old, new) = (tensors(6), tensors(6));
        let memory = Memory::new(Input::Heavy(1).values(old.len()));
        let spec = Spec::parse("topk").unwrap();
        let (old, new) = (old.as_ref(), new.as_ref());
        let (into, report, dropped) = memory.remapped(&spec, Keeper::Worker, &old, &new);
        let range = |tensor: &TensorRef<'_>| tensor.offset..tensor.offset + tensor.checked_len().unwrap();
        let mut expected = vec![0.0; new.len()];
        let mut kept = 0;
        for tensor in old.tensors() {
            let same = new.tensors().find(|other| (other.name, other.shape) == (tensor.name, tensor.shape));
            let told: Vec<_> =
                dropped.iter().filter(|told| told.name == tensor.name).map(|told| told.len).collect();
            let Some(same) = same else {
                assert_eq!(told, [range(&tensor).len()]);
                continue;
            };
            assert!(told.is_empty(), "{} is kept and told as dropped", tensor.name);
            kept += range(&tensor).len();
            expected[range(&same)].copy_from_slice(&memory.residual()[range(&tensor)]);
        }
        assert_eq!(bits(into.residual()), bits(&expected));
        assert_eq!(counts(report.coordinates), moved(kept, old.len() - kept, new.len() - kept));
        let squares = into.norm().powi(2) + report.dropped_norm.powi(2);
        assert!((squares.sqrt() - memory.norm()).abs() <= 1e-12 * memory.norm());
    }
}

#[test]
fn memories_of_other_lengths_or_parts_are_not_remapped() {
    let (old, new) = (LayoutRef::flat(2), LayoutRef::flat(3));
    let refused = |from: Memory<'static>, mut into: Memory<'static>| {
        let run = std::panic::AssertUnwindSafe(|| from.remap(&old, &new, &mut into, |_| ()));
        std::panic::catch_unwind(run).is_err()
    };
    let memory = |n: usize| Memory::new(vec![0.0; n]);
    assert!(!refused(memory(2), memory(3)));
    assert!(refused(memory(3), memory(3)), "another length than the old layout");
    assert!(refused(memory(2), memory(2)), "another length than the new layout");
    assert!(refused(memory(2).with_momentum(vec![0.0; 2]), memory(3)), "momentum would be lost");
    assert!(refused(memory(2), memory(3).with_momentum(vec![0.0; 3])), "momentum from nowhere");
}

/// Bytes and values of the saved memories that are worked out in hex.
fn worked_memories() -> Vec<(Vec<u8>, Vec<f32>)> {
    let text = [include_str!("../FORMAT.md"), include_str!("golden/WORKED.md")].concat();
    let blocks = text.split("```memory\n").skip(1).map(|block| block.split("```").next().unwrap());
    let worked = blocks.map(|block| {
        let (lines, values) = block.trim_end().rsplit_once("\n= ").unwrap();
        let lines = lines.lines().skip(1).map(|line| line.split(';').next().unwrap());
        let words = lines.flat_map(str::split_whitespace).map(|word| u8::from_str_radix(word, 16).unwrap());
        (words.collect(), values.split_whitespace().map(|value| value.parse().unwrap()).collect())
    });
    worked.collect()
}

/// The numbers after `list:`.
fn listed(text: &str) -> Vec<f32> {
    let numbers = text.strip_prefix("list:").expect("a list");
    numbers.split(',').map(|number| number.parse().expect("a number")).collect()
}

/// The memory that a line of the manifest describes.
fn described(line: &Line) -> Memory<'static> {
    let mut memory = Memory::new(listed(line.value("residual")));
    if let Some(momentum) = line.find("momentum") {
        memory = memory.with_momentum(listed(momentum));
    }
    if let Some(states) = line.find("states") {
        memory = memory.with_states(parse_states(states));
    }
    if let Some(factors) = line.find("factors") {
        memory = memory.with_factors(listed(factors));
    }
    if let Some(arrays) = line.find("arrays") {
        let (mut lengths, mut values) = (StateLen::default(), Vec::new());
        for (name, numbers) in arrays.split('+').map(|array| array.split_once(':').expect("name and values"))
        {
            let numbers = listed(&format!("list:{numbers}"));
            lengths = lengths.with_array(name.to_owned().leak(), numbers.len());
            values.extend(numbers);
        }
        memory = memory.with_arrays(lengths.arrays().to_vec(), values);
    }
    memory
}

/// The golden memories, with the names of the files that hold their bytes, and the digest of what they hold.
fn golden_memories() -> Vec<(String, Memory<'static>, String)> {
    let lines = manifest::lines(&manifest::folder("golden/memories"));
    let of = |line: &Line| (line.value("file").to_owned(), described(line), line.value("values").to_owned());
    lines.iter().map(of).collect()
}

fn saved(memory: &Memory<'_>, layout: &LayoutRef<'_>) -> Vec<u8> {
    let mut bytes = vec![0xa5; memory.saved_bytes().unwrap()];
    assert_eq!(memory.save(layout, &mut bytes), Ok(bytes.len()));
    bytes
}

/// Everything that a memory holds, one part behind the other, for comparison.
fn contents(memory: &Memory<'_>) -> Vec<u32> {
    let arrays = memory.arrays().iter().flat_map(|array| memory.array(array.name).unwrap());
    let floats =
        memory.residual().iter().chain(memory.momentum().unwrap_or_default()).chain(memory.factors());
    let words = memory.states().iter().flat_map(|state| state.words());
    floats.chain(arrays).map(|value| value.to_bits()).chain(words).collect()
}

#[test]
fn golden_memories_are_saved_and_loaded_as_they_are_worked_out() {
    let worked = worked_memories();
    assert_eq!(worked.len(), golden_memories().len());
    for (name, mut memory, stated) in golden_memories() {
        let path = manifest::folder("golden").join(format!("memories/{name}.bin"));
        let golden = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (_, values) = worked.iter().find(|(bytes, _)| *bytes == golden).expect("it is worked out");
        assert_eq!(digest(values), stated, "{name}: other values are worked out");
        let layout = LayoutRef::flat(memory.len());
        assert_eq!(saved(&memory, &layout), golden, "{name}: other bytes");
        let expected = contents(&memory);
        memory.clear();
        memory.load(&layout, &golden).unwrap();
        assert_eq!(contents(&memory), expected, "{name}");
        // The states have no values.
        let floats = expected.len() - 4 * memory.states().len();
        assert_eq!(bits(values), expected[..floats], "{name}");
    }
}

#[test]
fn memories_with_arrays_are_refused_cut_flipped_or_elsewhere_and_change_nothing() {
    let layout = LayoutRef::flat(2);
    let lengths =
        |first: &'static str, len: usize| StateLen::default().with_array(first, len).with_array("columns", 1);
    let with = |lengths: StateLen| {
        let total = lengths.arrays().iter().map(|array| array.len).sum();
        Memory::new(vec![7.0; 2]).with_arrays(lengths.arrays().to_vec(), vec![9.0; total])
    };
    let (_, memory, _) = golden_memories().pop().unwrap();
    let bytes = saved(&memory, &layout);
    let refused = |mut into: Memory<'static>, bytes: &[u8]| {
        let before = contents(&into);
        let error = into.load(&layout, bytes).err();
        assert_eq!(contents(&into), before);
        error
    };
    assert_eq!(
        refused(with(lengths("rows", 2)), &bytes[..0]),
        Some(DecodeError::Truncated { needed: 2, actual: 0 })
    );
    for len in 0..bytes.len() {
        assert!(refused(with(lengths("rows", 2)), &bytes[..len]).is_some(), "cut to {len} bytes");
    }
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(refused(with(lengths("rows", 2)), &flipped).is_some(), "bit {bit} flipped");
    }
    let other = Some(DecodeError::InvalidField(Field::Memory));
    assert_eq!(refused(with(lengths("rowz", 2)), &bytes), other, "another name");
    assert_eq!(refused(with(lengths("row", 2)), &bytes), other, "a shorter name");
    assert_eq!(refused(with(lengths("rows", 3)), &bytes), other, "another length");
    assert_eq!(refused(with(StateLen::default().with_array("rows", 2)), &bytes), other, "fewer arrays");
    assert_eq!(refused(Memory::new(vec![7.0; 2]), &bytes), other, "no arrays");
    let version_1 = saved(&Memory::new(vec![0.5, 0.0]), &layout);
    assert_eq!(version_1[2], 1);
    assert_eq!(refused(with(lengths("rows", 2)), &version_1), other, "arrays that the bytes do not have");
    let mut infinite = bytes[..bytes.len() - 4].to_vec();
    let end = infinite.len();
    infinite[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    infinite.extend(crc32c(&infinite).to_le_bytes());
    assert_eq!(refused(with(lengths("rows", 2)), &infinite), Some(DecodeError::NonFiniteValue));
}

#[test]
fn arrays_move_with_the_tensors_or_whole_or_begin_anew() {
    let old = layout(&[("a", &[2]), ("b", &[1])]);
    let new = layout(&[("b", &[1]), ("c", &[1]), ("a", &[2])]);
    let memory = |layout: &Layout, values: &[f32]| {
        let lengths =
            StateLen::default().with_array_by_coordinate("velocity", layout.len()).with_array("edge", 3);
        Memory::new(vec![0.0; layout.len()]).with_arrays(lengths.arrays().to_vec(), values.to_vec())
    };
    let from = memory(&old, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut into = memory(&new, &[9.0; 7]);
    let report = from.remap(&old.as_ref(), &new.as_ref(), &mut into, |_| ());
    assert_eq!(into.array("velocity"), Some(&[3.0, 0.0, 1.0, 2.0][..]));
    assert_eq!(into.array("edge"), Some(&[0.0; 3][..]), "of which tensor is not known");
    assert_eq!(counts(report.arrays), moved(3, 3, 4));
    assert!(!report.keeps_all());
    let mut into = memory(&old, &[9.0; 6]);
    let report = from.remap(&old.as_ref(), &old.as_ref(), &mut into, |_| ());
    assert_eq!(contents(&into), contents(&from));
    assert_eq!(counts(report.arrays), moved(6, 0, 0));
    let mut without = Memory::new(vec![0.0; 3]);
    let report = from.remap(&old.as_ref(), &old.as_ref(), &mut without, |_| ());
    assert_eq!(counts(report.arrays), moved(0, 6, 0), "no place for any");
}

#[test]
fn views_and_slices_have_the_arrays_of_the_whole_layout() {
    let (_, mut memory, _) = golden_memories().pop().unwrap();
    assert_eq!(memory.view(0..1).array("columns"), Some(&[-1.0][..]));
    assert_eq!(memory.view(0..1).array("none"), None);
    memory.slice(1..2).array_mut("rows").unwrap()[1] = 8.0;
    assert_eq!(memory.array("rows"), Some(&[1.0, 8.0][..]));
    memory.decay(0.5).unwrap();
    memory.rescale(3.0);
    assert_eq!(memory.array("rows"), Some(&[1.0, 8.0][..]), "of which the codec alone knows what they are");
}

#[test]
fn tables_of_arrays_that_could_not_be_saved_are_refused() {
    let lengths = |array: StateLen| array.arrays().to_vec();
    let one = |name, len| StateLen::default().with_array(name, len);
    let refused = |table: Vec<ArrayLen>, values: usize| {
        let run = || Memory::new(vec![0.0; 2]).with_arrays(table, vec![0.0; values]);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
    };
    assert!(!refused(lengths(one("a", 2).with_array("b", 1)), 3));
    assert!(refused(lengths(one("a", 2)), 3), "more values");
    assert!(refused(lengths(one("a", 2)), 1), "fewer values");
    assert!(refused(lengths(one("a", 2).with_array("a", 1)), 3), "one name twice");
    assert!(refused(lengths(one("", 2)), 2), "no name");
    assert!(refused(lengths(one(Box::leak("n".repeat(256).into_boxed_str()), 2)), 2), "a name of 256 bytes");
    assert!(!refused(lengths(one(Box::leak("n".repeat(255).into_boxed_str()), 2)), 2), "a name of 255 bytes");
    assert!(
        refused(lengths(StateLen::default().with_array_by_coordinate("a", 3)), 3),
        "not one a coordinate"
    );
}
