//! `maxnorm`

use super::MaxNorm;
use crate::codec::{Body, Described, SUMMED, Spelled};
use crate::codecs::qsgd::{Cutoff, LevelBits, LevelsFields};
use crate::coding::values::Rounding;
use crate::gradient::density::Density;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

impl MaxNorm {
    /// What `bits=` or `levels=` says of one scale, or `bits=` of two.
    fn parse_scales<'a>(keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        if !keys.text("bits").is_some_and(|text| text.contains('+')) {
            return match LevelBits::parse(keys)? {
                LevelBits::Ternary => Err(SpecError::Conflict(
                    "bits=ternary: maxnorm sums levels in fields, which are as narrow with bits=2",
                )),
                bits @ (LevelBits::Bits(_) | LevelBits::Levels(_)) => Ok(Self::of(bits)),
            };
        }
        if keys.text("levels").is_some() {
            return Err(SpecError::Conflict("levels: two scales are given in bits; give one of the two"));
        }
        let range = "2 to 8 bits; with a second scale, + and up to 16 bits, as in 4+8";
        let bits = keys.list::<u8, 2>("bits", range, |bits| bits.parse().ok())?;
        let two = bits.and_then(|bits| Self::new(*bits.first()?)?.with_fine_bits(*bits.get(1)?));
        two.ok_or(SpecError::Conflict("bits: two scales are 2 to 8 bits, and more than these but at most 16"))
    }

    /// Values of a block are not scaled, so sending one is biased anyway, and takes error feedback.
    fn default_rounding(density: Option<Density>) -> Rounding {
        if density.is_some() { Rounding::Nearest } else { Rounding::Stochastic }
    }
}

impl Spelled for MaxNorm {
    /// Its frames are those of `qsgd`.
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("maxnorm", None)];
    const KIND: Kind = LevelsFields::KIND;
    const KEYS: &'static str = with_unit_keys!("bits levels sigmas density warmup rounding");
    const SUMMARY: &'static str = "levels of a norm that all workers share, summed as whole numbers";
    const SUITS: &'static str = "all-reduce of integers";
    const COSTS: &'static str = "two rounds, the first one small; a third with two scales";
    const EXAMPLES: &'static [&'static str] = &[
        "maxnorm:bits=4",
        "maxnorm:bits=8,unit=tensor",
        "maxnorm:levels=5",
        "maxnorm:bits=4,rounding=nearest",
        "maxnorm:bits=4+8",
        "maxnorm:bits=4,density=0.1",
        "maxnorm:bits=2,sigmas=2.5,unit=tensor",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let density = keys.density("density")?;
        if density.is_none() && keys.text("warmup").is_some() {
            return Err(SpecError::Conflict("warmup: it changes the density, and none is given"));
        }
        let cutoff = Cutoff::parse(keys)?;
        if density.is_some() && cutoff.is_some() {
            return Err(SpecError::Conflict(
                "sigmas: with a density, what a step does not send has to be kept, and what is cut off cannot be",
            ));
        }
        let rounding = keys.word("rounding", &Rounding::WORDS)?;
        let rounding = rounding.unwrap_or(Self::default_rounding(density));
        Ok(Self { density, rounding, cutoff, ..Self::parse_scales(keys)? })
    }

    fn with_density(self, density: Density) -> Self {
        if self.density.is_some() { self.with_density(density) } else { self }
    }
}

impl Described for MaxNorm {
    fn name(&self) -> &'static str {
        "maxnorm"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        match self.fine {
            Some(fine) => out.always("bits", format_args!("{}+{fine}", self.bits.width()))?,
            None => self.bits.print(out)?,
        }
        Cutoff::print(self.cutoff, out)?;
        self.density.map_or(Ok(()), |density| out.always("density", density))?;
        let is_default = self.rounding == Self::default_rounding(self.density);
        out.unless(is_default, "rounding", Rounding::WORDS.word(self.rounding))
    }

    fn default_memory(&self) -> MemoryChoice {
        if self.keeps() { MemoryChoice::ErrorFeedback } else { MemoryChoice::None }
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        (keeps && !self.keeps())
            .then_some("memory=ef: maxnorm is a contraction only with rounding=nearest, and without sigmas")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(SUMMED)
    }

    fn density(&self) -> Option<Density> {
        self.density
    }
}
