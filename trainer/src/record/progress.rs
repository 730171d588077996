//! What the user sees during a run: a bar on a terminal, plain lines in a pipe. Always on standard error, so
//! that tables can be redirected.

use std::fmt;
use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::model::Evaluating;
use crate::record::Metrics;

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
        let bar = (lines > 0 && stderr().is_terminal() && can_move()).then(|| bar(label, steps, evaluating));
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
                self.line(&format!("{label}: step {step}/{steps}, loss {loss:.4}{rest}"));
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
            // A reader that went away is no reason to stop a run.
            None => drop(writeln!(stderr(), "{text}")),
        }
    }

    /// The run has ended.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
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
    // An evaluation is shown by the ticks.
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
