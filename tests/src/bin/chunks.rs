//! Prints what the positions of chunked top-k cost on real gradients, as a table: bits an entry of each index
//! coder, of fields of twelve bits, and of one number for all sets of as many entries.
//!
//! usage: `GRADWIRE_DATA=folder cargo run --release -p gradwire-tests --bin chunks`

use gradwire::{Decoder, Encoder, Grad, Limits, Source, Spec, StepInput, StepKey, Unit};
use gradwire_tests::gradients::{self, Gradient};
use gradwire_tests::positions::uniform_bits;

/// Coordinates of a chunk.
const CHUNK: usize = 4096;

/// Densities: one percent, 64 of 4096, four of 4096.
const DENSITIES: [f64; 3] = [0.01, 0.015625, 0.001];

const INDEXES: [&str; 4] = ["rice", "chunks", "context", "context-max"];

fn main() {
    let Some(folder) = gradients::folder("chunks") else { return };
    println!("| density | file | k | fields | all sets | {} | chunks / rice |", INDEXES.join(" | "));
    println!("| --- | --- | --- | --- | --- |{} --- |", " --- |".repeat(INDEXES.len()));
    for gradient in gradients::below(&folder) {
        for density in DENSITIES {
            print_row(&gradient, density);
        }
    }
}

fn print_row(gradient: &Gradient, density: f64) {
    let costs = INDEXES.map(|index| positions(gradient, density, index));
    let k = costs[0].0.len();
    let bits = costs.map(|(positions, bytes)| bytes as f64 * 8.0 / positions.len() as f64);
    let all_sets = bits_of_all_sets(&positions(gradient, density, "rice").0, gradient.values.len());
    let columns = bits.map(|bits| format!("{bits:.3}")).join(" | ");
    let ratio = bits[1] / bits[0];
    println!(
        "| {:.4} % | {} | {k} | 12 | {all_sets:.3} | {columns} | {ratio:.3} |",
        density * 100.0,
        gradient.name
    );
}

/// The positions that a frame holds, and the bytes of their section without its length.
fn positions(gradient: &Gradient, density: f64, index: &str) -> (Vec<usize>, usize) {
    let spelling = format!("topk:density={density},chunk={CHUNK},index={index},values=f32,memory=none");
    let codec = Spec::parse(&spelling).expect("the spelling is right").codec;
    let (layout, values) = (gradient.layout.as_ref(), &gradient.values);
    let (units, limits) = ([Unit::whole(values.len())], Limits::for_layout(&layout));
    let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let frame = encoder
        .encode(&codec, &StepInput { key, layout: &layout, units: &units, grad: Grad::F32(values) }, None)
        .expect("it is finite");
    let frame = decoder.parse(frame, &layout, &limits).expect("it was just encoded");
    let unit = frame.units().next().expect("there is one unit");
    let mut positions = Vec::new();
    unit.for_each(|position, _| positions.push(position));
    (positions, unit.info().index.expect("there are entries").1)
}

/// Bits an entry where all sets of as many entries of each chunk are as likely.
fn bits_of_all_sets(positions: &[usize], len: usize) -> f64 {
    let chunks = positions.chunk_by(|a, b| a / CHUNK == b / CHUNK);
    let bits = chunks.map(|chunk| {
        let size = CHUNK.min(len - chunk[0] / CHUNK * CHUNK);
        uniform_bits(size, chunk.len()) * chunk.len() as f64
    });
    bits.sum::<f64>() / positions.len() as f64
}
