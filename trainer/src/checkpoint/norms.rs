//! The norms of the last frames that a server took in, as a safetensors file.

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// The name of its one tensor.
const NORMS: &str = "norms";

pub(super) fn to_bytes(norms: &[f64]) -> Result<Vec<u8>, String> {
    let bytes: Vec<u8> = norms.iter().flat_map(|norm| norm.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F64, vec![norms.len()], &bytes).map_err(|error| error.to_string())?;
    safetensors::serialize([(NORMS, view)], None).map_err(|error| error.to_string())
}

pub(super) fn from_bytes(content: &[u8]) -> Result<Vec<f64>, String> {
    let file = SafeTensors::deserialize(content).map_err(|error| error.to_string())?;
    let norms = file.tensor(NORMS).map_err(|error| error.to_string())?;
    if norms.dtype() != Dtype::F64 {
        return Err(format!("{NORMS}: {} instead of F64", norms.dtype()));
    }
    Ok(norms.data().as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect())
}
