//! The values that a codec encodes: p = fl(residual + gradient), or fl(residual + step) with momentum,
//! computed block by block when needed.

use crate::built::{Full, FullBound};
use crate::error::EncodeError;
use crate::gradient::grad::Grad;
#[cfg(feature = "alloc")]
use crate::kernels::Largest;
use crate::kernels::{self, Candidates, Isa, Sums, scalar::MAGNITUDE};
use crate::momentum::Momentum;
#[cfg(feature = "parallel")]
use crate::threads;
use core::convert::Infallible;
use core::ops::Range;

/// Elements that are processed together: small enough for the first cache level.
pub(crate) const BLOCK: usize = 1024;

/// The same for a loop that reads each value once: long enough that starting the loop costs nothing.
pub(crate) const WIDE_BLOCK: usize = 8 * BLOCK;

/// Neighbours that are sampled together, so that they cost one or two cache lines.
pub(crate) const RUN: usize = 8;

/// Elements that are read in one run while nothing is written. The processor's prefetcher restarts with each
/// run.
const CHUNK: usize = 1 << 18;

/// Narrow gradients are widened on the stack this many at a time.
const NARROW_BLOCK: usize = if Full::build().is_some() { 256 } else { 64 };

/// The values of one unit: its gradient, and its residual if it has one.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(feature = "alloc"),
    allow(unreachable_pub, reason = "codecs name it in a trait of builds with a heap")
)]
pub struct Corrected<'a> {
    grad: Grad<'a>,
    /// No magnitude of the gradient is above this; infinite where nothing is known.
    largest_gradient: FullBound,
    residual: Option<&'a [f32]>,
    /// No magnitude of the residual is above this; infinite if no bound is known.
    largest: f32,
    /// The rule that turns the gradient into a step, and the momentum so far.
    momentum: Option<(Momentum, &'a [f32])>,
    /// No magnitude of the momentum is above this; infinite if no bound is known.
    momentum_bound: FullBound,
    /// Position of the unit in the flat gradient, for errors.
    start: usize,
    /// Magnitudes must be below this.
    bound: f32,
}

impl<'a> Corrected<'a> {
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn new(grad: Grad<'a>, residual: Option<&'a [f32]>, start: usize, bound: f32) -> Self {
        let same = residual.is_none_or(|residual| residual.len() == grad.len());
        assert!(same, "gradient and residual differ in length");
        let largest = if residual.is_none() { 0.0 } else { f32::INFINITY };
        let (largest_gradient, momentum_bound) = (FullBound::UNKNOWN, FullBound::UNKNOWN);
        Self { grad, largest_gradient, residual, largest, momentum: None, momentum_bound, start, bound }
    }

    /// The same, with momentum before the residual.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn with_momentum(self, momentum: Option<(Momentum, &'a [f32])>) -> Self {
        let same = momentum.is_none_or(|(_, momentum)| momentum.len() == self.len());
        assert!(same, "gradient and momentum differ in length");
        Self { momentum, ..self }
    }

    /// The same; no magnitude of the momentum is above `momentum_bound`.
    pub(crate) fn with_momentum_bound(self, momentum_bound: f32) -> Self {
        Self { momentum_bound: FullBound::new(momentum_bound), ..self }
    }

    /// The same; no magnitude of the gradient is above `largest_gradient`.
    pub(crate) fn with_largest_gradient(self, largest_gradient: FullBound) -> Self {
        Self { largest_gradient, ..self }
    }

    /// The same; no magnitude of the residual is above `largest`.
    pub(crate) fn with_largest(self, largest: f32) -> Self {
        Self { largest, ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.grad.len()
    }

    /// The elements of this range.
    #[cfg(feature = "parallel")]
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        Self {
            grad: self.grad.slice(range.start, range.len()),
            residual: self.residual.map(|residual| &residual[range.clone()]),
            momentum: self.momentum.map(|(rule, momentum)| (rule, &momentum[range.clone()])),
            start: self.start + range.start,
            ..*self
        }
    }

    /// Calls `f(first, gradient or step, residual)` for the elements `first … first + len`, in one or more
    /// pieces.
    pub(crate) fn try_for_range<E>(
        &self,
        first: usize,
        len: usize,
        mut f: impl FnMut(usize, &[f32], Option<&[f32]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let residual = |at: usize, len: usize| self.residual.map(|residual| &residual[at..at + len]);
        let momentum = Full::build().and(self.momentum);
        if let (Grad::F32(values), None) = (self.grad, momentum) {
            return f(first, &values[first..first + len], residual(first, len));
        }
        let mut step = [0.0; NARROW_BLOCK];
        for at in (first..first + len).step_by(NARROW_BLOCK) {
            let len = NARROW_BLOCK.min(first + len - at);
            let step = &mut step[..len];
            widen(self.grad.slice(at, len), step);
            if let Some((rule, momentum)) = momentum {
                kernels::peek_momentum(Isa::best(), rule, &momentum[at..at + len], step);
            }
            f(at, step, residual(at, len))?;
        }
        Ok(())
    }

    /// Writes the bits of p for the elements `first … first + p.len()`, and returns the largest of their
    /// magnitudes.
    ///
    /// # Errors
    /// `NonFiniteInput` or `ValueOverflow`, with the first coordinate whose magnitude is not below the bound.
    pub(crate) fn fold(&self, isa: Isa, first: usize, p: &mut [u32]) -> Result<u32, EncodeError> {
        let mut largest = 0;
        self.try_for_range(first, p.len(), |at, grad, residual| {
            let p = &mut p[at - first..at - first + grad.len()];
            let max = match residual {
                None => kernels::copy_to(isa, grad, p),
                Some(residual) => kernels::add_to(isa, residual, grad, p),
            };
            largest = largest.max(max);
            self.check(max, at, p)
        })
        .map(|()| largest)
    }

    /// Writes p for the elements `first … first + p.len()`. If there is momentum, also writes to `momentum`
    /// what it is after the step; otherwise that is empty. Returns the largest magnitudes.
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    #[cfg(feature = "alloc")]
    pub(crate) fn write(
        &self,
        isa: Isa,
        first: usize,
        p: &mut [f32],
        momentum: &mut [f32],
    ) -> Result<Largest, EncodeError> {
        let Some((rule, before)) = self.momentum else {
            let residual = self.fold(isa, first, kernels::bits_of_mut(p))?;
            return Ok(Largest { residual, momentum: 0 });
        };
        let mut largest = Largest::default();
        let gradient = Self { momentum: None, ..*self };
        gradient.try_for_range(first, p.len(), |at, grad, residual| {
            let range = at - first..at - first + grad.len();
            let (p, momentum) = (&mut p[range.clone()], &mut momentum[range]);
            match residual {
                Some(residual) => p.copy_from_slice(residual),
                None => p.fill(0.0),
            }
            momentum.copy_from_slice(&before[at..at + grad.len()]);
            let of_these = kernels::add_steps(isa, rule, momentum, grad, p);
            largest.residual = largest.residual.max(of_these.residual);
            largest.momentum = largest.momentum.max(of_these.momentum);
            self.check(of_these.residual, at, kernels::bits_of(p))
        })?;
        Ok(largest)
    }

    /// The bits of p for the elements `first … first + room.len()`, and the largest of their magnitudes. If p
    /// is the gradient itself, these are the gradient's own bits; otherwise they are written to `room`.
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    pub(crate) fn bits<'p>(
        &self,
        isa: Isa,
        first: usize,
        room: &'p mut [u32],
    ) -> Result<(&'p [u32], u32), EncodeError>
    where
        'a: 'p,
    {
        if let Some(p) = self.held(first, room.len()) {
            let max = kernels::max_magnitude(isa, p);
            self.check(max, first, p)?;
            return Ok((p, max));
        }
        let max = self.fold(isa, first, room)?;
        Ok((room, max))
    }

    /// The same bits as [`bits`](Self::bits), of elements that it has checked before.
    pub(crate) fn known_bits<'p>(&self, isa: Isa, first: usize, room: &'p mut [u32]) -> &'p [u32]
    where
        'a: 'p,
    {
        self.held(first, room.len()).unwrap_or_else(|| {
            let folded = self.fold(isa, first, room);
            debug_assert!(folded.is_ok(), "these elements have been looked at");
            room
        })
    }

    /// The bits of p, if they are stored.
    #[inline(always)]
    fn held(&self, first: usize, len: usize) -> Option<&'a [u32]> {
        match (self.grad, self.residual) {
            (Grad::F32(values), None) => Some(kernels::bits_of(&values[first..first + len])),
            _ => None,
        }
    }

    /// Checks every value and changes nothing. If bounds on residual and momentum are known, it reads only
    /// the gradient, and if one on the gradient is known too, nothing; see
    /// [`largest_sum`](Self::largest_sum).
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    pub(crate) fn check_all(&self, isa: Isa) -> Result<(), EncodeError> {
        let momentum = Full::build().and(self.momentum);
        let is_bounded =
            self.largest.is_finite() && (momentum.is_none() || self.momentum_bound.get().is_finite());
        if is_bounded {
            let known = self.largest_gradient.get();
            let largest = if known.is_finite() { known } else { self.largest_of_gradient(isa) };
            if self.largest_sum(largest) < self.bound {
                return Ok(());
            }
        }
        let mut p = [0; NARROW_BLOCK];
        (0..self.len()).step_by(NARROW_BLOCK).try_for_each(|first| {
            let len = NARROW_BLOCK.min(self.len() - first);
            self.fold(isa, first, &mut p[..len]).map(drop)
        })
    }

    /// [`check_all`](Self::check_all) in parts, on this many threads; among several errors it returns that of
    /// the first coordinate.
    #[cfg(feature = "parallel")]
    pub(crate) fn check_all_on(&self, threads: usize) -> Result<(), EncodeError> {
        let (len, step) = (self.len(), threads::part_len(threads, self.len(), 1));
        if step >= len {
            return self.check_all(Isa::best());
        }
        let parts = (0..len).step_by(step).map(|first| self.slice(first..len.min(first + step))).collect();
        threads::on_each(parts, |part: Self| part.check_all(Isa::best())).into_iter().collect()
    }

    /// Largest magnitude of the gradient, or a NaN. It reads from the end to the start, because the next
    /// reader begins at the start and then finds it in the cache.
    fn largest_of_gradient(&self, isa: Isa) -> f32 {
        // Small builds have no momentum, so they need no copy.
        let alone = Full::build().map(|_| Self { momentum: None, ..*self });
        let (mut max, gradient) = (0, alone.as_ref().unwrap_or(self));
        for (first, len) in blocks_of(CHUNK, self.len(), self.grad_misalignment()).rev() {
            let _: Result<(), Infallible> = gradient.try_for_range(first, len, |_, grad, _| {
                max = max.max(kernels::max_magnitude(isa, kernels::bits_of(grad)));
                Ok(())
            });
        }
        f32::from_bits(max)
    }

    /// A magnitude that no p exceeds, or a NaN, if no magnitude of the gradient exceeds `grad`, which may be
    /// a NaN itself.
    ///
    /// This is p computed from the three bounds, and needs no margin for rounding. Every operation between
    /// gradient, momentum, residual and p is a sum or a product with the factor, which is positive. Rounding
    /// to nearest is monotone and symmetric, so |a| ≤ A and |b| ≤ B give |fl(a + b)| ≤ fl(A + B) and
    /// |fl(m·a)| ≤ fl(m·A). By induction over the operations, each intermediate value computed from the
    /// bounds is itself a bound. An overflow there makes an infinity. It does no harm, because it is not
    /// below any bound on p.
    fn largest_sum(&self, grad: f32) -> f32 {
        let step = |(rule, _): (Momentum, _)| rule.apply(self.momentum_bound.get(), grad).1;
        self.largest + Full::build().and(self.momentum).map_or(grad, step)
    }

    /// [`misalignment`] of the gradient.
    fn grad_misalignment(&self) -> usize {
        if let Grad::F32(values) = self.grad { misalignment(values) } else { 0 }
    }

    /// Whether values may have magnitudes of at most `max`, as bits.
    fn is_within_bound(&self, max: u32) -> bool {
        // Magnitude bits order like magnitudes, infinities and NaN above all.
        max < self.bound.to_bits()
    }

    fn check(&self, max: u32, first: usize, p: &[u32]) -> Result<(), EncodeError> {
        if self.is_within_bound(max) {
            return Ok(());
        }
        let offender = p.iter().position(|&bits| !self.is_within_bound(bits & MAGNITUDE)).unwrap_or(0);
        let index = self.start + first + offender;
        if p.get(offender).is_some_and(|&bits| f32::from_bits(bits).is_finite()) {
            Err(EncodeError::ValueOverflow { index })
        } else {
            Err(EncodeError::NonFiniteInput { index })
        }
    }

    /// The error of a block in which a value is not within the bound.
    fn error_in(&self, first: usize, len: usize) -> EncodeError {
        let mut p = [0; NARROW_BLOCK];
        let blocks = (first..first + len).step_by(NARROW_BLOCK);
        let errors =
            blocks.map(|at| self.fold(Isa::Baseline, at, &mut p[..NARROW_BLOCK.min(first + len - at)]));
        let error = errors.into_iter().find_map(Result::err);
        error.unwrap_or(EncodeError::NonFiniteInput { index: self.start + first })
    }
}

/// First element and number of elements of the blocks that `len` elements consist of, ascending: `size` each,
/// less `missing` in the first.
fn blocks_of(
    size: usize,
    len: usize,
    missing: usize,
) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
    (0..len + missing).step_by(size).map(move |at| {
        let first = at.saturating_sub(missing);
        (first, (at + size - missing).min(len) - first)
    })
}

/// Elements between the start of a cache line and the first of `values`.
fn misalignment(values: &[f32]) -> usize {
    const LINE: usize = 64;
    let to_next = Full::build().map_or(0, |_| values.as_ptr().align_offset(LINE));
    to_next.wrapping_neg() % (LINE / size_of::<f32>())
}

fn widen(grad: Grad<'_>, out: &mut [f32]) {
    match grad {
        Grad::F32(values) => out.copy_from_slice(values),
        // A build without half precision refuses such a gradient, as if it were not finite.
        Grad::F16(_) if Full::build().is_none() => out.fill(f32::NAN),
        Grad::F16(values) => out.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_f32()),
        Grad::Bf16(values) => out.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_f32()),
    }
}

/// The values of one unit for a selection. If there is a residual, the first pass adds the gradient to it.
/// [`Corrected::check_all`] must have passed before: no value is checked here.
pub(crate) struct Pass<'a> {
    /// Only the gradient.
    source: Corrected<'a>,
    residual: Option<&'a mut [f32]>,
    /// What the residual is to hold before the gradient is added. The first pass reads it from here.
    initial: Option<&'a [f32]>,
    /// Whether the first pass writes such a residual past the caches.
    non_temporal: bool,
    /// With the largest magnitude bits of the elements seen so far.
    momentum: Option<(Momentum, &'a mut [f32], u32)>,
    /// Elements of the residual that the gradient was added to.
    added: usize,
    /// Largest magnitude bits of the elements seen so far.
    max: u32,
    /// Threads that share the work.
    #[cfg(feature = "parallel")]
    threads: usize,
}

impl<'a> Pass<'a> {
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn new(grad: Grad<'a>, residual: Option<&'a mut [f32]>, start: usize, bound: f32) -> Self {
        let same = residual.as_ref().is_none_or(|residual| residual.len() == grad.len());
        assert!(same, "gradient and residual differ in length");
        Self {
            source: Corrected::new(grad, None, start, bound),
            residual,
            initial: None,
            non_temporal: false,
            momentum: None,
            added: 0,
            max: 0,
            #[cfg(feature = "parallel")]
            threads: 1,
        }
    }

    /// The same, on this many threads.
    #[cfg(feature = "parallel")]
    pub(crate) fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// The same, with a residual that holds nothing yet, and `initial` for what it is to hold.
    /// [`Corrected::check_all`] need not have passed: [`add_and_select`](Self::add_and_select), which must be
    /// the first to see each element, checks it. It writes past the caches if `non_temporal`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn with_initial(self, initial: Option<&'a [f32]>, non_temporal: bool) -> Self {
        let same = initial.is_none_or(|initial| initial.len() == self.len());
        assert!(same, "gradient and residual differ in length");
        Self { initial, non_temporal, ..self }
    }

    /// The same, with momentum before the residual.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn with_momentum(self, momentum: Option<(Momentum, &'a mut [f32])>) -> Self {
        let same = momentum.as_ref().is_none_or(|(_, momentum)| momentum.len() == self.len());
        assert!(same, "gradient and momentum differ in length");
        Self { momentum: momentum.map(|(rule, momentum)| (rule, momentum, 0)), ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.source.len()
    }

    /// Largest magnitude of the elements seen so far.
    pub(crate) fn largest(&self) -> f32 {
        f32::from_bits(self.max)
    }

    /// Largest magnitude of the momentum of the elements seen so far.
    pub(crate) fn largest_momentum(&self) -> f32 {
        f32::from_bits(self.momentum.as_ref().map_or(0, |(_, _, max)| *max))
    }

    /// Asks for the cache lines that [`sample`](Self::sample) will read at `first`.
    #[inline]
    pub(crate) fn fetch(&self, first: usize) {
        if let Grad::F32(values) = self.source.grad {
            kernels::fetch(values, first);
        }
        if let Some((_, momentum, _)) = &self.momentum {
            kernels::fetch(momentum, first);
        }
        if let Some(residual) = self.unadded() {
            kernels::fetch(residual, first);
        }
    }

    /// The residual before the first pass, if there is one.
    #[inline(always)]
    fn unadded(&self) -> Option<&[f32]> {
        Full::build().and(self.initial).or(self.residual.as_deref())
    }

    /// The bits of p for `N` elements from `first` on, finite or not, before the first pass.
    #[inline]
    pub(crate) fn sample<const N: usize>(&self, first: usize) -> [u32; N] {
        let mut values = [0.0; N];
        match self.source.grad {
            Grad::F32(grad) => values.copy_from_slice(&grad[first..first + N]),
            narrow => widen(narrow.slice(first, N), &mut values),
        }
        if let Some((rule, momentum, _)) = Full::build().and(self.momentum.as_ref()) {
            let steps = values.iter_mut().zip(&momentum[first..]);
            steps.for_each(|(value, &momentum)| *value = rule.apply(momentum, *value).1);
        }
        if let Some(residual) = self.unadded() {
            values.iter_mut().zip(&residual[first..]).for_each(|(value, residual)| *value += residual);
        }
        values.map(f32::to_bits)
    }

    /// The blocks that a pass consists of, ascending: first element and number of elements.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        blocks_of(BLOCK, self.len(), 0)
    }

    /// The blocks for [`keep_from`](Self::add_and_select), whose result does not depend on blocks. The first
    /// is shorter, so that no vector of the others lies across two cache lines. Uses wide blocks when `room`
    /// holds the candidates of at least two blocks and no momentum pass is needed.
    pub(crate) fn aligned_blocks(&self, room: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let residual = self.residual.as_deref().map(misalignment);
        let is_wide = room >= 2 * WIDE_BLOCK && self.momentum.is_none();
        let size = Full::build().filter(|_| is_wide).map_or(BLOCK, |_| WIDE_BLOCK);
        blocks_of(size, self.len(), residual.unwrap_or_else(|| self.source.grad_misalignment()))
    }

    /// The bits of the elements of the block `first … first + len`, in `room` if they are nowhere else.
    ///
    /// # Errors
    /// As [`keep_from`](Self::add_and_select).
    pub(crate) fn values<'p>(
        &'p mut self,
        isa: Isa,
        (first, len): (usize, usize),
        room: &'p mut [u32; BLOCK],
    ) -> Result<&'p [u32], EncodeError> {
        if first >= self.added {
            self.add(isa, first, len);
        }
        match self.residual.as_deref() {
            Some(sums) => Ok(kernels::bits_of(&sums[first..first + len])),
            None => self.source.bits(isa, first, &mut room[..len]).map(|(p, _)| p),
        }
    }

    /// What the first pass makes of these elements of the residual.
    fn sums(&mut self, range: Range<usize>) -> Sums<'_> {
        let non_temporal = self.non_temporal;
        match (self.residual.as_deref_mut(), Full::build().and(self.initial)) {
            (None, _) => Sums::None,
            (Some(residual), None) => Sums::InPlace(&mut residual[range]),
            (Some(p), Some(initial)) => {
                Sums::Beside { residual: &initial[range.clone()], p: &mut p[range], non_temporal }
            }
        }
    }

    /// The first pass comes to these elements of the residual.
    fn begin(&mut self, first: usize, len: usize) {
        self.added = first + len;
        if let (Some(initial), Some(residual)) =
            (Full::build().and(self.initial), self.residual.as_deref_mut())
        {
            residual[first..first + len].copy_from_slice(&initial[first..first + len]);
        }
    }

    /// Adds the gradient, or the step that momentum makes of it, to the residual, if there is one.
    fn add(&mut self, isa: Isa, first: usize, len: usize) {
        self.begin(first, len);
        // A small build treats all gradients as narrow ones.
        if let (Grad::F32(grad), Some(_)) = (self.source.grad, Full::build()) {
            return self.add_values(isa, first, &grad[first..first + len]);
        }
        let mut values = [0.0; NARROW_BLOCK];
        for at in (first..first + len).step_by(NARROW_BLOCK) {
            let values = &mut values[..NARROW_BLOCK.min(first + len - at)];
            widen(self.source.grad.slice(at, values.len()), values);
            self.add_values(isa, at, values);
        }
    }

    /// The same for these elements of the gradient.
    #[inline]
    fn add_values(&mut self, isa: Isa, first: usize, grad: &[f32]) {
        let Some(residual) = self.residual.as_deref_mut() else { return };
        let residual = &mut residual[first..first + grad.len()];
        if let Some((rule, momentum, max)) = Full::build().and(self.momentum.as_mut()) {
            let momentum = &mut momentum[first..first + grad.len()];
            let largest = kernels::add_steps(isa, *rule, momentum, grad, residual);
            self.max = self.max.max(largest.residual);
            *max = (*max).max(largest.momentum);
        } else {
            self.max = self.max.max(kernels::add_assign(isa, residual, grad));
        }
    }

    /// [`keep_from`](Self::add_and_select) for all blocks of a first pass, in parts. Returns false if it did
    /// not pay, or if the candidates had no room for what a part found; they are then empty.
    ///
    /// # Errors
    /// As [`keep_from`](Self::add_and_select).
    #[cfg(feature = "parallel")]
    pub(crate) fn keep_in_parts(
        &mut self,
        isa: Isa,
        least: u32,
        candidates: &mut Candidates<'_>,
    ) -> Result<bool, EncodeError> {
        let (len, room) = (self.len(), candidates.indices.len());
        let threads = self.threads.min(room / (8 * BLOCK)).max(1);
        let step = threads::part_len(threads, len, BLOCK);
        if self.momentum.is_some() || step >= len {
            return Ok(false);
        }
        let section = room / len.div_ceil(step);
        let sections =
            candidates.indices.chunks_exact_mut(section).zip(candidates.values.chunks_exact_mut(section));
        let mut residual = self.residual.as_deref_mut();
        let parts = (0..len).step_by(step).zip(sections).map(|(first, (indices, values))| {
            let len = step.min(len - first);
            let part = Pass {
                source: self.source.slice(first..first + len),
                residual: residual.as_mut().and_then(|residual| residual.split_off_mut(..len)),
                initial: self.initial.map(|initial| &initial[first..first + len]),
                non_temporal: self.non_temporal,
                momentum: None,
                added: 0,
                max: 0,
                threads: 1,
            };
            (first, part, Candidates { indices, values, len: 0 })
        });
        let kept = threads::on_each(parts.collect(), |(first, mut part, mut candidates)| {
            let fits = part.keep_all(isa, first, least, &mut candidates)?;
            Ok((part.max, fits.then_some(candidates.len)))
        });
        self.added = len;
        let (mut fits, mut found) = (true, 0);
        for (i, kept) in kept.into_iter().enumerate() {
            let (max, len) = kept?;
            self.max = self.max.max(max);
            fits &= len.is_some();
            let kept = i * section..i * section + len.unwrap_or(0);
            candidates.indices.copy_within(kept.clone(), found);
            candidates.values.copy_within(kept.clone(), found);
            found += kept.len();
        }
        candidates.len = if fits { found } else { 0 };
        Ok(fits)
    }

    /// Processes a part whose first element is number `first`, to its end; returns false if there was no room
    /// for what it found.
    #[cfg(feature = "parallel")]
    fn keep_all(
        &mut self,
        isa: Isa,
        first: usize,
        least: u32,
        candidates: &mut Candidates<'_>,
    ) -> Result<bool, EncodeError> {
        let mut least = least;
        for block in self.aligned_blocks(0) {
            if candidates.indices.len() - candidates.len < block.1 + kernels::CANDIDATE_SLACK {
                // From here on, the part only adds.
                (candidates.len, least) = (0, u32::MAX);
            }
            self.add_and_select(isa, block, least, candidates)?;
        }
        candidates.indices[..candidates.len].iter_mut().for_each(|index| *index += first as u32);
        Ok(least != u32::MAX)
    }

    /// Appends the elements of the block `first … first + len` whose magnitude bits are at least `least`.
    ///
    /// # Errors
    /// Without a residual, or with an initial one, the errors of [`Corrected::fold`].
    pub(crate) fn add_and_select(
        &mut self,
        isa: Isa,
        (first, len): (usize, usize),
        least: u32,
        candidates: &mut Candidates<'_>,
    ) -> Result<(), EncodeError> {
        if Full::build().and(self.momentum.as_ref()).is_some() && first >= self.added {
            self.add(isa, first, len);
        }
        let source = self.source;
        if let Some(sums) = self.residual.as_deref().filter(|_| first < self.added) {
            let sums = &sums[first..first + len];
            kernels::keep_from(isa, sums, Sums::None, first as u32, least, candidates);
            return Ok(());
        }
        self.added = first + len;
        source.try_for_range(first, len, |at, grad, _| {
            let sums = self.sums(at..at + grad.len());
            let max = kernels::keep_from(isa, grad, sums, at as u32, least, candidates);
            self.max = self.max.max(max);
            if source.is_within_bound(max) {
                return Ok(());
            }
            let p = Corrected { residual: Full::build().and(self.initial), ..source };
            Err(p.error_in(at, grad.len()))
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// With bounds that values reach exactly, so that a single rounding left out of the bound on p would
    /// show.
    #[cfg(feature = "full")]
    #[test]
    fn known_bounds_refuse_what_reading_everything_refuses() {
        let stream = crate::StepKey { seed: 4, step: 0, source: crate::Source::Shared }.stream(0);
        let number = |at| (stream.u64_at(at) as i32 as f32) * 1e-9;
        let largest = |values: &[f32]| values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let (mut refused, mut short) = (0, 0);
        for at in 0..2_000 {
            let [grad, residual, momentum]: [[f32; 3]; 3] = core::array::from_fn(|part| {
                core::array::from_fn(|i| number(9 * at + 3 * part as u64 + i as u64))
            });
            let rule = Momentum::new(0.5 + number(at).abs() / 5.0, at % 2 == 0).unwrap();
            let source = Corrected::new(Grad::F32(&grad), Some(&residual), 0, f32::INFINITY)
                .with_momentum(Some((rule, &momentum)));
            let bounded = source.with_largest(largest(&residual)).with_momentum_bound(largest(&momentum));
            let sum = bounded.largest_sum(largest(&grad));
            let p: [f32; 3] = core::array::from_fn(|i| rule.apply(momentum[i], grad[i]).1 + residual[i]);
            assert!(largest(&p) <= sum, "{p:?} above {sum}");
            // On either side of the largest p, and of the bound on all of them.
            for bound in [largest(&p), sum].into_iter().flat_map(|bound| [bound, bound.next_up()]) {
                let read = Corrected { bound, ..source }.check_all(Isa::best());
                assert_eq!(
                    Corrected { bound, ..bounded }.check_all(Isa::best()),
                    read,
                    "{p:?} below {bound}"
                );
                refused += usize::from(read.is_err());
                short += usize::from(sum < bound);
            }
        }
        assert!(refused >= 2_000 && short >= 2_000, "{refused} refused, {short} by the bounds alone");
    }

    #[test]
    fn blocks_hold_every_element_once() {
        for missing in 0..16 {
            for len in (0..40).chain(80..100) {
                let blocks: Vec<_> = blocks_of(32, len, missing).collect();
                assert!(
                    blocks
                        .iter()
                        .all(|&(first, len)| len <= 32 && (first == 0 || (first + missing) % 32 == 0))
                );
                let elements: Vec<usize> =
                    blocks.iter().flat_map(|&(first, len)| first..first + len).collect();
                assert_eq!(elements, (0..len).collect::<Vec<_>>(), "{len} elements, {missing} missing");
            }
        }
    }
}
