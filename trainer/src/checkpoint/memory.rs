//! What one rank keeps, as a safetensors file.

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Names of its tensors.
const MEMORY: &str = "memory";
const GRADIENT: &str = "gradient";

/// A saved memory as a tensor of bytes, and a gradient that was not sent yet, if there is one.
pub(super) fn to_bytes(memory: &[u8], gradient: &[f32]) -> Result<Vec<u8>, String> {
    let view =
        |dtype, len, content| TensorView::new(dtype, vec![len], content).map_err(|error| error.to_string());
    let bytes: Vec<u8> = gradient.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut tensors = vec![(MEMORY, view(Dtype::U8, memory.len(), memory)?)];
    if !gradient.is_empty() {
        tensors.push((GRADIENT, view(Dtype::F32, gradient.len(), &bytes)?));
    }
    safetensors::serialize(tensors, None).map_err(|error| error.to_string())
}

/// The saved memory, and the gradient; empty where there is none.
pub(super) fn from_bytes(content: &[u8]) -> Result<(Vec<u8>, Vec<f32>), String> {
    let file = SafeTensors::deserialize(content).map_err(|error| error.to_string())?;
    let memory = file.tensor(MEMORY).map_err(|error| error.to_string())?;
    let gradient = match file.tensor(GRADIENT) {
        Ok(gradient) if gradient.dtype() == Dtype::F32 => {
            gradient.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
        }
        Ok(gradient) => return Err(format!("{GRADIENT}: {} instead of F32", gradient.dtype())),
        Err(_) => Vec::new(),
    };
    Ok((memory.data().to_vec(), gradient))
}
