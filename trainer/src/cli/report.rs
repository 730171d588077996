//! `trainer report`: the page of runs that are done or under way, from their `metrics.jsonl`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use crate::command::Failure;
use crate::record::LoggedRun;
use crate::report::runs;
use crate::terminal;

#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// Folders that hold a metrics.jsonl, or such files themselves. This program writes them, and the Python
    /// package's hook does
    #[arg(value_name = "DIR", required = true)]
    runs: Vec<PathBuf>,
    /// Page to write [default: report.html in the working folder]
    #[arg(long, value_name = "FILE", default_value = "report.html", hide_default_value = true)]
    out: PathBuf,
    /// Overwrite the page if it exists
    #[arg(long)]
    force: bool,
}

pub(super) fn report(args: &ReportArgs, out: &mut impl Write) -> Result<(), Failure> {
    if args.out.exists() && !args.force {
        let what = "exists already; give another --out, or --force to overwrite it";
        return Err(Failure::of_file(&args.out, what));
    }
    let logged: Vec<LoggedRun> =
        args.runs.iter().map(|path| LoggedRun::read(path)).collect::<Result<_, _>>()?;
    fs::write(&args.out, runs::html(&logged, "Training runs"))
        .map_err(|error| Failure::of_file(&args.out, error))?;
    let (head, rows) = runs::rows(&logged);
    write!(out, "{}", terminal::table(&head, &rows))?;
    writeln!(out, "\nReport: {}", args.out.display())?;
    Ok(())
}
