//! A whole run: its workers, and one place where their records come together.
//!
//! | module | holds |
//! | --- | --- |
//! | `work` | what one worker does, from the first step to the last |
//! | `collect` | the records of all workers, step by step, and the summary of them |
//! | `threads` | the workers as threads of this process: [`run`], [`run_with_models`] |
//! | [`processes`] | the workers as processes: one leads, the others follow |
//! | [`in_folder`] | a run with its folder and its progress |
//! | `longer` | a run that gets a later end |

pub(crate) mod collect;
mod control;
mod error;
pub mod in_folder;
mod longer;
mod observer;
mod outcome;
pub mod processes;
mod threads;
mod work;

pub use control::Control;
pub use error::RunError;
pub use longer::Length;
pub(crate) use longer::extend;
pub use observer::Observer;
#[cfg(feature = "zmq")]
pub(crate) use outcome::Final;
pub use outcome::Outcome;
pub use threads::{run, run_with_models};
