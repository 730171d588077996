//! Gradients to measure on: seeded, or read from a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gradwire::random::Stream;
use gradwire::{Source, StepKey};

use crate::buffer::Aligned;
use crate::settings::Settings;

/// What a gradient looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Cubes of Gaussians: the largest 1 % hold about half of the energy, as in gradients of young models.
    Heavy,
    /// Gaussian, as in accumulators under momentum correction.
    Gaussian,
    /// Nothing but one value: every selection is a tie.
    Equal,
    /// Cubes of Gaussians, of which 42 % are exactly zero, as in models with untouched embeddings.
    Zeros,
    /// Cubes of Gaussians in ascending order: what is selected lies at both ends.
    Sorted,
    /// Nothing but zero.
    Constant,
    /// The file that `GRADWIRE_BENCH_FILE` names, repeated up to the length.
    File,
}

impl Input {
    /// Inputs on which speed is stated.
    pub const USUAL: [Self; 3] = [Self::Heavy, Self::Gaussian, Self::File];
    /// Inputs that should not be much slower.
    pub const UNUSUAL: [Self; 4] = [Self::Equal, Self::Zeros, Self::Sorted, Self::Constant];

    /// Name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Heavy => "heavy",
            Self::Gaussian => "gaussian",
            Self::Equal => "equal",
            Self::Zeros => "zeros",
            Self::Sorted => "sorted",
            Self::Constant => "constant",
            Self::File => "file",
        }
    }

    /// Whether there is such an input; says so where there is none.
    #[must_use]
    pub fn is_available(self, settings: &Settings) -> bool {
        let is_missing = self == Self::File && settings.file.is_none();
        if is_missing {
            println!("skipped: real data, because GRADWIRE_BENCH_FILE does not name a file");
        }
        !is_missing
    }
}

/// Gradients of successive steps: windows of one long sequence, so that each step sees other values at no
/// cost. Made when the first is asked for.
#[derive(Debug)]
pub struct Gradient {
    input: Input,
    len: usize,
    file: Option<PathBuf>,
    values: OnceLock<Aligned>,
}

/// Elements between the windows of two steps.
const SHIFT: usize = 4096;
/// Windows before the first comes again.
const WINDOWS: usize = 8;
/// Size of a typical element.
const SCALE: f32 = 1e-3;

impl Gradient {
    /// A gradient of `len` elements.
    #[must_use]
    pub fn new(input: Input, len: usize, settings: &Settings) -> Self {
        Self { input, len, file: settings.file.clone(), values: OnceLock::new() }
    }

    fn make(&self) -> Aligned {
        let mut values = Aligned::filled(self.len + SHIFT * (WINDOWS - 1), SCALE);
        let slice = values.as_mut_slice();
        match self.input {
            Input::Heavy => fill_heavy(slice),
            Input::Gaussian => fill_gaussian(slice),
            Input::Equal => {}
            Input::Zeros => {
                fill_heavy(slice);
                let stream = stream(1);
                let is_zero = |i: usize| stream.below_at(i as u64, 100) < 42;
                slice.iter_mut().enumerate().filter(|(i, _)| is_zero(*i)).for_each(|(_, value)| *value = 0.0);
            }
            Input::Sorted => {
                fill_heavy(slice);
                slice.sort_unstable_by(f32::total_cmp);
            }
            Input::Constant => slice.fill(0.0),
            Input::File => {
                let file = read_values(self.file.as_deref().expect("GRADWIRE_BENCH_FILE names a file"));
                slice.iter_mut().zip(file.iter().cycle()).for_each(|(value, &read)| *value = read);
            }
        }
        values
    }

    /// The gradient of a step.
    ///
    /// # Panics
    /// When the file of [`Input::File`] cannot be read; see [`Input::is_available`].
    #[must_use]
    pub fn step(&self, step: u64) -> &[f32] {
        let start = step as usize % WINDOWS * SHIFT;
        &self.values.get_or_init(|| self.make()).as_slice()[start..start + self.len]
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// About the magnitude that one element in a hundred exceeds.
    #[must_use]
    pub fn one_percent_magnitude(&self) -> f32 {
        let mut sample: Vec<f32> = self.step(0).iter().take(1 << 17).map(|value| value.abs()).collect();
        let rank = sample.len() - 1 - sample.len() / 100;
        *sample.select_nth_unstable_by(rank, f32::total_cmp).1
    }
}

fn stream(unit: u32) -> Stream {
    StepKey { seed: 25, step: 0, source: Source::Shared }.stream(unit)
}

/// Standard normal numbers by Box and Muller, two a draw.
fn fill_gaussian(values: &mut [f32]) {
    let stream = stream(0);
    for (i, pair) in values.chunks_mut(2).enumerate() {
        let draw = stream.u64_at(i as u64);
        // In (0, 1], so that the logarithm is finite; and in [0, 1).
        let radius = ((draw as u32 as f64 + 1.0) / 4_294_967_296.0) as f32;
        let turn = (draw >> 32) as f32 / 4_294_967_296.0;
        let radius = libm::sqrtf(-2.0 * libm::logf(radius));
        let (sine, cosine) = libm::sincosf(turn * std::f32::consts::TAU);
        pair.iter_mut().zip([cosine, sine]).for_each(|(value, part)| *value = radius * part * SCALE);
    }
}

fn fill_heavy(values: &mut [f32]) {
    fill_gaussian(values);
    values.iter_mut().for_each(|value| *value *= (*value / SCALE) * (*value / SCALE));
}

/// The values of a safetensors file, or of a file of nothing but little-endian f32. What is not finite
/// becomes zero.
fn read_values(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).expect("the file that GRADWIRE_BENCH_FILE names can be read");
    let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
    // Eight bytes say how long the description is that precedes the data.
    let start = match bytes.first_chunk::<8>() {
        Some(&len) if is_safetensors => 8 + u64::from_le_bytes(len) as usize,
        _ => 0,
    };
    let data = bytes.get(start..).unwrap_or_default();
    let values: Vec<f32> = data.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
    assert!(!values.is_empty(), "the file that GRADWIRE_BENCH_FILE names holds values");
    values.into_iter().map(|value| if value.is_finite() { value } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100_000;

    fn settings() -> Settings {
        Settings { quick: true, len: LEN, full: false, file: None, results: None }
    }

    fn values(input: Input) -> Vec<f32> {
        Gradient::new(input, LEN, &settings()).step(0).to_vec()
    }

    /// Share of the energy in the largest 1 %.
    fn share(mut values: Vec<f32>) -> f64 {
        values.sort_unstable_by(|a, b| b.abs().total_cmp(&a.abs()));
        let energy = |values: &[f32]| values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        energy(&values[..LEN / 100]) / energy(&values)
    }

    #[test]
    fn one_percent_holds_the_energy_that_the_names_promise() {
        let heavy = share(values(Input::Heavy));
        assert!((0.4..0.6).contains(&heavy), "{heavy}");
        let gaussian = share(values(Input::Gaussian));
        assert!((0.07..0.1).contains(&gaussian), "{gaussian}");
    }

    #[test]
    fn inputs_are_what_their_names_say() {
        assert!(values(Input::Sorted).is_sorted());
        let zeros = values(Input::Zeros).iter().filter(|&&value| value == 0.0).count();
        // 42 000 expected, standard deviation 156; five of them either side.
        assert!((41_220..=42_780).contains(&zeros), "{zeros}");
        assert!(values(Input::Equal).iter().all(|&value| value == SCALE));
        assert!(values(Input::Constant).iter().all(|&value| value == 0.0));
    }

    #[test]
    fn steps_see_other_values() {
        let gradient = Gradient::new(Input::Heavy, LEN, &settings());
        assert_ne!(gradient.step(0), gradient.step(1));
        assert_eq!(gradient.step(0), gradient.step(WINDOWS as u64));
    }
}
