//! Decides which ranks take part in which step, when workers join, leave, die or fall silent during a run.
//!
//! A server and its workers run [`Exchange`](crate::exchange::Exchange)s with
//! [`Route::Server`](crate::exchange::Route) over a star with [`Returns::AtAnyTime`](super::Returns). This
//! module adds what happens around each step:
//!
//! ```text
//! worker                                   server
//! ask ──────── request ──────────────────► (kept until a step closes)
//!     ◄─────── state: notice + parameters  close
//! start  ───── frame ────────────────────► start
//! report ───── norm, hash ───────────────►
//! finish ◄──── who is in it, mean ──────── finish: closes when all are there, or at the end of its patience
//! next   ◄──── notice ──────────────────── close: who left, who was too late, who comes in
//! ```
//! - The membership of a step is fixed when the step before it closes; a [`Notice`] announces it, in an epoch
//!   of its own.
//! - The verdict tells a worker that it is late: its frame is given back, it applies the mean like everyone,
//!   and its replica stays equal. A worker that misses [`Rules::may_miss`] steps in a row, or whose
//!   parameters differ, leaves the membership. It asks again, and gets the parameters of the step that closes
//!   then.
//! - A step without a quorum is void: everything is given back, the parameters stay, and the next step
//!   follows. It begins when there is a quorum. If fewer members are left, all are put out, and come in
//!   together.
//! - A member whose frames are refused again and again is shut out of the run ([`Rules::may_spoil`]), and no
//!   longer counts towards a quorum.
//! - A worker that leaves in order says so in its report, and whether it keeps its residual ([`Leaves`]). It
//!   is out after that step, which counts.
//! - A worker's residual dies with it. Its last report has the norm, which [`Change::Left`] passes on.

mod message;
mod place;
mod server;
pub(super) mod tags;
mod worker;

pub use message::{Leaves, Notice, Report};
pub use place::Change;
pub use server::{Rules, Server};
pub use worker::Worker;

/// The weight of a worker's residual when it comes back `missed` steps later: 1 at once, falling evenly to 0
/// at `limit` steps. Old residuals point in directions in which the loss no longer falls.
///
/// # Examples
/// ```
/// use gradwire_transports::zmq::roll::residual_weight;
///
/// assert_eq!([0, 8, 16, 99].map(|missed| residual_weight(missed, 16)), [1.0, 0.5, 0.0, 0.0]);
/// ```
pub fn residual_weight(missed: u64, limit: u64) -> f32 {
    if missed == 0 { 1.0 } else { limit.saturating_sub(missed) as f32 / limit.max(1) as f32 }
}
