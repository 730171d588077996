//! The entries at several densities, from one read of the gradient. The positions do not depend on the
//! values, so nothing is held for them but p.

use super::draw::Drawing;
use super::{RandomK, write};
use crate::codec::{Chosen, MultiLevel, Reduction, Round, UnitInput};
use crate::gradient::density::Density;
use crate::gradient::unit::Unit;
use crate::kernels::{self, Candidates};
use crate::scratch::{LinearScratch, Scratch};
use crate::wire::writer::Writer;

impl MultiLevel for RandomK {
    fn spare_len(&self, _density: Density, len: usize) -> usize {
        self.block.spare_words(len)
    }

    fn choice_len(&self, density: Density, len: usize) -> usize {
        density.count(len)
    }

    fn choose(&self, of: &Chosen<'_>, candidates: &mut Candidates<'_>, spare: &mut [u32]) {
        let len = of.p.len();
        let k = of.density.count(len);
        let indices = &mut candidates.indices[..k];
        let drawing = Drawing::new(self.block, of.density, of.span);
        drawing.draw(&of.key.shared_selection(of.unit), len, indices, spare);
        let factor = self.factor(k, len);
        for (value, &index) in candidates.values.iter_mut().zip(&*indices) {
            *value = (of.p[index as usize] * factor).to_bits();
        }
        candidates.len = k;
    }

    fn encode_chosen(
        &self,
        input: UnitInput<'_, '_>,
        entries: Candidates<'_>,
        _scratch: Scratch<'_>,
        writer: &mut Writer<'_>,
    ) {
        let (indices, values) = (&entries.indices[..entries.len], &entries.values[..entries.len]);
        let drawing = Drawing::new(self.block, self.density, input.span());
        write(input.key, drawing, values.iter().map(|&bits| f32::from_bits(bits)), writer);
        if let Some(memory) = input.memory {
            let bound = memory.magnitude_bound();
            let residual = memory.residual_mut();
            indices.iter().for_each(|&index| residual[index as usize] = 0.0);
            memory.set_magnitude_bound(bound);
        }
    }

    fn begin_chosen(
        &self,
        unit: &Unit,
        p: &[f32],
        (indices, values): (&[u32], &[u32]),
        scratch: &mut LinearScratch<'_>,
    ) -> Option<Round> {
        let (all, words) = scratch.words.split_at_mut(unit.len);
        all.copy_from_slice(kernels::bits_of(p));
        words[..indices.len()].copy_from_slice(indices);
        scratch.floats[..values.len()].copy_from_slice(kernels::floats_of(values));
        let payload_len = indices.len();
        Some(Round { index: 0, reduction: Reduction::SumF32, unit: *unit, payload_len })
    }
}
