//! What becomes of an engine where its process forks. The child has the memory of the engine and not its
//! thread, and a lock that this thread held stays locked there for ever.

use std::sync::{Arc, MutexGuard};

use super::kept::Kept;
use super::shared::{Shared, State};

/// The locks of an engine, held by the thread that forks, so that nobody else holds them in the child.
pub(super) struct Held {
    state: MutexGuard<'static, State>,
    /// `None` if the engine is changing memories.
    kept: Option<MutexGuard<'static, Vec<Option<Kept>>>>,
    _shared: Arc<Shared>,
}

// SAFETY: the thread that forks makes it before and drops it after; in the child that thread is the only one.
unsafe impl Send for Held {}

impl Held {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        // SAFETY: the locks live as long as the `Arc` that is kept beside the guards, which go before it.
        let lasting: &'static Shared = unsafe { &*Arc::as_ptr(shared) };
        // The engine may hold this one while it waits for the GIL.
        let kept = lasting.try_kept();
        Self { state: lasting.lock(), kept, _shared: Arc::clone(shared) }
    }

    /// Whether what is kept may be of any moment of a step.
    pub(super) fn is_torn(&self) -> bool {
        self.kept.is_none() || self.state.under_way.is_any || self.state.work.pending > 0
    }
}
