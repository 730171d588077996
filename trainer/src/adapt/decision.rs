//! What is decided for one step, and written down.

use gradwire::Density;
use serde::{Deserialize, Serialize};

/// Why a step has its density.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// A list says so.
    Listed,
    /// GraVAC: the gain of the candidate is large enough.
    Candidate,
    /// GraVAC: only the gain at the smallest compression is large enough.
    Min,
    /// GraVAC: neither gain is large enough, so every coordinate is sent.
    Dense,
    /// Accordion: gradients changed much, or the learning rate fell.
    Critical,
    /// Accordion: neither.
    Calm,
}

/// The density of one step: the object `adapt` of a line of `metrics.jsonl`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What the codec is told; 1 for every coordinate.
    #[serde(with = "as_fraction")]
    pub density: Density,
    /// Why.
    #[serde(rename = "decision")]
    pub choice: Choice,
    /// GraVAC: smoothed gain at the smallest compression, mean over the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_min: Option<f64>,
    /// GraVAC: smoothed gain of the candidate, mean over the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
}

impl Decision {
    /// A decision without gains.
    pub fn new(density: Density, choice: Choice) -> Self {
        Self { density, choice, gain_min: None, gain: None }
    }
}

/// A density as the fraction, whose shortest decimal is read as the same density.
pub(super) mod as_fraction {
    use gradwire::Density;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(density: &Density, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(density.fraction())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Density, D::Error> {
        let fraction = f64::deserialize(from)?;
        let refused =
            || D::Error::custom(format!("density = {fraction}: expected a fraction from 1e-9 to 1"));
        Density::new(fraction).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_density_is_read_back_as_it_was() {
        for billionths in [1_u32, 7, 333_333_333, 999_999_999, 1_000_000_000] {
            let density = Density::new(f64::from(billionths) * 1e-9).unwrap();
            let decision = Decision { gain: Some(1.0 / 3.0), ..Decision::new(density, Choice::Min) };
            let text = serde_json::to_string(&decision).unwrap();
            assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision, "{text}");
        }
        let text = r#"{"density":1.5,"decision":"dense"}"#;
        assert!(serde_json::from_str::<Decision>(text).unwrap_err().to_string().contains("1e-9 to 1"));
    }
}
