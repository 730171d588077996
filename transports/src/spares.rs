//! Message buffers kept for reuse.

/// The most buffers that are kept.
const MOST: usize = 64;
/// A message takes a used buffer only up to this multiple of its length, or up to `SMALL` bytes. Otherwise
/// short messages that no rank takes could keep the memory of long ones.
const SLACK: usize = 4;
/// One page.
const SMALL: usize = 4096;

/// Buffers by size, bounded in number and in bytes of capacity.
#[derive(Debug)]
pub(crate) struct Spares {
    /// Sorted by capacity; none is 0.
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    most_bytes: usize,
}

impl Spares {
    pub(crate) fn new(most_bytes: usize) -> Self {
        Self { buffers: Vec::with_capacity(MOST), bytes: 0, most_bytes }
    }

    /// An empty buffer with room for `len` bytes: the smallest kept buffer that is large enough. If there is
    /// none, or it is far too large, a new one, with room for `fresh` bytes.
    pub(crate) fn take(&mut self, len: usize, fresh: usize) -> Vec<u8> {
        let at = self.buffers.partition_point(|buffer| buffer.capacity() < len);
        let most = len.saturating_mul(SLACK).max(SMALL);
        if len == 0 || self.buffers.get(at).is_none_or(|buffer| buffer.capacity() > most) {
            return Vec::with_capacity(fresh);
        }
        let buffer = self.buffers.remove(at);
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Keeps a buffer for reuse. If there are too many buffers or bytes, drops the smallest buffers.
    pub(crate) fn put(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity == 0 || capacity > self.most_bytes {
            return;
        }
        while self.buffers.len() == MOST || self.bytes + capacity > self.most_bytes {
            self.bytes -= self.buffers.remove(0).capacity();
        }
        buffer.clear();
        self.bytes += capacity;
        let at = self.buffers.partition_point(|other| other.capacity() < capacity);
        self.buffers.insert(at, buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_buffer_that_is_large_enough_is_used_again() {
        let mut spares = Spares::new(1000);
        for capacity in [100, 10, 50] {
            spares.put(Vec::with_capacity(capacity));
        }
        assert_eq!(spares.take(11, 11).capacity(), 50);
        assert_eq!(spares.take(11, 11).capacity(), 100);
        assert_eq!((spares.take(11, 11).capacity(), spares.bytes), (11, 10));
    }

    #[test]
    fn a_short_message_does_not_hold_a_long_buffer() {
        let mut spares = Spares::new(1 << 20);
        spares.put(Vec::with_capacity(100_000));
        assert_eq!(spares.take(24_999, 24_999).capacity(), 24_999);
        assert_eq!(spares.take(25_000, 25_000).capacity(), 100_000);
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_bytes() {
        let mut spares = Spares::new(1000);
        spares.put(Vec::with_capacity(600));
        spares.put(Vec::with_capacity(700));
        spares.put(Vec::with_capacity(1001));
        assert_eq!((spares.buffers.len(), spares.bytes), (1, 700));
        (0..2 * MOST).for_each(|_| spares.put(Vec::with_capacity(1)));
        assert_eq!(spares.buffers.len(), MOST);
    }
}
