//! Wrappers around any transport. Each is a transport itself, so they nest, and their order decides what each
//! sees: a [`Meter`] outside a [`FaultInjector`] counts what the caller gave; a meter inside it counts what
//! was left.
//!
//! Their collectives are the provided ones, made of their own `send` and `recv`. So a wrapper sees every
//! message, and overrides of the transport inside do not run. The only exception is `native_all_reduce`,
//! which has no messages.

mod fault;
mod meter;
mod throttle;

pub use fault::{FaultInjector, FaultPlan, FaultTally, Partition};
pub use meter::Meter;
pub use throttle::{LinkSpeed, Throttle};
