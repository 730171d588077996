//! Messages between server and workers other than frames and verdicts, little-endian.

use crate::rank::Rank;
use crate::tag::Tag;

/// What comes after the step that has closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The epoch of the next step.
    pub epoch: u32,
    /// The next step.
    pub step: u64,
    /// Whether the run is over, so that no step follows.
    pub is_over: bool,
    /// The ranks that take part in it, ascending.
    pub ranks: Vec<Rank>,
}

/// What a worker reports about itself in each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Norm of its residual, which is lost if it dies now.
    pub residual_norm: f64,
    /// Hash of its parameters before the step; 0 when it was not computed.
    pub params_hash: u64,
    /// Whether it leaves after this step, so that no later step waits for it.
    pub leaves: Leaves,
}

/// Whether a worker leaves, and what becomes of its residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// It stays.
    No,
    /// It takes its residual along, so nothing is lost.
    Keeping,
    /// Its residual is lost with it.
    Losing,
}

impl Notice {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.step.to_le_bytes());
        out.push(u8::from(self.is_over));
        out.extend_from_slice(&(self.ranks.len() as u32).to_le_bytes());
        self.ranks.iter().for_each(|rank| out.extend_from_slice(&rank.0.to_le_bytes()));
    }

    /// Reads a notice; returns what follows it.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (epoch, rest) = bytes.split_first_chunk()?;
        let (step, rest) = rest.split_first_chunk()?;
        let (is_over, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (ranks, rest) = rest.split_at_checked(count.checked_mul(4)?)?;
        let ranks: Vec<Rank> =
            ranks.as_chunks().0.iter().map(|rank| Rank(u32::from_le_bytes(*rank))).collect();
        let is_over = truth(*is_over)?;
        let (epoch, step) = (u32::from_le_bytes(*epoch), u64::from_le_bytes(*step));
        let makes_sense = epoch < Tag::JOINING && ranks.windows(2).all(|pair| pair[0] < pair[1]);
        makes_sense.then_some((Self { epoch, step, is_over, ranks }, rest))
    }
}

impl Report {
    pub(super) fn write(&self) -> [u8; 17] {
        let mut out = [0; 17];
        out[..8].copy_from_slice(&self.residual_norm.to_le_bytes());
        out[8..16].copy_from_slice(&self.params_hash.to_le_bytes());
        out[16] = self.leaves as u8;
        out
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (norm, rest) = bytes.split_first_chunk()?;
        let (hash, rest) = rest.split_first_chunk()?;
        let (residual_norm, params_hash) = (f64::from_le_bytes(*norm), u64::from_le_bytes(*hash));
        let leaves = match rest {
            [0] => Leaves::No,
            [1] => Leaves::Keeping,
            [2] => Leaves::Losing,
            _ => return None,
        };
        (residual_norm >= 0.0).then_some(Self { residual_norm, params_hash, leaves })
    }
}

fn truth(byte: [u8; 1]) -> Option<bool> {
    match byte {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_round_trip_and_damaged_ones_are_refused() {
        let notice = Notice { epoch: 3, step: 1 << 40, is_over: true, ranks: vec![Rank(0), Rank(7)] };
        let mut bytes = Vec::new();
        notice.write(&mut bytes);
        let len = bytes.len();
        bytes.extend_from_slice(b"state");
        assert_eq!(Notice::read(&bytes), Some((notice.clone(), &b"state"[..])));
        assert!((0..len).all(|cut| Notice::read(&bytes[..cut]).is_none()));
        for ranks in [vec![Rank(7), Rank(0)], vec![Rank(1); 2]] {
            let mut bytes = Vec::new();
            Notice { ranks, ..notice.clone() }.write(&mut bytes);
            assert_eq!(Notice::read(&bytes), None);
        }
        bytes[12] = 2;
        assert_eq!(Notice::read(&bytes), None);
        bytes[..4].fill(0xff);
        assert_eq!(Notice::read(&bytes), None);
    }

    #[test]
    fn reports_round_trip_and_damaged_ones_are_refused() {
        let report = Report { residual_norm: 2.5, params_hash: 9, leaves: Leaves::No };
        for leaves in [Leaves::No, Leaves::Keeping, Leaves::Losing] {
            let report = Report { leaves, ..report };
            assert_eq!(Report::read(&report.write()), Some(report));
        }
        let mut bytes = report.write();
        assert!((0..17).all(|cut| Report::read(&bytes[..cut]).is_none()));
        bytes[16] = 3;
        assert_eq!(Report::read(&bytes), None);
        for residual_norm in [f64::NAN, -1.0] {
            assert_eq!(Report::read(&Report { residual_norm, ..report }.write()), None);
        }
    }
}
