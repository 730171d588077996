//! What a worker alone has, in bytes: its residual, and the state of its own optimizer if it has one.

use std::collections::HashMap;

use gradwire::{Layout, Memory};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::own::Own;

/// Names in the file of a worker with an optimizer of its own, beside those of the optimizer's state.
const MEMORY: &str = "memory";
const STEPS: &str = "steps";

/// The memory alone as a saved memory of FORMAT.md; with a state of its own, a safetensors file that holds
/// both.
pub(super) fn saved(memory: Option<&Memory<'_>>, own: Option<&Own>, layout: &Layout) -> Vec<u8> {
    let memory = saved_memory(memory, layout);
    let Some(own) = own else { return memory };
    // Lists of numbers with different names always make a file.
    with_own(&memory, own).expect("what this worker keeps back can be saved")
}

fn with_own(memory: &[u8], own: &Own) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let slices: Vec<_> =
        own.state().into_iter().map(|(name, values)| (name, values.len(), bytes(values))).collect();
    let mut tensors = vec![(MEMORY, TensorView::new(Dtype::U8, vec![memory.len()], memory)?)];
    for (name, len, bytes) in &slices {
        tensors.push((name, TensorView::new(Dtype::F32, vec![*len], bytes)?));
    }
    let steps = HashMap::from([(STEPS.to_owned(), own.steps().to_string())]);
    safetensors::serialize(tensors, Some(steps))
}

/// Puts it back. The error says why it is not of this codec, optimizer and model.
pub(super) fn load(
    memory: Option<&mut Memory<'_>>,
    own: Option<&mut Own>,
    layout: &Layout,
    saved: &[u8],
) -> Result<(), String> {
    let Some(own) = own else { return load_memory(memory, layout, saved) };
    let (_, header) = SafeTensors::read_metadata(saved).map_err(|error| error.to_string())?;
    let steps = header.metadata().as_ref().and_then(|metadata| metadata.get(STEPS)?.parse().ok());
    let steps = steps.ok_or("it does not say how many gradients its optimizer has seen")?;
    let file = SafeTensors::deserialize(saved).map_err(|error| error.to_string())?;
    let mut slices = Vec::new();
    for (name, tensor) in file.tensors() {
        if name != MEMORY {
            slices.push((name, values(&tensor)?));
        }
    }
    let slices: Vec<_> = slices.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect();
    let kept = file.tensor(MEMORY).map_err(|error| error.to_string())?;
    load_memory(memory, layout, kept.data())?;
    own.restore(steps, &slices).map_err(|error| error.to_string())
}

fn values(tensor: &TensorView<'_>) -> Result<Vec<f32>, String> {
    match tensor.dtype() {
        Dtype::F32 => {
            Ok(tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
        }
        dtype => Err(format!("an optimizer's state as {dtype} instead of F32")),
    }
}

/// A memory in bytes.
pub(super) fn saved_memory(memory: Option<&Memory<'_>>, layout: &Layout) -> Vec<u8> {
    let Some(memory) = memory else { return Vec::new() };
    let mut bytes = vec![0; memory.saved_bytes().unwrap_or(0)];
    // A checkpoint without the residual would lose it silently.
    let written = memory.save(&layout.as_ref(), &mut bytes);
    assert_eq!(written, Ok(bytes.len()), "what this worker keeps back cannot be saved");
    bytes
}

/// Puts it back. The error says why it is not of this codec and model.
pub(super) fn load_memory(
    memory: Option<&mut Memory<'_>>,
    layout: &Layout,
    saved: &[u8],
) -> Result<(), String> {
    match memory {
        Some(memory) => memory.load(&layout.as_ref(), saved).map_err(|error| error.to_string()),
        None if !saved.is_empty() => Err("this run keeps no memory between steps".to_owned()),
        None => Ok(()),
    }
}
