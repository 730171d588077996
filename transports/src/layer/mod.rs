//! Wrappers around any transport. Each is a transport itself, so they nest; where a wrapper stands decides
//! what it sees: a [`Meter`] outside of a [`FaultInjector`] counts what the caller gave, one inside counts
//! what was left.
//!
//! Their collectives are the provided ones, made of their own `send` and `recv`: a wrapper sees every
//! message, and overrides of the transport inside do not run. The one exception is `native_all_reduce`, which
//! has no messages.

mod fault;
mod meter;
mod throttle;

pub use fault::{FaultInjector, FaultPlan, FaultTally, Partition};
pub use meter::Meter;
pub use throttle::{LinkSpeed, Throttle};
