//! Numbers to bits and back: entropy coders, positions, values. Knows nothing of gradients' layouts beyond
//! their shapes.

pub(crate) mod entropy;
pub(crate) mod index;
pub(crate) mod values;
