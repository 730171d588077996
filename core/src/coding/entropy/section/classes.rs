//! Chooses the classes of a section, and the class of each segment, for the fewest bits, with integers alone.
//!
//! ```text
//! class of each segment = bitlen(sum of its symbols) · most / 16
//! three times: a table for each class that a sample of the segments has, then each segment to the class that codes it
//!   in the fewest bits; the third time all segments
//! classes without segments go; then, while it saves bits, those two neighbours are joined that save the most
//! ```
//! The sum of the symbols orders segments from the quietest to the loudest, so neighbouring classes are those
//! with neighbouring numbers.

use super::LEAST_SEGMENT_LOG2;
use crate::coding::entropy::rans::{Entries, MAX_ALPHABET, Table, fill_entries};
use crate::kernels::{self, CLASS_LANES, Isa};
use crate::scratch::ScratchLen;

/// log2 of the symbols of a segment that this writer makes.
const SEGMENT_LOG2: u32 = 6;

/// Symbols of a segment.
pub(super) const SEGMENT: usize = 1 << SEGMENT_LOG2;

/// Most classes of a section.
const MAX_CLASSES: usize = CLASS_LANES;

/// A unit needs this many symbols for each class above the first, because a reader must have room for the
/// slots of each class.
const SYMBOLS_PER_CLASS: usize = 8192;

/// Segments that the tables are learnt from.
const SAMPLE: usize = 1 << 14;

/// How many times segments move to the class that suits them best.
const ROUNDS: usize = 3;

/// Symbols of the largest alphabet with which the symbols of a segment are counted before their costs are
/// summed.
const FEW: usize = 16;

/// Cost in bits, while classes are searched, of a symbol for which a class has no slots: above every other
/// cost.
const ABSENT_BITS: u32 = 16;

type Counts = [u32; MAX_ALPHABET];

/// How many classes a section of at most `len` symbols may have.
pub(super) fn most_classes(len: usize) -> usize {
    MAX_CLASSES.min(1 + len / SYMBOLS_PER_CLASS)
}

/// Scratch memory for the choice of classes.
pub(crate) struct ClassRoom<'r> {
    most: usize,
    counts: &'r mut [Counts],
    /// Costs while classes are chosen, entries while symbols are coded.
    tables: &'r mut [u32],
    classes: &'r mut [u8],
}

impl<'r> ClassRoom<'r> {
    /// Words and bytes for a section of at most `len` symbols.
    pub(crate) fn scratch_len(len: usize) -> ScratchLen {
        let most = most_classes(len);
        if most == 1 {
            return ScratchLen::default();
        }
        let tables = COST_WORDS.max(most * MAX_ALPHABET * 2);
        ScratchLen { words: most * MAX_ALPHABET + tables, bytes: len.div_ceil(SEGMENT) }
    }

    /// The room for a section of at most `len` symbols, in scratch memory of
    /// [`scratch_len`](Self::scratch_len). Without scratch memory, there is room for one class only.
    pub(crate) fn new(len: usize, words: &'r mut [u32], classes: &'r mut [u8]) -> Self {
        let most = if words.is_empty() { 1 } else { most_classes(len) };
        let (counts, tables) = words.split_at_mut(if most == 1 { 0 } else { most * MAX_ALPHABET });
        Self { most, counts: counts.as_chunks_mut().0, tables, classes }
    }

    /// Chooses classes for `symbols`; `None` if one table is best.
    pub(super) fn choose(self, isa: Isa, symbols: &[u8], alphabet: usize) -> Option<Chosen<'r>> {
        let segments = symbols.len().div_ceil(SEGMENT);
        if self.most == 1 || segments < 2 {
            return None;
        }
        let Self { most, counts, tables, classes } = self;
        let classes = &mut classes[..segments];
        let search = Search { isa, symbols, alphabet, most };
        let sampled = segments.div_ceil(SAMPLE);
        search.spread(sampled, classes, counts);
        for round in 1..=ROUNDS {
            let costs = tables.first_chunk_mut::<COST_WORDS>()?.as_chunks_mut().0.first_chunk_mut()?;
            let start = search.learn(sampled, classes, counts, costs);
            search.assign(costs, &start, if round < ROUNDS { sampled } else { 1 }, classes, counts);
        }
        let used = search.join(classes, counts);
        let chosen = Chosen { alphabet, classes, counts: &counts[..used], entries: tables };
        (used > 1).then_some(chosen)
    }
}

/// Words of [`Costs`].
const COST_WORDS: usize = MAX_ALPHABET * CLASS_LANES;

/// The cost of every symbol in every class, in 2⁻¹⁶ bits.
type Costs = [[u32; CLASS_LANES]; MAX_ALPHABET];

/// The cost of naming a class that no segment has: more than any other cost.
const NOBODY: u32 = 1 << 31;

/// The symbols, and the classes tried for their segments.
struct Search<'s> {
    isa: Isa,
    symbols: &'s [u8],
    alphabet: usize,
    most: usize,
}

impl<'s> Search<'s> {
    /// Every `stride`-th segment, with its number.
    fn segments(&self, stride: usize) -> impl Iterator<Item = (usize, &'s [u8])> {
        self.symbols.chunks(SEGMENT).enumerate().step_by(stride)
    }

    /// Gives every `stride`-th segment its first class.
    fn spread(&self, stride: usize, classes: &mut [u8], counts: &mut [Counts]) {
        counts.as_flattened_mut().fill(0);
        for (segment, symbols) in self.segments(stride) {
            let sum: u32 = symbols.iter().map(|&symbol| u32::from(symbol)).sum();
            let digits = (u32::BITS - sum.leading_zeros()) as usize;
            let class = digits * self.most / MAX_CLASSES;
            classes[segment] = class as u8;
            kernels::histogram(self.isa, symbols, &mut counts[class][..self.alphabet]);
        }
    }

    /// The cost of each symbol in each class, learnt from the symbols counted in every `stride`-th segment.
    /// Returns the cost of naming each class.
    fn learn(
        &self,
        stride: usize,
        classes: &[u8],
        counts: &[Counts],
        costs: &mut Costs,
    ) -> [u32; CLASS_LANES] {
        costs.as_flattened_mut().fill(0);
        for (class, counts) in counts.iter().enumerate() {
            let table = Table::from_counts(&counts[..self.alphabet]);
            for (symbol, costs) in (0..=u8::MAX).zip(costs[..self.alphabet].iter_mut()) {
                costs[class] = table.cost_q16(symbol).unwrap_or(ABSENT_BITS << 16);
            }
        }
        let members = Table::from_counts(&members_of(classes.iter().step_by(stride))[..self.most]);
        core::array::from_fn(|class| members.cost_q16(class as u8).unwrap_or(NOBODY))
    }

    /// Moves every `stride`-th segment to the class with the least cost, ties to the lowest, and counts its
    /// symbols there.
    fn assign(
        &self,
        costs: &Costs,
        start: &[u32; CLASS_LANES],
        stride: usize,
        classes: &mut [u8],
        counts: &mut [Counts],
    ) {
        counts.as_flattened_mut().fill(0);
        for (segment, symbols) in self.segments(stride) {
            let mut sums = *start;
            let least =
                |sums: [u32; CLASS_LANES]| sums.into_iter().zip(0u8..).min().map_or(0, |(_, class)| class);
            let class;
            if self.alphabet <= FEW {
                let mut own = [0; FEW];
                let own = &mut own[..self.alphabet];
                kernels::histogram(self.isa, symbols, own);
                kernels::counted_class_costs(self.isa, own, costs, &mut sums);
                class = least(sums);
                counts[usize::from(class)].iter_mut().zip(own).for_each(|(count, own)| *count += *own);
            } else {
                kernels::class_costs(self.isa, symbols, costs, &mut sums);
                class = least(sums);
                kernels::histogram(self.isa, symbols, &mut counts[usize::from(class)][..self.alphabet]);
            }
            classes[segment] = class;
        }
    }

    /// Joins neighbouring classes as long as that costs nothing. Returns how many classes remain; they have
    /// the lowest numbers.
    fn join(&self, classes: &mut [u8], counts: &mut [Counts]) -> usize {
        let mut members = members_of(classes.iter());
        let (mut names, mut bits, mut used) = ([0u8; MAX_CLASSES], [0u64; MAX_CLASSES], 0);
        for class in 0..self.most {
            if members[class] > 0 {
                (counts[used], members[used]) = (counts[class], members[class]);
                (names[class], bits[used]) = (used as u8, self.bits(&counts[used]));
                used += 1;
            }
        }
        while let Some((low, joined_bits)) = self.best_join(&counts[..used], &members[..used], &bits[..used])
        {
            let high = counts[low + 1];
            counts[low].iter_mut().zip(high).for_each(|(count, more)| *count += more);
            (members[low], bits[low]) = (members[low] + members[low + 1], joined_bits);
            counts.copy_within(low + 2..used, low + 1);
            members.copy_within(low + 2..used, low + 1);
            bits.copy_within(low + 2..used, low + 1);
            names.iter_mut().filter(|name| usize::from(**name) > low).for_each(|name| *name -= 1);
            used -= 1;
        }
        classes.iter_mut().for_each(|class| *class = names[usize::from(*class)]);
        used
    }

    /// Finds the two neighbours that save most when they are joined, the lowest among equals. Returns the
    /// lower one, and the bits of the two joined; `None` if every join costs something.
    fn best_join(&self, counts: &[Counts], members: &[u32], bits: &[u64]) -> Option<(usize, u64)> {
        let apart = bits.iter().sum::<u64>() + bits_of_members(members);
        let joins = (1..counts.len()).map(|high| {
            let low = high - 1;
            let mut sum = counts[low];
            sum.iter_mut().zip(&counts[high]).for_each(|(count, more)| *count += more);
            let mut fewer = [0; MAX_CLASSES];
            fewer[..low].copy_from_slice(&members[..low]);
            fewer[low] = members[low] + members[high];
            fewer[high..members.len() - 1].copy_from_slice(&members[high + 1..]);
            let joined = self.bits(&sum);
            let others = bits.iter().sum::<u64>() - bits[low] - bits[high];
            (others + joined + bits_of_members(&fewer[..members.len() - 1]), low, joined)
        });
        joins.min().filter(|(total, ..)| *total <= apart).map(|(_, low, joined)| (low, joined))
    }

    /// Bits of a class: its table and its symbols.
    fn bits(&self, counts: &Counts) -> u64 {
        let counts = &counts[..self.alphabet];
        let table = Table::from_counts(counts);
        table.cost_bits(counts) + table.table_bits(self.alphabet)
    }
}

/// Segments of each class.
fn members_of<'c>(classes: impl Iterator<Item = &'c u8>) -> [u32; MAX_CLASSES] {
    let mut members = [0; MAX_CLASSES];
    classes.for_each(|&class| members[usize::from(class)] += 1);
    members
}

/// Bits that it takes to name the class of every segment.
fn bits_of_members(members: &[u32]) -> u64 {
    Table::from_counts(members).cost_bits(members)
}

/// Classes that were chosen.
pub(super) struct Chosen<'r> {
    alphabet: usize,
    classes: &'r mut [u8],
    counts: &'r [Counts],
    entries: &'r mut [u32],
}

impl Chosen<'_> {
    /// The `classes` byte.
    pub(super) fn byte(&self) -> u8 {
        (self.counts.len() - 1) as u8 | ((SEGMENT_LOG2 - LEAST_SEGMENT_LOG2) as u8) << 4
    }

    /// The table of each class.
    pub(super) fn tables(&self) -> impl Iterator<Item = Table> {
        self.counts.iter().map(|counts| Table::from_counts(&counts[..self.alphabet]))
    }

    /// Bits of all symbols.
    pub(super) fn cost_bits(&self) -> u64 {
        self.tables().zip(self.counts).map(|(table, counts)| table.cost_bits(&counts[..self.alphabet])).sum()
    }

    /// Passes to `write` the differences between the classes of neighbouring segments, modulo the number of
    /// classes, and that number.
    pub(super) fn with_differences<T>(&mut self, write: impl FnOnce(&[u8], usize) -> T) -> T {
        let used = self.counts.len() as u8;
        let mut previous = 0;
        for class in self.classes.iter_mut() {
            let own = *class;
            *class = (own + used - previous) % used;
            previous = own;
        }
        let written = write(self.classes, self.counts.len());
        previous = 0;
        for class in self.classes.iter_mut() {
            *class = (*class + previous) % used;
            previous = *class;
        }
        written
    }

    /// The encoder entries for all classes, and the class of each segment.
    pub(super) fn entries(&mut self) -> (&[Entries], &[u8]) {
        let tables = self.counts.iter().map(|counts| Table::from_counts(&counts[..self.alphabet]));
        let entries = self.entries.as_chunks_mut().0.as_chunks_mut().0;
        entries.iter_mut().zip(tables).for_each(|(entries, table)| fill_entries(entries, &table));
        (entries, self.classes)
    }
}
