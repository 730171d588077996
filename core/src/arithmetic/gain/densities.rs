//! The gain of top-k at several densities, from one selection.

use super::Gain;
use super::frame::squares;
use crate::built::Full;
use crate::codecs::topk::{Peek, capacity};
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::frame::message::check_units;
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::memory::Memory;
use crate::momentum::Momentum;
use crate::scratch::{Scratch, ScratchLen};

/// Working memory that [`of_densities`] needs.
#[must_use]
pub fn densities_scratch_len(units: &[Unit], densities: &[Density]) -> ScratchLen {
    let words = units.iter().filter(|unit| !unit.dense).map(|unit| {
        let k = most(densities, unit.len);
        capacity(k, unit.len).saturating_mul(2).saturating_add(k)
    });
    ScratchLen { words: words.max().unwrap_or(0), bytes: 0 }
}

/// Entries at the largest of the densities.
fn most(densities: &[Density], len: usize) -> usize {
    densities.iter().map(|density| density.count(len)).max().unwrap_or(0)
}

/// Writes to `gains` the gain of top-k at each of the `densities`. Encodes nothing, and leaves the memory as
/// it is. It is the gain of [`TopK`](crate::codecs::TopK) over whole units, with `values=f32` and this
/// memory.
///
/// The gradient is read once, in the pass that selects at the largest density. The other densities select
/// among the entries of that density, so each of them only reads those entries. A unit that is sent dense
/// counts as sent whole. Densities may have any order.
///
/// `grad`, and the memory if there is one, have the length of the layout in which the units are ranges. With
/// `momentum`, p is the sum from which [`Dgc`](crate::codecs::Dgc) would choose: the residual plus the step
/// that momentum makes of the gradient. Units that are sent dense do not use momentum, as with `Dgc`.
///
/// # Errors
/// `NotBuilt` without the feature `full`; `UnitOutOfOrder`, `TooLarge`, `ScratchTooSmall`; `MemoryIncomplete`
/// for momentum without a memory that holds it; `NonFiniteInput` for a p that is not finite. `gains` is then
/// unspecified.
///
/// # Panics
/// When `gains` has another length than `densities`, or the memory than `grad`.
///
/// # Examples
#[cfg_attr(feature = "full", doc = "```")]
#[cfg_attr(not(feature = "full"), doc = "```ignore")]
/// use gradwire::arithmetic::gain::{Gain, of_densities};
/// use gradwire::{Density, Grad, Memory, Scratch, Unit};
///
/// let mut residual = [0.0, 2.0, 0.0, 0.0];
/// let memory = Memory::new(&mut residual);
/// let densities = [0.25, 0.5].map(|share| Density::new(share).unwrap());
/// let (mut words, mut gains) = ([0; 64], [Gain::default(); 2]);
/// let mut scratch = Scratch { words: &mut words, bytes: &mut [] };
/// let grad = Grad::F32(&[1.0, 1.0, -1.0, 1.0]);
/// of_densities(&[Unit::whole(4)], grad, Some(&memory), None, &densities, &mut scratch, &mut gains).unwrap();
/// assert_eq!(gains.map(Gain::ratio), [9.0 / 12.0, 10.0 / 12.0]);
/// assert_eq!(memory.residual(), [0.0, 2.0, 0.0, 0.0]);
/// ```
pub fn of_densities(
    units: &[Unit],
    grad: Grad<'_>,
    memory: Option<&Memory<'_>>,
    momentum: Option<Momentum>,
    densities: &[Density],
    scratch: &mut Scratch<'_>,
    gains: &mut [Gain],
) -> Result<(), EncodeError> {
    Full::build().ok_or(EncodeError::NotBuilt)?;
    assert_eq!(densities.len(), gains.len(), "densities and gains differ in number");
    if let Some(memory) = memory {
        assert_eq!(memory.len(), grad.len(), "memory and gradient differ in length");
    }
    check_units(&LayoutRef::flat(grad.len()), units)?;
    if momentum.is_some() && memory.and_then(Memory::momentum).is_none() {
        return Err(EncodeError::MemoryIncomplete);
    }
    let needed = densities_scratch_len(units, densities);
    if !scratch.holds(needed) {
        return Err(EncodeError::ScratchTooSmall { needed });
    }
    gains.fill(Gain::default());
    for unit in units {
        let source = values_of(unit, grad, memory, momentum.filter(|_| !unit.dense));
        if unit.dense {
            let whole = squares(&source)?;
            gains.iter_mut().for_each(|gain| *gain += Gain { sent: whole, whole });
        } else {
            add_gains(&source, densities, scratch.words, gains)?;
        }
    }
    Ok(())
}

/// The values that a unit would encode.
fn values_of<'a>(
    unit: &Unit,
    grad: Grad<'a>,
    memory: Option<&'a Memory<'_>>,
    momentum: Option<Momentum>,
) -> Corrected<'a> {
    let view = memory.map(|memory| memory.view(unit.range()));
    let momentum = momentum.zip(view.and_then(|view| view.momentum));
    let (grad, residual) = (grad.slice(unit.start, unit.len), view.map(|view| view.residual));
    Corrected::new(grad, residual, unit.start, f32::INFINITY).with_momentum(momentum)
}

/// Adds what one unit sends at each density.
fn add_gains(
    source: &Corrected<'_>,
    densities: &[Density],
    words: &mut [u32],
    gains: &mut [Gain],
) -> Result<(), EncodeError> {
    let len = source.len();
    let mut k = most(densities, len);
    if k == 0 {
        return Ok(());
    }
    let (indices, words) = words.split_at_mut(capacity(k, len));
    let (values, words) = words.split_at_mut(indices.len());
    let mut peek = Peek::new(indices, values, &mut words[..k]);
    let whole = peek.select(source, k)?;
    loop {
        peek.reduce(k);
        let gain = Gain { sent: peek.squares(), whole };
        let counts = densities.iter().map(|density| density.count(len));
        counts.clone().zip(&mut *gains).filter(|(count, _)| *count == k).for_each(|(_, sum)| *sum += gain);
        match counts.filter(|count| *count < k).max() {
            Some(next) => k = next,
            None => return Ok(()),
        }
    }
}
