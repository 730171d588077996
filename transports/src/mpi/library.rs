//! The MPI library behind a safe surface: the only unsafe code of this package.
//!
//! The library's errors are fatal, which is its default: a call that returns has succeeded. So return codes
//! say nothing and are not looked at.
// Buffers that the library works on while the call has returned, and what only C can spell, are beyond safe
// Rust.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use mpi::environment::{Threading, Universe};
use mpi::ffi;
use mpi::point_to_point::Message;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, AsRawMut, Communicator, Equivalence, Source};

use super::envelope::ENVELOPE_BYTES;
use super::error::MpiError;
use super::exit_code::DROPPED_EXIT_CODE;

/// MPI tags. The tags of the contract are wider than MPI's and travel in the envelope.
const MESSAGE: c_int = 0;
const PIECE: c_int = 1;
const FAREWELL: c_int = 2;

unsafe extern "C" {
    fn gradwire_mpi_sum(kind: c_int, data: *mut c_void, count: c_int);
    fn gradwire_mpi_setting(name: *const c_char, text: *mut c_char, capacity: c_int) -> c_int;
    fn gradwire_mpi_guard_exit(code: c_int);
    fn gradwire_mpi_abort(code: c_int);
}

/// Ends every process of the job.
pub(super) fn end_job(code: u8) -> ! {
    // SAFETY: the function takes a number and touches nothing of Rust's.
    unsafe { gradwire_mpi_abort(c_int::from(code)) };
    // It has ended this process; the compiler cannot know.
    std::process::abort()
}

/// When a message is done, as far as its sender is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// When the library no longer needs its bytes. A message that is not taken may be in the library's memory
    /// at the receiver, which has no bound.
    Handed,
    /// When the receiver has begun to take it, which costs an acknowledgement.
    Taken,
}

/// The running library. Made and used by one thread; when it is dropped, MPI is finalized, which waits for
/// all ranks.
pub(super) struct Library {
    world: SimpleCommunicator,
    /// The longest single MPI message, the same at every rank.
    piece_bytes: usize,
    /// Last, as nothing may be used after it.
    _universe: Universe,
}

impl Library {
    /// Starts MPI for this thread only.
    pub(super) fn start(piece_bytes: usize, prefer_ring: bool) -> Result<Self, MpiError> {
        if prefer_ring {
            set_where_unset(&RING);
        }
        let (universe, provided) =
            mpi::initialize_with_threading(Threading::Funneled).ok_or(MpiError::StartedBefore)?;
        if provided < Threading::Funneled {
            return Err(MpiError::NoThreads);
        }
        // SAFETY: the function takes a number and touches nothing of Rust's.
        unsafe { gradwire_mpi_guard_exit(c_int::from(DROPPED_EXIT_CODE)) };
        let mut library = Self { world: universe.world(), piece_bytes: 0, _universe: universe };
        library.piece_bytes = library.smallest(piece_bytes.clamp(ENVELOPE_BYTES, c_int::MAX as usize));
        Ok(library)
    }

    /// The smallest of all ranks' numbers; each is a positive `c_int`.
    fn smallest(&self, own: usize) -> usize {
        use mpi::collective::{CommunicatorCollectives, SystemOperation};
        let (own, mut smallest) = (count(own), 0);
        self.world.all_reduce_into(&own, &mut smallest, SystemOperation::min());
        usize::try_from(smallest).unwrap_or(0)
    }

    pub(super) fn rank(&self) -> usize {
        usize::try_from(self.world.rank()).unwrap_or(0)
    }

    pub(super) fn world(&self) -> usize {
        usize::try_from(self.world.size()).unwrap_or(0)
    }

    /// Sends a payload followed by its envelope, in pieces if it is long.
    pub(super) fn send(&self, to: usize, message: Vec<u8>, end: End) -> Transfer {
        let mut transfer = Transfer::of(message);
        let message = transfer.bytes.as_slice();
        let payload_bytes = message.len() - ENVELOPE_BYTES;
        let mut post = |bytes: &[u8], tag: c_int| transfer.requests.push(self.post_send(bytes, to, tag, end));
        if message.len() <= self.piece_bytes {
            post(message, MESSAGE);
        } else {
            post(&message[payload_bytes..], MESSAGE);
            message[..payload_bytes].chunks(self.piece_bytes).for_each(|piece| post(piece, PIECE));
        }
        transfer
    }

    /// Says that nothing more will come.
    pub(super) fn send_farewell(&self, to: usize) -> Transfer {
        let mut transfer = Transfer::of(Vec::new());
        transfer.requests.push(self.post_send(&[], to, FAREWELL, End::Taken));
        transfer
    }

    /// The caller keeps the bytes where they are until the request is done.
    fn post_send(&self, bytes: &[u8], to: usize, tag: c_int, end: End) -> ffi::MPI_Request {
        let mut request = null_request();
        let send = match end {
            End::Handed => ffi::MPI_Isend,
            End::Taken => ffi::MPI_Issend,
        };
        // SAFETY: the bytes belong to a `Transfer`, which neither changes nor frees them before the request
        // is done. The type is that of the bytes, the count that of the slice; the communicator lives as long
        // as `self`.
        unsafe {
            send(
                bytes.as_ptr().cast(),
                count(bytes.len()),
                ffi::RSMPI_UINT8_T,
                count(to),
                tag,
                self.world.as_raw(),
                &raw mut request,
            );
        }
        request
    }

    /// Whether a message of any rank waits.
    pub(super) fn is_anything_there(&self) -> bool {
        self.world.any_process().immediate_probe().is_some()
    }

    /// The next message of a rank, if it waits. It must be taken.
    pub(super) fn next_of(&self, from: usize) -> Option<Arrival> {
        let (message, status) = self.world.process_at_rank(count(from)).immediate_matched_probe()?;
        let bytes = usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(0);
        Some(Arrival { message, bytes, is_farewell: status.tag() == FAREWELL })
    }

    /// Begins to receive the pieces of a payload into `buffer`, whose capacity is at least its length.
    pub(super) fn receive_pieces(&self, from: usize, payload_bytes: usize, buffer: Vec<u8>) -> Transfer {
        let mut transfer = Transfer::into(buffer, payload_bytes);
        for start in (0..payload_bytes).step_by(self.piece_bytes) {
            let bytes = self.piece_bytes.min(payload_bytes - start);
            let mut request = null_request();
            // SAFETY: `start + bytes` is at most the capacity that `Transfer::into` has checked; the storage
            // belongs to the transfer, which neither reads nor frees it before the request is done.
            unsafe {
                ffi::MPI_Irecv(
                    transfer.bytes.as_mut_ptr().add(start).cast(),
                    count(bytes),
                    ffi::RSMPI_UINT8_T,
                    count(from),
                    PIECE,
                    self.world.as_raw(),
                    &raw mut request,
                );
            }
            transfer.requests.push(request);
        }
        transfer
    }

    /// Sums over all ranks; blocks until all have called it.
    pub(super) fn sum(&self, loan: &Loan) {
        for start in (0..loan.len).step_by(self.piece_bytes / loan.element_bytes) {
            let len = (self.piece_bytes / loan.element_bytes).min(loan.len - start);
            // SAFETY: `start + len` is at most the length of the slice that was lent, and its owner waits
            // until it is given back, or the job ends. The kind names the slice's type.
            unsafe {
                let data = loan.data.cast::<u8>().add(start * loan.element_bytes);
                gradwire_mpi_sum(loan.kind, data.cast(), count(len));
            }
        }
    }

    /// A setting of the library as text, if it has it.
    pub(super) fn setting(name: &CStr) -> Option<String> {
        let mut text = [0_u8; 256];
        // SAFETY: the name ends in a zero; the function writes at most the given number of bytes.
        let known =
            unsafe { gradwire_mpi_setting(name.as_ptr(), text.as_mut_ptr().cast(), count(text.len())) };
        let text = CStr::from_bytes_until_nul(&text).ok()?;
        (known != 0).then(|| text.to_string_lossy().into_owned())
    }
}

/// Settings that make each library's all-reduce the one that moves the fewest bytes: a ring or, if there is
/// none (MPICH), the halving and doubling of the same volume.
const RING: [(&str, &str); 3] = [
    ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
    ("OMPI_MCA_coll_tuned_allreduce_algorithm", "4"),
    ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "reduce_scatter_allgather"),
];

/// Sets variables that the libraries read when they start, unless the user has set them.
fn set_where_unset(variables: &[(&str, &str)]) {
    for (name, value) in variables.iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
        // SAFETY: Rust's readers and writers of the environment exclude each other by a lock; that no C code
        // of another thread reads it meanwhile is what `MpiOptions::prefer_ring` asks of the caller.
        unsafe { std::env::set_var(name, value) };
    }
}

fn null_request() -> ffi::MPI_Request {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

/// Lengths of single messages, and ranks, are within a `c_int`; whatever is not is a bug that must not wrap.
fn count(len: usize) -> c_int {
    c_int::try_from(len).expect("single MPI messages are cut to what a C int can count")
}

/// A message that waits.
pub(super) struct Arrival {
    message: Message,
    pub(super) bytes: usize,
    pub(super) is_farewell: bool,
}

impl Arrival {
    /// Begins to receive the message into `buffer`, whose capacity is at least its length.
    pub(super) fn receive(mut self, buffer: Vec<u8>) -> Transfer {
        let mut transfer = Transfer::into(buffer, self.bytes);
        let mut request = null_request();
        // SAFETY: the capacity is at least `bytes`, as `Transfer::into` has checked; the storage belongs to
        // the transfer, which neither reads nor frees it before the request is done. The message was matched
        // and not taken before.
        unsafe {
            ffi::MPI_Imrecv(
                transfer.bytes.as_mut_ptr().cast(),
                count(self.bytes),
                ffi::RSMPI_UINT8_T,
                self.message.as_raw_mut(),
                &raw mut request,
            );
        }
        transfer.requests.push(request);
        transfer
    }
}

/// Bytes on their way out or in. The library works on them until it says that it is done.
pub(super) struct Transfer {
    bytes: Vec<u8>,
    /// The vector's length once all is done; for outgoing messages that is already its length.
    len: usize,
    requests: Vec<ffi::MPI_Request>,
}

impl Transfer {
    fn of(bytes: Vec<u8>) -> Self {
        Self { len: bytes.len(), bytes, requests: Vec::with_capacity(1) }
    }

    fn into(mut buffer: Vec<u8>, len: usize) -> Self {
        buffer.clear();
        buffer.reserve_exact(len);
        Self { len, bytes: buffer, requests: Vec::with_capacity(1) }
    }

    /// Whether the bytes are the caller's again.
    pub(super) fn is_done(&mut self) -> bool {
        let mut done = 0;
        // SAFETY: the requests are of this library and pending, or null once they are done, which is allowed.
        unsafe {
            ffi::MPI_Testall(
                count(self.requests.len()),
                self.requests.as_mut_ptr(),
                &raw mut done,
                ffi::RSMPI_STATUSES_IGNORE,
            );
        }
        if done == 0 {
            return false;
        }
        self.requests.clear();
        // SAFETY: the capacity is at least `len`, and the library has written that many bytes: a sender cuts
        // messages as a receiver expects them, at a length that all ranks have agreed on, and shorter or
        // longer ones are fatal.
        unsafe { self.bytes.set_len(self.len) };
        true
    }

    /// The bytes of a transfer that is done.
    pub(super) fn take(mut self) -> Vec<u8> {
        assert!(self.requests.is_empty(), "the library still works on these bytes");
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Transfer {
    /// Bytes that the library may still touch are given up, never freed.
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

/// A slice that its owner has lent to the communication thread, and for which it waits.
#[derive(Debug)]
pub(super) struct Loan {
    kind: c_int,
    element_bytes: usize,
    data: *mut c_void,
    len: usize,
}

// SAFETY: the slice is of a type that may be used from any thread, and its owner does not touch it meanwhile.
unsafe impl Send for Loan {}

/// The kinds are those of the C side.
impl Loan {
    pub(super) fn f32(data: &mut [f32]) -> Self {
        Self::of(0, data)
    }

    pub(super) fn i32(data: &mut [i32]) -> Self {
        Self::of(1, data)
    }

    /// bfloat16 as its bits.
    pub(super) fn bf16(data: &mut [u16]) -> Self {
        Self::of(2, data)
    }

    fn of<T>(kind: c_int, data: &mut [T]) -> Self {
        Self { kind, element_bytes: size_of::<T>(), data: ptr::from_mut(data).cast(), len: data.len() }
    }
}
