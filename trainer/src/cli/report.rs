//! `trainer report`: the page of runs that are done or under way, from their `metrics.jsonl`.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::numbers::positive;
use crate::command::Failure;
use crate::files::{self, ensure_output};
use crate::record::LoggedRun;
use crate::report::runs::{Asked, Format, Report};

#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// Folders that hold a metrics.jsonl, such files themselves, or the folder of a comparison, for all its
    /// runs. This program writes them, and the Python package's hook does
    #[arg(value_name = "DIR", required = true)]
    runs: Vec<PathBuf>,
    /// Page to write [default: report.html in the working folder]
    #[arg(long, value_name = "FILE", default_value = "report.html", hide_default_value = true)]
    out: PathBuf,
    /// Overwrite the page if it exists
    #[arg(long)]
    force: bool,
    /// How the tables are written on the terminal
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// A quality, per cent of accuracy or for text a perplexity. A table then says how many steps, bytes and
    /// seconds each run took to reach it
    #[arg(long, value_name = "X", value_parser = positive)]
    target: Option<f64>,
    /// Rate of each worker's link in Gbit/s, above 0, for the use of the link [default: the one that the run
    /// was told]
    #[arg(long, alias = "link_gbps", value_name = "X", value_parser = positive)]
    link_gbps: Option<f64>,
    /// Put runs of different data sets into one page. Their losses and accuracies cannot be compared
    #[arg(long)]
    mixed: bool,
}

pub(super) fn report(args: &ReportArgs, out: &mut impl Write) -> Result<(), Failure> {
    let read: Vec<PathBuf> = args.runs.iter().flat_map(|path| LoggedRun::files(path)).collect();
    let inputs: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
    ensure_output(&args.out, args.force, &inputs).map_err(|error| Failure::of_file(&args.out, error))?;
    let mut logged: Vec<LoggedRun> = Vec::new();
    for path in &args.runs {
        logged.extend(LoggedRun::read_all(path)?);
    }
    if !args.mixed {
        refuse_mixture(&logged)?;
    }
    let report = Report::of(&logged, Asked { link_gbps: args.link_gbps, target: args.target });
    write!(out, "{}", report.written(args.format))?;
    let page = report.html("Training runs");
    files::write(&args.out, |file| file.write_all(page.as_bytes()))
        .map_err(|error| Failure::of_file(&args.out, error))?;
    if args.format == Format::Text {
        writeln!(out, "\nReport: {}", args.out.display())?;
    }
    Ok(())
}

/// Curves of different data sets on one axis mean nothing.
fn refuse_mixture(runs: &[LoggedRun]) -> Result<(), Failure> {
    let named = || runs.iter().filter_map(|run| Some((run, run.data.as_deref()?)));
    let Some((first, data)) = named().next() else { return Ok(()) };
    match named().find(|(_, other)| *other != data) {
        None => Ok(()),
        Some((second, other)) => Err(Failure::Usage(format!(
            "runs of different data sets: {} of {data}, {} of {other}; give --mixed to put them into one page",
            first.name, second.name
        ))),
    }
}
