//! Which coordinates of a part an owner sums, and what it says of them.

use gradwire::Unit;

use crate::exchange::parts::runs;

/// Blocks that each owner has, and the least length of one.
const BLOCKS_EACH: usize = 16;
const LEAST_BLOCK: usize = 512;

/// An owner's message about its blocks. Its length tells which it is: only a frame is at least as long as a
/// header. An index follows a byte of zero, with which neither a frame nor a failure begins.
#[derive(Debug, PartialEq)]
pub(super) enum Sum<'b> {
    Frame(&'b [u8]),
    NonFinite(usize),
    /// The owner refused something that it received.
    Refused,
}

impl<'b> Sum<'b> {
    pub(super) fn read(message: &'b [u8]) -> Self {
        match message {
            [] => Self::Refused,
            [0, index @ ..] if index.len() == 8 => {
                let index = index.try_into().map_or(u64::MAX, u64::from_le_bytes);
                Self::NonFinite(usize::try_from(index).unwrap_or(usize::MAX))
            }
            message => Self::Frame(message),
        }
    }

    /// The message that the sum at a coordinate is not finite.
    pub(super) fn non_finite(index: usize) -> [u8; 9] {
        let mut message = [0; 9];
        message[1..].copy_from_slice(&(index as u64).to_le_bytes());
        message
    }
}

/// Assigns blocks of equal length to the owners in turn, so that no owner gets a whole region with many
/// entries. No block crosses from one run of neighbouring units into another.
pub(super) fn deal(units: &[Unit], owned: &mut [Vec<Unit>]) {
    let (world, len) = (owned.len(), units.iter().map(|unit| unit.len).sum::<usize>());
    let most = len.div_ceil(BLOCKS_EACH * world).max(LEAST_BLOCK.min(len.div_ceil(world))).max(1);
    owned.iter_mut().for_each(Vec::clear);
    let (mut id, mut end) = (0, 0);
    let mut give = |start, len| {
        owned[id % world].push(Unit { id: id as u32, start, len, dense: false });
        id += 1;
    };
    for run in runs(units) {
        end = run.end;
        run.step_by(most).for_each(|start| give(start, most.min(end - start)));
    }
    // Every owner has a block, because a message has at least one unit.
    let without = owned.iter_mut().zip(0..).filter(|(blocks, _)| blocks.is_empty());
    without.for_each(|(blocks, id)| blocks.push(Unit { id, start: end, len: 0, dense: false }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(id: u32, start: usize, len: usize) -> Unit {
        Unit { id, start, len, dense: false }
    }

    #[test]
    fn every_coordinate_has_one_owner_and_owners_have_about_as_many() {
        for len in [0, 1, 2, 3, 100, 4096, 5000, 16_385, 1_000_003] {
            for world in 1..=17 {
                let mut owned = vec![Vec::new(); world];
                deal(&[unit(0, 7, len)], &mut owned);
                assert!(
                    owned.iter().all(|units| !units.is_empty() && units.is_sorted_by_key(|unit| unit.id))
                );
                let mut all: Vec<Unit> = owned.concat();
                all.sort_by_key(|unit| unit.id);
                let ends = all.iter().fold(7, |end, unit| {
                    assert_eq!(unit.start, end, "{len} over {world}");
                    unit.range().end
                });
                assert_eq!(ends, 7 + len);
                let share = |units: &Vec<Unit>| units.iter().map(|unit| unit.len).sum::<usize>();
                let block = all[0].len;
                let (most, least) =
                    (owned.iter().map(share).max().unwrap(), owned.iter().map(share).min().unwrap());
                assert!(most - least <= block, "{len} over {world}: {least} to {most}");
            }
        }
    }

    #[test]
    fn blocks_stay_within_runs_of_units() {
        let units =
            [unit(1, 3, 700), unit(2, 703, 900), unit(5, 2000, 0), unit(6, 2000, 5), unit(8, 3000, 600)];
        for world in 1..9 {
            let mut owned = vec![Vec::new(); world];
            deal(&units, &mut owned);
            let mut all: Vec<Unit> = owned.concat();
            all.sort_by_key(|unit| unit.start);
            let coordinates: Vec<usize> = all.iter().flat_map(Unit::range).collect();
            assert!(coordinates.iter().copied().eq((3..1603).chain(2000..2005).chain(3000..3600)), "{world}");
            let is_within = |block: &Unit| {
                runs(&units).any(|run| run.start <= block.start && block.range().end <= run.end)
            };
            assert!(all.iter().all(is_within), "{world}");
        }
    }

    #[test]
    fn what_an_owner_says_is_told_by_its_length() {
        assert_eq!(Sum::read(&[]), Sum::Refused);
        assert_eq!(Sum::read(&Sum::non_finite(7)), Sum::NonFinite(7));
        assert_eq!(Sum::read(&[0, 7, 0, 0, 0, 0, 0, 0, 0]), Sum::NonFinite(7));
        assert_eq!(Sum::read(&[0; 24]), Sum::Frame(&[0; 24]));
        assert_eq!(Sum::read(&[0; 7]), Sum::Frame(&[0; 7]));
    }
}
