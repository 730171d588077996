//! Buffers as the measurements want them.

/// Bytes of a cache line, and of the widest vector register.
const ALIGNMENT: usize = 64;

/// A buffer of f32 that begins at a cache line and whose every page was written once.
#[derive(Debug)]
pub struct Aligned {
    storage: Vec<f32>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` copies of `value`. Zeros are written too: pages that nobody wrote share one page of memory.
    #[must_use]
    pub fn filled(len: usize, value: f32) -> Self {
        let slack = ALIGNMENT / size_of::<f32>();
        let mut storage = vec![f32::MIN_POSITIVE; len + slack];
        let start = storage.as_ptr().align_offset(ALIGNMENT).min(slack);
        storage.fill(value);
        Self { storage, start, len }
    }

    /// The elements.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        &self.storage[self.start..self.start + self.len]
    }

    /// The elements, to write.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.storage[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_at_a_cache_line() {
        for len in [1, 100, 100_000] {
            let buffer = Aligned::filled(len, 0.0);
            assert_eq!(buffer.as_slice().len(), len);
            assert_eq!(buffer.as_slice().as_ptr() as usize % ALIGNMENT, 0);
        }
    }
}
