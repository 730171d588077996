//! A suite that checks every clause of the contract of [`Transport`].
//!
//! A check is a function that every rank of a world runs at the same time. It panics if the transport breaks
//! the contract. [`run`] gives each rank a thread. A transport whose ranks are processes calls [`run_rank`]
//! in each of them, and runs each of the [`departures`], in which ranks leave, in a world of its own.
//!
//! # Examples
//! ```
//! use gradwire_transports::{Transport, conformance, local};
//!
//! let factory = |world: usize| -> Vec<Box<dyn Transport>> {
//!     local::world(world as u32).into_iter().map(|rank| Box::new(rank) as _).collect()
//! };
//! conformance::run(&factory, &[1, 3]);
//! ```

mod collectives;
mod departures;
mod messages;
mod peer;
mod reductions;
mod reference;

use std::panic;
use std::thread;

pub use peer::{Check, Peer};
use peer::{STEPS, patience};
pub use reference::{Inputs, expected_max, expected_sum_f32, expected_sum_i32, expected_tree_sum_f32};

use crate::collective;
use crate::transport::Transport;

/// Makes the transports of a new world, in rank order.
pub type Factory<'a> = &'a dyn Fn(usize) -> Vec<Box<dyn Transport>>;

/// Every check that leaves all ranks in place, in the order in which [`run_rank`] runs them.
pub fn checks() -> Vec<Check> {
    [messages::CHECKS, collectives::CHECKS, reductions::CHECKS].concat()
}

/// Every check in which ranks leave. Each needs a world of its own; a rank that has not left at the end of
/// the check leaves then.
pub fn departures() -> Vec<Check> {
    departures::CHECKS.to_vec()
}

/// Runs the whole suite, each rank in a thread, for worlds of the given sizes.
///
/// # Panics
/// If a check fails; the message names the check and the world.
pub fn run(factory: Factory<'_>, worlds: &[usize]) {
    for &world in worlds {
        checks().iter().for_each(|check| run_check(factory, world, check));
        departures().iter().for_each(|check| run_threads(factory, world, check, check.run));
    }
}

/// Runs every check of [`checks`] on one rank of a world whose other ranks do the same.
///
/// # Panics
/// If a check fails; the message on standard error names it.
pub fn run_rank(transport: &mut dyn Transport) {
    for (number, check) in checks().into_iter().enumerate() {
        let mut peer = Peer::new(transport, number as u64);
        let rank = peer.rank();
        if let Err(panic) = panic::catch_unwind(panic::AssertUnwindSafe(|| run_together(&mut peer, check))) {
            eprintln!("conformance: {} failed at {rank}", check.name);
            panic::resume_unwind(panic);
        }
    }
}

/// Runs one check in a world of its own, each rank in a thread.
///
/// # Panics
/// If the check fails at any rank.
pub fn run_check(factory: Factory<'_>, world: usize, check: &Check) {
    let body = *check;
    run_threads(factory, world, check, move |peer| run_together(peer, body));
}

/// Runs a check, and then waits until all ranks have run it, so that no rank leaves while another still needs
/// it.
fn run_together(peer: &mut Peer<'_>, check: Check) {
    (check.run)(peer);
    let end = peer.tag(STEPS - 1);
    peer.transport.retire(end);
    collective::barrier(peer.transport, end, patience()).unwrap();
}

fn run_threads(
    factory: Factory<'_>,
    world: usize,
    check: &Check,
    body: impl Fn(&mut Peer<'_>) + Copy + Send + 'static,
) {
    let transports = factory(world);
    assert_eq!(transports.len(), world, "the factory makes one transport for each rank");
    let spawn =
        |mut transport: Box<dyn Transport>| thread::spawn(move || body(&mut Peer::new(&mut *transport, 0)));
    let threads: Vec<_> = transports.into_iter().map(spawn).collect();
    // Joins all threads before it looks at any result, so that a failure ends the whole world.
    let results: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    let failed = results.iter().filter(|result| result.is_err()).count();
    assert_eq!(failed, 0, "conformance: {} failed at {failed} of {world} ranks", check.name);
}
