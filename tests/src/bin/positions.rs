//! Prints what the positions of the largest values of real gradients cost, as a table: bits an entry and nanoseconds an
//! entry under `index=auto` and `index=context`, beside the least that is listed for them.
//!
//! usage: `GRADWIRE_DATA=folder cargo run --release -p gradwire-tests --bin positions`

use gradwire_tests::positions::{DENSITIES, FEWEST, cost, folder, gradients, listed, uniform_bits};

/// Encodes of each set; the median time counts.
const REPEATS: u32 = 15;

fn main() {
    let Some(folder) = folder() else { return };
    println!(
        "| density | file | k | iid | least listed | auto | context | of least | of iid | ns encode | ns decode |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut ratios = [const { Vec::new() }; 3];
    for gradient in gradients(&folder) {
        for ((density, name), ratios) in DENSITIES.into_iter().zip(&mut ratios) {
            let measure = |index| cost(index, density, &gradient.shapes, &gradient.values, REPEATS);
            let raw = measure("raw");
            if raw.k < FEWEST {
                continue;
            }
            let (auto, context) = (measure("auto"), measure("context"));
            let uniform = uniform_bits(gradient.values.len(), context.k);
            let least = listed(&folder, &gradient.name, name);
            let ratio = least.map(|least| context.bits / least);
            ratios.extend(ratio);
            let [encode, decode] = [0, 1].map(|i| context.ns[i] - raw.ns[i]);
            let optional = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
            println!(
                "| {name} | {} | {} | {uniform:.3} | {} | {:.3} | {:.3} | {} | {:.3} | {encode:.0} | {decode:.0} |",
                gradient.name,
                context.k,
                optional(least),
                auto.bits,
                context.bits,
                optional(ratio),
                context.bits / uniform
            );
        }
    }
    println!();
    for ((_, name), ratios) in DENSITIES.into_iter().zip(&ratios) {
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        let worst = ratios.iter().fold(0.0, |worst: f64, &ratio| worst.max(ratio));
        println!("At {name}: {mean:.3} of the least listed on average, {worst:.3} at the most.");
    }
}
