//! How much of a gradient is sent: for callers that set the density of each step.
//!
//! | | memory | one pass over the gradient gives |
//! | --- | --- | --- |
//! | `Selection` | is only read | the gain at several densities, and the frame or the payload at one of them |
//! | `Trial` | is copied | frame and gain of one encode with any gather codec |
//! | [`of_frame_and_residual`], [`of_frame_and_gradient`] | was changed by an encode | the gain of that encode |
//!
//! # Source
//! Tyagi, Swany: GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training (arXiv
//! 2305.12201), where the gain is E‖g_c‖² / E‖g_ef‖², g_ef the gradient with error feedback added and g_c the
//! part of it that is sent.

mod frame;
mod squares;

pub use frame::{of_frame_and_gradient, of_frame_and_residual};
#[cfg(feature = "alloc")]
pub(crate) use squares::SquareSum;

use core::ops::AddAssign;

/// The part of a gradient that is sent, and the whole of it, as sums of squares: ‖C(p)‖² and ‖p‖², where p =
/// fl(residual + gradient).
///
/// Gains of units, steps and workers can be added; [`ratio`](Self::ratio) is then the ratio for all of them
/// together.
///
/// # Determinism
/// Sums of squares in f64, in eight strides for each unit as ARCHITECTURE.md writes them, units ascending:
/// the same on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gain {
    /// ‖C(p)‖², of the decoded frame.
    pub sent: f64,
    /// ‖p‖².
    pub whole: f64,
}

impl Gain {
    /// ‖C(p)‖² / ‖p‖², or 1 if p is zero. From 0 to 1 for codecs that choose coordinates and send them
    /// unchanged, except for rounding: the two sums add in different orders, so 1 may become 1 + 2⁻⁵². For
    /// unbiased codecs it may be above 1, because C(p) may have a larger norm than p.
    ///
    /// # Examples
    /// ```
    /// use gradwire::arithmetic::gain::Gain;
    /// assert_eq!(Gain { sent: 9.0, whole: 12.0 }.ratio(), 0.75);
    /// assert_eq!(Gain::default().ratio(), 1.0);
    /// ```
    #[must_use]
    pub fn ratio(self) -> f64 {
        if self.whole == 0.0 { 1.0 } else { self.sent / self.whole }
    }
}

impl AddAssign for Gain {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.whole += other.whole;
    }
}
