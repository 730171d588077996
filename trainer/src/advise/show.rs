//! Advice as text.

use std::io::{self, Write};

use super::costs::Costs;
use super::grid::{Advice, Cell, Choice, Question, Row};
use super::legend::Legend;
use crate::codec_cli::{self, Cost, significant};
use crate::config::OptimizerKind;
use crate::terminal;

/// Writes what was measured, what follows from it, and from which bandwidth on each codec pays.
pub(crate) fn write(
    costs: &Costs,
    question: &Question,
    advice: &Advice,
    out: &mut impl Write,
) -> io::Result<()> {
    write_costs(costs, out)?;
    writeln!(out, "{}", terminal::paragraph(&assumptions(question)))?;
    match advice.cells.as_slice() {
        [cell] => write_cell(cell, question, out)?,
        cells => {
            write_map(cells, question, out)?;
            write_break_even(cells, question, out)?;
        }
    }
    writeln!(out, "\n{}", terminal::paragraph(&closing(question)).trim_end())
}

/// What times do not say.
fn closing(question: &Question) -> String {
    let asks = match question.optimizer {
        OptimizerKind::Sgd => "With AdamW many codecs train worse: --optimizer adamw leaves these out. ",
        _ => "",
    };
    format!("These are times. {asks}`compare` shows what a codec does to the result.")
}

fn write_costs(costs: &Costs, out: &mut impl Write) -> io::Result<()> {
    let (count, bytes) = (grouped(costs.coordinates as f64), grouped(costs.dense_bytes()));
    let workers = match costs.side_by_side {
        1 => String::from("one worker"),
        many => format!("{many} workers side by side"),
    };
    writeln!(out, "{count} coordinates, {bytes} bytes as f32. Measured here, {workers}:\n")?;
    let titles =
        ["codec", "bytes", "ratio", "encode\nms", "decode\nms", "cosine", "error"].map(str::to_owned);
    let all = [&costs.dense, &costs.bf16].into_iter().chain(&costs.codecs);
    let cells = |cost: &Cost| {
        let bytes = cost.bytes as f64;
        let ratio = number(costs.dense_bytes() / bytes);
        let times = [cost.encode_s, cost.decode_s].map(|seconds| number(1e3 * seconds));
        let [encode, decode] = times;
        let [cosine, error] = [cost.cosine, cost.nmse].map(|value| value.map_or("-".to_owned(), number));
        vec![cost.codec.clone(), grouped(bytes), ratio, encode, decode, cosine, error]
    };
    let rows: Vec<Vec<String>> = all.map(cells).collect();
    write!(out, "{}", terminal::table(&titles, &rows))?;
    costs
        .failed
        .iter()
        .try_for_each(|reason| write!(out, "{}", terminal::paragraph(&format!("left out: {reason}"))))?;
    remarks(costs).iter().try_for_each(|remark| write!(out, "{}", terminal::paragraph(remark)))?;
    writeln!(out)
}

/// What should be known about the table of costs.
fn remarks(costs: &Costs) -> Vec<String> {
    let error = "cosine and error (‖decoded − gradient‖² / ‖gradient‖²) are those of one gradient without \
                 error feedback, which sends later what is missing.";
    let parts = costs.measured_coordinates.map(|measured| {
        let measured = codec_cli::grouped(measured);
        format!("Measured on a part of {measured} coordinates. Times and bytes are multiples of those.")
    });
    let disturbed = costs.disturbance().map(|what| {
        format!(
            "The measurement was disturbed: {what}. The least of each time counts, but the answer may be wrong: \
             ask again when the machine is at rest."
        )
    });
    parts.into_iter().chain([error.to_owned()]).chain(disturbed).collect()
}

fn assumptions(question: &Question) -> String {
    let overlap = match question.overlap.buckets {
        1 => String::from("The exchange begins when the gradient is whole."),
        buckets => format!(
            "The gradient travels in {buckets} buckets, all but the last during the backward pass, which then takes \
             {} times as long.",
            number(question.overlap.slowdown)
        ),
    };
    let (compute, latency) = (number(1e3 * question.compute_s), number(1e6 * question.latency_s));
    let burst = match question.burst_bytes {
        0.0 => String::new(),
        bytes => format!(", and pass {} bytes at once after a pause", grouped(bytes.round())),
    };
    let copies = question.copy_gbps.map_or(String::new(), |gbps| {
        format!(
            " Codecs wait for the gradient from a GPU, and the GPU for the mean, at {} each.",
            bandwidth(gbps)
        )
    });
    let near = question
        .least_cosine
        .map_or(String::new(), |least| format!(" Only codecs with a cosine of at least {least} are taken."));
    format!(
        "A step computes for {compute} ms. Links have {latency} µs of latency{burst}. {overlap}{copies}{near}"
    )
}

/// One number of workers on one link: every codec.
fn write_cell(cell: &Cell, question: &Question, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", terminal::paragraph(&verdict(cell, question)))?;
    let titles = [
        "codec",
        "exchange",
        "step\nms",
        "coding\nms",
        "moving\nms",
        "bytes a\nworker",
        "times as\nfast",
        "break-even\nGbit/s",
    ];
    let cells = |row: &Row| {
        let Row { codec, exchange, step_ms, coding_ms, moving_ms, bytes, break_even_gbps, .. } = row;
        vec![
            codec.clone(),
            exchange.name().to_owned(),
            number(*step_ms),
            number(*coding_ms),
            number(*moving_ms),
            grouped(*bytes),
            number(cell.dense.step_ms / step_ms),
            break_even(*break_even_gbps),
        ]
    };
    let mut rows: Vec<&Row> = [&cell.dense, &cell.bf16].into_iter().chain(&cell.codecs).collect();
    rows.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    let mut rows: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
    let dense = rows.iter_mut().find(|row| row[0] == cell.dense.codec);
    dense.into_iter().for_each(|row| row[7] = String::from("-"));
    write!(out, "{}", terminal::table(&titles.map(str::to_owned), &rows))
}

/// What to do, in a sentence.
fn verdict(cell: &Cell, question: &Question) -> String {
    let place = format!("{} workers, {}", cell.workers, bandwidth(cell.gbps));
    let dense = number(cell.dense.step_ms);
    let gain = |row: &Row| {
        let (step, times) = (number(row.step_ms), number(cell.speed_up));
        format!(
            "{} by {}: {step} ms a step, dense {dense} ms: {times} times as fast.",
            row.codec,
            row.exchange.name()
        )
    };
    match cell.choice {
        Choice::Codec(number) => format!("{place}: {}", gain(&cell.codecs[number])),
        Choice::Bf16 => format!(
            "{place}: do not compress, but send elements as bf16. No codec is {} % faster. {}",
            number(100.0 * question.least_gain),
            gain(&cell.bf16)
        ),
        Choice::Dense => format!(
            "{place}: do not compress. A dense step takes {dense} ms, of which {} ms move bytes; nothing makes it {} % shorter.",
            number(cell.dense.moving_ms),
            number(100.0 * question.least_gain)
        ),
    }
}

/// A bandwidth with its unit.
pub(super) fn bandwidth(gbps: f64) -> String {
    let (value, unit) = if gbps < 1.0 { (1e3 * gbps, "Mbit/s") } else { (gbps, "Gbit/s") };
    // Drops the digits by which a product of decimal fractions is off.
    format!("{} {unit}", (value * 1e6).round() / 1e6)
}

/// Cells by workers: rows of a map.
pub(super) fn by_workers<'a>(cells: &'a [Cell], question: &Question) -> impl Iterator<Item = &'a [Cell]> {
    cells.chunks(question.gbps.len().max(1))
}

fn write_map(cells: &[Cell], question: &Question, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "The shortest step, and how many times as fast as dense f32 it is:\n")?;
    let legend = Legend::of(cells);
    let bandwidths = question.gbps.iter().map(|&gbps| bandwidth(gbps).replace(' ', "\n"));
    let titles: Vec<String> = std::iter::once(String::from("workers")).chain(bandwidths).collect();
    let rows: Vec<Vec<String>> = by_workers(cells, question)
        .map(|row| {
            let labels = row.iter().map(|cell| legend.label(cell));
            std::iter::once(row[0].workers.to_string()).chain(labels).collect()
        })
        .collect();
    writeln!(out, "{}", terminal::table(&titles, &rows))?;
    writeln!(out, "dense: do not compress; bf16: dense, sent as two bytes an element")?;
    legend.lines(cells).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out)
}

fn write_break_even(cells: &[Cell], question: &Question, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "Break-even in Gbit/s by workers; on slower links a codec shortens a dense step:\n")?;
    let columns: Vec<&Cell> = by_workers(cells, question).filter_map(<[Cell]>::first).collect();
    let workers = columns.iter().map(|cell| cell.workers.to_string());
    let titles: Vec<String> = std::iter::once(String::from("codec")).chain(workers).collect();
    let codecs = columns.first().map_or(0, |cell| 1 + cell.codecs.len());
    let row_of = |cell: &Cell, number: usize| match number {
        0 => cell.bf16.clone(),
        codec => cell.codecs[codec - 1].clone(),
    };
    let rows: Vec<Vec<String>> = (0..codecs)
        .map(|number| {
            let rows: Vec<Row> = columns.iter().map(|cell| row_of(cell, number)).collect();
            let limits = rows.iter().map(|row| break_even(row.break_even_gbps));
            rows.iter().take(1).map(|row| row.codec.clone()).chain(limits).collect()
        })
        .collect();
    write!(out, "{}", terminal::table(&titles, &rows))
}

fn break_even(gbps: f64) -> String {
    match gbps {
        0.0 => String::from("never"),
        f64::INFINITY => String::from("always"),
        gbps => number(gbps),
    }
}

/// Three significant digits.
pub(super) fn number(value: f64) -> String {
    significant(value, 3)
}

/// Bytes or elements.
fn grouped(count: f64) -> String {
    codec_cli::grouped(count.round() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_measurement_says_so_and_a_part_says_of_what() {
        let gradient = codec_cli::Gradient::drawn(500).unwrap();
        let mut costs =
            Costs::measure(&gradient, &["qsgd".to_owned()], 1, 1).unwrap().scaled_to(7_000_000_000);
        let of = |costs: &Costs| {
            let mut out = Vec::new();
            write_costs(costs, &mut out).unwrap();
            String::from_utf8(out).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let conditions = costs.conditions.as_mut().unwrap();
        (conditions.load, conditions.copy_least_s, conditions.copy_most_s) = (None, 1e-4, 1.1e-4);
        let text = of(&costs);
        assert!(
            text.contains("7,000,000,000 coordinates") && text.contains("on a part of 500 coordinates"),
            "{text}"
        );
        assert!(!text.contains("disturbed"), "{text}");
        costs.conditions.as_mut().unwrap().copy_most_s = 3.5e-4;
        let text = of(&costs);
        assert!(text.contains("disturbed: the same copy of the gradient took 0.100 to 0.350 ms"), "{text}");
        assert!(text.contains("cosine error") && text.contains("qsgd"), "{text}");
    }

    #[test]
    fn bandwidths_are_short() {
        assert_eq!(
            [0.07, 0.0005, 2.5, 400.0].map(bandwidth),
            ["70 Mbit/s", "0.5 Mbit/s", "2.5 Gbit/s", "400 Gbit/s"]
        );
        assert_eq!([0.0, f64::INFINITY, 12.34].map(break_even), ["never", "always", "12.3"]);
    }
}
