//! `trainer codec bench`: codecs side by side on the user's gradients.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;

use gradwire::Spec;
use serde::Serialize;

use super::break_even::Traffic;
use super::error::CliError;
use super::gradient::Gradient;
use super::job::{Job, parse_spec};
use super::json;
use super::list::codecs_help;
use super::measure::{Measurement, measure};
use super::quality::finite;
use super::table::{Table, grouped, optional, significant};
use crate::config::link_rate::{CHOICES, with_index};

/// Arguments of `trainer codec bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub struct BenchArgs {
    /// Gradients: safetensors files with F32, F16 or BF16 tensors
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub input: Vec<PathBuf>,
    /// Codecs, such as topk:density=0.01,values=q8
    #[arg(long, value_name = "SPEC", num_args = 1.., required = true)]
    pub codec: Vec<String>,
    /// Workers whose frames are gathered or summed, for the break-even bandwidth
    #[arg(long, value_name = "N", default_value_t = DEFAULT_WORKERS)]
    pub workers: NonZeroU32,
    /// Gbit/s of each worker's link: a codec that does not say index= is measured with auto, small and smallest, and shown with
    /// the one with which coding and moving take least together
    #[arg(long, visible_alias = "link_gbps", value_name = "X", value_parser = link_rate)]
    pub link_gbps: Option<f64>,
    /// Write one JSON object a line instead of tables
    #[arg(long)]
    pub json: bool,
    /// Rounds that the median times are taken over
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ITERS)]
    pub iters: NonZeroU32,
    /// Seed of every random draw
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

const DEFAULT_WORKERS: NonZeroU32 = NonZeroU32::new(8).unwrap();

/// Enough for a median that a few interruptions do not move.
const DEFAULT_ITERS: NonZeroU32 = NonZeroU32::new(15).unwrap();

fn link_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "expected a number above 0".to_owned())
}

/// One codec on one file. The names are those of the JSON; sizes are in bytes, `encode_gbps` in gigabytes of dense f32
/// a second, break-even bandwidths in gigabits a second.
#[derive(Clone, Debug, Serialize)]
struct Row {
    file: String,
    codec: String,
    n: usize,
    k: usize,
    bytes: usize,
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
}

pub(super) fn run(args: &BenchArgs, out: &mut impl Write) -> Result<(), CliError> {
    let specs: Vec<(Spec, Vec<Spec>)> =
        args.codec.iter().map(|spelling| candidates(spelling, args.link_gbps)).collect::<Result<_, _>>()?;
    rehearse(args, &specs)?;
    for file in &args.input {
        let gradient = Gradient::read(file)?;
        let mut rows = Vec::new();
        for candidates in &specs {
            let row = best_row(candidates, &gradient, args)?;
            if args.json {
                json::write_line(out, &row)?;
            }
            rows.push(row);
        }
        if !args.json {
            write_block(&gradient, &rows, out).map_err(CliError::Output)?;
        }
    }
    if args.json { Ok(()) } else { write_notes(args, out).map_err(CliError::Output) }
}

/// The codec of a spelling, and over a link, where it leaves the index coder open, the same with other coders.
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
        let mut job = Job::new(spec, gradient, args.seed);
        let measured = measure(&mut job, args.iters.get())?;
        let traffic = traffic(&job, &measured, args.workers.get());
        Ok((traffic.seconds_over(gbps), Row::new(&job, &measured, &traffic)))
    };
    let best = others.iter().try_fold(timed_row(*first)?, |best, &spec| {
        let other = timed_row(spec)?;
        Ok::<_, CliError>(if other.0 < best.0 { other } else { best })
    });
    best.map(|(_, row)| row)
}

/// What a step of this codec moves.
fn traffic(job: &Job<'_>, measured: &Measurement, workers: u32) -> Traffic {
    Traffic {
        workers,
        dense_bytes: job.gradient().values.len() as f64 * 4.0,
        frame_bytes: measured.bytes as f64,
        is_linear: job.spec().codec.as_linear().is_some(),
        times: measured.times,
    }
}

/// Encodes everything once before anything is measured: a bad file at the end of the list is reported at once, and not
/// behind minutes of results.
fn rehearse(args: &BenchArgs, specs: &[(Spec, Vec<Spec>)]) -> Result<(), CliError> {
    for file in &args.input {
        let gradient = Gradient::read(file)?;
        for &spec in specs.iter().flat_map(|(first, others)| std::iter::once(first).chain(others)) {
            Job::new(spec, &gradient, args.seed).encode()?;
        }
    }
    Ok(())
}

impl Row {
    fn new(job: &Job<'_>, measured: &Measurement, traffic: &Traffic) -> Self {
        let Traffic { dense_bytes, frame_bytes, times, .. } = *traffic;
        let gradient = job.gradient();
        let n = gradient.values.len();
        Self {
            file: gradient.file.display().to_string(),
            codec: job.spec().to_string(),
            n,
            k: measured.entries.sent,
            bytes: measured.bytes,
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
        }
    }

    fn size_cells(&self) -> Vec<String> {
        vec![
            self.codec.clone(),
            grouped(self.k),
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

/// Size and error: what a codec does to the gradient.
const SIZE_TITLES: [(&str, &str); 9] = [
    ("codec", ""),
    ("k", "entries"),
    ("frame", "bytes"),
    ("ratio", ""),
    ("bits/", "coord"),
    ("index bits/", "entry"),
    ("value bits/", "entry"),
    ("NMSE", ""),
    ("cosine", ""),
];

/// Time: what it costs, and when that pays.
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

fn write_block(gradient: &Gradient, rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let (n, tensors) = (gradient.values.len(), gradient.layout.tensors().len());
    let (file, bytes) = (gradient.file.display(), grouped(n * 4));
    writeln!(out, "{file}: {} coordinates in {tensors} tensors, {bytes} bytes as f32\n", grouped(n))?;
    let (mut sizes, mut times) = (Table::new(&SIZE_TITLES), Table::new(&TIME_TITLES));
    for row in rows {
        sizes.push(row.size_cells());
        times.push(row.time_cells());
    }
    sizes.write(out)?;
    writeln!(out)?;
    times.write(out)?;
    writeln!(out)?;
    out.flush()
}

fn write_notes(args: &BenchArgs, out: &mut impl Write) -> io::Result<()> {
    let (workers, iters) = (args.workers, args.iters);
    writeln!(out, "ratio: dense f32 bytes (4 a coordinate) over frame bytes, header and checksum included.")?;
    writeln!(out, "times: medians of {iters} rounds, in which memcpy, encode and decode take turns.")?;
    if let Some(gbps) = args.link_gbps {
        writeln!(
            out,
            "index: where a codec leaves it open, that of auto, small and smallest with which a step takes least at {gbps} Gbit/s."
        )?;
    }
    writeln!(
        out,
        "break-even: {workers} workers gain from the codec on links slower than this, against a dense ring of f32, and of bf16."
    )
}
