//! Sections whose segments belong to classes: which, as WRITER.md says.

use super::bits::Bits;
use super::header::varint;
use super::rans::{self, Shape};

/// Symbols of a segment.
const SEGMENT: usize = 64;

/// Segments that tables are learnt from.
const SAMPLE: usize = 1 << 14;

/// The section of the levels of a unit of `len` coordinates.
#[must_use]
pub fn section(symbols: &[u8], alphabet: usize, len: usize) -> Vec<u8> {
    let segments: Vec<&[u8]> = symbols.chunks(SEGMENT).collect();
    let most = 16.min(1 + len / 8192);
    if most == 1 || segments.len() < 2 {
        return rans::section(symbols, alphabet);
    }
    let search = Search { segments: &segments, alphabet, most };
    let (classes, tables) = search.join(search.classes());
    if tables.len() == 1 {
        return rans::section(symbols, alphabet);
    }
    let used = tables.len();
    let bits = tables.iter().map(|counts| rans::cost_bits(&rans::frequencies(counts), counts)).sum();
    let shape = Shape::for_symbols(symbols.len(), bits);
    let before = std::iter::once(&0).chain(&classes);
    let differences: Vec<u8> =
        classes.iter().zip(before).map(|(own, before)| ((own + used - before) % used) as u8).collect();
    let freqs: Vec<Vec<u64>> = tables.iter().map(|counts| rans::frequencies(counts)).collect();
    let streams = rans::tables_and_streams(symbols, shape, &freqs, |i| classes[i / SEGMENT]);
    let head = vec![shape.byte(true), (used - 1) as u8 | 1 << 4];
    let body = [head, rans::section(&differences, used), streams].concat();
    [varint(body.len() as u64), body].concat()
}

struct Search<'s> {
    segments: &'s [&'s [u8]],
    alphabet: usize,
    most: usize,
}

impl Search<'_> {
    /// The class of each segment, before classes are joined.
    fn classes(&self) -> Vec<usize> {
        let stride = self.segments.len().div_ceil(SAMPLE);
        let loudness = |segment: &&[u8]| segment.iter().map(|&symbol| u64::from(symbol)).sum::<u64>();
        let digits = |sum: u64| (u64::BITS - sum.leading_zeros()) as usize;
        let mut classes: Vec<usize> =
            self.segments.iter().map(|segment| digits(loudness(segment)) * self.most / 16).collect();
        for round in 0..3 {
            let sample: Vec<usize> = (0..self.segments.len()).step_by(stride).collect();
            let costs = self.costs(&sample, &classes);
            let moved = if round < 2 { sample } else { (0..self.segments.len()).collect() };
            for segment in moved {
                let cost = |class: &usize| {
                    let (own, symbols) = &costs[*class];
                    let bits = self.segments[segment].iter().map(|&symbol| symbols[usize::from(symbol)]);
                    own.map(|own| own + bits.sum::<u64>()).unwrap_or(u64::MAX)
                };
                classes[segment] = (0..self.most).min_by_key(cost).expect("there are classes");
            }
        }
        classes
    }

    /// For each class, what belonging to it costs, unless nobody does, and each of its symbols; from these
    /// segments.
    fn costs(&self, sample: &[usize], classes: &[usize]) -> Vec<(Option<u64>, Vec<u64>)> {
        let mut members = vec![0; self.most];
        let mut counts = vec![vec![0; self.alphabet]; self.most];
        for &segment in sample {
            members[classes[segment]] += 1;
            let symbols = self.segments[segment].iter();
            symbols.for_each(|&symbol| counts[classes[segment]][usize::from(symbol)] += 1);
        }
        let own = rans::frequencies(&members).into_iter().map(rans::cost);
        let symbols = counts.iter().map(|counts| {
            let freqs = rans::frequencies(counts).into_iter();
            freqs.map(|f| rans::cost(f).unwrap_or(16 << 16)).collect()
        });
        own.zip(symbols).collect()
    }

    /// Joins neighbours, the pair that saves most first, as long as it costs nothing; returns the class of
    /// each segment, and the counts of each class.
    fn join(&self, classes: Vec<usize>) -> (Vec<usize>, Vec<Vec<u64>>) {
        // What each class consists of.
        let mut groups: Vec<Vec<usize>> = (0..self.most)
            .map(|class| (0..classes.len()).filter(|&segment| classes[segment] == class).collect())
            .filter(|members: &Vec<usize>| !members.is_empty())
            .collect();
        let counts = |group: &Vec<usize>| {
            let symbols = group.iter().flat_map(|&segment| self.segments[segment]).copied();
            rans::counts(&symbols.collect::<Vec<u8>>(), self.alphabet)
        };
        let mut tables: Vec<Vec<u64>> = groups.iter().map(counts).collect();
        loop {
            let joined = |low: usize| {
                let mut sizes: Vec<u64> = groups.iter().map(|group| group.len() as u64).collect();
                let mut tables = tables.clone();
                let (size, table) = (sizes.remove(low + 1), tables.remove(low + 1));
                sizes[low] += size;
                tables[low].iter_mut().zip(table).for_each(|(count, more)| *count += more);
                (sizes, tables)
            };
            let bits = |(sizes, tables): &(Vec<u64>, Vec<Vec<u64>>)| {
                let members = rans::cost_bits(&rans::frequencies(sizes), sizes);
                members + tables.iter().map(|counts| self.bits(counts)).sum::<u64>()
            };
            let apart = bits(&(groups.iter().map(|group| group.len() as u64).collect(), tables.clone()));
            let best = (0..groups.len() - 1).min_by_key(|&low| bits(&joined(low)));
            let Some(low) = best.filter(|&low| bits(&joined(low)) <= apart) else { break };
            tables = joined(low).1;
            let upper = groups.remove(low + 1);
            groups[low].extend(upper);
        }
        let class_of = |segment: usize| groups.iter().position(|group| group.contains(&segment));
        ((0..classes.len()).map(|segment| class_of(segment).expect("in a class")).collect(), tables)
    }

    /// A table and its symbols.
    fn bits(&self, counts: &[u64]) -> u64 {
        let freqs = rans::frequencies(counts);
        let mut table = Bits::default();
        rans::write_table(&freqs, &mut table);
        rans::cost_bits(&freqs, counts) + table.len() as u64
    }
}
