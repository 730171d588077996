//! What a worker alone has, in bytes: its residual, and the state of its own optimizer if it has one; with
//! gossip, what its edges keep.

use std::collections::HashMap;

use gradwire::{Layout, Memory};
use gradwire_transports::Rank;
use gradwire_transports::gossip::Mixer;
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

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A safetensors file with the numbers of each edge, by the neighbour's rank; empty if edges keep nothing.
pub(super) fn saved_edges(mixer: &Mixer) -> Vec<u8> {
    let edges: Vec<_> =
        mixer.edges().map(|(rank, kept)| (rank.0.to_string(), kept.len(), bytes(kept))).collect();
    if edges.is_empty() {
        return Vec::new();
    }
    let view = |len: usize, bytes| TensorView::new(Dtype::F32, vec![len], bytes);
    let tensors = edges.iter().map(|(rank, len, bytes)| Ok((rank, view(*len, bytes)?)));
    let file =
        tensors.collect::<Result<Vec<_>, _>>().and_then(|tensors| safetensors::serialize(tensors, None));
    // Lists of numbers with different names always make a file.
    file.expect("what edges keep can be saved")
}

/// Puts it back at the rank `me`. The error says why it is not of this codec and model.
pub(super) fn load_edges(mixer: &mut Mixer, me: Rank, saved: &[u8]) -> Result<(), String> {
    if saved.is_empty() {
        return Ok(());
    }
    let file = SafeTensors::deserialize(saved).map_err(|error| error.to_string())?;
    for (name, tensor) in file.tensors() {
        let neighbour = name.parse().map_err(|_| format!("an edge to {name}, which is no rank"))?;
        let kept = values(&tensor)?;
        if !mixer.restore_edge(me, Rank(neighbour), &kept) {
            return Err(format!("{} numbers for the edge to rank {neighbour}, not this codec's", kept.len()));
        }
    }
    Ok(())
}

fn with_own(memory: &[u8], own: &Own) -> Result<Vec<u8>, safetensors::SafeTensorError> {
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
        dtype => Err(format!("numbers as {dtype} instead of F32")),
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
