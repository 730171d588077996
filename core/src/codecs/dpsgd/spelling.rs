//! `dpsgd`

use super::Dpsgd;
use crate::codec::{Described, Spelled};
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl Spelled for Dpsgd {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("dpsgd", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str = "memory max_packet_bytes";
    const SUMMARY: &'static str = "whole models, exchanged between neighbours that move towards each other";
    const SUITS: &'static str = "workers reach only their neighbours";
    const COSTS: &'static str = "replicas differ";
    const EXAMPLES: &'static [&'static str] = &["dpsgd"];

    fn parse<'a>(_name: &str, _keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        Ok(Self)
    }
}

impl Described for Dpsgd {
    fn name(&self) -> &'static str {
        "dpsgd"
    }

    fn print(&self, _out: &mut Printer<'_, '_>) -> fmt::Result {
        Ok(())
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::None
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        keeps.then_some("memory=ef: dpsgd sends the whole model and keeps nothing back")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some("max_packet_bytes: a gossip codec has no frames to cut")
    }
}
