//! What the leader of a step tells the others: where values are sent, in which order, and how.

use gradwire::rounds::UnitStep;

use crate::settings::{Order, Sizes};

/// The message, as words: a head, and then a position for each value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Head {
    /// The root mean square of the leader's values, by which all workers divide theirs.
    pub(crate) scale: f32,
    /// Of the leader's autoencoder.
    pub(crate) fingerprint: u64,
    /// Whether its autoencoder has learned enough for latents.
    pub(crate) is_trained: bool,
}

/// Words of the head.
pub(crate) const HEAD: usize = 4;

/// The bit of a position whose value is part of the innovation.
const INNOVATION: u32 = 1 << 31;

impl Head {
    pub(crate) fn of(words: &[u32]) -> Self {
        let &[scale, low, high, is_trained] = words else { panic!("the words of a head") };
        let fingerprint = u64::from(high) << 32 | u64::from(low);
        Self { scale: f32::from_bits(scale), fingerprint, is_trained: is_trained != 0 }
    }

    pub(crate) fn write(self, words: &mut [u32]) {
        let Self { scale, fingerprint, is_trained } = self;
        let (low, high) = (fingerprint as u32, (fingerprint >> 32) as u32);
        words.copy_from_slice(&[scale.to_bits(), low, high, is_trained.into()]);
    }
}

/// Where a value is, and whether it is part of the innovation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) at: usize,
    pub(crate) is_innovation: bool,
}

impl Place {
    /// The place of a word, which comes from another worker. A position outside of the unit is one without
    /// a value.
    pub(crate) fn of(word: u32) -> Self {
        Self { at: (word & !INNOVATION) as usize, is_innovation: word & INNOVATION != 0 }
    }
}

/// The place of the worker that leads.
pub(crate) fn leader(step: &UnitStep<'_>) -> u32 {
    (step.key.step % u64::from(step.workers)) as u32
}

/// Writes the positions of the k largest magnitudes in p, ties to the lowest, and returns the root mean
/// square of their values.
pub(crate) fn choose(p: &[f32], sizes: Sizes, order: Order, words: &mut [u32]) -> f32 {
    let magnitude = |at: &u32| std::cmp::Reverse(p[*at as usize].abs().to_bits());
    let mut largest: Vec<u32> = (0..p.len() as u32).collect();
    largest.select_nth_unstable_by_key(sizes.k - 1, |at| (magnitude(at), *at));
    largest.truncate(sizes.k);
    largest.sort_unstable_by_key(|at| (magnitude(at), *at));
    let squares = largest.iter().map(|at| f64::from(p[*at as usize]).powi(2));
    let scale = (squares.sum::<f64>() / sizes.k as f64).sqrt() as f32;
    largest[..sizes.innovation].iter_mut().for_each(|at| *at |= INNOVATION);
    let place = |at: &u32| *at & !INNOVATION;
    match order {
        Order::Index => largest.sort_unstable_by_key(place),
        Order::Value => {
            let value = |at: &u32| p[place(at) as usize];
            largest.sort_unstable_by(|a, b| value(b).total_cmp(&value(a)).then(place(a).cmp(&place(b))));
        }
    }
    words.copy_from_slice(&largest);
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(order: Order) -> (Vec<Place>, f32) {
        let p = [0.5, -8.0, 1.0, 0.0, 4.0, -1.0, 1.0];
        let mut words = [0; 4];
        let scale = choose(&p, Sizes { k: 4, latent: 0, innovation: 1, led: 0 }, order, &mut words);
        (words.iter().map(|word| Place::of(*word)).collect(), scale)
    }

    #[test]
    fn the_largest_are_chosen_and_the_very_largest_are_the_innovation() {
        let place = |at| Place { at, is_innovation: at == 1 };
        let scale = (82.0f32 / 4.0).sqrt();
        assert_eq!(chosen(Order::Index), ([1, 2, 4, 5].map(place).to_vec(), scale));
        assert_eq!(chosen(Order::Value), ([4, 2, 5, 1].map(place).to_vec(), scale));
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = Head { scale: 0.1, fingerprint: 0x0123_4567_89ab_cdef, is_trained: true };
        let mut words = [0; HEAD];
        head.write(&mut words);
        assert_eq!(Head::of(&words), head);
    }
}
