//! How many coordinates each selection really sends over a recorded run, and how much of the energy it keeps.
//!
//! Arguments are the gradients of consecutive steps of one worker: safetensors files of f32. They are gone
//! through in order, again and again, with error feedback.

use gradwire::{Decoder, Encoder, Grad, LayoutRef, Limits, Memory, Source, Spec, StepInput, StepKey};
use gradwire_benches::squared_error;

const STEPS: usize = 200;

const SELECTIONS: [&str; 7] = [
    "topk:density=D",
    "dgc:density=D,momentum=0,dense_1d=false",
    "dgc:density=D,dense_1d=false",
    "sidco:density=D,fit=exp",
    "sidco:density=D,fit=gamma",
    "sidco:density=D",
    "sidco:density=D,cap=exact",
];

fn main() {
    let gradients: Vec<Vec<f32>> = std::env::args().skip(1).map(|path| read(&path)).collect();
    assert!(!gradients.is_empty(), "no gradients were named");
    println!("{} steps of {} coordinates\n", gradients.len(), gradients[0].len());
    println!(
        "| selection | sent / wanted: mean | 5 % | 95 % | energy kept |\n| --- | --- | --- | --- | --- |"
    );
    for density in ["0.1", "0.01", "0.001"] {
        for selection in SELECTIONS {
            report(&selection.replace('D', density), &gradients);
        }
    }
}

/// The data section of a safetensors file.
fn read(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (header, rest) = bytes.split_first_chunk().expect("a length");
    let data = &rest[u64::from_le_bytes(*header) as usize..];
    data.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
}

fn report(spelling: &str, gradients: &[Vec<f32>]) {
    let spec = Spec::parse(spelling).expect("a spelling");
    let layout = LayoutRef::flat(gradients[0].len());
    let units: Vec<_> = spec.units.units(&layout).collect();
    let wanted = spec.codec.target_count(&units).expect("a density") as f64;
    let mut memory = Memory::for_spec(&spec, &layout).expect("a memory");
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let (mut ratios, mut energy) = (Vec::new(), 0.0);
    for (step, grad) in gradients.iter().cycle().take(STEPS).enumerate() {
        let key = StepKey { seed: 1, step: step as u64, source: Source::Rank(0) };
        let input = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(grad) };
        let frame = encoder.encode(&spec.codec, &input, Some(&mut memory));
        let frame = decoder.parse(frame.expect("a gradient"), &layout, &Limits::for_layout(&layout));
        let frame = frame.expect("a frame");
        ratios.push(frame.units().map(|unit| unit.held()).sum::<usize>() as f64 / wanted);
        let mut sent = vec![0.0; grad.len()];
        frame.add_scaled_to(1.0, &mut sent);
        let p: Vec<f32> = sent.iter().zip(memory.residual()).map(|(sent, kept)| sent + kept).collect();
        energy += 1.0 - squared_error(&p, &sent);
    }
    let mean = ratios.iter().sum::<f64>() / STEPS as f64;
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios[STEPS / 20], ratios[STEPS - 1 - STEPS / 20]);
    println!("| `{spelling}` | {mean:.3} | {low:.3} | {high:.3} | {:.1} % |", 100.0 * energy / STEPS as f64);
}
