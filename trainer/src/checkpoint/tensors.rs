//! Parameters, optimizer slices and memories as safetensors.

use gradwire::Layout;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::Replica;

/// Prefix of the parameters' names.
const PARAMS: &str = "params";
/// Name of a saved memory.
const MEMORY: &str = "memory";

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The parameters and every slice of the optimizer, each cut into the tensors of the layout.
pub(super) fn replica_to_bytes(replica: &Replica, layout: &Layout) -> Result<Vec<u8>, String> {
    let slices = replica.optimizer.iter().map(|(name, values)| (name.as_str(), values));
    let mut tensors = Vec::new();
    for (slice, values) in std::iter::once((PARAMS, &replica.params)).chain(slices) {
        for tensor in layout.tensors() {
            let tensor = tensor.as_ref();
            let len = tensor.checked_len().unwrap_or(0);
            let content = bytes_of(&values[tensor.offset..tensor.offset + len]);
            tensors.push((format!("{slice}/{}", tensor.name), tensor.shape.to_vec(), content));
        }
    }
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, shape, content)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), content)?)))
        .collect();
    let views = views.map_err(|error: safetensors::SafeTensorError| error.to_string())?;
    safetensors::serialize(views, None).map_err(|error| error.to_string())
}

/// The slices of these names, which must be all there are.
pub(super) fn replica_from_bytes(
    content: &[u8],
    layout: &Layout,
    optimizer_steps: u64,
) -> Result<Replica, String> {
    let file = SafeTensors::deserialize(content).map_err(|error| error.to_string())?;
    let mut slices: Vec<String> = file
        .names()
        .iter()
        .filter_map(|name| name.split_once('/'))
        .map(|(slice, _)| slice.to_owned())
        .collect();
    slices.sort_unstable();
    slices.dedup();
    if slices.len() * layout.tensors().len() != file.len() {
        return Err("tensors that are not those of this model".to_owned());
    }
    let read = |slice: &str| -> Result<Vec<f32>, String> {
        let mut values = Vec::with_capacity(layout.len());
        for tensor in layout.tensors() {
            let tensor = tensor.as_ref();
            let name = format!("{slice}/{}", tensor.name);
            let found = file.tensor(&name).map_err(|error| format!("{name}: {error}"))?;
            if found.dtype() != Dtype::F32 || found.shape() != tensor.shape {
                return Err(format!(
                    "{name}: {} of shape {:?} instead of F32 of shape {:?}",
                    found.dtype(),
                    found.shape(),
                    tensor.shape
                ));
            }
            values.extend(found.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        }
        Ok(values)
    };
    let optimizer =
        slices.iter().filter(|slice| *slice != PARAMS).map(|slice| Ok((slice.clone(), read(slice)?)));
    let optimizer = optimizer.collect::<Result<_, String>>()?;
    Ok(Replica { params: read(PARAMS)?, optimizer_steps, optimizer })
}

/// A saved memory as a tensor of bytes.
pub(super) fn memory_to_bytes(memory: &[u8]) -> Result<Vec<u8>, String> {
    let view = TensorView::new(Dtype::U8, vec![memory.len()], memory).map_err(|error| error.to_string())?;
    safetensors::serialize([(MEMORY, view)], None).map_err(|error| error.to_string())
}

/// The saved memory.
pub(super) fn memory_from_bytes(content: &[u8]) -> Result<Vec<u8>, String> {
    let file = SafeTensors::deserialize(content).map_err(|error| error.to_string())?;
    let memory = file.tensor(MEMORY).map_err(|error| error.to_string())?;
    Ok(memory.data().to_vec())
}
