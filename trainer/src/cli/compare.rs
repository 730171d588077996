//! `trainer compare` and the quick start: several codecs side by side.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::settings::{length_alone, nothing_else, settings};
use crate::codec_cli::codecs_help;
use crate::command::{Failure, Output, present, verdict};
use crate::compare::grid::{self, Grid};
use crate::compare::{Candidate, Comparison, Plan, quickstart};
use crate::config::Settings;
use crate::job::JobError;
use crate::process::interrupt;
use crate::range::require;
use crate::record::folder::Folder;
use crate::run::Length;

#[derive(Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub(super) struct CompareArgs {
    /// Go on with the comparison in this folder: finished runs are kept, interrupted ones go on, the others
    /// are done. With --epochs or --steps, all of them to that later end, where no codec has one of its own.
    /// Takes no other option
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// A codec to compare, and behind it the settings that it alone has: --codec dgc lr=0.1 --codec none
    /// momentum=0.9. Give it again for the next one
    #[arg(long = "codec", value_name = "SPEC", required_unless_present_any = ["grid", "resume"], num_args = 1..)]
    codecs: Vec<String>,
    /// Values to try with every codec, in all combinations: --vary lr=0.1,0.3 density=0.01,0.001
    /// model=mlp,cnn. A codec may list its own: --codec topk lr=0.1,0.3
    #[arg(long, value_name = "KEY=V,V", num_args = 1..)]
    vary: Vec<String>,
    /// TOML file with codecs and their settings: seeds, [settings], [vary], [[codec]]; the command line wins
    #[arg(long, value_name = "FILE")]
    grid: Option<PathBuf>,
    /// Runs of each codec, with seeds that count up [default: 1]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
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
    interrupt::listen();
    let comparison = plan.run(&folder)?;
    let title = "Quick start";
    present(&comparison, title, &folder, out)?;
    writeln!(
        out,
        "\n{}\n\nOpen the report in a browser: {}",
        quickstart::HOW_TO_READ,
        folder.file("report.html").display()
    )?;
    verdict(&comparison, &folder)
}

pub(super) fn compare(args: &CompareArgs, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &args.resume {
        return resume(path, args.length_alone()?, out);
    }
    let plan = checked(args.grid()?)?;
    let path = args.output.out.clone().unwrap_or_else(|| "runs/compare".into());
    let folder = Folder::create(&path, args.output.force)?;
    interrupt::listen();
    let comparison = plan.run(&folder)?;
    finish(&comparison, &folder, out)
}

fn resume(path: &Path, length: Option<Length>, out: &mut impl Write) -> Result<(), Failure> {
    let plan = checked(Grid::read(&path.join(grid::FILE)).map_err(JobError::from)?)?;
    let plan = match length {
        Some(length) => plan.extended(length)?,
        None => plan,
    };
    let folder = Folder::open(path)?;
    if length.is_some() {
        plan.write_down(&folder)?;
    }
    interrupt::listen();
    finish(&plan.resume(&folder), &folder, out)
}

fn finish(comparison: &Comparison, folder: &Folder, out: &mut impl Write) -> Result<(), Failure> {
    present(comparison, "Comparison", folder, out)?;
    writeln!(out, "\nReport: {}", folder.file("report.html").display())?;
    verdict(comparison, folder)
}

fn checked(grid: Grid) -> Result<Plan, Failure> {
    let (seeds, transport) = (grid.seeds.unwrap_or(1), grid.settings.transport.as_deref());
    require((1..=1000).contains(&seeds), "seeds", seeds, "1 to 1000")?;
    require(
        transport.is_none_or(|transport| transport == "local"),
        "transport",
        transport.unwrap_or_default(),
        "local, to compare in one process",
    )?;
    Ok(Plan::of(grid)?)
}

impl CompareArgs {
    /// The later end that `--resume` was told of, if any.
    fn length_alone(&self) -> Result<Option<Length>, Failure> {
        let has_none = self.codecs.is_empty() && self.vary.is_empty() && self.grid.is_none();
        if !has_none || self.seeds.is_some() {
            return Err(nothing_else());
        }
        length_alone(&self.settings, self.config.as_ref(), &self.output)
    }

    /// The settings of the file, overridden by those of the command line. Codecs here replace those in the
    /// file.
    fn grid(&self) -> Result<Grid, JobError> {
        let file = self.grid.as_deref().map(Grid::read).transpose()?.unwrap_or_default();
        let own = settings(&self.settings, self.config.as_ref())?;
        let candidates = Candidate::read(&self.codecs)?;
        let mut grid = Grid {
            seeds: self.seeds.or(file.seeds),
            settings: own.over(file.settings),
            vary: file.vary,
            candidates: if candidates.is_empty() { file.candidates } else { candidates },
        };
        grid.vary(&self.vary)?;
        Ok(grid)
    }
}
