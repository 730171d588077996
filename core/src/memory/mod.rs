//! What a worker keeps from step to step.

mod arrays;
mod beside;
mod error;
mod remap;
mod saved;
#[cfg(feature = "alloc")]
mod snapshot;
mod storage;

use crate::built::FullBound;
use crate::kernels;
pub use arrays::{ArrayLen, Keeper, StateLen};
use core::ops::Range;
pub use error::{DecayError, SaveError};
pub use remap::{Dropped, Moved, Remapped};
pub use saved::SAVED_VERSIONS;
#[cfg(feature = "alloc")]
pub use snapshot::Snapshot;
pub use storage::Storage;

/// What a codec keeps from step to step, in [`Storage`] that the caller lends (an array, a slice, a `Vec`) or
/// hands over (a `Vec`). Start from zeros.
///
/// * The residual, one element a coordinate: what was not sent yet. A codec that gets a memory encodes p =
///   fl(residual + gradient) and leaves exactly p less what it sent: at every step sent + kept = fl(residual
///   + gradient), bit for bit.
/// * The momentum, one element a coordinate, for codecs that own it. The gradient in the line above is then
///   the step that momentum makes of the gradient. Momentum is not part of what is sent and kept.
/// * [`UnitState`]s, one for each unit by its identifier, for codecs that adapt to a unit.
/// * Factors, as many as [the codec says](crate::Codec::state_len), for codecs that begin a step with those
///   of the previous step.
/// * [Arrays](Self::with_arrays) that the codec names and sizes, for other state: of each edge of a gossip,
///   or at a server.
///
/// A codec uses the parts that it needs and does not touch the others. A missing part is an error. An encode
/// that fails leaves all parts as they were, bit for bit.
///
/// Sparsifiers add the gradient to the residual in the same pass that selects. So they first check that every
/// sum is finite, which costs a read of the gradient. They need not read the memory, because after an encode
/// a memory knows bounds on its residual and momentum. Values that came from elsewhere ([`new`](Self::new),
/// [`load`](Self::load), [`give_back`](Self::give_back)) have no known bound and are read once. So keep one
/// memory from step to step.
///
/// The residual is in units of the gradient. If the learning rate changes, [rescale](Self::rescale) the
/// residual by the ratio of rates.
///
/// # Examples
/// ```
/// use gradwire::{LayoutRef, Memory};
///
/// let layout = LayoutRef::flat(3);
/// let (mut kept, mut restored, mut saved) = ([0.5, 0.0, -2.0], [0.0; 3], [0; 64]);
/// let memory = Memory::new(&mut kept);
/// assert!((memory.norm() - 2.0616).abs() < 1e-4);
/// let bytes = memory.save(&layout, &mut saved).unwrap();
///
/// let mut resumed = Memory::new(&mut restored);
/// resumed.load(&layout, &saved[..bytes]).unwrap();
/// assert_eq!(resumed.residual(), memory.residual());
/// ```
///
/// # Source
/// Seide et al. 2014 and Stich, Cordonnier, Jaggi: Sparsified SGD with Memory (arXiv 1809.07599), algorithm
/// 1; with momentum Lin et al.: Deep Gradient Compression (arXiv 1712.01887), section 3.
#[derive(Debug)]
pub struct Memory<'a> {
    residual: Storage<'a, f32>,
    /// No magnitude of the residual is above this; infinite if nothing is known.
    magnitude_bound: f32,
    momentum: Option<Storage<'a, f32>>,
    /// No magnitude of the momentum is above this; infinite if nothing is known.
    momentum_bound: FullBound,
    /// Empty if the codec has none.
    states: Storage<'a, UnitState>,
    /// Of the whole layout; empty if the codec has none.
    factors: Storage<'a, f32>,
    /// Names and lengths of the codec's arrays; empty if the codec has none.
    arrays: Storage<'a, ArrayLen>,
    /// The values of all arrays, one after the other.
    values: Storage<'a, f32>,
}

/// A read-only view of what a [`Memory`] keeps for a part of the gradient. [`Memory::view`] makes it. A
/// caller that keeps the parts elsewhere can make one too.
///
/// # Examples
/// ```
/// use gradwire::rounds::MemoryView;
/// let view = MemoryView::new(&[0.5, 0.0]).with_momentum(&[2.0, -1.0]);
/// assert_eq!(view.momentum, Some(&[2.0, -1.0][..]));
/// assert!(view.states.is_empty() && view.factors.is_empty());
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct MemoryView<'a> {
    /// The residual, one element a coordinate of the part.
    pub residual: &'a [f32],
    /// The momentum, one element a coordinate of the part, if there is one.
    pub momentum: Option<&'a [f32]>,
    /// The states of all units, by identifier; empty if there are none.
    pub states: &'a [UnitState],
    /// The factors of the whole layout; empty if there are none.
    pub factors: &'a [f32],
    arrays: &'a [ArrayLen],
    values: &'a [f32],
}

impl<'a> MemoryView<'a> {
    /// A residual, and nothing else.
    #[must_use]
    pub fn new(residual: &'a [f32]) -> Self {
        Self { residual, momentum: None, states: &[], factors: &[], arrays: &[], values: &[] }
    }

    /// Adds momentum, one element a coordinate.
    ///
    /// # Panics
    /// If it has another length than the residual.
    #[must_use]
    pub fn with_momentum(self, momentum: &'a [f32]) -> Self {
        assert_eq!(self.residual.len(), momentum.len(), "residual and momentum differ in length");
        Self { momentum: Some(momentum), ..self }
    }

    /// Adds the states of the units whose identifiers are below `states.len()`.
    #[must_use]
    pub fn with_states(self, states: &'a [UnitState]) -> Self {
        Self { states, ..self }
    }

    /// Adds the factors of the whole layout.
    #[must_use]
    pub fn with_factors(self, factors: &'a [f32]) -> Self {
        Self { factors, ..self }
    }
}

/// What an adaptive codec keeps for one unit: four words, which are zeros before the first step. The codec
/// defines their meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UnitState {
    words: [u32; 4],
}

impl UnitState {
    /// A state of these words.
    #[must_use]
    pub fn from_words(words: [u32; 4]) -> Self {
        Self { words }
    }

    /// Its words.
    #[must_use]
    pub fn words(self) -> [u32; 4] {
        self.words
    }
}

impl<'a> Memory<'a> {
    /// Error feedback: a residual, one element a coordinate.
    pub fn new(residual: impl Into<Storage<'a, f32>>) -> Self {
        let (states, factors) = (Storage::from(&mut []), Storage::from(&mut []));
        let (arrays, values) = (Storage::from(&mut []), Storage::from(&mut []));
        let (residual, magnitude_bound) = (residual.into(), f32::INFINITY);
        let momentum_bound = FullBound::UNKNOWN;
        Self { residual, magnitude_bound, momentum: None, momentum_bound, states, factors, arrays, values }
    }

    /// Adds momentum, one element a coordinate.
    ///
    /// # Panics
    /// If it has another length than the residual.
    #[must_use]
    pub fn with_momentum(self, momentum: impl Into<Storage<'a, f32>>) -> Self {
        let momentum = momentum.into();
        assert_eq!(self.len(), momentum.len(), "residual and momentum differ in length");
        Self { momentum: Some(momentum), momentum_bound: FullBound::UNKNOWN, ..self }
    }

    /// Adds the states of the units whose identifiers are below `states.len()`.
    #[must_use]
    pub fn with_states(self, states: impl Into<Storage<'a, UnitState>>) -> Self {
        Self { states: states.into(), ..self }
    }

    /// Adds the factors of the whole layout.
    #[must_use]
    pub fn with_factors(self, factors: impl Into<Storage<'a, f32>>) -> Self {
        Self { factors: factors.into(), ..self }
    }

    /// The residual, one element a coordinate.
    #[must_use]
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// The momentum, one element a coordinate, if there is one.
    #[must_use]
    pub fn momentum(&self) -> Option<&[f32]> {
        self.momentum.as_deref()
    }

    /// The states of the units, by identifier.
    #[must_use]
    pub fn states(&self) -> &[UnitState] {
        &self.states
    }

    /// The factors of the whole layout; empty if there are none.
    #[must_use]
    pub fn factors(&self) -> &[f32] {
        &self.factors
    }

    /// The storage of the factors, for codecs.
    pub(crate) fn factors_mut(&mut self) -> &mut [f32] {
        &mut self.factors
    }

    /// Replaces the storage of the factors, for codecs.
    #[cfg(feature = "alloc")]
    pub(crate) fn set_factors(&mut self, factors: alloc::vec::Vec<f32>) {
        self.factors = Storage::from(factors);
    }

    /// The residual, one element a coordinate, for [`Linear`](crate::Linear) codecs of other crates to
    /// change. The bound on its values is then unknown, so the next encode that adds to it reads it once
    /// more.
    pub fn residual_mut(&mut self) -> &mut [f32] {
        self.magnitude_bound = f32::INFINITY;
        &mut self.residual
    }

    /// The storage of residual and momentum, as [`residual_mut`](Self::residual_mut). The bound on the
    /// momentum is then unknown too, until [`set_momentum_bound`](Self::set_momentum_bound) states it.
    pub(crate) fn parts_mut(&mut self) -> (Option<&mut [f32]>, Option<&mut [f32]>) {
        self.magnitude_bound = f32::INFINITY;
        self.momentum_bound = FullBound::UNKNOWN;
        (Some(&mut self.residual), self.momentum.as_deref_mut())
    }

    /// The state of a unit, for codecs.
    pub(crate) fn state_mut(&mut self, unit: u32) -> Option<&mut UnitState> {
        self.states.get_mut(usize::try_from(unit).ok()?)
    }

    /// The residual, and the state of a unit, for codecs.
    pub(crate) fn residual_and_state(&mut self, unit: u32) -> (&[f32], Option<&mut UnitState>) {
        let state = usize::try_from(unit).ok().and_then(|unit| self.states.get_mut(unit));
        (&self.residual, state)
    }

    /// Sets the momentum of these coordinates to zero.
    pub(crate) fn mask_momentum(&mut self, coordinates: &[u32]) {
        if let Some(momentum) = self.momentum.as_deref_mut() {
            for (i, &coordinate) in coordinates.iter().enumerate() {
                if let Some(&later) = coordinates.get(i + kernels::FETCH_AHEAD) {
                    kernels::fetch(momentum, later as usize);
                }
                momentum[coordinate as usize] = 0.0;
            }
        }
    }

    /// No magnitude of the residual is above this; infinite if nothing is known.
    pub(crate) fn magnitude_bound(&self) -> f32 {
        self.magnitude_bound
    }

    /// States that no magnitude of the residual is above `bound`.
    pub(crate) fn set_magnitude_bound(&mut self, bound: f32) {
        debug_assert!(self.residual.iter().all(|value| value.abs() <= bound), "a value above {bound}");
        self.magnitude_bound = bound;
    }

    /// No magnitude of the momentum is above this; infinite if nothing is known.
    pub(crate) fn momentum_bound(&self) -> f32 {
        self.momentum_bound.get()
    }

    /// States that no magnitude of the momentum is above `bound`.
    pub(crate) fn set_momentum_bound(&mut self, bound: f32) {
        let momentum = || self.momentum().unwrap_or_default();
        debug_assert!(momentum().iter().all(|value| value.abs() <= bound), "momentum above {bound}");
        self.momentum_bound = FullBound::new(bound);
    }

    /// Sets the residual to the values whose bits are `p`: everything is kept.
    pub(crate) fn keep_all(&mut self, p: &[u32]) {
        assert_eq!(self.len(), p.len(), "memory and unit differ in length");
        let values = p.iter().map(|&bits| f32::from_bits(bits));
        self.residual_mut().iter_mut().zip(values).for_each(|(residual, value)| *residual = value);
    }

    /// Takes over residuals that no magnitude exceeds `bound`; `residual` is then of no more use.
    ///
    /// # Panics
    /// When the lengths differ.
    #[cfg(feature = "alloc")]
    pub(crate) fn take_residual(&mut self, residual: &mut alloc::vec::Vec<f32>, bound: f32) {
        self.residual.take_over(residual);
        self.set_magnitude_bound(bound);
    }

    /// The same for the momentum.
    ///
    /// # Panics
    /// When the lengths differ, or the memory has no momentum.
    #[cfg(feature = "alloc")]
    pub(crate) fn take_momentum(&mut self, momentum: &mut alloc::vec::Vec<f32>, bound: f32) {
        self.momentum.as_mut().expect("a memory that holds momentum").take_over(momentum);
        self.set_momentum_bound(bound);
    }

    /// Number of coordinates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.residual.len()
    }

    /// Whether there are no coordinates.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.residual.is_empty()
    }

    /// The memory of a part of the gradient, to be changed: residual and momentum of the `range` of
    /// coordinates. It also has the states of all units, and the factors and arrays of the whole layout,
    /// because a unit finds its own there by its identifier and its position.
    ///
    /// The part borrows the storage of this memory, so a change of the part changes this memory. Afterwards
    /// only the part knows a bound on its residual, so the next encode with the whole memory reads the
    /// residual once. Coordinates outside the range do not change.
    ///
    /// # Panics
    /// When the range reaches beyond the memory.
    #[must_use]
    pub fn slice(&mut self, range: Range<usize>) -> Memory<'_> {
        let momentum = self.momentum.as_deref_mut().map(|momentum| &mut momentum[range.clone()]);
        Memory {
            momentum: momentum.map(Storage::from),
            residual: Storage::from(&mut self.residual[range]),
            magnitude_bound: core::mem::replace(&mut self.magnitude_bound, f32::INFINITY),
            momentum_bound: core::mem::replace(&mut self.momentum_bound, FullBound::UNKNOWN),
            states: Storage::from(&mut *self.states),
            factors: Storage::from(&mut *self.factors),
            arrays: Storage::from(&mut *self.arrays),
            values: Storage::from(&mut *self.values),
        }
    }

    /// A read-only view of a part of the gradient, as [linear codecs](crate::Linear::begin) take it. It has
    /// the parts that [`slice`](Self::slice) has, but nothing can be changed, so the memory still knows its
    /// bounds.
    ///
    /// # Panics
    /// When the range reaches beyond the memory.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> MemoryView<'_> {
        let view = MemoryView::new(&self.residual[range.clone()]).with_states(&self.states);
        let view = view.with_factors(&self.factors).with_arrays(&self.arrays, &self.values);
        MemoryView { momentum: self.momentum().map(|momentum| &momentum[range]), ..view }
    }

    /// Multiplies the residual by `ratio`, the old learning rate over the new one, so that it moves the
    /// parameters as far as at the old rate. Momentum does not change, because it is applied at the rate of
    /// the step that uses it. Factors do not change, because only their directions count. Arrays do not
    /// change, because only the codec knows their meaning.
    ///
    /// The ratio is not checked. A product past the largest float is kept as an infinity, and the next encode
    /// fails with [`NonFiniteInput`](crate::EncodeError::NonFiniteInput). `gw_memory_rescale` of C and
    /// `Memory.rescale` of Python refuse such a ratio.
    pub fn rescale(&mut self, ratio: f32) {
        if ratio != 1.0 {
            self.residual.iter_mut().for_each(|residual| *residual *= ratio);
            let bound = self.magnitude_bound * ratio.abs();
            // Infinity times zero is no bound.
            self.magnitude_bound = if bound.is_nan() { f32::INFINITY } else { bound };
        }
    }

    /// Multiplies the residual by `factor`, one rounding a coordinate, so that older residuals weigh less:
    /// the next encode sends factor·residual + gradient. 1 changes nothing. 0 sets the residual to +0
    /// everywhere. What decays is lost for good: with factors below 1, sent and kept no longer add up to all
    /// gradients. The difference of [`norm`](Self::norm) before and after gives the amount.
    ///
    /// Momentum, states, factors and arrays stay.
    ///
    /// # Errors
    /// [`DecayError`] for a factor below 0, above 1 or NaN. The memory is then as it was.
    ///
    /// # Source
    /// Wu, Huang, Huang, Zhang: Error Compensated Quantized SGD (arXiv 1806.08054), where the accumulated
    /// error has the weight α in what is encoded and decays by β. If this is called before every encode, both
    /// are `factor`. A factor of 0 at regular intervals is the plain reset of a stale residual.
    ///
    /// # Examples
    /// ```
    /// use gradwire::Memory;
    /// use gradwire::state::DecayError;
    /// let mut residual = [2.0, -0.5];
    /// let mut memory = Memory::new(&mut residual);
    /// assert_eq!(memory.decay(0.5), Ok(()));
    /// assert_eq!(memory.residual(), [1.0, -0.25]);
    /// assert_eq!(memory.decay(1.5), Err(DecayError));
    /// ```
    pub fn decay(&mut self, factor: f32) -> Result<(), DecayError> {
        if !(0.0..=1.0).contains(&factor) {
            return Err(DecayError);
        }
        if factor == 0.0 {
            self.residual.fill(0.0);
            self.magnitude_bound = 0.0;
        } else {
            // Rounding keeps the order, so a bound remains a bound.
            self.rescale(factor);
        }
        Ok(())
    }

    /// Sets everything to zeros, as before the first step.
    pub fn clear(&mut self) {
        self.residual.fill(0.0);
        self.magnitude_bound = 0.0;
        self.momentum.as_deref_mut().unwrap_or_default().fill(0.0);
        self.momentum_bound = FullBound::new(0.0);
        self.states.fill(UnitState::default());
        self.factors.fill(0.0);
        self.values.fill(0.0);
    }

    /// L2 norm of the residual; f64 sum in the order of the coordinates' 32 strides.
    #[must_use]
    pub fn norm(&self) -> f64 {
        libm::sqrt(kernels::sum_of_squares_f32(kernels::Isa::best(), &self.residual))
    }
}
