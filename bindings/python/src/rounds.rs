//! Rounds of linear codecs, to be driven over all-reduce.

use std::ptr::NonNull;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::array::array_over;
use crate::buffer::Gradient;
use crate::codec::UnitTuple;
use crate::errors::{self, value};
use crate::gil::detached;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::names::{LinearCodec, Payload, Reduction, Round, RoundBuffers, StepKey, Unit, UnitStep};
use crate::view::View;

/// The inputs with which the rounds of a unit begin.
pub(crate) struct Start<'a> {
    pub(crate) codec: LinearCodec,
    pub(crate) key: StepKey,
    pub(crate) unit: Unit,
    pub(crate) layout: &'a Py<Layout>,
    pub(crate) workers: u32,
    pub(crate) rank: u32,
}

/// One unit of a linear codec on its way through its rounds; see :meth:`Codec.begin`.
///
/// Until :attr:`done`: reduce :attr:`payload` in place over all workers as :attr:`reduction` says, then call
/// :meth:`advance`. Then :attr:`mean` is the mean of the unit, and the memory holds the residual. All workers
/// begin the same units with the same seed, step and number of workers; every worker has its own rank.
///
/// >>> import numpy as np
/// >>> from gradwire import Codec, Memory
/// >>> codec = Codec("powersgd:rank=1")
/// >>> grad = np.outer([1, 2, 3, 4, 5], [1, -1, 2, 0]).astype(np.float32)
/// >>> memory = Memory(codec, {"w": grad.shape})
/// >>> [unit] = codec.begin(grad, memory=memory)
/// >>> unit.reduction, unit.payload.dtype.name, len(unit.payload)
/// ('sum', 'float32', 5)
/// >>> while not unit.done:
/// ...     unit.advance()
/// >>> bool(np.allclose(unit.mean.reshape(grad.shape), grad, atol=1e-5))
/// True
#[pyclass(module = "gradwire", name = "LinearRound")]
pub(crate) struct LinearRound {
    codec: LinearCodec,
    key: StepKey,
    workers: u32,
    rank: u32,
    unit: Unit,
    layout: Py<Layout>,
    memory: Option<Py<Memory>>,
    /// The next round, or the last one if it is done.
    round: Round,
    is_done: bool,
    is_abandoned: bool,
    buffers: RoundBuffers,
    mean: Vec<f32>,
}

impl LinearRound {
    pub(crate) fn begin(
        py: Python<'_>,
        start: Start<'_>,
        gradient: &Gradient,
        memory: Option<&Memory>,
        kept: Option<&Py<Memory>>,
    ) -> PyResult<Self> {
        let Start { codec, key, unit, layout, workers, rank } = start;
        let (rounds, mut buffers) = (codec.rounds_of(&unit), RoundBuffers::new());
        let most = rounds.most_contributors();
        if workers > most {
            return Err(value(format!("workers={workers}: the sums of {most} fit this codec's payloads")));
        }
        let borrowed = layout.get().layout.as_ref();
        buffers.grow(rounds.round_scratch_len(&borrowed, &unit, workers));
        let of = UnitStep { key, layout: &borrowed, unit: &unit, workers, place: rank };
        let grad = gradient.grad().slice(unit.start, unit.len);
        let view = memory.and_then(|memory| memory.get()).map(|memory| memory.view(unit.range()));
        let round = detached(py, gradient.bytes(), || rounds.begin(&of, grad, view, &mut buffers.scratch()));
        let round = round.map_err(errors::encode)?;
        let (layout, memory) = (layout.clone_ref(py), kept.map(|memory| memory.clone_ref(py)));
        let mean = vec![0.0; unit.len];
        let (is_done, is_abandoned) = (false, false);
        Ok(Self {
            codec,
            key,
            workers,
            rank,
            unit,
            layout,
            memory,
            round,
            is_done,
            is_abandoned,
            buffers,
            mean,
        })
    }
}

#[pymethods]
impl LinearRound {
    /// The unit: id, first element, length, whether it is sent dense.
    #[getter]
    fn unit(&self) -> UnitTuple {
        (self.unit.id, self.unit.start, self.unit.len, self.unit.dense)
    }

    /// Where the unit stands in the flat gradient.
    #[getter]
    fn range(&self) -> (usize, usize) {
        (self.unit.start, self.unit.start + self.unit.len)
    }

    /// Counts the rounds from 0.
    #[getter]
    fn index(&self) -> u32 {
        self.round.index
    }

    /// How the payload is reduced over all workers: ``'sum'`` (of bytes, modulo 256), ``'max'``, ``'min'``
    /// or, bitwise, ``'and'``; ``'gather'``, where each worker has written its own part of the payload, all
    /// as long, in the order of ranks, and needs those of the others; or ``'broadcast'``, where all need the
    /// payload of the worker with rank :attr:`source`.
    #[getter]
    fn reduction(&self) -> PyResult<&'static str> {
        Ok(match self.round.reduction {
            Reduction::SumF32 | Reduction::SumI32 | Reduction::SumU8 => "sum",
            Reduction::MaxF32 => "max",
            Reduction::MinI32 => "min",
            Reduction::And => "and",
            Reduction::Gather => "gather",
            Reduction::Broadcast { .. } => "broadcast",
            _ => return Err(PyRuntimeError::new_err("a reduction that this version does not know")),
        })
    }

    /// The rank whose payload is broadcast; ``None`` for any other :attr:`reduction`.
    #[getter]
    fn source(&self) -> Option<u32> {
        match self.round.reduction {
            Reduction::Broadcast { from } => Some(from),
            _ => None,
        }
    }

    /// Whether there is no further round, and :attr:`mean` is there.
    #[getter]
    fn done(&self) -> bool {
        self.is_done
    }

    /// The payload of this round, to be replaced by its reduction in place: a writable array of float32,
    /// int32, for ``'and'`` uint32, or uint8 (sums of votes, and what is gathered or broadcast) over the
    /// round's own memory.
    ///
    /// Get it again in every round.
    #[getter]
    fn payload<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let owner = slf.as_any().clone().unbind();
        let mut this = borrow(slf)?;
        if this.is_done || this.is_abandoned {
            return Err(value("payload: there is no further round"));
        }
        let Self { codec, unit, round, buffers, .. } = &mut *this;
        let (view, dtype) = match codec.rounds_of(unit).payload(round, &mut buffers.scratch()) {
            Payload::F32(values) => {
                (View::writable(owner, NonNull::from(&mut *values).cast(), values.len(), c"f"), "f4")
            }
            Payload::I32(values) => {
                (View::writable(owner, NonNull::from(&mut *values).cast(), values.len(), c"i"), "i4")
            }
            Payload::U32(values) => {
                (View::writable(owner, NonNull::from(&mut *values).cast(), values.len(), c"I"), "u4")
            }
            Payload::Bytes(values) => {
                (View::writable(owner, NonNull::from(&mut *values).cast(), values.len(), c"B"), "u1")
            }
            _ => return Err(PyRuntimeError::new_err("a payload that this version does not know")),
        };
        array_over(Bound::new(slf.py(), view)?.into_any(), dtype)
    }

    /// Reads the reduced payload and goes to the next round. After the last round the memory holds the
    /// residual.
    fn advance(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let mut this = borrow(slf)?;
        if this.is_done || this.is_abandoned {
            return Err(value("advance: there is no further round"));
        }
        let Self { codec, key, workers, rank, unit, layout, memory, round, buffers, mean, .. } = &mut *this;
        let mut kept = memory.as_ref().map(|memory| Memory::borrow_alone(memory.bind(py))).transpose()?;
        let mut kept = kept.as_mut().map(|memory| memory.lend().slice(unit.range()));
        let (codec, layout, last) = (codec.rounds_of(unit), layout.get().layout.as_ref(), *round);
        let of = UnitStep { key: *key, layout: &layout, unit, workers: *workers, place: *rank };
        let next = detached(py, 4 * unit.len, || {
            codec.advance(&of, last, &mut buffers.scratch(), mean, kept.as_mut())
        });
        match next {
            Some(next) => this.round = next,
            None => this.is_done = true,
        }
        Ok(())
    }

    /// The mean of the unit over all contributors, once it is :attr:`done`: an array over the round's own
    /// memory.
    #[getter]
    fn mean<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let owner = slf.as_any().clone().unbind();
        let mut this = borrow(slf)?;
        if !this.is_done || this.is_abandoned {
            return Err(value("mean: it is there after the last round"));
        }
        let mean = &mut this.mean;
        let view = View::writable(owner, NonNull::from(&mut mean[..]).cast(), mean.len(), c"f");
        array_over(Bound::new(slf.py(), view)?.into_any(), "f4")
    }

    /// Gives up: the residual becomes residual + gradient. Also works after the last :meth:`advance`, if the
    /// mean must be refused.
    ///
    /// >>> import numpy as np
    /// >>> from gradwire import Codec, Memory
    /// >>> codec = Codec("randomk:density=0.5")
    /// >>> memory = Memory(codec, 4)
    /// >>> [unit] = codec.begin(np.arange(4, dtype=np.float32), memory=memory)
    /// >>> unit.abandon()
    /// >>> memory.residual
    /// array([0., 1., 2., 3.], dtype=float32)
    fn abandon(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let mut this = borrow(slf)?;
        if this.is_abandoned {
            return Ok(());
        }
        let Self { codec, unit, memory, round, buffers, .. } = &mut *this;
        let mut kept = memory.as_ref().map(|memory| Memory::borrow_alone(memory.bind(py))).transpose()?;
        let mut kept = kept.as_mut().map(|memory| memory.lend().slice(unit.range()));
        codec.rounds_of(unit).abandon(*round, &mut buffers.scratch(), kept.as_mut());
        this.is_abandoned = true;
        Ok(())
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let this = borrow(slf)?;
        let state = match (this.is_abandoned, this.is_done) {
            (true, _) => "abandoned".to_owned(),
            (false, true) => "done".to_owned(),
            (false, false) => format!("in round {}", this.round.index),
        };
        Ok(format!("<gradwire.LinearRound of unit {}: {state}>", this.unit.id))
    }
}

fn borrow<'py>(slf: &Bound<'py, LinearRound>) -> PyResult<PyRefMut<'py, LinearRound>> {
    slf.try_borrow_mut().map_err(|_| PyRuntimeError::new_err("another thread is using this round"))
}
