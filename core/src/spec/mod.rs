//! The one spelling of a codec, in Rust, on the command line and in files: `topk:density=0.01,values=q8`.

pub(crate) mod schedule;

use crate::codecs::dense::Dense;
use crate::codecs::dgc::Dgc;
use crate::codecs::dpsgd::Dpsgd;
use crate::codecs::maxnorm::MaxNorm;
use crate::codecs::powersgd::PowerSgd;
use crate::codecs::qsgd::{EntropyChoice, LevelBits, Norm, Qsgd, Rounding};
use crate::codecs::randomk::{Estimator, RandomK};
use crate::codecs::sidco::{Fit, Sidco};
use crate::codecs::threshold::Threshold;
use crate::codecs::topk::TopK;
use crate::coding::index::IndexChoice;
use crate::coding::values::ValueChoice;
use crate::frame::packets::PacketSize;
use crate::gather::EncodeUnit;
use crate::gradient::density::Density;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::momentum::Momentum;
use crate::registry::{Codec, GatherCodec, GossipCodec, LinearCodec};
use crate::spec::schedule::warm_up;
use core::fmt;
use core::num::NonZeroU32;

/// What a codec keeps back: the key `memory=`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryChoice {
    /// Nothing: what is not sent is lost.
    None,
    /// Error feedback: what is not sent is added to the next gradient.
    ErrorFeedback,
    /// Error feedback behind momentum of the worker's own, as `dgc` has it.
    Momentum,
}

/// How the layout is cut into units: the keys `unit=`, `dense_below=` and `dense_1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct UnitPolicy {
    /// Every tensor is a unit (`unit=tensor`); else neighbours that are treated alike are one unit (`unit=model`).
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
            let joins = |tensor: &crate::TensorRef<'_>| {
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

    fn is_dense(&self, shape: &[usize], len: usize) -> bool {
        len < self.dense_below || (self.dense_1d && shape.len() <= 1)
    }
}

/// A codec with its memory and its units: what a spelling says.
///
/// # Examples
/// ```
/// use gradwire::{Codec, MemoryChoice, Spec};
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
    /// What it keeps back.
    pub memory: MemoryChoice,
    /// How the layout is cut.
    pub units: UnitPolicy,
    /// Epochs in which the density falls to that of the codec: the key `warmup=`.
    pub warmup: u32,
    /// Largest packet, where a gradient is to be sent as [several frames](crate::Gather::packets): the key
    /// `max_packet_bytes=`.
    pub packets: Option<PacketSize>,
}

/// Why a spelling was refused. Displays the key and what is allowed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError<'a> {
    /// No codec of that name.
    UnknownCodec(&'a str),
    /// The codec has no such key.
    UnknownKey {
        /// The codec.
        codec: &'static str,
        /// The key.
        key: &'a str,
        /// Keys that it has.
        known: &'static str,
    },
    /// A key was given twice.
    DuplicateKey(&'a str),
    /// A key that has no default was not given.
    MissingKey(&'static str),
    /// The value is not one that the key allows.
    BadValue {
        /// The key.
        key: &'a str,
        /// The value.
        value: &'a str,
        /// What is allowed.
        expected: Expected,
    },
    /// Keys that are each allowed, but not together; the text says why.
    Conflict(&'static str),
}

/// What a key allows.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A number, in words.
    Number(&'static str),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(range) => f.write_str(range),
            Self::OneOf(words) => {
                f.write_str("one of")?;
                words.iter().try_for_each(|word| write!(f, " {word}"))
            }
        }
    }
}

impl fmt::Display for SpecError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCodec(name) => write!(f, "unknown codec '{name}': expected one of {}", Spec::CODECS),
            Self::UnknownKey { codec, key, known } => {
                write!(f, "{codec} has no key '{key}': expected one of {known}")
            }
            Self::DuplicateKey(key) => write!(f, "key '{key}' is given twice"),
            Self::MissingKey(key) => write!(f, "key '{key}' is missing"),
            Self::BadValue { key, value, expected } => write!(f, "{key}={value}: expected {expected}"),
            Self::Conflict(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for SpecError<'_> {}

/// The words of a key, in the order of its values.
struct Words<T: 'static> {
    words: &'static [&'static str],
    values: &'static [T],
}

impl<T: Copy + PartialEq> Words<T> {
    fn parse<'a>(&self, key: &'a str, value: &'a str) -> Result<T, SpecError<'a>> {
        let found = self.words.iter().position(|&word| word == value);
        let expected = Expected::OneOf(self.words);
        found.map(|i| self.values[i]).ok_or(SpecError::BadValue { key, value, expected })
    }

    fn word(&self, value: T) -> &'static str {
        self.values.iter().position(|&other| other == value).map_or("", |i| self.words[i])
    }
}

const INDEX: Words<IndexChoice> = Words {
    words: &["auto", "raw", "bitmap", "rice", "context", "context-max", "small", "smallest"],
    values: &[
        IndexChoice::Auto,
        IndexChoice::Raw,
        IndexChoice::Bitmap,
        IndexChoice::Rice,
        IndexChoice::Context,
        IndexChoice::ContextMax,
        IndexChoice::Small,
        IndexChoice::Smallest,
    ],
};
const VALUES: Words<ValueChoice> = Words {
    words: &["f32", "f16", "bf16", "q8", "q4", "q2"],
    values: &[
        ValueChoice::F32,
        ValueChoice::F16,
        ValueChoice::Bf16,
        ValueChoice::Q8,
        ValueChoice::Q4,
        ValueChoice::Q2,
    ],
};
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
const ROUNDING: Words<Rounding> =
    Words { words: &["stochastic", "nearest"], values: &[Rounding::Stochastic, Rounding::Nearest] };
const ESTIMATOR: Words<Estimator> =
    Words { words: &["contraction", "unbiased"], values: &[Estimator::Contraction, Estimator::Unbiased] };
const MEMORY: Words<MemoryChoice> = Words {
    words: &["none", "ef", "momentum"],
    values: &[MemoryChoice::None, MemoryChoice::ErrorFeedback, MemoryChoice::Momentum],
};
const FIT: Words<Fit> =
    Words { words: &["exp", "gamma", "gp"], values: &[Fit::Exponential, Fit::Gamma, Fit::Pareto] };
const CAP: Words<bool> = Words { words: &["none", "exact"], values: &[false, true] };
const UNIT: Words<bool> = Words { words: &["model", "tensor"], values: &[false, true] };
const FLAG: Words<bool> = Words { words: &["false", "true"], values: &[false, true] };
const BITS: Words<LevelBits> = Words {
    words: &["ternary", "2", "3", "4", "5", "6", "7", "8"],
    values: &[
        LevelBits::Ternary,
        LevelBits::Bits(2),
        LevelBits::Bits(3),
        LevelBits::Bits(4),
        LevelBits::Bits(5),
        LevelBits::Bits(6),
        LevelBits::Bits(7),
        LevelBits::Bits(8),
    ],
};

/// The paper's parameters of `dgc`, where none are given.
const DGC_DENSITY: f64 = 0.001;
const DGC_MOMENTUM: f32 = 0.9;
const DGC_WARMUP: u32 = 4;

fn number<'a, T: core::str::FromStr>(
    key: &'a str,
    value: &'a str,
    range: &'static str,
    accept: impl FnOnce(&T) -> bool,
) -> Result<T, SpecError<'a>> {
    let expected = Expected::Number(range);
    value.parse().ok().filter(accept).ok_or(SpecError::BadValue { key, value, expected })
}

fn density<'a>(key: &'a str, value: &'a str) -> Result<Density, SpecError<'a>> {
    let expected = Expected::Number("a fraction from 1e-9 to 1");
    let density = value.parse().ok().and_then(Density::new);
    density.ok_or(SpecError::BadValue { key, value, expected })
}

/// A spelling as it is read: every key that some codec knows, where given.
#[derive(Clone, Copy, Default)]
struct Keys {
    density: Option<Density>,
    index: Option<IndexChoice>,
    values: Option<ValueChoice>,
    threshold: Option<f32>,
    bits: Option<LevelBits>,
    bucket: Option<NonZeroU32>,
    norm: Option<Norm>,
    entropy: Option<EntropyChoice>,
    rounding: Option<Rounding>,
    estimator: Option<Estimator>,
    memory: Option<MemoryChoice>,
    momentum: Option<f32>,
    nesterov: bool,
    clip: Option<f32>,
    sample: Option<Density>,
    rank: Option<u16>,
    min_rate: Option<NonZeroU32>,
    start: Option<u64>,
    warmup: Option<u32>,
    fit: Option<Fit>,
    stages: Option<NonZeroU32>,
    is_capped: bool,
    dense_1d: Option<bool>,
    units: UnitPolicy,
    packets: Option<PacketSize>,
}

impl Keys {
    /// Reads `key=value` pairs; `known` lists the keys of this codec, separated by spaces.
    fn parse<'a>(codec: &'static str, known: &'static str, pairs: &'a str) -> Result<Self, SpecError<'a>> {
        let mut keys = Self::default();
        let split = |pair: &'a str| pair.split_once('=').unwrap_or((pair, "true"));
        for (before, pair) in pairs.split(',').filter(|_| !pairs.is_empty()).enumerate() {
            let (key, value) = split(pair);
            if !known.split(' ').any(|name| name == key) {
                return Err(SpecError::UnknownKey { codec, key, known });
            }
            if pairs.split(',').take(before).any(|other| split(other).0 == key) {
                return Err(SpecError::DuplicateKey(key));
            }
            keys.set(key, value)?;
        }
        Ok(keys)
    }

    fn set<'a>(&mut self, key: &'a str, value: &'a str) -> Result<(), SpecError<'a>> {
        match key {
            "density" => self.density = Some(density(key, value)?),
            "index" => self.index = Some(INDEX.parse(key, value)?),
            "values" => self.values = Some(VALUES.parse(key, value)?),
            "value" => {
                let range = "a finite number, not negative";
                self.threshold = Some(number(key, value, range, |v: &f32| v.is_finite() && *v >= 0.0)?);
            }
            "bits" => self.bits = Some(BITS.parse(key, value)?),
            "bucket" => {
                self.bucket = Some(number(key, value, "a whole number from 1 to 4294967295", |_| true)?);
            }
            "norm" => self.norm = Some(NORM.parse(key, value)?),
            "entropy" => self.entropy = Some(ENTROPY.parse(key, value)?),
            "rounding" => self.rounding = Some(ROUNDING.parse(key, value)?),
            "estimator" => self.estimator = Some(ESTIMATOR.parse(key, value)?),
            "memory" => self.memory = Some(MEMORY.parse(key, value)?),
            "momentum" => {
                let range = "a number from 0 to below 1";
                self.momentum = Some(number(key, value, range, |m: &f32| (0.0..1.0).contains(m))?);
            }
            "nesterov" => self.nesterov = FLAG.parse(key, value)?,
            "clip" => {
                let range = "a finite number above 0";
                self.clip = Some(number(key, value, range, |v: &f32| v.is_finite() && *v > 0.0)?);
            }
            "sample" => self.sample = Some(density(key, value)?),
            "rank" => {
                let range = "a whole number from 1 to 256";
                let is_rank = |rank: &u16| (1..=PowerSgd::MAX_RANK).contains(rank);
                self.rank = Some(number(key, value, range, is_rank)?);
            }
            "min_rate" => {
                self.min_rate = Some(number(key, value, "a whole number from 1 to 4294967295", |_| true)?);
            }
            "start" => {
                let range = "a whole number from 0 to 18446744073709551615";
                self.start = Some(number(key, value, range, |_| true)?);
            }
            "fit" => self.fit = Some(FIT.parse(key, value)?),
            "stages" if value == "auto" => self.stages = None,
            "stages" => {
                let range = "auto, or a whole number from 1 to 32";
                self.stages = Some(number(key, value, range, |stages: &NonZeroU32| stages.get() <= 32)?);
            }
            "cap" => self.is_capped = CAP.parse(key, value)?,
            "warmup" => {
                self.warmup = Some(number(key, value, "a whole number from 0 to 4294967295", |_| true)?);
            }
            "max_packet_bytes" => {
                let expected = Expected::Number("a whole number from 64 to 65536");
                let size = value.parse().ok().and_then(PacketSize::new);
                self.packets = Some(size.ok_or(SpecError::BadValue { key, value, expected })?);
            }
            "unit" => self.units.per_tensor = UNIT.parse(key, value)?,
            "dense_below" => self.units.dense_below = number(key, value, "a whole number", |_| true)?,
            // `Keys::parse` lets known keys through alone.
            _ => self.dense_1d = Some(FLAG.parse(key, value)?),
        }
        Ok(())
    }

    fn density(&self) -> Density {
        self.density.unwrap_or(Density::percent())
    }

    /// How sparsifiers round to a codebook.
    fn value_rounding(&self) -> Rounding {
        self.rounding.unwrap_or(Rounding::Nearest)
    }

    fn topk(&self) -> TopK {
        TopK::new(self.density(), self.index.unwrap_or_default(), self.values.unwrap_or_default())
            .with_rounding(self.value_rounding())
    }

    fn threshold(&self) -> Result<Threshold, SpecError<'static>> {
        let value = self.threshold.ok_or(SpecError::MissingKey("value"))?;
        Threshold::new(value, self.index.unwrap_or_default(), self.values.unwrap_or_default())
            .map(|threshold| threshold.with_rounding(self.value_rounding()))
            .ok_or(SpecError::MissingKey("value"))
    }

    fn dgc(&self) -> Dgc {
        let density = self.density.or(Density::new(DGC_DENSITY)).unwrap_or(Density::percent());
        let momentum = Momentum::new(self.momentum.unwrap_or(DGC_MOMENTUM), self.nesterov);
        let dgc = Dgc::new(density, self.index.unwrap_or_default(), self.values.unwrap_or_default());
        dgc.with_momentum(momentum)
            .with_sample(self.sample.unwrap_or(Density::percent()))
            .with_clip(self.clip)
            .with_rounding(self.value_rounding())
    }

    fn sidco(&self) -> Sidco {
        Sidco::new(self.density(), self.index.unwrap_or_default(), self.values.unwrap_or_default())
            .with_fit(self.fit.unwrap_or_default())
            .with_stages(self.stages)
            .with_cap(self.is_capped)
            .with_rounding(self.value_rounding())
    }

    fn qsgd(&self) -> Qsgd {
        Qsgd::new(self.bits.unwrap_or(LevelBits::Bits(4)))
            .with_bucket(self.bucket.unwrap_or(Qsgd::DEFAULT_BUCKET))
            .with_norm(self.norm.unwrap_or_default())
            .with_entropy(self.entropy.unwrap_or_default())
            .with_rounding(self.rounding.unwrap_or_default())
    }

    fn randomk(&self) -> RandomK {
        RandomK::new(self.density(), self.estimator.unwrap_or_default())
    }

    fn powersgd(&self) -> Result<PowerSgd, SpecError<'static>> {
        let powersgd = PowerSgd::new(self.rank.unwrap_or(1)).ok_or(SpecError::MissingKey("rank"))?;
        let min_rate = self.min_rate.map_or(powersgd.min_rate(), NonZeroU32::get);
        Ok(powersgd.with_min_rate(min_rate).with_start(self.start.unwrap_or(0)))
    }

    fn maxnorm(&self) -> Result<MaxNorm, SpecError<'static>> {
        match self.bits.unwrap_or(LevelBits::Bits(4)) {
            LevelBits::Bits(bits) => MaxNorm::new(bits).ok_or(SpecError::MissingKey("bits")),
            LevelBits::Ternary => Err(SpecError::Conflict(
                "bits=ternary: maxnorm sums levels in fields, which are as narrow with bits=2",
            )),
        }
    }
}

const KEYS_CAST: &str = "memory max_packet_bytes";
const KEYS_TOPK: &str =
    "density warmup index values rounding memory unit dense_below dense_1d max_packet_bytes";
const KEYS_SIDCO: &str =
    "density warmup fit stages cap index values rounding memory unit dense_below dense_1d max_packet_bytes";
const KEYS_DGC: &str = "density warmup momentum nesterov clip sample index values rounding memory unit dense_below dense_1d max_packet_bytes";
const KEYS_THRESHOLD: &str = "value index values rounding memory unit dense_below dense_1d max_packet_bytes";
const KEYS_QSGD: &str = "bits bucket norm entropy rounding memory unit dense_below dense_1d max_packet_bytes";
const KEYS_RANDOMK: &str = "density warmup estimator memory unit dense_below dense_1d max_packet_bytes";
const KEYS_MAXNORM: &str = "bits memory unit dense_below dense_1d max_packet_bytes";
const KEYS_POWERSGD: &str = "rank min_rate start memory unit dense_below dense_1d max_packet_bytes";

impl Spec {
    /// Names of the codecs.
    pub const CODECS: &'static str =
        "none, f16, bf16, topk, threshold, qsgd, randomk, maxnorm, powersgd, dgc, sidco, dpsgd";

    /// A codec with the memory that it has by default, the whole model in one unit.
    #[must_use]
    pub fn new(codec: Codec) -> Self {
        Self {
            codec,
            memory: codec.default_memory(),
            units: default_units(&codec),
            warmup: default_warmup(&codec),
            packets: None,
        }
    }

    /// Reads a spelling: a name, then `:key=value` and further pairs behind commas.
    ///
    /// # Errors
    /// [`SpecError`], which names the key and what is allowed.
    pub fn parse(spelling: &str) -> Result<Self, SpecError<'_>> {
        let (name, pairs) = spelling.split_once(':').unwrap_or((spelling, ""));
        let dense = |dense| Codec::Gather(GatherCodec::Dense(dense));
        let (keys, codec) = match name {
            "none" => (Keys::parse("none", KEYS_CAST, pairs)?, dense(Dense::F32)),
            "f16" => (Keys::parse("f16", KEYS_CAST, pairs)?, dense(Dense::F16)),
            "bf16" => (Keys::parse("bf16", KEYS_CAST, pairs)?, dense(Dense::Bf16)),
            "topk" => {
                let keys = Keys::parse("topk", KEYS_TOPK, pairs)?;
                (keys, Codec::Gather(GatherCodec::TopK(keys.topk())))
            }
            "threshold" => {
                let keys = Keys::parse("threshold", KEYS_THRESHOLD, pairs)?;
                (keys, Codec::Gather(GatherCodec::Threshold(keys.threshold()?)))
            }
            "qsgd" => {
                let keys = Keys::parse("qsgd", KEYS_QSGD, pairs)?;
                (keys, Codec::Gather(GatherCodec::Qsgd(keys.qsgd())))
            }
            "randomk" => {
                let keys = Keys::parse("randomk", KEYS_RANDOMK, pairs)?;
                (keys, Codec::Linear(LinearCodec::RandomK(keys.randomk())))
            }
            "maxnorm" => {
                let keys = Keys::parse("maxnorm", KEYS_MAXNORM, pairs)?;
                (keys, Codec::Linear(LinearCodec::MaxNorm(keys.maxnorm()?)))
            }
            "powersgd" => {
                let keys = Keys::parse("powersgd", KEYS_POWERSGD, pairs)?;
                (keys, Codec::Linear(LinearCodec::PowerSgd(keys.powersgd()?)))
            }
            "dgc" => {
                let keys = Keys::parse("dgc", KEYS_DGC, pairs)?;
                if keys.nesterov && keys.momentum == Some(0.0) {
                    return Err(SpecError::Conflict("nesterov: it is a form of momentum, which is 0"));
                }
                (keys, Codec::Gather(GatherCodec::Dgc(keys.dgc())))
            }
            "sidco" => {
                let keys = Keys::parse("sidco", KEYS_SIDCO, pairs)?;
                (keys, Codec::Gather(GatherCodec::Sidco(keys.sidco())))
            }
            "dpsgd" => (Keys::parse("dpsgd", KEYS_CAST, pairs)?, Codec::Gossip(GossipCodec::Dpsgd(Dpsgd))),
            _ => return Err(SpecError::UnknownCodec(name)),
        };
        let memory = keys.memory.unwrap_or(codec.default_memory());
        let dense_1d = keys.dense_1d.unwrap_or(default_units(&codec).dense_1d);
        let units = UnitPolicy { dense_1d, ..keys.units };
        let warmup = keys.warmup.unwrap_or(default_warmup(&codec));
        let spec = Self { codec, memory, units, warmup, packets: keys.packets };
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

    /// Why these keys do not go together, if they do not.
    #[must_use]
    pub fn conflict(&self) -> Option<&'static str> {
        self.memory_conflict().or(self.rounding_conflict()).or(self.packet_conflict())
    }

    /// Why values cannot be rounded so, if they cannot.
    fn rounding_conflict(&self) -> Option<&'static str> {
        let rounding = match self.codec {
            Codec::Gather(GatherCodec::TopK(topk)) => topk.rounding(),
            Codec::Gather(GatherCodec::Threshold(threshold)) => threshold.rounding(),
            Codec::Gather(GatherCodec::Dgc(dgc)) => dgc.rounding(),
            Codec::Gather(GatherCodec::Sidco(sidco)) => sidco.rounding(),
            _ => return None,
        };
        (rounding == Rounding::Stochastic && self.codec.conserves())
            .then_some("rounding=stochastic: only values=q8, q4 and q2 are rounded to a codebook")
    }

    /// Why what the codec sends cannot be cut into packets, if it is to be.
    fn packet_conflict(&self) -> Option<&'static str> {
        self.packets?;
        Some(match self.codec {
            Codec::Gather(gather) if gather.is_cut() => return None,
            Codec::Gather(_) => {
                "max_packet_bytes: a bitmap of a range may be longer than a packet; use index=auto"
            }
            Codec::Linear(_) => {
                "max_packet_bytes: a linear codec has no frames to cut; its payloads are summed"
            }
            Codec::Gossip(_) => "max_packet_bytes: a gossip codec has no frames to cut",
        })
    }

    /// Why this codec and this memory do not go together, if they do not.
    fn memory_conflict(&self) -> Option<&'static str> {
        let has_momentum = self.codec.momentum().is_some();
        if has_momentum && self.memory != MemoryChoice::Momentum {
            return Some("memory: dgc keeps its momentum there; with momentum=0 it does without");
        }
        if !has_momentum && self.memory == MemoryChoice::Momentum {
            return Some("memory=momentum: it belongs to dgc, with a momentum above 0");
        }
        if self.memory == MemoryChoice::None && matches!(self.codec, Codec::Linear(LinearCodec::PowerSgd(_)))
        {
            return Some("memory=none: powersgd is biased, and keeps there where the next step begins");
        }
        if self.memory == MemoryChoice::None {
            return self.codec.adapts().then_some(
                "memory=none: sidco keeps there how many stages it needs; give a number of stages",
            );
        }
        match self.codec {
            Codec::Gather(
                GatherCodec::TopK(_)
                | GatherCodec::Threshold(_)
                | GatherCodec::Dgc(_)
                | GatherCodec::Sidco(_),
            ) if !self.codec.conserves() => Some(
                "memory: values rounded with rounding=stochastic are unbiased, but no proven contraction; use memory=none",
            ),
            Codec::Gather(GatherCodec::Dense(Dense::F32)) => {
                Some("memory=ef: none sends everything and keeps nothing back")
            }
            Codec::Linear(LinearCodec::MaxNorm(_)) => {
                Some("memory=ef: maxnorm rounds stochastically, which is unbiased and no contraction")
            }
            Codec::Gossip(_) => Some("memory=ef: dpsgd sends the whole model and keeps nothing back"),
            Codec::Gather(GatherCodec::Qsgd(qsgd)) if !qsgd.proves_contraction() => Some(
                "memory=ef: qsgd is a proven contraction only with rounding=nearest and norm=max, or norm=l2 with bucket < 4·levels²",
            ),
            Codec::Linear(LinearCodec::RandomK(randomk)) if randomk.estimator() == Estimator::Unbiased => {
                Some(
                    "memory=ef: estimator=unbiased scales by n/k and diverges under error feedback; use estimator=contraction",
                )
            }
            _ => None,
        }
    }
}

/// Tensors of one dimension are few and matter: `dgc` sends them dense.
fn default_units(codec: &Codec) -> UnitPolicy {
    UnitPolicy { dense_1d: matches!(codec, Codec::Gather(GatherCodec::Dgc(_))), ..UnitPolicy::default() }
}

fn default_warmup(codec: &Codec) -> u32 {
    if matches!(codec, Codec::Gather(GatherCodec::Dgc(_))) { DGC_WARMUP } else { 0 }
}

/// Prints the spelling: the name, the main parameters, and every other key that differs from its default.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.codec.name())?;
        let mut out = Printer { f, separator: ':' };
        match self.codec {
            Codec::Gather(GatherCodec::Dense(_))
            | Codec::Linear(LinearCodec::DenseSum(_))
            | Codec::Gossip(GossipCodec::Dpsgd(_)) => {}
            Codec::Gather(GatherCodec::TopK(topk)) => {
                out.always("density", topk.density())?;
                out.sparse(topk.index(), topk.values(), topk.rounding())?;
            }
            Codec::Gather(GatherCodec::Threshold(threshold)) => {
                out.always("value", threshold.value())?;
                out.sparse(threshold.index(), threshold.values(), threshold.rounding())?;
            }
            Codec::Gather(GatherCodec::Qsgd(qsgd)) => out.qsgd(&qsgd)?,
            Codec::Gather(GatherCodec::Dgc(dgc)) => out.dgc(&dgc)?,
            Codec::Gather(GatherCodec::Sidco(sidco)) => out.sidco(&sidco)?,
            Codec::Linear(LinearCodec::RandomK(randomk)) => {
                out.always("density", randomk.density())?;
                let estimator = randomk.estimator();
                out.unless(estimator == Estimator::default(), "estimator", ESTIMATOR.word(estimator))?;
            }
            Codec::Linear(LinearCodec::MaxNorm(maxnorm)) => out.always("bits", maxnorm.bits())?,
            Codec::Linear(LinearCodec::PowerSgd(powersgd)) => out.powersgd(&powersgd)?,
        }
        out.unless(self.warmup == default_warmup(&self.codec), "warmup", self.warmup)?;
        out.unless(self.memory == self.codec.default_memory(), "memory", MEMORY.word(self.memory))?;
        out.unless(!self.units.per_tensor, "unit", "tensor")?;
        out.unless(self.units.dense_below == 0, "dense_below", self.units.dense_below)?;
        let dense_1d = self.units.dense_1d;
        out.unless(dense_1d == default_units(&self.codec).dense_1d, "dense_1d", dense_1d)?;
        self.packets.map_or(Ok(()), |size| out.always("max_packet_bytes", size))
    }
}

/// Writes `key=value` pairs behind a name.
struct Printer<'f, 'o> {
    f: &'f mut fmt::Formatter<'o>,
    separator: char,
}

impl Printer<'_, '_> {
    fn always(&mut self, key: &str, value: impl fmt::Display) -> fmt::Result {
        write!(self.f, "{}{key}={value}", self.separator)?;
        self.separator = ',';
        Ok(())
    }

    fn unless(&mut self, is_default: bool, key: &str, value: impl fmt::Display) -> fmt::Result {
        if is_default { Ok(()) } else { self.always(key, value) }
    }

    fn sparse(&mut self, index: IndexChoice, values: ValueChoice, rounding: Rounding) -> fmt::Result {
        self.unless(index == IndexChoice::default(), "index", INDEX.word(index))?;
        self.unless(values == ValueChoice::default(), "values", VALUES.word(values))?;
        self.unless(rounding == Rounding::Nearest, "rounding", ROUNDING.word(rounding))
    }

    fn dgc(&mut self, dgc: &Dgc) -> fmt::Result {
        self.always("density", dgc.density())?;
        self.always("momentum", dgc.momentum().map_or(0.0, Momentum::factor))?;
        self.unless(!dgc.momentum().is_some_and(Momentum::is_nesterov), "nesterov", true)?;
        if let Some(clip) = dgc.clip() {
            self.always("clip", clip)?;
        }
        self.unless(dgc.sample() == Density::percent(), "sample", dgc.sample())?;
        self.sparse(dgc.index(), dgc.values(), dgc.rounding())
    }

    fn powersgd(&mut self, powersgd: &PowerSgd) -> fmt::Result {
        self.always("rank", powersgd.rank())?;
        self.unless(powersgd.min_rate() == PowerSgd::MIN_RATE, "min_rate", powersgd.min_rate())?;
        self.unless(powersgd.start() == 0, "start", powersgd.start())
    }

    fn sidco(&mut self, sidco: &Sidco) -> fmt::Result {
        self.always("density", sidco.density())?;
        self.unless(sidco.fit() == Fit::default(), "fit", FIT.word(sidco.fit()))?;
        if let Some(stages) = sidco.stages() {
            self.always("stages", stages)?;
        }
        self.unless(!sidco.is_capped(), "cap", CAP.word(sidco.is_capped()))?;
        self.sparse(sidco.index(), sidco.values(), sidco.rounding())
    }

    fn qsgd(&mut self, qsgd: &Qsgd) -> fmt::Result {
        self.always("bits", BITS.word(qsgd.bits()))?;
        self.unless(qsgd.bucket() == Qsgd::DEFAULT_BUCKET, "bucket", qsgd.bucket())?;
        self.unless(qsgd.norm() == Norm::default(), "norm", NORM.word(qsgd.norm()))?;
        self.unless(qsgd.entropy() == EntropyChoice::default(), "entropy", ENTROPY.word(qsgd.entropy()))?;
        self.unless(qsgd.rounding() == Rounding::default(), "rounding", ROUNDING.word(qsgd.rounding()))
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
            "none:max_packet_bytes=65536",
            "topk:density=0.01,unit=tensor,max_packet_bytes=64",
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
    fn bad_spellings_name_the_key_and_what_is_allowed() {
        for (spelling, message) in [
            (
                "top",
                "unknown codec 'top': expected one of none, f16, bf16, topk, threshold, qsgd, randomk, maxnorm, powersgd, dgc, sidco, dpsgd",
            ),
            ("topk:density=7", "density=7: expected a fraction from 1e-9 to 1"),
            ("topk:density=nan", "density=nan: expected a fraction from 1e-9 to 1"),
            ("topk:values=q3", "values=q3: expected one of f32 f16 bf16 q8 q4 q2"),
            (
                "topk:bits=4",
                "topk has no key 'bits': expected one of density warmup index values rounding memory unit dense_below dense_1d max_packet_bytes",
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
        for (codec, why) in [("topk:index=bitmap", "index=auto"), ("randomk", "summed"), ("dpsgd", "gossip")]
        {
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
