//! `powersgd`

use super::PowerSgd;
use crate::codec::{Described, SUMMED, Spelled};
use crate::keys::{Keys, MemoryChoice, POSITIVE, Printer, SpecError, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;
use core::num::NonZeroU32;

impl Spelled for PowerSgd {
    /// It has no frames.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("powersgd", None)];
    const KIND: Kind = Kind::DENSE;
    const KEYS: &'static str = with_unit_keys!("rank min_rate start");
    const SUMMARY: &'static str = "matrices as products of two thin factors, each summed by all-reduce";
    const SUITS: &'static str = "many workers, large matrices";
    const COSTS: &'static str = "two products with thin matrices, two rounds";
    const EXAMPLES: &'static [&'static str] = &["powersgd:rank=2", "powersgd:rank=4,min_rate=1,start=10"];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let is_rank = |rank: &u16| (1..=Self::MAX_RANK).contains(rank);
        let min_rate = keys.number::<NonZeroU32>("min_rate", POSITIVE, |_| true)?;
        let range = "a whole number from 0 to 18446744073709551615";
        Ok(Self {
            rank: keys.number("rank", "a whole number from 1 to 256", is_rank)?.unwrap_or(1),
            min_rate: min_rate.map_or(Self::MIN_RATE, NonZeroU32::get),
            start: keys.number("start", range, |_| true)?.unwrap_or(0),
        })
    }
}

impl Described for PowerSgd {
    fn name(&self) -> &'static str {
        "powersgd"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        out.always("rank", self.rank)?;
        out.unless(self.min_rate == Self::MIN_RATE, "min_rate", self.min_rate)?;
        out.unless(self.start == 0, "start", self.start)
    }

    fn default_memory(&self) -> MemoryChoice {
        MemoryChoice::ErrorFeedback
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        (!keeps).then_some("memory=none: powersgd is biased, and keeps there where the next step begins")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(SUMMED)
    }
}
