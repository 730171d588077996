//! The server's answer: the contributors to the mean, which packets of the receiver are in it, and the mean.

use gradwire::LayoutRef;

use super::error::ExchangeError;
use super::packet_set::PacketSet;
use super::void::refusal;
use crate::rank::{Rank, RankSet};

/// Contributors (their number and each rank as u32 LE, ascending), then the receiver's packet_set if workers
/// send packets, then the frame of the mean. Without contributors the step failed. Then only the rank that
/// made it void or failed follows, if there is such a rank, and what it sent. Returns where the frame begins.
pub(super) fn write(
    contributors: &[Rank],
    packet_set: Option<&PacketSet>,
    frame: &[u8],
    out: &mut Vec<u8>,
) -> usize {
    out.clear();
    out.extend_from_slice(&(contributors.len() as u32).to_le_bytes());
    contributors.iter().for_each(|rank| out.extend_from_slice(&rank.0.to_le_bytes()));
    if !contributors.is_empty() {
        packet_set.into_iter().for_each(|packet_set| packet_set.write(out));
        out.extend_from_slice(frame);
        return out.len() - frame.len();
    }
    out.len()
}

/// Adds the rank that made the step fail, as u32 LE, and its void frame or failure.
pub(super) fn write_reason(rank: Rank, message: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&rank.0.to_le_bytes());
    out.extend_from_slice(message);
}

/// Why the step failed, if the end of a verdict without contributors says so.
pub(super) fn read_reason(rest: &[u8], layout: &LayoutRef<'_>, step: u64) -> Option<ExchangeError> {
    let (rank, message) = rest.split_first_chunk()?;
    refusal(Rank(u32::from_le_bytes(*rank)), message, layout, step)
}

/// Writes the contributors, which must be members, to `arrived`. If there is a `packet_set`, writes to it
/// which of `count` packets are in the mean. Returns the rest of the message.
pub(super) fn read<'v>(
    verdict: &'v [u8],
    members: &RankSet,
    arrived: &mut Vec<Rank>,
    packet_set: Option<(&mut PacketSet, usize)>,
) -> Option<&'v [u8]> {
    let (count, rest) = verdict.split_first_chunk()?;
    let count = usize::try_from(u32::from_le_bytes(*count)).ok().filter(|&count| count <= members.len())?;
    let (ranks, frame) = rest.split_at_checked(count * 4)?;
    arrived.clear();
    arrived.extend(ranks.as_chunks().0.iter().map(|&rank| Rank(u32::from_le_bytes(rank))));
    let ascending = arrived.windows(2).all(|pair| pair[0] < pair[1]);
    let known = arrived.iter().all(|&rank| members.contains(rank));
    if !(ascending && known) {
        return None;
    }
    match packet_set.filter(|_| count > 0) {
        Some((packet_set, packets)) => packet_set.read(frame, packets),
        None => Some(frame),
    }
}

#[cfg(test)]
mod tests {
    use gradwire::format::{CodecId, VoidFrame};

    use super::*;
    use crate::exchange::void::VoidMessage;

    #[test]
    fn verdicts_round_trip_and_strange_ones_are_refused() {
        let members = RankSet::contiguous(4);
        let (mut verdict, mut arrived) = (Vec::new(), Vec::new());
        write(&[Rank(1), Rank(3)], None, b"frame", &mut verdict);
        assert_eq!(read(&verdict, &members, &mut arrived, None), Some(&b"frame"[..]));
        assert_eq!(arrived, [Rank(1), Rank(3)]);
        for strange in [vec![Rank(3), Rank(1)], vec![Rank(9)], vec![Rank(1), Rank(1)], vec![Rank(0); 5]] {
            write(&strange, None, b"", &mut verdict);
            assert_eq!(read(&verdict, &members, &mut arrived, None), None, "{strange:?}");
        }
        assert_eq!(read(&[2, 0, 0, 0, 1, 0, 0, 0], &members, &mut arrived, None), None);
        assert_eq!(read(&[1, 0], &members, &mut arrived, None), None);
    }

    #[test]
    fn a_void_verdict_names_rank_and_coordinate_and_strange_ones_say_nothing() {
        let (mut verdict, mut arrived, layout) = (Vec::new(), Vec::new(), LayoutRef::flat(10));
        let frame = VoidFrame { codec: CodecId::new(3), step: 5, index: 9 };
        write(&[], None, b"", &mut verdict);
        write_reason(Rank(2), VoidMessage::new(&frame, &layout).bytes(), &mut verdict);
        let rest = read(&verdict, &RankSet::contiguous(4), &mut arrived, None).unwrap();
        assert_eq!(read_reason(rest, &layout, 5), Some(ExchangeError::Void { rank: Rank(2), index: 9 }));
        assert_eq!((read_reason(rest, &layout, 6), read_reason(rest, &LayoutRef::flat(9), 5)), (None, None));
        assert!((0..rest.len()).all(|cut| read_reason(&rest[..cut], &layout, 5).is_none()));
    }

    #[test]
    fn a_verdict_on_packets_names_those_of_its_receiver() {
        let members = RankSet::contiguous(4);
        let (mut verdict, mut arrived) = (Vec::new(), Vec::new());
        let [mut packet_set, mut read_slip] = [PacketSet::default(), PacketSet::default()];
        packet_set.reset(11);
        [0, 3, 10].into_iter().for_each(|at| packet_set.set(at));
        write(&[Rank(2)], Some(&packet_set), b"frame", &mut verdict);
        let rest = read(&verdict, &members, &mut arrived, Some((&mut read_slip, 11)));
        assert_eq!((rest, &read_slip), (Some(&b"frame"[..]), &packet_set));
        assert_eq!(read(&verdict, &members, &mut arrived, Some((&mut read_slip, 17))), None);
        write(&[], Some(&packet_set), b"", &mut verdict);
        assert_eq!(read(&verdict, &members, &mut arrived, Some((&mut read_slip, 11))), Some(&[][..]));
    }
}
