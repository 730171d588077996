//! Context-coded positions cost what they are promised to cost: on real gradients, on made-up ones with the
//! same order, and where there is no order at all.

use gradwire::Layout;
use gradwire_tests::inputs::{Input, Words};
use gradwire_tests::positions::{DENSITIES, FEWEST, best_rice_bits, cost, largest, listed, uniform_bits};
use gradwire_tests::{gradients, run};

/// Bits an entry that a set of positions costs.
fn bits(index: &str, shapes: &[Vec<usize>], n: usize, positions: &[usize]) -> f64 {
    let mut values = vec![0.0; n];
    positions.iter().for_each(|&position| values[position] = 1.0);
    let cost = cost(index, positions.len() as f64 / n as f64, &run::layout(shapes), &values);
    assert_eq!(cost.k, positions.len());
    cost.bits
}

/// One shape, and many of all kinds.
fn layouts(n: usize) -> [Vec<Vec<usize>>; 3] {
    let mut many: Vec<Vec<usize>> =
        (1..60).map(|i| if i % 3 == 0 { vec![i, n / 2000] } else { vec![i] }).collect();
    many.push(vec![n - many.iter().map(|shape| shape.iter().product::<usize>()).sum::<usize>()]);
    [vec![vec![n]], vec![vec![n / 50, 50]], many]
}

#[test]
fn positions_without_order_cost_hardly_more_than_their_number() {
    let mut words = Words::new(1);
    for n in [2500, 40_000, 300_000] {
        for layout in layouts(n) {
            for (density, name) in DENSITIES {
                let k = (n as f64 * density) as usize;
                if k < FEWEST {
                    continue;
                }
                let mut all: Vec<usize> = (0..n).collect();
                (0..k).for_each(|i| all.swap(i, i + words.below((n - i) as u64) as usize));
                let mut random = all[..k].to_vec();
                random.sort_unstable();
                let every = (0..k).map(|i| i * (n / k)).collect();
                let sets: [(&str, Vec<usize>); 4] = [
                    ("random", random),
                    ("every k-th", every),
                    ("the first", (0..k).collect()),
                    ("the last", (n - k..n).collect()),
                ];
                for (set, positions) in sets {
                    for index in ["context", "context-max"] {
                        let ratio = bits(index, &layout, n, &positions) / uniform_bits(n, k);
                        let tensors = layout.len();
                        assert!(
                            ratio <= 1.03,
                            "{index}, {set}, {k} of {n}, {name}, {tensors} tensors: {ratio:.4}"
                        );
                    }
                }
            }
        }
    }
}

/// Within a hundredth of the shortest Rice codes in blocks, of any size, with the best parameter of each.
#[test]
fn rice_codes_are_as_short_as_in_the_best_blocks() {
    for input in [Input::Normal(1), Input::Heavy(2), Input::Uneven(3), Input::Rows(4)] {
        for n in [30_000, 250_000] {
            rice_is_best(&run::layout(&[vec![n]]), &input.values(n), &format!("{input:?} of {n}"));
        }
    }
    for gradient in gradients::all("rice_codes_are_as_short_as_in_the_best_blocks") {
        rice_is_best(&gradient.layout, &gradient.values, &gradient.name);
    }
}

/// `auto` takes no more than blocks of 128 do, and hardly more than the best blocks.
fn rice_is_best(layout: &Layout, values: &[f32], name: &str) {
    for (density, at) in DENSITIES {
        let auto = cost("auto", density, layout, values);
        if auto.k < FEWEST {
            continue;
        }
        let positions = largest(values, auto.k);
        let [usual, any] = [7..=7, 4..=16].map(|sizes| auto.bits / best_rice_bits(&positions, sizes));
        println!("{name}, {at}: {usual:.4} of blocks of 128, {any:.4} of the best blocks");
        assert!(usual <= 1.0 && any <= 1.01, "{name} at {at}: {:.4} bits", auto.bits);
    }
}

/// The same where a size of its own is best: runs of neighbours, layers of very different density, and
/// clusters.
#[test]
fn rice_codes_follow_the_order_of_the_positions() {
    let n = 200_000;
    let every = |period: usize, kept: usize| (0..n).filter(|i| i % period < kept).collect::<Vec<usize>>();
    let layers = |sizes: [usize; 2]| {
        let mut words = Words::new(5);
        let mut positions = Vec::new();
        let (mut at, mut layer) = (0, 0);
        while at < n {
            let one_in = [8, 1000][layer % 2];
            positions.extend((at..(at + sizes[layer % 2]).min(n)).filter(|_| words.below(one_in) == 0));
            at += sizes[layer % 2];
            layer += 1;
        }
        positions
    };
    for (name, positions) in [
        ("the first", (0..n / 10).collect()),
        ("runs of 16", every(1600, 16)),
        ("runs of 500", every(5000, 500)),
        ("layers of 200", layers([200, 4000])),
        ("layers of 5000", layers([5000, 40_000])),
    ] {
        let [auto, rice] = ["auto", "rice"].map(|index| bits(index, &[vec![n]], n, &positions));
        let [usual, best] = [7..=7, 4..=16].map(|sizes| best_rice_bits(&positions, sizes));
        println!("{name}: {:.4} of blocks of 128, {:.4} of the best blocks", rice / usual, rice / best);
        assert!(auto <= rice && rice <= 1.01 * best, "{name}: {rice:.4} bits, {best:.4}");
    }
}

/// Rows and columns of very different scale, and rows that repeat.
#[test]
fn positions_in_rows_and_columns_cost_much_less_than_rice_codes() {
    for (density, most) in [(0.1, 0.88), (0.01, 0.85)] {
        for seed in 0..5 {
            let n = 48 * 1500;
            let values = Input::Rows(seed).values(n);
            let cost = |index| cost(index, density, &run::layout(&[vec![n / 48, 48]]), &values).bits;
            let [rice, context, max] = ["rice", "context", "context-max"].map(cost);
            assert!(context <= most * rice, "{density}: {context:.3} bits, rice {rice:.3}");
            assert!(max <= 0.97 * context, "{density}: {max:.3} bits, context {context:.3}");
            assert_eq!([cost("small"), cost("smallest")], [context, max]);
        }
    }
}

/// Word embeddings early in training: most words did not occur, and the gradients of the others are like each
/// other.
#[test]
fn rows_that_repeat_cost_next_to_nothing() {
    let (rows, width) = (2000, 96);
    let mut words = Words::new(3);
    let mut subset =
        |n: usize, one_in: u64| -> Vec<usize> { (0..n).filter(|_| words.below(one_in) == 0).collect() };
    let (present, columns) = (subset(rows, 8), subset(width, 4));
    let positions: Vec<usize> =
        present.iter().flat_map(|row| columns.iter().map(move |column| row * width + column)).collect();
    let bits = |index| bits(index, &[vec![rows, width]], rows * width, &positions);
    let (context, max) = (bits("context"), bits("context-max"));
    assert!(max <= 0.3 && max <= 0.5 * context, "{max:.3} bits, context {context:.3}");
}

/// Without shapes there are no columns to know.
#[test]
fn knowing_the_columns_pays() {
    let n = 48 * 1500;
    let values = Input::Rows(7).values(n);
    let cost = |shape: Vec<usize>| cost("context", 0.02, &run::layout(&[shape]), &values).bits;
    let (matrix, flat) = (cost(vec![n / 48, 48]), cost(vec![n]));
    assert!(matrix < 0.97 * flat, "{matrix:.3} bits with columns, {flat:.3} without");
}

#[test]
fn positions_of_real_gradients_cost_what_is_promised() {
    let Some(folder) = gradients::folder("positions_of_real_gradients_cost_what_is_promised") else { return };
    let mut judged = 0;
    for gradient in gradients::below(&folder) {
        for (density, name) in DENSITIES {
            for (index, most) in [("context", 1.2), ("context-max", 1.05)] {
                let cost = cost(index, density, &gradient.layout, &gradient.values);
                if cost.k < FEWEST {
                    continue;
                }
                let at = format!("{index}, {} at {name}: {:.3} bits", gradient.name, cost.bits);
                let uniform = uniform_bits(gradient.values.len(), cost.k);
                assert!(cost.bits <= 1.03 * uniform, "{at}, all sets as likely: {uniform:.3}");
                if let Some(least) = listed(&folder, &gradient.name, name) {
                    assert!(cost.bits <= most * least, "{at}, the least listed: {least:.3}");
                    judged += 1;
                }
            }
        }
    }
    assert!(judged >= 60, "only {judged} sets were found in the table");
}
