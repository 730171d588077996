//! What is done to whole gradients besides encoding them.

pub(crate) mod clip;
pub mod gain;
pub(crate) mod mean;

pub use crate::spec::schedule::warm_up;
pub use clip::clip_norm;
pub use mean::{divide, divide_by_counts, first_non_finite};
