//! `qsgd`

use super::{Cutoff, EntropyChoice, LevelBits, LevelsFields, Norm, Qsgd};
use crate::codec::{Body, Described, Spelled};
use crate::coding::values::Rounding;
use crate::keys::{Keys, MemoryChoice, POSITIVE, Printer, SpecError, Words, with_unit_keys};
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

const NORM: Words<Norm> = Words { words: &["max", "l2"], values: &[Norm::Max, Norm::L2] };
const ENTROPY: Words<EntropyChoice> = Words {
    words: &["auto", "fixed", "elias", "rans", "adaptive"],
    values: &[
        EntropyChoice::Auto,
        EntropyChoice::Fixed,
        EntropyChoice::Elias,
        EntropyChoice::Rans,
        EntropyChoice::Adaptive,
    ],
};

impl LevelBits {
    /// The words of the key `bits=`.
    pub(crate) const WORDS: Words<Self> = Words {
        words: &["ternary", "2", "3", "4", "5", "6", "7", "8"],
        values: &[
            Self::Ternary,
            Self::Bits(2),
            Self::Bits(3),
            Self::Bits(4),
            Self::Bits(5),
            Self::Bits(6),
            Self::Bits(7),
            Self::Bits(8),
        ],
    };
}

impl LevelBits {
    /// What `bits=` or `levels=` says; the levels of four bits where neither does.
    pub(crate) fn parse<'a>(keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        let bits = keys.word("bits", &Self::WORDS)?;
        let range = "a whole number from 1 to 127";
        let levels = keys.value("levels", range, |value| Self::of_levels(value.parse().ok()?))?;
        if bits.is_some() && levels.is_some() {
            return Err(SpecError::Conflict(
                "levels: bits says how many levels there are as well; give one of the two",
            ));
        }
        Ok(bits.or(levels).unwrap_or(Self::Bits(4)))
    }

    pub(crate) fn print(self, out: &mut Printer<'_, '_>) -> fmt::Result {
        match self.counted() {
            Some(levels) => out.always("levels", levels),
            None => out.always("bits", Self::WORDS.word(self)),
        }
    }
}

impl Cutoff {
    /// What `sigmas=` says.
    pub(crate) fn parse<'a>(keys: &Keys<'a>) -> Result<Option<Self>, SpecError<'a>> {
        keys.value("sigmas", "a number above 0", |value| Self::new(value.parse().ok()?))
    }

    pub(crate) fn print(cutoff: Option<Self>, out: &mut Printer<'_, '_>) -> fmt::Result {
        cutoff.map_or(Ok(()), |cutoff| out.always("sigmas", cutoff.sigmas()))
    }
}

impl Spelled for Qsgd {
    const NAMES: &'static [(&'static str, Option<CodecId>)] = &[("qsgd", Some(Self::ID))];
    const KIND: Kind = LevelsFields::KIND;
    const KEYS: &'static str = with_unit_keys!("bits levels bucket norm sigmas entropy rounding");
    const SUMMARY: &'static str = "every coordinate rounded to one of a few levels of its bucket's norm";
    const SUITS: &'static str = "links of medium speed, and no state between steps";
    const COSTS: &'static str = "random draws for rounding";
    const EXAMPLES: &'static [&'static str] = &[
        "qsgd:bits=4",
        "qsgd:bits=2,bucket=128",
        "qsgd:bits=ternary,bucket=128,norm=l2,entropy=elias",
        "qsgd:bits=8,entropy=rans",
        "qsgd:bits=4,rounding=nearest",
        "qsgd:bits=3,entropy=fixed",
        "qsgd:levels=5,bucket=64",
        "qsgd:bits=ternary,bucket=4294967295,sigmas=2.5,unit=tensor",
    ];

    fn parse<'a>(_name: &str, keys: &Keys<'a>) -> Result<Self, SpecError<'a>> {
        Ok(Self {
            bits: LevelBits::parse(keys)?,
            bucket: keys.number("bucket", POSITIVE, |_| true)?.unwrap_or(Self::DEFAULT_BUCKET),
            norm: keys.word("norm", &NORM)?.unwrap_or_default(),
            entropy: keys.word("entropy", &ENTROPY)?.unwrap_or_default(),
            rounding: keys.word("rounding", &Rounding::WORDS)?.unwrap_or_default(),
            cutoff: Cutoff::parse(keys)?,
        })
    }
}

impl Described for Qsgd {
    fn name(&self) -> &'static str {
        "qsgd"
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        self.bits.print(out)?;
        out.unless(self.bucket == Self::DEFAULT_BUCKET, "bucket", self.bucket)?;
        out.unless(self.norm == Norm::default(), "norm", NORM.word(self.norm))?;
        Cutoff::print(self.cutoff, out)?;
        out.unless(self.entropy == EntropyChoice::default(), "entropy", ENTROPY.word(self.entropy))?;
        out.unless(self.rounding == Rounding::default(), "rounding", Rounding::WORDS.word(self.rounding))
    }

    fn default_memory(&self) -> MemoryChoice {
        if self.proves_contraction() { MemoryChoice::ErrorFeedback } else { MemoryChoice::None }
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        if self.cutoff.is_some() && self.norm != Norm::Max {
            return Some("sigmas: it cuts off the largest magnitude; use norm=max");
        }
        (keeps && !self.proves_contraction()).then_some(
            "memory=ef: qsgd is a proven contraction only without sigmas, with rounding=nearest and norm=max, or norm=l2 with bucket < 4·levels²",
        )
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        None
    }
}
