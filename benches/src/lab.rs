//! Measuring work beside memcpy.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};

use crate::buffer::Aligned;
use crate::settings::Settings;
use crate::targets::target;

/// A group of benches that are printed together.
pub type Group<'c> = BenchmarkGroup<'c, WallTime>;

/// Measurements of each piece of work, at the least; the median of an odd number is one of them.
const SAMPLES: usize = 15;

/// Criterion as all benches here use it. Options on the command line have the last word.
#[must_use]
pub fn harness() -> Criterion {
    Criterion::default()
        .sample_size(SAMPLES)
        .nresamples(2_000)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args()
}

/// What a piece of work achieves besides being fast.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quality {
    /// Bytes that it makes or reads.
    pub bytes: Option<usize>,
    /// Squared error of what these bytes decode to, over the squared norm of what was encoded.
    pub error: Option<f64>,
}

/// Work that is ready to be measured.
pub struct Work<'w> {
    /// What it achieves.
    pub quality: Quality,
    /// One run.
    pub run: Box<dyn FnMut() + 'w>,
}

impl<'w> Work<'w> {
    /// Work and what it achieves.
    pub fn new(quality: Quality, run: impl FnMut() + 'w) -> Self {
        Self { quality, run: Box::new(run) }
    }
}

/// What was measured.
#[derive(Debug)]
struct Row {
    name: String,
    input: String,
    elements: usize,
    samples: usize,
    /// Medians.
    work: Duration,
    memcpy: Duration,
    quality: Quality,
    target: Option<f64>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.work.as_secs_f64() / self.memcpy.as_secs_f64()
    }

    /// GB of gradient a second.
    fn gigabytes(&self, time: Duration) -> f64 {
        self.elements as f64 * 4e-9 / time.as_secs_f64()
    }

    fn nanoseconds(&self) -> f64 {
        self.work.as_secs_f64() * 1e9 / self.elements as f64
    }

    fn verdict(&self) -> String {
        self.target.map_or_else(String::new, |target| {
            let reached = if self.ratio() <= target { "reached" } else { "not reached yet" };
            format!("≤ {target}: {reached}")
        })
    }

    fn bytes_per_element(&self) -> String {
        let per_element = |bytes: usize| format!("{:.4}", bytes as f64 / self.elements as f64);
        self.quality.bytes.map_or_else(String::new, per_element)
    }

    fn error(&self) -> String {
        self.quality.error.map_or_else(String::new, |error| format!("{error:.3e}"))
    }

    const HEAD: &str = "| work | input | elements | ms | ns/element | memcpy ms | memcpy GB/s | × memcpy | \
                        target | bytes/element | error |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |";

    fn markdown(&self) -> String {
        format!(
            "| `{}` | {} | {} | {:.3} | {:.3} | {:.3} | {:.1} | {:.2} | {} | {} | {} |",
            self.name,
            self.input,
            self.elements,
            self.work.as_secs_f64() * 1e3,
            self.nanoseconds(),
            self.memcpy.as_secs_f64() * 1e3,
            self.gigabytes(self.memcpy),
            self.ratio(),
            self.verdict(),
            self.bytes_per_element(),
            self.error(),
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {}: {:.2} × memcpy ({:.3} ms, {:.3} ns/element; memcpy {:.3} ms, {:.1} GB/s; {} \
             pairs)",
            self.name,
            self.input,
            self.ratio(),
            self.work.as_secs_f64() * 1e3,
            self.nanoseconds(),
            self.memcpy.as_secs_f64() * 1e3,
            self.gigabytes(self.memcpy),
            self.samples,
        )?;
        let parts = [
            ("target ", self.verdict()),
            ("bytes/element ", self.bytes_per_element()),
            ("error ", self.error()),
        ];
        parts
            .iter()
            .filter(|(_, text)| !text.is_empty())
            .try_for_each(|(name, text)| write!(f, ", {name}{text}"))
    }
}

/// Measures work beside memcpy and collects the rows.
#[derive(Debug)]
pub struct Lab {
    settings: Settings,
    source: Aligned,
    copy: Aligned,
    title: &'static str,
    rows: Vec<Row>,
}

impl Lab {
    /// A lab for work on at most `max_elements`; `title` names the bench in the results.
    #[must_use]
    pub fn new(title: &'static str, settings: &Settings, max_elements: usize) -> Self {
        Self {
            settings: settings.clone(),
            source: Aligned::filled(max_elements, 1.0),
            copy: Aligned::filled(max_elements, 2.0),
            title,
            rows: Vec::new(),
        }
    }

    /// Runs the work and a memcpy of `elements` f32 in turns, and prints how they compare. Prepares the work
    /// only if the command line does not filter it out.
    ///
    /// # Panics
    /// When the ratio is not a number above zero.
    pub fn compare<'w>(
        &mut self,
        group: &mut Group<'_>,
        (name, input): (&str, &str),
        elements: usize,
        prepare: impl FnOnce() -> Work<'w>,
    ) {
        let mut prepare = Some(prepare);
        let mut work: Option<Work<'w>> = None;
        let (mut works, mut copies) = (Vec::new(), Vec::new());
        let (source, copy) = (&self.source.as_slice()[..elements], &mut self.copy.as_mut_slice()[..elements]);
        group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(elements as u64 * 4));
        group.bench_function(format!("{name}/{input}"), |bencher| {
            if let Some(prepare) = prepare.take() {
                work = Some(prepare());
            }
            let Some(work) = &mut work else { return };
            bencher.iter_custom(|iterations| {
                let before = works.len();
                for _ in 0..iterations {
                    works.push(time(&mut work.run));
                    copies.push(time(|| black_box(&mut *copy).copy_from_slice(black_box(source))));
                }
                works[before..].iter().sum()
            });
        });
        let Some(work) = work else { return };
        // Where benches only have to run, times say nothing.
        let has_target = !self.settings.quick && matches!(input, "heavy" | "gaussian" | "file");
        let row = Row {
            name: name.to_owned(),
            input: input.to_owned(),
            elements,
            samples: works.len(),
            work: median(works),
            memcpy: median(copies),
            quality: work.quality,
            target: target(name).filter(|_| has_target),
        };
        println!("{row}\n");
        assert!(row.ratio().is_finite() && row.ratio() > 0.0, "no ratio for {name}");
        self.rows.push(row);
    }

    /// Appends what was measured to the file that `GRADWIRE_BENCH_RESULTS` names, if it names one.
    ///
    /// # Panics
    /// When that file cannot be written.
    pub fn finish(self) {
        let Some(path) = &self.settings.results else { return };
        let data = self.settings.file.as_deref().map_or_else(String::new, data_name);
        let mut text = format!("\n## {}\n\n{}{data}\n\n{}\n", self.title, machine(), Row::HEAD);
        self.rows.iter().for_each(|row| text.push_str(&format!("{}\n", row.markdown())));
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("the results can be written");
    }
}

/// Time of the work, less what this thread waited for a core: on a busy machine only work that takes longer
/// than a time slice waits, so memcpy would look better than it is.
fn time(work: impl FnOnce()) -> Duration {
    let waited = waited_for_a_core();
    let start = Instant::now();
    work();
    let elapsed = start.elapsed();
    // The two clocks are not read at the same instant, so a short work may seem to have done nothing but
    // wait.
    elapsed.saturating_sub(waited_for_a_core().saturating_sub(waited)).max(Duration::from_nanos(1))
}

/// For how long this thread was ready to run and had no core; zero where the system does not tell.
fn waited_for_a_core() -> Duration {
    // Nanoseconds on a core, nanoseconds of waiting for one, time slices.
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    waited.map_or(Duration::ZERO, Duration::from_nanos)
}

/// The one in the middle, the earlier of two.
fn median(mut times: Vec<Duration>) -> Duration {
    let middle = times.len().saturating_sub(1) / 2;
    *times.select_nth_unstable(middle).1
}

/// The file of real gradients and the folder it lies in, without what lies above.
fn data_name(path: &Path) -> String {
    let name = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    format!(" Input `file`: {}/{}.", name(path.parent().and_then(Path::file_name)), name(path.file_name()))
}

/// Processor, cores and load, as Linux tells them.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let vectors =
        ["avx512f", "avx2"].into_iter().find(|&flag| cpuinfo.split_whitespace().any(|word| word == flag));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    let vectors = vectors.unwrap_or("no wide vectors");
    format!("{model}, {vectors}, {cores} cores, load {load} at the end.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        let times = [5, 1, 9, 2, 7].map(Duration::from_nanos).to_vec();
        assert_eq!(median(times), Duration::from_nanos(5));
    }
}
