//! What `trainer` does when it is told nothing: dense training against three codecs, in about a minute.

use crate::compare::{Candidate, Plan};
use crate::config::{OptimizerKind, Settings};
use crate::data::Source;
use crate::job::JobError;
use crate::model::ModelKind;

/// The codecs that are compared, dense first.
pub const CODECS: [&str; 4] = ["none", "topk:density=0.01", "topk:density=0.01,values=q8", "qsgd:bits=4"];

/// Where the results go.
pub const FOLDER: &str = "runs/quickstart";

/// Runs of each codec; seeds 1, 2, …
const SEEDS: u64 = 5;

/// Four workers, plain SGD without momentum. At this rate and length dense training has converged, and error
/// feedback has had the time to send its residual.
pub fn settings() -> Settings {
    Settings {
        data: Some(Source::Optdigits),
        model: Some(ModelKind::Mlp),
        hidden: Some(vec![256, 128]),
        workers: Some(4),
        batch: Some(128),
        steps: Some(600),
        optimizer: Some(OptimizerKind::Sgd),
        lr: Some(0.2),
        eval_every: Some(20),
        hash_every: Some(50),
        ..Settings::default()
    }
}

/// The runs of the quick start.
///
/// # Errors
///
/// None but programming errors: the data ships with the program.
pub fn plan() -> Result<Plan, JobError> {
    Plan::new(&settings(), &CODECS.map(Candidate::from), SEEDS)
}

/// How to read the table, in plain words.
pub const HOW_TO_READ: &str = "\
How to read it: 'none' is ordinary training, where every worker sends its whole gradient. The others send less. What topk
leaves out is kept and added to the next gradient. 'to dense' is what that costs in accuracy: the mean difference of the
pairs of equal seeds, with its 95 % interval. 'ratio' is how much smaller a message is than the dense gradient; 'wire
ratio' is how much less really went over the wires than with a dense ring.
Bytes are sums over all workers and steps, headers included; encode and decode are times of one worker in one step.
In one process, as here, nothing is faster than sending everything: compression is for links slower than the break-even.";
