//! Ranks that are connected to each other over TCP.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use gradwire_transports::tcp::{
    self, Joining, Key, Meeting, Met, Security, TcpError, TcpOptions, TcpWaker, Terms,
};
use gradwire_transports::{Counters, Deadline, Rank, Transport, local};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{ExchangeError, value};

/// How often a wait looks whether Python wants to end it.
pub(crate) const GLANCE: Duration = Duration::from_millis(200);
const KEY_BYTES: usize = 32;

/// One rank that listens, before it knows the others.
///
/// Every rank makes one, tells the others its :attr:`address` by whatever way they have, and calls
/// :meth:`join` with the addresses of all.
///
/// ``key`` is 32 secret bytes that all ranks share: then everything is encrypted and authenticated (Noise).
/// Without a key only addresses of the loopback interface are taken, unless ``insecure=True``, which lets
/// whoever reaches the address take part. ``terms`` are names and values that must be equal at all ranks;
/// :meth:`join` names those that are not.
///
/// >>> import gradwire
/// >>> listener = gradwire.Listener(0, "127.0.0.1:0")
/// >>> mesh = listener.join([listener.address])
/// >>> mesh.rank, mesh.world
/// (0, 1)
#[pyclass(frozen, module = "gradwire")]
pub(crate) struct Listener {
    bound: Mutex<Option<tcp::Bound>>,
    rank: u32,
    address: String,
}

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (rank, address="127.0.0.1:0", *, key=None, insecure=false, terms=None))]
    fn new(
        py: Python<'_>,
        rank: u32,
        address: &str,
        key: Option<&[u8]>,
        insecure: bool,
        terms: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let security = match key {
            Some(key) => {
                let key = <[u8; KEY_BYTES]>::try_from(key);
                let key =
                    key.map_err(|_| value(format!("key: expected {KEY_BYTES} bytes, as os.urandom(32)")))?;
                Security::Key(Key::new(key))
            }
            None if insecure => Security::Insecure,
            None => Security::Loopback,
        };
        let options = TcpOptions::new(Rank(rank), terms_of(terms)?, security);
        let bound = py.detach(|| tcp::Bound::new(options, address)).map_err(raised)?;
        let address = bound.address().to_string();
        Ok(Self { bound: Mutex::new(Some(bound)), rank, address })
    }

    /// Where it listens, as ``host:port``. An address with port 0 takes any free port.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Connects to all other ranks, whose addresses are given in rank order. Call it once. Waits until all
    /// are there, at most ``timeout`` seconds; :class:`ExchangeError` says who is missing and what is known
    /// of it.
    #[pyo3(signature = (addresses, timeout=60.0))]
    fn join(&self, py: Python<'_>, addresses: Vec<String>, timeout: f64) -> PyResult<Mesh> {
        let world = u32::try_from(addresses.len()).map_err(|_| value("addresses: too many"))?;
        if self.rank >= world {
            return Err(value(format!(
                "addresses: expected one for each rank, and there is none for rank {}",
                self.rank
            )));
        }
        let deadline = deadline_in(timeout)?;
        let bound = lock(&self.bound).take().ok_or_else(|| value("join: it was called before"))?;
        if world == 1 {
            let end = local::world(1).pop().ok_or_else(|| value("no end"))?;
            return Ok(Mesh::new(Box::new(end), None));
        }
        let mut joining = py.detach(|| bound.begin(&Meeting::Hosts(addresses))).map_err(raised)?;
        loop {
            let until = deadline.earlier(Deadline::after(GLANCE));
            match py.detach(|| joining.wait(until)).map_err(raised)? {
                Met::All(end) => {
                    let waker = end.waker();
                    return Ok(Mesh::new(Box::new(end), Some(waker)));
                }
                Met::Some(others) => joining = others,
            }
            if let Err(signal) = py.check_signals() {
                give_up(py, joining);
                return Err(signal);
            }
            if deadline.has_passed() {
                return Err(raised(give_up(py, joining)));
            }
        }
    }
}

fn give_up(py: Python<'_>, joining: Joining) -> TcpError {
    py.detach(|| joining.give_up())
}

fn raised(error: TcpError) -> PyErr {
    ExchangeError::new_err(error.to_string())
}

fn terms_of(terms: Option<&Bound<'_, PyDict>>) -> PyResult<Terms> {
    let mut all = Terms::default();
    for (name, term) in terms.into_iter().flatten() {
        let (name, term): (String, String) = (name.extract()?, term.str()?.to_string());
        if name.len().max(term.len()) > 512 {
            return Err(value(format!("terms: {name}: expected at most 512 bytes")));
        }
        all = all.with(&name, term);
    }
    Ok(all)
}

/// The moment so many seconds from now.
pub(crate) fn deadline_in(seconds: f64) -> PyResult<Deadline> {
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(value(format!("timeout={seconds}: expected seconds, more than 0")));
    }
    Ok(Duration::try_from_secs_f64(seconds).map_or(Deadline::NEVER, Deadline::after))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections of one rank to all others, as :meth:`Listener.join` returns them.
///
/// If one of them breaks, the mesh is of no more use: every rank hears of it, and the next call that needs
/// it raises :class:`ExchangeError`. One :class:`Exchange` at a time uses it. A process that was forked from
/// this one must not.
#[pyclass(frozen, module = "gradwire")]
pub(crate) struct Mesh {
    net: Mutex<Option<Box<dyn Transport>>>,
    /// `None` for a rank alone, who never waits for a message.
    waker: Option<TcpWaker>,
    rank: u32,
    world: usize,
    process: u32,
}

impl Mesh {
    fn new(end: Box<dyn Transport>, waker: Option<TcpWaker>) -> Self {
        let (rank, world) = (end.rank().0, end.membership().world());
        Self { net: Mutex::new(Some(end)), waker, rank, world, process: std::process::id() }
    }

    /// The end, as long as nobody else uses it.
    pub(crate) fn lend(&self) -> PyResult<MutexGuard<'_, Option<Box<dyn Transport>>>> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "mesh: it belongs to the process that this one was forked from",
            ));
        }
        match self.net.try_lock() {
            Ok(net) if net.is_none() => Err(PyRuntimeError::new_err("mesh: it is closed")),
            Ok(net) => Ok(net),
            Err(TryLockError::Poisoned(net)) => Ok(net.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err("mesh: another thread is using it")),
        }
    }

    /// The end itself, for the thread that owns it from now on. The mesh is as if it were closed.
    pub(crate) fn take(&self) -> PyResult<(Box<dyn Transport>, Option<TcpWaker>)> {
        let end = self.lend()?.take();
        Ok((end.ok_or_else(|| PyRuntimeError::new_err("mesh: it is closed"))?, self.waker.clone()))
    }

    fn counters(&self) -> PyResult<Counters> {
        Ok(self.lend()?.as_ref().map(|net| net.counters()).unwrap_or_default())
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let net = lock(&self.net).take();
        if self.process != std::process::id() {
            // The thread of the sockets is not here.
            std::mem::forget(net);
        }
    }
}

#[pymethods]
impl Mesh {
    /// The number of this rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    #[getter]
    pub(crate) fn world(&self) -> usize {
        self.world
    }

    /// Bytes that were sent so far, those around messages and of the encryption included.
    #[getter]
    fn sent(&self) -> PyResult<u64> {
        let up = self.counters()?.up;
        Ok(up.total_bytes())
    }

    /// Bytes that were received, in the same way.
    #[getter]
    fn received(&self) -> PyResult<u64> {
        let down = self.counters()?.down;
        Ok(down.total_bytes())
    }

    /// Takes leave of the others and ends the thread of the sockets. Waits at most ``timeout`` seconds for
    /// messages to be delivered. A mesh that is dropped does so too, and waits a quarter of a second.
    #[pyo3(signature = (timeout=5.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let deadline = deadline_in(timeout)?;
        if self.process != std::process::id() {
            return Ok(());
        }
        let Some(mut net) = lock(&self.net).take() else { return Ok(()) };
        // A peer that is gone confirms nothing, and then there is nothing left to do.
        py.detach(|| drop(net.close(deadline)));
        Ok(())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a mesh has a thread and sockets: it is neither copied nor pickled"))
    }
}
