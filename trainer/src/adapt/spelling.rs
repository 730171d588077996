//! How the setting `adapt` is spelled.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use gradwire::Density;

use super::accordion::AccordionSettings;
use super::gravac::{Clock, GravacSettings, Policy};

/// The setting `adapt`, read: what sets the density of each step.
///
/// # Examples
///
/// ```
/// use gradwire_trainer::adapt::Adapt;
///
/// let gravac: Adapt = "gravac:max=500".parse()?;
/// let complete = "gravac:min=10,max=500,eps=0.7,omega=0.01,window=500,policy=exponential,clock=wall";
/// assert_eq!(gravac.to_string(), complete);
/// let error = "gravac:eps=2".parse::<Adapt>().unwrap_err();
/// assert_eq!(error, "eps=2: expected above 0, at most 1");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Adapt {
    /// A density from each of these steps on; the first is 0.
    Steps(Vec<(u64, Density)>),
    /// A density from each of these epochs on; the first is 0.
    Epochs(Vec<(u64, Density)>),
    /// [`Gravac`](super::Gravac).
    Gravac(GravacSettings),
    /// [`Accordion`](super::Accordion).
    Accordion(AccordionSettings),
    /// The decisions of another run, from its `metrics.jsonl` or the folder with it.
    Replay(PathBuf),
}

const FORMS: &str =
    "steps:0=0.1,500=0.01; epochs:0=0.1,4=0.01; gravac:KEY=VALUE,…; accordion:KEY=VALUE,…; replay:FILE";
const FRACTION: &str = "a fraction from 1e-9 to 1";
/// 1e9: the inverse of the smallest density.
const MOST: f64 = 1e9;

impl Adapt {
    /// Whether the density is decided while the run goes on, by a controller that has a state.
    pub fn is_controlled(&self) -> bool {
        matches!(self, Self::Gravac(_) | Self::Accordion(_))
    }
}

impl FromStr for Adapt {
    type Err = String;

    fn from_str(spelling: &str) -> Result<Self, String> {
        let (name, rest) = spelling.split_once(':').unwrap_or((spelling, ""));
        match name {
            "steps" => list(rest).map(Self::Steps),
            "epochs" => list(rest).map(Self::Epochs),
            "gravac" => gravac(rest).map(Self::Gravac),
            "accordion" => accordion(rest).map(Self::Accordion),
            "replay" if rest.is_empty() => {
                Err("replay: the file is missing, as in replay:runs/A/metrics.jsonl".into())
            }
            "replay" => Ok(Self::Replay(rest.into())),
            _ => Err(format!("expected one of: {FORMS}")),
        }
    }
}

/// Pairs of a key and its value; none twice.
fn pairs(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for pair in text.split(',').filter(|_| !text.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair}: expected key=value"))?;
        if pairs.iter().any(|(known, _)| *known == key) {
            return Err(format!("{key}: given twice"));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// The value, if it can be read and holds.
fn value<T: FromStr>(pair: (&str, &str), allowed: &str, holds: impl Fn(&T) -> bool) -> Result<T, String> {
    let (key, text) = pair;
    text.parse().ok().filter(holds).ok_or_else(|| format!("{key}={text}: expected {allowed}"))
}

fn fraction(pair: (&str, &str)) -> Result<Density, String> {
    let share: f64 = value(pair, FRACTION, |_| true)?;
    Density::new(share).ok_or_else(|| format!("{}={}: expected {FRACTION}", pair.0, pair.1))
}

fn unknown(key: &str, keys: &str) -> String {
    format!("{key}: unknown key; known: {keys}")
}

fn list(text: &str) -> Result<Vec<(u64, Density)>, String> {
    let mut list: Vec<(u64, Density)> = Vec::new();
    for pair in pairs(text)? {
        let from = pair.0.parse().map_err(|_| format!("{}: expected a whole number", pair.0))?;
        if list.last().is_some_and(|(before, _)| *before >= from) {
            return Err(format!("{from}: expected a number above the one before it"));
        }
        list.push((from, fraction(pair)?));
    }
    match list.first() {
        Some((0, _)) => Ok(list),
        Some((first, _)) => Err(format!("{first}: the first density is that of 0, as in 0=0.1,500=0.01")),
        None => Err("no density, as in 0=0.1,500=0.01".to_owned()),
    }
}

fn gravac(text: &str) -> Result<GravacSettings, String> {
    let mut settings = GravacSettings::default();
    let factor = |least: f64| move |factor: &f64| (least..=MOST).contains(factor);
    for pair in pairs(text)? {
        match pair.0 {
            "min" => settings.min = value(pair, "1 to 1e9", factor(1.0))?,
            "max" => settings.max = value(pair, "1 to 1e9", factor(1.0))?,
            "eps" => settings.eps = value(pair, "above 0, at most 1", |eps| *eps > 0.0 && *eps <= 1.0)?,
            "omega" => settings.omega = value(pair, "0 to 1", |omega| (0.0..=1.0).contains(omega))?,
            "window" => settings.window = value(pair, "at least 1", |window| *window > 0)?,
            "policy" => {
                settings.policy = match pair.1 {
                    "exponential" => Policy::Exponential,
                    "geometric" => Policy::Geometric,
                    other => return Err(format!("policy={other}: expected one of exponential, geometric")),
                };
            }
            "clock" => {
                settings.clock = match pair.1 {
                    "wall" => Clock::Wall,
                    "none" => Clock::None,
                    other => return Err(format!("clock={other}: expected one of wall, none")),
                };
            }
            "smoothing" => {
                let weight = value(pair, "above 0, at most 1", |weight| *weight > 0.0 && *weight <= 1.0)?;
                settings.smoothing = Some(weight);
            }
            key => return Err(unknown(key, "min, max, eps, omega, window, policy, clock, smoothing")),
        }
    }
    let (min, max) = (settings.min, settings.max);
    if max < min { Err(format!("max={max}: expected at least min={min}")) } else { Ok(settings) }
}

fn accordion(text: &str) -> Result<AccordionSettings, String> {
    let mut settings = AccordionSettings::default();
    for pair in pairs(text)? {
        match pair.0 {
            "low" => settings.low = fraction(pair)?,
            "high" => settings.high = fraction(pair)?,
            "eta" => settings.eta = value(pair, "above 0", |eta: &f64| eta.is_finite() && *eta > 0.0)?,
            "window" => settings.window = value(pair, "at least 1", |window| *window > 0)?,
            key => return Err(unknown(key, "low, high, eta, window")),
        }
    }
    let (low, high) = (settings.low, settings.high);
    if high > low {
        return Err(format!("high={high}: expected at most low={low}; high compression is a low density"));
    }
    Ok(settings)
}

/// Prints every key.
impl fmt::Display for Adapt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |f: &mut fmt::Formatter<'_>, name, list: &[(u64, Density)]| {
            let pairs: Vec<String> = list.iter().map(|(from, density)| format!("{from}={density}")).collect();
            write!(f, "{name}:{}", pairs.join(","))
        };
        match self {
            Self::Steps(list) => listed(f, "steps", list),
            Self::Epochs(list) => listed(f, "epochs", list),
            Self::Gravac(GravacSettings { min, max, eps, omega, window, policy, clock, smoothing }) => {
                let policy = match policy {
                    Policy::Exponential => "exponential",
                    Policy::Geometric => "geometric",
                };
                let clock = if *clock == Clock::Wall { "wall" } else { "none" };
                write!(f, "gravac:min={min},max={max},eps={eps},omega={omega},window={window}")?;
                write!(f, ",policy={policy},clock={clock}")?;
                smoothing.map_or(Ok(()), |weight| write!(f, ",smoothing={weight}"))
            }
            Self::Accordion(AccordionSettings { low, high, eta, window }) => {
                write!(f, "accordion:low={low},high={high},eta={eta},window={window}")
            }
            Self::Replay(path) => write!(f, "replay:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_are_printed_as_they_are_read() {
        for spelling in [
            "steps:0=0.1,500=0.01",
            "epochs:0=1,4=0.001",
            "gravac:min=1.5,max=2000,eps=0.9,omega=0,window=2000,policy=geometric,clock=none",
            "gravac:min=10,max=1000,eps=0.7,omega=0.01,window=500,policy=exponential,clock=wall,smoothing=0.25",
            "accordion:low=0.25,high=0.01,eta=0.3,window=2",
            "replay:runs/a:b/metrics.jsonl",
        ] {
            assert_eq!(spelling.parse::<Adapt>().unwrap().to_string(), spelling);
        }
        let default = "accordion".parse::<Adapt>().unwrap();
        assert_eq!(default.to_string(), "accordion:low=0.1,high=0.01,eta=0.5,window=10");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        for (spelling, what) in [
            ("gravac:eps=0", "eps=0: expected above 0, at most 1"),
            ("gravac:min=0.5", "min=0.5: expected 1 to 1e9"),
            ("gravac:max=nan", "max=nan: expected 1 to 1e9"),
            ("gravac:max=5", "max=5: expected at least min=10"),
            ("gravac:omega=-1", "omega=-1: expected 0 to 1"),
            ("gravac:window=0", "window=0: expected at least 1"),
            ("gravac:policy=linear", "policy=linear: expected one of exponential, geometric"),
            ("gravac:clock=sun", "clock=sun: expected one of wall, none"),
            ("gravac:smoothing=0", "smoothing=0: expected above 0, at most 1"),
            (
                "gravac:theta=3",
                "theta: unknown key; known: min, max, eps, omega, window, policy, clock, smoothing",
            ),
            ("gravac:eps=0.7,eps=0.8", "eps: given twice"),
            ("gravac:eps", "eps: expected key=value"),
            ("accordion:low=2", "low=2: expected a fraction from 1e-9 to 1"),
            ("accordion:low=0.01,high=0.1", "high=0.1: expected at most low=0.01"),
            ("accordion:eta=0", "eta=0: expected above 0"),
            ("accordion:rank=2", "rank: unknown key; known: low, high, eta, window"),
            ("steps:", "no density, as in 0=0.1,500=0.01"),
            ("steps:5=0.1", "5: the first density is that of 0"),
            ("steps:0=0.1,0=0.2", "0: given twice"),
            ("steps:0=0.1,9=0.2,7=0.3", "7: expected a number above"),
            ("steps:0=0", "0=0: expected a fraction"),
            ("epochs:x=0.1", "x: expected a whole number"),
            ("replay:", "replay: the file is missing"),
            ("often", "expected one of: steps:"),
        ] {
            let error = spelling.parse::<Adapt>().unwrap_err();
            assert!(error.starts_with(what), "{spelling}: {error}");
        }
    }
}
