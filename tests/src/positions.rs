//! What positions cost: of real gradients in the folder that `GRADWIRE_DATA` names, and what a table there
//! says that they should cost at the most.

use crate::naive::header::varint;
use crate::naive::index::best_rice_parameter;
use gradwire::{
    Codec, Decoder, Encoder, Grad, Layout, LayoutRef, Limits, Source, Spec, StepInput, StepKey, Unit,
};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Instant;

/// Densities at which positions are judged, and how the table names them.
pub const DENSITIES: [(f64, &str); 3] = [(0.1, "10%"), (0.01, "1%"), (0.001, "0.1%")];

/// Fewer entries are not judged.
pub const FEWEST: usize = 250;

/// A moment, and how long the thread had been ready to run without a core by then, where Linux tells it.
struct Clock {
    time: Instant,
    waited: f64,
}

impl Clock {
    fn now() -> Self {
        let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let waited = statistics.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
        Self { time: Instant::now(), waited }
    }

    /// Nanoseconds from `start` on a core.
    fn since(&self, start: &Self) -> f64 {
        (self.time - start.time).as_nanos() as f64 - (self.waited - start.waited)
    }
}

/// What the positions of the largest values cost under one index coder.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Entries.
    pub k: usize,
    /// Bits an entry, the length of the section included.
    pub bits: f64,
    /// Nanoseconds an entry of encode and of parse.
    pub ns: [f64; 2],
}

/// Encodes the largest values with each of the index coders in turn, `repeats` times. Selecting them takes
/// longer than writing few positions, and now longer, now less: so times are compared within a turn, and the
/// median of what each takes longer than the first counts. In a turn each runs twice, and the second time
/// counts, which finds the caches as a step of training does.
///
/// # Panics
/// When they cannot be encoded, or not even once.
#[must_use]
pub fn costs<const N: usize>(
    indexes: [&str; N],
    density: f64,
    layout: &Layout,
    values: &[f32],
    repeats: u32,
) -> [Cost; N] {
    let mut coders = indexes.map(|index| Coder::new(index, density, layout, values));
    let mut turn = || {
        coders.each_mut().map(|coder| {
            coder.run();
            coder.run()
        })
    };
    let turns: Vec<[Cost; N]> = (0..repeats).map(|_| turn()).collect();
    std::array::from_fn(|i| {
        let ns = [0, 1].map(|way| {
            let mut longer: Vec<f64> = turns.iter().map(|turn| turn[i].ns[way] - turn[0].ns[way]).collect();
            longer.sort_by(f64::total_cmp);
            longer[longer.len() / 2]
        });
        Cost { ns, ..turns[0][i] }
    })
}

/// Encodes the largest values once.
///
/// # Panics
/// When they cannot be encoded.
#[must_use]
pub fn cost(index: &str, density: f64, layout: &Layout, values: &[f32]) -> Cost {
    Coder::new(index, density, layout, values).run()
}

/// Encodes and parses the same values again and again.
struct Coder<'a> {
    codec: Codec,
    layout: LayoutRef<'a>,
    values: &'a [f32],
    encoder: Encoder,
    decoder: Decoder,
}

impl<'a> Coder<'a> {
    fn new(index: &str, density: f64, layout: &'a Layout, values: &'a [f32]) -> Self {
        let spelling = format!("topk:density={density},index={index},values=bf16,memory=none");
        let codec = Spec::parse(&spelling).expect("the spelling is right").codec;
        Self { codec, layout: layout.as_ref(), values, encoder: Encoder::new(), decoder: Decoder::new() }
    }

    /// Of the whole, selection included.
    fn run(&mut self) -> Cost {
        let Self { codec, layout, values, encoder, decoder } = self;
        let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
        let (units, limits) = ([Unit::whole(values.len())], Limits::for_layout(layout));
        let start = Clock::now();
        let frame = encoder
            .encode(codec, &StepInput { key, layout, units: &units, grad: Grad::F32(values) }, None)
            .expect("it is finite");
        let encoded = Clock::now();
        let frame = decoder.parse(frame, layout, &limits).expect("it was just encoded");
        let ns = [encoded.since(&start), Clock::now().since(&encoded)];
        let info = frame.units().next().expect("there is one unit").info();
        let (name, bytes) = info.index.expect("there are entries");
        let has_length = ["rice", "context", "context-max"].contains(&name);
        let length = if has_length { varint(bytes as u64).len() } else { 0 };
        let k = info.held;
        Cost { k, bits: (bytes + length) as f64 * 8.0 / k as f64, ns: ns.map(|ns| ns / k as f64) }
    }
}

/// Bits an entry of the shortest section of Rice codes for ascending positions: in blocks of the best of some
/// sizes, by their logarithms, with the best parameter of each block.
///
/// # Panics
/// Without positions or sizes.
#[must_use]
pub fn best_rice_bits(positions: &[usize], sizes: RangeInclusive<u32>) -> f64 {
    let before = std::iter::once(0).chain(positions.iter().map(|&position| position + 1));
    let gaps: Vec<u64> =
        positions.iter().zip(before).map(|(&position, next)| (position - next) as u64).collect();
    let section = |block_log2: u32| {
        let (mut parameters, mut lows, mut highs) = (0u64, 0, 0);
        for block in gaps.chunks(1 << block_log2) {
            let r = best_rice_parameter(block);
            parameters += 5;
            lows += block.len() as u64 * u64::from(r);
            highs += block.iter().map(|gap| (gap >> r) + 1).sum::<u64>();
        }
        1 + [parameters, lows, highs].map(|bits| bits.div_ceil(8)).iter().sum::<u64>()
    };
    let bytes = sizes.map(section).min().expect("there are sizes of blocks");
    (bytes + varint(bytes).len() as u64) as f64 * 8.0 / positions.len() as f64
}

/// Positions of the `k` largest magnitudes, ascending; of equals those in front.
#[must_use]
pub fn largest(values: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
    order.truncate(k);
    order.sort_unstable();
    order
}

/// log₂ of n over k, for each of the k: what positions cost when all sets of k are as likely.
#[must_use]
pub fn uniform_bits(n: usize, k: usize) -> f64 {
    let bits = |i: usize| ((n - i) as f64 / (k - i) as f64).log2();
    (0..k).map(bits).sum::<f64>() / k as f64
}

/// The least of what the table `gradients/entropy_table.md` says for a gradient and a density: all sets as
/// likely, an ideal context coder, zstd and xz on gap bytes. `None` where it does not list them.
///
/// # Panics
/// When the table cannot be read.
#[must_use]
pub fn listed(folder: &Path, name: &str, density: &str) -> Option<f64> {
    let path = folder.join("gradients/entropy_table.md");
    let table = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let section = table.split_once(&format!("## Top-k index set, density {density}\n"))?.1;
    let mut lines = section.lines().take_while(|line| !line.starts_with("## "));
    let line = lines.find(|line| line.starts_with(&format!("| {name} |")))?;
    let columns: Vec<&str> = line.split('|').map(|column| column.trim().trim_matches('*')).collect();
    // iid, ctx, zstd and xz on the bytes of the gaps.
    [4, 7, 13, 14]
        .into_iter()
        .map(|column| columns[column].parse().ok())
        .reduce(|a: Option<f64>, b| Some(a?.min(b?)))?
}
