//! Tables and notes for people, no wider than the terminal.

use std::io::stdout;
use std::path::Path;
use std::sync::LazyLock;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};

/// Columns of characters if the terminal does not say how many it has, or if there is no terminal.
const DEFAULT_WIDTH: usize = 80;

/// Tables are at least this wide, even on a narrower terminal.
const LEAST_WIDTH: usize = 40;

/// Spaces between two columns.
const GAP: usize = 2;

/// What this program is called, in front of its messages: a codec of another crate has a program of its own.
pub(crate) fn program() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let path = std::env::args_os().next().unwrap_or_default();
        Path::new(&path).file_stem().map_or("trainer".into(), |name| name.to_string_lossy().into_owned())
    });
    &NAME
}

/// Columns of characters of the terminal that standard output is.
fn terminal_width() -> usize {
    let size = terminal_size::terminal_size_of(stdout());
    size.map_or(DEFAULT_WIDTH, |(width, _)| usize::from(width.0).max(LEAST_WIDTH))
}

/// A table with these titles, each of one or several lines. The first column is aligned left, the others
/// right. Columns that do not fit the terminal side by side become several tables, one below the other, each
/// with the first column.
pub(crate) fn table(titles: &[String], rows: &[Vec<String>]) -> String {
    table_of_width(titles, rows, terminal_width())
}

fn table_of_width(titles: &[String], rows: &[Vec<String>], width: usize) -> String {
    let lines = |column: usize| {
        let cells = rows.iter().filter_map(move |row| row.get(column));
        titles.get(column).into_iter().chain(cells).flat_map(|cell| cell.lines())
    };
    let widths: Vec<usize> = (0..titles.len())
        .map(|column| lines(column).map(|line| line.chars().count()).max().unwrap_or(0))
        .collect();
    let Some((&first, others)) = widths.split_first() else { return String::new() };
    let others_width: usize = others.iter().map(|width| width + GAP).sum();
    // If it does not fit, the first column gets two fifths of the width, and longer names are broken.
    let first = if first + others_width <= width { first } else { first.min(width * 2 / 5) };
    let (mut text, mut from) = (String::new(), 1);
    while from < titles.len() {
        let (mut to, mut used) = (from, first);
        while to < titles.len() && (to == from || used + GAP + widths[to] <= width) {
            used += GAP + widths[to];
            to += 1;
        }
        if from > 1 {
            text.push('\n');
        }
        text += &part(titles, rows, first, from..to);
        from = to;
    }
    text
}

/// A note, broken into lines between words. Every line ends with a line break, the last one too.
pub(crate) fn paragraph(text: &str) -> String {
    paragraph_of_width(text, terminal_width())
}

fn paragraph_of_width(text: &str, width: usize) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX)).add_row([text]);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 0));
    });
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The first column, and some of the others.
fn part(titles: &[String], rows: &[Vec<String>], first: usize, columns: std::ops::Range<usize>) -> String {
    let chosen = |row: &[String]| -> Vec<String> {
        let cell = |column: usize| row.get(column).cloned().unwrap_or_default();
        let name = broken(&cell(0), first);
        std::iter::once(name).chain(columns.clone().map(cell)).collect()
    };
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::MAX);
    table.set_header(chosen(titles));
    rows.iter().for_each(|row| {
        table.add_row(chosen(row));
    });
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP as u16));
        if number == 0 {
            column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed((first + GAP) as u16)));
        } else {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A name that is longer than a line is broken after its commas and spaces and, where a part is longer than a
/// line, after its colon, its equals sign and its hyphens.
fn broken(name: &str, width: usize) -> String {
    broken_at(name, width, &[&[',', ' '], &[':'], &['='], &['-', '/']])
}

fn broken_at(name: &str, width: usize, places: &[&[char]]) -> String {
    let Some((ends, further)) = places.split_first() else { return name.to_owned() };
    let (mut text, mut used) = (String::new(), 0);
    for part in name.split_inclusive(*ends) {
        let len = part.trim_end().chars().count();
        if used > 0 && used + len > width {
            text.truncate(text.trim_end().len());
            text.push('\n');
            used = 0;
        }
        let part = if len > width { broken_at(part, width, further) } else { part.to_owned() };
        used = part
            .rsplit('\n')
            .next()
            .map_or(0, |line| line.chars().count() + if part.contains('\n') { 0 } else { used });
        text += &part;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn columns_are_aligned() {
        let text = table_of_width(&strings(&["codec", "size\nbytes"]), &[strings(&["none", "4"])], 80);
        assert_eq!(text, "codec   size\n       bytes\nnone       4\n");
    }

    #[test]
    fn long_names_are_broken_behind_commas_and_spaces() {
        assert_eq!(
            broken("dgc:density=0.01,clip=2 lr=0.1 momentum=0", 20),
            "dgc:density=0.01,\nclip=2 lr=0.1\nmomentum=0"
        );
        assert_eq!(broken("none lr=0.1", 20), "none lr=0.1");
    }

    /// On 40 columns a name has 16.
    #[test]
    fn no_name_is_broken_inside_a_number() {
        for (name, lines) in [
            ("topk:density=0.001,values=q8", &["topk:", "density=0.001,", "values=q8"][..]),
            ("powersgd:rank=2", &["powersgd:rank=2"]),
            (
                "qsgd:levels=64,norm=l2,bucket=4294967295",
                &["qsgd:levels=64,", "norm=l2,", "bucket=", "4294967295"],
            ),
            (
                "dgc:density=0.0001,dense_1d=false lr=0.1",
                &["dgc:", "density=0.0001,", "dense_1d=false", "lr=0.1"],
            ),
            ("topk-density-0.01-seed-1", &["topk-density-", "0.01-seed-1"]),
        ] {
            assert_eq!(broken(name, 16).lines().collect::<Vec<_>>(), lines);
        }
    }

    #[test]
    fn notes_are_broken_between_words_and_lose_none() {
        let note = "note: dgc sends 7,850 of 7,850 coordinates dense, in tensors of one dimension or of few \
                    elements; dense_1d=false compresses those of one dimension too";
        for width in [40, 50, 80, 100] {
            let text = paragraph_of_width(note, width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}\n{text}");
            assert_eq!(text.split_whitespace().collect::<Vec<_>>(), note.split(' ').collect::<Vec<_>>());
            // Each line holds as many words as it can.
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2) {
                let next = pair[1].split(' ').next().unwrap();
                assert!(pair[0].chars().count() + 1 + next.len() > width, "{width}\n{text}");
            }
        }
        assert_eq!(paragraph_of_width("short", 80), "short\n");
    }

    #[test]
    fn what_does_not_fit_goes_below() {
        let titles = strings(&["codec", "first", "second", "third"]);
        let long = "topk:density=0.01,values=q8,index=smallest";
        let rows = [strings(&[long, "1,234,567", "7,654,321", "1,111,111"])];
        let wide = table_of_width(&titles, &rows, 80);
        assert!(wide.lines().count() == 2 && wide.contains(long), "{wide}");
        for width in [40, 50, 60] {
            let text = table_of_width(&titles, &rows, width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}\n{text}");
            assert_eq!(text.matches("codec").count() > 1, width < 60, "{text}");
            let parts = ["topk:density=0.01,", "values=q8,", "index=smallest"].map(str::to_owned);
            let parts = parts.iter().filter(|part| part.len() <= width * 2 / 5);
            for cell in titles.iter().chain(&rows[0][1..]).chain(parts) {
                assert!(text.contains(cell), "{width}: {cell} is not whole in\n{text}");
            }
        }
    }
}
