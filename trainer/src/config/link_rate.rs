//! Which index coder pays on a link: bits that are saved, against the time that saves them.
//!
//! Positions that cluster take fewer bits under `index=small`, and fewer still under `index=smallest`, but
//! coding them takes tens of nanoseconds each. That pays only on a slow link, so the trainer does it by
//! default only if the user states the rate.

use gradwire::Spec;

use super::RunCodec;

/// Index coders that may be chosen by default, from the fastest to the one with the fewest bits.
pub(crate) const CHOICES: [&str; 3] = ["auto", "small", "smallest"];

/// Nanoseconds that `context` takes for an entry, each way.
const CONTEXT_NS: f64 = 40.0;

/// Nanoseconds that `context-max` takes for a coordinate, each way.
const CONTEXT_MAX_NS: f64 = 15.0;

/// From a density on: bits an entry that `context` saves against `auto`, and that `context-max` saves against
/// `context`.
///
/// Medians over the accumulators (`efv`, `dgcv`) of `benches/results/positions.md` at 10 %, 1 % and 0.1 %,
/// each for the densities that are nearest to it.
const SAVED_BITS: [(f64, f64, f64); 3] = [(0.03, 0.08, 0.05), (0.003, 0.21, 0.06), (0.0, 1.05, 0.12)];

/// `spelling` with this index coder; `None` if it names one already, or its codec has none.
pub(crate) fn with_index(spelling: &str, index: &str) -> Option<Spec> {
    Spec::parse(&spell_index(spelling, index)).ok()
}

/// `spelling` and the key of an index coder.
pub(super) fn spell_index(spelling: &str, index: &str) -> String {
    let separator = if spelling.contains(':') { ',' } else { ':' };
    format!("{spelling}{separator}index={index}")
}

/// The codec with the index coder that pays if each of `workers` gathers the frames of all over a link of
/// `gbps` Gbit/s. `None` if the user named one, or if the codec has none or has no density, because then
/// nothing is known before it encodes.
///
/// A frame is sent to `workers` − 1 peers, encoded once and decoded `workers` times; nothing overlaps. For
/// each coder, only the expected size of positions counts, not its effect on values. Only sums, products and
/// quotients of the arguments are compared, so every machine makes the same choice.
pub(crate) fn choose(codec: &RunCodec, workers: usize, gbps: f64) -> Option<Spec> {
    let density = codec.spec.codec.density().filter(|_| codec.leaves_index_open())?.fraction();
    let gains = gains_ns(density, workers as f64, gbps);
    let best = (1..CHOICES.len()).fold(0, |best, i| if gains[i] > gains[best] { i } else { best });
    with_index(&codec.spec.to_string(), CHOICES[best])
}

/// Nanoseconds that each choice gains for an entry, against the first.
fn gains_ns(density: f64, workers: f64, gbps: f64) -> [f64; 3] {
    let saved = SAVED_BITS.iter().find(|row| density >= row.0).unwrap_or(&SAVED_BITS[2]);
    let moved = |bits: f64| (workers - 1.0) * bits / gbps;
    let all_coordinates = CONTEXT_MAX_NS / density;
    [
        0.0,
        moved(saved.1) - (1.0 + workers) * CONTEXT_NS,
        // Its encoder tries both coders, a decoder meets one.
        moved(saved.1 + saved.2) - (CONTEXT_NS + all_coordinates) - workers * all_coordinates,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(spelling: &str, workers: usize, gbps: f64) -> Option<String> {
        choose(&RunCodec::parse(spelling, true).unwrap(), workers, gbps).map(|spec| spec.to_string())
    }

    #[test]
    fn faster_links_are_worth_less_coding() {
        for (density, small_below, smallest_below) in [
            ("0.1", 3.0 * 0.08 / 200.0, 3.0 * 0.05 / (40.0 + 5.0 * 150.0 - 200.0)),
            ("0.01", 3.0 * 0.21 / 200.0, 3.0 * 0.06 / (40.0 + 5.0 * 1500.0 - 200.0)),
            ("0.001", 3.0 * 1.05 / 200.0, 3.0 * 0.12 / (40.0 + 5.0 * 15000.0 - 200.0)),
        ] {
            let codec = format!("topk:density={density}");
            let [small, smallest] = ["small", "smallest"].map(|index| format!("{codec},index={index}"));
            for (gbps, expected) in [
                (smallest_below * 1e-3, &smallest),
                (smallest_below * 0.999, &smallest),
                (smallest_below * 1.001, &small),
                (small_below * 0.999, &small),
                (small_below * 1.001, &codec),
                (100.0, &codec),
            ] {
                assert_eq!(chosen(&codec, 4, gbps).as_ref(), Some(expected), "{gbps} Gbit/s");
            }
            assert_eq!(chosen(&codec, 1, 1e-12), Some(codec), "nobody to send to");
        }
    }

    #[test]
    fn only_what_is_left_open_is_chosen() {
        for codec in ["topk", "dgc", "sidco", "topk:values=q8,unit=tensor"] {
            assert!(chosen(codec, 4, 1e-9).unwrap().contains("index=smallest"), "{codec}");
        }
        for codec in
            ["topk:index=auto", "topk:index=raw", "threshold:value=1", "randomk", "qsgd", "none", "dpsgd"]
        {
            assert_eq!(chosen(codec, 4, 1e-9), None, "{codec}");
        }
    }
}
