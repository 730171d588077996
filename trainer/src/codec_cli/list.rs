//! `trainer codec list`: every codec that a spelling can name.

use std::io::{self, Write};
use std::sync::LazyLock;

use gradwire::Spec;
use gradwire::registry::{CodecEntry, codecs};
use serde::Serialize;

use super::error::CliError;
use super::json;

/// Arguments of `trainer codec list`.
#[derive(Clone, Debug, clap::Args)]
pub struct ListArgs {
    /// Write JSON lines instead of text: an object for each codec
    #[arg(long)]
    pub json: bool,
}

/// One entry of the registry, with the keys that the JSON has.
#[derive(Debug, Serialize)]
struct Entry {
    names: Vec<Name>,
    kind: &'static str,
    keys: Vec<&'static str>,
    summary: &'static str,
    examples: &'static [&'static str],
}

/// A name, and the number that its frames have on the wire.
#[derive(Debug, Serialize)]
struct Name {
    name: &'static str,
    number: Option<u8>,
}

impl Entry {
    fn of(entry: CodecEntry) -> Self {
        let name = |&(name, id): &(&'static str, Option<gradwire::format::CodecId>)| Name {
            name,
            number: id.map(gradwire::format::CodecId::number),
        };
        Self {
            names: entry.names.iter().map(name).collect(),
            kind: entry.kind,
            keys: entry.keys.split_whitespace().collect(),
            summary: entry.summary,
            examples: entry.examples,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let names: Vec<String> = self.names.iter().map(Name::text).collect();
        writeln!(out, "{} [{}]", names.join(", "), self.kind)?;
        write_words(out, "  does      ", self.summary.split(' '))?;
        write_words(out, "  keys      ", self.keys.iter().copied())?;
        for (i, example) in self.examples.iter().enumerate() {
            writeln!(out, "  {:8}  {example}", if i == 0 { "examples" } else { "" })?;
        }
        Ok(())
    }
}

impl Name {
    fn text(&self) -> String {
        self.number.map_or_else(|| self.name.to_owned(), |number| format!("{} ({number})", self.name))
    }
}

/// Columns that a line of words may take.
const WIDTH: usize = 80;

/// Words after a title, on as many lines as they need.
pub(super) fn write_words<'a>(
    out: &mut impl Write,
    title: &str,
    words: impl Iterator<Item = &'a str>,
) -> io::Result<()> {
    let mut line = title.to_owned();
    for (i, word) in words.enumerate() {
        if line.len() + 1 + word.len() > WIDTH {
            writeln!(out, "{}", line.trim_end())?;
            line = " ".repeat(title.len());
        } else if i > 0 {
            line.push(' ');
        }
        line += word;
    }
    writeln!(out, "{line}")
}

pub(super) fn run(args: &ListArgs, out: &mut impl Write) -> Result<(), CliError> {
    let entries: Vec<Entry> = codecs().map(Entry::of).collect();
    if args.json {
        return entries.iter().try_for_each(|entry| json::write_line(out, entry));
    }
    write_text(&entries, out).map_err(CliError::Output)
}

fn write_text(entries: &[Entry], out: &mut impl Write) -> io::Result<()> {
    entries.iter().try_for_each(|entry| entry.write(out))?;
    writeln!(out, "In round brackets: the number of the codec in the header of its frames.")?;
    writeln!(out, "index=small and index=smallest also pack values, where that takes fewer bytes.")
}

static HELP: LazyLock<String> = LazyLock::new(|| {
    format!("Codecs: {}. `codec help NAME` shows the keys of one.", Spec::names().join(", "))
});

/// The names of all codecs, for the help of commands that take one.
pub(crate) fn codecs_help() -> &'static str {
    &HELP
}
