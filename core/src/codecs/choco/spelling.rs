//! `choco`

use super::Choco;
use crate::codec::{Described, Spelled};
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, Words};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// Of `values`: whether they are signs.
const SIGNS: Words<bool> = Words { words: &["f32", "sign"], values: &[false, true] };

impl Spelled for Choco {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("choco", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str = "density values diffusion memory unit dense_below dense_1d max_packet_bytes";
    const SUMMARY: &'static str = "the largest changes of a model since what its neighbours believe of it";
    const SUITS: &'static str = "workers reach only their neighbours, over slow links";
    const COSTS: &'static str = "two models of memory for each edge, and a diffusion rate to tune";
    const EXAMPLES: &'static [&'static str] =
        &["choco:density=0.01", "choco:density=1,values=sign,diffusion=0.45,dense_1d"];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let is_rate = |rate: &f32| *rate > 0.0 && *rate <= 2.0;
        let density = keys.density("density")?.unwrap_or(Density::percent());
        let signs = keys.word("values", &SIGNS)?.unwrap_or(false);
        let diffusion = keys.number("diffusion", "a number above 0, at most 2", is_rate)?;
        Ok(Self { density, signs, diffusion: diffusion.unwrap_or(0.05) })
    }
}

impl Described for Choco {
    fn name(&self) -> &'static str {
        "choco"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("density", self.density)?;
        out.unless(!self.signs, "values", SIGNS.word(self.signs))?;
        out.unless(self.diffusion == 0.05, "diffusion", self.diffusion)
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::None
    }

    fn default_per_tensor(&self) -> bool {
        true
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        keeps.then_some("memory=ef: choco keeps what is believed of each neighbour, and no residual")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some("max_packet_bytes: a gossip codec has no frames to cut")
    }
}
