//! Prints what the positions of the largest values of real gradients cost, as a table: bits an entry and
//! nanoseconds an entry under `index=auto` and `index=context`, bits an entry and nanoseconds a coordinate
//! under `index=context-max`, beside the least that is listed for them.
//!
//! usage: `GRADWIRE_DATA=folder cargo run --release -p gradwire-tests --bin positions`

use gradwire_tests::gradients;
use gradwire_tests::positions::{DENSITIES, FEWEST, costs, listed, uniform_bits};

/// Encodes of each set with each index coder; the median difference to `index=raw` counts.
const REPEATS: u32 = 31;

fn main() {
    let Some(folder) = gradients::folder("positions") else { return };
    println!(
        "| density | file | k | iid | least | auto | context | of least | of iid | ns/entry | context-max | of least | ns/coordinate |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut ratios = [const { Vec::new() }; 3];
    for gradient in gradients::below(&folder) {
        for ((density, name), ratios) in DENSITIES.into_iter().zip(&mut ratios) {
            let indexes = ["raw", "auto", "context", "context-max"];
            let [_, auto, context, max] =
                costs(indexes, density, &gradient.layout, &gradient.values, REPEATS);
            if context.k < FEWEST {
                continue;
            }
            let n = gradient.values.len();
            let uniform = uniform_bits(n, context.k);
            let least = listed(&folder, &gradient.name, name);
            let of_least = [context, max].map(|cost| least.map(|least| cost.bits / least));
            ratios.extend(of_least[0].zip(of_least[1]));
            let optional = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
            println!(
                "| {name} | {} | {} | {uniform:.3} | {} | {:.3} | {:.3} | {} | {:.3} | {} | {:.3} | {} | {} |",
                gradient.name,
                context.k,
                optional(least),
                auto.bits,
                context.bits,
                optional(of_least[0]),
                context.bits / uniform,
                pair(context.ns, 0),
                max.bits,
                optional(of_least[1]),
                pair(max.ns.map(|ns| ns * max.k as f64 / n as f64), 1)
            );
        }
    }
    println!();
    for ((_, name), ratios) in DENSITIES.into_iter().zip(&ratios) {
        for (index, i) in [("context", 0), ("context-max", 1)] {
            let ratios = ratios.iter().map(|&(context, max)| [context, max][i]);
            let mean = ratios.clone().sum::<f64>() / ratios.len() as f64;
            let worst = ratios.fold(0.0, f64::max);
            println!(
                "At {name}: `{index}` {mean:.3} of the least listed on average, {worst:.3} at the most."
            );
        }
    }
}

fn pair([encode, parse]: [f64; 2], places: usize) -> String {
    format!("{encode:.places$}, {parse:.places$}")
}
