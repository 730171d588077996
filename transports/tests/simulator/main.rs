//! Whole steps of an exchange, and of gossip, under random schedules: no threads, no sleeping, one seed for
//! each schedule.
//!
//! `SIMULATE_SCHEDULES` says how many schedules of every route run, `SIMULATE_FIRST` from which seed on, and
//! `SIMULATE_SEED` runs a single one. A schedule that breaks a rule panics with its route and seed.

mod gossip;
#[path = "../common/led.rs"]
mod led;
mod library;
mod network;
mod rules;
mod schedule;

use std::fmt::Debug;
use std::ops::AddAssign;
use std::panic;

use schedule::{Case, Schedule};

/// Schedules of every route in an ordinary run.
const SCHEDULES: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

fn run(case: &Case) {
    led::spec("x:led");
    let is_complete = |seen: &rules::Seen| seen.is_complete(case);
    run_all(case.name, |seed| Schedule::new(case, seed).run(), is_complete);
}

/// Runs the schedules of all seeds. Many of them must reach all that they are there for.
fn run_all<S: AddAssign + Debug + Default>(
    name: &str,
    schedule: impl Fn(u64) -> S,
    is_complete: impl Fn(&S) -> bool,
) {
    let first = number("SIMULATE_FIRST").unwrap_or(0);
    let seeds = match number("SIMULATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("SIMULATE_SCHEDULES").unwrap_or(SCHEDULES),
    };
    let mut seen = S::default();
    for seed in seeds.clone() {
        match panic::catch_unwind(panic::AssertUnwindSafe(|| schedule(seed))) {
            Ok(outcome) => seen += outcome,
            Err(cause) => {
                eprintln!("{name} broke a rule: SIMULATE_SEED={seed} replays it");
                panic::resume_unwind(cause);
            }
        }
    }
    println!("{name}: {seen:?}");
    if seeds.end - seeds.start >= SCHEDULES {
        assert!(is_complete(&seen), "{name}: {seen:?}");
    }
}

macro_rules! routes {
    ($adds:expr => $($name:ident: $rules:expr, $route:expr, $rounding:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let (name, rules, route, rounding) = (stringify!($name), $rules, $route, $rounding);
                run(&Case { name, rules, route, rounding, adds: $adds });
            }
        )*
    };
}

use gradwire::Spec;
use gradwire_transports::collective::Wire::{Bf16, F32};
use gradwire_transports::exchange::Route::{
    self, AllGather, AllReduce, Native, Owners, SparseAllReduce, Tree,
};
use gradwire_transports::exchange::ServerOptions;

fn server(downlink: &str) -> Route {
    let downlink = Spec::parse(downlink).unwrap();
    Route::Server(ServerOptions { downlink, ..ServerOptions::default() })
}

routes! { false =>
    all_gather: "topk:density=0.2,unit=tensor", AllGather, 1e-5;
    all_gather_without_memory: "none", AllGather, 1e-5;
    all_gather_of_groups: "w=none; b=topk:density=0.5; topk:density=0.2,unit=tensor", AllGather, 1e-5;
    sparse_all_reduce: "topk:density=0.2,unit=tensor", SparseAllReduce, 1e-5;
    ring: "none", AllReduce { wire: F32 }, 1e-5;
    ring_with_memory: "randomk:density=0.3,unit=tensor", AllReduce { wire: F32 }, 1e-5;
    ring_of_groups: "v=none; randomk:density=0.3,unit=tensor", AllReduce { wire: F32 }, 1e-5;
    ring_bf16: "none", AllReduce { wire: Bf16 }, 0.07;
    ring_of_two_rounds: "maxnorm:bits=6,unit=tensor", AllReduce { wire: F32 }, 1.0;
    ring_of_copies: "x:led:unit=tensor", AllReduce { wire: Bf16 }, 1e-5;
    ring_of_a_leaders_coordinates: "sharedk:density=0.1,by=leader,unit=tensor", AllReduce { wire: F32 }, 1e-5;
    ring_of_kept_sketches: "sketch:density=0.1,cells=0.4,rows=1,momentum=0.5", AllReduce { wire: F32 }, 4.0;
    tree: "randomk:density=0.3,unit=tensor", Tree { wire: F32 }, 1e-5;
    tree_of_copies: "x:led", Tree { wire: Bf16 }, 1e-5;
    tree_of_sketched_coordinates: "sharedk:density=0.05,rows=1,columns=2", Tree { wire: F32 }, 1e-5;
    owners: "none", Owners { wire: F32 }, 1e-5;
    owners_with_memory: "randomk:density=0.3,unit=tensor", Owners { wire: F32 }, 1e-5;
    owners_of_two_rounds: "maxnorm:bits=6,unit=tensor", Owners { wire: Bf16 }, 1.0;
    owners_of_copies: "x:led:unit=tensor", Owners { wire: Bf16 }, 1e-5;
    owners_of_sketches: "sketch:density=0.1,cells=0.4,rows=1,error=workers", Owners { wire: F32 }, 1e-5;
    native: "none", Native { wire: F32 }, 1e-5;
    native_with_memory: "randomk:density=0.3,unit=tensor", Native { wire: F32 }, 1e-5;
    native_of_two_rounds: "maxnorm:bits=6,unit=tensor", Native { wire: F32 }, 1.0;
    native_of_copies: "x:led", Native { wire: F32 }, 1e-5;
    native_of_a_leaders_coordinates: "sharedk:density=0.1,by=leader", Native { wire: F32 }, 1e-5;
    served: "topk:density=0.2,unit=tensor", server("none"), 1e-5;
    served_by_groups: "v=none; topk:density=0.3,unit=tensor", server("topk:density=0.4"), 1e-5;
    served_copies: "x:led:unit=tensor", server("none"), 1e-5;
    served_rounds: "maxnorm:bits=4+8,unit=tensor", server("none"), 1.0;
    served_coordinates: "sharedk:density=0.1,by=leader,unit=tensor", server("none"), 1e-5;
    served_kept_sketches: "sketch:density=0.1,cells=0.4,rows=1,momentum=0.5", server("none"), 4.0;
    served_by_packets: "none:max_packet_bytes=64", server("none"), 1e-5;
}

// Parts that are added one by one.
routes! { true =>
    added_frames: "topk:density=0.2,unit=tensor", AllGather, 1e-5;
    added_frames_without_memory: "qsgd:bits=8,unit=tensor", AllGather, 0.2;
    added_frames_of_groups: "w=none; b=topk:density=0.5; topk:density=0.2,unit=tensor", AllGather, 1e-5;
    added_sparse_sums: "topk:density=0.2,unit=tensor", SparseAllReduce, 1e-5;
    added_sparse_sums_of_groups: "b=topk:density=0.5; topk:density=0.2,unit=tensor", SparseAllReduce, 1e-5;
    added_sums: "w=none; b=none; none", Owners { wire: F32 }, 1e-5;
    added_sums_with_memory: "randomk:density=0.3,unit=tensor", Owners { wire: F32 }, 1e-5;
    added_sums_of_groups: "v=none; randomk:density=0.3,unit=tensor", Owners { wire: F32 }, 1e-5;
    added_copies: "x:led:unit=tensor", Owners { wire: F32 }, 1e-5;
    added_coordinates: "sharedk:density=0.1,by=leader,unit=tensor", Owners { wire: F32 }, 1e-5;
    added_sums_of_two_rounds: "maxnorm:bits=6,unit=tensor", Owners { wire: Bf16 }, 1.0;
}
