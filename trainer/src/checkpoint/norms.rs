//! The norms of the last frames that a server took in, of each fragment, as a safetensors file.

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::fragments::named;

const NORMS: &str = "norms";

pub(super) fn to_bytes(norms: &[Vec<f64>]) -> Result<Vec<u8>, String> {
    let bytes = |norms: &Vec<f64>| norms.iter().flat_map(|norm| norm.to_le_bytes()).collect::<Vec<u8>>();
    let lists: Vec<_> = norms.iter().map(bytes).collect();
    let view = |bytes| TensorView::new(Dtype::F64, vec![<[u8]>::len(bytes) / size_of::<f64>()], bytes);
    let views = lists.iter().enumerate().map(|(fragment, bytes)| Ok((named(NORMS, fragment), view(bytes)?)));
    let file = views.collect::<Result<Vec<_>, _>>().and_then(|views| safetensors::serialize(views, None));
    file.map_err(|error| error.to_string())
}

pub(super) fn from_bytes(content: &[u8]) -> Result<Vec<Vec<f64>>, String> {
    let file = SafeTensors::deserialize(content).map_err(|error| error.to_string())?;
    (0..file.len().max(1)).map(|fragment| numbers(&file, &named(NORMS, fragment))).collect()
}

fn numbers(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f64>, String> {
    let norms = file.tensor(name).map_err(|error| error.to_string())?;
    if norms.dtype() != Dtype::F64 {
        return Err(format!("{name}: {} instead of F64", norms.dtype()));
    }
    Ok(norms.data().as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect())
}
