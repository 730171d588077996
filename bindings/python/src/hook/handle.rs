//! What Python holds of an engine.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gradwire_transports::FIRST_RETRY;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;

use super::bucket::Bucket;
use super::engine::Engine;
use super::fork::Held;
use super::kept::Kept;
use super::lane::{Kind, Lane};
use super::lanes::Lanes;
use super::pool;
use super::shared::{Failure, Last, Shared, State};
use super::step::Step;
use super::view::{View, Where, where_of};
use crate::codec::{Codec, UnitTuple, units_of};
use crate::door::machine_of;
use crate::errors::value;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::mesh::Mesh;
use crate::names::{MemoryChoice, Plan};

/// How long a call waits before Python may look for signals.
const GLANCE: Duration = Duration::from_millis(100);
/// How long the end of a program waits for the thread.
const PATIENCE: Duration = Duration::from_secs(2);

/// Codec, layout, units, whether a step can be discarded, and how payloads travel.
type LaneTuple = (Py<Codec>, Py<Layout>, Vec<UnitTuple>, bool, String);
/// The kind of a failure, its text, the ranks and the bucket that it is about, and the exception if it was
/// raised here.
type Told = (&'static str, String, Vec<u32>, u32, Option<Py<PyAny>>);
/// The engine of one model at one rank; see :mod:`gradwire.torch`. A process that was forked from this one
/// must leave it alone.
#[pyclass(frozen, module = "gradwire._core", name = "_Engine")]
pub(crate) struct Handle {
    shared: Arc<Shared>,
    threads: std::sync::Mutex<Vec<JoinHandle<()>>>,
    process: u32,
    held: std::sync::Mutex<Option<Held>>,
}

#[pymethods]
impl Handle {
    #[new]
    fn new(
        mesh: &Mesh,
        lanes: Vec<LaneTuple>,
        names: Vec<String>,
        after: Py<PyAny>,
        seed: u64,
        timeout: f64,
        threads: usize,
    ) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout).map_err(|error| value(error.to_string()))?;
        let (mut all, mut kept) = (Vec::new(), Vec::new());
        for lane in lanes {
            let (lane, memory) = lane_of(lane, mesh.world(), threads > 1)?;
            all.push(lane);
            kept.push(memory);
        }
        let (transport, waker) = mesh.take()?;
        let (rank, world) = (transport.rank(), transport.membership().world());
        let mut lanes = Lanes::default();
        (lanes.all, lanes.world) = (all, world);
        let shared = Arc::new(Shared::new(kept, waker));
        let engine = Engine {
            shared: Arc::clone(&shared),
            transport,
            lanes,
            rank: rank.0,
            seed,
            timeout,
            names,
            after,
            step: Step::default(),
            patience: FIRST_RETRY,
        };
        let threads = pool::run(threads, || engine.run());
        let threads = threads.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(Self {
            shared,
            threads: std::sync::Mutex::new(threads),
            process: std::process::id(),
            held: std::sync::Mutex::default(),
        })
    }

    /// Hands over a bucket. Returns whether it is taken: it is not after a failure.
    fn give(&self, py: Python<'_>, bucket: Py<Bucket>) -> bool {
        let mut state = self.shared.lock_beside(py);
        if state.failure.is_some() || state.has_ended || state.is_closed {
            return false;
        }
        state.work.queue.push_back(bucket);
        state.work.pending += 1;
        state.work.unresolved += 1;
        (state.under_way.is_any, state.work.moved) = (true, Instant::now());
        drop(state);
        self.shared.wake();
        true
    }

    /// Waits a little until all buckets are means, or all work is done that no bucket waits for, or until a
    /// failure. Returns whether that is so.
    fn wait(&self, py: Python<'_>, for_means: bool) -> bool {
        py.detach(|| {
            let is_over = |state: &State| {
                let left = if for_means { state.work.unresolved } else { state.work.pending };
                left == 0 || state.failure.is_some() || state.has_ended
            };
            self.shared.wait(is_over, GLANCE)
        })
    }

    /// Whether buckets are on their way.
    #[getter]
    fn is_pending(&self, py: Python<'_>) -> bool {
        self.shared.lock_beside(py).work.pending > 0
    }

    /// Seconds since anything moved.
    fn idle_seconds(&self, py: Python<'_>) -> f64 {
        self.shared.lock_beside(py).work.moved.elapsed().as_secs_f64()
    }

    /// Whether the connection with another rank has ended.
    fn is_gone(&self, rank: u32) -> bool {
        self.shared.is_gone(rank)
    }

    /// Why no step is made any more, if that is so: the kind of error, its text, the ranks and the bucket
    /// that it is about, and the exception if it was raised here.
    fn failure(&self, py: Python<'_>) -> Option<Told> {
        match self.shared.lock_beside(py).failure.as_ref()? {
            Failure::Raised(error) => {
                Some(("raised", String::new(), Vec::new(), 0, Some(error.clone_ref(py))))
            }
            Failure::Told { kind, rank, text } => {
                let kind = match kind {
                    'O' => "out of step",
                    'R' => "replicas differ",
                    _ => "peer failed",
                };
                Some((kind, text.clone(), vec![*rank], 0, None))
            }
            Failure::Lost { ranks, bucket, text } => {
                Some(("peer lost", text.clone(), ranks.clone(), *bucket, None))
            }
            Failure::Other(text) => Some(("failed", text.clone(), Vec::new(), 0, None)),
        }
    }

    /// Nobody waits any longer: the step under way comes to nothing, unless it holds already. Returns whether
    /// one was under way.
    fn break_off(&self, py: Python<'_>, text: String) -> bool {
        let was_under_way = py.detach(|| {
            let mut kept = self.shared.kept();
            self.shared.change(|state| {
                if !state.under_way.is_any {
                    return false;
                }
                state.under_way.is_broken_off = true;
                self.shared.undo(&mut kept, state);
                state.failure.get_or_insert(Failure::Other(text));
                true
            })
        });
        self.shared.wake();
        was_under_way
    }

    /// From now on there is a failure, if there was none.
    fn fail(&self, py: Python<'_>, text: String) {
        py.detach(|| {
            self.shared.change(|state| {
                state.failure.get_or_insert(Failure::Other(text));
            });
        });
    }

    /// Where the last complete step ended, and copies of what lanes kept then.
    fn read(&self, py: Python<'_>, memories: Vec<(usize, Bound<'_, Memory>)>) -> PyResult<Where> {
        let mut lent = borrowed(&memories)?;
        let mut lent: Vec<_> = lent.iter_mut().map(|(at, memory)| (*at, memory.lend())).collect();
        Ok(py.detach(|| {
            let kept = self.shared.kept();
            let state = self.shared.lock();
            for (at, memory) in &mut lent {
                if let Some(kept) = &kept[*at] {
                    memory.copy_from(kept.kept());
                }
            }
            where_of(&state)
        }))
    }

    /// Goes on from there. A step that backward has left in the middle comes to nothing.
    fn load(
        &self,
        py: Python<'_>,
        memories: Vec<(usize, Bound<'_, Memory>)>,
        step: u64,
        scale: Option<f64>,
        lr: Option<f64>,
    ) -> PyResult<()> {
        let mut lent = borrowed(&memories)?;
        let lent: Vec<_> = lent.iter_mut().map(|(at, memory)| (*at, &*memory.lend())).collect();
        py.detach(|| {
            let mut kept = self.shared.kept();
            self.shared.change(|state| {
                self.shared.undo(&mut kept, state);
                for (at, memory) in &lent {
                    if let Some(kept) = &mut kept[*at] {
                        kept.replace(memory);
                    }
                }
                (state.at.step, state.at.scale, state.at.lr, state.at.last) =
                    (step, scale, lr, Last::Nothing);
            });
        });
        Ok(())
    }

    /// Multiplies what all lanes kept.
    fn rescale(&self, py: Python<'_>, ratio: f64) {
        py.detach(|| {
            let mut kept = self.shared.kept();
            kept.iter_mut().flatten().for_each(|kept| kept.rescale(ratio as f32));
            self.shared.change(|state| state.at.last = Last::Nothing);
        });
    }

    /// Whether the lane still has what it kept before the last step.
    fn is_discardable(&self, py: Python<'_>, lane: usize) -> bool {
        py.detach(|| self.shared.kept()[lane].as_ref().is_none_or(Kept::is_discardable))
    }

    /// Returns to what was kept before the last step, which is there.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| {
            let mut kept = self.shared.kept();
            self.shared.change(|state| {
                let lanes =
                    if state.at.last == Last::Holds { state.under_way.lanes.clone() } else { Vec::new() };
                lanes.into_iter().for_each(|at| kept[at].iter_mut().for_each(Kept::undo_step));
                state.at.last = Last::Nothing;
            });
        });
    }

    /// What may be looked at without keeping the engine.
    fn view(&self) -> View {
        View { shared: Arc::clone(&self.shared), process: self.process }
    }

    /// Before a fork: lets the thread end what it does behind a step, at most so long, and keeps it from
    /// beginning anything else. Does not wait for a step under way.
    fn before_fork(&self, py: Python<'_>, seconds: f64) {
        if self.is_forked() {
            return;
        }
        let held = py.detach(|| {
            let is_at_rest =
                |state: &State| state.under_way.is_any || state.work.pending == 0 || state.failure.is_some();
            self.shared.wait(is_at_rest, Duration::from_secs_f64(seconds));
            Held::new(&self.shared)
        });
        *self.held() = Some(held);
    }

    /// After it, in both processes. Returns whether what is kept may be of any moment of a step.
    fn after_fork(&self) -> bool {
        self.held().take().is_none_or(|held| held.is_torn())
    }

    /// Ends the thread and the mesh. Waits at most two seconds.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("an engine has a thread: it is neither copied nor pickled"))
    }
}

impl Handle {
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn end(&self) {
        if self.is_forked() {
            return;
        }
        self.shared.change(|state| state.is_closed = true);
        self.shared.wake();
        let has_ended = self.shared.wait(|state| state.has_ended, PATIENCE);
        let threads =
            self.threads.lock().map_or_else(|_| Vec::new(), |mut threads| std::mem::take(&mut *threads));
        for thread in threads.into_iter().filter(|_| has_ended) {
            // A thread that panicked leaves nothing more to clean up than one that ended.
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            Python::attach(|py| py.detach(|| self.end()));
        }
    }
}

fn borrowed<'py>(memories: &[(usize, Bound<'py, Memory>)]) -> PyResult<Vec<(usize, PyRefMut<'py, Memory>)>> {
    memories.iter().map(|(at, memory)| Ok((*at, Memory::borrow_alone(memory)?))).collect()
}

fn lane_of(
    (codec, layout, units, discardable, wire): LaneTuple,
    world: usize,
    on_threads: bool,
) -> PyResult<(Lane, Option<Kept>)> {
    let (spec, layout) = (&codec.get().spec, &layout.get().layout);
    let plan = Plan::of_units(spec, units_of(units.clone(), layout.len())?, &layout.as_ref());
    let machine = machine_of(spec, layout, Some(units), (&wire, world), on_threads)?.taking_any_mean();
    let is_linear = spec.codec.as_linear().is_some();
    let kind = match spec.memory {
        _ if is_linear => Kind::Sums,
        MemoryChoice::ErrorFeedback => Kind::Beside,
        _ => Kind::Frames,
    };
    let kept = Kept::new(plan, layout, kind == Kind::Beside, discardable);
    Ok((Lane::new(machine, layout, kind, spec.to_string()), kept))
}
