//! What a codec costs one worker on a gradient, for whoever asks where it pays.

use std::time::Duration;

use gradwire::{Codec, Spec};
use serde::{Deserialize, Serialize};

use super::error::CliError;
use super::gradient::Gradient;
use super::job::{Job, parse_spec};
use super::measure::{Expected, Often, Sent, measure};
use super::rounds::{is_summed, rounds};

/// For how long a codec is measured at least: many turns of those who share a core.
const LEAST_TIME: Duration = Duration::from_millis(200);

/// A codec on a gradient, measured: sizes in bytes, typical times in seconds, on a core that may be shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Its canonical spelling.
    pub(crate) codec: String,
    /// How what it sends may travel.
    pub(crate) kind: CostKind,
    /// Bytes of all frames, or of the payloads of all rounds.
    pub(crate) bytes: usize,
    /// From the gradient to finished frames, or to the payloads of the first round.
    pub(crate) encode_s: f64,
    /// From frames to the accumulator, or from payloads to the mean.
    pub(crate) decode_s: f64,
    /// A copy of the dense gradient.
    pub(crate) memcpy_s: f64,
    /// How far a decoded gradient is from the gradient, without error feedback: ‖y − x‖² / ‖x‖². Files of
    /// earlier versions do not have it.
    #[serde(default)]
    pub(crate) nmse: Option<f64>,
    /// Cosine of the angle between both.
    #[serde(default)]
    pub(crate) cosine: Option<f64>,
}

/// How what a codec sends may travel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CostKind {
    /// Every value, as it is: summed by an all-reduce.
    Dense,
    /// Frames that go to all.
    Frames,
    /// Frames that hold this share of the coordinates, and may also be summed in parts.
    Sparse {
        /// Entries over coordinates.
        density: f64,
    },
    /// Payloads that an all-reduce sums, in so many rounds.
    Rounds(u32),
}

/// Measures a codec on a gradient, over at least `iters` turns.
///
/// # Errors
/// [`CliError::Spec`]; [`CliError::File`] for a gradient that the codec cannot encode.
pub(crate) fn cost(spelling: &str, gradient: &Gradient, iters: u32) -> Result<Cost, CliError> {
    let spec = parse_spec(spelling)?;
    let measured = measure(Job::new(spec, gradient, 0), Often { turns: iters, time: LEAST_TIME })?;
    let density = measured.entries.sent as f64 / gradient.values.len() as f64;
    let Expected { encode, decode, memcpy } = measured.expected;
    Ok(Cost {
        codec: spec.to_string(),
        kind: kind(&spec, measured.sent, density)?,
        bytes: measured.bytes,
        encode_s: encode,
        decode_s: decode,
        memcpy_s: memcpy,
        nmse: measured.distance.nmse,
        cosine: measured.distance.cosine,
    })
}

fn kind(spec: &Spec, sent: Sent, density: f64) -> Result<CostKind, CliError> {
    let is_linear = is_summed(spec);
    let is_sparse = spec.codec.sparse_values().is_some() && spec.packets.is_none();
    Ok(match sent {
        Sent::Rounds(rounds) => CostKind::Rounds(rounds),
        Sent::Frames(_) if is_linear && spec.codec == Codec::NONE => CostKind::Dense,
        Sent::Frames(_) if is_linear => CostKind::Rounds(rounds(*spec)?),
        Sent::Frames(_) if is_sparse => CostKind::Sparse { density },
        Sent::Frames(_) => CostKind::Frames,
    })
}
