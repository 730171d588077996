//! What neighbours believe of each other's models, kept up to date by compressed differences.

mod spelling;

use crate::built::Full;
use crate::codec::{Gossip, Turn, begin_unit};
use crate::codecs::ValueChoice;
use crate::codecs::topk::radix_cut;
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::scratch::{LinearScratch, LinearScratchLen};

/// 2¹²⁶: the difference of two values up to it is finite. What is believed of a model stays within it.
const BOUND: f32 = f32::from_bits((127 + 126) << 23);
/// Whole numbers below 2²⁴ are floats, so a float of a payload carries 24 bits.
const WORD_BITS: usize = 24;
const WORD: u32 = (1 << WORD_BITS) - 1;

/// CHOCO: each edge keeps what both ends believe of the model x of either, x̂. An end sends q, the largest
/// coordinates of x − x̂, as they are or as signs; then x̂ ← x̂ + q at both ends, and
/// x ← x + diffusion · weight · (x̂' − x̂), where x̂' is what is believed of the neighbour.
///
/// A payload has `count` positions, one float each (two for units of more than 2²⁴ elements), then as many
/// values; with signs the mean magnitude, and 24 signs in each float. With density 1 there are no positions.
/// A position beyond the unit stands for none: fewer coordinates differ. Units that are sent dense are sent
/// with density 1 and whole values.
///
/// Every edge keeps 2·n floats, as both ends need both. A rank sends the same over all edges that have
/// lasted as long.
///
/// # Determinism
/// Ties go to the lowest position. The mean magnitude is a sum in f64 in ascending order. What is believed
/// has the same bits at both ends.
///
/// # Source
/// Koloskova, Stich, Jaggi: Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
/// Communication (arXiv 1902.00340), algorithm 2, edge by edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choco {
    density: Density,
    signs: bool,
    diffusion: f32,
}

/// How a unit is sent.
#[derive(Clone, Copy, Debug)]
struct Form {
    len: usize,
    count: usize,
    signs: bool,
}

impl Form {
    /// Floats of a position; none where all coordinates are sent.
    fn position_words(self) -> usize {
        match (self.count == self.len, self.len > 1 << WORD_BITS) {
            (true, _) => 0,
            (false, is_long) => 1 + usize::from(is_long),
        }
    }

    fn positions(self) -> usize {
        self.count * self.position_words()
    }

    /// Floats of the payload.
    fn words(self) -> usize {
        let values = if self.signs { 1 + self.count.div_ceil(WORD_BITS) } else { self.count };
        if self.count == 0 { 0 } else { self.positions() + values }
    }

    /// Writes what the unit's differences, as bits, are sent as.
    fn write(self, differences: &[u32], payload: &mut [f32]) {
        match self.count {
            0 => (),
            all if all == self.len => self.write_chosen(0..all, differences, payload),
            count => {
                let cut = radix_cut(differences, count);
                self.write_chosen(cut.positions(differences), differences, payload);
            }
        }
    }

    /// The same of these coordinates, which are ascending and at most `count`.
    fn write_chosen(self, chosen: impl Iterator<Item = usize>, differences: &[u32], payload: &mut [f32]) {
        let (positions, values) = payload.split_at_mut(self.positions());
        if self.signs {
            values.fill(0.0);
        }
        let (mut sum, mut number) = (0.0, 0);
        for at in chosen {
            let value = f32::from_bits(differences[at]);
            self.put_position(positions, number, at);
            match self.signs {
                true => values[1 + number / WORD_BITS] += sign_bit(value, number),
                false => values[number] = value,
            }
            sum += f64::from(value.abs());
            number += 1;
        }
        if self.signs {
            values[0] = (sum / number.max(1) as f64) as f32;
        }
        for number in number..self.count {
            self.put_position(positions, number, self.len);
            if !self.signs {
                values[number] = 0.0;
            }
        }
    }

    fn put_position(self, positions: &mut [f32], number: usize, at: usize) {
        let words = self.position_words();
        for (word, slot) in positions[number * words..][..words].iter_mut().enumerate() {
            *slot = ((at >> (word * WORD_BITS)) as u32 & WORD) as f32;
        }
    }

    /// Adds what a payload says to what is believed.
    fn add(self, payload: &[f32], believed: &mut [f32]) {
        if self.count == 0 {
            return;
        }
        let words = self.position_words();
        let (positions, values) = payload.split_at(self.positions());
        for number in 0..self.count {
            let at = match words {
                0 => number,
                _ => position(&positions[number * words..][..words]),
            };
            let value = match self.signs {
                true if values[1 + number / WORD_BITS] as u32 >> (number % WORD_BITS) & 1 == 1 => -values[0],
                true => values[0],
                false => values[number],
            };
            if let Some(believed) = believed.get_mut(at) {
                *believed = (*believed + value).clamp(-BOUND, BOUND);
            }
        }
    }
}

fn position(words: &[f32]) -> usize {
    words.iter().rev().fold(0, |high, &word| high << WORD_BITS | (word as u32 & WORD) as usize)
}

/// The sign of the value with this number, where it stands in its word.
fn sign_bit(value: f32, number: usize) -> f32 {
    let bit = u32::from(value.is_sign_negative()) << (number % WORD_BITS);
    bit as f32
}

impl Choco {
    /// The share of coordinates that is sent; as floats, with a diffusion rate of 0.05.
    #[must_use]
    pub fn new(density: Density) -> Self {
        Self { density, signs: false, diffusion: 0.05 }
    }

    /// The same, with signs and one magnitude for each unit.
    #[must_use]
    pub fn with_signs(self) -> Self {
        Self { signs: true, ..self }
    }

    /// The same with another diffusion rate, above 0 and at most 2, else `None`. The more is left out, the
    /// smaller it must be; if it is too large, models drift apart.
    #[must_use]
    pub fn with_diffusion(self, diffusion: f32) -> Option<Self> {
        (diffusion > 0.0 && diffusion <= 2.0).then_some(Self { diffusion, ..self })
    }

    /// The share of coordinates that is sent.
    #[must_use]
    pub fn density(&self) -> Density {
        self.density
    }

    /// [`Sign`](ValueChoice::Sign), or [`F32`](ValueChoice::F32).
    #[must_use]
    pub fn values(&self) -> ValueChoice {
        if self.signs { ValueChoice::Sign } else { ValueChoice::F32 }
    }

    /// The diffusion rate.
    #[must_use]
    pub fn diffusion(&self) -> f32 {
        self.diffusion
    }

    fn form(&self, unit: &Unit) -> Form {
        let len = unit.len;
        match unit.dense {
            true => Form { len, count: len, signs: false },
            false => Form { len, count: self.density.count(len), signs: self.signs },
        }
    }
}

impl Gossip for Choco {
    /// Words: bits of the model, then of the differences. Floats: this end's payload, of at most three floats
    /// for each coordinate and one more.
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        let unit = Unit { dense: false, ..Unit::whole(len) };
        LinearScratchLen { words: len, floats: self.form(&unit).words().max(len), ints: 0 }
    }

    fn kept_len(&self, _layout: &LayoutRef<'_>, unit: &Unit) -> usize {
        2 * unit.len
    }

    fn payload<'s>(
        &self,
        turn: &Turn<'_>,
        model: &[f32],
        kept: &mut [f32],
        scratch: &'s mut LinearScratch<'_>,
    ) -> Result<&'s [f32], EncodeError> {
        Full::build().ok_or(EncodeError::NotBuilt)?;
        let unit = turn.unit;
        assert_eq!(model.len(), unit.len, "model and unit differ in length");
        begin_unit(self.round_scratch_len(unit.len), unit, Grad::F32(model), None, BOUND, scratch)?;
        let (low, high) = kept.split_at(unit.len);
        let believed = if turn.is_low { low } else { high };
        let differences = &mut scratch.words[..unit.len];
        for ((bits, value), believed) in differences.iter_mut().zip(model).zip(believed) {
            *bits = (value - believed).to_bits();
        }
        let form = self.form(unit);
        let payload = &mut scratch.floats[..form.words()];
        form.write(differences, payload);
        Ok(payload)
    }

    fn advance(
        &self,
        turn: &Turn<'_>,
        theirs: &[f32],
        weight: f32,
        model: &mut [f32],
        kept: &mut [f32],
        scratch: &mut LinearScratch<'_>,
    ) {
        assert_eq!(model.len(), turn.unit.len, "model and unit differ in length");
        let form = self.form(turn.unit);
        assert_eq!(theirs.len(), form.words(), "payloads of the two ends differ in length");
        let (low, high) = kept.split_at_mut(turn.unit.len);
        let (own, other) = if turn.is_low { (low, high) } else { (high, low) };
        form.add(&scratch.floats[..form.words()], own);
        form.add(theirs, other);
        let far = weight * self.diffusion;
        for ((value, own), other) in model.iter_mut().zip(own).zip(other) {
            // The difference at one end is exactly the negative of that at the other.
            *value += far * (*other - *own);
        }
    }
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;
    use crate::codec::Edge;
    use crate::rng::key::{Source, StepKey};

    const LEN: usize = 60;

    /// Two neighbours, with all that they need.
    struct Pair {
        codec: Choco,
        dense: bool,
        models: [[f32; LEN]; 2],
        kept: [[f32; 2 * LEN]; 2],
    }

    impl Pair {
        fn new(codec: Choco) -> Self {
            let model = |salt: usize| core::array::from_fn(|i| ((i * 37 + salt) % 41) as f32 / 8.0 - 2.5);
            Self { codec, dense: false, models: [model(0), model(17)], kept: [[0.0; 2 * LEN]; 2] }
        }

        /// One step; returns the elements that each end sent.
        fn step(&mut self, weight: f32) -> usize {
            let layout = LayoutRef::flat(LEN);
            let unit = Unit { dense: self.dense, ..Unit::whole(LEN) };
            let key = StepKey { seed: 9, step: 0, source: Source::Shared };
            let turn = |end| Turn {
                key,
                edge: Edge { low: 3, high: 4 },
                is_low: end == 0,
                layout: &layout,
                unit: &unit,
                round: 0,
            };
            let (mut words, mut floats, mut sent) = ([[0; LEN]; 2], [[0.0; 2 * LEN]; 2], [[0.0; 2 * LEN]; 2]);
            let mut len = 0;
            for end in 0..2 {
                let mut scratch =
                    LinearScratch { words: &mut words[end], floats: &mut floats[end], ints: &mut [] };
                let kept = &mut self.kept[end];
                let payload = self.codec.payload(&turn(end), &self.models[end], kept, &mut scratch).unwrap();
                len = payload.len();
                sent[end][..len].copy_from_slice(payload);
            }
            for end in 0..2 {
                let mut scratch =
                    LinearScratch { words: &mut words[end], floats: &mut floats[end], ints: &mut [] };
                let (model, kept) = (&mut self.models[end], &mut self.kept[end]);
                self.codec.advance(&turn(end), &sent[1 - end][..len], weight, model, kept, &mut scratch);
            }
            len
        }

        fn distance(&self) -> f32 {
            self.models[0].iter().zip(&self.models[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        }
    }

    fn density(share: f64) -> Density {
        Density::new(share).unwrap()
    }

    #[test]
    fn with_all_sent_one_step_leads_to_the_mean() {
        let mut pair = Pair::new(Choco::new(density(1.0)).with_diffusion(1.0).unwrap());
        let before = pair.models;
        assert_eq!(pair.step(0.5), LEN);
        for i in 0..LEN {
            assert!((pair.models[0][i] - (before[0][i] + before[1][i]) / 2.0).abs() < 1e-6, "{i}");
        }
    }

    #[test]
    fn models_meet_their_sum_stays_and_both_ends_believe_the_same() {
        let codec = Choco::new(density(0.1));
        let signs = Choco::new(density(1.0)).with_signs();
        let some_signs = Choco::new(density(0.5)).with_signs();
        for (codec, rate, words) in [(codec, 0.1, 12), (signs, 0.4, 1 + 3), (some_signs, 0.4, 30 + 1 + 2)] {
            let codec = codec.with_diffusion(rate).unwrap();
            let mut pair = Pair::new(codec);
            let before: [f32; LEN] = core::array::from_fn(|i| pair.models[0][i] + pair.models[1][i]);
            let start = pair.distance();
            for _ in 0..200 {
                assert_eq!(pair.step(0.5), words, "{codec:?}");
                assert_eq!(pair.kept[0].map(f32::to_bits), pair.kept[1].map(f32::to_bits));
            }
            assert!(pair.distance() < 0.01 * start, "{codec:?}: {} of {start}", pair.distance());
            for i in 0..LEN {
                assert!((pair.models[0][i] + pair.models[1][i] - before[i]).abs() < 1e-3, "{i}");
            }
        }
    }

    #[test]
    fn the_largest_differences_are_sent_and_none_where_there_are_too_few() {
        let form = Form { len: 5, count: 3, signs: false };
        let mut payload = [9.0; 6];
        form.write(&[0.0f32, -3.0, 0.0, 2.0, 0.0].map(f32::to_bits), &mut payload);
        assert_eq!(payload, [1.0, 3.0, 5.0, -3.0, 2.0, 0.0]);
        let mut believed = [1.0; 5];
        form.add(&payload, &mut believed);
        assert_eq!(believed, [1.0, -2.0, 1.0, 3.0, 1.0]);
        let form = Form { signs: true, ..form };
        let mut payload = [9.0; 5];
        form.write(&[0.0f32, -3.0, 0.0, 2.0, 0.0].map(f32::to_bits), &mut payload);
        assert_eq!(payload, [1.0, 3.0, 5.0, 2.5, 1.0]);
    }

    #[test]
    fn dense_units_go_whole_and_positions_beyond_a_float_take_two() {
        let mut pair = Pair { dense: true, ..Pair::new(Choco::new(density(0.1)).with_signs()) };
        assert_eq!(pair.step(0.5), LEN);
        let form = Form { len: (1 << 24) + 1, count: 1, signs: false };
        let mut payload = [0.0; 3];
        form.put_position(&mut payload, 0, 1 << 24);
        assert_eq!((form.words(), &payload[..2]), (3, &[0.0, 1.0][..]));
    }

    #[test]
    fn hostile_payloads_leave_what_is_believed_within_its_bound() {
        let form = Form { len: 3, count: 2, signs: true };
        let mut believed = [BOUND, 0.0, -BOUND];
        for payload in [[f32::MAX, -7.0, f32::MAX, f32::MAX], [2.0, 0.0, -f32::MAX, -1e30]] {
            form.add(&payload, &mut believed);
            assert!(believed.iter().all(|value| value.abs() <= BOUND), "{believed:?}");
        }
    }

    #[test]
    fn settings_out_of_range_are_none() {
        let codec = Choco::new(density(0.1));
        assert!([0.0, -1.0, 2.5, f32::NAN].iter().all(|rate| codec.with_diffusion(*rate).is_none()));
    }
}
