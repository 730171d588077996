//! Nothing is lost in silence: what a frame holds and what the memory keeps are, bit for bit, what was there.

use gradwire::codecs::{Block, Estimator, RandomK};
use gradwire::format::Field;
use gradwire::registry::LinearCodec;
use gradwire::rounds::{LinearScratch, MemoryView, Payload, UnitStep};
use gradwire::state::SaveError;
use gradwire::state::UnitState;
use gradwire::{
    Codec, DecodeError, Density, EncodeError, Frame, Gather, Grad, Layout, LayoutRef, Memory, Scratch,
    Source, Spec, StepInput, StepKey, Unit,
};
use gradwire_tests::inputs::{Input, Words, power_of_two};
use gradwire_tests::naive::checksum::crc32c;
use gradwire_tests::rounds;
use gradwire_tests::run::{self, bits};
use gradwire_tests::spellings::{and_examples, keeps_exactly};
use std::collections::BTreeSet;

/// Every value coder.
const CODERS: [&str; 32] = [
    "f16:memory=ef",
    "bf16:memory=ef",
    "topk:density=0.01",
    "topk:density=0.3",
    "topk:density=1,index=raw",
    "topk:density=0.1,values=f16",
    "topk:density=0.5,values=bf16,index=bitmap",
    "topk:density=0.2,values=q8,index=rice",
    "topk:density=0.2,values=q4",
    "topk:density=0.9,values=q2",
    "threshold:value=0",
    "threshold:value=0.5",
    "threshold:value=1,values=f16",
    "threshold:value=0.25,values=bf16",
    "threshold:value=0.25,values=q8",
    "threshold:value=0,values=q2",
    "qsgd:bits=ternary,rounding=nearest,memory=ef",
    "qsgd:bits=2,bucket=16,rounding=nearest,memory=ef",
    "qsgd:bits=4,rounding=nearest,memory=ef",
    "qsgd:bits=8,bucket=7,entropy=elias,rounding=nearest,memory=ef",
    "qsgd:bits=8,norm=l2,bucket=128,entropy=rans,rounding=nearest,memory=ef",
    "qsgd:bits=5,entropy=adaptive,rounding=nearest,memory=ef",
    "randomk:density=0.1",
    "randomk:density=1",
    "redsync:density=0.05",
    "redsync:density=0.01,width=0.001,values=q8",
    "sidco:density=0.01,stages=1",
    "sidco:density=0.2,fit=gamma,stages=2,values=q8",
    "sidco:density=0.1,fit=exp,stages=3,cap=exact,values=bf16",
    "dgc:density=0.01,momentum=0",
    "dgc:density=0.2,momentum=0,values=q8",
    "dgc:density=0.5,momentum=0,sample=0.1,values=bf16",
];

/// Every codec that keeps a residual by the exact law.
fn with_memory() -> Vec<&'static str> {
    and_examples(&CODERS, keeps_exactly)
}

fn codec(spelling: &str) -> Codec {
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}")).codec
}

fn key(step: u64) -> StepKey {
    StepKey { seed: 11, step, source: Source::Rank(3) }
}

/// fl(residual + gradient).
fn folded(residual: &[f32], grad: &[f32]) -> Vec<f32> {
    residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect()
}

/// Encodes one step; checks the law for the frame, and for the frame given back; leaves the new residual.
fn step(spelling: &str, step: u64, units: &[Unit], grad: &[f32], residual: &mut [f32]) -> Vec<f32> {
    let layout = LayoutRef::flat(grad.len());
    let mut p = folded(residual, grad);
    for i in (0..p.len()).filter(|i| !units.iter().any(|unit| unit.range().contains(i))) {
        p[i] = residual[i];
    }
    let frame = run::encode(&codec(spelling), key(step), &layout, units, Grad::F32(grad), Some(residual), 0);
    let frame = frame.unwrap_or_else(|error| panic!("{spelling}, step {step}: {error}"));
    let sent = run::decode(&frame, &layout).unwrap();
    let both: Vec<f32> = sent.iter().zip(residual.iter()).map(|(sent, kept)| sent + kept).collect();
    assert_eq!(bits(&both), bits(&p), "{spelling}, step {step}: sent + kept is not residual + gradient");
    let mut given_back = residual.to_vec();
    run::parse(&frame, &layout, &run::no_limits(), |frame| Memory::new(&mut given_back).give_back(frame))
        .unwrap();
    assert_eq!(
        bits(&given_back),
        bits(&p),
        "{spelling}, step {step}: given back, it is not residual + gradient"
    );
    sent
}

/// Inputs of every kind, scaled where half precision is to hold their sums.
fn inputs(spelling: &str) -> Vec<Input> {
    let mut inputs = vec![
        Input::Normal(1),
        Input::Denormal(3),
        Input::Ties(4),
        Input::Sparse(5),
        Input::Zero,
        Input::NegativeZero,
    ];
    if !spelling.contains("f16") || spelling.contains("bf16") {
        inputs.extend([Input::Heavy(2), Input::Range(6)]);
    }
    inputs
}

fn again(input: &Input, step: u64) -> Input {
    match *input {
        Input::Normal(seed) => Input::Normal(seed + 100 * step),
        Input::Heavy(seed) => Input::Heavy(seed + 100 * step),
        Input::Denormal(seed) => Input::Denormal(seed + 100 * step),
        Input::Range(seed) => Input::Range(seed + 100 * step),
        Input::Ties(seed) => Input::Ties(seed + 100 * step),
        Input::Sparse(seed) => Input::Sparse(seed + 100 * step),
        ref other => other.clone(),
    }
}

#[test]
fn at_every_step_sent_and_kept_are_what_was_there_bit_for_bit() {
    for spelling in with_memory() {
        for input in inputs(spelling) {
            for n in [1, 2, 129, 700] {
                let mut residual = vec![0.0; n];
                for t in 0..8 {
                    step(spelling, t, &[Unit::whole(n)], &again(&input, t).values(n), &mut residual);
                }
            }
        }
    }
}

#[test]
fn the_law_holds_for_arbitrary_residuals_of_any_magnitude() {
    for spelling in
        with_memory().into_iter().filter(|spelling| !spelling.contains("f16") || spelling.contains("bf16"))
    {
        for seed in 0..20 {
            let mut residual = Input::Range(seed).values(300);
            step(spelling, seed, &[Unit::whole(300)], &Input::Range(1000 + seed).values(300), &mut residual);
            let mut residual = Input::Denormal(seed).values(300);
            // See `negative_zeros_kept_back_count_as_zeros`.
            residual.iter_mut().for_each(|kept| *kept += 0.0);
            step(
                spelling,
                seed,
                &[Unit::whole(300)],
                &Input::Denormal(1000 + seed).values(300),
                &mut residual,
            );
        }
    }
}

/// Half of level 1 is where the error of nearest rounding may fail to be a float: a value just below it whose
/// product rounds up to it must stay at level 0.
#[test]
fn the_law_holds_next_to_every_border_between_levels() {
    for (bits, levels) in [("ternary", 1u32), ("2", 1), ("3", 3), ("4", 7), ("8", 127)] {
        for scale in [1.0, 0.75, power_of_two(-90), power_of_two(60), 1.0 / 3.0] {
            let norm = scale * levels as f32;
            let mut grad = vec![norm];
            for halves in 1..8 {
                let border = scale * 0.5 * halves as f32;
                let near = [border.next_down().next_down(), border.next_down(), border, border.next_up()];
                grad.extend(
                    near.iter().flat_map(|&value| [value, -value]).filter(|value| value.abs() <= norm),
                );
            }
            for norm in ["max", "l2"].into_iter().filter(|&norm| norm == "max" || 4 * levels * levels > 60) {
                let spelling = format!("qsgd:bits={bits},bucket=60,norm={norm},rounding=nearest,memory=ef");
                step(&spelling, 0, &[Unit::whole(grad.len())], &grad, &mut vec![0.0; grad.len()]);
            }
        }
    }
}

#[test]
fn the_law_holds_for_several_units_gaps_and_dense_units() {
    let unit = |id, start, len, dense| Unit { id, start, len, dense };
    let units =
        [unit(0, 0, 100, false), unit(4, 100, 0, false), unit(5, 110, 30, true), unit(9, 140, 60, false)];
    for spelling in with_memory() {
        let mut residual = vec![0.0; 210];
        for t in 0..5 {
            step(spelling, t, &units, &Input::Normal(t).values(210), &mut residual);
        }
        assert!(
            residual[100..140].iter().all(|&kept| kept == 0.0),
            "{spelling}: a dense unit kept something back"
        );
    }
}

/// Each step rounds residual + gradient once, by at most half a unit in the last place of the sum, 2⁻²⁴ of
/// it; nothing else is inexact. So after T steps the error is at most T·2⁻²⁴·max|p|.
#[test]
fn over_a_long_run_all_that_was_sent_and_is_kept_is_the_sum_of_the_gradients() {
    const STEPS: u64 = 300;
    for spelling in with_memory() {
        let n = 64;
        let (mut residual, mut sent, mut grads, mut largest) =
            (vec![0.0; n], vec![0.0f64; n], vec![0.0f64; n], 0.0f64);
        for t in 0..STEPS {
            let grad = Input::Normal(t).values(n);
            grads.iter_mut().zip(&grad).for_each(|(sum, &g)| *sum += f64::from(g));
            let p = folded(&residual, &grad);
            largest = p.iter().fold(largest, |largest, p| largest.max(f64::from(p.abs())));
            let frame = step(spelling, t, &[Unit::whole(n)], &grad, &mut residual);
            sent.iter_mut().zip(&frame).for_each(|(sum, &sent)| *sum += f64::from(sent));
        }
        let bound = STEPS as f64 * f64::from(power_of_two(-24)) * largest;
        for i in 0..n {
            let error = (sent[i] + f64::from(residual[i]) - grads[i]).abs();
            assert!(error <= bound, "{spelling}: coordinate {i} is off by {error}, bound {bound}");
        }
    }
}

/// x − mean of what is kept back follows plain SGD on the true gradients, to rounding: the virtual iterate of
/// error-feedback theory, here with two workers.
#[test]
fn the_virtual_iterate_is_plain_descent() {
    let n = 50;
    for spelling in with_memory() {
        let (mut x, mut plain) = (vec![0.0f64; n], vec![0.0f64; n]);
        let mut residuals = [vec![0.0; n], vec![0.0; n]];
        for t in 0..40 {
            for (worker, residual) in residuals.iter_mut().enumerate() {
                let grad = Input::Normal(2 * t + worker as u64).values(n);
                let sent = step(spelling, t, &[Unit::whole(n)], &grad, residual);
                x.iter_mut().zip(&sent).for_each(|(x, &sent)| *x -= 0.05 * f64::from(sent));
                plain.iter_mut().zip(&grad).for_each(|(x, &grad)| *x -= 0.05 * f64::from(grad));
            }
        }
        for i in 0..n {
            let kept = f64::from(residuals[0][i]) + f64::from(residuals[1][i]);
            assert!((x[i] - 0.05 * kept - plain[i]).abs() < 1e-3 * 0.05, "{spelling}: coordinate {i}");
        }
    }
}

#[test]
fn frames_that_were_not_delivered_are_not_lost() {
    for spelling in with_memory() {
        let (n, layout) = (200, LayoutRef::flat(200));
        let mut residual = vec![0.0; n];
        let mut words = Words::new(9);
        let (mut delivered, mut grads) = (vec![0.0f64; n], vec![0.0f64; n]);
        for t in 0..60 {
            let grad = Input::Normal(t).values(n);
            grads.iter_mut().zip(&grad).for_each(|(sum, &g)| *sum += f64::from(g));
            let frame = run::encode(
                &codec(spelling),
                key(t),
                &layout,
                &[Unit::whole(n)],
                Grad::F32(&grad),
                Some(&mut residual),
                0,
            );
            run::parse(&frame.unwrap(), &layout, &run::no_limits(), |frame| {
                if words.below(3) == 0 {
                    Memory::new(&mut residual).give_back(frame);
                } else {
                    let mut sent = vec![0.0; n];
                    frame.add_scaled_to(1.0, &mut sent);
                    delivered.iter_mut().zip(&sent).for_each(|(sum, &sent)| *sum += f64::from(sent));
                }
            })
            .unwrap();
        }
        for i in 0..n {
            assert!(
                (delivered[i] + f64::from(residual[i]) - grads[i]).abs() < 1e-3,
                "{spelling}: coordinate {i}"
            );
        }
    }
}

/// The one place where bits may differ: a sum of zeros is +0 unless both are −0. A −0 can only be there when
/// the memory already held one, as after a tiny residual was rescaled; it counts as the zero that it is.
#[test]
fn negative_zeros_kept_back_count_as_zeros() {
    for spelling in with_memory() {
        let (layout, grad, mut residual) =
            (LayoutRef::flat(4), [-0.0, 0.0, 1.0, -0.0], [-0.0, -0.0, 1.0, 0.0]);
        let frame = run::encode(
            &codec(spelling),
            key(0),
            &layout,
            &[Unit::whole(4)],
            Grad::F32(&grad),
            Some(&mut residual),
            0,
        );
        let frame = frame.unwrap();
        assert_eq!(
            folded(&run::decode(&frame, &layout).unwrap(), &residual),
            [0.0, 0.0, 2.0, 0.0],
            "{spelling}"
        );
        run::parse(&frame, &layout, &run::no_limits(), |frame| Memory::new(&mut residual).give_back(frame))
            .unwrap();
        assert_eq!(residual, [0.0, 0.0, 2.0, 0.0], "{spelling}");
    }
}

/// Everything that a failed call is tried with.
struct Attempt<'a> {
    spelling: &'a str,
    units: &'a [Unit],
    grad: &'a [f32],
    residual: &'a [f32],
    /// Bytes taken off the output buffer; words and bytes taken off the scratch memory.
    short: [usize; 3],
}

impl Attempt<'_> {
    /// The error, after a check that the memory is as it was.
    fn error(&self) -> EncodeError {
        let codec = codec(self.spelling);
        let layout = LayoutRef::flat(self.grad.len());
        let mut residual = self.residual.to_vec();
        let needed = codec.scratch_len(self.units);
        let [out, words, bytes] = self.short;
        let mut words = vec![7; needed.words.saturating_sub(words)];
        let mut bytes = vec![7; needed.bytes.saturating_sub(bytes)];
        let mut out = vec![7; codec.max_frame_bytes(self.units).unwrap_or(0).saturating_sub(out)];
        let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
        let mut memory = Memory::new(&mut residual);
        let grad = Grad::F32(self.grad);
        let input = StepInput { key: key(1), layout: &layout, units: self.units, grad };
        let result = codec.encode(&input, Some(&mut memory), &mut scratch, &mut out);
        let error = result.expect_err(self.spelling);
        assert_eq!(bits(&residual), bits(self.residual), "{}: {error} changed the memory", self.spelling);
        error
    }
}

#[test]
fn every_refused_gradient_leaves_the_memory_as_it_was() {
    let n = 600;
    let (whole, two) =
        ([Unit::whole(n)], [0, 300].map(|start| Unit { id: start as u32, start, len: 300, dense: false }));
    let residual = Input::Normal(1).values(n);
    let at_end = |value: f32| {
        let mut grad = Input::Normal(2).values(n);
        grad[n - 1] = value;
        grad
    };
    for spelling in with_memory() {
        for units in [&whole[..], &two] {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let attempt =
                    Attempt { spelling, units, grad: &at_end(value), residual: &residual, short: [0; 3] };
                assert_eq!(attempt.error(), EncodeError::NonFiniteInput { index: n - 1 }, "{spelling}");
            }
            let (mut kept, grad) = (residual.clone(), at_end(f32::MAX));
            kept[n - 1] = f32::MAX;
            let overflows = Attempt { spelling, units, grad: &grad, residual: &kept, short: [0; 3] };
            assert_eq!(overflows.error(), EncodeError::NonFiniteInput { index: n - 1 }, "{spelling}");
        }
    }
    for (spelling, value) in [
        ("f16:memory=ef", 65_520.0),
        ("topk:values=f16", -65_600.0),
        ("threshold:value=1e5,values=f16", 70_000.0),
        ("bf16:memory=ef", f32::MAX),
        ("topk:values=bf16", -f32::MAX),
        ("qsgd:rounding=nearest", power_of_two(126)),
        ("qsgd:bits=8,norm=l2,bucket=128,rounding=nearest,memory=ef", power_of_two(111)),
        ("efsign", power_of_two(126)),
    ] {
        for units in [&whole[..], &two] {
            let mut kept = residual.clone();
            kept[n - 1] = 0.0;
            let attempt = Attempt { spelling, units, grad: &at_end(value), residual: &kept, short: [0; 3] };
            assert_eq!(attempt.error(), EncodeError::ValueOverflow { index: n - 1 }, "{spelling}");
        }
    }
}

#[test]
fn buffers_that_are_too_small_are_refused_and_leave_the_memory_as_it_was() {
    let n = 100;
    let (grad, residual, units) = (Input::Normal(3).values(n), Input::Normal(4).values(n), [Unit::whole(n)]);
    for spelling in with_memory() {
        let attempt =
            |short| Attempt { spelling, units: &units, grad: &grad, residual: &residual, short }.error();
        let needed = codec(spelling).max_frame_bytes(&units).unwrap();
        assert_eq!(
            attempt([1, 0, 0]),
            EncodeError::BufferTooSmall { needed, actual: needed - 1 },
            "{spelling}"
        );
        assert_eq!(attempt([needed, 0, 0]), EncodeError::BufferTooSmall { needed, actual: 0 }, "{spelling}");
        let needed = codec(spelling).scratch_len(&units);
        assert_eq!(attempt([0, 1, 0]), EncodeError::ScratchTooSmall { needed }, "{spelling}");
        if needed.bytes > 0 {
            assert_eq!(attempt([0, 0, 1]), EncodeError::ScratchTooSmall { needed }, "{spelling}");
        }
    }
}

#[test]
fn units_that_are_out_of_order_are_refused_and_leave_the_memory_as_it_was() {
    let n = 100;
    let (grad, residual) = (Input::Normal(3).values(n), Input::Normal(4).values(n));
    let unit = |id, start, len| Unit { id, start, len, dense: false };
    let wrong = [
        (vec![unit(0, 0, 101)], 0),
        (vec![unit(7, 100, 1)], 7),
        (vec![unit(7, 101, 0)], 7),
        (vec![unit(1, 0, 50), unit(1, 50, 50)], 1),
        (vec![unit(2, 0, 50), unit(1, 50, 50)], 1),
        (vec![unit(1, 0, 51), unit(2, 50, 50)], 2),
        (vec![unit(1, 50, 50), unit(2, 0, 50)], 2),
        (vec![unit(1, 0, 50), unit(2, 50, 51)], 2),
    ];
    for spelling in with_memory() {
        for (units, first) in &wrong {
            let attempt = Attempt { spelling, units, grad: &grad, residual: &residual, short: [0; 3] };
            assert_eq!(
                attempt.error(),
                EncodeError::UnitOutOfOrder { unit: *first },
                "{spelling}: {units:?}"
            );
        }
        let overflow = [unit(3, usize::MAX, 2)];
        let short = [0; 3];
        if codec(spelling).max_frame_bytes(&overflow).is_some() {
            let attempt = Attempt { spelling, units: &overflow, grad: &grad, residual: &residual, short };
            assert_eq!(attempt.error(), EncodeError::UnitOutOfOrder { unit: 3 }, "{spelling}");
        }
        let none = Attempt { spelling, units: &[], grad: &grad, residual: &residual, short };
        assert_eq!(none.error(), EncodeError::TooLarge, "{spelling}");
    }
    let many: Vec<Unit> = (0..65_536).map(|id| unit(id, 0, 0)).collect();
    let attempt = Attempt { spelling: "topk", units: &many, grad: &grad, residual: &residual, short: [0; 3] };
    assert_eq!(attempt.error(), EncodeError::TooLarge);
}

#[test]
fn saved_memories_come_back_bit_for_bit() {
    let shapes = [vec![10, 5], vec![], vec![13]];
    let layout = run::layout(&shapes);
    for input in [Input::Normal(1), Input::Denormal(2), Input::Range(3), Input::NegativeZero] {
        let mut residual = input.values(64);
        let expected = bits(&residual);
        let memory = Memory::new(&mut residual);
        let mut saved = vec![0xa5; memory.saved_bytes().unwrap() + 7];
        let bytes = memory.save(&layout.as_ref(), &mut saved).unwrap();
        assert_eq!(bytes, 64 * 4 + 24);
        assert!(saved[bytes..].iter().all(|&byte| byte == 0xa5), "bytes behind the memory were written");
        let error = SaveError::BufferTooSmall { needed: bytes, actual: bytes - 1 };
        assert_eq!(memory.save(&layout.as_ref(), &mut vec![0; bytes - 1]), Err(error));
        let mut loaded = vec![f32::NAN; 64];
        Memory::new(&mut loaded).load(&layout.as_ref(), &saved[..bytes]).unwrap();
        assert_eq!(bits(&loaded), expected);
    }
}

#[test]
fn truncated_flipped_and_foreign_memories_are_refused_and_change_nothing() {
    let layout = run::layout(&[vec![3, 3]]);
    let mut residual = Input::Normal(1).values(9);
    let mut saved = vec![0; 9 * 4 + 24];
    Memory::new(&mut residual).save(&layout.as_ref(), &mut saved).unwrap();
    let refused = |bytes: &[u8], layout: &LayoutRef<'_>| {
        let mut kept = Input::Heavy(7).values(9);
        let before = bits(&kept);
        let refused = Memory::new(&mut kept).load(layout, bytes).is_err();
        refused && bits(&kept) == before
    };
    for len in 0..saved.len() {
        assert!(refused(&saved[..len], &layout.as_ref()), "cut to {len} bytes");
    }
    for bit in 0..8 * saved.len() {
        let mut flipped = saved.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(refused(&flipped, &layout.as_ref()), "bit {bit} flipped");
    }
    assert!(refused(&[&saved[..], &[0]].concat(), &layout.as_ref()), "one byte more");
    assert!(refused(&saved, &LayoutRef::flat(9)), "a layout of the same length");
}

/// Storage of a memory with every part, and its saved bytes.
#[derive(Clone, Debug, PartialEq)]
struct FullMemory {
    residual: Vec<f32>,
    momentum: Vec<f32>,
    states: Vec<UnitState>,
    factors: Vec<f32>,
}

impl FullMemory {
    /// With a factor for each unit.
    fn new(n: usize, units: usize) -> Self {
        let (states, factors) = (vec![UnitState::default(); units], vec![0.0; units]);
        Self { residual: vec![0.0; n], momentum: vec![0.0; n], states, factors }
    }

    fn lend(&mut self) -> Memory<'_> {
        Memory::new(&mut self.residual)
            .with_momentum(&mut self.momentum)
            .with_states(&mut self.states)
            .with_factors(&mut self.factors)
    }

    fn saved(&mut self, layout: &LayoutRef<'_>) -> Vec<u8> {
        let memory = self.lend();
        let mut bytes = vec![0xa5; memory.saved_bytes().unwrap()];
        assert_eq!(memory.save(layout, &mut bytes), Ok(bytes.len()));
        bytes
    }
}

/// A saved memory with every part, made by hand: its states cannot be written through the public interface.
fn full_saved(layout: &LayoutRef<'_>, residual: &[f32], momentum: &[f32], words: &[u32]) -> Vec<u8> {
    let mut bytes = b"GM\x01\x0f".to_vec();
    bytes.extend(layout.fingerprint().to_le_bytes());
    bytes.extend((residual.len() as u64).to_le_bytes());
    bytes.extend((words.len() as u32 / 4).to_le_bytes());
    bytes.extend((words.len() as u64 / 4).to_le_bytes());
    bytes.extend(residual.iter().chain(momentum).flat_map(|value| value.to_le_bytes()));
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend((0..words.len() / 4).flat_map(|i| (i as f32 - 0.5).to_le_bytes()));
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

#[test]
fn memories_with_momentum_states_and_factors_come_back_bit_for_bit() {
    let layout = run::layout(&[vec![10, 5], vec![14]]);
    let layout = layout.as_ref();
    for (a, b) in [(Input::Normal(1), Input::Heavy(2)), (Input::Denormal(3), Input::NegativeZero)] {
        let (residual, momentum) = (a.values(64), b.values(64));
        let words: Vec<u32> = (0..12).map(|i| u32::MAX - i * 77).collect();
        let saved = full_saved(&layout, &residual, &momentum, &words);
        let mut memory = FullMemory::new(64, 3);
        memory.lend().load(&layout, &saved).unwrap();
        assert_eq!(bits(&memory.residual), bits(&residual));
        assert_eq!(bits(&memory.momentum), bits(&momentum));
        assert_eq!(memory.saved(&layout), saved, "states and factors included");
        let error = SaveError::BufferTooSmall { needed: saved.len(), actual: saved.len() - 1 };
        assert_eq!(memory.lend().save(&layout, &mut vec![0; saved.len() - 1]), Err(error));
        memory.lend().clear();
        assert_eq!(memory, FullMemory::new(64, 3));
    }
}

#[test]
fn memories_with_other_parts_are_refused_and_change_nothing() {
    let layout = LayoutRef::flat(9);
    let (residual, momentum) = (Input::Normal(1).values(9), Input::Normal(2).values(9));
    let saved = full_saved(&layout, &residual, &momentum, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let refused = |bytes: &[u8], units: usize| {
        let mut memory = FullMemory::new(9, units);
        memory.residual.copy_from_slice(&momentum);
        let before = memory.clone();
        let refused = memory.lend().load(&layout, bytes).is_err();
        refused && memory == before
    };
    assert!(!refused(&saved, 2));
    for units in [1, 3] {
        assert!(refused(&saved, units), "{units} states");
    }
    for len in 0..saved.len() {
        assert!(refused(&saved[..len], 2), "cut to {len} bytes");
    }
    for bit in 0..8 * saved.len() {
        let mut flipped = saved.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(refused(&flipped, 2), "bit {bit} flipped");
    }
    let mut without_states = FullMemory::new(9, 2);
    let without_states = Memory::new(&mut without_states.residual)
        .with_momentum(&mut without_states.momentum)
        .with_factors(&mut without_states.factors)
        .load(&layout, &saved);
    assert_eq!(without_states, Err(DecodeError::InvalidField(Field::Memory)));
    let mut other_factors = FullMemory { factors: vec![0.0; 3], ..FullMemory::new(9, 2) };
    let other_factors = other_factors.lend().load(&layout, &saved);
    assert_eq!(other_factors, Err(DecodeError::InvalidField(Field::Memory)));
    let mut plain = residual.clone();
    assert_eq!(
        Memory::new(&mut plain).load(&layout, &saved),
        Err(DecodeError::InvalidField(Field::Memory)),
        "momentum would be lost"
    );
    assert_eq!(bits(&plain), bits(&residual));
}

#[test]
fn a_slice_of_a_memory_holds_its_momentum_and_all_states_and_factors() {
    let mut full = FullMemory::new(10, 2);
    full.residual.copy_from_slice(&Input::Normal(1).values(10));
    full.momentum.copy_from_slice(&Input::Normal(2).values(10));
    let (residual, momentum) = (full.residual.clone(), full.momentum.clone());
    let mut memory = full.lend();
    let mut slice = memory.slice(3..7);
    assert_eq!(slice.residual(), &residual[3..7]);
    assert_eq!(slice.momentum(), Some(&momentum[3..7]));
    assert_eq!((slice.states().len(), slice.factors().len()), (2, 2));
    slice.rescale(0.5);
    assert_eq!(slice.momentum(), Some(&momentum[3..7]), "momentum works at the rate of its step");
    slice.clear();
    assert_eq!(full.residual[3..7], [0.0; 4]);
    assert_eq!(full.momentum[3..7], [0.0; 4]);
    assert_eq!((full.residual[2], full.momentum[7]), (residual[2], momentum[7]));
}

#[test]
fn a_run_resumed_from_a_saved_memory_goes_on_bit_for_bit() {
    for spelling in with_memory() {
        let (n, layout) = (150, LayoutRef::flat(150));
        let go_on = |residual: &mut Vec<f32>, steps: std::ops::Range<u64>| -> Vec<Vec<f32>> {
            steps
                .map(|t| step(spelling, t, &[Unit::whole(n)], &Input::Normal(t).values(n), residual))
                .collect()
        };
        let mut residual = vec![0.0; n];
        go_on(&mut residual, 0..5);
        let mut saved = vec![0; n * 4 + 24];
        Memory::new(&mut residual).save(&layout, &mut saved).unwrap();
        let expected = go_on(&mut residual, 5..9);
        let mut resumed = vec![0.0; n];
        Memory::new(&mut resumed).load(&layout, &saved).unwrap();
        assert_eq!(go_on(&mut resumed, 5..9), expected, "{spelling}");
        assert_eq!(bits(&resumed), bits(&residual), "{spelling}");
    }
}

#[test]
fn rescaling_multiplies_every_residual_once() {
    let mut residual = Input::Heavy(1).values(100);
    let expected: Vec<f32> = residual.iter().map(|kept| kept * 0.1).collect();
    Memory::new(&mut residual).rescale(0.1);
    assert_eq!(bits(&residual), bits(&expected));
    Memory::new(&mut residual).rescale(1.0);
    assert_eq!(bits(&residual), bits(&expected));
    let mut memory = Memory::new(&mut residual);
    memory.clear();
    assert_eq!(memory.norm(), 0.0);
}

fn view(residual: &[f32]) -> MemoryView<'_> {
    MemoryView::new(residual)
}

/// Rows of two coordinates or more, if there are any such.
fn matrix(n: usize) -> Layout {
    let columns = (2..=n).find(|columns| n.is_multiple_of(*columns)).unwrap_or(1);
    run::layout(&[vec![n / columns, columns]])
}

/// Runs one unit of a linear codec over these workers, the first of which has the memory; returns the mean.
fn reduced(linear: &LinearCodec, grads: &[Vec<f32>], kept: Option<&mut Vec<f32>>, abandon: bool) -> Vec<f32> {
    let linear = linear.rounds();
    let n = grads[0].len();
    let (unit, layout) = (Unit::whole(n), matrix(n));
    let layout = layout.as_ref();
    let needed = linear.round_scratch_len(&layout, &unit, grads.len() as u32);
    let of = |place| {
        let key = StepKey { source: Source::Rank(place), ..key(5) };
        UnitStep { key, layout: &layout, unit: &unit, workers: grads.len() as u32, place }
    };
    let buffers = || (vec![7u32; needed.words], vec![7.0f32; needed.floats], vec![7i32; needed.ints]);
    let (mut own, mut sum) = (None, vec![0.0; needed.floats]);
    for (rank, grad) in grads.iter().enumerate() {
        let (mut words, mut floats, mut ints) = buffers();
        let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut ints };
        let residual = kept.as_deref().filter(|_| rank == 0).map(Vec::as_slice);
        let step = of(rank as u32);
        let round = linear.begin(&step, Grad::F32(grad), residual.map(view), &mut scratch).unwrap();
        let Payload::F32(payload) = linear.payload(&round, &mut scratch) else {
            panic!("a payload of floats")
        };
        assert_eq!(payload.len(), round.payload_len);
        sum.iter_mut().zip(payload.iter()).for_each(|(sum, value)| *sum += value);
        if rank == 0 {
            own = Some((round, words, floats, ints));
        }
    }
    let (round, mut words, mut floats, mut ints) = own.expect("there are workers");
    let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut ints };
    let mut memory = kept.map(Memory::new);
    let mut mean = vec![f32::NAN; n];
    let Payload::F32(payload) = linear.payload(&round, &mut scratch) else { panic!("a payload of floats") };
    payload.copy_from_slice(&sum[..round.payload_len]);
    let next = linear.advance(&of(0), round, &mut scratch, &mut mean, memory.as_mut());
    assert_eq!(next, None, "one round");
    if abandon {
        linear.abandon(round, &mut scratch, memory.as_mut());
    }
    mean
}

#[test]
fn linear_codecs_conserve_too_and_keep_everything_when_abandoned() {
    let randomk =
        |density| LinearCodec::RandomK(RandomK::new(Density::new(density).unwrap(), Estimator::Contraction));
    let dense = codec("none").as_linear().expect("dense frames may be summed");
    let tile = codec("randomk:density=0.1,block=tile").as_linear().expect("values are summed");
    for linear in [randomk(0.1), randomk(1.0), randomk(1e-9), tile, dense] {
        let (before, grads) = (Input::Normal(7).values(129), [Input::Heavy(1).values(129)]);
        let p = folded(&before, &grads[0]);
        let mut kept = before.clone();
        let mean = reduced(&linear, &grads, Some(&mut kept), false);
        assert_eq!(bits(&folded(&mean, &kept)), bits(&p), "{linear:?}");
        let mut kept = before;
        reduced(&linear, &grads, Some(&mut kept), true);
        assert_eq!(bits(&kept), bits(&p), "{linear:?}: abandoned");
    }
}

#[test]
fn linear_codecs_refuse_bad_gradients_and_small_scratch_memory_at_the_start() {
    let n = 40;
    let (unit, layout) = (Unit { start: 5, ..Unit::whole(n) }, LayoutRef::flat(50));
    for spelling in ["none", "randomk:density=0.2", "randomk:density=0.2,estimator=unbiased"] {
        let linear = codec(spelling).as_linear().expect(spelling);
        let linear = linear.rounds();
        let needed = linear.round_scratch_len(&layout, &unit, 1);
        let begin = |grad: &[f32], residual: Option<&[f32]>, words: usize, floats: usize| {
            let (mut words, mut floats) = (vec![7; needed.words - words], vec![7.0; needed.floats - floats]);
            let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
            linear
                .begin(
                    &rounds::alone(key(1), &layout, &unit),
                    Grad::F32(grad),
                    residual.map(view),
                    &mut scratch,
                )
                .map(|_| ())
        };
        let fine = Input::Normal(1).values(n);
        assert_eq!(begin(&fine, Some(&fine), 0, 0), Ok(()), "{spelling}");
        let too_small = Err(EncodeError::LinearScratchTooSmall { needed });
        assert_eq!(begin(&fine, None, 1, 0), too_small, "{spelling}");
        assert_eq!(begin(&fine, None, 0, 1), too_small, "{spelling}");
        let mut bad = fine.clone();
        bad[n - 1] = f32::NAN;
        let last = Err(EncodeError::NonFiniteInput { index: 5 + n - 1 });
        assert_eq!(begin(&bad, None, 0, 0), last, "{spelling}");
        bad[n - 1] = f32::MAX;
        assert_eq!(begin(&bad, Some(&bad), 0, 0), last, "{spelling}");
    }
}

#[test]
fn random_k_of_the_mean_is_the_mean_of_random_k() {
    // Multiples of 1/8 and four workers: sums and the mean are exact.
    let grads: Vec<Vec<f32>> = (0..4)
        .map(|rank| {
            let mut words = Words::new(rank);
            (0..200).map(|_| words.below(2001) as f32 / 8.0 - 125.0).collect()
        })
        .collect();
    let mean: Vec<f32> = (0..200).map(|i| grads.iter().map(|grad| grad[i]).sum::<f32>() / 4.0).collect();
    let layout = matrix(200);
    let layout = layout.as_ref();
    for block in [Block::None, Block::Run, Block::Tile] {
        let unbiased = RandomK::new(Density::new(0.25).unwrap(), Estimator::Unbiased).with_block(block);
        let unbiased = LinearCodec::RandomK(unbiased);
        let (codec, units) = (Codec::Linear(unbiased), [Unit::whole(200)]);
        let frame = run::encode(&codec, key(5), &layout, &units, Grad::F32(&mean), None, 0).unwrap();
        // The mean may be zero where it is sent.
        let mut positions = BTreeSet::new();
        let each = |frame: &Frame<'_>| {
            frame.units().for_each(|unit| unit.for_each(|at, _| positions.extend([at])));
        };
        run::parse(&frame, &layout, &run::no_limits(), each).unwrap();
        assert_eq!(positions.len(), 50);
        let expected = run::decode(&frame, &layout).unwrap();
        assert_eq!(bits(&reduced(&unbiased, &grads, None, false)), bits(&expected), "{block:?}");
    }
}

#[test]
fn codecs_that_cannot_keep_exactly_take_no_memory() {
    let (layout, grad) = (LayoutRef::flat(4), [0.5f32, -3.0, 0.0, 1.0]);
    let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
    for spelling in ["qsgd:bits=4", "randomk:density=0.5,estimator=unbiased"] {
        let codec = Spec::parse(spelling).unwrap().codec;
        let mut residual = [0.25f32; 4];
        let memory = &mut Memory::new(&mut residual);
        let mut encoder = gradwire::Encoder::new();
        let input = StepInput { key, layout: &layout, units: &[Unit::whole(4)], grad: Grad::F32(&grad) };
        let refused = encoder.encode(&codec, &input, Some(memory)).map(|_| ());
        assert_eq!(refused, Err(EncodeError::MemoryRefused), "{spelling}");
        assert_eq!(residual, [0.25; 4]);
    }
}

/// Encodes with a memory that lives on, and with one made anew of the same values; both must do the same.
/// Returns whether there was a frame.
fn step_twice(spelling: &str, step: u64, units: &[Unit], grad: &[f32], kept: &mut Memory<'_>) -> bool {
    let (layout, before) = (LayoutRef::flat(grad.len()), kept.residual().to_vec());
    let mut anew = before.clone();
    let expected =
        run::encode(&codec(spelling), key(step), &layout, units, Grad::F32(grad), Some(&mut anew), 0);
    let mut encoder = gradwire::Encoder::new();
    let input = StepInput { key: key(step), layout: &layout, units, grad: Grad::F32(grad) };
    let frame = encoder.encode(&codec(spelling), &input, Some(kept));
    assert_eq!(frame.map(<[u8]>::to_vec), expected, "{spelling}, step {step}");
    assert_eq!(bits(kept.residual()), bits(&anew), "{spelling}, step {step}");
    if expected.is_err() {
        assert_eq!(bits(&anew), bits(&before), "{spelling}, step {step}");
    }
    expected.is_ok()
}

#[test]
fn a_memory_that_lives_on_refuses_and_keeps_what_one_made_anew_does() {
    let n = 1500;
    let unit = |id: u32, start, len| Unit { id, start, len, dense: false };
    let all_units = [
        vec![Unit::whole(n)],
        vec![unit(0, 0, 700), unit(1, 700, 800)],
        vec![unit(3, 100, 600), unit(4, 1200, 300)],
    ];
    for (spelling, units) in
        with_memory().iter().flat_map(|spelling| all_units.iter().map(move |u| (spelling, u)))
    {
        let mut kept = Memory::new(vec![0.0; n]);
        for step in 0..12 {
            let mut grad = Input::Heavy(step).values(n);
            // Every third gradient is bad, in its last value or somewhere, and some sums overflow that no
            // gradient does.
            match step {
                2 => grad[n - 1] = f32::NAN,
                3 | 4 => grad[n - 40..].fill(2.5e38),
                5 => grad[300] = f32::NEG_INFINITY,
                8 => kept.rescale(1.25),
                9 => grad[n - 30..].fill(f32::MAX),
                10 => kept.slice(1300..n).clear(),
                11 => grad[n - 1] = f32::INFINITY,
                _ => {}
            }
            let is_sent = step_twice(spelling, step, units, &grad, &mut kept);
            let must_fail = matches!(step, 2 | 11) || step == 5 && units[0].start < 300;
            assert!(!(must_fail && is_sent), "{spelling}, step {step}");
            if is_sent && step == 7 {
                kept.slice(200..300).rescale(f32::MAX);
            }
        }
    }
}

#[test]
fn what_is_kept_outside_of_the_units_of_a_step_is_not_forgotten() {
    let n = 1500;
    let mut kept = Memory::new(vec![0.0; n]);
    let mut grad = Input::Heavy(1).values(n);
    grad[n - 40..].fill(2.5e38);
    assert!(step_twice("topk:density=0.01", 0, &[Unit::whole(n)], &grad, &mut kept));
    let front = Unit { id: 0, start: 0, len: 700, dense: false };
    assert!(step_twice("topk:density=0.01", 1, &[front], &grad, &mut kept));
    assert!(!step_twice("topk:density=0.01", 2, &[Unit::whole(n)], &grad, &mut kept));
}
