//! How much of a gradient is sent.

use super::encode::{count, largest};
use gradwire::arithmetic::gain::Gain;
use gradwire::{Density, Unit};

/// Σ x² in f64: q[i mod 8], then ((q0 + q4) + (q2 + q6)) + ((q1 + q5) + (q3 + q7)).
#[must_use]
pub fn squares(values: &[f32]) -> f64 {
    let mut q = [0.0; 8];
    for (i, &value) in values.iter().enumerate() {
        q[i % 8] += f64::from(value) * f64::from(value);
    }
    ((q[0] + q[4]) + (q[2] + q[6])) + ((q[1] + q[5]) + (q[3] + q[7]))
}

/// The gain of top-k over these units of p, with values as they are.
#[must_use]
pub fn of_density(units: &[Unit], p: &[f32], density: Density) -> Gain {
    let mut gain = Gain::default();
    for unit in units {
        let p = &p[unit.range()];
        let k = if unit.dense { p.len() } else { count(density, p.len()) };
        let sent: Vec<f32> = largest(p, k).into_iter().map(|i| p[i]).collect();
        gain.sent += if unit.dense { squares(p) } else { squares(&sent) };
        gain.whole += squares(p);
    }
    gain
}
