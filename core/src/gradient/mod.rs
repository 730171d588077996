//! A gradient, and how it is cut.

pub(crate) mod density;
pub(crate) mod grad;
pub(crate) mod layout;
pub(crate) mod unit;
