//! Operations on whole gradients other than encoding.

pub(crate) mod clip;
pub mod gain;
pub(crate) mod mean;
pub(crate) mod vectorised;

pub use crate::kernels::Loop;
pub use crate::spec::schedule::warm_up;
pub use clip::clip_norm;
pub use mean::{clear, divide, divide_by_counts, first_non_finite};
pub use vectorised::vectorised;
