//! GraVAC: the highest compression at which enough of the gradient is sent.

use gradwire::Density;
use serde::{Deserialize, Serialize};

use super::decision::{Choice, Decision};

/// A throughput that is not measured again counts for this many windows.
const WINDOWS_KEPT: u64 = 4;
/// The first factor of either policy. It also follows every factor below it.
const FIRST_FACTOR: f64 = 2.0;

/// How candidates follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// Factors 2, 4, 16, 256, …: each is the square of the one before.
    Exponential,
    /// Factors 2, 4, 8, 16, …: each is twice the one before.
    Geometric,
}

impl Policy {
    /// The factor after this one.
    fn after(self, factor: f64) -> f64 {
        match self {
            _ if factor < FIRST_FACTOR => FIRST_FACTOR,
            Self::Exponential => factor * factor,
            Self::Geometric => 2.0 * factor,
        }
    }
}

/// Where the time of a step comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Clock {
    /// Measured. Decisions then depend on the machine and its load; `metrics.jsonl` replays them.
    Wall,
    /// No times: throughputs are not compared, and a run repeats bit for bit.
    None,
}

/// The settings of GraVAC. A compression factor is n/k, one over the density.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GravacSettings {
    /// The smallest compression factor, at least 1; it may rise.
    pub min: f64,
    /// The largest, at least `min`.
    pub max: f64,
    /// The least gain, above 0 and at most 1.
    pub eps: f64,
    /// Two gains, or two throughputs, count as equal if they differ by at most this share, 0 to 1.
    pub omega: f64,
    /// Steps between two changes of the factors, at least 1.
    pub window: u64,
    /// How candidates follow each other.
    pub policy: Policy,
    /// Where times come from.
    pub clock: Clock,
    /// Weight of the newest gain in the smoothed one, above 0 and at most 1; workers/100 unless it is given.
    /// A state holds the weight that follows from it.
    #[serde(skip)]
    pub smoothing: Option<f64>,
}

/// The paper's settings for DGC.
impl Default for GravacSettings {
    fn default() -> Self {
        let (policy, clock) = (Policy::Exponential, Clock::Wall);
        Self { min: 10.0, max: 1000.0, eps: 0.7, omega: 0.01, window: 500, policy, clock, smoothing: None }
    }
}

/// What all workers agreed on before a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreed {
    /// Gain at the smallest compression, mean over the workers.
    pub gain_min: f64,
    /// Gain of the candidate, mean over the workers.
    pub gain: f64,
    /// Seconds of the step before, of the slowest worker; 0 if it is not known.
    pub seconds: f64,
}

/// The controller: a state machine fed with agreed numbers.
///
/// ```text
/// before each step: [least, candidate] = levels(); the workers measure the gain of both, and agree
/// decide(agreed):
///   throughput[factor of the step before] = its gain / agreed.seconds
///   d_min, d_c = smoothed gains
///   d_c >= eps: candidate;  else d_min >= eps: min;  else dense
///   after every `window` steps:
///     |d_min - d_c| / d_min <= omega: min = candidate, and the factors start anew;  else the next factor
///     the two largest throughputs differ by at most omega: the candidate is the smaller of their two factors
/// ```
///
/// # Determinism
///
/// The same numbers give the same decisions: f64 arithmetic in one written order, on every machine.
///
/// # Source
///
/// Tyagi, Swany: GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training (arXiv
/// 2305.12201), algorithm 1. Ours are: min rises to the candidate whose gain was measured, where the paper
/// advances the factor first; smoothing starts anew with a new candidate; a throughput counts for four
/// windows; a step's time is known when the next one is decided; throughputs are per worker and step.
///
/// # Examples
///
/// ```
/// use gradwire_trainer::adapt::{Agreed, Choice, Gravac, GravacSettings};
///
/// let mut gravac = Gravac::new(GravacSettings::default(), 4);
/// assert_eq!(gravac.levels().map(|density| density.fraction()), [0.1, 0.05]);
/// let decision = gravac.decide(Agreed { gain_min: 0.9, gain: 0.6, seconds: 0.0 });
/// assert_eq!((decision.choice, decision.density.fraction()), (Choice::Min, 0.1));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gravac {
    settings: GravacSettings,
    /// Weight of the newest gain in the smoothed one.
    weight: f64,
    min: f64,
    /// The candidate over `min`, at least 1.
    factor: f64,
    gain_min: Option<f64>,
    gain: Option<f64>,
    throughputs: Vec<Throughput>,
    /// The last step, until its time is known.
    last: Option<Sent>,
    steps: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Sent {
    compression: f64,
    gain: f64,
}

/// Gain per second of the last step with that compression.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Throughput {
    compression: f64,
    value: f64,
    /// Windows that had ended when it was measured.
    window: u64,
}

fn density_of(compression: f64) -> Density {
    // Both ends of the settings' range are densities.
    Density::new(1.0 / compression).unwrap_or_else(|| unreachable!("compression factors are from 1 to 1e9"))
}

/// Whether two numbers differ by at most the share `omega` of `a`.
fn is_close(a: f64, b: f64, omega: f64) -> bool {
    (a - b).abs() <= omega * a
}

fn smooth(known: Option<f64>, new: f64, weight: f64) -> f64 {
    known.map_or(new, |known| weight * new + (1.0 - weight) * known)
}

impl Gravac {
    /// The controller before the first step of a run with that many workers.
    pub fn new(settings: GravacSettings, workers: usize) -> Self {
        let weight = settings.smoothing.unwrap_or(workers as f64 / 100.0).min(1.0);
        let (min, last, steps) = (settings.min, None, 0);
        let (gain_min, gain, throughputs) = (None, None, Vec::new());
        let factor = FIRST_FACTOR.min(settings.max / min);
        Self { settings, weight, min, factor, gain_min, gain, throughputs, last, steps }
    }

    /// Whether a state that was read has the settings of this controller.
    pub fn is_continued_by(&self, read: &Self) -> bool {
        let settings = GravacSettings { smoothing: read.settings.smoothing, ..self.settings };
        read.settings == settings && read.weight == self.weight
    }

    /// The densities whose gains are to be measured for the next step: at the smallest compression, and of
    /// the candidate, which is no higher.
    pub fn levels(&self) -> [Density; 2] {
        [density_of(self.min), density_of(self.candidate())]
    }

    fn candidate(&self) -> f64 {
        (self.min * self.factor).min(self.settings.max)
    }

    /// Decides the next step, for which the gains of [`levels`](Self::levels) were measured.
    pub fn decide(&mut self, agreed: Agreed) -> Decision {
        self.settle(agreed.seconds);
        let gain_min = smooth(self.gain_min, agreed.gain_min, self.weight);
        let gain = smooth(self.gain, agreed.gain, self.weight);
        (self.gain_min, self.gain) = (Some(gain_min), Some(gain));
        let (choice, compression, sent) = if gain >= self.settings.eps {
            (Choice::Candidate, self.candidate(), gain)
        } else if gain_min >= self.settings.eps {
            (Choice::Min, self.min, gain_min)
        } else {
            (Choice::Dense, 1.0, 1.0)
        };
        self.last = Some(Sent { compression, gain: sent });
        self.steps += 1;
        if self.steps.is_multiple_of(self.settings.window) {
            self.end_window(gain_min, gain);
        }
        let seconds = (self.settings.clock == Clock::Wall).then_some(agreed.seconds);
        let density = density_of(compression);
        Decision { density, choice, gain_min: Some(gain_min), gain: Some(gain), seconds }
    }

    /// The time of the last step is known.
    fn settle(&mut self, seconds: f64) {
        let Some(Sent { compression, gain }) = self.last.take() else { return };
        if self.settings.clock == Clock::None || seconds.is_nan() || seconds <= 0.0 {
            return;
        }
        let window = self.steps / self.settings.window;
        self.throughputs.retain(|known| known.compression != compression);
        self.throughputs.push(Throughput { compression, value: gain / seconds, window });
    }

    fn end_window(&mut self, gain_min: f64, gain: f64) {
        let (candidate, omega) = (self.candidate(), self.settings.omega);
        if self.factor > 1.0 && is_close(gain_min, gain, omega) {
            (self.min, self.gain_min, self.factor) = (candidate, Some(gain), FIRST_FACTOR);
        } else {
            self.factor = self.settings.policy.after(self.factor);
        }
        self.factor = self.factor.min(self.settings.max / self.min);
        let ended = self.steps / self.settings.window;
        self.throughputs.retain(|known| ended - known.window <= WINDOWS_KEPT);
        if let Some(ideal) = self.saturated() {
            self.factor = (ideal / self.min).max(1.0);
        }
        if self.candidate() != candidate {
            self.gain = None;
        }
    }

    /// The smaller factor of the two with the largest throughputs, if these are about the same. Of equal
    /// throughputs that of the smaller factor counts as larger.
    fn saturated(&self) -> Option<f64> {
        let mut sorted = self.throughputs.clone();
        let smaller = |a: &Throughput, b: &Throughput| b.compression.total_cmp(&a.compression);
        sorted.sort_by(|a, b| a.value.total_cmp(&b.value).then(smaller(a, b)));
        let [.., second, first] = sorted.as_slice() else { return None };
        let is_saturated = is_close(second.value, first.value, self.settings.omega);
        is_saturated.then(|| first.compression.min(second.compression))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Draws, Purpose};

    /// With a hundred workers the newest gain counts alone, so sequences can be worked out on paper.
    fn unsmoothed(policy: Policy, max: f64, window: u64) -> Gravac {
        Gravac::new(GravacSettings { policy, max, window, ..GravacSettings::default() }, 100)
    }

    /// One worker: by default a new gain moves the smoothed one by a hundredth of the way.
    #[test]
    fn the_weight_of_a_new_gain_can_be_chosen() {
        let second = |smoothing| {
            let settings = GravacSettings { smoothing, ..GravacSettings::default() };
            let mut gravac = Gravac::new(settings, 1);
            gravac.decide(Agreed { gain_min: 0.5, gain: 0.5, seconds: 0.0 });
            gravac.decide(Agreed { gain_min: 1.0, gain: 1.0, seconds: 0.0 }).gain.unwrap()
        };
        assert_eq!([None, Some(0.25), Some(1.0)].map(second), [0.505, 0.625, 1.0]);
    }

    #[test]
    fn a_state_continues_only_the_controller_with_its_settings() {
        let of = |smoothing, workers| {
            Gravac::new(GravacSettings { smoothing, ..GravacSettings::default() }, workers)
        };
        let state = postcard::to_stdvec(&of(Some(0.25), 4)).unwrap();
        let read: Gravac = postcard::from_bytes(&state).unwrap();
        assert!(of(Some(0.25), 4).is_continued_by(&read));
        assert!(of(None, 25).is_continued_by(&read), "the same weight");
        assert!(!of(None, 4).is_continued_by(&read));
        assert!(!of(Some(0.5), 4).is_continued_by(&read));
    }

    fn feed(gravac: &mut Gravac, gain_min: f64, gain: f64, seconds: f64) -> (Choice, f64) {
        let decision = gravac.decide(Agreed { gain_min, gain, seconds });
        (decision.choice, decision.density.fraction())
    }

    /// Compression factors of the two levels, to the accuracy of a density.
    fn factors(gravac: &Gravac) -> [u32; 2] {
        gravac.levels().map(|density| (1.0 / density.fraction()).round() as u32)
    }

    #[test]
    fn candidates_follow_each_other_as_the_paper_lists_them() {
        let candidates = |policy, max, count| {
            let mut gravac = unsmoothed(policy, max, 1);
            let mut seen = Vec::new();
            for _ in 0..count {
                seen.push(factors(&gravac)[1]);
                feed(&mut gravac, 0.9, 0.8, 0.0);
            }
            assert_eq!(factors(&gravac)[0], 10);
            seen
        };
        assert_eq!(candidates(Policy::Exponential, 1000.0, 5), [20, 40, 160, 1000, 1000]);
        let geometric = [20, 40, 80, 160, 320, 640, 1280, 2000, 2000];
        assert_eq!(candidates(Policy::Geometric, 2000.0, 9), geometric);
    }

    #[test]
    fn the_candidate_is_sent_if_it_can_be_and_else_the_least_and_else_everything() {
        let mut gravac = unsmoothed(Policy::Exponential, 1000.0, 500);
        assert_eq!(feed(&mut gravac, 0.9, 0.7, 0.0), (Choice::Candidate, 0.05));
        assert_eq!(feed(&mut gravac, 0.7, 0.69, 0.0), (Choice::Min, 0.1));
        assert_eq!(feed(&mut gravac, 0.69, 0.5, 0.0), (Choice::Dense, 1.0));
    }

    /// (0.99 − 0.985)/0.99 is 0.5 %: the candidate loses nothing, so it becomes the least compression.
    #[test]
    fn the_smallest_compression_rises_where_gains_are_the_same() {
        let mut gravac = unsmoothed(Policy::Exponential, 1000.0, 2);
        feed(&mut gravac, 0.5, 0.1, 0.0);
        assert_eq!(factors(&gravac), [10, 20], "within the window");
        feed(&mut gravac, 0.99, 0.985, 0.0);
        assert_eq!(factors(&gravac), [20, 40], "the factors start anew");
        feed(&mut gravac, 0.99, 0.97, 0.0);
        feed(&mut gravac, 0.99, 0.97, 0.0);
        assert_eq!(factors(&gravac), [20, 80], "2 % apart: the next factor is 4");
        for _ in 0..6 {
            feed(&mut gravac, 0.99, 0.985, 0.0);
        }
        // 80 with factor 2; 160 with factor 2; 320 with factor 2.
        assert_eq!(factors(&gravac), [320, 640]);
        feed(&mut gravac, 0.99, 0.985, 0.0);
        feed(&mut gravac, 0.99, 0.985, 0.0);
        assert_eq!(factors(&gravac), [640, 1000]);
        for _ in 0..4 {
            feed(&mut gravac, 0.99, 0.985, 0.0);
        }
        assert_eq!(factors(&gravac), [1000, 1000]);
    }

    /// Throughputs are gain over seconds; the time of a step comes with the next one.
    #[test]
    fn where_more_compression_saves_no_time_the_candidate_goes_back() {
        let mut gravac = unsmoothed(Policy::Exponential, 1000.0, 2);
        // Factor 20: 0.90 in 1 s, and again.
        feed(&mut gravac, 0.95, 0.90, 0.0);
        feed(&mut gravac, 0.95, 0.90, 1.0);
        assert_eq!(factors(&gravac), [10, 40], "one throughput is no pair");
        // Factor 40: 0.81 in 0.9 s is 0.9, as much as before.
        feed(&mut gravac, 0.95, 0.81, 1.0);
        feed(&mut gravac, 0.95, 0.81, 0.9);
        assert_eq!(factors(&gravac), [10, 20], "the smaller of 20 and 40");
        // Factor 20 is much faster now: 0.9 in 0.5 s is 1.8, and 1.8 and 0.9 do not count as equal.
        feed(&mut gravac, 0.95, 0.90, 0.9);
        feed(&mut gravac, 0.95, 0.90, 0.5);
        assert_eq!(factors(&gravac), [10, 40]);
    }

    #[test]
    fn without_a_clock_times_change_nothing() {
        let settings = GravacSettings { clock: Clock::None, window: 1, ..GravacSettings::default() };
        let mut gravac = Gravac::new(settings, 100);
        for _ in 0..3 {
            feed(&mut gravac, 0.95, 0.90, 1.0);
        }
        assert_eq!(factors(&gravac), [10, 1000]);
    }

    /// Factors 20 and 40 have the same throughput, 80 has a ninth of it; then 40 is not measured again. Its
    /// throughput is of the window that began after the second step, and four more windows end with it.
    #[test]
    fn a_throughput_counts_for_four_windows() {
        let mut gravac = unsmoothed(Policy::Geometric, 1000.0, 1);
        let mut candidate_after = |seconds| {
            feed(&mut gravac, 0.95, 0.90, seconds);
            factors(&gravac)[1]
        };
        assert_eq!([0.0, 1.0].map(&mut candidate_after), [40, 80]);
        assert_eq!([1.0, 9.0, 1.0, 1.0].map(&mut candidate_after), [20; 4]);
        assert_eq!(candidate_after(1.0), 40);
    }

    /// With 32 workers a new gain has the weight 0.32.
    #[test]
    fn gains_are_smoothed_by_the_number_of_workers() {
        let mut gravac = Gravac::new(GravacSettings::default(), 32);
        let gains = |decision: Decision| [decision.gain_min.unwrap(), decision.gain.unwrap()];
        let first = gains(gravac.decide(Agreed { gain_min: 1.0, gain: 0.5, seconds: 0.0 }));
        assert_eq!(first, [1.0, 0.5]);
        let second = gains(gravac.decide(Agreed { gain_min: 0.0, gain: 1.0, seconds: 0.0 }));
        assert!((second[0] - 0.68).abs() < 1e-12 && (second[1] - 0.66).abs() < 1e-12, "{second:?}");
    }

    /// The logged gains are smoothed already, so a controller that smooths nothing decides the same.
    #[test]
    fn decisions_can_be_derived_again_from_the_log() {
        for (seed, clock) in (0..40).flat_map(|seed| [(seed, Clock::Wall), (seed, Clock::None)]) {
            let mut draws = Draws::new(seed, Purpose::Shuffle, 0, 0);
            let smoothing = Some(draw(&mut draws, 0.01, 1.0));
            let omega = draw(&mut draws, 0.0, 0.5);
            let settings = GravacSettings { omega, window: 3, clock, smoothing, ..GravacSettings::default() };
            let mut gravac = Gravac::new(settings, 4);
            let mut again = Gravac::new(GravacSettings { smoothing: Some(1.0), ..settings }, 4);
            for _ in 0..60 {
                let gain_min = draw(&mut draws, 0.6, 1.0);
                let gain = gain_min * draw(&mut draws, 0.9, 1.0);
                let decision = gravac.decide(Agreed { gain_min, gain, seconds: draw(&mut draws, 0.0, 1.0) });
                let logged = serde_json::to_string(&decision).unwrap();
                let logged: Decision = serde_json::from_str(&logged).unwrap();
                assert_eq!((logged, logged.seconds.is_some()), (decision, clock == Clock::Wall));
                let (gain_min, gain) = (logged.gain_min.unwrap(), logged.gain.unwrap());
                let agreed = Agreed { gain_min, gain, seconds: logged.seconds.unwrap_or(0.0) };
                assert_eq!(again.decide(agreed), decision, "seed {seed}, {clock:?}");
            }
        }
    }

    fn draw(draws: &mut Draws, from: f64, to: f64) -> f64 {
        from + (to - from) * f64::from(draws.uniform_f32())
    }

    /// Whatever is measured: the choice follows from the gains, factors stay between min and max, and the
    /// least one never falls. A controller that was saved and read continues as the original does.
    #[test]
    fn decisions_keep_their_promises_for_any_numbers() {
        for seed in 0..200 {
            let mut draws = Draws::new(seed, Purpose::Shuffle, 0, 0);
            let min = draw(&mut draws, 1.0, 50.0);
            let settings = GravacSettings {
                min,
                max: min * draw(&mut draws, 1.0, 500.0),
                eps: draw(&mut draws, 0.1, 1.0),
                omega: draw(&mut draws, 0.0, 0.3),
                window: 1 + draws.below(6) as u64,
                policy: if draws.below(2) == 0 { Policy::Exponential } else { Policy::Geometric },
                clock: if draws.below(4) == 0 { Clock::None } else { Clock::Wall },
                smoothing: None,
            };
            let mut gravac = Gravac::new(settings, 1 + draws.below(150));
            let mut other = gravac.clone();
            for _ in 0..120 {
                let [least, candidate] = gravac.levels();
                assert!(candidate <= least && least <= density_of(settings.min));
                assert!(candidate >= density_of(settings.max));
                let gain_min = draw(&mut draws, 0.2, 1.0);
                let gain = gain_min * draw(&mut draws, 0.5, 1.0);
                let agreed = Agreed { gain_min, gain, seconds: draw(&mut draws, -0.1, 1.0) };
                let decision = gravac.decide(agreed);
                let (smoothed_min, smoothed) = (decision.gain_min.unwrap(), decision.gain.unwrap());
                let expected = if smoothed >= settings.eps {
                    (Choice::Candidate, candidate)
                } else if smoothed_min >= settings.eps {
                    (Choice::Min, least)
                } else {
                    (Choice::Dense, Density::new(1.0).unwrap())
                };
                assert_eq!((decision.choice, decision.density), expected);
                assert!(gravac.levels()[0] <= least, "the least compression never falls");
                assert!(gravac.throughputs.len() <= 24, "four factors in each of six windows");
                let saved = postcard::to_stdvec(&other).unwrap();
                other = postcard::from_bytes(&saved).unwrap();
                assert_eq!(other.decide(agreed), decision, "seed {seed}");
            }
        }
    }
}
