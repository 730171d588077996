//! A saved memory as a safetensors file.

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Name of its one tensor.
const MEMORY: &str = "memory";

/// A saved memory as a tensor of bytes.
pub(super) fn to_bytes(memory: &[u8]) -> Result<Vec<u8>, String> {
    let view = TensorView::new(Dtype::U8, vec![memory.len()], memory).map_err(|error| error.to_string())?;
    safetensors::serialize([(MEMORY, view)], None).map_err(|error| error.to_string())
}

/// The saved memory.
pub(super) fn from_bytes(content: &[u8]) -> Result<Vec<u8>, String> {
    let file = SafeTensors::deserialize(content).map_err(|error| error.to_string())?;
    let memory = file.tensor(MEMORY).map_err(|error| error.to_string())?;
    Ok(memory.data().to_vec())
}
