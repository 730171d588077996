//! The arguments of a call that encodes, checked.

use pyo3::prelude::*;

use super::units::{UnitTuple, units_for};
use crate::buffer::Gradient;
use crate::errors::value;
use crate::layout::{self, Layout, layout_of};
use crate::memory::Memory;
use crate::names::{self, LayoutRef, MemoryChoice, Source, Spec, StepInput, StepKey, Unit};

/// The arguments that encode, packets and begin share.
pub(super) struct Job {
    pub(super) gradient: Gradient,
    pub(super) layout: Py<Layout>,
    pub(super) units: Vec<Unit>,
    pub(super) key: StepKey,
}

impl Job {
    #[allow(clippy::too_many_arguments, reason = "they are the arguments of three methods")]
    pub(super) fn new(
        spec: &Spec,
        grad: &Bound<'_, PyAny>,
        layout: Option<&Bound<'_, PyAny>>,
        memory: Option<&Memory>,
        (seed, step, rank): (u64, u64, u32),
        dtype: Option<&str>,
        units: Option<Vec<UnitTuple>>,
    ) -> PyResult<Self> {
        let py = grad.py();
        let gradient = Gradient::of(grad, dtype)?;
        let layout = match (layout, memory) {
            (Some(layout), _) => layout_of(layout)?,
            (None, Some(memory)) => memory.layout.clone_ref(py),
            (None, None) => layout::flat(py, gradient.len())?,
        };
        let borrowed = layout.get();
        if gradient.len() != borrowed.layout.len() {
            return Err(value(format!(
                "grad: expected {} elements, as the layout has, got {}",
                borrowed.layout.len(),
                gradient.len()
            )));
        }
        check_memory(spec, memory, borrowed)?;
        let units = units_for(spec, &borrowed.layout.as_ref(), units)?;
        Ok(Self { gradient, layout, units, key: key_of(seed, step, rank)? })
    }

    /// What the codec reads; `layout` is the job's, borrowed.
    pub(super) fn step<'a>(&'a self, layout: &'a LayoutRef<'a>) -> StepInput<'a> {
        StepInput { key: self.key, layout, units: &self.units, grad: self.gradient.grad() }
    }
}

pub(crate) fn key_of(seed: u64, step: u64, rank: u32) -> PyResult<StepKey> {
    const RANKS: u32 = (1 << 30) - 1;
    if rank >= RANKS {
        return Err(value(format!("rank={rank}: expected a whole number below {RANKS}")));
    }
    Ok(StepKey { seed, step, source: Source::Rank(rank) })
}

/// The memory has to be the one that the spelling asks for. What only the caller can do is refused.
pub(crate) fn check_memory(spec: &Spec, memory: Option<&Memory>, layout: &Layout) -> PyResult<()> {
    if spec.codec.local_clip(1).is_some() {
        return Err(value(format!(
            "{}: clip: it depends on the number of workers, which is not known here; leave clip out, and shorten gradients to a norm of at most clip / sqrt(workers) before",
            spec
        )));
    }
    let keeps = spec.memory != MemoryChoice::None;
    match memory {
        None if keeps => Err(value(format!(
            "{}: what it does not send is kept in a memory: pass memory=Memory(codec, layout), or spell memory=none",
            spec
        ))),
        None => Ok(()),
        Some(_) if !keeps => Err(value(format!("{}: it keeps nothing and takes no memory", spec))),
        Some(memory) => check_layout(&memory.layout.get().layout, &layout.layout),
    }
}

fn check_layout(own: &names::Layout, given: &names::Layout) -> PyResult<()> {
    if own.fingerprint() == given.fingerprint() {
        return Ok(());
    }
    let told = |layout: &names::Layout| {
        let (len, tensors, print) = (layout.len(), layout.tensors().len(), layout.fingerprint());
        format!("{len} elements in {tensors} tensors (fingerprint {print:016x})")
    };
    Err(value(format!("layout: expected the memory's, {}, got {}", told(own), told(given))))
}
