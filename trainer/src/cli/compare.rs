//! `trainer compare` and the quick start: several codecs side by side.

use std::io::Write;
use std::path::PathBuf;

use super::settings::settings;
use crate::codec_cli::codecs_help;
use crate::command::{Failure, Output, present};
use crate::compare::{Candidate, Plan, quickstart};
use crate::config::Settings;
use crate::job::JobError;
use crate::range::require;
use crate::record::folder::Folder;

#[derive(Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub(super) struct CompareArgs {
    /// A codec to compare, and behind it the settings that it alone has: --codec dgc lr=0.1 --codec none momentum=0.9.
    /// Give it again for the next one
    #[arg(long = "codec", value_name = "SPEC", required = true, num_args = 1..)]
    codecs: Vec<String>,
    /// Runs of each codec, with seeds that count up
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// TOML file with settings; the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn quick_start(output: &Output, out: &mut impl Write) -> Result<(), Failure> {
    let plan = quickstart::plan()?;
    // The default folder is the quick start's own: it may be run again.
    let (path, force) = match &output.out {
        Some(path) => (path.clone(), output.force),
        None => (PathBuf::from(quickstart::FOLDER), true),
    };
    let folder = Folder::create(&path, force)?;
    let comparison = plan.run(&folder)?;
    let title = "Quick start";
    present(&comparison, title, &folder, out)?;
    writeln!(
        out,
        "\n{}\n\nOpen the report in a browser: {}",
        quickstart::HOW_TO_READ,
        folder.file("report.html").display()
    )?;
    Ok(())
}

pub(super) fn compare(args: &CompareArgs, out: &mut impl Write) -> Result<(), Failure> {
    require((1..=1000).contains(&args.seeds), "seeds", args.seeds, "1 to 1000")?;
    let settings = settings(&args.settings, args.config.as_ref())?;
    require(
        settings.transport.as_deref().is_none_or(|transport| transport == "local"),
        "transport",
        settings.transport.as_deref().unwrap_or_default(),
        "local, to compare in one process",
    )?;
    let plan = Plan::new(&settings, &Candidate::read(&args.codecs).map_err(JobError::from)?, args.seeds)?;
    let path = args.output.out.clone().unwrap_or_else(|| "runs/compare".into());
    let folder = Folder::create(&path, args.output.force)?;
    let comparison = plan.run(&folder)?;
    present(&comparison, "Comparison", &folder, out)?;
    writeln!(out, "\nReport: {}", folder.file("report.html").display())?;
    Ok(())
}
