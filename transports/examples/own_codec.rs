//! A codec that `gradwire` does not have: four threads train a model with it, and a hostile frame is refused.
//! It sends the mean magnitude and the signs of each block of 64 coordinates; error feedback keeps the rest.

use std::error::Error;
use std::thread;

use gradwire::experiments::{BodyOutline, EncodeBody, Experiment, Experimental};
use gradwire::experiments::{ParseBody, Refused, UnitBody, UnitSource};
use gradwire::plan::Plan;
use gradwire::registry::Law;
use gradwire::{DecodeError, Decoder, Encoder, Gather, Grad, Layout, Limits, Memory, Scratch};
use gradwire::{Source, StepInput, StepKey, Unit, UnitPolicy};
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::{Deadline, Transport, local};

const WORLD: u32 = 4;
const LEN: usize = 1000;
const BLOCK: usize = 64;
const BLOCK_BYTES: usize = 12;

/// A body is, for each block, its scale as f32 and a u64 with a bit a coordinate: 1 for what is below zero.
struct SignBlocks;

impl ParseBody for SignBlocks {
    fn experiment(&self) -> Experiment {
        const { Experiment::new(0xf1).unwrap() }
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        let bytes = BLOCK_BYTES * body.unit.len.div_ceil(BLOCK);
        Ok(BodyOutline { bytes, held: body.unit.len, scratch_words: 0 })
    }

    fn check(&self, body: &UnitBody<'_>, _: &mut [u32]) -> Result<(), Refused> {
        let is_negative = body.bytes.chunks(BLOCK_BYTES).any(|block| block[3] >= 0x80);
        if is_negative { Err(Refused::new("a scale below zero")) } else { Ok(()) }
    }

    fn visit(&self, body: &UnitBody<'_>, _: &[u32], f: &mut dyn FnMut(usize, f32)) {
        for (block, first) in body.bytes.chunks(BLOCK_BYTES).zip((0..).step_by(BLOCK)) {
            let (Some(scale), Some(signs)) = (block.first_chunk(), block.last_chunk()) else { return };
            let (scale, signs) = (f32::from_le_bytes(*scale), u64::from_le_bytes(*signs));
            let len = BLOCK.min(body.unit.len - first);
            (0..len).for_each(|i| f(first + i, if signs >> i & 1 == 1 { -scale } else { scale }));
        }
    }
}

impl EncodeBody for SignBlocks {
    fn law(&self) -> Law {
        Law::Rounded
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        len.div_ceil(BLOCK).checked_mul(BLOCK_BYTES)
    }

    #[rustfmt::skip]
    fn encode_body(
        &self, _: &UnitSource<'_>, values: &[f32], _: &mut Scratch<'_>, out: &mut [u8],
    ) -> Result<usize, Refused> {
        for (values, out) in values.chunks(BLOCK).zip(out.chunks_mut(BLOCK_BYTES)) {
            let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
            let signs = values.iter().enumerate().map(|(i, value)| u64::from(*value < 0.0) << i).sum::<u64>();
            out[..4].copy_from_slice(&((sum / values.len() as f64) as f32).to_le_bytes());
            out[4..].copy_from_slice(&signs.to_le_bytes());
        }
        Ok(out.len())
    }
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn target(rank: u32, at: usize) -> f32 {
    ((7 * at + 13 * rank as usize) % 11) as f32 - 5.0
}

/// One rank's training. Its loss is half the squared distance to a target, so the model ends at the mean of
/// all targets.
fn train(mut transport: impl Transport) -> Outcome<Vec<f32>> {
    let (rank, layout) = (transport.rank().0, Layout::packed([("weights", vec![LEN])])?);
    let (codec, units, deadline) = (Experimental(SignBlocks), UnitPolicy::default(), Deadline::NEVER);
    let mut exchange =
        Exchange::new(Plan::of_gather(codec, units, &layout.as_ref()), layout, Route::AllGather)?;
    let (mut memory, mut params, mut mean) = (Memory::new(vec![0.0; LEN]), vec![0.0; LEN], vec![0.0; LEN]);
    for step in 0..400 {
        let grad: Vec<f32> = (0..LEN).map(|at| params[at] - target(rank, at)).collect();
        let key = StepKey { seed: 42, step, source: Source::Rank(rank) };
        exchange.start(&mut transport, key, Grad::F32(&grad), Some(&mut memory), deadline)?;
        exchange.finish(&mut transport, &mut mean, Some(&mut memory), deadline)?;
        params
            .iter_mut()
            .zip(&mean)
            .for_each(|(param, mean)| *param -= 0.1 * 0.98_f32.powi(step as i32) * mean);
    }
    Ok(transport.close(deadline).map(|()| params)?)
}

/// A stranger's frame is refused for what it says, and every frame by a reader that does not know the codec.
fn refuse_a_hostile_frame() -> Outcome<()> {
    let (codec, layout) = (Experimental(SignBlocks), Layout::packed([("weights", vec![2])])?);
    let (layout, key) = (layout.as_ref(), StepKey { seed: 42, step: 0, source: Source::Rank(0) });
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let grad = Grad::F32(&[9.0, -1.0]);
    let step = StepInput { key, layout: &layout, units: &[Unit::whole(2)], grad };
    let frame = encoder.encode(&codec, &step, None)?;
    let limits = Limits { max_magnitude: 4.0, ..Limits::for_layout(&layout) };
    assert!(decoder.parse_with(frame, &layout, &limits, codec.parser()).is_err());
    assert_eq!(decoder.parse(frame, &layout, &limits).unwrap_err(), DecodeError::UnknownCodec(0xf1));
    Ok(())
}

fn main() -> Outcome<()> {
    refuse_a_hostile_frame()?;
    let ranks: Vec<_> = local::world(WORLD).into_iter().map(|end| thread::spawn(|| train(end))).collect();
    let results =
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect::<Outcome<Vec<_>>>()?;
    assert!(results.iter().all(|params| *params == results[0]), "all ranks have the same bits");
    let best = |at| (0..WORLD).map(|rank| target(rank, at)).sum::<f32>() / WORLD as f32;
    let error = (0..LEN).map(|at| (results[0][at] - best(at)).abs()).fold(0.0, f32::max);
    println!("furthest from the best parameters: {error:.4}");
    assert!(error < 0.05);
    Ok(())
}
