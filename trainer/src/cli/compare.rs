//! `trainer compare` and the quick start: several codecs side by side.

use std::io::Write;
use std::path::{Path, PathBuf};

#[cfg(not(feature = "mpi"))]
use super::settings::{WITHOUT_MPI, launched};
use super::settings::{length_alone, nothing_else, settings};
use crate::codec_cli::codecs_help;
use crate::command::{Again, Failure, Output, ensure_same_text, present, verdict};
use crate::compare::grid::{self, Grid};
use crate::compare::{Candidate, Comparison, Plan, quickstart};
use crate::config::{Settings, TransportKind};
use crate::job::JobError;
use crate::process::interrupt;
use crate::process::launch::Launch;
use crate::process::shell::quoted;
use crate::range::{RangeError, require};
use crate::record::folder::Folder;
use crate::run::Length;
use crate::terminal::program;
#[cfg(feature = "mpi")]
use crate::under_mpi::{self, launched};

#[derive(Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub(super) struct CompareArgs {
    /// Continue the comparison in this folder. Finished and diverged runs are kept, interrupted runs
    /// continue, and the others are run. With --epochs or --steps, all of them train to that later end,
    /// except under a codec with a length of its own. Takes no other option
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Continue the comparison in this folder, or start it there if there is nothing: one command for a
    /// service manager. Takes codecs and settings, which must be those that the folder holds
    #[arg(long, value_name = "DIR", conflicts_with_all = ["resume", "out", "force"])]
    resume_or_start: Option<PathBuf>,
    /// A codec to compare, followed by settings for its runs alone. Repeat the option for each codec: --codec
    /// dgc lr=0.1 --codec none momentum=0.9
    #[arg(long = "codec", value_name = "SPEC", required_unless_present_any = ["grid", "resume"], num_args = 1..)]
    codecs: Vec<String>,
    /// Values to try with every codec, in all combinations: --vary lr=0.1,0.3 density=0.01,0.001
    /// model=mlp,cnn. For one codec, list them after it: --codec topk lr=0.1,0.3
    #[arg(long, value_name = "KEY=V,V", num_args = 1..)]
    vary: Vec<String>,
    /// TOML file that describes a comparison: seeds, [settings], [vary] and a [[codec]] for each codec. An
    /// option on the command line wins
    #[arg(long, value_name = "FILE")]
    grid: Option<PathBuf>,
    /// Runs of each codec, 1 to 1000. Seeds count up from --seed [default: 1]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// TOML file with settings. Its keys are the options of the groups below, with _ for -. An option on the
    /// command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn quick_start(output: &Output, again: &Again, out: &mut impl Write) -> Result<(), Failure> {
    let plan = quickstart::plan()?;
    // The default folder is the quick start's own: it may be run again.
    let (path, force) = match &output.out {
        Some(path) => (path.clone(), output.force),
        None => (PathBuf::from(quickstart::FOLDER), true),
    };
    let folder = Folder::create(&path, force)?;
    interrupt::listen()?;
    let comparison = plan.run(&folder)?;
    let title = "Quick start";
    present(&comparison, title, &folder, again, out)?;
    writeln!(
        out,
        "\n{}\n\nOpen the report in a browser: {}",
        quickstart::HOW_TO_READ,
        folder.file("report.html").display()
    )?;
    verdict(&comparison, &folder, again)
}

pub(super) fn compare(args: &CompareArgs, again: &Again, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &args.resume {
        return resume(path, args.length_alone()?, again, out);
    }
    let grid = args.grid()?;
    let launch = launch(&grid)?;
    let plan = match launch {
        Some(launch) => checked(Grid { settings: launched(launch, grid.settings)?, ..grid })?,
        None => {
            require_local(&grid)?;
            checked(grid)?
        }
    };
    if let Some(path) = &args.resume_or_start {
        ensure_no_run(path)?;
        if path.join(grid::FILE).exists() {
            ensure_same(path, &plan)?;
            return resume(path, None, again, out);
        }
    }
    let named = args.resume_or_start.as_ref().or(args.output.out.as_ref());
    let path = named.cloned().unwrap_or_else(|| Path::new("runs").join(plan.name()));
    let read = plan.inputs();
    let told = [&args.grid, &args.config].into_iter().flatten().map(PathBuf::as_path);
    let inputs: Vec<&Path> = read.iter().map(PathBuf::as_path).chain(told).collect();
    let create = || Ok(Folder::create_apart(&path, args.output.force, &inputs)?);
    if let Some(launch) = launch {
        return compare_as_process(launch, &plan, (&path, &create), false, again, out);
    }
    let folder = create()?;
    interrupt::listen()?;
    let comparison = plan.run(&folder)?;
    finish(&comparison, &folder, again, out)
}

fn resume(path: &Path, length: Option<Length>, again: &Again, out: &mut impl Write) -> Result<(), Failure> {
    ensure_no_run(path)?;
    let grid = Grid::read(&path.join(grid::FILE)).map_err(JobError::from)?;
    let launch = launch(&grid)?;
    let is_of_processes = grid.settings.transport == Some(TransportKind::Mpi);
    if let Some(launch) = launch.filter(|_| !is_of_processes) {
        return Err(Failure::of_file(
            path,
            format!("a comparison in one process; go on without {}", launch.by),
        ));
    }
    if launch.is_none() {
        require_local(&grid)?;
    }
    let plan = checked(grid)?;
    let plan = match length {
        Some(length) => plan.extended(length)?,
        None => plan,
    };
    let open = || {
        let folder = Folder::open(path)?;
        plan.ensure_same_runs(path).map_err(JobError::from)?;
        if length.is_some() {
            plan.write_down(&folder)?;
        }
        Ok(folder)
    };
    if let Some(launch) = launch {
        return compare_as_process(launch, &plan, (path, &open), true, again, out);
    }
    let folder = open()?;
    interrupt::listen()?;
    finish(&plan.resume(&folder), &folder, again, out)
}

/// Refuses the folder of one run.
fn ensure_no_run(path: &Path) -> Result<(), Failure> {
    if path.join(grid::FILE).exists() || !path.join("config.toml").exists() {
        return Ok(());
    }
    let command = format!("{} train --resume {}", program(), quoted(path));
    Err(Failure::of_file(path, format!("one run; go on with: {command}")))
}

/// Refuses another comparison than the one in the folder.
fn ensure_same(path: &Path, plan: &Plan) -> Result<(), Failure> {
    let known = Grid::read(&path.join(grid::FILE)).map_err(JobError::from)?;
    // How long it was before is known to the folder alone.
    let known = Grid { longer_than: Vec::new(), ..known }.to_toml().map_err(JobError::from)?;
    ensure_same_text(path, "comparison", (&known, plan.text()))
}

fn finish(
    comparison: &Comparison,
    folder: &Folder,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    present(comparison, "Comparison", folder, again, out)?;
    writeln!(out, "\nReport: {}", folder.file("report.html").display())?;
    verdict(comparison, folder, again)
}

fn checked(grid: Grid) -> Result<Plan, Failure> {
    let seeds = grid.seeds.unwrap_or(1);
    require((1..=1000).contains(&seeds), "seeds", seeds, "1 to 1000")?;
    Ok(Plan::of(grid)?)
}

/// The launcher of several processes that are to compare together.
fn launch(grid: &Grid) -> Result<Option<Launch>, Failure> {
    let is_local = grid.settings.transport == Some(TransportKind::Local);
    let launch = Launch::detect()?;
    if let Some(launch) = launch.filter(|launch| is_local && launch.world > 1) {
        let what = format!("transport = local: a comparison in one process; start it without {}", launch.by);
        return Err(Failure::Usage(what));
    }
    Ok(launch.filter(|_| !is_local))
}

/// If processes are requested, a launcher must start them.
fn require_local(grid: &Grid) -> Result<(), RangeError> {
    let transport = grid.settings.transport.unwrap_or(TransportKind::Local);
    let built = if cfg!(feature = "mpi") { "" } else { "build the program with --features mpi and " };
    let workers = grid.settings.workers.map_or("N".to_owned(), |workers| workers.to_string());
    let allowed = match transport {
        TransportKind::Mpi => {
            format!("local here; for mpi, {built}start it as mpirun -n {workers} {} compare …", program())
        }
        _ => "local or mpi; over TCP and ZeroMQ a run has one codec".to_owned(),
    };
    require(transport == TransportKind::Local, "transport", transport, allowed)
}

/// The path of the folder, and how it is made or opened.
type At<'a> = (&'a Path, &'a dyn Fn() -> Result<Folder, Failure>);

#[cfg(feature = "mpi")]
fn compare_as_process(
    launch: Launch,
    plan: &Plan,
    (path, open): At<'_>,
    is_resumed: bool,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let place = under_mpi::Place { path, open, is_resumed };
    under_mpi::compare(launch, plan, &place, |comparison, folder| {
        finish(comparison, folder, &again.clone().under(launch), out)
    })
}

#[cfg(not(feature = "mpi"))]
fn compare_as_process(
    launch: Launch,
    _: &Plan,
    _: At<'_>,
    _: bool,
    _: &Again,
    _: &mut impl Write,
) -> Result<(), Failure> {
    Err(Failure::Usage(format!("{launch}; {WITHOUT_MPI}, or start it without {}", launch.by)))
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
            longer_than: Vec::new(),
            candidates: if candidates.is_empty() { file.candidates } else { candidates },
        };
        grid.vary(&self.vary)?;
        Ok(grid)
    }
}
