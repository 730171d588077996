//! What the messages of an added part begin with: the units that the sender lacks, and what it says.
//!
//! | bytes | |
//! | --- | --- |
//! | 1 | 0xe0: a part. No frame begins with it |
//! | 4 | a checksum of the identifiers of its units |
//! | 2 | bytes that the sender says |
//! | 1 | 1 if the sender lacks units, else 0 |
//! | … | what it says |
//! | ⌈units/8⌉ | if it lacks units: a bit for each unit of the part that it lacks, the lowest first |
//!
//! Numbers are little-endian. The frames of the units that the sender does not lack follow, by a route of
//! frames.

use gradwire::Unit;

use super::parts::{NewPart, Part};

/// The first byte.
const PART: u8 = 0xe0;
/// Bytes up to what the sender says.
const FIXED: usize = 8;

/// A head that was read.
#[derive(Debug, PartialEq)]
pub(super) struct Head<'m> {
    lacks: &'m [u8],
    /// The frames.
    pub(super) rest: &'m [u8],
}

/// Writes the head of a part.
pub(super) fn write(part: Part<'_>, out: &mut Vec<u8>) {
    out.clear();
    out.push(PART);
    let (says, is_whole) = (part.says.unwrap_or_default(), part.own.len() == part.units.len());
    out.extend_from_slice(&checksum(part.units).to_le_bytes());
    out.extend_from_slice(&(says.len() as u16).to_le_bytes());
    out.push(u8::from(!is_whole));
    out.extend_from_slice(says);
    if !is_whole {
        let start = out.len();
        out.resize(start + part.units.len().div_ceil(8), 0);
        let mut own = part.own.iter().peekable();
        for (at, unit) in part.units.iter().enumerate() {
            if own.next_if(|own| own.id == unit.id).is_none() {
                out[start + at / 8] |= 1 << (at % 8);
            }
        }
    }
}

impl<'m> Head<'m> {
    /// Reads the message of a rank about a part; `None` if it is no such message.
    pub(super) fn read(message: &'m [u8], part: Part<'_>) -> Option<Self> {
        let ([PART, a, b, c, d, _, _, has_lacks], _) = message.split_first_chunk::<FIXED>()? else {
            return None;
        };
        let rest = message.get(FIXED + said(message)?.len()..)?;
        let is_same = u32::from_le_bytes([*a, *b, *c, *d]) == checksum(part.units);
        let bitmap = usize::from(*has_lacks) * part.units.len().div_ceil(8);
        let (lacks, rest) = rest.split_at_checked(bitmap)?;
        let head = Self { lacks, rest };
        let is_beyond = |at| head.has(at);
        let spare = part.units.len()..8 * bitmap;
        (is_same && *has_lacks <= 1 && !spare.into_iter().any(is_beyond)).then_some(head)
    }

    fn has(&self, at: usize) -> bool {
        self.lacks.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
    }

    /// The units of the part that the sender has.
    pub(super) fn present<'p>(&self, part: Part<'p>) -> impl Iterator<Item = &'p Unit> + use<'p, '_, 'm> {
        part.units.iter().enumerate().filter(|(at, _)| !self.has(*at)).map(|(_, unit)| unit)
    }

    /// Whether the sender has the unit at that place of the part.
    pub(super) fn is_present(&self, at: usize) -> bool {
        !self.has(at)
    }
}

/// What the sender of a message with a head says.
pub(super) fn said(message: &[u8]) -> Option<&[u8]> {
    let len = usize::from(u16::from_le_bytes([*message.get(5)?, *message.get(6)?]));
    message.get(FIXED..FIXED + len).filter(|_| len <= NewPart::MOST_SAID)
}

/// FNV-1a of the identifiers.
fn checksum(units: &[Unit]) -> u32 {
    let bytes = units.iter().flat_map(|unit| unit.id.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units() -> Vec<Unit> {
        (0..11).map(|id| Unit { id, start: 3 * id as usize, len: 3, dense: false }).collect()
    }

    #[test]
    fn heads_round_trip_and_those_of_other_parts_are_refused() {
        let all = units();
        for own in [&all[..], &all[2..7], &[]] {
            let part = Part { at: 0, first: 0, units: &all, own, says: Some(b"step 7") };
            let mut message = Vec::new();
            write(part, &mut message);
            let head_bytes = message.len();
            message.extend_from_slice(b"frames");
            let head = Head::read(&message, part).unwrap();
            assert_eq!((said(&message), head.rest), (Some(&b"step 7"[..]), &b"frames"[..]));
            assert!(head.present(part).eq(own.iter()));
            assert!(own.iter().all(|unit| head.is_present(unit.id as usize)));
            assert!((0..head_bytes).all(|cut| Head::read(&message[..cut], part).is_none()));
            for units in [&all[1..], &all[..10]] {
                assert_eq!(Head::read(&message, Part { units, ..part }), None);
            }
        }
    }

    #[test]
    fn a_bitmap_with_bits_beyond_the_units_is_refused() {
        let all = units();
        let part = Part { at: 0, first: 0, units: &all, own: &all[1..], says: Some(&[]) };
        let mut message = Vec::new();
        write(part, &mut message);
        assert!(Head::read(&message, part).is_some());
        *message.last_mut().unwrap() |= 0x80;
        assert_eq!(Head::read(&message, part), None);
    }
}
