//! Which route suits a plan.

use std::iter::Sum;

use gradwire::Codec;
use gradwire::codecs::ValueChoice;
use gradwire::plan::{Group, Plan};

use super::Exchange;
use super::fit::packets_of;
use super::route::{Route, ServerOptions};
use crate::collective::Wire;
use crate::cost::{Link, sparse_all_reduce_bytes, sparse_frame_bytes};

impl Exchange {
    /// All-reduce where all codecs allow it, a server for packets, else all-gather.
    pub fn best_route(plan: &Plan) -> Route {
        if packets_of(plan).is_some() {
            // A worker may lose all of them, and the others continue.
            return Route::Server(ServerOptions { quorum: 1, ..ServerOptions::default() });
        }
        let is_linear = plan.groups().iter().all(Group::is_linear);
        if is_linear { Route::AllReduce { wire: Wire::F32 } } else { Route::AllGather }
    }

    /// The same with a known link between `world` ranks. The result is sparse all-reduce if every group has a
    /// codec with a density, or `none`, and the cost model predicts less time for it than for all-gather,
    /// each with the frames that random coordinates would have.
    ///
    /// # Determinism
    /// The same on every machine, so that all ranks make the same choice.
    pub fn route_over(plan: &Plan, world: usize, link: &Link) -> Route {
        let route = Self::best_route(plan);
        let sizes = plan.groups().iter().map(|group| Sizes::of(group, plan, world)).sum::<Option<Sizes>>();
        let Some(Sizes { gathered, reduced }) = sizes.filter(|_| route == Route::AllGather) else {
            return route;
        };
        // Both of its phases wait for a first byte.
        let reduced = 2.0 * link.all_gather_s(world, 0.0) + link.busy_s(reduced);
        if reduced < link.all_gather_s(world, gathered) { Route::SparseAllReduce } else { route }
    }
}

/// Bytes of a group: its frame, and what a rank sends of it in a sparse all-reduce.
#[derive(Clone, Copy, Default)]
struct Sizes {
    gathered: f64,
    reduced: f64,
}

impl Sizes {
    /// `None` for a codec whose frames the cost model does not know.
    fn of(group: &Group, plan: &Plan, world: usize) -> Option<Self> {
        let codec = group.listed()?;
        let (density, bits) = match codec.density() {
            Some(density) => (density.fraction(), value_bits(codec.sparse_values()?)),
            None if *codec == Codec::NONE => (1.0, 32.0),
            None => return None,
        };
        let len = group.units_in(plan.units()).iter().map(|unit| unit.len).sum();
        let gathered = sparse_frame_bytes(len, density, bits);
        Some(Self { gathered, reduced: sparse_all_reduce_bytes(world, len, density) })
    }
}

impl Sum for Sizes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, next| Self {
            gathered: sum.gathered + next.gathered,
            reduced: sum.reduced + next.reduced,
        })
    }
}

/// Approximate bits of a value.
fn value_bits(values: ValueChoice) -> f64 {
    match values {
        ValueChoice::Sign => 1.0,
        ValueChoice::Q2 => 2.0,
        ValueChoice::Q4 => 4.0,
        ValueChoice::Q8 => 8.0,
        ValueChoice::F16 | ValueChoice::Bf16 => 16.0,
        _ => 32.0,
    }
}
