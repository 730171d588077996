//! The adaptive form of index coder 4, from FORMAT.md, section 6.6: probabilities are kept by name, columns
//! by number.

use super::context::{Decisions, Part, bitlen};
use super::decode::{Checked, ensure};
use std::collections::HashMap;

/// A probability out of 2²², and how often it was updated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) p: i64,
    pub(super) count: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    /// Entries of the column, density, whether the last coordinate has an entry.
    D(u32, u32, bool),
    /// Distance in the row, and to the last entry of the column.
    G(u32, u64),
    /// What is above, how often that was not so, and how often it was.
    R(u64, u64, u32),
    /// Which of the last three rows have entries, and how many this one should have.
    H(u64, u32),
}

/// What both sides have learnt.
#[derive(Default)]
pub(super) struct Learnt {
    words: HashMap<Name, Word>,
    weights: HashMap<(u64, bool), [i64; 3]>,
    /// What the last decision changes, of which weights.
    due: Option<((u64, bool), [i64; 3])>,
}

fn log(value: u64) -> i64 {
    let value = value.max(1);
    let digits = bitlen(value) - 1;
    i64::from(digits) * 128 + ((value * 128) >> digits) as i64 - 128
}

fn log_odds(p: i64) -> i64 {
    let middle = p / 4096 * 4096 + 2048;
    log(p as u64) - log((4_194_304 - middle) as u64)
}

fn probability(x: i64) -> i64 {
    let y = x.abs().min(2047);
    let odds = (128 + y % 128) << (y / 128);
    let q = odds * 65536 / (odds + 128);
    if x < 0 { 65536 - q } else { q }
}

impl Word {
    pub(super) fn alone(&mut self, coder: &mut impl Decisions, told: Option<bool>) -> bool {
        let bit = coder.bit((self.p / 64).min(65440) as u64, told);
        self.update(bit);
        bit
    }

    fn update(&mut self, bit: bool) {
        let rate = 655_360 / (10 * self.count + 16);
        self.p += if bit { (4_194_240 - self.p) * rate / 65536 } else { -((self.p - 64) * rate / 65536) };
        self.count = (self.count + 1).min(1023);
    }
}

impl Learnt {
    fn alone(&mut self, coder: &mut impl Decisions, name: Name, number: u32, told: Option<bool>) -> bool {
        let first = [1300, 5500, 10_600, 19_500, 33_200, 49_600, 61_700, 65_300, 65_400][number as usize];
        self.words.entry(name).or_insert(Word { p: first * 64, count: 1 }).alone(coder, told)
    }

    fn mix(
        &mut self,
        coder: &mut impl Decisions,
        prior: i64,
        names: [Name; 3],
        set: (u64, bool),
        told: Option<bool>,
    ) -> bool {
        let unseen = Word { p: probability(prior) * 64, count: 0 };
        let inputs = names.map(|name| {
            let Word { p, count } = *self.words.entry(name).or_insert(unseen);
            ((log_odds(p) - prior) * (512 * count / (2 * count + 3))).div_euclid(256)
        });
        let weights = *self.weights.entry(set).or_insert([367_002; 3]);
        let narrow = |weight: i64| weight.div_euclid(64).clamp(-32_768, 32_767);
        let sum: i64 = weights.iter().zip(inputs).map(|(&weight, input)| narrow(weight) * input).sum();
        if let Some((set, changes)) = self.due {
            let weights = self.weights.get_mut(&set).expect("they were used");
            for (weight, change) in weights.iter_mut().zip(changes) {
                *weight = i64::from((*weight + change) as i32);
            }
        }
        let q = probability(prior + sum.div_euclid(1 << 14));
        let bit = coder.bit(q.min(65440) as u64, told);
        let error = (i64::from(bit) * 65536 - q).div_euclid(2);
        self.due = Some((set, inputs.map(|input| (error * input + 512).div_euclid(1024))));
        names.iter().for_each(|name| self.words.get_mut(name).expect("it was just asked").update(bit));
        bit
    }
}

/// Positions of `number` entries of a part, told to a writer and asked of a reader.
pub(super) fn positions(
    coder: &mut impl Decisions,
    learnt: &mut Learnt,
    part: &Part,
    number: u64,
    told: Option<&[u64]>,
) -> Checked<Vec<u64>> {
    let width = part.row.unwrap_or(64);
    let offset = if part.row.is_some() { part.offset } else { 0 };
    let mut rows = Rows {
        part,
        number,
        told,
        columns: HashMap::new(),
        positions: Vec::new(),
        next: part.first,
        recent: number * 65536 / (part.end - part.first),
        since: 0,
        begun: 0,
        full: 0,
    };
    let mut history = 0;
    while rows.left() > 0 {
        let column = if rows.begun == 0 { offset % width } else { 0 };
        let row = (width - column).min(part.end - rows.next);
        rows.begun += 1;
        let before = rows.left();
        if rows.span() - row >= before && !rows.has_entries(coder, learnt, history, row) {
            rows.next += row;
            rows.since += row;
            rows.recent /= 4;
        } else {
            rows.row(coder, learnt, column, row)?;
        }
        let entries = u64::from(rows.left() < before);
        history = (2 * history + entries) % 8;
        rows.full += entries;
    }
    Ok(rows.positions)
}

struct Rows<'a> {
    part: &'a Part,
    number: u64,
    told: Option<&'a [u64]>,
    /// Entries of each column, and the row of the last.
    columns: HashMap<u64, (u64, u64)>,
    positions: Vec<u64>,
    next: u64,
    recent: u64,
    since: u64,
    begun: u64,
    full: u64,
}

impl Rows<'_> {
    fn left(&self) -> u64 {
        self.number - self.positions.len() as u64
    }

    fn span(&self) -> u64 {
        self.part.end - self.next
    }

    /// Whether a writer's entries have one below `end` and not before `next`.
    fn told_any(&self, end: u64) -> Option<bool> {
        self.told.map(|told| told.iter().any(|position| (self.next..end).contains(position)))
    }

    fn has_entries(&self, coder: &mut impl Decisions, learnt: &mut Learnt, history: u64, row: u64) -> bool {
        let number = bitlen(16 * self.left() * row / self.span()).min(8);
        learnt.alone(coder, Name::H(history, number), number, self.told_any(self.next + row))
    }

    fn expected(&self) -> i64 {
        let denser = log(self.begun) - log(self.full + 1);
        (log(self.left()) - log(self.span() - self.left()) + denser).clamp(-2047, 2047)
    }

    fn row(&mut self, coder: &mut impl Decisions, learnt: &mut Learnt, column: u64, row: u64) -> Checked<()> {
        let (mut like, mut unlike) = (0, 0u64);
        let mut prior = self.expected();
        for column in column..column + row {
            if self.left() == 0 {
                break;
            }
            let seen = self.columns.get(&column).copied();
            let (count, last) = seen.unwrap_or((0, 0));
            let above = seen.is_some() && last == self.full;
            let ago = if seen.is_some() { (self.full - last).min(16) } else { 16 };
            let a = if self.full == 0 { 2 } else { u64::from(above) };
            let names = [
                Name::D(bitlen(count).min(7), bitlen(self.recent / 128), self.since == 0),
                Name::G(bitlen(self.since).min(10), ago),
                Name::R(a, unlike.min(3), bitlen(like).min(7)),
            ];
            let told = self.told_any(self.next + 1);
            let bit = learnt.mix(coder, prior, names, (a, seen.is_some()), told);
            like += u64::from(bit && above);
            unlike += u64::from(bit != above);
            self.recent -= self.recent / 32;
            self.since += 1;
            self.next += 1;
            if bit {
                self.positions.push(self.next - 1);
                self.columns.insert(column, (count + 1, self.full + 1));
                self.recent += 2048;
                self.since = 0;
                prior = self.expected();
            }
            ensure(self.left() <= self.span(), "no room for the entries behind")?;
        }
        Ok(())
    }
}
