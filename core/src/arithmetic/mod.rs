//! What is done to whole gradients besides encoding them.

pub(crate) mod clip;
pub(crate) mod mean;
