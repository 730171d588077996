//! A body of any kind.

use crate::built::Full;
use crate::codec::{Body, BodyInfo, ExperimentBody, Parser};
use crate::codecs::list_bodies;
use crate::error::{DecodeError, Field};
use crate::gradient::layout::Span;
use crate::gradient::unit::Unit;
use crate::kernels;
use crate::wire::ids::{CodecId, Kind};
use crate::wire::reader::Reader;
#[cfg(feature = "alloc")]
use alloc::vec::Vec;

macro_rules! define_bodies {
    ($($variant:ident($body:ident $(:: $path:ident)*),)*) => {
        /// The body of one unit; see [`Body`]. The caller's parser reads the body of an experiment.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum AnyBody<'a> {
            $($variant($body $(:: $path)* <'a>),)*
            Experiment(ExperimentBody<'a>),
        }

        impl<'a> AnyBody<'a> {
            /// Reads the structure of a body of that kind; see [`Body::read`].
            pub(crate) fn read(
                kind: Kind,
                codec: CodecId,
                unit: &Unit,
                step: u64,
                reader: &mut Reader<'a>,
                parser: Parser<'a>,
            ) -> Result<Self, DecodeError> {
                $(if kind == <$body $(:: $path)* <'_> as Body<'_>>::KIND {
                    return <$body $(:: $path)* <'a> as Body<'a>>::read(codec, unit, step, reader).map(Self::$variant);
                })*
                let body = parser.read(kind, codec, unit, step, reader);
                body.unwrap_or(Err(DecodeError::InvalidField(Field::Kind))).map(Self::Experiment)
            }

            pub(crate) fn entries(&self) -> usize {
                match self {
                    $(Self::$variant(body) => body.entries(),)*
                    Self::Experiment(body) => body.entries(),
                }
            }

            pub(crate) fn scratch_words(&self) -> usize {
                match self {
                    $(Self::$variant(body) => body.scratch_words(),)*
                    Self::Experiment(body) => body.scratch_words(),
                }
            }

            pub(crate) fn check(
                &self,
                span: Span<'_>,
                max_magnitude: f32,
                scratch: &mut [u32],
            ) -> Result<(), DecodeError> {
                match self {
                    $(Self::$variant(body) => body.check(span, max_magnitude, scratch),)*
                    Self::Experiment(body) => body.check(max_magnitude, scratch),
                }
            }

            #[inline]
            pub(crate) fn for_each(&self, scratch: &[u32], f: impl FnMut(usize, f32)) {
                match self {
                    $(Self::$variant(body) => body.for_each(scratch, f),)*
                    Self::Experiment(body) => body.for_each(scratch, f),
                }
            }

            pub(crate) fn held(&self, len: usize) -> usize {
                match self {
                    $(Self::$variant(body) => body.held(len),)*
                    Self::Experiment(body) => body.held(),
                }
            }

            /// Adds `weight` times every value to the accumulator.
            pub(crate) fn add_scaled_to(&self, scratch: &[u32], weight: f32, acc: &mut [f32]) {
                match self {
                    $(Self::$variant(body) => add(body, scratch, weight, acc),)*
                    Self::Experiment(body) => body.add_scaled_to(scratch, weight, acc),
                }
            }

            pub(crate) fn info(&self) -> BodyInfo {
                match self {
                    $(Self::$variant(body) => body.info(),)*
                    Self::Experiment(body) => body.info(),
                }
            }

            #[cfg(feature = "alloc")]
            pub(crate) fn alternatives(&self, scratch: &[u32]) -> Vec<Vec<u8>> {
                match self {
                    $(Self::$variant(body) => body.alternatives(scratch),)*
                    Self::Experiment(_) => Vec::new(),
                }
            }

            /// The kind that it was read as.
            #[cfg(feature = "alloc")]
            pub(crate) fn kind(&self) -> Kind {
                match self {
                    $(Self::$variant(_) => <$body $(:: $path)* <'_> as Body<'_>>::KIND,)*
                    Self::Experiment(body) => body.kind(),
                }
            }
        }
    };
}

list_bodies!(define_bodies);

/// Adds the values of a body, in its own way if it has one. It stays out of line so that the loop has the
/// registers.
#[inline(never)]
fn add<'a, B: Body<'a>>(body: &B, scratch: &[u32], weight: f32, acc: &mut [f32]) {
    if B::ADDS {
        return body.add_scaled_to(scratch, weight, acc);
    }
    // Entries are far apart in memory, and the processor cannot predict the next ones.
    let mut later = body.positions(scratch).get(kernels::FETCH_AHEAD..).unwrap_or_default().iter();
    body.for_each(scratch, |i, value| {
        if let Some(&later) = Full::build().and_then(|_| later.next()) {
            kernels::fetch(acc, later as usize);
        }
        if let Some(sum) = acc.get_mut(i) {
            *sum += weight * value;
        }
    });
}
