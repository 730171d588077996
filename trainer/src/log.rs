//! What a process says while it works, on standard error: events, as lines for people or as JSON.

use std::fmt;
use std::io::{Write, stderr};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use indicatif::ProgressBar;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, subscriber};

use crate::terminal;

/// The target of lines that show how far a run has come. They do not name the program.
pub(crate) const PROGRESS: &str = "progress";

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For a person at a terminal
    #[default]
    Plain,
    /// Time (UTC) and level before each line
    Time,
    /// One JSON object a line, with time, level and numbers as fields
    Json,
}

static FORMAT: OnceLock<Format> = OnceLock::new();
/// The bar that is shown now: lines go above it.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// From now on events are written, as the first call says.
pub(crate) fn start(format: Format) {
    if FORMAT.set(format).is_err() {
        return;
    }
    // A program that uses this library may have a subscriber of its own.
    let _ = subscriber::set_global_default(Listener(format));
}

/// Whether somebody hears of events.
pub(crate) fn is_started() -> bool {
    FORMAT.get().is_some()
}

/// Whether a person reads along, so that progress may be drawn, and lines may go to standard output.
pub(crate) fn is_plain() -> bool {
    FORMAT.get().is_none_or(|format| *format == Format::Plain)
}

/// Lines go above this bar, until there is another one or none.
pub(crate) fn draw_above(bar: Option<&ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar.cloned();
}

/// Writes events. There are no spans.
struct Listener(Format);

impl Subscriber for Listener {
    /// Events of this program alone, from `info` on.
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event()
            && *about.level() <= Level::INFO
            && (about.target() == PROGRESS || about.target().starts_with(env!("CARGO_CRATE_NAME")))
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let (level, is_progress) = (event.metadata().level(), event.metadata().target() == PROGRESS);
        let time = || humantime::format_rfc3339_millis(SystemTime::now());
        write(&match self.0 {
            Format::Plain if is_progress => fields.message,
            Format::Plain => format!("{}: {}", terminal::program(), fields.message),
            Format::Time => format!("{} {level:5} {}", time(), fields.message),
            Format::Json => fields.into_json(time().to_string(), level.to_string()).to_string(),
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Writes a line above the bar, if there is one.
fn write(line: &str) {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.println(line),
        // In one piece, so that lines of several threads do not mix. A reader that went away is no reason to
        // stop.
        None => drop(stderr().write_all(format!("{line}\n").as_bytes())),
    }
}

/// What an event says.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn into_json(self, time: String, level: String) -> Value {
        let known = [("time", time), ("level", level), ("message", self.message)];
        let known = known.into_iter().map(|(name, text)| (name.to_owned(), Value::String(text)));
        Value::Object(known.chain(self.others).collect())
    }

    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.others.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.put(field, format!("{value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            _ => self.put(field, value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // `null` if it is not a number.
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}
