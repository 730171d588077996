//! Parts of a model that are exchanged in turn: each a run of neighbouring tensors.

use std::ops::Range;

use gradwire::{Layout, LayoutError, Tensor};

/// One of them.
#[derive(Clone, Debug)]
pub struct Fragment {
    /// Its parameters among all.
    pub range: Range<usize>,
    /// Its tensors, the first of which begins at 0.
    pub layout: Layout,
}

impl Fragment {
    /// So many fragments, none of them empty, of nearly equal size. There are as many tensors at least.
    pub(crate) fn cut(layout: &Layout, count: usize) -> Result<Vec<Self>, LayoutError> {
        let (tensors, mut first) = (layout.tensors(), 0);
        let len = |tensor: &Tensor| tensor.shape.iter().product();
        let sizes: Vec<usize> = tensors.iter().map(len).collect();
        let fragment = |end: usize| {
            let own = &tensors[first..end];
            let start = tensors.get(first).map_or(0, |tensor| tensor.offset);
            let layout =
                Layout::packed(own.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())))?;
            first = end;
            Ok(Self { range: start..start + layout.len(), layout })
        };
        ends(&sizes, count).into_iter().map(fragment).collect()
    }
}

/// What a file calls the part of `what` that is of a fragment; the first alone has no number.
pub(crate) fn named(what: &str, fragment: usize) -> String {
    if fragment == 0 { what.to_owned() } else { format!("{what}.{fragment}") }
}

/// Where each of `count` runs of these sizes ends.
fn ends(sizes: &[usize], count: usize) -> Vec<usize> {
    let (mut ends, mut first, mut size, mut left) = (Vec::new(), 0, 0, sizes.iter().sum::<usize>());
    for (at, &own) in sizes.iter().enumerate() {
        let others = count - ends.len() - 1;
        // Half of it may be too much, so that the run is nearest to its share.
        let is_full = at > first && (2 * size + own) * (others + 1) > 2 * (size + left);
        if others > 0 && (is_full || sizes.len() - at == others) {
            ends.push(at);
            (first, size) = (at, 0);
        }
        (size, left) = (size + own, left - own);
    }
    ends.push(sizes.len());
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_nearly_equal_size_and_never_empty() {
        assert_eq!(ends(&[5, 5, 5, 5], 1), [4]);
        assert_eq!(ends(&[5, 5, 5, 5], 2), [2, 4]);
        assert_eq!(ends(&[100, 1, 1, 1], 4), [1, 2, 3, 4]);
        assert_eq!(ends(&[100, 1, 1, 1], 3), [1, 3, 4]);
        assert_eq!(ends(&[1, 1, 100], 2), [2, 3]);
        assert_eq!(ends(&[1, 1, 100], 3), [1, 2, 3]);
        assert_eq!(ends(&[4, 3, 2, 6], 2), [2, 4]);
    }

    #[test]
    fn fragments_hold_each_tensor_once() {
        let shapes = [("a", vec![3, 2]), ("b", vec![3]), ("c", vec![4, 2]), ("d", vec![])];
        let layout = Layout::packed(shapes).unwrap();
        for count in 1..=4 {
            let fragments = Fragment::cut(&layout, count).unwrap();
            assert_eq!(fragments.len(), count);
            let names =
                fragments.iter().flat_map(|one| one.layout.tensors()).map(|tensor| tensor.name.as_str());
            assert_eq!(names.collect::<String>(), "abcd");
            let next: Vec<usize> = fragments.iter().map(|one| one.range.end).collect();
            assert_eq!(next.last(), Some(&layout.len()));
            let starts = fragments.iter().map(|one| one.range.start);
            assert!(starts.eq([0].into_iter().chain(next[..count - 1].iter().copied())));
        }
    }
}
