//! `trainer advise`: which codec and which exchange make the shortest step, and whether any pays.
//!
//! What codecs cost is measured on this machine; how long their bytes take follows from the links that are
//! described, by the formulas of [`gradwire_transports::cost`].
//!
//! | module | answers |
//! | --- | --- |
//! | [`conditions`] | whether something disturbed the measurement |
//! | [`costs`] | what a codec costs here: bytes, encoding, decoding |
//! | [`predict`] | how long a step takes with a codec, on a link, with so many workers |
//! | [`grid`] | which codec is fastest for each number of workers and each bandwidth, and where it begins to pay |
//! | [`show`] | the same as text |
//! | [`heat_map`] | the same as a drawing |
//! | [`legend`] | the letters that both take for a codec and its exchange |
//! | `link`, under `mpirun` | how fast the links between workers are |

mod conditions;
mod costs;
mod grid;
mod heat_map;
mod legend;
#[cfg(any(test, feature = "mpi"))]
pub(crate) mod link;
mod predict;
mod show;

pub(crate) use costs::{Costs, LONGEST_DRAWN};
pub(crate) use grid::{Advice, Question};
pub(crate) use heat_map::svg as heat_map;
pub(crate) use predict::Overlap;
pub(crate) use show::write as show;
