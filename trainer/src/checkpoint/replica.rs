//! The state that is the same at every rank, and its bytes: in the file of a checkpoint, and on its way to a
//! worker that comes in.

use std::collections::HashMap;

use gradwire::Layout;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::optim::{Optimizer, StateError};

/// Prefix of the parameters' names.
pub(super) const PARAMS: &str = "params";
/// Where the file says how many steps the optimizer has made.
const STEPS: &str = "optimizer_steps";

/// What makes one replica equal to another: parameters and the optimizer's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// The flat parameters.
    pub params: Vec<f32>,
    /// Steps of the optimizer.
    pub optimizer_steps: u64,
    /// The state of the optimizer, by name.
    pub optimizer: Vec<(String, Vec<f32>)>,
}

/// A state that is not one of this model and optimizer. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The bytes are no safetensors file, or one without what belongs in it.
    #[error("{0}")]
    Malformed(String),
    /// The optimizer's part does not fit.
    #[error(transparent)]
    Optimizer(#[from] StateError),
}

pub(super) fn malformed(error: impl ToString) -> ReplicaError {
    ReplicaError::Malformed(error.to_string())
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Replica {
    /// Copies the state of one replica.
    pub(crate) fn of(params: &[f32], optimizer: &dyn Optimizer) -> Self {
        let slices = optimizer.state().into_iter().map(|(name, values)| (name.to_owned(), values.to_vec()));
        Self { params: params.to_vec(), optimizer_steps: optimizer.steps(), optimizer: slices.collect() }
    }

    /// A safetensors file with the parameters and every slice of the optimizer, each cut into the tensors of
    /// the layout.
    pub(crate) fn to_bytes(&self, layout: &Layout) -> Result<Vec<u8>, ReplicaError> {
        let slices = self.optimizer.iter().map(|(name, values)| (name.as_str(), values.as_slice()));
        let slices: Vec<_> = std::iter::once((PARAMS, self.params.as_slice())).chain(slices).collect();
        let steps = HashMap::from([(STEPS.to_owned(), self.optimizer_steps.to_string())]);
        write_slices(&slices, None, steps, layout)
    }

    /// Reads the bytes of [`to_bytes`](Self::to_bytes): slices of all tensors of the layout, including the
    /// parameters, and nothing else.
    pub(crate) fn from_bytes(content: &[u8], layout: &Layout) -> Result<Self, ReplicaError> {
        let (_, header) = SafeTensors::read_metadata(content).map_err(malformed)?;
        let steps = header.metadata().as_ref().and_then(|metadata| metadata.get(STEPS)?.parse().ok());
        let optimizer_steps = steps.ok_or_else(|| malformed(format!("no {STEPS}")))?;
        let file = SafeTensors::deserialize(content).map_err(malformed)?;
        let mut slices: Vec<String> = file
            .names()
            .iter()
            .filter_map(|name| name.split_once('/'))
            .map(|(slice, _)| slice.to_owned())
            .collect();
        slices.sort_unstable();
        slices.dedup();
        if slices.len() * layout.tensors().len() != file.len() {
            return Err(malformed("tensors that are not those of this model"));
        }
        let optimizer = slices.iter().filter(|slice| *slice != PARAMS);
        let optimizer = optimizer.map(|slice| Ok((slice.clone(), read_slice(&file, slice, layout)?)));
        let optimizer = optimizer.collect::<Result<_, ReplicaError>>()?;
        Ok(Self { params: read_slice(&file, PARAMS, layout)?, optimizer_steps, optimizer })
    }
}

/// A safetensors file with this metadata. Slices are written by name, each cut into the tensors of the
/// layout; the vector may have any length.
pub(super) fn write_slices(
    slices: &[(&str, &[f32])],
    vector: Option<(&str, &[f32])>,
    metadata: HashMap<String, String>,
    layout: &Layout,
) -> Result<Vec<u8>, ReplicaError> {
    let mut tensors = Vec::new();
    for (slice, values) in slices {
        for tensor in layout.tensors() {
            let tensor = tensor.as_ref();
            let len = tensor.checked_len().unwrap_or(0);
            let content = bytes_of(&values[tensor.offset..tensor.offset + len]);
            tensors.push((format!("{slice}/{}", tensor.name), tensor.shape.to_vec(), content));
        }
    }
    if let Some((name, values)) = vector {
        tensors.push((name.to_owned(), vec![values.len()], bytes_of(values)));
    }
    let views: Result<Vec<_>, safetensors::SafeTensorError> = tensors
        .iter()
        .map(|(name, shape, content)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), content)?)))
        .collect();
    safetensors::serialize(views.map_err(malformed)?, Some(metadata)).map_err(malformed)
}

/// One value a parameter, in the layout's order.
pub(super) fn read_slice(
    file: &SafeTensors<'_>,
    slice: &str,
    layout: &Layout,
) -> Result<Vec<f32>, ReplicaError> {
    let mut values = Vec::with_capacity(layout.len());
    for tensor in layout.tensors() {
        let tensor = tensor.as_ref();
        let name = format!("{slice}/{}", tensor.name);
        let found = find(file, &name)?;
        let (shape, expected) = (found.shape(), tensor.shape);
        if shape != expected {
            return Err(malformed(format!("{name}: shape {shape:?} instead of {expected:?}")));
        }
        values.extend(values_of(&found));
    }
    Ok(values)
}

/// The values of one tensor, whatever its shape.
pub(super) fn read_vector(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>, ReplicaError> {
    Ok(values_of(&find(file, name)?).collect())
}

/// The tensor of `f32` of this name.
fn find<'a>(file: &SafeTensors<'a>, name: &str) -> Result<TensorView<'a>, ReplicaError> {
    let found = file.tensor(name).map_err(|error| malformed(format!("{name}: {error}")))?;
    match found.dtype() {
        Dtype::F32 => Ok(found),
        dtype => Err(malformed(format!("{name}: {dtype} instead of F32"))),
    }
}

fn values_of<'a>(tensor: &TensorView<'a>) -> impl Iterator<Item = f32> + use<'a> {
    tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::packed([("a", vec![2, 3]), ("b", vec![4])]).unwrap()
    }

    fn replica() -> Replica {
        let values = |first: u8| (0..10).map(|at| f32::from(first) - 0.5 * f32::from(at as u8)).collect();
        let optimizer = vec![("first".to_owned(), values(7)), ("second".to_owned(), values(9))];
        Replica { params: values(1), optimizer_steps: 12, optimizer }
    }

    #[test]
    fn replicas_round_trip() {
        let bytes = replica().to_bytes(&layout()).unwrap();
        assert_eq!(Replica::from_bytes(&bytes, &layout()).unwrap(), replica());
    }

    #[test]
    fn what_is_damaged_or_of_another_model_is_refused() {
        let bytes = replica().to_bytes(&layout()).unwrap();
        assert!((0..bytes.len()).all(|cut| Replica::from_bytes(&bytes[..cut], &layout()).is_err()));
        for other in [[("a", vec![3, 2]), ("b", vec![4])], [("a", vec![2, 3]), ("c", vec![4])]] {
            assert!(Replica::from_bytes(&bytes, &Layout::packed(other).unwrap()).is_err());
        }
        let one = Layout::packed([("a", vec![2, 3])]).unwrap();
        assert!(Replica::from_bytes(&bytes, &one).is_err());
    }
}
