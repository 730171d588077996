//! `sidco`

use super::{Fit, Sidco};
use crate::codec::{Body, Described, Spelled};
use crate::coding::values::ValueChoice;
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, Words};
use crate::sparse::{SparseCoding, SparseFields, Sparsifier, sparse_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;
use core::num::NonZeroU32;

const FIT: Words<Fit> =
    Words { words: &["exp", "gamma", "gp"], values: &[Fit::Exponential, Fit::Gamma, Fit::Pareto] };
const CAP: Words<bool> = Words { words: &["none", "exact"], values: &[false, true] };

impl Spelled for Sidco {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("sidco", Some(Self::ID))];
    const KIND: Kind = SparseFields::KIND;
    const KEYS: &'static str = sparse_keys!("density warmup fit stages cap");
    const SUMMARY: &'static str =
        "what exceeds a threshold of a distribution that is fitted to the magnitudes";
    const SUITS: &'static str = "as `topk`, to compare with the paper";
    const COSTS: &'static str = "more passes over the gradient than `topk`";
    const EXAMPLES: &'static [&'static str] = &[
        "sidco:density=0.01",
        "sidco:density=0.01,fit=exp,stages=2,values=q8",
        "sidco:density=0.1,fit=gamma,stages=1,cap=exact",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let is_stages = |stages: &NonZeroU32| stages.get() <= 32;
        let stages = match keys.text("stages") {
            None | Some("auto") => None,
            Some(_) => keys.number("stages", "auto, or a whole number from 1 to 32", is_stages)?,
        };
        Ok(Self {
            density: keys.density("density")?.unwrap_or(Density::percent()),
            fit: keys.word("fit", &FIT)?.unwrap_or_default(),
            stages,
            is_capped: keys.word("cap", &CAP)?.unwrap_or(false),
            coding: SparseCoding::parse(keys)?,
        })
    }

    fn with_density(self, density: Density) -> Self {
        self.with_density(density)
    }
}

impl Described for Sidco {
    fn name(&self) -> &'static str {
        "sidco"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("density", self.density)?;
        out.unless(self.fit == Fit::default(), "fit", FIT.word(self.fit))?;
        if let Some(stages) = self.stages {
            out.always("stages", stages)?;
        }
        out.unless(!self.is_capped, "cap", CAP.word(self.is_capped))?;
        self.coding.print(out)
    }

    fn default_memory(&self) -> MemoryChoice {
        self.coding.default_memory()
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        if !keeps && self.stages.is_none() {
            return Some("memory=none: sidco keeps there how many stages it needs; give a number of stages");
        }
        self.coding.conflict(keeps)
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        self.coding.packet_conflict()
    }

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }

    fn sparse_values(&self) -> Option<ValueChoice> {
        Some(self.coding.values)
    }
}
