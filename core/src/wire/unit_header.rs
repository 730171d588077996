//! The few varint bytes in front of every unit.

use crate::error::{DecodeError, Field};
use crate::gradient::unit::Unit;
use crate::wire::ids::Kind;
use crate::wire::reader::Reader;
use crate::wire::writer::{Writer, varint_len};

/// Longest unit header: identifier, gap and count as varints, and the kind.
pub(crate) const MAX_UNIT_HEADER_BYTES: usize = 5 + 10 + 10 + 1;

/// Largest number of elements of one unit, so that indices fit 32 bits on every machine.
pub(crate) const MAX_UNIT_LEN: usize = u32::MAX as usize;

/// Identifiers and ranges are coded as differences to the previous unit. So they ascend by construction, and
/// no coordinate can occur twice in one frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    next_id: u64,
    next_start: usize,
}

impl Cursor {
    /// Whether `unit` may follow the units so far.
    pub(crate) fn accepts(&self, unit: &Unit) -> bool {
        u64::from(unit.id) >= self.next_id
            && unit.start >= self.next_start
            && unit.start.checked_add(unit.len).is_some()
    }

    /// Bytes of the header of `unit`.
    pub(crate) fn header_bytes(&self, unit: &Unit) -> usize {
        let fields = [
            u64::from(unit.id).wrapping_sub(self.next_id),
            unit.start.wrapping_sub(self.next_start) as u64,
            unit.len as u64,
        ];
        fields.map(varint_len).iter().sum::<usize>() + 1
    }

    /// Appends the header of `unit`, which [`accepts`](Self::accepts) approved.
    pub(crate) fn write(&mut self, writer: &mut Writer<'_>, unit: &Unit, kind: Kind) {
        writer.varint(u64::from(unit.id).wrapping_sub(self.next_id));
        writer.varint(unit.start.wrapping_sub(self.next_start) as u64);
        writer.varint(unit.len as u64);
        writer.u8(kind.number());
        self.pass(unit);
    }

    /// Reads the next unit header; ranges are checked against `layout_len`, the kind is not.
    pub(crate) fn read(
        &mut self,
        reader: &mut Reader<'_>,
        layout_len: usize,
    ) -> Result<(Unit, Kind), DecodeError> {
        let id = self.next_id.checked_add(reader.varint()?).and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or(DecodeError::InvalidField(Field::Unit))?;
        let gap = reader.varint_usize()?;
        let len = reader.varint_usize()?;
        let start = self.next_start.checked_add(gap).ok_or(DecodeError::UnitOutOfRange)?;
        let end = start.checked_add(len).ok_or(DecodeError::UnitOutOfRange)?;
        if end > layout_len || len > MAX_UNIT_LEN {
            return Err(DecodeError::UnitOutOfRange);
        }
        let kind = Kind::new(reader.u8()?);
        let unit = Unit { id, start, len, dense: kind == Kind::DENSE };
        self.pass(&unit);
        Ok((unit, kind))
    }

    /// Continues after `unit`.
    pub(crate) fn pass(&mut self, unit: &Unit) {
        self.next_id = u64::from(unit.id).saturating_add(1);
        self.next_start = unit.start.saturating_add(unit.len);
    }
}
