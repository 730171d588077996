//! A worker's residual, in bytes.

use gradwire::{Layout, Memory};

/// A memory in bytes.
pub(super) fn saved(memory: Option<&Memory<'_>>, layout: &Layout) -> Vec<u8> {
    let Some(memory) = memory else { return Vec::new() };
    let mut bytes = vec![0; memory.saved_bytes().unwrap_or(0)];
    // A checkpoint without the residual would lose it silently.
    let written = memory.save(&layout.as_ref(), &mut bytes);
    assert_eq!(written, Ok(bytes.len()), "what this worker keeps back cannot be saved");
    bytes
}

/// Puts it back. The error says why it is not of this codec and model.
pub(super) fn load(memory: Option<&mut Memory<'_>>, layout: &Layout, saved: &[u8]) -> Result<(), String> {
    match memory {
        Some(memory) => memory.load(&layout.as_ref(), saved).map_err(|error| error.to_string()),
        None if !saved.is_empty() => Err("this run keeps no memory between steps".to_owned()),
        None => Ok(()),
    }
}
