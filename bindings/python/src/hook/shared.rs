//! What the threads of Python and the thread of a hook share.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use gradwire_transports::tcp::TcpWaker;
use gradwire_transports::{Deadline, Rank, exchange};
use pyo3::prelude::*;

use super::bucket::{Bucket, Opening};
use super::kept::Kept;

/// Why no step is made any more.
pub(super) enum Failure {
    /// An exception of this rank.
    Raised(Py<PyAny>),
    /// What a rank said: what kind of error it is, and its text.
    Told { kind: char, rank: u32, text: String },
    /// Ranks did not come, as far as they are known.
    Lost { ranks: Vec<u32>, bucket: u32, text: String },
    /// Something else.
    Other(String),
}

/// What became of the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// No step that could be discarded.
    Nothing,
    Holds,
    /// It came to nothing by itself.
    Void,
}

/// Sums since the hook was made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) done: u64,
    pub(super) skipped: u64,
    pub(super) checks: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) messages: u64,
    pub(super) frame_bytes: u64,
    pub(super) dense_bytes: u64,
    pub(super) held: u64,
    pub(super) encode: Duration,
    pub(super) exchange: Duration,
    pub(super) decode: Duration,
}

/// What Python has handed over.
pub(super) struct Work {
    pub(super) queue: VecDeque<Py<Bucket>>,
    /// Buckets without means, and buckets that still make work.
    pub(super) unresolved: usize,
    pub(super) pending: usize,
    pub(super) moved: Instant,
}

/// The step that is under way.
#[derive(Default)]
pub(super) struct UnderWay {
    /// Whether there is one.
    pub(super) is_any: bool,
    /// Whether it has begun, with these lanes.
    pub(super) has_begun: bool,
    pub(super) lanes: Vec<usize>,
    /// Nobody waits for it any longer.
    pub(super) is_broken_off: bool,
}

/// Where the last complete step ended.
pub(super) struct At {
    /// The number of the next one.
    pub(super) step: u64,
    pub(super) scale: Option<f64>,
    pub(super) lr: Option<f64>,
    pub(super) last: Last,
}

impl At {
    /// What residuals are to be multiplied by in the step that is opened, to weigh as much as before.
    fn ratio_to(&self, opening: &Opening) -> f64 {
        let mut ratio = match (self.scale, opening.scale) {
            (Some(before), Some(now)) => now / before,
            _ => 1.0,
        };
        if let (Some(before), Some(now)) = (self.lr, opening.lr)
            && before != 0.0
            && now != 0.0
        {
            ratio *= before / now;
        }
        ratio
    }
}

pub(super) struct State {
    pub(super) work: Work,
    pub(super) under_way: UnderWay,
    pub(super) at: At,
    pub(super) totals: Totals,
    pub(super) failure: Option<Failure>,
    pub(super) is_closed: bool,
    pub(super) has_ended: bool,
}

pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// What each lane keeps. It is locked before the state, and while memories change.
    kept: Mutex<Vec<Option<Kept>>>,
    waker: Option<TcpWaker>,
}

impl Shared {
    pub(super) fn new(kept: Vec<Option<Kept>>, waker: Option<TcpWaker>) -> Self {
        let state = State {
            work: Work { queue: VecDeque::new(), unresolved: 0, pending: 0, moved: Instant::now() },
            under_way: UnderWay::default(),
            at: At { step: 0, scale: None, lr: None, last: Last::Nothing },
            totals: Totals::default(),
            failure: None,
            is_closed: false,
            has_ended: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), kept: Mutex::new(kept), waker }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for a thread that has the GIL, which it lets go of while it waits: whoever has locked the
    /// state may be about to fork, and run code of Python before that.
    pub(super) fn lock_beside(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        loop {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(state)) => return state.into_inner(),
                Err(TryLockError::WouldBlock) => py.detach(|| drop(self.lock())),
            }
        }
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Vec<Option<Kept>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if nobody has locked it.
    pub(super) fn try_kept(&self) -> Option<MutexGuard<'_, Vec<Option<Kept>>>> {
        match self.kept.try_lock() {
            Ok(kept) => Some(kept),
            Err(TryLockError::Poisoned(kept)) => Some(kept.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether nobody waits for the step under way, nor for another one.
    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        state.failure.is_some() || state.under_way.is_broken_off || state.is_closed
    }

    /// Adds the time since `began` to the total of this kind of work.
    pub(super) fn spend(&self, work: exchange::Work, began: Instant) {
        let totals = &mut self.lock().totals;
        let total = match work {
            exchange::Work::Encode => &mut totals.encode,
            exchange::Work::Exchange => &mut totals.exchange,
            exchange::Work::Decode => &mut totals.decode,
        };
        *total += began.elapsed();
    }

    /// Changes the state and tells everybody.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }

    /// Wakes the thread of the hook, wherever it waits.
    pub(super) fn wake(&self) {
        self.changed.notify_all();
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Waits until what was sent has left this process, at most so long.
    pub(super) fn flush(&self, most: Duration) {
        if let Some(waker) = &self.waker {
            waker.flush(Deadline::after(most));
        }
    }

    /// When bytes of messages last moved between ranks.
    pub(super) fn moved(&self) -> Option<Instant> {
        self.waker.as_ref().map(TcpWaker::moved)
    }

    /// Whether the connection with another rank has ended.
    pub(super) fn is_gone(&self, rank: u32) -> bool {
        self.waker.as_ref().is_some_and(|waker| waker.is_gone(Rank(rank)))
    }

    /// The next bucket; waits for it. `None` once the hook is closed.
    pub(super) fn next(&self) -> Option<Py<Bucket>> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(bucket) = state.work.queue.pop_front() {
                return Some(bucket);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a change, at most so long. Call it without the GIL.
    pub(super) fn wait(&self, is_over: impl Fn(&State) -> bool, most: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, most, |state| !is_over(state));
        is_over(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Begins a step: returns to what was kept before one that was forgotten, and rescales residuals. Returns
    /// its number.
    pub(super) fn begin_step(&self, opening: &Opening) -> u64 {
        let mut kept = self.kept();
        let state = &mut *self.lock();
        self.undo(&mut kept, state);
        let others = kept.iter_mut().enumerate().filter(|(at, _)| !opening.lanes.contains(at));
        others.for_each(|(_, kept)| kept.iter_mut().for_each(Kept::free_zeros));
        let ratio = state.at.ratio_to(opening);
        if ratio != 1.0 {
            kept.iter_mut().flatten().for_each(|kept| kept.rescale(ratio as f32));
        }
        state.at.scale = opening.scale.or(state.at.scale);
        state.at.lr = opening.lr.filter(|lr| *lr != 0.0).or(state.at.lr);
        for at in &opening.lanes {
            kept[*at].iter_mut().for_each(Kept::begin_step);
        }
        state.under_way.lanes.clone_from(&opening.lanes);
        (state.under_way.has_begun, state.under_way.is_any, state.at.last) = (true, true, Last::Nothing);
        state.at.step
    }

    /// Returns to what was kept when the step under way began, if one has.
    pub(super) fn undo(&self, kept: &mut [Option<Kept>], state: &mut State) {
        if std::mem::take(&mut state.under_way.has_begun) {
            for at in &state.under_way.lanes {
                kept[*at].iter_mut().for_each(Kept::undo_step);
            }
        }
        state.under_way.is_any = false;
    }
}
