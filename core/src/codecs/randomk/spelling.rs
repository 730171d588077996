//! `randomk`

use super::{Block, Estimator, RandomK, SeededFields};
use crate::codec::{Body, Described, SUMMED, Spelled};
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, Words, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

const BLOCK: Words<Block> =
    Words { words: &["none", "run", "tile"], values: &[Block::None, Block::Run, Block::Tile] };

const ESTIMATOR: Words<Estimator> =
    Words { words: &["contraction", "unbiased"], values: &[Estimator::Contraction, Estimator::Unbiased] };

impl Spelled for RandomK {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("randomk", Some(Self::ID))];
    const KIND: Kind = SeededFields::KIND;
    const KEYS: &'static str = with_unit_keys!("density warmup block estimator");
    const SUMMARY: &'static str = "k coordinates drawn alike by all workers, so that values alone are summed";
    const SUITS: &'static str = "all-reduce with few bytes";
    const COSTS: &'static str = "loses more than `topk` at the same density";
    const EXAMPLES: &'static [&'static str] = &[
        "randomk:density=0.01",
        "randomk:density=0.1,estimator=unbiased",
        "randomk:density=0.1,block=run",
        "randomk:density=0.05,block=tile",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let density = keys.density("density")?.unwrap_or(Density::percent());
        let block = keys.word("block", &BLOCK)?.unwrap_or_default();
        Ok(Self { density, block, estimator: keys.word("estimator", &ESTIMATOR)?.unwrap_or_default() })
    }

    fn with_density(self, density: Density) -> Self {
        self.with_density(density)
    }
}

impl Described for RandomK {
    fn name(&self) -> &'static str {
        "randomk"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("density", self.density)?;
        out.unless(self.block == Block::default(), "block", BLOCK.word(self.block))?;
        out.unless(self.estimator == Estimator::default(), "estimator", ESTIMATOR.word(self.estimator))
    }

    fn default_memory(&self) -> MemoryChoice {
        match self.estimator {
            Estimator::Contraction => MemoryChoice::ErrorFeedback,
            Estimator::Unbiased => MemoryChoice::None,
        }
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        (keeps && self.estimator == Estimator::Unbiased).then_some(
            "memory=ef: estimator=unbiased scales by n/k and diverges under error feedback; use estimator=contraction",
        )
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(SUMMED)
    }

    fn density(&self) -> Option<Density> {
        Some(self.density)
    }

    /// A tile is part of a matrix, and a matrix is one tensor.
    fn default_per_tensor(&self) -> bool {
        self.block == Block::Tile
    }
}
