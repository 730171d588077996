//! What is kept of a group of tensors from step to step, and what it was before the step under way.

use std::mem;

use crate::names::{Layout, Memory, Plan};

/// A sample has one block of so many elements of each so many blocks.
const BLOCK: usize = 64;
const EVERY: usize = 64;

/// Two memories: one that the step writes, and one that it began with.
pub(super) struct Kept {
    memory: Memory<'static>,
    before: Memory<'static>,
    /// Whether a step writes its residual to a memory of its own, and leaves the memory that it began with as
    /// it was. With error feedback it can: a frame is that of gradient + residual, in whichever memory either
    /// of them stands.
    is_beside: bool,
    /// Whether what a step changes in place is copied when it begins, and not when the one before it ends.
    is_copied_late: bool,
    /// Whether a step is under way: `before` holds what was kept when it began, until it holds or is undone.
    is_open: bool,
    /// In place: whether both memories hold the same.
    is_copied: bool,
    /// Whether no step has used it: it holds zeros, whose pages no one has touched.
    is_new: bool,
    plan: Plan,
    layout: Layout,
    /// Beside: whether the step under way has not written a unit yet, by position.
    is_left: Vec<bool>,
    /// Whether the step under way has a unit, by position.
    is_in: Vec<bool>,
}

impl Kept {
    /// Nothing is kept yet; `None` for a plan that keeps nothing.
    pub(super) fn new(plan: Plan, layout: &Layout, is_beside: bool, is_copied_late: bool) -> Option<Self> {
        let (memory, before) = empty(&plan, layout)?;
        Some(Self {
            memory,
            before,
            is_beside,
            is_copied_late,
            is_open: false,
            is_copied: true,
            is_new: true,
            is_left: vec![false; plan.units().len()],
            is_in: vec![false; plan.units().len()],
            plan,
            layout: layout.clone(),
        })
    }

    /// After the last step that holds, also while another one is under way.
    pub(super) fn kept(&self) -> &Memory<'static> {
        if self.is_open { &self.before } else { &self.memory }
    }

    /// Between steps: frees what holds nothing but zeros. The next step touches new pages then.
    pub(super) fn free_zeros(&mut self) {
        let holds_nothing = || self.memory.residual().iter().all(|value| *value == 0.0);
        if self.is_beside
            && !self.is_new
            && holds_nothing()
            && let Some(empty) = empty(&self.plan, &self.layout)
        {
            (self.memory, self.before) = empty;
            self.is_new = true;
        }
    }

    /// The L2 norm of a sample of what is kept, of which a 64th is read.
    pub(super) fn sampled_norm(&self) -> f64 {
        let blocks = self.kept().residual().chunks(BLOCK * EVERY);
        let sample = blocks.flat_map(|block| &block[..block.len().min(BLOCK)]);
        sample.map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
    }

    /// The memory that a step began with, and that which it writes.
    pub(super) fn both(&mut self) -> (&Memory<'static>, &mut Memory<'static>) {
        (&self.before, &mut self.memory)
    }

    pub(super) fn begin_step(&mut self) {
        (self.is_open, self.is_new) = (true, false);
        self.is_in.fill(false);
        if self.is_beside {
            mem::swap(&mut self.memory, &mut self.before);
            self.is_left.fill(true);
        } else {
            self.copy();
            self.is_copied = false;
        }
    }

    /// The step under way has these units, given by their identifiers, and has written those.
    pub(super) fn has(&mut self, ids: &[u32], written: &[u32]) {
        let position = |id: &u32| self.plan.units().binary_search_by_key(id, |unit| unit.id).ok();
        ids.iter().filter_map(position).for_each(|at| self.is_in[at] = true);
        written.iter().filter_map(position).for_each(|at| self.is_left[at] = false);
    }

    /// The step holds, as far as anybody asks.
    pub(super) fn hold(&mut self) {
        let units = self.plan.units().iter();
        for (unit, is_left) in units.zip(&mut self.is_left).filter(|(_, is_left)| **is_left) {
            if self.is_beside {
                self.memory.carry_over(&self.before, unit);
            }
            *is_left = false;
        }
        let units = self.plan.units().iter().zip(&self.is_in);
        let units: Vec<_> = units.filter_map(|(unit, is_in)| is_in.then_some(*unit)).collect();
        self.plan.decay(&units, &mut self.memory);
        self.is_open = false;
    }

    /// Work that nobody waits for, after a step that holds.
    pub(super) fn end_step(&mut self) {
        if !self.is_beside && !self.is_copied_late {
            self.copy();
        }
    }

    /// Whether what was kept before the last step is still there.
    pub(super) fn is_discardable(&self) -> bool {
        self.is_beside || self.is_copied_late
    }

    /// Returns to what was kept when the step began.
    pub(super) fn undo_step(&mut self) {
        mem::swap(&mut self.memory, &mut self.before);
        (self.is_open, self.is_copied) = (false, false);
        self.is_left.fill(false);
        if self.is_beside {
            // It may hold a gradient that is not finite.
            self.before.clear();
        }
    }

    fn copy(&mut self) {
        if !mem::replace(&mut self.is_copied, true) {
            self.before.copy_from(&self.memory);
        }
    }

    pub(super) fn rescale(&mut self, ratio: f32) {
        if self.is_new {
            return;
        }
        self.memory.rescale(ratio);
        self.is_copied = false;
    }

    /// Goes on with what another memory holds.
    pub(super) fn replace(&mut self, memory: &Memory<'_>) {
        self.memory.copy_from(memory);
        (self.is_copied, self.is_new) = (false, false);
    }
}

/// Two memories of zeros, whose pages no one has touched.
fn empty(plan: &Plan, layout: &Layout) -> Option<(Memory<'static>, Memory<'static>)> {
    let memory = || Memory::for_plan(plan, &layout.as_ref());
    Some((memory()?, memory()?))
}
