//! What a worker alone has, in bytes: its residual, and the state of its own optimizer if it has one; with
//! gossip, what its edges keep.

use std::collections::HashMap;

use gradwire::{Layout, Memory};
use gradwire_transports::Rank;
use gradwire_transports::gossip::Mixer;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::own::Own;
use super::turn::Turn;
use crate::fragments::named;

/// Names in the file of a worker with an optimizer of its own, beside those of the optimizer's state.
const MEMORY: &str = "memory";
const STEPS: &str = "steps";

/// The memory alone as a saved memory of FORMAT.md; with a state of its own, a safetensors file that holds
/// both.
pub(super) fn saved(turns: &[Turn<'_>], own: Option<&Own>) -> Vec<u8> {
    let saved = |turn: &Turn<'_>| saved_memory(turn.memory.as_ref(), &turn.fragment.layout);
    let Some(own) = own else { return saved(&turns[0]) };
    let memories: Vec<_> = turns.iter().map(saved).collect();
    file_of(memories, Some(own))
}

/// What a server keeps of its means: as a saved memory, or with fragments as a safetensors file of that of
/// each; empty if it keeps nothing.
pub(super) fn saved_downlink(turns: &mut [Turn<'_>]) -> Vec<u8> {
    let saved = |turn: &mut Turn<'_>| {
        saved_memory(turn.agreement.downlink_memory().as_deref(), &turn.fragment.layout)
    };
    let mut memories: Vec<_> = turns.iter_mut().map(saved).collect();
    match memories.len() {
        1 => memories.remove(0),
        _ if memories.iter().all(Vec::is_empty) => Vec::new(),
        _ => file_of(memories, None),
    }
}

/// Puts it back. The error says why it is not of this codec and model.
pub(super) fn load_downlink(turns: &mut [Turn<'_>], saved: &[u8]) -> Result<(), String> {
    let load = |turn: &mut Turn<'_>, saved: &[u8]| {
        load_memory(turn.agreement.downlink_memory(), &turn.fragment.layout, saved)
    };
    if turns.len() == 1 || saved.is_empty() {
        return turns.iter_mut().try_for_each(|turn| load(turn, saved));
    }
    let file = SafeTensors::deserialize(saved).map_err(|error| error.to_string())?;
    load_each(turns, &file, load)
}

/// Loads the memory of each fragment from such a file.
fn load_each(
    turns: &mut [Turn<'_>],
    file: &SafeTensors<'_>,
    load: impl Fn(&mut Turn<'_>, &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    for (fragment, turn) in turns.iter_mut().enumerate() {
        let memory = file.tensor(&named(MEMORY, fragment)).map_err(|error| error.to_string())?;
        load(turn, memory.data())?;
    }
    Ok(())
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

/// A safetensors file of the memories of fragments, and of a worker's own state.
fn file_of(memories: Vec<Vec<u8>>, own: Option<&Own>) -> Vec<u8> {
    let memories = memories.into_iter().enumerate();
    let memories = memories.map(|(at, memory)| (named(MEMORY, at), Dtype::U8, memory.len(), memory));
    let state = own.into_iter().flat_map(Own::state);
    let state = state.map(|(name, values)| (name.to_owned(), Dtype::F32, values.len(), bytes(values)));
    let parts: Vec<_> = memories.chain(state).collect();
    let view = |dtype, len, bytes| TensorView::new(dtype, vec![len], bytes);
    let tensors = parts.iter().map(|(name, dtype, len, bytes)| Ok((name, view(*dtype, *len, bytes)?)));
    let steps = own.map(|own| HashMap::from([(STEPS.to_owned(), own.steps().to_string())]));
    let file =
        tensors.collect::<Result<Vec<_>, _>>().and_then(|tensors| safetensors::serialize(tensors, steps));
    // Lists of numbers with different names always make a file.
    file.expect("what is kept back can be saved")
}

/// Puts it back. The error says why it is not of this codec, optimizer and model.
pub(super) fn load(turns: &mut [Turn<'_>], own: Option<&mut Own>, saved: &[u8]) -> Result<(), String> {
    let load =
        |turn: &mut Turn<'_>, saved: &[u8]| load_memory(turn.memory.as_mut(), &turn.fragment.layout, saved);
    let Some(own) = own else { return load(&mut turns[0], saved) };
    let (_, header) = SafeTensors::read_metadata(saved).map_err(|error| error.to_string())?;
    let steps = header.metadata().as_ref().and_then(|metadata| metadata.get(STEPS)?.parse().ok());
    let steps = steps.ok_or("it does not say how many gradients its optimizer has seen")?;
    let file = SafeTensors::deserialize(saved).map_err(|error| error.to_string())?;
    let names: Vec<_> = (0..turns.len()).map(|fragment| named(MEMORY, fragment)).collect();
    let mut slices = Vec::new();
    for (name, tensor) in file.tensors() {
        if !names.contains(&name) {
            slices.push((name, values(&tensor)?));
        }
    }
    let slices: Vec<_> = slices.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect();
    load_each(turns, &file, load)?;
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
