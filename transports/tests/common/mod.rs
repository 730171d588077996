//! What several tests share. Other programs of tests take single files of it by their path.

pub(crate) mod forward;
pub(crate) mod learned;
pub(crate) mod led;
