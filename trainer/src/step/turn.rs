//! What a worker has for each part of the model that is exchanged in a turn of its own.

use gradwire::Memory;

use super::latents::Latents;
use crate::agreement::Agreement;
use crate::fragments::Fragment;
use crate::job::{Job, JobError};

/// Of one fragment.
pub(super) struct Turn<'a> {
    pub(super) fragment: &'a Fragment,
    pub(super) agreement: Agreement,
    /// The memory that the spelling asks for, if any.
    pub(super) memory: Option<Memory<'static>>,
    pub(super) latents: Latents,
}

impl<'a> Turn<'a> {
    /// Of each fragment, before its first exchange.
    pub(super) fn all(job: &'a Job) -> Result<Vec<Self>, JobError> {
        let turn = |fragment: &'a Fragment| {
            let agreement = job.way.begin(&job.rules, fragment.layout.clone(), job.config.pipeline)?;
            Ok(Self { fragment, agreement, memory: job.memory(fragment), latents: Latents::default() })
        };
        job.fragments.iter().map(turn).collect()
    }
}
