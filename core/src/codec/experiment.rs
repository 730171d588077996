//! Bodies of codecs of other crates: what such a crate implements, and what this crate checks.

use crate::built::Full;
use crate::codec::Reduction;
use crate::codec::body::BodyInfo;
use crate::codec::unit::Law;
use crate::coding::values::check_magnitude;
use crate::error::DecodeError;
use crate::gradient::density::Density;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::rng::Stream;
use crate::rng::key::{Source, StepKey};
use crate::scratch::{Scratch, ScratchLen};
use crate::wire::ids::{CodecId, Experiment, Kind};
use crate::wire::reader::Reader;
#[cfg(feature = "std")]
use alloc::vec::Vec;
use core::fmt;
#[cfg(feature = "std")]
use std::sync::{PoisonError, RwLock};

/// Why an experiment refuses a body or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// For people to read.
    pub why: &'static str,
    /// The coordinate that is to blame, from the start of the unit, if it is one.
    pub at: Option<usize>,
}

impl Refused {
    /// What is wrong with a body, or with a unit as a whole.
    #[must_use]
    pub const fn new(why: &'static str) -> Self {
        Self { why, at: None }
    }

    /// What is wrong with one coordinate, counted from the start of the unit. An error of the encoder names
    /// it.
    #[must_use]
    pub const fn at(index: usize, why: &'static str) -> Self {
        Self { why, at: Some(index) }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why)
    }
}

impl core::error::Error for Refused {}

/// The body of one unit of a frame.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitBody<'b> {
    /// Identifier and range; positions in the body count from its start.
    pub unit: Unit,
    /// The step that the frame belongs to.
    pub step: u64,
    /// The bytes of the body. For [`ParseBody::outline`], everything that follows it in the frame as well.
    pub bytes: &'b [u8],
}

impl<'b> UnitBody<'b> {
    /// The body of a unit that spans a gradient of `len` elements, at step 0: for tests of a codec, with
    /// bytes that none of its frames has.
    #[must_use]
    pub fn of(len: usize, bytes: &'b [u8]) -> Self {
        Self { unit: Unit::whole(len), step: 0, bytes }
    }
}

/// The structure of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyOutline {
    /// Bytes of the body: where the next unit begins.
    pub bytes: usize,
    /// Coordinates that the body holds, at most those of the unit.
    pub held: usize,
    /// Words of scratch memory that decoding takes.
    pub scratch_words: usize,
}

/// How bodies of an experiment are parsed: the reading half of a codec of another crate.
///
/// The bytes come from an unknown sender. The crate calls [`outline`](Self::outline) for every unit of a
/// frame, and compares the result with the caller's [`Limits`](crate::Limits) and with the bytes that are
/// there. Only then does it lend the scratch memory for [`check`](Self::check). Then it visits the body once.
/// It checks that positions ascend inside the unit, that values are finite and within the limits, and that
/// there are as many as `outline` says. A body that passes can be decoded by [`visit`](Self::visit) without
/// failing, as long as all three functions depend only on their arguments and `self`.
pub trait ParseBody: Send + Sync {
    /// The number of the codec, and of its kind of body.
    fn experiment(&self) -> Experiment;

    /// The name of the kind, for people to read.
    fn name(&self) -> &'static str {
        "experiment"
    }

    /// Reads where the body ends and what decoding it takes. It reads a few bytes, and takes no time that
    /// grows with what they claim.
    ///
    /// # Errors
    /// The fault in the structure. Missing bytes need no check here: return how many there must be.
    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused>;

    /// Decodes what [`visit`](Self::visit) needs into `scratch`, and checks everything that `visit` relies
    /// on. `scratch` has as many words as [`outline`](Self::outline) asked for, with unspecified content.
    ///
    /// # Errors
    /// The fault in the content.
    fn check(&self, body: &UnitBody<'_>, scratch: &mut [u32]) -> Result<(), Refused> {
        let _ = (body, scratch);
        Ok(())
    }

    /// Calls `f` with position, from the start of the unit, and value of each coordinate that the body holds,
    /// ascending.
    fn visit(&self, body: &UnitBody<'_>, scratch: &[u32], f: &mut dyn FnMut(usize, f32));
}

/// The unit that an experiment encodes.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct UnitSource<'u> {
    /// Names every random draw of the step.
    pub key: StepKey,
    /// The layout of the whole gradient.
    pub layout: &'u LayoutRef<'u>,
    /// Identifier and range of the unit.
    pub unit: Unit,
    /// What all ranks agreed on in the [rounds before](EncodeBody::shared); empty for a codec without any.
    pub numbers: &'u [f32],
    /// The density now, of a codec that was [registered](crate::experiments::OwnCodec::density) with one.
    pub density: Option<Density>,
}

impl UnitSource<'_> {
    /// The draws of the unit, for stochastic rounding, sampling or rotation. They belong to the codec alone:
    /// neither codecs of this crate nor the caller draw them. They depend only on the
    /// [key](Self::key), so every rank has its own.
    #[must_use]
    pub fn draws(&self) -> Stream {
        self.key.experiment(self.unit.id)
    }

    /// Draws of the unit that are the same at every rank.
    #[must_use]
    pub fn shared_draws(&self) -> Stream {
        StepKey { source: Source::Shared, ..self.key }.experiment(self.unit.id)
    }
}

/// Numbers of each unit that all ranks reduce before any of them encodes, for instance the largest magnitude
/// of all gradients, so that all quantise with one scale.
pub trait ShareNumbers: Send + Sync {
    /// How many numbers a unit of `len` elements has; the same at every rank.
    fn count(&self, len: usize) -> usize;

    /// Writes this rank's numbers for round `index`, which counts from 0, and returns how to reduce them.
    /// Returns `None` if no round is left; [`encode_body`](EncodeBody::encode_body) then gets these
    /// `numbers`. On entry, `numbers` holds the reduced numbers of the previous round, or zeros in the first
    /// round. `values` are those that will be encoded, all of them finite.
    ///
    /// All units of a step, at all ranks, have the same number of rounds with the same reductions.
    ///
    /// # Errors
    /// Why these values cannot be sent.
    fn round(
        &self,
        index: u32,
        source: &UnitSource<'_>,
        values: &[f32],
        numbers: &mut [f32],
    ) -> Result<Option<Reduction>, Refused>;
}

/// How bodies of an experiment are written: the writing half of a codec of another crate.
/// [`Experimental`](crate::experiments::Experimental) makes a [`Gather`](crate::Gather) codec of both halves,
/// and keeps the residual by the codec's law.
pub trait EncodeBody: ParseBody {
    /// How sent and kept add up; [`Law::NotKept`] refuses a memory.
    fn law(&self) -> Law;

    /// Magnitudes of the values must be below this. Larger ones are refused before the codec sees any, with
    /// the coordinate, as values that are not finite are.
    fn overflow_bound(&self) -> f32 {
        f32::INFINITY
    }

    /// The rounds before a frame; `None` for a codec without them, as most are. With them, `Experimental` is
    /// a [`RoundsFirst`](crate::rounds::RoundsFirst), and encodes only after them.
    fn shared(&self) -> Option<&dyn ShareNumbers> {
        None
    }

    /// Largest body of a unit of `len` elements; `None` on overflow.
    fn max_body_bytes(&self, len: usize) -> Option<usize>;

    /// Working memory of [`encode_body`](Self::encode_body) for a unit of `len` elements.
    fn scratch_len(&self, len: usize) -> ScratchLen {
        let _ = len;
        ScratchLen::default()
    }

    /// No [`BodyOutline::scratch_words`] of a unit of `len` elements is above this.
    fn max_parse_words(&self, len: usize) -> usize {
        let _ = len;
        0
    }

    /// Writes the body of a unit with these values, all of them finite, to the front of `out`, and returns
    /// its bytes. `out` has [`max_body_bytes`](Self::max_body_bytes), all of them 0.
    ///
    /// # Errors
    /// Why these values cannot be sent. Nothing has changed then, because memories change only after all
    /// units of a frame are written.
    fn encode_body(
        &self,
        source: &UnitSource<'_>,
        values: &[f32],
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused>;
}

impl DecodeError {
    fn refused(unit: u32, Refused { why, .. }: Refused) -> Self {
        Self::Experiment { unit, why }
    }
}

/// The parsers that every reader of this process has; see
/// [`OwnCodec::register`](crate::experiments::OwnCodec::register).
#[cfg(feature = "std")]
pub(crate) static READERS: RwLock<Vec<&'static dyn ParseBody>> = RwLock::new(Vec::new());

/// The parser of an experiment's bodies, if the caller passed one. Takes no memory in a build that is not
/// full.
#[derive(Clone, Copy)]
pub(crate) struct Parser<'a> {
    #[cfg(feature = "full")]
    parser: Option<&'a dyn ParseBody>,
    _borrowed: core::marker::PhantomData<&'a ()>,
}

impl fmt::Debug for Parser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parser").field(&self.get().map(|(parser, _)| parser.experiment())).finish()
    }
}

impl<'a> Parser<'a> {
    /// Of no experiment.
    pub(crate) const NONE: Self = Self {
        #[cfg(feature = "full")]
        parser: None,
        _borrowed: core::marker::PhantomData,
    };

    #[cfg(feature = "full")]
    pub(crate) fn new(parser: Option<&'a dyn ParseBody>) -> Self {
        Self { parser, ..Self::NONE }
    }

    fn get(self) -> Option<(&'a dyn ParseBody, Full)> {
        #[cfg(feature = "full")]
        return self.parser.zip(Full::build());
        #[cfg(not(feature = "full"))]
        None
    }

    /// The parser of that codec's bodies: the caller's, or that of a codec which is registered in this
    /// process.
    fn of(self, codec: CodecId) -> Option<(&'a dyn ParseBody, Full)> {
        let given = self.get().filter(|(parser, _)| parser.experiment().codec() == codec);
        #[cfg(feature = "std")]
        return given.or_else(|| {
            Experiment::new(codec.number())?;
            let readers = READERS.read().unwrap_or_else(PoisonError::into_inner);
            let known = readers.iter().copied().find(|reader| reader.experiment().codec() == codec)?;
            Some(known as &dyn ParseBody).zip(Full::build())
        });
        #[cfg(not(feature = "std"))]
        given
    }

    /// The kind of body that frames of that codec have, if it is an experiment whose parser is known.
    pub(crate) fn kind_of(self, codec: CodecId) -> Option<Kind> {
        self.of(codec).map(|(parser, _)| parser.experiment().kind())
    }

    /// The body at the front of the bytes that are left, if it belongs to an experiment whose parser is
    /// known.
    pub(crate) fn read(
        self,
        kind: Kind,
        codec: CodecId,
        unit: &Unit,
        step: u64,
        reader: &mut Reader<'a>,
    ) -> Option<Result<ExperimentBody<'a>, DecodeError>> {
        let (parser, full) = self.of(codec)?;
        (parser.experiment().kind() == kind).then(|| ExperimentBody::read(parser, full, unit, step, reader))
    }
}

/// A body of an experiment, with its parser.
#[derive(Clone, Copy)]
pub(crate) struct ExperimentBody<'a> {
    parser: &'a dyn ParseBody,
    body: UnitBody<'a>,
    outline: BodyOutline,
    _full: Full,
}

impl fmt::Debug for ExperimentBody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExperimentBody").field("body", &self.body).field("outline", &self.outline).finish()
    }
}

impl<'a> ExperimentBody<'a> {
    fn read(
        parser: &'a dyn ParseBody,
        full: Full,
        unit: &Unit,
        step: u64,
        reader: &mut Reader<'a>,
    ) -> Result<Self, DecodeError> {
        let rest = UnitBody { unit: *unit, step, bytes: reader.rest() };
        let outline = parser.outline(&rest).map_err(|why| DecodeError::refused(unit.id, why))?;
        if outline.held > unit.len {
            return Err(DecodeError::refused(unit.id, Refused::new("more coordinates than the unit has")));
        }
        let body = UnitBody { bytes: reader.take(outline.bytes)?, ..rest };
        Ok(Self { parser, body, outline, _full: full })
    }

    /// Entries that count against the limit. A body that holds every coordinate counts as none.
    pub(crate) fn entries(&self) -> usize {
        if self.outline.held < self.body.unit.len { self.outline.held } else { 0 }
    }

    pub(crate) fn scratch_words(&self) -> usize {
        self.outline.scratch_words
    }

    pub(crate) fn held(&self) -> usize {
        self.outline.held
    }

    #[cfg(feature = "alloc")]
    pub(crate) fn kind(&self) -> Kind {
        self.parser.experiment().kind()
    }

    /// Lets the experiment check its body, and checks the decoded values.
    pub(crate) fn check(&self, max_magnitude: f32, scratch: &mut [u32]) -> Result<(), DecodeError> {
        let id = self.body.unit.id;
        self.parser.check(&self.body, scratch).map_err(|why| DecodeError::refused(id, why))?;
        let (mut next, mut held, mut result) = (0, 0usize, Ok(()));
        self.parser.visit(&self.body, scratch, &mut |i, value| {
            if result.is_ok() {
                let is_inside = next <= i && i < self.body.unit.len;
                let inside = if is_inside { Ok(()) } else { Err(DecodeError::IndexOutOfRange) };
                result = inside.and_then(|()| check_magnitude(value, max_magnitude));
                (next, held) = (i.saturating_add(1), held.saturating_add(1));
            }
        });
        result?;
        if held == self.outline.held {
            Ok(())
        } else {
            Err(DecodeError::refused(id, Refused::new("another number of coordinates than its outline says")))
        }
    }

    pub(crate) fn for_each(&self, scratch: &[u32], mut f: impl FnMut(usize, f32)) {
        self.parser.visit(&self.body, scratch, &mut f);
    }

    pub(crate) fn add_scaled_to(&self, scratch: &[u32], weight: f32, acc: &mut [f32]) {
        self.for_each(scratch, |i, value| {
            if let Some(sum) = acc.get_mut(i) {
                *sum += weight * value;
            }
        });
    }

    pub(crate) fn info(&self) -> BodyInfo {
        BodyInfo { kind: self.parser.name(), index: None, values: None }
    }
}
