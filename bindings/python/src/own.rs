//! Codecs that are written in Python: `gradwire.register`.

use std::cell::RefCell;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::array::array_over;
use crate::buffer::{bytes_of, f32s_of};
use crate::errors::value;
use crate::names::{
    BodyOutline, Density, EncodeBody, Experiment, Keys, Law, OwnCodec, ParseBody, Refused, Scratch,
    SpecError, UnitBody,
};

thread_local! {
    /// What the last call of a codec in Python raised, until the error that it became is raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// The exception that made a codec in Python refuse.
pub(crate) fn take_raised() -> Option<PyErr> {
    RAISED.with(RefCell::take)
}

const RAISED_WHY: &str = "the codec, which is written in Python, raised an exception";

/// Bytes in front of those that the codec in Python writes: how many coordinates they hold, and how many
/// bytes they are, as u32.
const HEAD_BYTES: usize = 8;

/// Gives this process a codec that is written in Python. Its spelling is ``x:NAME:key=value``, which
/// :class:`Codec`, rules and the hooks of ``gradwire.torch`` then take like every other; do the same in every
/// process.
///
/// ``make`` is called with the codec's keys as keyword arguments, all of them strings, and returns an object
/// with two methods, and a third if its bodies may be longer than 64 bytes and 8 a coordinate:
///
/// - ``encode(values, source)``: the body of a unit as bytes, if it holds all coordinates; else the body and
///   how many it holds. ``values`` is a read-only float32 array, and ``source`` a :class:`UnitSource`.
/// - ``decode(body, length)``: float32 values of all coordinates, or ascending positions and their values.
/// - ``max_bytes(length)``: the longest body of a unit with so many coordinates.
///
/// ``number`` is that of the codec in its frames, from 0xf0 to 0xfe; all ranks need the same. ``law`` says
/// what is kept in the memory: ``'exact'`` or ``'rounded'`` is what was there less what is decoded, exactly
/// or rounded once; ``'none'`` keeps nothing. ``keys`` are names with their defaults, ``'block=64 mode'``;
/// one without is passed only if it is spelled. ``density`` adds that key. The first of ``examples`` says how
/// frames in files are read.
///
/// What an exception interrupts changes nothing. The exception is the ``__cause__`` of the
/// :class:`EncodeError` or :class:`DecodeError`, and its text is in theirs; one with an attribute ``index``
/// names the coordinate.
///
/// >>> import numpy as np
/// >>> import gradwire
/// >>> class Half:
/// ...     def encode(self, values, source):
/// ...         return values.astype(np.float16).tobytes()
/// ...     def decode(self, body, length):
/// ...         return np.frombuffer(body, np.float16).astype(np.float32)
/// >>> gradwire.register("half", Half, number=0xf0)
/// >>> codec = gradwire.Codec("x:half")
/// >>> memory = gradwire.Memory(codec, 2)
/// >>> frame = codec.encode(np.array([1, 0.1], np.float32), memory=memory)
/// >>> gradwire.decode(frame, 2), memory.residual
/// (array([1.        , 0.09997559], dtype=float32), array([0.0000000e+00, 2.4415553e-05], dtype=float32))
#[pyfunction]
#[pyo3(signature = (name, make, *, number, law="rounded", keys="", summary="", examples=None, density=None))]
#[allow(clippy::too_many_arguments, reason = "most have a default, and Python names them")]
pub(crate) fn register(
    name: &str,
    make: Py<PyAny>,
    number: u8,
    law: &str,
    keys: &str,
    summary: &str,
    examples: Option<Vec<String>>,
    density: Option<f64>,
) -> PyResult<()> {
    let experiment =
        Experiment::new(number).ok_or_else(|| value(format!("number={number}: expected 0xf0 to 0xfe")))?;
    let law = match law {
        "exact" => Law::Exact,
        "rounded" => Law::Rounded,
        "none" => Law::NotKept,
        other => return Err(value(format!("law='{other}': expected one of exact rounded none"))),
    };
    let names: Vec<String> =
        keys.split(' ').filter_map(|key| key.split('=').next()).map(str::to_owned).collect();
    let read = move |keys: &Keys<'_>| {
        Python::attach(|py| made(py, &make, &names, keys)).map(|object| InPython { object, experiment, law })
    };
    let examples = examples.unwrap_or_else(|| vec![format!("x:{name}")]);
    let examples: Vec<&str> = examples.iter().map(String::as_str).collect();
    let mut codec = OwnCodec::gather(name, summary, move |keys| {
        // An error of a spelling is text that lives as long as the process; there are few.
        read(keys).map_err(|error| SpecError::Conflict(String::leak(error.to_string())))
    });
    if let Some(density) = density {
        let fraction = Density::new(density);
        codec =
            codec
                .density(fraction.ok_or_else(|| {
                    value(format!("density={density}: expected a fraction from 1e-9 to 1"))
                })?);
    }
    codec.keys(keys).examples(&examples).register().map_err(|error| value(error.to_string()))
}

/// What `make` returns for these keys.
fn made(py: Python<'_>, make: &Py<PyAny>, names: &[String], keys: &Keys<'_>) -> PyResult<Py<PyAny>> {
    let given = PyDict::new(py);
    for name in names.iter().filter(|name| !name.is_empty()) {
        if let Some(text) = keys.text(name) {
            given.set_item(name, text)?;
        }
    }
    let object = make.bind(py).call((), Some(&given))?;
    for method in [intern!(py, "encode"), intern!(py, "decode")] {
        object.getattr(method)?;
    }
    Ok(object.unbind())
}

/// What a codec in Python is told about a unit besides its values.
#[pyclass(frozen, module = "gradwire")]
pub(crate) struct UnitSource {
    /// The step.
    #[pyo3(get)]
    step: u64,
    /// The number of the unit.
    #[pyo3(get)]
    unit: u32,
    /// The density now, of a codec that was registered with one; else ``None``.
    #[pyo3(get)]
    density: Option<f64>,
    /// For random draws of this unit, rank and step, such as ``numpy.random.default_rng(source.seed)``. Numpy
    /// promises the same draws only for its bit generators.
    #[pyo3(get)]
    seed: u64,
    /// The same at every rank.
    #[pyo3(get)]
    shared_seed: u64,
}

/// A codec that is an object of Python.
struct InPython {
    object: Py<PyAny>,
    experiment: Experiment,
    law: Law,
}

/// Runs Python code; an exception is kept for the error that it becomes.
fn call<T>(f: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, Refused> {
    Python::attach(|py| {
        f(py).map_err(|error| {
            let index = error.value(py).getattr(intern!(py, "index"));
            let at = index.and_then(|index| index.extract()).ok();
            RAISED.set(Some(error));
            Refused { why: RAISED_WHY, at }
        })
    })
}

/// Held coordinates and bytes, from the front of a body.
fn head(bytes: &[u8]) -> Option<[usize; 2]> {
    let words = bytes.first_chunk::<HEAD_BYTES>()?.as_chunks::<4>().0;
    Some([0, 1].map(|at| u32::from_le_bytes(words[at]) as usize))
}

impl ParseBody for InPython {
    fn experiment(&self) -> Experiment {
        self.experiment
    }

    fn name(&self) -> &'static str {
        "python"
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        let [held, bytes] = head(body.bytes).unwrap_or_default();
        let words = if held == body.unit.len { held } else { held.saturating_mul(2) };
        Ok(BodyOutline { bytes: HEAD_BYTES.saturating_add(bytes), held, scratch_words: words })
    }

    /// Values go to `scratch`, behind their positions if not all coordinates are held.
    fn check(&self, body: &UnitBody<'_>, scratch: &mut [u32]) -> Result<(), Refused> {
        let [held, _] = head(body.bytes).unwrap_or_default();
        let len = body.unit.len;
        let (positions, values) = call(|py| {
            let bytes = PyBytes::new(py, &body.bytes[HEAD_BYTES..]);
            let decoded = self.object.bind(py).call_method1(intern!(py, "decode"), (bytes, len))?;
            match decoded.cast::<PyTuple>() {
                Ok(pair) => {
                    let (positions, values) = pair.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
                    Ok((Some(positions_of(&positions)?), values_of(&values)?))
                }
                Err(_) => Ok((None, values_of(&decoded)?)),
            }
        })?;
        if values.len() != held || positions.as_ref().map_or(len, Vec::len) != held {
            return Err(Refused::new("it decodes to another number of coordinates than it says"));
        }
        let positions = positions.unwrap_or_default();
        let own = if held == len { &[] } else { &positions[..] };
        if held == len && positions.iter().enumerate().any(|(at, position)| at != *position as usize) {
            return Err(Refused::new("its positions do not ascend inside of a unit"));
        }
        let words = own.iter().copied().chain(values.iter().map(|value| value.to_bits()));
        scratch.iter_mut().zip(words).for_each(|(word, new)| *word = new);
        Ok(())
    }

    fn visit(&self, body: &UnitBody<'_>, scratch: &[u32], f: &mut dyn FnMut(usize, f32)) {
        let [held, _] = head(body.bytes).unwrap_or_default();
        if held == body.unit.len {
            return scratch.iter().enumerate().for_each(|(at, value)| f(at, f32::from_bits(*value)));
        }
        let (positions, values) = scratch.split_at(held.min(scratch.len()));
        let entries = positions.iter().zip(values);
        entries.for_each(|(position, value)| f(*position as usize, f32::from_bits(*value)));
    }
}

/// Float32 values of an array, or of whatever numpy makes one of.
fn values_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    f32s_of(&as_array(object, "float32")?, "values")
}

fn positions_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let bytes = bytes_of(&as_array(object, "int64")?.call_method0("tobytes")?, "positions")?;
    let (words, _) = bytes.as_chunks::<8>();
    let position = |word: &[u8; 8]| u32::try_from(i64::from_le_bytes(*word));
    let positions = words.iter().map(position).collect::<Result<Vec<_>, _>>();
    positions.map_err(|_| value("positions: expected whole numbers from 0 to 4294967295"))
}

fn as_array<'py>(object: &Bound<'py, PyAny>, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    py.import(intern!(py, "numpy"))?.call_method1("ascontiguousarray", (object, dtype))
}

impl EncodeBody for InPython {
    fn law(&self) -> Law {
        self.law
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        let own = Python::attach(|py| {
            let bound = self.object.bind(py).getattr(intern!(py, "max_bytes")).ok()?;
            // What is no number leaves no room, so encoding fails and says so.
            Some(bound.call1((len,)).and_then(|bytes| bytes.extract()).unwrap_or(0))
        });
        own.or_else(|| len.checked_mul(8)?.checked_add(64))?.checked_add(HEAD_BYTES)
    }

    fn max_parse_words(&self, len: usize) -> usize {
        len.saturating_mul(2)
    }

    fn encode_body(
        &self,
        source: &gradwire::experiments::UnitSource<'_>,
        values: &[f32],
        _: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        let told = UnitSource {
            step: source.key.step,
            unit: source.unit.id,
            density: source.density.map(Density::fraction),
            seed: source.draws().u64_at(0),
            shared_seed: source.shared_draws().u64_at(0),
        };
        let (body, held) = call(|py| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            let values = array_over(PyBytes::new(py, &bytes).into_any(), "float32")?;
            let encoded = self.object.bind(py).call_method1(intern!(py, "encode"), (values, told))?;
            match encoded.cast::<PyTuple>() {
                Ok(pair) => {
                    let (body, held) = pair.extract::<(Bound<'_, PyAny>, usize)>()?;
                    Ok((bytes_of(&body, "body")?, Some(held)))
                }
                Err(_) => Ok((bytes_of(&encoded, "body")?, None)),
            }
        })?;
        let held =
            u32::try_from(held.unwrap_or(values.len())).map_err(|_| Refused::new("too many coordinates"))?;
        let end = HEAD_BYTES + body.len();
        let room = out.get_mut(..end).ok_or(Refused::new("its body is longer than max_bytes says"))?;
        room[..4].copy_from_slice(&held.to_le_bytes());
        room[4..HEAD_BYTES].copy_from_slice(&(body.len() as u32).to_le_bytes());
        room[HEAD_BYTES..].copy_from_slice(&body);
        Ok(end)
    }
}
