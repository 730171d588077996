//! The parts of a step: units that travel together. A step is cut into neighbouring units when it begins, or
//! its parts are added one by one.

use std::ops::Range;

use gradwire::Unit;

use super::error::ExchangeError;
use super::means::Means;

/// A part of a step whose parts are added one by one: see [`Exchange::add`](super::Exchange::add). All ranks
/// add the same units in the same order; what a rank lacks and says is its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewPart<'a> {
    /// Identifiers of [units](super::Exchange::units), ascending: at least one, and none of an earlier part.
    pub units: &'a [u32],
    /// Those of them of which this rank has no gradient, ascending. It counts as zero.
    pub lacks: &'a [u32],
    /// Bytes that travel with the part, for the caller at every other rank: at most
    /// [`MOST_SAID`](Self::MOST_SAID). They are there when the part is: see
    /// [`Exchange::said`](super::Exchange::said).
    pub says: &'a [u8],
}

impl NewPart<'_> {
    /// The most bytes that a rank says with a part.
    pub const MOST_SAID: usize = 1 << 14;
}

/// How far a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartState {
    /// Frames or sums are missing.
    Travelling,
    /// Its mean is there. It must not be used if the step fails.
    Complete,
    /// The same, and the mean is not finite: only of an exchange that [takes any
    /// mean](super::Exchange::taking_any_mean).
    NotFinite,
    /// The step has failed before its mean was there. Its values are NaN.
    Void,
}

/// Units that travel together.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    /// Its number in the step, from 0.
    pub(super) at: usize,
    /// Position of its first unit among the units of the step.
    pub(super) first: usize,
    pub(super) units: &'a [Unit],
    /// Those of them of which this rank has a gradient.
    pub(super) own: &'a [Unit],
    /// What this rank says with it, if it was added; its messages then have a [head](super::head).
    pub(super) says: Option<&'a [u8]>,
}

/// The coordinates of units, those of neighbours together.
pub(super) fn runs(units: &[Unit]) -> impl Iterator<Item = Range<usize>> + '_ {
    let runs = units.chunk_by(|unit, next| unit.range().end == next.start);
    runs.map(|run| run[0].start..run[run.len() - 1].range().end)
}

/// The parts of a step.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The units of the step, part by part.
    units: Vec<Unit>,
    /// Those of them of which this rank has a gradient.
    own: Vec<Unit>,
    says: Vec<u8>,
    cuts: Vec<Cut>,
}

/// Where a part ends.
#[derive(Clone, Copy, Debug)]
struct Cut {
    units: usize,
    own: usize,
    /// `None` in a step that was cut.
    says: Option<usize>,
    state: PartState,
}

impl Parts {
    /// At most `count` parts of neighbouring units, with about the same number of elements each. The middle
    /// element of a unit decides its part.
    pub(super) fn new(units: &[Unit], count: usize) -> Self {
        let total = units.iter().map(|unit| unit.len as u128).sum::<u128>().max(1);
        let mut passed = 0;
        let mut share = |unit: &Unit| {
            let middle = 2 * passed + unit.len as u128;
            passed += unit.len as u128;
            middle * count as u128 / (2 * total)
        };
        let shares: Vec<u128> = units.iter().map(&mut share).collect();
        let mut end = 0;
        let chunks = shares.chunk_by(|a, b| a == b);
        let next = |chunk: &[u128]| {
            end += chunk.len();
            Cut { units: end, own: end, says: None, state: PartState::Travelling }
        };
        let cuts = chunks.map(next).collect();
        Self { units: units.to_vec(), own: units.to_vec(), says: Vec::new(), cuts }
    }

    /// Begins a step whose parts are added.
    pub(super) fn clear(&mut self) {
        self.units.clear();
        self.own.clear();
        self.says.clear();
        self.cuts.clear();
    }

    /// Adds a part of the units `all`. Returns its number; after an error there are the parts that there
    /// were.
    pub(super) fn add(&mut self, all: &[Unit], new: &NewPart<'_>) -> Result<usize, ExchangeError> {
        let bad = |why| Err(ExchangeError::BadPart { why });
        let find = |id: &u32| all.binary_search_by_key(id, |unit| unit.id).ok();
        let is_known = new.units.iter().all(|id| find(id).is_some());
        let is_in = |ids: &[u32], id: &u32| ids.binary_search(id).is_ok();
        match new {
            NewPart { units: [], .. } => return bad("it has no unit"),
            NewPart { says, .. } if says.len() > NewPart::MOST_SAID => return bad("it says too much"),
            _ if !is_known => return bad("there is no such unit"),
            _ if !new.units.is_sorted_by(|a, b| a < b) => return bad("its units do not ascend"),
            _ if !new.lacks.is_sorted_by(|a, b| a < b)
                || !new.lacks.iter().all(|id| is_in(new.units, id)) =>
            {
                return bad("what it lacks is not among its units");
            }
            _ if self.units.iter().any(|unit| is_in(new.units, &unit.id)) => {
                return bad("a unit is in an earlier part");
            }
            _ => {}
        }
        self.units.extend(new.units.iter().filter_map(find).map(|at| all[at]));
        let own = new.units.iter().filter(|id| !is_in(new.lacks, id));
        self.own.extend(own.filter_map(find).map(|at| all[at]));
        self.says.extend_from_slice(new.says);
        let (units, own, says) = (self.units.len(), self.own.len(), Some(self.says.len()));
        self.cuts.push(Cut { units, own, says, state: PartState::Travelling });
        Ok(self.cuts.len() - 1)
    }

    /// Takes the part back that was added last.
    pub(super) fn take_back(&mut self) {
        self.cuts.pop();
        let (units, own, says) =
            self.cuts.last().map_or((0, 0, 0), |cut| (cut.units, cut.own, cut.says.unwrap_or(0)));
        self.units.truncate(units);
        self.own.truncate(own);
        self.says.truncate(says);
    }

    pub(super) fn count(&self) -> usize {
        self.cuts.len()
    }

    pub(super) fn part(&self, at: usize) -> Part<'_> {
        let cut = self.cuts[at];
        let before = at.checked_sub(1).map(|before| self.cuts[before]);
        let (first, own) = before.map_or((0, 0), |before| (before.units, before.own));
        let said = before.and_then(|before| before.says).unwrap_or(0);
        let says = cut.says.map(|end| &self.says[said..end]);
        Part { at, first, units: &self.units[first..cut.units], own: &self.own[own..cut.own], says }
    }

    /// How far a part is; `None` if there is no such part.
    pub(super) fn state(&self, at: usize) -> Option<PartState> {
        self.cuts.get(at).map(|cut| cut.state)
    }

    pub(super) fn set_state(&mut self, at: usize, state: PartState) {
        self.cuts[at].state = state;
    }

    /// The step has failed: what is not complete becomes NaN.
    pub(super) fn spoil(&mut self, mean: &mut dyn Means) {
        let mut first = 0;
        for cut in &mut self.cuts {
            if cut.state == PartState::Travelling {
                cut.state = PartState::Void;
                let units = &self.units[first..cut.units];
                units.iter().for_each(|unit| mean.of(unit.id, unit.range()).fill(f32::NAN));
            }
            first = cut.units;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(lens: &[usize]) -> Vec<Unit> {
        let start = |i: usize| lens[..i].iter().sum();
        let unit = |i: usize| Unit { id: i as u32, start: start(i), len: lens[i], dense: false };
        (0..lens.len()).map(unit).collect()
    }

    #[test]
    fn units_are_cut_into_parts_of_about_the_same_length() {
        let ends = |lens: &[usize], count| -> Vec<usize> {
            let parts = Parts::new(&units(lens), count);
            let all: Vec<Part<'_>> = (0..parts.count()).map(|at| parts.part(at)).collect();
            assert!(all[0].first == 0 && all.iter().all(|part| !part.units.is_empty()));
            all.iter().map(|part| part.first + part.units.len()).collect()
        };
        assert_eq!(ends(&[5, 5, 5, 5], 1), [4]);
        assert_eq!(ends(&[5, 5, 5, 5], 2), [2, 4]);
        assert_eq!(ends(&[5, 5, 5, 5], 9), [1, 2, 3, 4]);
        assert_eq!(ends(&[100, 1, 1, 1], 4), [1, 4]);
        assert_eq!(ends(&[1, 1, 100], 3), [2, 3]);
        assert_eq!(ends(&[0], 3), [1]);
        assert_eq!(ends(&[0, 0], 2), [2]);
    }

    #[test]
    fn parts_that_are_added_know_their_units_and_what_they_lack() {
        let (all, mut parts) = (units(&[3, 1, 4, 2]), Parts::default());
        parts.clear();
        let new = NewPart { units: &[1, 3], lacks: &[3], says: b"hi" };
        assert_eq!(parts.add(&all, &new), Ok(0));
        assert_eq!(parts.add(&all, &NewPart { units: &[0, 2], lacks: &[], says: b"!" }), Ok(1));
        let ids = |units: &[Unit]| units.iter().map(|unit| unit.id).collect::<Vec<_>>();
        let (first, second) = (parts.part(0), parts.part(1));
        assert_eq!((ids(first.units), ids(first.own), first.says), (vec![1, 3], vec![1], Some(&b"hi"[..])));
        assert_eq!((second.first, ids(second.own), second.says), (2, vec![0, 2], Some(&b"!"[..])));
        parts.set_state(1, PartState::Complete);
        let mut mean = [0.0; 10];
        parts.spoil(&mut &mut mean[..]);
        assert_eq!((parts.state(0), parts.state(1)), (Some(PartState::Void), Some(PartState::Complete)));
        assert_eq!(mean.map(f32::is_nan).iter().filter(|is_nan| **is_nan).count(), 3);
        assert!(mean[3].is_nan() && mean[8].is_nan() && mean[9].is_nan());
    }

    #[test]
    fn parts_that_make_no_sense_are_refused_and_change_nothing() {
        let (all, mut parts) = (units(&[3, 1, 4, 2]), Parts::default());
        let fine = NewPart { units: &[1, 2], ..NewPart::default() };
        assert_eq!(parts.add(&all, &fine), Ok(0));
        let long = vec![0; NewPart::MOST_SAID + 1];
        for bad in [
            NewPart::default(),
            NewPart { units: &[4], ..fine },
            NewPart { units: &[3, 0], ..fine },
            NewPart { units: &[0, 0], ..fine },
            NewPart { units: &[2, 3], ..fine },
            NewPart { units: &[0, 3], lacks: &[1], ..fine },
            NewPart { units: &[0, 3], lacks: &[3, 0], ..fine },
            NewPart { units: &[0, 3], says: &long, ..fine },
        ] {
            assert!(matches!(parts.add(&all, &bad), Err(ExchangeError::BadPart { .. })), "{bad:?}");
        }
        assert_eq!((parts.count(), parts.part(0).units.len()), (1, 2));
    }
}
