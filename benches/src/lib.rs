//! What the benches share: inputs and the memcpy they are measured against.
