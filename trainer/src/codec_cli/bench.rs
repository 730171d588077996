//! `trainer codec bench`: codecs side by side on the user's gradients. A codec that cannot encode a file is a
//! row that says why.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;

use gradwire::registry::GatherCodec;
use gradwire::{Codec, EncodeError, Spec};
use serde::Serialize;

use super::break_even::Traffic;
use super::error::{CliError, FileFault};
use super::gradient::Gradient;
use super::job::{Job, parse_spec};
use super::json;
use super::list::codecs_help;
use super::measure::{Measurement, Often, Sent, measure, rehearse};
use super::quality::finite;
use super::rounds::is_summed;
use super::table::{Table, grouped, optional, significant};
use crate::config::link_rate::{CHOICES, with_index};
use crate::range::positive;
use crate::terminal;

/// Arguments of `trainer codec bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub struct BenchArgs {
    /// Gradients: one or more safetensors files with F32, F16 or BF16 tensors
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub input: Vec<PathBuf>,
    /// Codecs, one or more, such as topk:density=0.01,values=q8
    #[arg(long, value_name = "SPEC", num_args = 1.., required = true)]
    pub codec: Vec<String>,
    /// Workers that exchange gradients, for the break-even bandwidth
    #[arg(long, value_name = "N", default_value_t = DEFAULT_WORKERS)]
    pub workers: NonZeroU32,
    /// Rate of each worker's link in Gbit/s, above 0. If given, a codec that does not say index= is measured
    /// with auto, small and smallest, and shown with the one that takes the least time for coding and moving
    /// together
    #[arg(long, alias = "link_gbps", value_name = "X", value_parser = positive)]
    pub link_gbps: Option<f64>,
    /// Write JSON lines instead of tables: an object for each codec on each file
    #[arg(long)]
    pub json: bool,
    /// Times that each codec is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ITERS)]
    pub iters: NonZeroU32,
    /// Seed of every random draw
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

const DEFAULT_WORKERS: NonZeroU32 = NonZeroU32::new(8).unwrap();

/// Enough for a median that a few interruptions do not move.
const DEFAULT_ITERS: NonZeroU32 = NonZeroU32::new(15).unwrap();

/// One codec on one file. The names are those of the JSON. Sizes are in bytes, `encode_gbps` in gigabytes of
/// dense f32 a second, break-even bandwidths in gigabits a second.
#[derive(Clone, Debug, Serialize)]
struct Row {
    file: String,
    codec: String,
    n: usize,
    k: usize,
    bytes: usize,
    frames: Option<usize>,
    rounds: Option<u32>,
    bits_per_coord: f64,
    ratio: f64,
    nmse: Option<f64>,
    cosine: Option<f64>,
    index_bits_per_entry: Option<f64>,
    value_bits_per_entry: Option<f64>,
    encode_ms: f64,
    decode_ms: f64,
    encode_gbps: Option<f64>,
    memcpy_ms: f64,
    encode_over_memcpy: Option<f64>,
    break_even_gbps: Option<f64>,
    break_even_gbps_bf16: Option<f64>,
    note: Option<String>,
}

/// One codec that cannot encode one file.
#[derive(Clone, Debug, Serialize)]
struct Failure {
    file: String,
    codec: String,
    n: usize,
    error: String,
}

/// What became of one codec on one file.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Measured(Box<Row>),
    Failed(Failure),
}

pub(super) fn run(args: &BenchArgs, out: &mut impl Write) -> Result<(), CliError> {
    let specs: Vec<(Spec, Vec<Spec>)> =
        args.codec.iter().map(|spelling| candidates(spelling, args.link_gbps)).collect::<Result<_, _>>()?;
    rehearse_all(args, &specs)?;
    for file in &args.input {
        let gradient = Gradient::read_filled(file)?;
        let mut rows = Vec::new();
        for candidates in &specs {
            let outcome = match best_row(candidates, &gradient, args) {
                Ok(row) => Outcome::Measured(Box::new(row)),
                Err(error) => Outcome::Failed(Failure::new(&candidates.0, &gradient, &error)),
            };
            if args.json {
                json::write_line(out, &outcome)?;
            }
            rows.push(outcome);
        }
        if !args.json {
            write_block(&gradient, &rows, out).map_err(CliError::Output)?;
        }
    }
    if args.json { Ok(()) } else { write_notes(args, out).map_err(CliError::Output) }
}

/// The codec of a spelling. With a link, and if the spelling leaves the index coder open, also the same codec
/// with other coders.
fn candidates(spelling: &str, link_gbps: Option<f64>) -> Result<(Spec, Vec<Spec>), CliError> {
    let [_, others @ ..] = CHOICES;
    let others = others.iter().filter(|_| link_gbps.is_some());
    Ok((parse_spec(spelling)?, others.filter_map(|index| with_index(spelling, index)).collect()))
}

/// The row of the candidate that takes least time over the link, or of the only one.
fn best_row(
    (first, others): &(Spec, Vec<Spec>),
    gradient: &Gradient,
    args: &BenchArgs,
) -> Result<Row, CliError> {
    let gbps = args.link_gbps.unwrap_or(f64::INFINITY);
    let timed_row = |spec: Spec| {
        let measured = measure(Job::new(spec, gradient, args.seed), Often::turns(args.iters.get()))?;
        let traffic = traffic(&spec, gradient, &measured, args.workers.get());
        Ok((traffic.seconds_over(gbps), Row::new(&spec, gradient, &measured, &traffic)))
    };
    let best = others.iter().try_fold(timed_row(*first)?, |best, &spec| {
        let other = timed_row(spec)?;
        Ok::<_, CliError>(if other.0 < best.0 { other } else { best })
    });
    best.map(|(_, row)| row)
}

/// What a step of this codec sends.
fn traffic(spec: &Spec, gradient: &Gradient, measured: &Measurement, workers: u32) -> Traffic {
    Traffic {
        workers,
        dense_bytes: gradient.values.len() as f64 * 4.0,
        frame_bytes: measured.bytes as f64,
        is_linear: is_summed(spec),
        times: measured.times,
    }
}

/// Encodes everything once before it measures anything, so that a bad file at the end of the list is reported
/// at once, and not after minutes of results. The same holds for a list of codecs of which none can encode
/// anything.
fn rehearse_all(args: &BenchArgs, specs: &[(Spec, Vec<Spec>)]) -> Result<(), CliError> {
    let (mut works, mut first_error) = (false, None);
    for file in &args.input {
        let gradient = Gradient::read_filled(file)?;
        for &spec in specs.iter().flat_map(|(first, others)| std::iter::once(first).chain(others)) {
            match rehearse(Job::new(spec, &gradient, args.seed)) {
                Ok(()) => works = true,
                Err(error) if is_of_the_file(&error) => return Err(error),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
    }
    first_error.filter(|_| !works).map_or(Ok(()), Err)
}

/// Whether no codec can encode the file.
fn is_of_the_file(error: &CliError) -> bool {
    let is_not_finite = |fault: &FileFault| {
        matches!(fault, FileFault::Encode { error: EncodeError::NonFiniteInput { .. }, .. })
    };
    matches!(error, CliError::File { fault, .. } if is_not_finite(fault))
}

impl Failure {
    fn new(spec: &Spec, gradient: &Gradient, error: &CliError) -> Self {
        Self {
            file: gradient.file.display().to_string(),
            codec: spec.to_string(),
            n: gradient.values.len(),
            error: error.to_string(),
        }
    }
}

/// A note on what the numbers of a row do not show: that a codec compresses nothing, or little, because it
/// sends tensors dense.
fn note(spec: &Spec, gradient: &Gradient) -> Option<String> {
    if matches!(spec.codec, Codec::Gather(GatherCodec::Dense(_))) {
        return None;
    }
    let (layout, n) = (gradient.layout.as_ref(), gradient.values.len());
    let dense: usize = spec.units.units(&layout).filter(|unit| unit.dense).map(|unit| unit.len).sum();
    (2 * dense >= n).then(|| {
        let (codec, share) = (spec.codec.name(), grouped(dense));
        format!(
            "{codec} sends {share} of {} coordinates dense, in tensors of one dimension or of few elements; \
             dense_1d=false compresses those of one dimension too",
            grouped(n)
        )
    })
}

impl Row {
    fn new(spec: &Spec, gradient: &Gradient, measured: &Measurement, traffic: &Traffic) -> Self {
        let Traffic { dense_bytes, frame_bytes, times, .. } = *traffic;
        let n = gradient.values.len();
        let (frames, rounds) = match measured.sent {
            Sent::Frames(count) => (Some(count), None),
            Sent::Rounds(count) => (None, Some(count)),
        };
        Self {
            file: gradient.file.display().to_string(),
            codec: spec.to_string(),
            n,
            k: measured.entries.sent,
            bytes: measured.bytes,
            frames,
            rounds,
            bits_per_coord: frame_bytes * 8.0 / n as f64,
            ratio: dense_bytes / frame_bytes,
            nmse: measured.distance.nmse,
            cosine: measured.distance.cosine,
            index_bits_per_entry: measured.entries.index_bits(),
            value_bits_per_entry: measured.entries.value_bits(),
            encode_ms: times.encode * 1e3,
            decode_ms: times.decode * 1e3,
            encode_gbps: finite(dense_bytes / 1e9 / times.encode),
            memcpy_ms: times.memcpy * 1e3,
            encode_over_memcpy: finite(times.encode / times.memcpy),
            break_even_gbps: finite(traffic.break_even_gbps()),
            break_even_gbps_bf16: finite(traffic.break_even_gbps_bf16()),
            note: note(spec, gradient),
        }
    }

    /// How the bytes are sent.
    fn sent(&self) -> String {
        let counted = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{} {what}s", grouped(count)),
        };
        match (self.frames, self.rounds) {
            (Some(frames), _) => counted(frames, "frame"),
            (None, rounds) => counted(rounds.unwrap_or(0) as usize, "round"),
        }
    }

    fn size_cells(&self) -> Vec<String> {
        vec![
            self.codec.clone(),
            grouped(self.k),
            self.sent(),
            grouped(self.bytes),
            significant(self.ratio, 4),
            significant(self.bits_per_coord, 4),
            optional(self.index_bits_per_entry, 4),
            optional(self.value_bits_per_entry, 4),
            optional(self.nmse, 4),
            self.cosine.map_or_else(|| "-".to_owned(), |cosine| format!("{cosine:.4}")),
        ]
    }

    fn time_cells(&self) -> Vec<String> {
        let break_even = |gbps: Option<f64>| match gbps {
            Some(0.0) => "never".to_owned(),
            gbps => optional(gbps, 3),
        };
        vec![
            self.codec.clone(),
            significant(self.encode_ms, 3),
            significant(self.decode_ms, 3),
            optional(self.encode_gbps, 3),
            significant(self.memcpy_ms, 3),
            optional(self.encode_over_memcpy, 3),
            break_even(self.break_even_gbps),
            break_even(self.break_even_gbps_bf16),
        ]
    }
}

/// Size and error: the effect of a codec on the gradient.
const SIZE_TITLES: [(&str, &str); 10] = [
    ("codec", ""),
    ("k", "entries"),
    ("sent", "as"),
    ("bytes", ""),
    ("ratio", ""),
    ("bits/", "coord"),
    ("index bits/", "entry"),
    ("value bits/", "entry"),
    ("NMSE", ""),
    ("cosine", ""),
];

/// Time: the cost of a codec, and when it pays.
const TIME_TITLES: [(&str, &str); 8] = [
    ("codec", ""),
    ("encode", "ms"),
    ("decode", "ms"),
    ("encode", "GB/s"),
    ("memcpy", "ms"),
    ("encode/", "memcpy"),
    ("break-even vs", "f32, Gbit/s"),
    ("break-even vs", "bf16, Gbit/s"),
];

fn write_block(gradient: &Gradient, outcomes: &[Outcome], out: &mut impl Write) -> io::Result<()> {
    let (n, tensors) = (gradient.values.len(), gradient.layout.tensors().len());
    let (file, bytes) = (gradient.file.display(), grouped(n * 4));
    writeln!(out, "{file}: {} coordinates in {tensors} tensors, {bytes} bytes as f32\n", grouped(n))?;
    let (mut sizes, mut times) = (Table::new(&SIZE_TITLES), Table::new(&TIME_TITLES));
    for outcome in outcomes {
        match outcome {
            Outcome::Measured(row) => {
                sizes.push(row.size_cells());
                times.push(row.time_cells());
            }
            Outcome::Failed(failure) => sizes.push(vec![failure.codec.clone(), "failed".to_owned()]),
        }
    }
    sizes.write(out)?;
    for outcome in outcomes {
        match outcome {
            Outcome::Measured(row) => {
                row.note.iter().try_for_each(|note| write_note(&format!("note: {note}"), out))?;
            }
            Outcome::Failed(failure) => write_note(&format!("failed: {}", failure.error), out)?,
        }
    }
    writeln!(out)?;
    times.write(out)?;
    writeln!(out)?;
    out.flush()
}

fn write_note(note: &str, out: &mut impl Write) -> io::Result<()> {
    out.write_all(terminal::paragraph(note).as_bytes())
}

fn write_notes(args: &BenchArgs, out: &mut impl Write) -> io::Result<()> {
    let (workers, iters) = (args.workers, args.iters);
    write_note(
        "ratio: dense f32 bytes (4 a coordinate) over bytes of all frames, headers and checksums included; for codecs that \
         send rounds, over the bytes of all payloads.",
        out,
    )?;
    write_note("index bits: all bytes of positions, counts and lengths included, over k.", out)?;
    let times = format!(
        "times: medians of {iters} measurements of memcpy, encode and decode. Where a codec sends rounds, encode is their beginning and decode the rest."
    );
    write_note(&times, out)?;
    if let Some(gbps) = args.link_gbps {
        let index = format!(
            "index: if the codec does not name one, that of auto, small and smallest which makes the shortest step at \
             {gbps} Gbit/s."
        );
        write_note(&index, out)?;
    }
    let break_even = format!(
        "break-even: {workers} workers gain from the codec on links slower than this, against a dense ring of f32, and of \
         bf16."
    );
    write_note(&break_even, out)
}
