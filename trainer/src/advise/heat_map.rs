//! Advice as a drawing: workers by bandwidth, each cell the codec to take.

use askama::Template;

use super::grid::{Advice, Cell, Choice, Question};
use super::legend::Legend;
use super::show::{bandwidth, by_workers};

/// Widths and heights, in pixels.
const LEFT: usize = 74;
const TOP: usize = 52;
const CELL: (usize, usize) = (76, 34);
const LINE: usize = 20;

/// Speed-ups at and above this have the darkest colour.
const DARKEST: f64 = 30.0;

#[derive(Template)]
#[template(path = "heat_map.svg", escape = "html")]
struct HeatMap {
    width: usize,
    height: usize,
    title: String,
    description: String,
    columns: Vec<Label>,
    rows: Vec<Label>,
    cells: Vec<Tile>,
    legend: Vec<Label>,
}

/// Text at a place.
struct Label {
    x: usize,
    y: usize,
    text: String,
}

/// A coloured cell.
struct Tile {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    /// Hue, and saturation and lightness in per cent, as CSS has them.
    hue: u32,
    lightness: u32,
    text: String,
    /// For whoever points at it.
    hint: String,
}

/// The drawing as an SVG file of its own.
pub(crate) fn svg(question: &Question, advice: &Advice) -> String {
    let middle = |column: usize| LEFT + column * CELL.0 + CELL.0 / 2;
    let columns = question.gbps.iter().enumerate();
    let columns = columns.map(|(at, &gbps)| Label { x: middle(at), y: TOP - 10, text: bandwidth(gbps) });
    let rows = question.workers.iter().enumerate();
    let rows = rows.map(|(at, workers)| Label { x: LEFT - 10, y: baseline(at), text: workers.to_string() });
    let cells = by_workers(&advice.cells, question).enumerate();
    let letters = &Legend::of(&advice.cells);
    let cells = cells.flat_map(|(row, cells)| {
        cells.iter().enumerate().map(move |(at, cell)| tile(cell, letters.label(cell), row, at))
    });
    let bottom = TOP + question.workers.len() * CELL.1 + LINE;
    let legend: Vec<Label> = legend(advice, letters)
        .into_iter()
        .enumerate()
        .map(|(at, text)| Label { x: LEFT, y: bottom + at * LINE, text })
        .collect();
    let map = HeatMap {
        width: (LEFT + question.gbps.len() * CELL.0 + 10).max(460),
        height: bottom + legend.len() * LINE,
        title: String::from("The codec with the shortest step"),
        description: description(advice),
        columns: columns.collect(),
        rows: rows.collect(),
        cells: cells.collect(),
        legend,
    };
    // Fails only if writing to a string does.
    map.render().unwrap_or_default()
}

fn baseline(row: usize) -> usize {
    TOP + row * CELL.1 + CELL.1 / 2 + 5
}

fn tile(cell: &Cell, text: String, row: usize, column: usize) -> Tile {
    let (hue, lightness) = colour(cell);
    Tile {
        x: LEFT + column * CELL.0,
        y: TOP + row * CELL.1,
        width: CELL.0,
        height: CELL.1,
        hue,
        lightness,
        text,
        hint: sentence(cell),
    }
}

/// The hue says which codec, the lightness how much is gained; where none is taken, it is grey.
fn colour(cell: &Cell) -> (u32, u32) {
    let hue = match cell.choice {
        Choice::Dense => return (0, 95),
        Choice::Bf16 => 45,
        Choice::Codec(number) => (205 + 67 * number as u32) % 360,
    };
    let share = (cell.speed_up.max(1.0).ln() / DARKEST.ln()).min(1.0);
    // No darker than dark text can be read on.
    (hue, 92 - (30.0 * share) as u32)
}

/// A cell in words.
fn sentence(cell: &Cell) -> String {
    let what = match cell.choice {
        Choice::Dense => String::from("do not compress"),
        Choice::Bf16 | Choice::Codec(_) => format!("{} by {}", cell.codec, cell.exchange.name()),
    };
    format!(
        "{} workers, {}: {what}, {:.2} times as fast as dense",
        cell.workers,
        bandwidth(cell.gbps),
        cell.speed_up
    )
}

/// All cells in words, for whoever does not see the drawing.
fn description(advice: &Advice) -> String {
    advice.cells.iter().map(sentence).collect::<Vec<_>>().join("; ")
}

fn legend(advice: &Advice, letters: &Legend) -> Vec<String> {
    let dense = String::from("dense: do not compress. Numbers: how many times as fast as dense f32");
    let bf16 = String::from("bf16: dense, sent as two bytes an element");
    let has_bf16 = advice.cells.iter().any(|cell| cell.choice == Choice::Bf16);
    std::iter::once(dense).chain(has_bf16.then_some(bf16)).chain(letters.lines(&advice.cells)).collect()
}
