//! Random-k over all-reduce: one round, a sum of f32 values.

use super::{RandomK, bitmap_words, commit, sample};
use crate::codec::{Advance, Linear, LinearScratch, Payload, Reduction, Session};
use crate::error::EncodeError;
use crate::gather::fold;
use crate::grad::Grad;
use crate::key::StepKey;
use crate::memory::Memory;
use crate::unit::Unit;

/// One unit of [`RandomK`] on its way through its only round.
#[derive(Debug)]
pub struct RandomKSession<'s> {
    p: &'s [u32],
    indices: &'s [u32],
    values: &'s mut [f32],
}

impl<'s> RandomKSession<'s> {
    pub(super) fn begin(
        codec: &RandomK,
        key: StepKey,
        unit: &Unit,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
        scratch: LinearScratch<'s>,
    ) -> Result<Self, EncodeError> {
        scratch.require(codec.session_scratch_len(unit.len))?;
        let k = codec.density.count(unit.len);
        let (p, words) = scratch.words.split_at_mut(unit.len);
        let (indices, words) = words.split_at_mut(k);
        fold(unit, grad, memory.map(Memory::residual), codec.bound(), p)?;
        sample(&key.shared_selection(unit.id), unit.len, indices, &mut words[..bitmap_words(unit.len)]);
        let values = &mut scratch.floats[..k];
        let factor = codec.factor(k, unit.len);
        for (value, &index) in values.iter_mut().zip(&*indices) {
            *value = f32::from_bits(p[index as usize]) * factor;
        }
        Ok(Self { p, indices, values })
    }
}

impl Session for RandomKSession<'_> {
    fn reduction(&self) -> Reduction {
        Reduction::SumF32
    }

    fn payload(&mut self) -> Payload<'_> {
        Payload::F32(self.values)
    }

    fn advance(&mut self, contributors: u32, mean: &mut [f32], memory: Option<&mut Memory<'_>>) -> Advance {
        assert_eq!(mean.len(), self.p.len(), "mean and unit differ in length");
        assert_ne!(contributors, 0, "a mean over nobody");
        mean.fill(0.0);
        for (&index, &sum) in self.indices.iter().zip(&*self.values) {
            mean[index as usize] = sum / contributors as f32;
        }
        if let Some(memory) = memory {
            commit(self.p, self.indices, memory.residual_mut());
        }
        Advance::Done
    }

    fn abandon(&mut self, memory: Option<&mut Memory<'_>>) {
        if let Some(memory) = memory {
            commit(self.p, &[], memory.residual_mut());
        }
    }
}
