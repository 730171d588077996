//! `gradwire-layers`: whether the imports of every crate point the way that ARCHITECTURE.md states.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use gradwire_layers::{Crate, Order, check, floors, sources_below};

const USAGE: &str =
    "usage: gradwire-layers [--root DIR] [--architecture FILE] [--arrows | --orders] [FOLDER…]

  --root DIR           the repository; the current folder if not given
  --architecture FILE  states the layers; DIR/ARCHITECTURE.md if not given
  --arrows             lists which file uses what of which other file
  --orders             prints the floors that the code itself suggests for its rooms, lowest first
  FOLDER…              only these crates; with --arrows and --orders they need no layers";

struct Options {
    root: PathBuf,
    architecture: Option<PathBuf>,
    task: Task,
    folders: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Check,
    Arrows,
    Orders,
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { root: PathBuf::from("."), architecture: None, task: Task::Check, folders: Vec::new() };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{USAGE}"));
        match argument.as_str() {
            "--root" => options.root = value()?.into(),
            "--architecture" => options.architecture = Some(value()?.into()),
            "--arrows" => options.task = Task::Arrows,
            "--orders" => options.task = Task::Orders,
            folder if !folder.starts_with('-') => {
                options.folders.push(folder.trim_end_matches('/').to_owned());
            }
            _ => return Err(format!("what is {argument}?\n{USAGE}")),
        }
    }
    Ok(options)
}

/// Whether there are no violations.
fn run(options: &Options) -> Result<bool, String> {
    let architecture = options.architecture.clone().unwrap_or_else(|| options.root.join("ARCHITECTURE.md"));
    let statement = architecture.display().to_string();
    let text = fs::read_to_string(&architecture).map_err(|error| format!("{statement}: {error}"))?;
    let orders = Order::all(&text).map_err(|error| format!("{statement}:{error}"))?;
    let folders = if options.folders.is_empty() {
        orders.iter().map(|order| order.folder.clone()).collect()
    } else {
        options.folders.clone()
    };
    if folders.is_empty() {
        return Err(format!("{statement} states no layers"));
    }
    let mut violations = 0;
    for folder in &folders {
        let sources = sources_below(&options.root, folder).map_err(|error| format!("{folder}: {error}"))?;
        let krate = Crate::parse(folder, &sources)?;
        let arrows = krate.arrows();
        let order = orders.iter().find(|order| order.folder == *folder);
        match (options.task, order) {
            (Task::Arrows, _) => arrows.iter().for_each(|arrow| println!("{}", krate.line(arrow))),
            (Task::Orders, _) => {
                println!("{folder}");
                for floor in floors(&krate, &arrows, order) {
                    let rooms: Vec<_> = floor.iter().map(|rooms| in_circle(rooms)).collect();
                    println!("  {}", rooms.join(" "));
                }
            }
            (Task::Check, None) => return Err(format!("{statement} states no layers for {folder}")),
            (Task::Check, Some(order)) => {
                let findings = check(&krate, &arrows, order, &statement);
                findings.violations.iter().for_each(|violation| println!("{violation}"));
                violations += findings.violations.len();
                println!(
                    "{folder}: {}, {}, {}, largest circle {}",
                    count(findings.rooms, "room"),
                    count(findings.files, "file"),
                    count(findings.arrows, "arrow"),
                    count(findings.largest_circle, "file")
                );
            }
        }
    }
    if violations > 0 {
        eprintln!("error: {} of the layers that {statement} states", count(violations, "violation"));
    }
    Ok(violations == 0)
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Rooms that need each other stand in brackets.
fn in_circle(rooms: &[String]) -> String {
    if let [room] = rooms { room.clone() } else { format!("({})", rooms.join(" ")) }
}
