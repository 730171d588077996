//! Arrays of a memory that a codec names and sizes.

use super::{Memory, MemoryView, Storage};
use core::ops::Range;

/// Name and length of one array of a [`Memory`], in addition to the parts that every memory may have.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ArrayLen {
    /// Its name, of 1 to 255 bytes, which the codec chooses.
    pub name: &'static str,
    /// Number of its elements.
    pub len: usize,
    /// Whether it has one element a coordinate of the layout, in the layout's order. If so, it moves with the
    /// tensors to [another layout](Memory::remap).
    pub by_coordinate: bool,
}

/// Who keeps a memory. The lengths of its arrays may depend on this, besides the codec, the layout and the
/// units.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Keeper {
    /// A rank that encodes gradients of its own.
    #[default]
    Worker,
    /// The server, which encodes the means that go back to the workers.
    Server,
}

/// Lengths of the state that a codec keeps in addition to residual, momentum and unit states, as [the codec
/// says](crate::Codec::state_len): one array of factors, and up to [`MAX_ARRAYS`](Self::MAX_ARRAYS) named
/// arrays.
///
/// # Examples
/// ```
/// use gradwire::state::StateLen;
/// // Two vectors an edge, one element a row and one a column.
/// let (edges, rows, columns) = (2, 10, 64);
/// let lengths = StateLen::default().with_array("rows", edges * rows).with_array("columns", edges * columns);
/// assert_eq!(lengths.arrays().iter().map(|array| array.len).sum::<usize>(), 148);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateLen {
    factors: usize,
    arrays: [ArrayLen; Self::MAX_ARRAYS],
    count: usize,
}

impl StateLen {
    /// How many arrays with names a codec may have.
    pub const MAX_ARRAYS: usize = 4;

    /// Adds [factors](Memory::factors).
    #[must_use]
    pub fn with_factors(self, factors: usize) -> Self {
        Self { factors, ..self }
    }

    /// Adds an array of `len` elements, unless it is empty.
    ///
    /// # Panics
    /// If there would be more than [`MAX_ARRAYS`](Self::MAX_ARRAYS).
    #[must_use]
    pub fn with_array(self, name: &'static str, len: usize) -> Self {
        self.with(ArrayLen { name, len, by_coordinate: false })
    }

    /// Adds an array of one element a coordinate of a layout of `len`, unless it is empty.
    ///
    /// # Panics
    /// If there would be more than [`MAX_ARRAYS`](Self::MAX_ARRAYS).
    #[must_use]
    pub fn with_array_by_coordinate(self, name: &'static str, len: usize) -> Self {
        self.with(ArrayLen { name, len, by_coordinate: true })
    }

    fn with(mut self, array: ArrayLen) -> Self {
        if array.len > 0 {
            self.arrays[self.count] = array;
            self.count += 1;
        }
        self
    }

    /// Elements of the factors.
    #[must_use]
    pub fn factors(&self) -> usize {
        self.factors
    }

    /// The arrays. None of them is empty.
    #[must_use]
    pub fn arrays(&self) -> &[ArrayLen] {
        &self.arrays[..self.count]
    }
}

impl<'a> Memory<'a> {
    /// Adds arrays that have names, one after the other in `values`. A saved memory with arrays has
    /// [another version](Self::save).
    ///
    /// # Panics
    /// If an array is empty; if a name is empty, longer than 255 bytes or used twice; if there are more than
    /// 255 arrays; if an array has one element a coordinate and another length than the residual; or if the
    /// length of `values` is not the sum of all lengths.
    ///
    /// # Examples
    #[cfg_attr(feature = "alloc", doc = "```")]
    #[cfg_attr(not(feature = "alloc"), doc = "```ignore")]
    /// use gradwire::Memory;
    /// use gradwire::state::StateLen;
    /// let lengths = StateLen::default().with_array("rows", 2).with_array("columns", 1);
    /// let memory = Memory::new(vec![0.0; 9]).with_arrays(lengths.arrays().to_vec(), vec![1.0, 2.0, 3.0]);
    /// assert_eq!(memory.array("columns"), Some(&[3.0][..]));
    /// assert_eq!(memory.array("cols"), None);
    /// ```
    #[must_use]
    pub fn with_arrays(
        self,
        table: impl Into<Storage<'a, ArrayLen>>,
        values: impl Into<Storage<'a, f32>>,
    ) -> Self {
        let (table, values) = (table.into(), values.into());
        assert!(table.len() <= 255, "more than 255 arrays");
        let mut total = 0usize;
        for (i, array) in table.iter().enumerate() {
            assert!((1..=255).contains(&array.name.len()), "an array's name has 1 to 255 bytes");
            assert!(table[..i].iter().all(|other| other.name != array.name), "two arrays have one name");
            assert!(array.len > 0, "an array is empty");
            let is_long = !array.by_coordinate || array.len == self.len();
            assert!(is_long, "residual and an array by coordinate differ in length");
            total = total.checked_add(array.len).expect("arrays longer than what can be addressed");
        }
        assert_eq!(total, values.len(), "arrays and their values differ in length");
        Self { arrays: table, values, ..self }
    }

    /// Names and lengths of the arrays, in the order in which they are stored.
    #[must_use]
    pub fn arrays(&self) -> &[ArrayLen] {
        &self.arrays
    }

    /// The array of that name, if there is one.
    #[must_use]
    pub fn array(&self, name: &str) -> Option<&[f32]> {
        Some(&self.values[find(&self.arrays, name)?])
    }

    /// The storage of the array of that name, if there is one.
    pub fn array_mut(&mut self, name: &str) -> Option<&mut [f32]> {
        let range = find(&self.arrays, name)?;
        Some(&mut self.values[range])
    }
}

impl<'a> MemoryView<'a> {
    /// With the arrays of the whole layout, as [`Memory::with_arrays`] checked them.
    pub(super) fn with_arrays(self, arrays: &'a [ArrayLen], values: &'a [f32]) -> Self {
        Self { arrays, values, ..self }
    }

    /// The array of that name, for the whole layout, if there is one.
    #[must_use]
    pub fn array(&self, name: &str) -> Option<&'a [f32]> {
        Some(&self.values[find(self.arrays, name)?])
    }
}

/// The range of the array of that name.
fn find(arrays: &[ArrayLen], name: &str) -> Option<Range<usize>> {
    let mut start = 0;
    for array in arrays {
        let range = start..start + array.len;
        if array.name == name {
            return Some(range);
        }
        start = range.end;
    }
    None
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    extern crate std;
    use crate::codec::{Capabilities, EncodeUnit, UnitInput};
    use crate::codecs::Dense;
    use crate::state::{Keeper, StateLen};
    use crate::wire::writer::Writer;
    use crate::{EncodeError, Encoder, Grad, LayoutRef, Memory, Scratch, ScratchLen, Source, StepInput};
    use crate::{StepKey, Unit};
    use std::{vec, vec::Vec};

    /// Sends a velocity of its own, whole, and counts how often it sent each unit.
    struct Carrying;

    impl EncodeUnit for Carrying {
        fn capabilities(&self) -> Capabilities {
            Dense::F32.capabilities()
        }

        fn max_body_bytes(&self, len: usize) -> Option<usize> {
            Dense::F32.max_body_bytes(len)
        }

        fn unit_scratch_len(&self, len: usize) -> ScratchLen {
            Dense::F32.unit_scratch_len(len)
        }

        fn state_len(&self, layout: &LayoutRef<'_>, units: usize, keeper: Keeper) -> StateLen {
            let lengths = StateLen::default().with_array_by_coordinate("velocity", layout.len());
            match keeper {
                Keeper::Worker => lengths.with_array("count", units),
                Keeper::Server => lengths.with_array_by_coordinate("kept for all", layout.len()),
            }
        }

        fn encode_body(
            &self,
            mut input: UnitInput<'_, '_>,
            scratch: &mut Scratch<'_>,
            writer: &mut Writer<'_>,
        ) -> Result<(), EncodeError> {
            let memory = input.memory.take().ok_or(EncodeError::MemoryIncomplete)?;
            let missing = EncodeError::MemoryIncomplete;
            if ["velocity", "count"].iter().any(|name| memory.array(name).is_none()) {
                return Err(missing);
            }
            let count = &mut memory.array_mut("count").ok_or(missing)?[input.unit.id as usize];
            *count += 1.0;
            let weight = 1.0 / *count;
            let velocity = memory.array_mut("velocity").ok_or(missing)?;
            let velocity = &mut velocity[input.unit.range()];
            let Grad::F32(grad) = input.grad else { return Err(EncodeError::NotBuilt) };
            velocity
                .iter_mut()
                .zip(grad)
                .for_each(|(velocity, grad)| *velocity = 0.5 * *velocity + weight * grad);
            let velocity = velocity.to_vec();
            Dense::F32.encode_body(UnitInput { grad: Grad::F32(&velocity), ..input }, scratch, writer)
        }
    }

    fn fresh(layout: &LayoutRef<'_>, keeper: Keeper) -> Memory<'static> {
        Memory::new(vec![0.0; layout.len()]).with_zeros(&Carrying.state_len(layout, 2, keeper))
    }

    fn encode(step: u64, memory: &mut Memory<'_>) -> Result<Vec<u8>, EncodeError> {
        let (layout, key) = (LayoutRef::flat(5), StepKey { seed: 1, step, source: Source::Rank(0) });
        let units = [Unit::whole(3), Unit { id: 1, start: 3, ..Unit::whole(2) }];
        let grad = [1.0, -2.0, 3.0, step as f32, 0.1];
        let mut encoder = Encoder::new();
        let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&grad) };
        encoder.encode(&Carrying, &step, Some(memory)).map(<[u8]>::to_vec)
    }

    #[test]
    fn a_codec_goes_on_bit_for_bit_from_saved_arrays() {
        let layout = LayoutRef::flat(5);
        let mut memory = fresh(&layout, Keeper::Worker);
        let first: Vec<_> = (0..3).map(|step| encode(step, &mut memory).unwrap()).collect();
        let mut saved = vec![0xa5; memory.saved_bytes().unwrap()];
        assert_eq!(memory.save(&layout, &mut saved), Ok(saved.len()));
        let mut resumed = fresh(&layout, Keeper::Worker);
        resumed.load(&layout, &saved).unwrap();
        assert_eq!(resumed.array("count"), Some(&[3.0, 3.0][..]));
        for step in 3..6 {
            assert_eq!(encode(step, &mut resumed), encode(step, &mut memory));
        }
        memory.clear();
        let again: Vec<_> = (0..3).map(|step| encode(step, &mut memory).unwrap()).collect();
        assert_eq!(again, first, "clearing forgets the arrays");
    }

    #[test]
    fn lengths_follow_layout_units_and_keeper() {
        let layout = LayoutRef::flat(5);
        let lengths = |keeper| {
            let memory = fresh(&layout, keeper);
            let arrays: Vec<_> = memory.arrays().iter().map(|array| (array.name, array.len)).collect();
            (arrays, memory.factors().len())
        };
        assert_eq!(lengths(Keeper::Worker), (vec![("velocity", 5), ("count", 2)], 0));
        assert_eq!(lengths(Keeper::Server), (vec![("velocity", 5), ("kept for all", 5)], 0));
    }

    #[test]
    fn a_memory_without_its_arrays_is_refused_and_stays_as_it_was() {
        let lengths = StateLen::default().with_array("velocity", 5);
        let mut memory = Memory::new(vec![1.0; 5]).with_zeros(&lengths);
        assert_eq!(encode(0, &mut memory), Err(EncodeError::MemoryIncomplete));
        assert_eq!((memory.residual(), memory.array("velocity")), (&[1.0; 5][..], Some(&[0.0; 5][..])));
    }
}
