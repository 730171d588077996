//! One number for a parameter vector, so that replicas can be compared without sending them.

/// A 64-bit hash of the bits of the values, in order.
///
/// Two vectors that differ in a bit anywhere have different hashes, except by accident. It is no defence
/// against anyone who looks for collisions.
///
/// # Determinism
///
/// Integer arithmetic on the bits: the same on every machine. 0 and −0 differ.
///
/// # Source
///
/// FNV-1a with its 64-bit constants, a word of 32 bits at a time instead of a byte, and a shift that carries
/// high bits down again.
pub fn params_hash(params: &[f32]) -> u64 {
    params.iter().fold(START, |hash, value| mix(hash, value.to_bits()))
}

/// The hash of replicas that differ, made from the hash of each, by rank.
pub fn combined_hash(hashes: impl IntoIterator<Item = u64>) -> u64 {
    hashes.into_iter().fold(START, |hash, replica| mix(mix(hash, replica as u32), (replica >> 32) as u32))
}

const START: u64 = 0xcbf2_9ce4_8422_2325;

fn mix(hash: u64, word: u32) -> u64 {
    let mixed = (hash ^ u64::from(word)).wrapping_mul(0x0000_0100_0000_01b3);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_order_count() {
        let base = params_hash(&[1.0, 2.0, 0.0]);
        assert_eq!(base, params_hash(&[1.0, 2.0, 0.0]));
        for other in
            [&[2.0, 1.0, 0.0][..], &[1.0, 2.0, -0.0], &[1.0, 2.0], &[f32::from_bits(0x3f80_0001), 2.0, 0.0]]
        {
            assert_ne!(params_hash(other), base, "{other:?}");
        }
        assert_ne!(combined_hash([1, 2]), combined_hash([2, 1]));
        assert_ne!(combined_hash([1, 2]), combined_hash([1, 2 | 1 << 40]));
    }
}
