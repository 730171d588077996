//! The state that one rank saves, as a safetensors file.

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Names of its tensors.
const MEMORY: &str = "memory";
const NUMBERS: [&str; 2] = ["gradient", "carried"];

/// A saved memory as a tensor of bytes, with the gradient that was not sent yet and the state that the model
/// carries, if there are any.
pub(super) fn to_bytes(memory: &[u8], numbers: [&[f32]; 2]) -> Result<Vec<u8>, String> {
    let view =
        |dtype, len, content| TensorView::new(dtype, vec![len], content).map_err(|error| error.to_string());
    let bytes = numbers.map(|of| of.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    let mut tensors = vec![(MEMORY, view(Dtype::U8, memory.len(), memory)?)];
    for (name, bytes) in NUMBERS.into_iter().zip(&bytes).filter(|(_, bytes)| !bytes.is_empty()) {
        tensors.push((name, view(Dtype::F32, bytes.len() / 4, bytes)?));
    }
    safetensors::serialize(tensors, None).map_err(|error| error.to_string())
}

/// The saved memory; then the gradient that was not sent yet and the state that the model carries, each empty
/// if the file has none.
pub(super) fn from_bytes(content: &[u8]) -> Result<(Vec<u8>, [Vec<f32>; 2]), String> {
    let file = SafeTensors::deserialize(content).map_err(|error| error.to_string())?;
    let memory = file.tensor(MEMORY).map_err(|error| error.to_string())?;
    let [gradient, carried] = NUMBERS.map(|name| numbers(&file, name));
    Ok((memory.data().to_vec(), [gradient?, carried?]))
}

fn numbers(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>, String> {
    match file.tensor(name) {
        Ok(found) if found.dtype() == Dtype::F32 => {
            Ok(found.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
        }
        Ok(found) => Err(format!("{name}: {} instead of F32", found.dtype())),
        Err(_) => Ok(Vec::new()),
    }
}
