//! Codecs: a spelling, and what it makes of gradients.

mod bench;
mod encode;
mod job;
mod units;

use pyo3::prelude::*;
use pyo3::types::PyList;

use self::bench::Bench;
use self::encode::Idle;
use self::job::Job;
pub(crate) use self::job::{check_memory, key_of};
pub(crate) use self::units::{UnitTuple, units_for, units_of};
use crate::errors::{self, value};
use crate::layout::layout_of;
use crate::memory::Memory;
use crate::names::{self, Density, Gather, MemoryChoice, PacketSize, Spec};
use crate::rounds::{self, LinearRound};

/// A codec, from its spelling: the same as in Rust, on the command line and in files.
///
/// A codec has no state: what a method remembers is in a :class:`Memory`. Several threads may use one codec
/// at once.
///
/// >>> import numpy as np
/// >>> from gradwire import Codec, Memory, decode
/// >>> codec = Codec("topk:density=0.25,index=raw")
/// >>> memory = Memory(codec, 4)
/// >>> frame = codec.encode(np.array([0.5, -3, 0, 1], np.float32), memory=memory)
/// >>> decode(frame, 4)
/// array([ 0., -3.,  0.,  0.], dtype=float32)
/// >>> memory.residual
/// array([0.5, 0. , 0. , 1. ], dtype=float32)
/// >>> Codec("topk:density=7")
/// Traceback (most recent call last):
///     ...
/// ValueError: topk:density=7: density=7: expected a fraction from 1e-9 to 1
#[pyclass(frozen, module = "gradwire", name = "Codec")]
pub(crate) struct Codec {
    pub(crate) spec: Spec,
    idle: Idle,
    bench: Bench,
}

impl Codec {
    fn from_spec(spec: Spec) -> Self {
        Self { spec, idle: Idle::default(), bench: Bench::default() }
    }
}

#[pymethods]
impl Codec {
    #[new]
    #[pyo3(signature = (spelling, /))]
    fn new(spelling: &str) -> PyResult<Self> {
        let spec = Spec::parse(spelling).map_err(|error| value(format!("{spelling}: {error}")))?;
        Ok(Self::from_spec(spec))
    }

    /// The name that the spelling begins with.
    ///
    /// >>> from gradwire import Codec
    /// >>> Codec("qsgd:bits=4").name
    /// 'qsgd'
    #[getter]
    fn name(&self) -> &'static str {
        self.spec.codec.name()
    }

    /// ``'gather'`` (a frame for each worker), ``'linear'`` (payloads are summed by all-reduce) or
    /// ``'gossip'``.
    ///
    /// >>> from gradwire import Codec
    /// >>> [Codec(spelling).kind for spelling in ("topk", "powersgd", "dpsgd")]
    /// ['gather', 'linear', 'gossip']
    #[getter]
    fn kind(&self) -> &'static str {
        match self.spec.codec {
            names::Codec::Gather(_) => "gather",
            names::Codec::Linear(_) => "linear",
            _ => "gossip",
        }
    }

    /// What it keeps from step to step: ``'none'``, ``'ef'`` (error feedback) or ``'momentum'``.
    ///
    /// >>> from gradwire import Codec
    /// >>> [Codec(spelling).memory for spelling in ("qsgd", "topk", "dgc")]
    /// ['none', 'ef', 'momentum']
    #[getter]
    fn memory(&self) -> &'static str {
        match self.spec.memory {
            MemoryChoice::None => "none",
            MemoryChoice::ErrorFeedback => "ef",
            _ => "momentum",
        }
    }

    /// The share of coordinates that it sends, of codecs that have one; else ``None``.
    ///
    /// >>> from gradwire import Codec
    /// >>> Codec("topk:density=0.01").density
    /// 0.01
    #[getter]
    fn density(&self) -> Option<f64> {
        self.spec.codec.density().map(Density::fraction)
    }

    /// Epochs in which the density falls to that of the codec.
    #[getter]
    fn warmup(&self) -> u32 {
        self.spec.warmup
    }

    /// The largest packet that was asked for, or ``None``.
    #[getter]
    fn max_packet_bytes(&self) -> Option<usize> {
        self.spec.packets.map(PacketSize::bytes)
    }

    /// Whether it makes frames, and not rounds alone.
    ///
    /// >>> from gradwire import Codec
    /// >>> Codec("topk").has_frames, Codec("powersgd").has_frames
    /// (True, False)
    #[getter]
    fn has_frames(&self) -> bool {
        names::has_frames(&self.spec.codec)
    }

    /// Whether its payloads may be summed: linear codecs, and ``none``. See :meth:`begin`.
    #[getter]
    fn is_linear(&self) -> bool {
        self.spec.codec.as_linear().is_some()
    }

    /// The same codec at another density.
    ///
    /// >>> from gradwire import Codec
    /// >>> str(Codec("topk:density=0.01,values=q4").with_density(0.001))
    /// 'topk:density=0.001,values=q4'
    fn with_density(&self, density: f64) -> PyResult<Self> {
        if self.spec.codec.density().is_none() {
            return Err(value(format!("{}: it has no density", self.spec)));
        }
        let density = Density::new(density)
            .ok_or_else(|| value(format!("density={density}: expected a fraction from 1e-9 to 1")))?;
        Ok(Self::from_spec(Spec { codec: self.spec.codec.with_density(density), ..self.spec }))
    }

    /// The codec as it is in an epoch, counted from 0, at the density of the warm-up.
    ///
    /// >>> from gradwire import Codec
    /// >>> codec = Codec("topk:density=0.001,warmup=4")
    /// >>> [codec.in_epoch(epoch).density for epoch in (0, 4)]
    /// [0.251188643, 0.001]
    fn in_epoch(&self, epoch: u64) -> Self {
        Self::from_spec(Spec { codec: self.spec.codec_in(epoch), ..self.spec })
    }

    /// The units that the spelling cuts a layout into: (id, first element, length, sent dense).
    ///
    /// >>> from gradwire import Codec
    /// >>> Codec("topk:unit=tensor,dense_1d").units({"w": (4, 4), "b": (4,)})
    /// [(0, 0, 16, False), (1, 16, 4, True)]
    fn units(&self, layout: &Bound<'_, PyAny>) -> PyResult<Vec<UnitTuple>> {
        let layout = layout_of(layout)?;
        let units = units_for(&self.spec, &layout.get().layout.as_ref(), None)?;
        Ok(units.iter().map(|unit| (unit.id, unit.start, unit.len, unit.dense)).collect())
    }

    /// The largest frame that a gradient of that layout can become, whatever is in it: what ``out=`` has to
    /// hold.
    ///
    /// >>> from gradwire import Codec
    /// >>> Codec("none").max_frame_bytes(1000) >= 4024
    /// True
    #[pyo3(signature = (layout, *, units=None))]
    fn max_frame_bytes(&self, layout: &Bound<'_, PyAny>, units: Option<Vec<UnitTuple>>) -> PyResult<usize> {
        let layout = layout_of(layout)?;
        let units = units_for(&self.spec, &layout.get().layout.as_ref(), units)?;
        let bytes = self.spec.codec.max_frame_bytes(&units);
        bytes.ok_or_else(|| errors::encode(names::EncodeError::TooLarge))
    }

    /// A gradient as one frame.
    ///
    /// ``grad`` is any buffer of the CPU with float32, float16 or bfloat16 elements: numpy, torch,
    /// memoryview, DLPack; raw bytes and 16-bit integers with ``dtype='f32'``, ``'f16'`` or ``'bf16'``. It
    /// may be read-only, and is not copied if it is contiguous. Do not write to it before the call returns.
    ///
    /// ``layout`` is that of the memory, if one is passed, else one tensor of as many elements. ``seed``,
    /// ``step`` and ``rank`` name every random draw: the same values give the same bytes. ``units`` replaces
    /// the units of the spelling.
    ///
    /// The frame is returned as ``bytes``, or written to ``out`` (of :meth:`max_frame_bytes`) and returned as
    /// a view of it. For frames of many megabytes ``out``, kept from step to step, is the fast way: new
    /// memory costs more than encoding. An exception leaves the memory as it was, bit for bit.
    ///
    /// >>> import numpy as np
    /// >>> from gradwire import Codec, decode
    /// >>> frame = Codec("f16").encode(np.array([1.0, 0.1], np.float32))
    /// >>> len(frame), decode(frame, 2)
    /// (34, array([1.        , 0.09997559], dtype=float32))
    /// >>> Codec("none").encode(np.array([1.0, np.nan], np.float32))
    /// Traceback (most recent call last):
    ///     ...
    /// gradwire.EncodeError: non-finite value at coordinate 1
    #[pyo3(signature = (grad, layout=None, memory=None, *, step=0, seed=0, rank=0, dtype=None, units=None, out=None))]
    #[allow(clippy::too_many_arguments, reason = "most have a default, and Python names them")]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        grad: &Bound<'py, PyAny>,
        layout: Option<&Bound<'py, PyAny>>,
        memory: Option<&Bound<'py, Memory>>,
        step: u64,
        seed: u64,
        rank: u32,
        dtype: Option<&str>,
        units: Option<Vec<UnitTuple>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut memory = memory.map(Memory::borrow_alone).transpose()?;
        let job = Job::new(&self.spec, grad, layout, memory.as_deref(), (seed, step, rank), dtype, units)?;
        self.idle.frame(py, &self.spec.codec, &job, memory.as_deref_mut(), out)
    }

    /// A gradient as packets: frames of at most ``max_packet_bytes``, each of which decodes alone and is
    /// given back alone.
    ///
    /// >>> import numpy as np
    /// >>> from gradwire import Codec, Memory, add
    /// >>> codec = Codec("topk:density=0.2,max_packet_bytes=64")
    /// >>> packets = codec.packets(np.arange(100, dtype=np.float32), memory=Memory(codec, 100))
    /// >>> total = np.zeros(100, np.float32)
    /// >>> for packet in packets:
    /// ...     add(packet, total)
    /// >>> len(packets), max(map(len, packets)), total[79:82]
    /// (3, 64, array([ 0., 80., 81.], dtype=float32))
    #[pyo3(signature = (grad, layout=None, memory=None, *, step=0, seed=0, rank=0, dtype=None, units=None,
        max_packet_bytes=None))]
    #[allow(clippy::too_many_arguments, reason = "most have a default, and Python names them")]
    fn packets<'py>(
        &self,
        py: Python<'py>,
        grad: &Bound<'py, PyAny>,
        layout: Option<&Bound<'py, PyAny>>,
        memory: Option<&Bound<'py, Memory>>,
        step: u64,
        seed: u64,
        rank: u32,
        dtype: Option<&str>,
        units: Option<Vec<UnitTuple>>,
        max_packet_bytes: Option<u32>,
    ) -> PyResult<Bound<'py, PyList>> {
        let size = match max_packet_bytes {
            Some(bytes) => Some(PacketSize::new(bytes).ok_or_else(|| {
                value(format!("max_packet_bytes={bytes}: expected a whole number from 64 to 65536"))
            })?),
            None => self.spec.packets,
        };
        let size = size.ok_or_else(|| value(format!("{}: max_packet_bytes is missing", self.spec)))?;
        let mut memory = memory.map(Memory::borrow_alone).transpose()?;
        let job = Job::new(&self.spec, grad, layout, memory.as_deref(), (seed, step, rank), dtype, units)?;
        encode::packets(py, &self.spec.codec, &job, memory.as_deref_mut(), size)
    }

    /// Begins the rounds of a linear codec: one :class:`LinearRound` for each unit, to be driven over
    /// all-reduce.
    ///
    /// ``workers`` says how many take part; their ranks are those below it. The memory is not changed before
    /// the last :meth:`LinearRound.advance`, or :meth:`LinearRound.abandon`.
    ///
    /// >>> import numpy as np
    /// >>> from gradwire import Codec
    /// >>> [unit] = Codec("maxnorm:bits=8").begin(np.array([1.0, -2.0], np.float32))
    /// >>> while not unit.done:
    /// ...     pass  # all-reduce unit.payload in place by unit.reduction
    /// ...     unit.advance()
    /// >>> bool(np.allclose(unit.mean, [1, -2], atol=0.02))
    /// True
    #[pyo3(signature = (grad, layout=None, memory=None, *, step=0, seed=0, rank=0, workers=1, dtype=None, units=None))]
    #[allow(clippy::too_many_arguments, reason = "most have a default, and Python names them")]
    fn begin<'py>(
        &self,
        py: Python<'py>,
        grad: &Bound<'py, PyAny>,
        layout: Option<&Bound<'py, PyAny>>,
        memory: Option<&Bound<'py, Memory>>,
        step: u64,
        seed: u64,
        rank: u32,
        workers: u32,
        dtype: Option<&str>,
        units: Option<Vec<UnitTuple>>,
    ) -> PyResult<Vec<LinearRound>> {
        if rank >= workers {
            return Err(value(format!("rank={rank}, workers={workers}: expected a rank below the workers")));
        }
        let linear = self.spec.codec.as_linear().ok_or_else(|| {
            let linear = "powersgd, randomk, maxnorm, sharedk, sketch, none";
            value(format!("{}: its frames are gathered; rounds are for linear codecs ({linear})", self.spec))
        })?;
        let lent = memory.map(Memory::borrow_alone).transpose()?;
        let job = Job::new(&self.spec, grad, layout, lent.as_deref(), (seed, step, rank), dtype, units)?;
        let kept = memory.map(|memory| memory.clone().unbind());
        job.units
            .iter()
            .map(|unit| {
                let (key, layout) = (job.key, &job.layout);
                let start = rounds::Start { codec: linear, key, unit: *unit, layout, workers, rank };
                LinearRound::begin(py, start, &job.gradient, lent.as_deref(), kept.as_ref())
            })
            .collect()
    }

    /// Nanoseconds that the Rust call takes on these buffers, for benches/overhead.py: with a buffer that is
    /// kept from call to call, or with one that is allocated for the call, and freed.
    #[pyo3(signature = (grad, memory=None, *, step=0, fresh=false))]
    fn _bench_encode<'py>(
        &self,
        grad: &Bound<'py, PyAny>,
        memory: Option<&Bound<'py, Memory>>,
        step: u64,
        fresh: bool,
    ) -> PyResult<u64> {
        let mut memory = memory.map(Memory::borrow_alone).transpose()?;
        let job = Job::new(&self.spec, grad, None, memory.as_deref(), (0, step, 0), None, None)?;
        self.bench.nanoseconds(&self.spec.codec, &job, memory.as_deref_mut(), fresh)
    }

    fn __str__(&self) -> String {
        self.spec.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Codec('{}')", self.spec)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().spec == self.spec)
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.spec.to_string().hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Ok((slf.get_type(), (slf.get().spec.to_string(),)).into_pyobject(slf.py())?.into_any())
    }
}
