//! What a command shows at the end: a table, and a page to open.

use std::io::{self, Write};

use super::again::Again;
use super::failure::Failure;
use crate::compare::Comparison;
use crate::job::Job;
use crate::record::folder::Folder;
use crate::report;
use crate::report::headline::headlines;
use crate::report::table::{Table, footnotes};
use crate::run::Outcome;
use crate::terminal::paragraph;

/// Table and report of one run.
pub(crate) fn present_run(
    job: &Job,
    outcome: Outcome,
    folder: &Folder,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let hash = outcome.summary.params_hash.clone();
    report_run(job, outcome, folder, out)?;
    let whose = if job.config.replicas() > 1 { "of the replicas of" } else { "on" };
    writeln!(out, "\nparameters: {hash} {whose} all {} workers", job.config.workers)?;
    writeln!(out, "Results and report: {}", folder.file("report.html").display())?;
    Ok(())
}

/// Table and report of one run, without the last words.
pub(crate) fn report_run(
    job: &Job,
    outcome: Outcome,
    folder: &Folder,
    out: &mut impl Write,
) -> Result<(), Failure> {
    print_and_report(&Comparison::of_one(job, outcome), "Training run", (folder, &[]), out)
}

/// Table, report and summaries of several runs.
pub(crate) fn present(
    comparison: &Comparison,
    title: &str,
    folder: &Folder,
    again: &Again,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let json = comparison.to_json().map_err(io::Error::from)?;
    let files = [("summary.json", json + "\n"), ("results.csv", report::csv(comparison))];
    print_and_report(comparison, title, (folder, &files), out).map_err(|failure| match failure {
        Failure::Unwritten { error, .. } => {
            let way_out = format!("; go on with: {}", again.from(folder.path()));
            Failure::Unwritten { error, way_out }
        }
        other => other,
    })
}

/// Whether all runs have results; if not, what to do, or what went wrong.
pub(crate) fn verdict(comparison: &Comparison, folder: &Folder, again: &Again) -> Result<(), Failure> {
    let broken: Vec<_> = comparison.broken().collect();
    let runs = comparison.entries.len() * comparison.seeds;
    if broken.iter().any(|(_, run)| run.is_open()) {
        let (done, command) = (runs - broken.len(), again.from(folder.path()));
        return Err(Failure::ComparisonInterrupted { done, runs, command });
    }
    match broken.first() {
        Some((label, run)) => {
            let first = format!("{label}, seed {}: {}", run.seed, run.text());
            Err(Failure::Broken { broken: broken.len(), runs, first })
        }
        None => Ok(()),
    }
}

/// The table to `out`, the report and other files to the folder. What cannot be written is no reason not to
/// show what was computed.
fn print_and_report(
    comparison: &Comparison,
    title: &str,
    (folder, files): (&Folder, &[(&str, String)]),
    out: &mut impl Write,
) -> Result<(), Failure> {
    print(comparison, out)?;
    let page = ("report.html", report::html(comparison, title));
    for (name, content) in files.iter().chain([&page]) {
        folder.write(name, content).map_err(|error| Failure::Unwritten { error, way_out: String::new() })?;
    }
    Ok(())
}

fn print(comparison: &Comparison, out: &mut impl Write) -> Result<(), Failure> {
    let shown = comparison.at_best_rates();
    writeln!(out, "{}", paragraph(&report::task_line(&shown)))?;
    // All rows of a grid are more than anyone reads here: they are in the report.
    for (title, rows) in report::tables(comparison).into_iter().take(2) {
        if title.is_empty() {
            write!(out, "{}", Table::new(&rows).to_text())?;
        } else {
            writeln!(out, "{title}:\n\n{}", Table::new(&rows).to_text())?;
        }
    }
    for note in report::own_training(&shown).into_iter().chain(footnotes(&shown)) {
        write!(out, "{}", paragraph(&format!("{note}.")))?;
    }
    for note in report::notes(comparison) {
        write!(out, "{}", paragraph(&format!("Note: {note}.")))?;
    }
    for found in headlines(&shown) {
        write!(out, "\n{}", paragraph(&found.text()))?;
    }
    Ok(())
}
