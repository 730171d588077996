//! One group of tensors with one codec: its exchange, where its means go, and what ranks said.

use std::collections::BTreeMap;
use std::ops::Range;

use gradwire_transports::exchange::{Exchange, ExchangeError, Means, NewPart, PartState};

use super::kept::Kept;
use super::says::Says;
use crate::names::{Grad, Layout};

/// Elements of float32 that Python keeps where they are until the bucket is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) address: usize,
    pub(super) len: usize,
}

impl Place {
    /// # Safety
    /// The memory is there, nobody writes to it meanwhile, and it is aligned.
    unsafe fn values<'a>(self) -> &'a [f32] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise; any bits are a float.
        unsafe { std::slice::from_raw_parts(self.address as *const f32, self.len) }
    }

    /// # Safety
    /// As [`values`](Self::values), and nobody reads it either.
    unsafe fn values_mut<'a>(self) -> &'a mut [f32] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise; any bits are a float.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut f32, self.len) }
    }
}

/// A tensor of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    pub(super) id: u32,
    /// Its gradient; `None` if this rank has none.
    pub(super) gradient: Option<Place>,
    /// Where its mean goes; `None` if nobody wants it.
    pub(super) mean: Option<Place>,
}

/// Where the means of the parts in flight go, by unit.
#[derive(Default)]
pub(super) struct Places {
    places: BTreeMap<u32, Place>,
    /// For units that nobody wants the mean of.
    spare: Vec<f32>,
}

impl Places {
    fn place(&self, unit: u32, range: &Range<usize>) -> Option<Place> {
        self.places.get(&unit).copied().filter(|place| place.len == range.len())
    }
}

impl Means for Places {
    fn of(&mut self, unit: u32, range: Range<usize>) -> &mut [f32] {
        match self.place(unit, &range) {
            // SAFETY: Python keeps the tensors of a bucket in place until the bucket is done, which takes its
            // places away; nobody else touches them in between, and no two units have one place.
            Some(place) => unsafe { place.values_mut() },
            None => {
                self.spare.resize(self.spare.len().max(range.len()), 0.0);
                &mut self.spare[..range.len()]
            }
        }
    }

    fn all(&mut self, units: &mut dyn Iterator<Item = (u32, Range<usize>)>) -> Vec<&mut [f32]> {
        let units: Vec<_> = units.map(|(id, range)| (self.place(id, &range), range.len())).collect();
        let lens = units.iter().filter(|(place, _)| place.is_none()).map(|(_, len)| len);
        let len = lens.sum();
        self.spare.resize(self.spare.len().max(len), 0.0);
        let mut spare = &mut self.spare[..];
        let mean = |(place, len): (Option<Place>, usize)| match place {
            // SAFETY: as in `of`.
            Some(place) => unsafe { place.values_mut() },
            None => spare.split_off_mut(..len).unwrap_or_default(),
        };
        units.into_iter().map(mean).collect()
    }
}

/// How a codec is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Frames of gradients where they stand, with error feedback in two memories.
    Beside,
    /// Frames of a flat gradient.
    Frames,
    /// Payloads that are summed.
    Sums,
}

pub(super) struct Lane {
    pub(super) machine: Exchange,
    pub(super) kind: Kind,
    pub(super) spelling: String,
    len: usize,
    flat: Vec<f32>,
    /// Whether it may hold buffers of a step.
    was_used: bool,
    pub(super) places: Places,
    /// Of each part, what each rank said, as far as it was heard.
    pub(super) said: Vec<Vec<Option<Says>>>,
    /// Whether it waits for messages.
    pub(super) is_waiting: bool,
    pub(super) is_done: bool,
}

impl Lane {
    pub(super) fn new(machine: Exchange, layout: &Layout, kind: Kind, spelling: String) -> Self {
        let (flat, places, said) = Default::default();
        let (len, was_used, is_waiting, is_done) = (layout.len(), false, false, false);
        Self { machine, kind, spelling, len, flat, was_used, places, said, is_waiting, is_done }
    }

    pub(super) fn begin_step(&mut self) {
        self.said.clear();
        (self.was_used, self.is_waiting, self.is_done) = (true, false, false);
    }

    /// Frees the buffers of earlier steps, as a step does without it. A lane that one step does not need is
    /// seldom needed by the next.
    pub(super) fn free(&mut self) {
        // No step is under way, and its route takes added parts.
        if std::mem::take(&mut self.was_used) && self.machine.free().is_ok() {
            (self.flat, self.places) = Default::default();
        }
    }

    /// Adds the tensors of a bucket; all of them as if this rank had no gradient if it `lacks_all`. Returns
    /// the number of the part.
    pub(super) fn add(
        &mut self,
        tensors: &[Tensor],
        lacks_all: bool,
        says: &[u8],
        mut kept: Option<&mut Kept>,
        now: u64,
    ) -> Result<usize, ExchangeError> {
        let units: Vec<u32> = tensors.iter().map(|tensor| tensor.id).collect();
        // SAFETY: as in `Places`.
        let value = |tensor: &Tensor| tensor.gradient.map(|place| unsafe { place.values() });
        let own: Vec<(u32, &[f32])> = tensors
            .iter()
            .filter_map(|tensor| Some((tensor.id, value(tensor)?)))
            .filter(|(_, values)| !lacks_all && !Grad::F32(values).is_zero())
            .collect();
        let has = |id: &u32| own.binary_search_by_key(id, |(id, _)| *id).is_ok();
        let lacks: Vec<u32> = units.iter().copied().filter(|id| !has(id)).collect();
        let part = NewPart { units: &units, lacks: &lacks, says };
        let grads = || own.iter().map(|(_, values)| Grad::F32(values)).collect::<Vec<_>>();
        if let Some(kept) = &mut kept {
            let written: Vec<u32> = own.iter().map(|(id, _)| *id).collect();
            kept.has(&units, &written);
        }
        let added = match (self.kind, kept) {
            (Kind::Beside, Some(kept)) => {
                let (before, memory) = kept.both();
                self.machine.add_beside(&part, &grads(), before, memory, now)
            }
            (Kind::Sums, kept) => {
                self.machine.add_apart(&part, &grads(), kept.map(|kept| kept.both().1), now)
            }
            (_, kept) => {
                self.flat.resize(self.len, 0.0);
                let all = self.machine.units();
                for (id, values) in &own {
                    if let Ok(at) = all.binary_search_by_key(id, |unit| unit.id) {
                        self.flat[all[at].range()].copy_from_slice(values);
                    }
                }
                let memory = kept.map(|kept| kept.both().1);
                self.machine.add(&part, Grad::F32(&self.flat), memory, now)
            }
        }?;
        let means = tensors.iter().filter_map(|tensor| Some((tensor.id, tensor.mean?)));
        self.places.places.extend(means);
        Ok(added)
    }

    /// The places of a bucket are not there any more.
    pub(super) fn forget(&mut self, tensors: &[Tensor]) {
        for tensor in tensors {
            self.places.places.remove(&tensor.id);
        }
    }

    /// Fills the means of a bucket with NaN.
    pub(super) fn spoil(&mut self, tensors: &[Tensor]) {
        for tensor in tensors {
            if let Some(place) = tensor.mean {
                self.places.places.insert(tensor.id, place);
                self.places.of(tensor.id, 0..place.len).fill(f32::NAN);
            }
        }
    }

    /// Notes what a rank says about a part.
    pub(super) fn note(&mut self, part: usize, rank: usize, world: usize, says: Says) {
        if self.said.len() <= part {
            self.said.resize_with(part + 1, || vec![None; world]);
        }
        self.said[part][rank] = Some(says);
    }

    pub(super) fn state(&self, part: usize) -> PartState {
        self.machine.part(part).unwrap_or(PartState::Void)
    }
}
