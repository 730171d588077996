//! Momentum of one worker, before compression.

use crate::built::Full;

/// The step that a worker makes of its gradient g and its momentum u, which holds the earlier gradients:
///
/// ```text
/// plain      u = fl(fl(m·u) + g)    step = u
/// Nesterov   u = fl(m·fl(u + g))    step = fl(u + g), with u as it is now
/// ```
///
/// The residual adds these steps up. So for every coordinate it holds the distance by which dense momentum
/// would have moved it, which is the correction that a delayed coordinate needs.
///
/// # Source
/// Lin et al.: Deep Gradient Compression (arXiv 1712.01887), section 3.2; Nesterov's form as in the authors'
/// code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    factor: f32,
    nesterov: bool,
    _full: Full,
}

impl Momentum {
    /// Momentum with a factor m above 0 and below 1, in the plain form or in Nesterov's; else `None`. Needs
    /// the feature `full`.
    #[must_use]
    pub fn new(factor: f32, nesterov: bool) -> Option<Self> {
        let full = Full::build().filter(|_| factor > 0.0 && factor < 1.0);
        full.map(|full| Self { factor, nesterov, _full: full })
    }

    /// The factor m.
    #[must_use]
    pub fn factor(self) -> f32 {
        self.factor
    }

    /// Whether this is Nesterov's form.
    #[must_use]
    pub fn is_nesterov(self) -> bool {
        self.nesterov
    }

    /// The momentum after this gradient, and the step.
    #[inline(always)]
    pub(crate) fn apply(self, momentum: f32, grad: f32) -> (f32, f32) {
        if self.nesterov {
            let momentum = self.factor * (momentum + grad);
            (momentum, momentum + grad)
        } else {
            let momentum = self.factor * momentum + grad;
            (momentum, momentum)
        }
    }
}
