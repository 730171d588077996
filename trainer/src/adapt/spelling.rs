//! How the setting `adapt` is spelled.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use gradwire::{Density, Spec};

use super::accordion::{AccordionSettings, By, Level};
use super::gravac::{Clock, GravacSettings, Policy};
use super::list::rules;

/// The setting `adapt`, read: what sets the density of each step.
///
/// # Examples
///
/// ```
/// use gradwire::Spec;
/// use gradwire_trainer::adapt::Adapt;
///
/// let topk = Spec::parse("topk").unwrap();
/// let gravac = Adapt::read("gravac:max=500", &topk)?;
/// let complete = "gravac:min=10,max=500,eps=0.7,omega=0.01,window=500,policy=exponential,clock=wall";
/// assert_eq!(gravac.to_string(), complete);
/// let error = Adapt::read("gravac:eps=2", &topk).unwrap_err();
/// assert_eq!(error, "eps=2: expected above 0, at most 1");
/// let ranks = Adapt::read("accordion:low=2", &Spec::parse("powersgd").unwrap())?;
/// assert_eq!(ranks.to_string(), "accordion:low=2,high=1,eta=0.5,window=10,by=model");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Adapt {
    /// A density from each of these steps on; the first is 0.
    Steps(Vec<(u64, Density)>),
    /// A density from each of these epochs on; the first is 0.
    Epochs(Vec<(u64, Density)>),
    /// A density for the tensors whose names a pattern fits; the last pattern fits all.
    Layers(Vec<(String, Density)>),
    /// A density once the training loss was below a value; the first is infinite.
    Loss(Vec<(f64, Density)>),
    /// [`Gravac`](super::Gravac).
    Gravac(GravacSettings),
    /// [`Accordion`](super::Accordion).
    Accordion(AccordionSettings),
    /// The decisions of another run, from its `metrics.jsonl` or the folder with it.
    Replay(PathBuf),
}

const FORMS: &str = "steps:0=0.1,500=0.01; epochs:0=0.1,4=0.01; layers:*.bias=1,*=0.01; loss:inf=0.1,3=0.01; \
                     gravac:KEY=VALUE,…; accordion:KEY=VALUE,…; replay:FILE";
const FRACTION: &str = "a fraction from 1e-9 to 1";
/// 1e9: the inverse of the smallest density.
const MOST: f64 = 1e9;

impl Adapt {
    /// Reads a spelling. The codec says whether Accordion sets densities or ranks, and whether by layer or
    /// for the model, if the spelling does not say so.
    ///
    /// # Errors
    ///
    /// The key and what it may be.
    pub fn read(spelling: &str, spec: &Spec) -> Result<Self, String> {
        let (name, rest) = spelling.split_once(':').unwrap_or((spelling, ""));
        match name {
            "steps" => list(rest).map(Self::Steps),
            "epochs" => list(rest).map(Self::Epochs),
            "layers" => layers(rest).map(Self::Layers),
            "loss" => by_loss(rest).map(Self::Loss),
            "gravac" => gravac(rest).map(Self::Gravac),
            "accordion" => accordion(rest, spec).map(Self::Accordion),
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

fn layers(text: &str) -> Result<Vec<(String, Density)>, String> {
    let pairs = pairs(text)?;
    let list = pairs.into_iter().map(|pair| Ok((pair.0.to_owned(), fraction(pair)?)));
    let list: Vec<(String, Density)> = list.collect::<Result<_, String>>()?;
    rules(&list).map(|_| list)
}

fn by_loss(text: &str) -> Result<Vec<(f64, Density)>, String> {
    let mut list: Vec<(f64, Density)> = Vec::new();
    for pair in pairs(text)? {
        let read = pair.0.parse().ok().filter(|below: &f64| !below.is_nan());
        let below = read.ok_or_else(|| format!("{}: expected a loss, or inf", pair.0))?;
        if list.last().is_some_and(|(before, _)| *before <= below) {
            return Err(format!("{}: expected a loss below the one before it", pair.0));
        }
        list.push((below, fraction(pair)?));
    }
    match list.first() {
        Some((first, _)) if *first == f64::INFINITY => Ok(list),
        Some((first, _)) => Err(format!("{first}: the first density is that of inf, as in inf=0.1,3=0.01")),
        None => Err("no density, as in inf=0.1,3=0.01".to_owned()),
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

fn accordion(text: &str, spec: &Spec) -> Result<AccordionSettings, String> {
    let has_rank = spec.codec.rank().is_some();
    let by = if spec.units.per_tensor { By::Layer } else { By::Model };
    let mut settings = if has_rank { AccordionSettings::ranks(by) } else { AccordionSettings::densities(by) };
    let level = |pair| match has_rank {
        true => value(pair, "a rank from 1 to 256", |rank| (1..=256).contains(rank)).map(Level::Rank),
        false => fraction(pair).map(Level::Density),
    };
    for pair in pairs(text)? {
        match pair.0 {
            "low" => settings.low = level(pair)?,
            "high" => settings.high = level(pair)?,
            "eta" => settings.eta = value(pair, "above 0", |eta: &f64| eta.is_finite() && *eta > 0.0)?,
            "window" => settings.window = value(pair, "at least 1", |window| *window > 0)?,
            "by" => {
                settings.by = match pair.1 {
                    "layer" => By::Layer,
                    "model" => By::Model,
                    other => return Err(format!("by={other}: expected one of layer, model")),
                };
            }
            key => return Err(unknown(key, "low, high, eta, window, by")),
        }
    }
    let AccordionSettings { low, high, .. } = settings;
    if high.amount() > low.amount() {
        let what = if has_rank { "rank" } else { "density" };
        return Err(format!("high={high}: expected at most low={low}; high compression is a low {what}"));
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
            Self::Layers(list) => {
                let pairs: Vec<String> =
                    list.iter().map(|(pattern, density)| format!("{pattern}={density}")).collect();
                write!(f, "layers:{}", pairs.join(","))
            }
            Self::Loss(list) => {
                let pairs: Vec<String> =
                    list.iter().map(|(below, density)| format!("{below}={density}")).collect();
                write!(f, "loss:{}", pairs.join(","))
            }
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
            Self::Accordion(AccordionSettings { low, high, eta, window, by }) => {
                let by = if *by == By::Layer { "layer" } else { "model" };
                write!(f, "accordion:low={low},high={high},eta={eta},window={window},by={by}")
            }
            Self::Replay(path) => write!(f, "replay:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spelling: &str, codec: &str) -> Result<Adapt, String> {
        Adapt::read(spelling, &Spec::parse(codec).unwrap())
    }

    #[test]
    fn spellings_are_printed_as_they_are_read() {
        for spelling in [
            "steps:0=0.1,500=0.01",
            "epochs:0=1,4=0.001",
            "gravac:min=1.5,max=2000,eps=0.9,omega=0,window=2000,policy=geometric,clock=none",
            "gravac:min=10,max=1000,eps=0.7,omega=0.01,window=500,policy=exponential,clock=wall,smoothing=0.25",
            "accordion:low=0.25,high=0.01,eta=0.3,window=2,by=layer",
            "layers:*.bias=1,embed.?=0.001,*=0.01",
            "loss:inf=0.1,3.5=0.01,-1=0.001",
            "replay:runs/a:b/metrics.jsonl",
        ] {
            assert_eq!(read(spelling, "topk").unwrap().to_string(), spelling);
        }
    }

    #[test]
    fn the_codec_says_what_accordion_sets_by_default() {
        for (codec, printed) in [
            ("topk", "accordion:low=0.1,high=0.01,eta=0.5,window=10,by=model"),
            ("topk:unit=tensor", "accordion:low=0.1,high=0.01,eta=0.5,window=10,by=layer"),
            ("powersgd", "accordion:low=4,high=1,eta=0.5,window=10,by=model"),
            ("powersgd:unit=tensor", "accordion:low=4,high=1,eta=0.5,window=10,by=layer"),
        ] {
            assert_eq!(read("accordion", codec).unwrap().to_string(), printed, "{codec}");
        }
        let error = |spelling: &str| read(spelling, "powersgd").unwrap_err();
        assert_eq!(error("accordion:low=0.1"), "low=0.1: expected a rank from 1 to 256");
        assert_eq!(error("accordion:low=300"), "low=300: expected a rank from 1 to 256");
        let reversed = "high=8: expected at most low=4; high compression is a low rank";
        assert_eq!(error("accordion:high=8"), reversed);
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
            ("accordion:rank=2", "rank: unknown key; known: low, high, eta, window, by"),
            ("accordion:by=row", "by=row: expected one of layer, model"),
            ("layers:", "the last pattern is *"),
            ("layers:*.bias=1", "the last pattern is *"),
            ("layers:*=0.1,*.bias=1,*=0.2", "*: given twice"),
            ("layers:*.bias=2,*=0.1", "*.bias=2: expected a fraction"),
            ("layers:=1,*=0.1", "rule ''"),
            ("loss:", "no density, as in inf=0.1"),
            ("loss:3=0.1", "3: the first density is that of inf"),
            ("loss:inf=0.1,low=0.01", "low: expected a loss, or inf"),
            ("loss:inf=0.1,nan=0.01", "nan: expected a loss, or inf"),
            ("loss:inf=0.1,2=0.01,3=0.1", "3: expected a loss below the one before it"),
            ("loss:inf=0.1,2=0", "2=0: expected a fraction"),
            ("steps:", "no density, as in 0=0.1,500=0.01"),
            ("steps:5=0.1", "5: the first density is that of 0"),
            ("steps:0=0.1,0=0.2", "0: given twice"),
            ("steps:0=0.1,9=0.2,7=0.3", "7: expected a number above"),
            ("steps:0=0", "0=0: expected a fraction"),
            ("epochs:x=0.1", "x: expected a whole number"),
            ("replay:", "replay: the file is missing"),
            ("often", "expected one of: steps:"),
        ] {
            let error = read(spelling, "topk").unwrap_err();
            assert!(error.starts_with(what), "{spelling}: {error}");
        }
    }
}
