//! What is decided for one step, and written down.

use gradwire::{Density, Unit};
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
    /// Accordion: some units are critical and others calm.
    Mixed,
}

/// The density of one step, and why.
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
    /// GraVAC with a clock: seconds of the step before, of the slowest worker; 0 if they were not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

impl Decision {
    /// A decision without gains.
    pub fn new(density: Density, choice: Choice) -> Self {
        Self { density, choice, gain_min: None, gain: None, seconds: None }
    }
}

/// What one step is sent with, and why: the object `adapt` of a line of `metrics.jsonl`.
///
/// # Examples
///
/// ```
/// use gradwire_trainer::adapt::Decided;
///
/// for text in [
///     r#"{"density":0.1,"decision":"listed"}"#,
///     r#"{"density":0.04,"decision":"mixed","densities":[0.1,0.01]}"#,
///     r#"{"decision":"critical","rank":4}"#,
///     r#"{"decision":"mixed","ranks":[4,1]}"#,
/// ] {
///     let decided: Decided = serde_json::from_str(text)?;
///     assert_eq!(serde_json::to_string(&decided)?, text);
/// }
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Line", into = "Line")]
pub enum Decided {
    /// One density for the whole gradient.
    Density(Decision),
    /// One for each unit, in order; 1 for a unit that is sent dense.
    Densities {
        /// The share of all coordinates, and why.
        whole: Decision,
        /// One for each unit.
        densities: Vec<Density>,
    },
    /// The rank of `powersgd`.
    Rank {
        /// From 1 to 256.
        rank: u16,
        /// Why.
        choice: Choice,
    },
    /// One for each unit, in order.
    Ranks {
        /// From 1 to 256.
        ranks: Vec<u16>,
        /// Why.
        choice: Choice,
    },
}

impl From<Decision> for Decided {
    fn from(decision: Decision) -> Self {
        Self::Density(decision)
    }
}

impl Decided {
    /// A density for each of these units, as `of` gives it by position, and 1 for those that are sent dense.
    pub(super) fn by_unit(units: &[Unit], choice: Choice, of: impl Fn(usize) -> Density) -> Self {
        let everything = Density::new(1.0).unwrap_or_else(|| unreachable!("1 is a density"));
        let pairs = units.iter().enumerate();
        let densities: Vec<Density> =
            pairs.map(|(at, unit)| if unit.dense { everything } else { of(at) }).collect();
        let len: f64 = units.iter().map(|unit| unit.len as f64).sum();
        let sent: f64 = units.iter().zip(&densities).map(|(unit, d)| unit.len as f64 * d.fraction()).sum();
        // Without any coordinate, everything is sent.
        let share = Density::new(sent / len).unwrap_or(everything);
        Self::Densities { whole: Decision::new(share, choice), densities }
    }

    /// Why.
    pub fn choice(&self) -> Choice {
        match self {
            Self::Density(decision) | Self::Densities { whole: decision, .. } => decision.choice,
            Self::Rank { choice, .. } | Self::Ranks { choice, .. } => *choice,
        }
    }

    /// The share of the coordinates that is to be sent; none for ranks.
    pub fn density(&self) -> Option<Density> {
        match self {
            Self::Density(decision) | Self::Densities { whole: decision, .. } => Some(decision.density),
            Self::Rank { .. } | Self::Ranks { .. } => None,
        }
    }
}

/// The object as it is written.
#[derive(Clone, Serialize, Deserialize)]
struct Line {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    density: Option<f64>,
    decision: Choice,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gain_min: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gain: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    densities: Option<Vec<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ranks: Option<Vec<u16>>,
}

impl Line {
    fn of_ranks(decision: Choice, rank: Option<u16>, ranks: Option<Vec<u16>>) -> Self {
        let (density, gain_min, gain, seconds, densities) = (None, None, None, None, None);
        Self { density, decision, gain_min, gain, seconds, densities, rank, ranks }
    }
}

impl From<Decided> for Line {
    fn from(decided: Decided) -> Self {
        let of = |Decision { density, choice, gain_min, gain, seconds }: Decision| {
            let density = Some(density.fraction());
            Self { density, gain_min, gain, seconds, ..Self::of_ranks(choice, None, None) }
        };
        match decided {
            Decided::Density(decision) => of(decision),
            Decided::Densities { whole, densities } => {
                Self { densities: Some(densities.into_iter().map(Density::fraction).collect()), ..of(whole) }
            }
            Decided::Rank { rank, choice } => Self::of_ranks(choice, Some(rank), None),
            Decided::Ranks { ranks, choice } => Self::of_ranks(choice, None, Some(ranks)),
        }
    }
}

impl TryFrom<Line> for Decided {
    type Error = String;

    fn try_from(line: Line) -> Result<Self, String> {
        let Line { density, decision: choice, gain_min, gain, seconds, densities, rank, ranks } = line;
        let whole = |density| {
            let density = read(density)?;
            Ok::<_, String>(Decision { density, choice, gain_min, gain, seconds })
        };
        let is_rank = |rank: &u16| (1..=256).contains(rank);
        if let Some(rank) = rank.iter().chain(ranks.iter().flatten()).find(|rank| !is_rank(rank)) {
            return Err(format!("rank = {rank}: expected a whole number from 1 to 256"));
        }
        match (density, densities, rank, ranks) {
            (Some(density), None, None, None) => Ok(Self::Density(whole(density)?)),
            (Some(density), Some(each), None, None) => {
                let densities = each.into_iter().map(read).collect::<Result<_, _>>()?;
                Ok(Self::Densities { whole: whole(density)?, densities })
            }
            (None, None, Some(rank), None) => Ok(Self::Rank { rank, choice }),
            (None, None, None, Some(ranks)) => Ok(Self::Ranks { ranks, choice }),
            _ => Err("expected a density, with densities or without, a rank, or ranks".to_owned()),
        }
    }
}

fn read(fraction: f64) -> Result<Density, String> {
    let refused = || format!("density = {fraction}: expected a fraction from 1e-9 to 1");
    Density::new(fraction).ok_or_else(refused)
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
        super::read(f64::deserialize(from)?).map_err(D::Error::custom)
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

    #[test]
    fn what_no_step_is_sent_with_is_refused() {
        for (text, why) in [
            (r#"{"decision":"calm"}"#, "expected a density"),
            (r#"{"decision":"calm","rank":0}"#, "rank = 0: expected a whole number"),
            (r#"{"decision":"calm","ranks":[1,300]}"#, "rank = 300: expected a whole number"),
            (r#"{"decision":"calm","rank":2,"density":0.1}"#, "expected a density"),
            (r#"{"decision":"calm","rank":2,"ranks":[2]}"#, "expected a density"),
            (r#"{"decision":"calm","densities":[0.1]}"#, "expected a density"),
            (
                r#"{"decision":"calm","density":0.1,"densities":[0.1,2.0]}"#,
                "density = 2: expected a fraction",
            ),
        ] {
            let error = serde_json::from_str::<Decided>(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn the_density_of_all_units_is_the_share_of_the_coordinates() {
        let unit = |id, start, len, dense| Unit { id, start, len, dense };
        let units = [unit(0, 0, 100, false), unit(1, 100, 10, true), unit(2, 110, 300, false)];
        let shares = [0.5, 0.7, 0.1].map(|share| Density::new(share).unwrap());
        let decided = Decided::by_unit(&units, Choice::Mixed, |at| shares[at]);
        let Decided::Densities { whole, densities } = decided else { panic!("{decided:?}") };
        assert_eq!(densities.iter().map(|d| d.fraction()).collect::<Vec<_>>(), [0.5, 1.0, 0.1]);
        assert_eq!(whole.density, Density::new((50.0 + 10.0 + 30.0) / 410.0).unwrap());
    }
}
