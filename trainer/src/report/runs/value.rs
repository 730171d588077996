//! Tables whose cells are both text and numbers, in the forms that people paste.

use crate::report::csv_line;
use crate::report::numbers::{bytes, decimal, duration};
use crate::terminal;

/// A cell: what people read and, if it is a number, the number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) text: String,
    number: Option<f64>,
}

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self { text: text.to_owned(), number: None }
    }

    pub(super) fn none() -> Self {
        Self::text(NOTHING)
    }

    pub(super) fn number(number: f64, text: String) -> Self {
        Self { text, number: Some(number) }
    }

    pub(super) fn count(count: u64) -> Self {
        Self::number(count as f64, count.to_string())
    }

    pub(super) fn bytes(count: f64) -> Self {
        Self::number(count, bytes(count))
    }

    pub(super) fn seconds(seconds: f64) -> Self {
        Self::number(seconds, duration(seconds))
    }

    pub(super) fn share(share: f64) -> Self {
        Self::number(share, format!("{:.0} %", 100.0 * share))
    }

    pub(super) fn decimal(value: f64, decimals: usize) -> Self {
        Self::number(value, decimal(value, decimals))
    }
}

/// What stands where nothing is known.
const NOTHING: &str = "-";

/// A table with a title.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) title: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<Value>>,
}

/// How a table is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns, no wider than the terminal.
    #[default]
    Text,
    /// Numbers in bytes, seconds and shares, for spreadsheets.
    Csv,
    /// A table of Markdown.
    Markdown,
    /// A tabular of LaTeX.
    Latex,
}

impl Grid {
    /// Without the columns of which nothing is known in any row.
    pub(super) fn new(title: &str, head: &[&str], rows: Vec<Vec<Value>>) -> Self {
        assert!(rows.iter().all(|row| row.len() == head.len()), "a cell for each title");
        let is_known = |column: usize| rows.iter().any(|row| row[column].text != NOTHING);
        let known: Vec<usize> = (0..head.len()).filter(|&column| is_known(column)).collect();
        let chosen = |row: Vec<Value>| known.iter().map(|&column| row[column].clone()).collect();
        let head = known.iter().map(|&column| head[column].to_owned()).collect();
        Self { title: title.to_owned(), head, rows: rows.iter().cloned().map(chosen).collect() }
    }

    /// The cells as people read them.
    pub(super) fn texts(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(|row| row.iter().map(|value| value.text.clone()).collect()).collect()
    }

    /// The table in a form. A title stands above it where the form has room for one.
    pub(super) fn written(&self, format: Format) -> String {
        let titled =
            |text: String| if self.title.is_empty() { text } else { format!("{}:\n\n{text}", self.title) };
        match format {
            Format::Text => titled(terminal::table(&self.head, &self.texts())),
            Format::Csv => self.csv(),
            Format::Markdown => titled(self.markdown()),
            Format::Latex => self.latex(),
        }
    }

    /// Titles on one line.
    fn titles(&self) -> Vec<String> {
        self.head.iter().map(|title| title.replace('\n', " ")).collect()
    }

    fn csv(&self) -> String {
        let cell = |value: &Value| match value.number {
            Some(number) if number.is_finite() => number.to_string(),
            Some(_) => String::new(),
            None if value.text == NOTHING => String::new(),
            None => value.text.clone(),
        };
        let rows = self.rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>());
        std::iter::once(self.titles()).chain(rows).map(|cells| csv_line(&cells)).collect()
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> =
                cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = vec!["---".to_owned(); self.head.len()];
        let rows = self.texts();
        [line(&self.titles()), line(&rule)].into_iter().chain(rows.iter().map(|row| line(row))).collect()
    }

    fn latex(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| latex_text(cell)).collect();
            format!("{} \\\\\n", cells.join(" & "))
        };
        let columns = format!("l{}", "r".repeat(self.head.len().saturating_sub(1)));
        let rows: String = self.texts().iter().map(|row| line(row)).collect();
        format!(
            "\\begin{{tabular}}{{{columns}}}\n\\hline\n{}\\hline\n{rows}\\hline\n\\end{{tabular}}\n",
            line(&self.titles())
        )
    }
}

/// Text in which no character means anything to LaTeX.
fn latex_text(text: &str) -> String {
    let escaped = |c: char| match c {
        '&' | '%' | '$' | '#' | '_' | '{' | '}' => format!("\\{c}"),
        '~' => "\\textasciitilde{}".to_owned(),
        '^' => "\\textasciicircum{}".to_owned(),
        '\\' => "\\textbackslash{}".to_owned(),
        '±' => "$\\pm$".to_owned(),
        '−' => "$-$".to_owned(),
        '<' | '>' | '|' => format!("\\ensuremath{{{c}}}"),
        'µ' => "\\ensuremath{\\mu}".to_owned(),
        '\n' => " ".to_owned(),
        plain => plain.to_string(),
    };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let rows = vec![
            vec![Value::text("a_b, \"c\""), Value::bytes(1.5e6), Value::none(), Value::share(0.25)],
            vec![Value::text("x|y"), Value::bytes(7.0), Value::none(), Value::none()],
        ];
        Grid::new("Title", &["run", "bytes\nup", "nothing", "share"], rows)
    }

    #[test]
    fn a_column_of_which_nothing_is_known_is_left_out() {
        assert_eq!(grid().head, ["run", "bytes\nup", "share"]);
        assert!(grid().written(Format::Text).starts_with("Title:\n\nrun"));
    }

    #[test]
    fn a_spreadsheet_gets_numbers_and_a_page_gets_words() {
        assert_eq!(
            grid().written(Format::Csv),
            "run,bytes up,share\r\n\"a_b, \"\"c\"\"\",1500000,0.25\r\nx|y,7,\r\n"
        );
        let markdown = "Title:\n\n| run | bytes up | share |\n| --- | --- | --- |\n| a_b, \"c\" | 1.50 MB | 25 % |\n| x\\|y | 7 B | - |\n";
        assert_eq!(grid().written(Format::Markdown), markdown);
        let latex = "\\begin{tabular}{lrr}\n\\hline\nrun & bytes up & share \\\\\n\\hline\na\\_b, \"c\" & 1.50 MB & 25 \\% \\\\\nx\\ensuremath{|}y & 7 B & - \\\\\n\\hline\n\\end{tabular}\n";
        assert_eq!(grid().written(Format::Latex), latex);
    }

    #[test]
    fn nothing_in_a_name_means_anything_to_latex() {
        let text = latex_text("100 % & 3 µs ± 2, a_b{c}$#\\^~<");
        for bare in ["100 %", " & ", "a_b", "{c}", "µ", "±"] {
            assert!(!text.contains(bare), "{bare}: {text}");
        }
    }
}
