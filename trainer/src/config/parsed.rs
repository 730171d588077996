//! Settings that are more than a word or a number, as they were read.

use gradwire::Spec;
use gradwire::rules::Rules;

use super::codec::RunCodec;
use super::kinds::TopologyKind;
use crate::adapt::Adapt;

/// What the settings with the word `parsed` become.
pub(super) struct Parsed {
    pub(super) codec: RunCodec,
    pub(super) rules: Option<Rules>,
    pub(super) topology: Option<TopologyKind>,
    pub(super) downlink: Option<Spec>,
    pub(super) adapt: Option<Adapt>,
}
