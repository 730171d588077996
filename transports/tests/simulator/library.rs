//! A network's own library, which sums once all ranks have called it.

use gradwire_transports::Tag;
use gradwire_transports::collective::Reduce;
use gradwire_transports::exchange::Machine;

use super::schedule::Peer;

/// A sum of payloads of one kind.
#[derive(Default)]
pub(crate) struct Library {
    tag: Option<Tag>,
    floats: Vec<f32>,
    integers: Vec<i32>,
    bytes: Vec<u8>,
    /// Ranks in all, and those that have lent theirs.
    world: usize,
    lent: usize,
}

impl Library {
    /// Every rank lends its payload while the library works on all of them.
    pub(crate) fn sum(&mut self, peers: &mut [Peer]) {
        self.world = self.world.max(peers.len());
        let Some((first, rest)) = peers.split_first_mut() else { return };
        first.exchange.sum_lent(&mut |tag, mut data| {
            assert_eq!(*self.tag.get_or_insert(tag), tag, "two sums at once");
            self.add(&data);
            self.sum(rest);
            self.write(&mut data);
            Ok(())
        });
    }

    fn add(&mut self, data: &Reduce<'_>) {
        match data {
            Reduce::SumF32(own, _) => fold(&mut self.floats, own, |sum, own| sum + own),
            Reduce::MaxF32(own) => fold(&mut self.floats, own, f32::max),
            Reduce::SumI32(own) => fold(&mut self.integers, own, |sum, own| sum + own),
            Reduce::Gather(own) => {
                let part = own.len() / self.world;
                self.bytes.extend_from_slice(&own[self.lent * part..][..part]);
            }
            Reduce::Broadcast(own, from) if *from == self.lent => self.bytes.extend_from_slice(own),
            Reduce::Broadcast(..) => {}
            _ => panic!("no codec here sums so"),
        }
        self.lent += 1;
    }

    fn write(&self, data: &mut Reduce<'_>) {
        match data {
            Reduce::SumF32(own, _) | Reduce::MaxF32(own) => own.copy_from_slice(&self.floats),
            Reduce::SumI32(own) => own.copy_from_slice(&self.integers),
            Reduce::Gather(own) | Reduce::Broadcast(own, _) => own.copy_from_slice(&self.bytes),
            _ => unreachable!("it was not added"),
        }
    }
}

fn fold<T: Copy>(sum: &mut Vec<T>, own: &[T], fold: impl Fn(T, T) -> T) {
    if sum.is_empty() {
        sum.extend_from_slice(own);
    } else {
        sum.iter_mut().zip(own).for_each(|(sum, own)| *sum = fold(*sum, *own));
    }
}
