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
}

impl Library {
    /// Every rank lends its payload while the library works on all of them.
    pub(crate) fn sum(&mut self, peers: &mut [Peer]) {
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
            _ => panic!("no codec here sums so"),
        }
    }

    fn write(&self, data: &mut Reduce<'_>) {
        match data {
            Reduce::SumF32(own, _) | Reduce::MaxF32(own) => own.copy_from_slice(&self.floats),
            Reduce::SumI32(own) => own.copy_from_slice(&self.integers),
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
