//! The one spelling of a codec, in Rust, on the command line and in files: `topk:density=0.01,values=q8`.

#[cfg(feature = "alloc")]
mod memory;
#[cfg(feature = "alloc")]
pub(crate) mod rules;
pub(crate) mod schedule;

use crate::codec::PacketSize;
#[cfg(feature = "std")]
use crate::codec::own;
use crate::gradient::layout::{LayoutRef, TensorRef};
use crate::gradient::unit::Unit;
use crate::keys::{Keys, MEMORY, MemoryChoice, Printer, SpecError, Words};
use crate::registry::NAMES;
use crate::registry::codecs::Codec;
use crate::spec::schedule::warm_up;
use core::fmt;

/// What the names of codecs of other crates begin with.
const OF_OTHERS: &str = "x:";

const UNIT: Words<bool> = Words { words: &["model", "tensor"], values: &[false, true] };

/// How the layout is cut into units: the keys `unit=`, `dense_below=` and `dense_1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct UnitPolicy {
    /// Every tensor is a unit (`unit=tensor`); otherwise neighbours that are treated alike are one unit
    /// (`unit=model`).
    pub per_tensor: bool,
    /// Tensors with fewer elements are sent dense.
    pub dense_below: usize,
    /// Tensors of at most one dimension are sent dense.
    pub dense_1d: bool,
}

impl UnitPolicy {
    /// The units of a layout, in order; identifiers count from 0. A layout without tensors is one empty unit.
    pub fn units<'l>(self, layout: &'l LayoutRef<'_>) -> impl Iterator<Item = Unit> + 'l {
        let mut tensors = layout.tensors().peekable();
        let mut id = 0;
        core::iter::from_fn(move || {
            let mut unit = match tensors.next() {
                Some(tensor) => Unit {
                    id,
                    start: tensor.offset,
                    len: tensor.checked_len().unwrap_or(0),
                    dense: self.is_dense(tensor.shape, tensor.checked_len().unwrap_or(0)),
                },
                None if id == 0 => Unit::whole(0),
                None => return None,
            };
            id += 1;
            let joins = |tensor: &TensorRef<'_>| {
                !self.per_tensor
                    && self.is_dense(tensor.shape, tensor.checked_len().unwrap_or(0)) == unit.dense
            };
            let mut len = unit.len;
            while let Some(tensor) = tensors.next_if(joins) {
                len += tensor.checked_len().unwrap_or(0);
            }
            unit.len = len;
            Some(unit)
        })
    }

    pub(crate) fn is_dense(&self, shape: &[usize], len: usize) -> bool {
        len < self.dense_below || (self.dense_1d && shape.len() <= 1)
    }
}

/// A codec with its memory and its units, as a spelling gives them.
///
/// # Examples
/// ```
/// use gradwire::{Codec, Spec};
/// use gradwire::state::MemoryChoice;
/// let spec = Spec::parse("topk:density=0.01,values=q8").unwrap();
/// assert!(matches!(spec.codec, Codec::Gather(_)));
/// assert_eq!(spec.memory, MemoryChoice::ErrorFeedback);
/// assert_eq!(spec.to_string(), "topk:density=0.01,values=q8");
///
/// let error = Spec::parse("topk:density=7").unwrap_err();
/// assert_eq!(error.to_string(), "density=7: expected a fraction from 1e-9 to 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// The codec.
    pub codec: Codec,
    /// Its memory.
    pub memory: MemoryChoice,
    /// What is left of the residual after each step that holds: the key `decay=`, above 0, at most 1. See
    /// [`Memory::decay`](crate::Memory::decay). An exchange applies it; who encodes without one calls that.
    pub decay: f32,
    /// How the layout is cut.
    pub units: UnitPolicy,
    /// Epochs in which the density falls to that of the codec: the key `warmup=`.
    pub warmup: u32,
    /// Largest packet, if a gradient is to be sent as [several frames](crate::Gather::packets): the key
    /// `max_packet_bytes=`.
    pub packets: Option<PacketSize>,
}

impl Spec {
    /// Names of the codecs, also of those of other crates that are registered in this process.
    #[must_use]
    pub fn names() -> &'static [&'static str] {
        #[cfg(feature = "std")]
        return own::all_names(NAMES);
        #[cfg(not(feature = "std"))]
        NAMES
    }

    /// Name and keys of a spelling, at the `:` between them. The name of a codec of another crate begins with
    /// `x:`.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(gradwire::Spec::split("topk:density=0.01"), ("topk", "density=0.01"));
    /// assert_eq!(gradwire::Spec::split("x:blocks:len=64"), ("x:blocks", "len=64"));
    /// ```
    #[must_use]
    pub fn split(spelling: &str) -> (&str, &str) {
        let start = if spelling.starts_with(OF_OTHERS) { OF_OTHERS.len() } else { 0 };
        let end = spelling[start..].find(':').map_or(spelling.len(), |at| start + at);
        (&spelling[..end], spelling.get(end + 1..).unwrap_or(""))
    }

    /// A codec with the memory that it has by default, the whole model in one unit.
    #[must_use]
    pub fn new(codec: Codec) -> Self {
        Self {
            codec,
            memory: codec.default_memory(),
            decay: 1.0,
            units: default_units(&codec),
            warmup: codec.default_warmup(),
            packets: None,
        }
    }

    /// Reads a spelling: a name, then `:key=value`, and further pairs after commas.
    ///
    /// # Errors
    /// [`SpecError`], which names the key and what is allowed.
    pub fn parse(spelling: &str) -> Result<Self, SpecError<'_>> {
        let (name, pairs) = Self::split(spelling);
        let (codec, keys) = Codec::parse(name, pairs)
            .unwrap_or(Err(SpecError::UnknownCodec { name, known: Self::names() }))?;
        let warmup = keys.number("warmup", "a whole number from 0 to 4294967295", |_| true)?;
        let decay =
            keys.number("decay", "a number above 0, at most 1", |decay: &f32| *decay > 0.0 && *decay <= 1.0)?;
        let packets = keys.value("max_packet_bytes", "a whole number from 64 to 65536", |value| {
            value.parse().ok().and_then(PacketSize::new)
        })?;
        let spec = Self {
            codec,
            memory: keys.word("memory", &MEMORY)?.unwrap_or(codec.default_memory()),
            decay: decay.unwrap_or(1.0),
            units: units(&keys, default_units(&codec))?,
            warmup: warmup.unwrap_or(codec.default_warmup()),
            packets,
        };
        spec.conflict().map_or(Ok(spec), |why| Err(SpecError::Conflict(why)))
    }

    /// The codec as it is in an epoch, counted from 0: at the density of the [warm-up](warm_up).
    #[must_use]
    pub fn codec_in(&self, epoch: u64) -> Codec {
        match self.codec.density() {
            Some(density) => self.codec.with_density(warm_up(density, self.warmup, epoch)),
            None => self.codec,
        }
    }

    /// Why these keys cannot be used together; `None` if they can.
    #[must_use]
    pub fn conflict(&self) -> Option<&'static str> {
        let packets = || self.packets.and_then(|_| self.codec.packet_conflict());
        let has_residual = !matches!(self.memory, MemoryChoice::None | MemoryChoice::State);
        let decays_nothing = self.decay != 1.0 && !has_residual;
        let decay =
            || decays_nothing.then_some("decay: nothing that is not sent is kept, so nothing can decay");
        self.codec.conflict(self.memory).or_else(decay).or_else(packets)
    }
}

fn default_units(codec: &Codec) -> UnitPolicy {
    let (per_tensor, dense_1d) = (codec.default_per_tensor(), codec.default_dense_1d());
    UnitPolicy { per_tensor, dense_1d, dense_below: 0 }
}

fn units<'a>(keys: &Keys<'a>, default: UnitPolicy) -> Result<UnitPolicy, SpecError<'a>> {
    Ok(UnitPolicy {
        per_tensor: keys.word("unit", &UNIT)?.unwrap_or(default.per_tensor),
        dense_below: keys.number("dense_below", "a whole number", |_| true)?.unwrap_or(default.dense_below),
        dense_1d: keys.flag("dense_1d")?.unwrap_or(default.dense_1d),
    })
}

/// Prints the spelling: the name, the main parameters, and every other key that differs from its default.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.codec.name())?;
        let mut out = Printer { f, separator: ':' };
        self.codec.print(&mut out)?;
        out.unless(self.warmup == self.codec.default_warmup(), "warmup", self.warmup)?;
        out.unless(self.memory == self.codec.default_memory(), "memory", MEMORY.word(self.memory))?;
        out.unless(self.decay == 1.0, "decay", self.decay)?;
        let per_tensor = self.units.per_tensor;
        out.unless(per_tensor == self.codec.default_per_tensor(), "unit", UNIT.word(per_tensor))?;
        out.unless(self.units.dense_below == 0, "dense_below", self.units.dense_below)?;
        let dense_1d = self.units.dense_1d;
        out.unless(dense_1d == self.codec.default_dense_1d(), "dense_1d", dense_1d)?;
        self.packets.map_or(Ok(()), |size| out.always("max_packet_bytes", size))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::TensorRef;
    use std::{string::ToString, vec::Vec};

    #[test]
    fn spellings_print_as_they_were_read() {
        for spelling in [
            "none",
            "f16",
            "bf16:memory=ef",
            "topk:density=0.01",
            "topk:density=0.001,index=rice,values=q4,memory=none,unit=tensor,dense_below=100,dense_1d=true",
            "threshold:value=0.5,values=bf16",
            "topk:density=0.01,values=q4,rounding=stochastic",
            "dgc:density=0.001,momentum=0,values=q2,rounding=stochastic",
            "sidco:density=0.01,stages=2,values=q8,rounding=stochastic",
            "qsgd:bits=4",
            "qsgd:bits=ternary,bucket=128,norm=l2,entropy=elias",
            "qsgd:bits=4,rounding=nearest",
            "randomk:density=0.000000001,estimator=unbiased",
            "randomk:density=0.01,block=run",
            "randomk:density=0.01,block=tile,estimator=unbiased,unit=model",
            "none:max_packet_bytes=65536",
            "topk:density=0.01,unit=tensor,max_packet_bytes=64",
            "topk:density=0.01,decay=0.95",
            "efsign:decay=0.5,unit=model",
            "maxnorm:bits=4",
            "maxnorm:bits=8,unit=tensor,dense_1d=true",
            "powersgd:rank=1",
            "powersgd:rank=256,min_rate=1,start=18446744073709551615,unit=tensor",
        ] {
            assert_eq!(Spec::parse(spelling).unwrap().to_string(), spelling);
        }
    }

    #[test]
    fn defaults_may_be_spelled_out() {
        let spelled =
            "topk:density=0.01,index=auto,values=f32,memory=ef,unit=model,dense_below=0,dense_1d=false";
        assert_eq!(Spec::parse(spelled), Spec::parse("topk"));
        assert_eq!(
            Spec::parse("qsgd:bits=4,bucket=512,norm=max,entropy=auto,rounding=stochastic,memory=none"),
            Spec::parse("qsgd")
        );
    }

    #[test]
    fn biased_codecs_have_error_feedback_by_default_and_unbiased_ones_none() {
        for (spelling, memory) in [
            ("none", MemoryChoice::None),
            ("bf16", MemoryChoice::None),
            ("topk", MemoryChoice::ErrorFeedback),
            ("threshold:value=1", MemoryChoice::ErrorFeedback),
            ("qsgd", MemoryChoice::None),
            ("qsgd:rounding=nearest", MemoryChoice::ErrorFeedback),
            ("randomk", MemoryChoice::ErrorFeedback),
            ("powersgd", MemoryChoice::ErrorFeedback),
        ] {
            assert_eq!(Spec::parse(spelling).unwrap().memory, memory, "{spelling}");
        }
    }

    #[test]
    fn unbiased_randomk_has_no_error_feedback_by_default() {
        let spec = Spec::parse("randomk:estimator=unbiased").unwrap();
        assert_eq!(spec.memory, MemoryChoice::None);
    }

    #[test]
    fn an_unknown_codec_is_answered_with_the_names_of_all() {
        let error = Spec::parse("top").unwrap_err().to_string();
        assert!(error.starts_with("unknown codec 'top': expected one of none, f16, bf16, topk, "), "{error}");
        assert!(Spec::names().iter().all(|name| error.contains(name)), "{error}");
    }

    #[test]
    fn bad_spellings_name_the_key_and_what_is_allowed() {
        for (spelling, message) in [
            ("topk:density=7", "density=7: expected a fraction from 1e-9 to 1"),
            ("topk:density=nan", "density=nan: expected a fraction from 1e-9 to 1"),
            ("topk:values=q3", "values=q3: expected one of f32 f16 bf16 q8 q4 q2 sign"),
            (
                "topk:bits=4",
                "topk has no key 'bits': expected one of density chunk warmup index values rounding memory decay unit dense_below dense_1d max_packet_bytes",
            ),
            ("topk:", "topk"),
            (
                "topk:rounding=stochastic",
                "rounding=stochastic: only values=q8, q4 and q2 are rounded to a codebook",
            ),
            ("topk:density=0.1,density=0.1", "key 'density' is given twice"),
            ("threshold", "key 'value' is missing"),
            ("threshold:value=-1", "value=-1: expected a finite number, not negative"),
            ("qsgd:bits=9", "bits=9: expected one of ternary 2 3 4 5 6 7 8"),
            ("qsgd:max_packet_bytes=63", "max_packet_bytes=63: expected a whole number from 64 to 65536"),
            (
                "qsgd:max_packet_bytes=65537",
                "max_packet_bytes=65537: expected a whole number from 64 to 65536",
            ),
            ("topk:decay=0", "decay=0: expected a number above 0, at most 1"),
            ("topk:decay=1.5", "decay=1.5: expected a number above 0, at most 1"),
            ("qsgd:decay=0.5", "decay: nothing that is not sent is kept, so nothing can decay"),
            ("dpsgd:decay=0.5", "dpsgd has no key 'decay': expected one of memory max_packet_bytes"),
            ("powersgd:rank=257", "rank=257: expected a whole number from 1 to 256"),
            ("powersgd:min_rate=0", "min_rate=0: expected a whole number from 1 to 4294967295"),
            (
                "powersgd:memory=none",
                "memory=none: powersgd is biased, and keeps there where the next step begins",
            ),
            ("qsgd:bucket=0", "bucket=0: expected a whole number from 1 to 4294967295"),
        ] {
            match Spec::parse(spelling) {
                Err(error) => assert_eq!(error.to_string(), message),
                Ok(spec) => assert!(spec.to_string().starts_with(message), "{spelling}"),
            }
        }
    }

    #[test]
    fn memories_that_would_diverge_are_conflicts() {
        for spelling in [
            "none:memory=ef",
            "randomk:estimator=unbiased,memory=ef",
            "maxnorm:memory=ef",
            "maxnorm:bits=ternary",
            "qsgd:memory=ef",
            "qsgd:bits=2,norm=l2,rounding=nearest,memory=ef",
            "qsgd:bits=2,norm=l2,rounding=nearest",
            "topk:values=q4,rounding=stochastic,memory=ef",
            "threshold:value=1,values=q2,rounding=stochastic",
            "dgc:values=q8,rounding=stochastic",
        ] {
            let refused = matches!(Spec::parse(spelling), Err(SpecError::Conflict(_)));
            let has_memory =
                Spec::parse(spelling).is_ok_and(|spec| spec.memory == MemoryChoice::ErrorFeedback);
            assert!(refused || !has_memory, "{spelling}");
        }
        assert!(Spec::parse("qsgd:bits=8,bucket=128,norm=l2,rounding=nearest,memory=ef").is_ok());
    }

    #[test]
    fn packets_of_what_cannot_be_cut_are_conflicts() {
        for (codec, why) in [
            ("topk:index=bitmap", "index=auto"),
            ("topk:index=chunks", "counts the entries"),
            ("randomk", "summed"),
            ("dpsgd", "gossip"),
            ("powergossip", "gossip"),
            ("choco", "gossip"),
        ] {
            let spelling =
                std::format!("{codec}{}max_packet_bytes=1200", if codec.contains(':') { ',' } else { ':' });
            let error = Spec::parse(&spelling).unwrap_err();
            assert!(matches!(error, SpecError::Conflict(text) if text.contains(why)), "{error}");
        }
    }

    #[test]
    fn units_merge_neighbours_that_are_treated_alike() {
        let shapes: [(&[usize], usize); 4] = [(&[4, 4], 0), (&[4], 16), (&[4], 20), (&[8, 4], 24)];
        let tensors = shapes.map(|(shape, offset)| TensorRef { name: "t", shape, offset });
        let layout = LayoutRef::new(&tensors).unwrap();
        let units = |policy: UnitPolicy| -> Vec<_> {
            policy.units(&layout).map(|unit| (unit.id, unit.start, unit.len, unit.dense)).collect()
        };
        assert_eq!(units(UnitPolicy::default()), [(0, 0, 56, false)]);
        let per_tensor = UnitPolicy { per_tensor: true, ..Default::default() };
        assert_eq!(
            units(per_tensor),
            [(0, 0, 16, false), (1, 16, 4, false), (2, 20, 4, false), (3, 24, 32, false)]
        );
        let dense_1d = UnitPolicy { dense_1d: true, ..Default::default() };
        assert_eq!(units(dense_1d), [(0, 0, 16, false), (1, 16, 8, true), (2, 24, 32, false)]);
        let empty = LayoutRef::new(&[]).unwrap();
        assert_eq!(UnitPolicy::default().units(&empty).collect::<Vec<_>>(), [Unit::whole(0)]);
    }
}
