//! Before the network's own library sums, every rank says to all others that it will call the library. Nobody
//! in that call can be told that another rank does not come.
//!
//! A rank enters once it has heard all others. From the moment at which it has said so itself, it waits
//! without a deadline, and its caller's failure waits too: others may be in the library already. It stays
//! outside only if a rank says that it fails, or is gone: then nobody enters.

use super::error::ExchangeError;
use super::port::Care;
use super::step::Step;
use crate::tag::Tag;

/// How far a rank is on its way into the library.
#[derive(Debug, Default)]
pub(super) enum Entry {
    #[default]
    Outside,
    /// It has said that it enters. So many others have not; then the deadline is this again.
    Waiting {
        missing: usize,
        by: u64,
    },
    Inside,
}

impl Entry {
    /// Goes on towards the library. Returns whether this rank may call it.
    pub(super) fn go_on(
        &mut self,
        step: &mut Step<'_>,
        message: &mut Vec<u8>,
    ) -> Result<bool, ExchangeError> {
        if let Self::Outside = self {
            let tag = tag_of(step.tag);
            step.send_to_all(tag, &[], Care::Must);
            step.expect_from_all(tag);
            let by = std::mem::replace(&mut step.port.deadline, u64::MAX);
            *self = Self::Waiting { missing: step.members().len() - 1, by };
        }
        let Self::Waiting { missing, by } = self else { return Ok(true) };
        while *missing > 0 {
            if !step.take(message)? {
                return Ok(false);
            }
            *missing -= 1;
        }
        if !step.port.has_sent()? {
            return Ok(false);
        }
        step.port.deadline = *by;
        *self = Self::Inside;
        Ok(true)
    }

    /// Whether this rank has said that it enters.
    pub(super) fn is_promised(&self) -> bool {
        !matches!(self, Self::Outside)
    }
}

fn tag_of(step: Tag) -> Tag {
    step.unit(u32::MAX).chunk(3)
}
