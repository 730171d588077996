//! Values that hold several others, joined by `+`: `levels=6+10`.

use core::fmt;
use core::ops::Deref;

/// Separates the values of a list.
const JOIN: char = '+';

/// One to `N` values, in the order in which they are spelled. Needs no heap, so that a codec that holds one
/// can be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    /// Applies `read` to the texts between the `+`; `None` if it refuses one of them, or there are more than
    /// `N`.
    pub(super) fn parse(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<Self> {
        let mut list = Self { items: [T::default(); N], len: 0 };
        for item in text.split(JOIN) {
            *list.items.get_mut(list.len)? = read(item)?;
            list.len += 1;
        }
        Some(list)
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..self.len]
    }
}

impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// Prints the values as they are spelled, joined by `+`.
impl<T: fmt::Display, const N: usize> fmt::Display for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().enumerate().try_for_each(|(i, item)| {
            let join = if i == 0 { "" } else { "+" };
            write!(f, "{join}{item}")
        })
    }
}
