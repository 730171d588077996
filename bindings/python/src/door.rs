//! The mean over all ranks of a mesh, for callers with numpy.

use std::sync::{Mutex, MutexGuard, TryLockError};

use gradwire_transports::collective::Wire;
use gradwire_transports::cost::Link;
use gradwire_transports::exchange::{self, NewPart, Report, Route};
use gradwire_transports::{Deadline, Transport};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::array::empty_array;
use crate::buffer::{Gradient, Output};
use crate::codec::{Codec, UnitTuple, check_memory, key_of, units_of};
use crate::errors::{self, value};
use crate::layout::{Layout, layout_of};
use crate::memory::Memory;
use crate::mesh::{GLANCE, Mesh, deadline_in};
use crate::names::{self, Plan, StepKey};

/// How long the others are told of an exception.
const TELLING_SECONDS: f64 = 2.0;

/// How the gradients of all ranks of a :class:`Mesh` become one mean, which has the same bits at all ranks.
///
/// Every rank makes one with the same codec and layout, and calls :meth:`mean` for the same steps in the same
/// order. Frames of a gather codec go to all ranks and are added in rank order; with a sparse codec and many
/// ranks, where that is shorter, owners of coordinates add them up, to the same bits. Payloads of a linear
/// codec are summed by owners, in rank order too: a rank sends 2 · (N − 1) / N of its payload for N ranks.
/// For these, ``wire="bf16"`` sends 16 bits a value and adds in float32. ``units`` are as those of
/// :meth:`Codec.encode`; by default they are those of the spelling.
///
/// >>> import numpy as np
/// >>> import gradwire
/// >>> listener = gradwire.Listener(0)
/// >>> mesh = listener.join([listener.address])  # of one rank
/// >>> codec = gradwire.Codec("topk:density=0.5")
/// >>> exchange, memory = gradwire.Exchange(mesh, codec, 4), gradwire.Memory(codec, 4)
/// >>> exchange.mean(np.array([1, 2, 3, 4], np.float32), memory, step=0)
/// array([0., 0., 3., 4.], dtype=float32)
/// >>> memory.residual
/// array([1., 2., 0., 0.], dtype=float32)
#[pyclass(frozen, module = "gradwire", name = "Exchange")]
pub(crate) struct Exchange {
    mesh: Py<Mesh>,
    codec: Py<Codec>,
    layout: Py<Layout>,
    seed: u64,
    timeout: f64,
    ids: Vec<u32>,
    machine: Mutex<exchange::Exchange>,
}

#[pymethods]
impl Exchange {
    #[new]
    #[pyo3(signature = (mesh, codec, layout, *, units=None, wire="f32", seed=0, timeout=60.0))]
    #[allow(clippy::too_many_arguments, reason = "most have a default, and Python names them")]
    fn new(
        mesh: Py<Mesh>,
        codec: Py<Codec>,
        layout: &Bound<'_, PyAny>,
        units: Option<Vec<UnitTuple>>,
        wire: &str,
        seed: u64,
        timeout: f64,
    ) -> PyResult<Self> {
        deadline_in(timeout)?;
        let layout = layout_of(layout)?;
        let (spec, world) = (&codec.get().spec, mesh.get().world());
        let machine = machine_of(spec, &layout.get().layout, units, (wire, world), false)?.undoing();
        let ids = machine.units().iter().map(|unit| unit.id).collect();
        Ok(Self { mesh, codec, layout, seed, timeout, ids, machine: Mutex::new(machine) })
    }

    /// The mean of the gradients that all ranks pass for this step, in ``out`` if it is given. The memory is
    /// the one that the codec asks for. Others threads of Python run meanwhile.
    ///
    /// Raises :class:`EncodeError` for a gradient that cannot be encoded, and :class:`ExchangeError` at all
    /// other ranks then; if a rank is gone or does not come within the exchange's ``timeout``; and if a mean
    /// is not finite. An exception leaves the memory as it was.
    #[pyo3(signature = (grad, memory=None, *, step, out=None))]
    fn mean<'py>(
        &self,
        grad: &Bound<'py, PyAny>,
        memory: Option<&Bound<'py, Memory>>,
        step: u64,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = grad.py();
        let gradient = Gradient::of(grad, None)?;
        let len = self.layout.get().layout.len();
        if gradient.len() != len {
            return Err(value(format!("grad: expected {len} elements, got {}", gradient.len())));
        }
        let mut kept = memory.map(Memory::borrow_alone).transpose()?;
        check_memory(&self.codec.get().spec, kept.as_deref(), self.layout.get())?;
        let mean = match out {
            Some(out) => out.clone(),
            None => empty_array(py, len)?,
        };
        let mut output = Output::values(&mean, len, "out")?;
        if gradient.meets(&output) {
            return Err(value("out: expected other memory than the gradient's"));
        }
        let mut machine = self.alone()?;
        let mut net = self.mesh.get().lend()?;
        let Some(net) = net.as_mut() else { return Err(value("mesh: it is closed")) };
        let key = key_of(self.seed, step, net.rank().0)?;
        let mut job = Job { machine: &mut machine, net: &mut **net, deadline: deadline_in(self.timeout)? };
        job.step(py, key, &self.ids, &gradient, kept.as_deref_mut().map(Memory::lend), output.f32s())?;
        Ok(mean)
    }

    /// Sets the codec of the next steps, at all ranks alike; it keeps what the one before it kept.
    ///
    /// >>> import gradwire
    /// >>> listener = gradwire.Listener(0)
    /// >>> mesh = listener.join([listener.address])
    /// >>> exchange = gradwire.Exchange(mesh, gradwire.Codec("topk:density=0.5"), 4)
    /// >>> exchange.set_codec(gradwire.Codec("topk:density=0.25"))
    fn set_codec(&self, codec: &Codec) -> PyResult<()> {
        self.alone()?.set_codec(codec.spec.codec).map_err(errors::exchange)
    }
}

impl Exchange {
    fn alone(&self) -> PyResult<MutexGuard<'_, exchange::Exchange>> {
        match self.machine.try_lock() {
            Ok(machine) => Ok(machine),
            Err(TryLockError::Poisoned(machine)) => Ok(machine.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("exchange: another thread is using it"))
            }
        }
    }
}

/// A link on which fewer bytes take less time, however fast it is.
const ANY_SPEED: Link = Link { latency_s: 0.0, bytes_per_s: 1.0, burst_bytes: 0.0 };

/// The exchange of a spelling between so many ranks: frames to all ranks, or where that is predicted to be
/// shorter their sums by owners, encoded on the threads of the caller's pool if that is said; or sums of
/// payloads by owners.
pub(crate) fn machine_of(
    spec: &names::Spec,
    layout: &names::Layout,
    units: Option<Vec<UnitTuple>>,
    (wire, world): (&str, usize),
    on_threads: bool,
) -> PyResult<exchange::Exchange> {
    let wire = match wire {
        "f32" => Wire::F32,
        "bf16" => Wire::Bf16,
        other => return Err(value(format!("wire='{other}': expected one of f32 bf16"))),
    };
    let is_linear = spec.codec.as_linear().is_some();
    if wire == Wire::Bf16 && !is_linear {
        return Err(value(format!("wire='bf16': {spec} makes frames; expected a linear codec, as 'none'")));
    }
    let borrowed = layout.as_ref();
    let plan = match units {
        None => Plan::of(spec, &borrowed),
        Some(units) if units.is_empty() => return Err(value("units: expected one or more")),
        Some(units) => Plan::of_units(spec, units_of(units, layout.len())?, &borrowed),
    };
    let plan = if on_threads { plan.on_threads() } else { plan };
    let route = match exchange::Exchange::route_over(&plan, world, &ANY_SPEED) {
        _ if is_linear => Route::Owners { wire },
        Route::SparseAllReduce => Route::SparseAllReduce,
        _ => Route::AllGather,
    };
    exchange::Exchange::new(plan, layout.clone(), route).map_err(|error| value(error.to_string()))
}

/// What a step needs beside its gradient.
struct Job<'a> {
    machine: &'a mut exchange::Exchange,
    net: &'a mut dyn Transport,
    deadline: Deadline,
}

impl Job<'_> {
    fn step(
        &mut self,
        py: Python<'_>,
        key: StepKey,
        ids: &[u32],
        gradient: &Gradient,
        mut memory: Option<&mut names::Memory<'static>>,
        mean: &mut [f32],
    ) -> PyResult<()> {
        let Self { machine, net, deadline } = self;
        let (transport, part) = (&mut **net, NewPart { units: ids, ..NewPart::default() });
        let grad = gradient.grad();
        py.detach(|| {
            machine.start_in_parts(transport, key, memory.as_deref(), *deadline)?;
            machine.add_part(transport, &part, grad, memory.as_deref_mut()).map(|_| ())
        })
        .map_err(errors::exchange)?;
        loop {
            let until = deadline.earlier(Deadline::after(GLANCE));
            let is_done = py
                .detach(|| machine.take_parts(transport, mean, memory.as_deref_mut(), until))
                .map_err(errors::exchange)?;
            if let Err(signal) = py.check_signals() {
                machine.fail("it was interrupted");
                let by = deadline_in(TELLING_SECONDS)?;
                let _ = py.detach(|| machine.finish(transport, mean, memory, by));
                return Err(signal);
            }
            if is_done {
                break;
            }
        }
        let finished: Result<Report, _> = py.detach(|| machine.finish(transport, mean, memory, *deadline));
        finished.map(|_| ()).map_err(errors::exchange)
    }
}
