//! How long the Rust side of an encode takes, for benches/overhead.py.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;

use super::job::Job;
use crate::errors;
use crate::memory::Memory;
use crate::names::{self, Encoder};

/// Keeps its encoder, and with it the buffers, from call to call.
#[derive(Default)]
pub(super) struct Bench(Mutex<Encoder>);

impl Bench {
    /// The time of one encode, with the buffers of the last call unless they are to be `fresh`.
    pub(super) fn nanoseconds(
        &self,
        codec: &names::Codec,
        job: &Job,
        memory: Option<&mut Memory>,
        fresh: bool,
    ) -> PyResult<u64> {
        let layout = job.layout.get().layout.as_ref();
        let (step, lent) = (job.step(&layout), memory.map(Memory::lend));
        let mut encoder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Instant::now();
        if fresh {
            *encoder = Encoder::default();
        }
        let frame = encoder.encode(codec, &step, lent).map(<[u8]>::len);
        if fresh {
            *encoder = Encoder::default();
        }
        let took = before.elapsed();
        frame.map_err(errors::encode)?;
        Ok(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
    }
}
