//! What the user sees during a run: a bar on a terminal, plain lines in a pipe. Always on standard error, so
//! that tables can be redirected.

use std::fmt;
use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tracing::info;

use crate::log;
use crate::model::Evaluating;
use crate::record::Metrics;

/// Between two drawings of a bar.
const TICK: Duration = Duration::from_millis(200);

/// The progress of one run.
#[derive(Debug)]
pub struct Progress {
    label: String,
    steps: u64,
    /// In a pipe, steps between two lines; no lines for 0.
    every: u64,
    bar: Option<ProgressBar>,
    /// What an evaluation is made on.
    part: &'static str,
}

impl Progress {
    /// A run of `steps` steps, with this name before its lines; in a pipe there are `lines` of them. If
    /// `lines` is 0, no progress of steps is shown anywhere.
    pub fn new(label: &str, steps: u64, lines: u64) -> Self {
        Self::showing(&Arc::default(), label, steps, lines)
    }

    /// As [`Progress::new`]. On a terminal it also shows how far an evaluation has come that takes longer
    /// than a moment.
    pub fn showing(evaluating: &Arc<Evaluating>, label: &str, steps: u64, lines: u64) -> Self {
        let every = if lines == 0 { 0 } else { steps.div_ceil(lines).max(1) };
        let may_draw = lines > 0 && log::is_plain() && stderr().is_terminal() && can_move();
        let bar = may_draw.then(|| bar(label, steps, evaluating));
        if let Some(bar) = &bar {
            log::draw_above(Some(bar));
            tick(bar);
        }
        Self { label: label.to_owned(), steps, every, bar, part: "validation" }
    }

    /// Evaluations are made on the test part.
    pub fn on_test(self) -> Self {
        Self { part: "test", ..self }
    }

    /// A step is complete.
    pub fn step(&self, metrics: &Metrics) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(metrics.step + 1);
                bar.set_message(format!("loss {:.4}{}", metrics.loss, self.evaluation(metrics)));
            }
            None if self.every > 0
                && ((metrics.step + 1).is_multiple_of(self.every) || metrics.step + 1 == self.steps) =>
            {
                let Self { label, steps, .. } = self;
                let (step, loss, rest) = (metrics.step + 1, metrics.loss, self.evaluation(metrics));
                let line = format!("{label}: step {step}/{steps}, loss {loss:.4}{rest}");
                if log::is_plain() {
                    self.line(&line);
                } else {
                    info!(target: log::PROGRESS, run = label, step, steps, loss, "{line}");
                }
            }
            None => {}
        }
    }

    fn evaluation(&self, metrics: &Metrics) -> String {
        let part = self.part;
        match (metrics.perplexity, metrics.accuracy) {
            (Some(perplexity), _) => format!(", {part} perplexity {perplexity:.3}"),
            (None, Some(accuracy)) => format!(", {part} accuracy {:.2} %", 100.0 * accuracy),
            _ => String::new(),
        }
    }

    /// Something worth a line of its own.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None if log::is_started() => info!(target: log::PROGRESS, "{text}"),
            // A reader that went away is no reason to stop a run.
            None => drop(writeln!(stderr(), "{text}")),
        }
    }

    /// The run has ended.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            log::draw_above(None);
            bar.finish_and_clear();
        }
    }
}

/// Whether the terminal can move its cursor. One that does not say what it is, or says `dumb`, gets lines.
fn can_move() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

fn bar(label: &str, steps: u64, evaluating: &Arc<Evaluating>) -> ProgressBar {
    let bar = ProgressBar::new(steps).with_prefix(label.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg}{evaluating}") {
        let evaluating = Arc::clone(evaluating);
        // A text that cannot be shown is left out.
        let show = move |_: &ProgressState, to: &mut dyn fmt::Write| {
            let _ = to.write_str(&evaluating.text());
        };
        bar.set_style(style.with_key("evaluating", show));
    }
    bar
}

/// Draws the bar again and again, so that it shows how far an evaluation has come. Without a thread for that
/// it moves with the steps alone.
fn tick(bar: &ProgressBar) {
    let bar = bar.downgrade();
    let draw = move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            thread::sleep(TICK);
        }
    };
    let _ = thread::Builder::new().name("progress".to_owned()).spawn(draw);
}
