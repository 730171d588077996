//! Bounds on what frames from strangers may cost.

use pyo3::prelude::*;

use crate::layout::layout_of;
use crate::names::{self, LayoutRef};

/// Bounds on what a frame from a stranger may cost its reader. They come from the caller, never from the
/// wire.
///
/// A bound that is not given is the most that an honest frame for the layout can need.
///
/// >>> from gradwire import Codec, Limits, decode
/// >>> import numpy as np
/// >>> frame = Codec("none").encode(np.array([1e9, 1], np.float32))
/// >>> decode(frame, 2, limits=Limits(2, max_magnitude=1e6))
/// Traceback (most recent call last):
///     ...
/// gradwire.DecodeError: limit exceeded: Magnitude
#[pyclass(frozen, module = "gradwire", name = "Limits")]
pub(crate) struct Limits {
    limits: names::Limits,
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(signature = (layout, *, max_elements=None, max_body_bytes=None, max_entries=None, max_units=None,
        max_scratch_words=None, max_magnitude=None))]
    fn new(
        layout: &Bound<'_, PyAny>,
        max_elements: Option<usize>,
        max_body_bytes: Option<usize>,
        max_entries: Option<usize>,
        max_units: Option<usize>,
        max_scratch_words: Option<usize>,
        max_magnitude: Option<f32>,
    ) -> PyResult<Self> {
        let layout = layout_of(layout)?;
        let own = names::Limits::for_layout(&layout.get().layout.as_ref());
        let limits = names::Limits {
            max_elements: max_elements.unwrap_or(own.max_elements),
            max_body_bytes: max_body_bytes.unwrap_or(own.max_body_bytes),
            max_entries: max_entries.unwrap_or(own.max_entries),
            max_units: max_units.unwrap_or(own.max_units),
            max_scratch_words: max_scratch_words.unwrap_or(own.max_scratch_words),
            max_magnitude: max_magnitude.unwrap_or(own.max_magnitude),
        };
        Ok(Self { limits })
    }

    /// Coordinates that all units of a frame may cover together.
    #[getter]
    fn max_elements(&self) -> usize {
        self.limits.max_elements
    }

    /// Bytes behind the header.
    #[getter]
    fn max_body_bytes(&self) -> usize {
        self.limits.max_body_bytes
    }

    /// Entries of sparse and seeded units.
    #[getter]
    fn max_entries(&self) -> usize {
        self.limits.max_entries
    }

    /// Units of one frame.
    #[getter]
    fn max_units(&self) -> usize {
        self.limits.max_units
    }

    /// Words of 32 bits that parsing may use.
    #[getter]
    fn max_scratch_words(&self) -> usize {
        self.limits.max_scratch_words
    }

    /// Largest magnitude of a decoded value.
    #[getter]
    fn max_magnitude(&self) -> f32 {
        self.limits.max_magnitude
    }

    fn __repr__(&self) -> String {
        let limits = &self.limits;
        format!(
            "<gradwire.Limits: {} elements, {} body bytes, {} entries, {} units, {} scratch words, magnitude {:e}>",
            limits.max_elements,
            limits.max_body_bytes,
            limits.max_entries,
            limits.max_units,
            limits.max_scratch_words,
            limits.max_magnitude
        )
    }
}

/// The limits that an argument `limits=` stands for.
pub(super) fn limits_for(limits: Option<&Limits>, layout: &LayoutRef<'_>) -> names::Limits {
    limits.map_or_else(|| names::Limits::for_layout(layout), |limits| limits.limits)
}
