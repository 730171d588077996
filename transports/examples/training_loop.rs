//! Four threads train a model together, with everything that a loop of one's own has to think of: error
//! feedback, its checkpoint, a step that all skip, and a frame that was damaged on its way.
//!
//! The loss of a rank is half the squared distance to a target of its own, so the model ends at the mean of
//! all targets.

use std::error::Error;
use std::thread;
use std::time::Duration;

use gradwire::arithmetic::first_non_finite;
use gradwire::{Decoder, Encoder, Grad, Layout, Limits, Memory, Source, Spec, StepInput, StepKey, Unit};
use gradwire_transports::collective::{self, Fold, Scalar};
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::{Deadline, Tag, Transport, local};

const WORLD: u32 = 4;
const LEN: usize = 1000;
const STEPS: u64 = 600;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn target(rank: u32, at: usize) -> f32 {
    ((7 * at + 13 * rank as usize) % 11) as f32 - 5.0
}

/// One rank's training; returns its parameters and how many steps it skipped.
fn train(mut transport: impl Transport) -> Outcome<(Vec<f32>, u32)> {
    let rank = transport.rank().0;
    let layout = Layout::packed([("weights", vec![LEN])])?;
    let spec = Spec::parse("topk:density=0.1")?;
    let new_memory = || Memory::for_spec(&spec, &layout.as_ref()).ok_or("topk has error feedback");
    let (mut memory, mut skipped) = (new_memory()?, 0);
    let mut exchange = Exchange::new(spec, layout.clone(), Route::AllGather)?;
    let (mut params, mut mean) = (vec![0.0; LEN], vec![0.0; LEN]);
    for step in 0..STEPS {
        let deadline = Deadline::after(Duration::from_secs(60));
        let mut grad: Vec<f32> = (0..LEN).map(|at| params[at] - target(rank, at)).collect();
        if (rank, step) == (2, 10) {
            grad[5] = f32::NAN;
        }
        // One gradient that is not finite would stop the step at one rank; so all look first, and skip it
        // together.
        let mut vote = [(Fold::Min, Scalar::I64(first_non_finite(&grad).is_none().into()))];
        collective::agree(&mut transport, Tag::new(0, step), &mut vote, deadline)?;
        if vote[0].1 != Scalar::I64(1) {
            skipped += 1;
            continue;
        }
        let key = StepKey { seed: 42, step, source: Source::Rank(rank) };
        exchange.start(&mut transport, key, Grad::F32(&grad), Some(&mut memory), deadline)?;
        exchange.finish(&mut transport, &mut mean, Some(&mut memory), deadline)?;
        let rate = 0.06 * 0.99_f32.powi(step as i32);
        params.iter_mut().zip(&mean).for_each(|(param, mean)| *param -= rate * mean);
        if step == STEPS / 2 {
            // What is kept back belongs into a checkpoint: without it, gradients are lost.
            let mut checkpoint = vec![0; memory.saved_bytes().ok_or("too large")?];
            memory.save(&layout.as_ref(), &mut checkpoint)?;
            memory = new_memory()?;
            memory.load(&layout.as_ref(), &checkpoint)?;
        }
    }
    transport.close(Deadline::after(Duration::from_secs(60)))?;
    Ok((params, skipped))
}

/// A frame that was damaged is refused, whichever of its bytes it was.
fn damage_a_frame() -> Outcome<()> {
    let (layout, spec) =
        (Layout::packed([("weights", vec![4])])?, Spec::parse("topk:density=0.5,memory=none")?);
    let (key, units) = (StepKey { seed: 42, step: 0, source: Source::Rank(0) }, [Unit::whole(4)]);
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let grad = Grad::F32(&[1.0, -3.0, 0.5, 2.0]);
    let mut frame = encoder
        .encode(&spec.codec, &StepInput { key, layout: &layout.as_ref(), units: &units, grad }, None)?
        .to_vec();
    for at in 0..frame.len() {
        frame[at] ^= 0x10;
        let refused = decoder.parse(&frame, &layout.as_ref(), &Limits::for_layout(&layout.as_ref()));
        assert!(refused.is_err(), "byte {at}");
        frame[at] ^= 0x10;
    }
    decoder.parse(&frame, &layout.as_ref(), &Limits::for_layout(&layout.as_ref()))?;
    Ok(())
}

fn main() -> Outcome<()> {
    damage_a_frame()?;
    let ranks: Vec<_> = local::world(WORLD).into_iter().map(|end| thread::spawn(|| train(end))).collect();
    let results =
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect::<Outcome<Vec<_>>>()?;
    let (params, skipped) = &results[0];
    assert!(results.iter().all(|other| other == &results[0]), "all ranks have the same bits");
    let best = |at| (0..WORLD).map(|rank| target(rank, at)).sum::<f32>() / WORLD as f32;
    let error = (0..LEN).map(|at| (params[at] - best(at)).abs()).fold(0.0, f32::max);
    println!("{STEPS} steps, {skipped} skipped; furthest from the best parameters: {error:.4}");
    assert!(error < 0.05 && *skipped == 1);
    Ok(())
}
