//! The parts of a step: units that travel together. A step is cut into neighbouring units when it begins, or
//! its parts are added one by one.

use std::ops::Range;

use gradwire::{DecodeError, Grad, Memory, Unit};

use super::error::ExchangeError;
use super::means::Means;
use super::report::Work;
use super::step::Step;
use crate::tag::{Tag, Wanted};

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

/// What one call of a poll did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The message that is needed next is not here. The poll goes on when it is.
    Waiting,
    /// A payload is lent to the library of the network. The poll goes on when it is summed.
    Lent,
    /// A piece of the poll.
    Busy(Work),
    /// The rest of the poll. The part has more to do, after those in flight behind it.
    More,
    /// The rest of the part: `mean` holds its share.
    Complete,
}

/// What a route does with each part. Every rank makes the same calls with the same parts in the same order.
pub(super) trait InParts {
    /// Whether a rank whose gradient cannot be encoded sends notes. Routes without frames need them, because
    /// no void frame can take the place of a frame there.
    const HAS_NOTES: bool = false;

    /// Sets the number of parts of a step.
    fn set_parts(&mut self, count: usize);

    fn begin_step(&mut self);

    /// Runs the rounds before the frame, in which all ranks agree on a few numbers, as far as it can. Returns
    /// whether they are over. The memory is only read. If this rank's gradient is refused, its void frame
    /// takes the place of its next message; the caller sends it as for the first part.
    fn agree(
        &mut self,
        step: &mut Step<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<bool, ExchangeError> {
        let _ = (step, grad, memory);
        Ok(true)
    }

    /// Encodes a part of the gradient. After an error the memory is as it was.
    fn encode(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grad: Grad<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError>;

    /// Encodes a part whose gradient stands in a place for each of its own units.
    fn encode_apart(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grads: &[Grad<'_>],
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        let _ = (step, part, grads, memory);
        Err(ExchangeError::NoParts { route: "frames" })
    }

    /// Encodes a part whose gradient stands in a place for each of its own units, and whose residuals are in
    /// another memory: see [`Exchange::add_beside`](super::Exchange::add_beside). After an error `memory`
    /// holds nothing of use.
    fn encode_beside(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        grads: &[Grad<'_>],
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
    ) -> Result<(), ExchangeError> {
        let _ = (step, part, grads, before, memory);
        Err(ExchangeError::NoParts { route: "sums" })
    }

    /// Queues the first messages of a part.
    fn post(&mut self, step: &mut Step<'_>, part: Part<'_>) -> Result<(), ExchangeError>;

    /// The bytes of a [frame](super::port::Body::Frame) that was queued.
    fn frame(&self, part: usize, place: usize) -> &[u8];

    /// The tag of a void frame: that of the part's first messages, whose place it takes, or that of notes.
    fn void_tag(&self, step: &Step<'_>, at: usize) -> Tag;

    /// Whether this rank has promised to go on with the step, whatever its caller says.
    fn is_promised(&self) -> bool {
        false
    }

    /// The tag of the messages of an added part that begin with a head. Those of other parts differ in the
    /// chunk alone. `None` for a route without added parts.
    fn head_tag(&self, step: &Step<'_>, at: usize) -> Option<Tag> {
        let _ = (step, at);
        None
    }

    /// The message of the member at that position that began with a head; of this rank its own.
    fn headed(&self, part: usize, position: Option<usize>) -> &[u8] {
        let _ = (part, position);
        &[]
    }

    /// One piece of a poll of a part: takes a message that the part waits for, and queues what comes next.
    fn poll(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<Polled, ExchangeError>;

    /// Makes the mean of a part from the results of all polls, and checks that it is finite.
    fn conclude(
        &mut self,
        step: &mut Step<'_>,
        part: Part<'_>,
        mean: &mut dyn Means,
    ) -> Result<(), ExchangeError>;

    /// Returns to the memory what `encode` took from it.
    fn give_back(
        &mut self,
        step: &Step<'_>,
        part: Part<'_>,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<(), DecodeError>;

    /// Asks for whatever the others may still send of a step that failed here, so that their notes find room
    /// behind it.
    fn drain(&mut self, step: &mut Step<'_>) {
        let (members, tag) = (step.members(), step.tag);
        step.others_in(&members).for_each(|(_, from)| step.port.ask(Wanted { from, tag, chunks: u32::MAX }));
    }

    /// Bytes of this rank's own frames or payloads.
    fn frame_bytes(&self) -> usize;

    /// Coordinates that this rank sent.
    fn held(&self) -> usize;

    /// Coordinates that all ranks sent; `None` where every rank sends as many.
    fn held_by_all(&self) -> Option<usize> {
        None
    }
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
