//! Where a memory keeps its values.

use core::ops::{Deref, DerefMut};

/// Elements of a memory: lent by the caller (a slice, an array, a `Vec`), or a `Vec` that is the memory's
/// own.
#[derive(Debug)]
pub struct Storage<'a, T>(Kind<'a, T>);

#[derive(Debug)]
enum Kind<'a, T> {
    Lent(&'a mut [T]),
    #[cfg(feature = "alloc")]
    Owned(alloc::vec::Vec<T>),
}

impl<T> Deref for Storage<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Kind::Lent(values) => values,
            #[cfg(feature = "alloc")]
            Kind::Owned(values) => values,
        }
    }
}

impl<T> DerefMut for Storage<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Kind::Lent(values) => values,
            #[cfg(feature = "alloc")]
            Kind::Owned(values) => values,
        }
    }
}

#[cfg(feature = "alloc")]
impl<T: Copy> Storage<'_, T> {
    /// Takes over these elements: `values` is then of no more use. What the memory owns changes places with
    /// it, without a copy.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(super) fn take_over(&mut self, values: &mut alloc::vec::Vec<T>) {
        assert_eq!(self.len(), values.len(), "memory and values differ in length");
        match &mut self.0 {
            Kind::Lent(own) => own.copy_from_slice(values),
            Kind::Owned(own) => core::mem::swap(own, values),
        }
    }
}

impl<'a, T> From<&'a mut [T]> for Storage<'a, T> {
    fn from(values: &'a mut [T]) -> Self {
        Self(Kind::Lent(values))
    }
}

impl<'a, T, const N: usize> From<&'a mut [T; N]> for Storage<'a, T> {
    fn from(values: &'a mut [T; N]) -> Self {
        Self(Kind::Lent(values))
    }
}

#[cfg(feature = "alloc")]
impl<'a, T> From<&'a mut alloc::vec::Vec<T>> for Storage<'a, T> {
    fn from(values: &'a mut alloc::vec::Vec<T>) -> Self {
        Self(Kind::Lent(values))
    }
}

#[cfg(feature = "alloc")]
impl<T> From<alloc::vec::Vec<T>> for Storage<'_, T> {
    fn from(values: alloc::vec::Vec<T>) -> Self {
        Self(Kind::Owned(values))
    }
}
