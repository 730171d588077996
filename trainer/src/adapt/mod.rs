//! The density of each step: from a list, from a controller, or as an earlier run had it.
//!
//! | spelling | the density of a step |
//! | --- | --- |
//! | `steps:0=0.1,500=0.01`, `epochs:0=0.1,4=0.01` | [`List`]: what the list says from that step or epoch on |
//! | `layers:*.bias=1,*=0.01` | [`List`]: each tensor as the list says |
//! | `loss:inf=0.1,3.0=0.01` | [`ByLoss`]: what the list says once the training loss was below that value |
//! | `gravac:min=10,max=1000,…` | [`Gravac`]: the highest compression whose gain is large enough |
//! | `accordion:low=0.1,high=0.01,…` | [`Accordion`]: the low compression while gradients change much; also of the ranks of `powersgd` |
//! | `replay:FILE` | [`List`]: as `metrics.jsonl` of another run has it |
//!
//! Controllers are pure: the same numbers give the same decisions, and nothing here measures, sends or waits.
//! All workers pass in numbers that they agreed on, so all decide alike. The worker's step does the rest.

mod accordion;
mod by_loss;
mod decision;
mod gravac;
mod list;
mod spelling;

use gradwire::{Density, Layout, Spec, Unit};

pub use self::accordion::{Accordion, AccordionSettings, By, Level};
pub use self::by_loss::ByLoss;
pub use self::decision::{Choice, Decided, Decision};
pub use self::gravac::{Agreed, Clock, Gravac, GravacSettings, Policy};
pub use self::list::{List, ListError};
pub use self::spelling::Adapt;

/// What sets the densities of a run, with everything that it names read.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Known before the run.
    List(List),
    /// Decided from gains and times.
    Gravac(GravacSettings),
    /// Decided from norms and learning rates.
    Accordion(AccordionSettings),
    /// Decided from the training loss.
    Loss(Vec<(f64, Density)>),
}

impl Plan {
    /// Reads what the spelling names, for that codec and a model with these units. An epoch has
    /// `steps_per_epoch` steps.
    ///
    /// # Errors
    ///
    /// [`ListError`] for a log that cannot be replayed or does not fit the codec and the model, and for a
    /// pattern that fits no tensor.
    pub fn of(
        adapt: &Adapt,
        spec: &Spec,
        (layout, units): (&Layout, &[Unit]),
        steps_per_epoch: u64,
    ) -> Result<Self, ListError> {
        Ok(match adapt {
            Adapt::Steps(list) => Self::List(List::of(list, 1)),
            Adapt::Epochs(list) => Self::List(List::of(list, steps_per_epoch)),
            Adapt::Gravac(settings) => Self::Gravac(*settings),
            Adapt::Accordion(settings) => Self::Accordion(*settings),
            Adapt::Layers(list) => Self::List(List::by_layer(list, layout, units)?),
            Adapt::Loss(list) => Self::Loss(list.clone()),
            Adapt::Replay(path) => {
                let list = List::read(path)?;
                list.require_fit(spec, units.len())?;
                Self::List(list)
            }
        })
    }
}
