//! The sign of some coordinates, drawn by chance, and one scale for each block.

use gradwire::experiments::{
    BodyOutline, EncodeBody, Experiment, Keys, ParseBody, Refused, UnitBody, UnitSource,
};
use gradwire::registry::Law;
use gradwire::{Scratch, SpecError};

/// Sends sign(v)·scale with probability |v|/scale and else 0, where scale is the largest magnitude of the
/// block. So the mean of what is sent is v, and nothing needs to be kept.
///
/// A body is the length of a block as u16, and then for each block its scale as f32 and two bits a
/// coordinate, the first in the lowest bits: 0 for zero, 1 for the scale, 2 for its negative.
pub(crate) struct Dice {
    block: u16,
}

impl Dice {
    /// The codec of these keys.
    pub(crate) fn read<'k>(keys: &Keys<'k>) -> Result<Self, SpecError<'k>> {
        let allowed = |block: &u16| (8..=4096).contains(block) && block.is_multiple_of(8);
        let block = keys.number("block", "a multiple of 8 from 8 to 4096", allowed)?;
        Ok(Self { block: block.ok_or(SpecError::MissingKey("block"))? })
    }
}

/// Bytes of the body of a unit in blocks of that length.
fn body_bytes(len: usize, block: usize) -> usize {
    let (whole, rest) = (len / block, len % block);
    2 + whole * (4 + block.div_ceil(4)) + if rest > 0 { 4 + rest.div_ceil(4) } else { 0 }
}

/// The length of the blocks that a body states.
fn block_of(body: &UnitBody<'_>) -> usize {
    body.bytes.first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes).into())
}

impl ParseBody for Dice {
    fn experiment(&self) -> Experiment {
        const { Experiment::new(0xf4).unwrap() }
    }

    fn name(&self) -> &'static str {
        "dice"
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        // The reader may have another spelling, or none: what it needs is in the body.
        let bytes = match (body.bytes.len(), block_of(body)) {
            (0 | 1, _) => 2,
            (_, 0) => return Err(Refused::new("blocks without a coordinate")),
            (_, block) => body_bytes(body.unit.len, block),
        };
        Ok(BodyOutline { bytes, held: body.unit.len, scratch_words: 0 })
    }

    fn check(&self, body: &UnitBody<'_>, _: &mut [u32]) -> Result<(), Refused> {
        let mut codes = Ok(());
        each_code(body, |_, code, _| {
            if code == 3 {
                codes = Err(Refused::new("a code above 2"));
            }
        });
        codes
    }

    fn visit(&self, body: &UnitBody<'_>, _: &[u32], f: &mut dyn FnMut(usize, f32)) {
        each_code(body, |at, code, scale| f(at, [0.0, scale, -scale, 0.0][usize::from(code)]));
    }
}

/// Calls `f` with position, code and scale of each coordinate.
fn each_code(body: &UnitBody<'_>, mut f: impl FnMut(usize, u8, f32)) {
    let (block, mut rest) = (block_of(body), body.bytes.get(2..).unwrap_or_default());
    for first in (0..body.unit.len).step_by(block.max(1)) {
        let Some((scale, codes)) = rest.split_first_chunk() else { return };
        let len = block.min(body.unit.len - first);
        for (at, byte) in (0..len).filter_map(|at| Some((at, codes.get(at / 4)?))) {
            f(first + at, byte >> (2 * (at % 4)) & 3, f32::from_le_bytes(*scale));
        }
        rest = codes.get(len.div_ceil(4)..).unwrap_or_default();
    }
}

impl EncodeBody for Dice {
    fn law(&self) -> Law {
        Law::NotKept
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        Some(body_bytes(len, self.block.into()))
    }

    fn encode_body(
        &self,
        source: &UnitSource<'_>,
        values: &[f32],
        _: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        let (stream, block) = (source.draws(), usize::from(self.block));
        let (head, mut rest) = out.split_at_mut(2);
        head.copy_from_slice(&self.block.to_le_bytes());
        let mut draws = vec![0; block];
        for (number, values) in values.chunks(block).enumerate() {
            // Draws come in eights, and draw i belongs to coordinate i.
            stream.fill_u16((number * block / 8) as u64, &mut draws);
            let scale = values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
            let (own, others) = rest.split_at_mut(4 + values.len().div_ceil(4));
            own[..4].copy_from_slice(&scale.to_le_bytes());
            for (at, value) in values.iter().enumerate() {
                let is_sent = f32::from(draws[at]) < value.abs() / scale * 65536.0;
                let code = if !is_sent { 0 } else { 1 + u8::from(*value < 0.0) };
                own[4 + at / 4] |= code << (2 * (at % 4));
            }
            rest = others;
        }
        Ok(body_bytes(values.len(), block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader makes of the bytes of a stranger, for a unit of that many coordinates.
    fn read(len: usize, bytes: &[u8]) -> Result<Vec<f32>, Refused> {
        let (dice, body) = (Dice { block: 8 }, UnitBody::of(len, bytes));
        assert_eq!(dice.outline(&body)?.bytes, bytes.len());
        dice.check(&body, &mut [])?;
        let mut values = vec![0.0; len];
        dice.visit(&body, &[], &mut |at, value| values[at] = value);
        Ok(values)
    }

    #[test]
    fn a_body_that_says_what_it_cannot_is_refused() {
        // Blocks of 16; scale 2.5; the codes 1, 2, 0, 0 and 2.
        let body = [&[16, 0][..], &2.5f32.to_le_bytes(), &[0b0000_1001, 0b10]].concat();
        assert_eq!(read(5, &body).unwrap(), [2.5, -2.5, 0.0, 0.0, -2.5]);
        let with = |at: usize, byte: u8| [&body[..at], &[byte], &body[at + 1..]].concat();
        assert_eq!(read(5, &with(0, 0)), Err(Refused::new("blocks without a coordinate")));
        assert_eq!(read(5, &with(6, 0b0000_1100)), Err(Refused::new("a code above 2")));
    }
}
