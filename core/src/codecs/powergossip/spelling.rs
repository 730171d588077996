//! `powergossip`

use super::PowerGossip;
use crate::codec::{Described, Spelled};
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl Spelled for PowerGossip {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("powergossip", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str = "rank iterations diffusion memory max_packet_bytes";
    const SUMMARY: &'static str = "differences of neighbours' matrices as products of two thin factors";
    const SUITS: &'static str = "workers reach only their neighbours, over slow links";
    const COSTS: &'static str = "replicas differ more; vectors go whole";
    const EXAMPLES: &'static [&'static str] =
        &["powergossip:rank=1", "powergossip:rank=2,iterations=8,diffusion=1.3"];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let range = "a whole number from 1 to 256";
        let is_small = |number: &u16| (1..=256).contains(number);
        let is_rate = |rate: &f32| *rate > 0.0 && *rate <= 2.0;
        Ok(Self {
            rank: keys.number("rank", range, is_small)?.unwrap_or(1),
            iterations: keys.number("iterations", range, is_small)?.unwrap_or(1),
            diffusion: keys.number("diffusion", "a number above 0, at most 2", is_rate)?.unwrap_or(1.0),
        })
    }
}

impl Described for PowerGossip {
    fn name(&self) -> &'static str {
        "powergossip"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("rank", self.rank)?;
        out.unless(self.iterations == 1, "iterations", self.iterations)?;
        out.unless(self.diffusion == 1.0, "diffusion", self.diffusion)
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::None
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        keeps.then_some("memory=ef: powergossip keeps factors for each edge, and no residual")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some("max_packet_bytes: a gossip codec has no frames to cut")
    }
}
