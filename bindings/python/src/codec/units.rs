//! Units as Python names them.

use pyo3::prelude::*;

use crate::errors::value;
use crate::names::{LayoutRef, Spec, Unit};

/// A unit as Python names it: id, first element, length, whether it is sent dense.
pub(crate) type UnitTuple = (u32, usize, usize, bool);

/// The units that the caller asked for, or those of the spelling.
pub(crate) fn units_for(
    spec: &Spec,
    layout: &LayoutRef<'_>,
    units: Option<Vec<UnitTuple>>,
) -> PyResult<Vec<Unit>> {
    match units {
        None => Ok(spec.units.units(layout).collect()),
        Some(units) if units.is_empty() => Err(value("units: expected one or more")),
        Some(units) => units_of(units, layout.len()),
    }
}

/// Units in ascending ranges of `len` elements.
pub(crate) fn units_of(units: Vec<UnitTuple>, len: usize) -> PyResult<Vec<Unit>> {
    let units: Vec<Unit> =
        units.into_iter().map(|(id, start, len, dense)| Unit { id, start, len, dense }).collect();
    let (mut id, mut end) = (None, 0usize);
    for unit in &units {
        let is_next = id.is_none_or(|id| unit.id > id) && unit.start >= end;
        end = unit.start.saturating_add(unit.len);
        if !is_next || end > len {
            return Err(value(format!(
                "units: expected ascending ids and ranges of {len} elements, without overlaps; unit {} is not",
                unit.id
            )));
        }
        id = Some(unit.id);
    }
    Ok(units)
}
