//! Densities that change from epoch to epoch.

use crate::gradient::density::Density;

/// The density of an epoch, counted from 0, while a run warms up for `epochs` epochs: density^((epoch +
/// 1)/(epochs + 1)), to the nearest billionth, and `density` itself from then on. The number of coordinates
/// sent falls by the same factor from epoch to epoch.
///
/// # Determinism
/// The power is `libm`'s: the same on every machine.
///
/// # Source
/// Lin et al.: Deep Gradient Compression (arXiv 1712.01887), section 3.3, where 0.001 in four epochs is 25 %,
/// 6.25 %, 1.5625 %, 0.4 %; the formula is that of the authors' code.
///
/// # Examples
/// ```
/// use gradwire::Density;
/// use gradwire::arithmetic::warm_up;
/// let density = Density::new(0.001).unwrap();
/// let densities = [0, 1, 2, 3, 4, 5].map(|epoch| warm_up(density, 4, epoch).to_string());
/// assert_eq!(densities, ["0.251188643", "0.063095734", "0.015848932", "0.003981072", "0.001", "0.001"]);
/// ```
#[must_use]
pub fn warm_up(density: Density, epochs: u32, epoch: u64) -> Density {
    if epoch >= u64::from(epochs) {
        return density;
    }
    let exponent = (epoch + 1) as f64 / (f64::from(epochs) + 1.0);
    Density::new(libm::pow(density.fraction(), exponent)).map_or(density, |warm| warm.max(density))
}
