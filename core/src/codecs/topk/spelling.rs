//! `topk`

use super::TopK;
use crate::codec::{Body, Described, Spelled};
use crate::coding::values::ValueChoice;
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::sparse::{SparseCoding, SparseFields, Sparsifier, sparse_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl Spelled for TopK {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("topk", Some(Self::ID))];
    const KIND: Kind = SparseFields::KIND;
    const KEYS: &'static str = sparse_keys!("density chunk warmup");
    const SUMMARY: &'static str = "the k coordinates of largest magnitude, exactly";
    const SUITS: &'static str = "slow links, few workers";
    const COSTS: &'static str = "2 to 4 × memcpy to encode 1 %";
    const EXAMPLES: &'static [&'static str] = &[
        "topk:density=0.01",
        "topk:density=0.1,values=q8,unit=tensor",
        "topk:density=0.01,index=smallest,values=q4,dense_1d",
        "topk:density=0.05,values=q2,rounding=stochastic",
        "topk:density=0.02,chunk=64,unit=tensor",
        "topk:density=0.02,chunk=64,index=chunks",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let density = keys.density("density")?.unwrap_or(Density::percent());
        let coding = SparseCoding::parse(keys)?;
        let plain = Self { density, chunk: None, coding };
        let range = "a power of two from 64 to 65536";
        let chunked = keys.value("chunk", range, |value| plain.with_chunk(value.parse().ok()?))?;
        Ok(chunked.unwrap_or(plain))
    }

    fn with_density(self, density: Density) -> Self {
        self.with_density(density)
    }
}

impl Described for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("density", self.density)?;
        out.unless(self.chunk.is_none(), "chunk", self.chunk().unwrap_or_default())?;
        self.coding.print(out)
    }

    fn default_memory(&self) -> MemoryChoice {
        self.coding.default_memory()
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        self.coding.conflict(keeps)
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        self.coding.packet_conflict()
    }

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }

    fn target_count(&self, len: usize) -> Option<usize> {
        Some(self.most_entries(len))
    }

    fn sparse_values(&self) -> Option<ValueChoice> {
        Some(self.coding.values)
    }
}
