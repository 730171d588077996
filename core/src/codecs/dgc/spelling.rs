//! `dgc`

use super::Dgc;
use crate::codec::{Body, Described, Spelled};
use crate::coding::values::ValueChoice;
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::momentum::Momentum;
use crate::sparse::{SparseCoding, SparseFields, Sparsifier, sparse_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// The paper's parameters, used by default.
const DENSITY: f64 = 0.001;
const MOMENTUM: f32 = 0.9;
const WARMUP: u32 = 4;

impl Spelled for Dgc {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("dgc", Some(Self::ID))];
    const KIND: Kind = SparseFields::KIND;
    const KEYS: &'static str = sparse_keys!("density warmup momentum nesterov clip sample");
    const SUMMARY: &'static str =
        "Deep Gradient Compression: momentum of each worker, and what exceeds a sampled threshold";
    const SUITS: &'static str = "slow links, training with momentum";
    const COSTS: &'static str = "a second array, for the momentum";
    const EXAMPLES: &'static [&'static str] = &[
        "dgc:density=0.01",
        "dgc:density=0.1,momentum=0,values=q4",
        "dgc:density=0.01,nesterov,clip=1,sample=0.1,dense_1d=false",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let density = keys.density("density")?.or(Density::new(DENSITY)).unwrap_or(Density::percent());
        let is_factor = |factor: &f32| (0.0..1.0).contains(factor);
        let momentum = keys.number("momentum", "a number from 0 to below 1", is_factor)?;
        let is_nesterov = keys.flag("nesterov")?.unwrap_or(false);
        let is_limit = |limit: &f32| limit.is_finite() && *limit > 0.0;
        let clip = keys.number("clip", "a finite number above 0", is_limit)?;
        let sample = keys.density("sample")?.unwrap_or(Density::percent());
        let coding = SparseCoding::parse(keys)?;
        if is_nesterov && momentum == Some(0.0) {
            return Err(SpecError::Conflict("nesterov: it is a form of momentum, which is 0"));
        }
        let momentum = Momentum::new(momentum.unwrap_or(MOMENTUM), is_nesterov);
        Ok(Self { density, coding, momentum, sample, clip })
    }

    fn with_density(self, density: Density) -> Self {
        self.with_density(density)
    }
}

impl Described for Dgc {
    fn name(&self) -> &'static str {
        "dgc"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("density", self.density)?;
        out.always("momentum", self.momentum.map_or(0.0, Momentum::factor))?;
        out.unless(!self.momentum.is_some_and(Momentum::is_nesterov), "nesterov", true)?;
        if let Some(clip) = self.clip {
            out.always("clip", clip)?;
        }
        out.unless(self.sample == Density::percent(), "sample", self.sample)?;
        self.coding.print(out)
    }

    fn default_memory(&self) -> MemoryChoice {
        if self.momentum.is_some() { MemoryChoice::Momentum } else { self.coding.default_memory() }
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        self.coding.conflict(keeps)
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        self.coding.packet_conflict()
    }

    fn default_warmup(&self) -> u32 {
        WARMUP
    }

    /// Tensors of one dimension are few and matter.
    fn default_dense_1d(&self) -> bool {
        true
    }

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }

    fn sparse_values(&self) -> Option<ValueChoice> {
        Some(self.coding.values)
    }

    fn accumulates_steps(&self) -> bool {
        true
    }

    fn local_clip(&self, workers: u32) -> Option<f64> {
        self.local_clip(workers)
    }
}
