//! The spellings that tests go through: those that a test names, and the examples of every listed codec.

use gradwire::registry::{CODECS, Law};
use gradwire::state::MemoryChoice;
use gradwire::{Codec, Spec};

/// Whether a codec makes frames.
#[must_use]
pub fn has_frames(spec: &Spec) -> bool {
    spec.codec.capabilities().has_frames && !matches!(spec.codec, Codec::Gossip(_))
}

/// Whether a residual is all that it keeps, by the exact law.
#[must_use]
pub fn keeps_exactly(spec: &Spec) -> bool {
    has_frames(spec)
        && spec.codec.capabilities().law == Law::Exact
        && !spec.codec.capabilities().adapts
        && spec.memory == MemoryChoice::ErrorFeedback
}

/// Whether its frames can be cut into packets: nothing says that they cannot.
#[must_use]
pub fn is_cut(spec: &Spec) -> bool {
    let size = gradwire::packets::PacketSize::new(1000);
    Spec { packets: size, ..*spec }.conflict().is_none() && has_frames(spec)
}

/// The examples of all codecs.
pub fn examples() -> impl Iterator<Item = &'static str> {
    CODECS.iter().flat_map(|entry| entry.examples).copied()
}

/// Those that the test names, then the examples of all codecs for which `is_meant` holds. So a codec that is
/// added to the list is in the test.
///
/// # Panics
/// When an example cannot be read, and when there is nothing to add.
#[must_use]
pub fn and_examples(named: &[&'static str], is_meant: impl Fn(&Spec) -> bool) -> Vec<&'static str> {
    let mut all = named.to_vec();
    let examples = examples().filter(|example| {
        is_meant(&Spec::parse(example).unwrap_or_else(|error| panic!("{example}: {error}")))
    });
    all.extend(examples.filter(|example| !named.contains(example)).collect::<Vec<_>>());
    assert!(all.len() > named.len(), "no example of any codec");
    all
}
