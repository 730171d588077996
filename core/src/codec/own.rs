//! Codecs of other crates that spellings can name: `x:NAME:keys`. They are registered once, for the whole
//! process.

use crate::codec::Linear;
use crate::codec::experiment::{
    BodyOutline, EncodeBody, ParseBody, READERS, Refused, ShareNumbers, UnitBody, UnitSource,
};
use crate::codec::spelled::{CodecEntry, Described, SUMMED};
use crate::codec::unit::{Capabilities, EncodeUnit, Law, UnitInput};
use crate::error::EncodeError;
use crate::gradient::density::Density;
use crate::gradient::layout::LayoutRef;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::memory::{Keeper, StateLen};
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::{CodecId, Experiment, Kind};
use crate::wire::writer::Writer;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use std::sync::{Mutex, PoisonError, RwLock};

/// A codec of another crate, with the name, keys and examples of its spelling. [`register`](Self::register)
/// makes it known to the whole process: [`Spec::parse`](crate::Spec::parse) then reads `x:NAME:key=value`,
/// and everything that takes a spelling takes it, such as rules by tensor name, exchanges and the trainer.
/// Readers of frames know its number, and read them as the codec of its first example would.
///
/// Besides its own keys, it has `memory`, `decay`, `unit`, `dense_below` and `dense_1d`.
///
/// # Examples
/// ```
/// use gradwire::codecs::DenseSum;
/// use gradwire::experiments::OwnCodec;
/// use gradwire::registry::Law;
/// use gradwire::{Codec, Spec};
///
/// // The rounds of another codec, under another name.
/// let sum = OwnCodec::linear("sum", "sums in f32", Law::NotKept, |_| Ok(DenseSum));
/// sum.examples(&["x:sum", "x:sum:unit=tensor"]).register()?;
/// let spec = Spec::parse("x:sum:unit=tensor")?;
/// assert!(matches!(spec.codec, Codec::Linear(_)));
/// assert_eq!(spec.to_string(), "x:sum:unit=tensor");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a codec is known once it is registered"]
pub struct OwnCodec {
    name: String,
    summary: String,
    keys: String,
    examples: Vec<String>,
    density: Option<Density>,
    make: Box<Make>,
}

type Make = dyn for<'k> Fn(&Keys<'k>) -> Result<Made, SpecError<'k>> + Send + Sync;

/// The codec of one spelling.
enum Made {
    Gather(Box<dyn EncodeBody>),
    Linear(Box<dyn Linear>, Law),
}

/// Why a codec was not registered.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// A name has 1 to 32 of the characters a-z, 0-9, `_` and `-`.
    Name(String),
    /// A codec of that name is registered.
    NameTaken(String),
    /// A key is empty, is given twice, or is one of gradwire's own, such as `memory` or `density`.
    Key(String),
    /// Another codec has that number on the wire.
    NumberTaken {
        /// The number.
        number: u8,
        /// The name of that codec.
        by: String,
    },
    /// There is no example. The first is how frames are read whose spelling is not known.
    NoExample(String),
    /// An example cannot be read.
    Example {
        /// The example.
        spelling: String,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                write!(f, "codec '{name}': expected a name of 1 to 32 characters a-z, 0-9, _ and -")
            }
            Self::NameTaken(name) => write!(f, "codec '{name}': a codec of that name is registered"),
            Self::Key(key) => write!(
                f,
                "key '{key}': empty, given twice, or one of gradwire's own, such as memory or density"
            ),
            Self::NumberTaken { number, by } => write!(f, "number {number:#x}: codec '{by}' has it"),
            Self::NoExample(name) => write!(f, "codec '{name}': expected at least one example"),
            Self::Example { spelling, why } => write!(f, "example '{spelling}': {why}"),
        }
    }
}

impl core::error::Error for RegisterError {}

impl OwnCodec {
    /// A codec whose frames are gathered. `make` reads its keys; keys that are not given have defaults. Its
    /// default memory follows from its [law](EncodeBody::law): error feedback, or none.
    pub fn gather<C: EncodeBody + 'static>(
        name: &str,
        summary: &str,
        make: impl for<'k> Fn(&Keys<'k>) -> Result<C, SpecError<'k>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, summary, Box::new(move |keys| Ok(Made::Gather(Box::new(make(keys)?)))))
    }

    /// A codec whose payloads are summed by all-reduce, and which keeps what it does not send by `law`.
    pub fn linear<C: Linear + 'static>(
        name: &str,
        summary: &str,
        law: Law,
        make: impl for<'k> Fn(&Keys<'k>) -> Result<C, SpecError<'k>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, summary, Box::new(move |keys| Ok(Made::Linear(Box::new(make(keys)?), law))))
    }

    fn new(name: &str, summary: &str, make: Box<Make>) -> Self {
        let (name, summary) = (name.to_owned(), summary.to_owned());
        Self { name, summary, keys: String::new(), examples: Vec::new(), density: None, make }
    }

    /// Its keys, separated by spaces, each with its default: `block=512 mode=fast`. A key without a default
    /// may be missing, and then `make` sees `None`. A key that is given as its default is not printed.
    pub fn keys(mut self, keys: &str) -> Self {
        keys.clone_into(&mut self.keys);
        self
    }

    /// Spellings, with the `x:`, that reach everything the codec can do; at least one. Help shows them.
    pub fn examples(mut self, examples: &[&str]) -> Self {
        self.examples = examples.iter().map(ToString::to_string).collect();
        self
    }

    /// Gives it the keys `density` and `warmup`, with this density by default. Schedules and controllers can
    /// then change the density from step to step; [`UnitSource::density`] says what it is. The codec's bounds
    /// must hold for every density.
    pub fn density(mut self, default: Density) -> Self {
        self.density = Some(default);
        self
    }

    /// Makes the codec known to the process, for as long as it runs.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register(self) -> Result<(), RegisterError> {
        self.check()?;
        let entry: &'static Entry = Box::leak(Box::new(Entry::of(self)));
        let first = entry.check_examples()?;
        let mut entries = ENTRIES.write().unwrap_or_else(PoisonError::into_inner);
        if entries.iter().any(|other| other.name == entry.name) {
            return Err(RegisterError::NameTaken(entry.name.to_owned()));
        }
        let number = first.experiment().map(Experiment::codec);
        if let Some((number, other)) = number.and_then(|id| Some((id, find_number(&entries, id)?))) {
            let (number, by) = (number.number(), other.name.to_owned());
            return Err(RegisterError::NumberTaken { number, by });
        }
        let names = Box::leak(Box::new([(entry.name, number)]));
        let kind = if number.is_some() { "gather" } else { "linear" };
        let body = first.experiment().map_or(Kind::DENSE, Experiment::kind);
        let Entry { keys, summary, examples, .. } = *entry;
        let defaults = entry.listed_defaults();
        let listed =
            CodecEntry { names, kind, body, keys, defaults, summary, suits: "", costs: "", examples };
        if let Made::Gather(codec) = &first.spelling.codec {
            READERS.write().unwrap_or_else(PoisonError::into_inner).push(&**codec);
        }
        entries.push(Registered { name: entry.name, entry, first, listed });
        Ok(())
    }

    fn check(&self) -> Result<(), RegisterError> {
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
        if !(1..=32).contains(&self.name.len()) || !self.name.chars().all(is_allowed) {
            return Err(RegisterError::Name(self.name.clone()));
        }
        let own: Vec<&str> = names(&self.keys).collect();
        for (at, key) in own.iter().enumerate() {
            let is_common = COMMON_KEYS.split(' ').chain(["density", "warmup"]).any(|common| common == *key);
            if key.is_empty() || is_common || own[..at].contains(key) {
                return Err(RegisterError::Key((*key).to_owned()));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for OwnCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnCodec").field("name", &self.name).field("keys", &self.keys).finish_non_exhaustive()
    }
}

const COMMON_KEYS: &str = "memory decay unit dense_below dense_1d";

/// All codecs that were registered, in that order. They are never removed.
static ENTRIES: RwLock<Vec<Registered>> = RwLock::new(Vec::new());

struct Registered {
    /// With the `x:`.
    name: &'static str,
    entry: &'static Entry,
    /// The codec of the first example.
    first: Own,
    listed: CodecEntry,
}

/// A registered codec, and what was made of its spellings.
struct Entry {
    name: &'static str,
    summary: &'static str,
    /// All keys, and the codec's own pairs of a key and its default, separated by commas.
    defaults: &'static str,
    own_keys: &'static str,
    keys: &'static str,
    examples: &'static [&'static str],
    density: Option<Density>,
    make: Box<Make>,
    /// One for each text of own keys, because a [`Codec`](crate::Codec) can be copied and never dropped.
    made: Mutex<Vec<&'static Spelling>>,
}

struct Spelling {
    entry: &'static Entry,
    /// The codec's own keys that were given, in the order of its list, as `key=value,key=value`.
    pairs: String,
    codec: Made,
}

impl Entry {
    fn of(codec: OwnCodec) -> Self {
        let OwnCodec { name, summary, keys, examples, density, make } = codec;
        let with_density = if density.is_some() { "density warmup" } else { "" };
        let own_keys = names(&keys).collect::<Vec<_>>().join(" ");
        let all = [with_density, own_keys.as_str(), COMMON_KEYS].into_iter().filter(|keys| !keys.is_empty());
        let defaults = keys.split(' ').filter(|key| key.contains('=')).collect::<Vec<_>>().join(",");
        let examples = examples.into_iter().map(leak).collect::<Vec<_>>();
        Self {
            name: leak(format!("x:{name}")),
            summary: leak(summary),
            keys: leak(all.collect::<Vec<_>>().join(" ")),
            own_keys: leak(own_keys),
            defaults: leak(defaults),
            examples: Vec::leak(examples),
            density,
            make,
            made: Mutex::new(Vec::new()),
        }
    }

    /// Its keys with their defaults, for help.
    fn listed_defaults(&self) -> &'static str {
        let density = self.density.map(|density| format!("density={}", density.fraction()));
        let own = (!self.defaults.is_empty()).then(|| self.defaults.to_owned());
        leak(density.into_iter().chain(own).collect::<Vec<_>>().join(","))
    }

    /// Reads all examples, and returns the codec of the first.
    fn check_examples(&'static self) -> Result<Own, RegisterError> {
        let mut first = None;
        for spelling in self.examples {
            let error = |why: String| RegisterError::Example { spelling: (*spelling).to_owned(), why };
            let keys = spelling.strip_prefix(self.name);
            let pairs = keys.and_then(|keys| if keys.is_empty() { Some("") } else { keys.strip_prefix(':') });
            let other = || error(format!("expected a spelling of '{}'", self.name));
            let pairs = pairs.ok_or_else(other)?;
            let (own, _) = self.parse(pairs).map_err(|why| error(why.to_string()))?;
            first = first.or(Some(own));
        }
        first.ok_or_else(|| RegisterError::NoExample(self.name.to_owned()))
    }

    fn parse<'a>(&'static self, pairs: &'a str) -> Result<(Own, Keys<'a>), SpecError<'a>> {
        let keys = Keys::new(self.name, self.keys, pairs)?.with_defaults(self.defaults);
        let density = match self.density {
            Some(default) => Some(keys.density("density")?.unwrap_or(default)),
            None => None,
        };
        Ok((Own { spelling: self.made_of(&keys)?, density }, keys))
    }

    /// What was made of these keys before, or is made now.
    fn made_of<'a>(&'static self, keys: &Keys<'a>) -> Result<&'static Spelling, SpecError<'a>> {
        let given = self.own_keys.split(' ').filter_map(|key| Some(format!("{key}={}", keys.text(key)?)));
        let is_default = |pair: &String| self.defaults.split(',').any(|default| default == pair);
        let pairs = given.filter(|pair| !is_default(pair)).collect::<Vec<_>>().join(",");
        // Not held while foreign code runs.
        let known = || {
            let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            made.iter().copied().find(|made| made.pairs == pairs)
        };
        if let Some(known) = known() {
            return Ok(known);
        }
        let codec = (self.make)(keys)?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = made.iter().copied().find(|made| made.pairs == pairs) {
            return Ok(known);
        }
        let spelling: &'static Spelling = Box::leak(Box::new(Spelling { entry: self, pairs, codec }));
        made.push(spelling);
        Ok(spelling)
    }
}

/// The names of keys that may have defaults.
fn names(keys: &str) -> impl Iterator<Item = &str> {
    let all = keys.split(' ').filter(move |_| !keys.is_empty());
    all.map(|key| key.split_once('=').map_or(key, |(key, _)| key))
}

fn leak(text: String) -> &'static str {
    String::leak(text)
}

/// The codec of a name with the `x:` and its keys, with the keys; `None` if none of that name is registered.
pub(crate) fn parse<'a>(name: &str, pairs: &'a str) -> Option<Result<(Own, Keys<'a>), SpecError<'a>>> {
    let find =
        |entries: &[Registered]| entries.iter().find(|other| other.name == name).map(|found| found.entry);
    let entry = find(&ENTRIES.read().unwrap_or_else(PoisonError::into_inner))?;
    Some(entry.parse(pairs))
}

/// These names, and those of all registered codecs.
pub(crate) fn all_names(known: &'static [&'static str]) -> &'static [&'static str] {
    /// As they were last.
    static NAMES: RwLock<&[&str]> = RwLock::new(&[]);
    let entries = ENTRIES.read().unwrap_or_else(PoisonError::into_inner);
    if entries.is_empty() {
        return known;
    }
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    if names.len() != known.len() + entries.len() {
        let all = known.iter().copied().chain(entries.iter().map(|known| known.name));
        *names = Vec::leak(all.collect());
    }
    *names
}

/// The list of all registered codecs.
pub(crate) fn listed() -> Vec<CodecEntry> {
    ENTRIES.read().unwrap_or_else(PoisonError::into_inner).iter().map(|known| known.listed).collect()
}

/// The name, with the `x:`, of the codec of that number, if one is registered.
pub(crate) fn name_of(codec: CodecId) -> Option<&'static str> {
    Experiment::new(codec.number())?;
    let entries = ENTRIES.read().unwrap_or_else(PoisonError::into_inner);
    find_number(&entries, codec).map(|known| known.name)
}

fn find_number(entries: &[Registered], codec: CodecId) -> Option<&Registered> {
    entries.iter().find(|known| known.first.experiment().is_some_and(|number| number.codec() == codec))
}

/// A registered codec of another crate, as a spelling names it.
#[derive(Clone, Copy)]
pub struct Own {
    spelling: &'static Spelling,
    density: Option<Density>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spelling { entry, pairs, .. } = self.spelling;
        f.debug_struct("Own")
            .field("name", &entry.name)
            .field("keys", pairs)
            .field("density", &self.density)
            .finish()
    }
}

impl PartialEq for Own {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.spelling, other.spelling) && self.density == other.density
    }
}

impl Own {
    pub(crate) fn is_linear(&self) -> bool {
        matches!(self.spelling.codec, Made::Linear(..))
    }

    /// The rounds of a linear codec.
    ///
    /// # Panics
    /// For a codec with frames.
    pub(crate) fn rounds(&self) -> &dyn Linear {
        match &self.spelling.codec {
            Made::Linear(codec, _) => &**codec,
            Made::Gather(_) => panic!("{} has frames", self.spelling.entry.name),
        }
    }

    /// The same codec at another density, if it has one.
    pub(crate) fn with_density(self, density: Density) -> Self {
        Self { density: self.density.map(|_| density), ..self }
    }

    /// The number of a codec with frames.
    fn experiment(&self) -> Option<Experiment> {
        match &self.spelling.codec {
            Made::Gather(codec) => Some(codec.experiment()),
            Made::Linear(..) => None,
        }
    }

    fn law(&self) -> Law {
        match &self.spelling.codec {
            Made::Gather(codec) => codec.law(),
            Made::Linear(_, law) => *law,
        }
    }

    /// # Panics
    /// For a linear codec.
    fn body(&self) -> &dyn EncodeBody {
        match &self.spelling.codec {
            Made::Gather(codec) => &**codec,
            Made::Linear(..) => panic!("{} has no frames", self.spelling.entry.name),
        }
    }
}

impl Described for Own {
    fn name(&self) -> &'static str {
        self.spelling.entry.name
    }

    fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        self.density.map_or(Ok(()), |density| out.always("density", density))?;
        let mut pairs = self.spelling.pairs.split(',').filter_map(|pair| pair.split_once('='));
        pairs.try_for_each(|(key, value)| out.always(key, value))
    }

    fn default_memory(&self) -> MemoryChoice {
        match self.law() {
            Law::Exact | Law::Rounded | Law::Filtered => MemoryChoice::ErrorFeedback,
            Law::NotKept => MemoryChoice::None,
            Law::State => MemoryChoice::State,
        }
    }

    fn conflict(&self, keeps: bool) -> Option<&'static str> {
        (keeps && self.law() == Law::NotKept).then_some("memory=ef: this codec says that it keeps nothing")
    }

    fn packet_conflict(&self) -> Option<&'static str> {
        Some(if self.is_linear() {
            SUMMED
        } else {
            "max_packet_bytes: codecs of other crates have no packets"
        })
    }

    fn density(&self) -> Option<Density> {
        self.density
    }
}

impl EncodeUnit for Own {
    fn capabilities(&self) -> Capabilities {
        let number = self.experiment();
        let (id, kind) = number.map_or((CodecId::new(0), Kind::DENSE), |own| (own.codec(), own.kind()));
        Capabilities { law: self.law(), has_frames: number.is_some(), ..Capabilities::new(id, kind) }
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        if self.is_linear() { Some(0) } else { self.body().max_body_bytes(len) }
    }

    fn state_len(&self, layout: &LayoutRef<'_>, units: usize, _: Keeper) -> StateLen {
        match &self.spelling.codec {
            Made::Gather(_) => StateLen::default(),
            Made::Linear(codec, _) => codec.kept_len(layout, units),
        }
    }

    fn unit_scratch_len(&self, len: usize) -> ScratchLen {
        if self.is_linear() { ScratchLen::default() } else { EncodeBody::scratch_len(self.body(), len) }
    }

    fn as_experiment(&self) -> Option<&dyn EncodeBody> {
        if self.is_linear() { None } else { Some(self) }
    }

    /// Frames of a codec of another crate are written by `Experimental`, which this codec is handed to.
    fn encode_body(
        &self,
        _: UnitInput<'_, '_>,
        _: &mut Scratch<'_>,
        _: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        Err(EncodeError::NoFrames)
    }
}

impl ParseBody for Own {
    fn experiment(&self) -> Experiment {
        self.body().experiment()
    }

    fn name(&self) -> &'static str {
        self.body().name()
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        self.body().outline(body)
    }

    fn check(&self, body: &UnitBody<'_>, scratch: &mut [u32]) -> Result<(), Refused> {
        self.body().check(body, scratch)
    }

    fn visit(&self, body: &UnitBody<'_>, scratch: &[u32], f: &mut dyn FnMut(usize, f32)) {
        self.body().visit(body, scratch, f);
    }
}

/// The codec's own, told its density.
impl EncodeBody for Own {
    fn law(&self) -> Law {
        self.body().law()
    }

    fn overflow_bound(&self) -> f32 {
        self.body().overflow_bound()
    }

    fn shared(&self) -> Option<&dyn ShareNumbers> {
        self.body().shared()
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        self.body().max_body_bytes(len)
    }

    fn scratch_len(&self, len: usize) -> ScratchLen {
        self.body().scratch_len(len)
    }

    fn max_parse_words(&self, len: usize) -> usize {
        self.body().max_parse_words(len)
    }

    fn encode_body(
        &self,
        source: &UnitSource<'_>,
        values: &[f32],
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        self.body().encode_body(&UnitSource { density: self.density, ..*source }, values, scratch, out)
    }
}
