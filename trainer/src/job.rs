//! A configuration with everything it names: data read, sizes known, all of it checked before anything is
//! written.

use std::sync::Arc;

use gradwire::plan::Group;
use gradwire::rules::Rules;
use gradwire::{Codec, Layout, LayoutError, Memory, Spec, Tensor, Unit};
use gradwire_transports::exchange::{ExchangeError, Route};

use crate::adapt::{Decided, List, ListError, Plan};
use crate::agreement::Averaging;
use crate::checkpoint::CheckpointError;
use crate::config::{ConfigError, OptimizerKind, RunConfig, ScheduleKind};
use crate::config::{link_rate, set_first};
use crate::data::{DataError, Dataset, Part};
use crate::fragments::Fragment;
use crate::model::{Evaluating, Model, ModelConfig, ModelError};
use crate::optim::{
    AdamWConfig, Decay, Matrix, Moments, MomentsConfig, Optimizer, OptimizerConfig, Schedule, Sgd, SgdConfig,
};
use crate::range::{RangeError, require};

/// Why a run cannot begin. The text is one line; nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// A key, or a combination of keys.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model does not fit the data.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model has too many parameters.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The checkpoint from which to continue.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The codec does not go with the exchange.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The log that is to be replayed, or the patterns of a list.
    #[error("adapt: {0}")]
    Replay(#[from] ListError),
}

impl From<RangeError> for JobError {
    fn from(error: RangeError) -> Self {
        Self::Config(error.into())
    }
}

/// Everything that the workers of a run share, and only read.
#[derive(Debug)]
pub struct Job {
    /// As the user will find it in `config.toml`.
    pub config: RunConfig,
    /// The data.
    pub dataset: Dataset,
    /// The model with its sizes.
    pub model: ModelConfig,
    /// The codec; with rules, that of the last one.
    pub spec: Spec,
    /// How the tensors are sent; without rules, all of them by the codec.
    pub rules: Rules,
    /// The units of the gradient, with their codecs.
    pub plan: gradwire::plan::Plan,
    /// How workers come to agree.
    pub way: Averaging,
    /// What sets the density of each step, unless the codec does.
    pub adapt: Option<Plan>,
    /// The tensors of the flat gradient.
    pub layout: Layout,
    /// The parts of the model that are exchanged in turn: one with all of it, unless several are asked for.
    pub fragments: Vec<Fragment>,
    /// The rate of every step; with local steps, of each of them.
    pub schedule: Schedule,
    /// The optimizer that applies means, at rest.
    pub optimizer: OptimizerConfig,
    /// That of each worker's own steps between two exchanges, if it takes any.
    pub local_optimizer: Option<OptimizerConfig>,
    /// Length of the run.
    pub steps: u64,
    /// Steps until all training data was seen once.
    pub steps_per_epoch: u64,
    /// How far the first worker's evaluation has come.
    pub evaluating: Arc<Evaluating>,
}

impl Job {
    /// Reads the data and checks that everything fits together.
    ///
    /// # Errors
    ///
    /// [`JobError`], which names the key or the file.
    pub fn prepare(config: RunConfig) -> Result<Self, JobError> {
        let dataset = config.data.load(config.data_dir.as_deref())?;
        Self::with_data(config, dataset)
    }

    /// As [`Job::prepare`], with data that was read before.
    ///
    /// # Errors
    ///
    /// As [`Job::prepare`].
    pub fn with_data(mut config: RunConfig, dataset: Dataset) -> Result<Self, JobError> {
        keep_checksum(&mut config, &dataset)?;
        let model = model(&config, &dataset);
        let layout = Layout::packed(model.build(&dataset.task(), config.seed)?.layout())?;
        let plan = |rules: &Rules| gradwire::plan::Plan::of_rules(rules, &layout.as_ref());
        let way = Averaging::of(&config, &plan(&config.rules()));
        choose_index(&mut config, &way);
        let spec = config.codec.spec;
        // What cannot be written down could not be resumed.
        config.to_toml()?;
        let rules = config.rules().into_owned();
        let (fragments, tensors) = (config.fragments(), layout.tensors().len());
        let most = format!("at most {tensors}, the tensors of the model");
        require(fragments <= tensors, "fragments", fragments, most)?;
        let fragments = Fragment::cut(&layout, fragments)?;
        for fragment in &fragments {
            way.begin(&rules, fragment.layout.clone(), config.pipeline)?;
        }
        let plan = plan(&rules);
        let share = config.batch / config.workers;
        let batches = model.batches(&dataset, config.seed, share, 0, config.workers);
        let batches = batches.map_err(|error| about_data(error, &config, &dataset))?.steps_per_epoch() as u64;
        let steps_per_epoch = batches / config.batches_per_step();
        let enough = format!("at most {batches}, the batches of an epoch");
        require(steps_per_epoch > 0, "local_steps", config.batches_per_step(), enough)?;
        require(dataset.examples(Part::Test) > 0, "data", config.data, "a data set with a test part")?;
        let steps =
            config.steps.unwrap_or_else(|| config.epochs.unwrap_or(1).saturating_mul(steps_per_epoch));
        let schedule = schedule(&config, steps)?;
        let (optimizer, local_optimizer) = optimizers(&config, &spec);
        let adapt = config.adapt.as_ref();
        let set = set_first(&rules);
        let adapt = adapt.map(|adapt| Plan::of(adapt, &set, (&layout, plan.units()), steps_per_epoch));
        let adapt = adapt.transpose()?;
        let evaluating = Arc::default();
        let job = Self {
            config,
            dataset,
            model,
            spec,
            rules,
            plan,
            way,
            adapt,
            layout,
            fragments,
            schedule,
            optimizer,
            local_optimizer,
            steps,
            steps_per_epoch,
            evaluating,
        };
        let is_moved = job.config.optimizer != OptimizerKind::Muon || !job.inner_matrices().is_empty();
        let others = "another one: this model has no matrix between its first and its last layer";
        require(is_moved, "optimizer", "muon", others)?;
        job.build_optimizer()?;
        job.own_moments()?;
        job.build_local_optimizer()?;
        if let Some(Plan::List(list)) = &job.adapt {
            job.require_decisions(list)?;
        }
        job.require_levels()?;
        Ok(job)
    }

    /// Refuses rules of which only those without tensors have what `adapt` sets.
    fn require_levels(&self) -> Result<(), ConfigError> {
        let codecs = || self.plan.groups().iter().map(|group| group.spec.codec);
        let has_none = codecs().all(|codec| codec.density().is_none() && codec.rank().is_none());
        let why = "adapt with rules: no tensor of this model has a codec with a density";
        if self.adapt.is_some() && has_none { Err(ConfigError::Conflict(why.to_owned())) } else { Ok(()) }
    }

    /// Refuses a log that ends before this run. The first step of a delayed run sends nothing, and a run that
    /// may end early ends where the one before it did.
    fn require_decisions(&self, list: &List) -> Result<(), ListError> {
        let first = u64::from(self.config.is_delayed());
        let end = if self.config.early_stop.is_some() { first } else { self.steps };
        list.require(first..end)
    }

    /// The optimizer, before its first step. If the codec owns the momentum, the optimizer has momentum only
    /// for what is sent dense.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn build_optimizer(&self) -> Result<Box<dyn Optimizer>, RangeError> {
        match self.optimizer {
            OptimizerConfig::Sgd(config) if self.spec.codec.momentum().is_some() => {
                let has_own = |unit: &&Unit| !unit.dense && self.codec_of(unit).momentum().is_some();
                let dense = self.units().iter().filter(|unit| !has_own(unit)).map(Unit::range);
                Ok(Box::new(Sgd::new(self.layout.len(), config)?.with_momentum_in(dense.collect())))
            }
            config => config.build(self.layout.len(), &self.inner_matrices()),
        }
    }

    /// The matrices between the first and the last layer: what a token or a place stands for is no direction
    /// in a space of inputs.
    fn inner_matrices(&self) -> Vec<Matrix> {
        let matrix = |tensor: &Tensor| match *tensor.shape {
            [rows, columns] if tensor.name != "positions" => {
                Some(Matrix { start: tensor.offset, rows, columns })
            }
            _ => None,
        };
        let all: Vec<Matrix> = self.layout.tensors().iter().filter_map(matrix).collect();
        all.get(1..all.len().saturating_sub(1)).unwrap_or_default().to_vec()
    }

    /// What a worker turns its own gradient into an update with, if the optimizer wants that.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn own_moments(&self) -> Result<Option<Moments>, RangeError> {
        self.optimizer.own_moments(self.layout.len())
    }

    /// The optimizer of a worker's own steps, if it takes any.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn build_local_optimizer(&self) -> Result<Option<Box<dyn Optimizer>>, RangeError> {
        let build = |config: OptimizerConfig| config.build(self.layout.len(), &self.inner_matrices());
        self.local_optimizer.map(build).transpose()
    }

    /// Batches that each worker trains on in a step.
    pub fn batches_per_step(&self) -> u64 {
        self.config.batches_per_step()
    }

    /// The rate of a step; of several local ones, that of the first.
    pub fn lr(&self, step: u64) -> f32 {
        self.schedule.lr(step * self.batches_per_step())
    }

    /// The rate at which the mean of a step is applied.
    pub fn outer_lr(&self, step: u64) -> f32 {
        match self.local_optimizer {
            Some(_) => self.config.outer_lr.unwrap_or(1.0) as f32,
            None => self.lr(step),
        }
    }

    /// The codec of a unit, as it is spelled.
    pub(crate) fn codec_of(&self, unit: &Unit) -> Codec {
        self.plan.group_of(unit).spec.codec
    }

    /// The units, of which those count as sent dense whose codec has not what is asked for.
    pub(crate) fn units_with(&self, has: impl Fn(&Codec) -> bool) -> Vec<Unit> {
        let of = |unit: &Unit| Unit { dense: unit.dense || !has(&self.codec_of(unit)), ..*unit };
        self.units().iter().map(of).collect()
    }

    /// The codecs that have a density, each with its units. The first has all others too, as ones that are
    /// sent dense.
    pub(crate) fn units_by_codec(&self) -> Vec<(Codec, Vec<Unit>)> {
        let groups = || self.plan.groups().iter().filter(|group| group.spec.codec.density().is_some());
        let mut all: Vec<_> = groups().map(|group| (group.spec.codec, Vec::new())).collect();
        for unit in self.units_with(|codec| codec.density().is_some()) {
            let rule = self.plan.group_of(&unit).rule;
            let at = groups().position(|group| group.rule == rule).unwrap_or(0);
            all[at].1.push(unit);
        }
        all
    }

    /// The memory that the codecs ask for in a fragment, if any.
    pub fn memory(&self, fragment: &Fragment) -> Option<Memory<'static>> {
        let layout = fragment.layout.as_ref();
        Memory::for_plan(&gradwire::plan::Plan::of_rules(&self.rules, &layout), &layout)
    }

    /// Whether anything is exchanged in a step: not in the first one of a delayed run.
    pub(crate) fn exchanges_in(&self, step: u64) -> bool {
        step > 0 || !self.config.is_delayed()
    }

    /// The number of the fragment whose mean is applied in a step.
    pub fn turn(&self, step: u64) -> usize {
        let exchange = step.saturating_sub(u64::from(self.config.is_delayed()));
        (exchange % self.fragments.len() as u64) as usize
    }

    /// Parameters that the steps exchange, on average.
    pub(crate) fn exchanged_per_step(&self) -> f64 {
        self.layout.len() as f64 / self.fragments.len() as f64
    }

    /// The fragment whose ways are known after the local steps of a step. In a delayed run, the next step
    /// exchanges it.
    pub(crate) fn fragment_of_ways(&self, step: u64) -> &Fragment {
        &self.fragments[(step % self.fragments.len() as u64) as usize]
    }

    /// The epoch of a step, from 0.
    pub fn epoch(&self, step: u64) -> u64 {
        step / self.steps_per_epoch
    }

    /// The share of all coordinates that a message of that step should hold, including what is sent dense, if
    /// a codec has a density. Codecs without one send all of theirs.
    pub fn target_density(&self, step: u64) -> Option<f64> {
        let epoch = self.epoch(step);
        self.target(|_, group| group.spec.codec_in(epoch))
    }

    /// As [`target_density`](Self::target_density), of a step with that decision.
    pub fn target_of(&self, decided: &Decided) -> Option<f64> {
        match decided {
            // It is sent as `none` does.
            Decided::Density(decision) if decision.density.fraction() == 1.0 => Some(1.0),
            Decided::Density(decision) => {
                self.target(|_, group| group.spec.codec.with_density(decision.density))
            }
            Decided::Densities { densities, .. } => {
                self.target(|unit, group| group.spec.codec.with_density(densities[unit.id as usize]))
            }
            Decided::Rank { .. } | Decided::Ranks { .. } => None,
        }
    }

    /// With these codecs.
    fn target(&self, codec: impl Fn(&Unit, &Group) -> Codec) -> Option<f64> {
        let count =
            |unit: &Unit| codec(unit, self.plan.group_of(unit)).target_count(std::slice::from_ref(unit));
        let counts: Vec<_> = self.units().iter().map(|unit| (count(unit), unit.len)).collect();
        counts.iter().find_map(|(count, _)| *count)?;
        let target: usize = counts.iter().map(|(count, len)| count.unwrap_or(*len)).sum();
        Some(target as f64 / self.layout.len() as f64)
    }

    /// The norm that a worker's gradient is shortened to, if it is limited.
    pub fn local_clip(&self) -> Option<f64> {
        self.spec.codec.local_clip(self.config.workers as u32).or(self.config.clip)
    }

    /// The factor of the weight decay that each worker adds to its own gradient, times the parameters. It is
    /// 0 unless the codec owns the momentum: decay comes before momentum.
    pub fn local_weight_decay(&self) -> f32 {
        if self.spec.codec.momentum().is_some() { self.config.weight_decay as f32 } else { 0.0 }
    }

    /// The units of the gradient.
    pub fn units(&self) -> &[Unit] {
        self.plan.units()
    }

    /// A fresh model, the same for all workers.
    ///
    /// # Errors
    ///
    /// As [`ModelConfig::build`].
    pub fn build_model(&self) -> Result<Box<dyn Model>, ModelError> {
        self.model.build(&self.dataset.task(), self.config.seed)
    }

    /// Whether all workers evaluate together, so that each knows the result. Each then takes a share of the
    /// images, and the mean is made of replicas that differ. Otherwise the first worker evaluates alone.
    pub fn evaluates_together(&self) -> bool {
        let config = &self.config;
        let is_asked = config.replicas() > 1 || config.early_stop.is_some();
        !config.comes_and_goes() && (is_asked || matches!(self.dataset, Dataset::Images(_)))
    }

    /// Whether a run whose validation loss was smallest after `best` steps ends early after `steps` steps.
    pub(crate) fn has_learnt_enough(&self, best: u64, steps: u64) -> bool {
        let every = self.config.eval_every;
        self.config.early_stop.is_some_and(|limit| steps / every - best / every >= limit)
    }

    /// Whether the test part is also what the model is measured on while it learns.
    pub fn validates_on_test(&self) -> bool {
        match &self.dataset {
            Dataset::Images(images) => std::ptr::eq(images.part(Part::Valid), images.part(Part::Test)),
            Dataset::Text(text) => std::ptr::eq(text.part(Part::Valid), text.part(Part::Test)),
        }
    }

    /// Whether a checkpoint is due after this step.
    pub fn is_checkpoint_due(&self, step: u64) -> bool {
        self.config.checkpoint_every > 0 && self.is_due(self.config.checkpoint_every, step)
    }

    /// Whether something that is done every `every` steps, and at the end, is due after this step.
    pub fn is_due(&self, every: u64, step: u64) -> bool {
        step + 1 == self.steps || (every > 0 && (step + 1).is_multiple_of(every))
    }
}

/// Notes which data the run is about, unless they ship with the program. Refuses other data than those with
/// which it began.
fn keep_checksum(config: &mut RunConfig, dataset: &Dataset) -> Result<(), JobError> {
    if config.data.is_shipped() {
        config.data_crc32 = None;
        return Ok(());
    }
    let found = format!("{:08x}", dataset.crc32());
    match &config.data_crc32 {
        Some(known) if *known != found => {
            let place = config.data_dir.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
            let why = format!(
                "data_dir = {place}: other data than the run began with: CRC-32 {found}, not {known}; put those back, or begin a new run without data_crc32"
            );
            Err(ConfigError::Conflict(why).into())
        }
        _ => {
            config.data_crc32 = Some(found);
            Ok(())
        }
    }
}

/// The model with the sizes that the user gave.
fn model(config: &RunConfig, dataset: &Dataset) -> ModelConfig {
    let mut model = config.model.suited_to(&dataset.task());
    match (&mut model, &config.hidden) {
        (ModelConfig::Mlp(mlp), Some(hidden)) => mlp.hidden.clone_from(hidden),
        (ModelConfig::Lstm(lstm), hidden) => {
            lstm.width = hidden.as_ref().map_or(lstm.width, |widths| widths[0]);
            lstm.context = config.bptt.unwrap_or(lstm.context);
            lstm.dropout = config.dropout.unwrap_or(lstm.dropout);
        }
        (ModelConfig::Gpt(gpt), Some(hidden)) => *gpt = gpt.with_blocks(hidden),
        (ModelConfig::ResNet20(resnet), _) => resnet.augment = config.augment.unwrap_or(false),
        _ => {}
    }
    model
}

/// Chooses the index coder by the link rate, if a rate is given, the codec names no coder, and frames go to
/// all. Rules have the coders that they spell: whether one names `index=auto` is not known.
fn choose_index(config: &mut RunConfig, way: &Averaging) {
    let is_gathered = matches!(way, Averaging::Mean(Route::AllGather | Route::Server(_)));
    let link_gbps = config.link_gbps.filter(|_| is_gathered && config.rules.is_none());
    let chosen = link_gbps.and_then(|gbps| link_rate::choose(&config.codec, config.workers, gbps));
    if let Some(chosen) = chosen {
        config.codec = chosen.into();
    }
}

/// Says for how many workers a batch is, and what an example of a text is.
fn about_data(error: RangeError, config: &RunConfig, dataset: &Dataset) -> RangeError {
    let RangeError { key, mut value, mut allowed } = error;
    if key == "batch" {
        value = format!("{value} for each of {} workers", config.workers);
    }
    if let Dataset::Text(text) = dataset {
        let tokens = text.part(Part::Train).len();
        allowed =
            format!("{allowed}; an example is a window of the training text, which has {tokens} tokens");
    }
    RangeError { key, value, allowed }
}

fn schedule(config: &RunConfig, steps: u64) -> Result<Schedule, RangeError> {
    let batches = |steps: u64| steps.saturating_mul(config.batches_per_step());
    let decay = match config.schedule {
        ScheduleKind::Cosine => Decay::Cosine { end: batches(steps), floor: 0.0 },
        ScheduleKind::Step => Decay::Step {
            every: batches(config.decay_every.unwrap_or(0)),
            factor: config.decay_factor.unwrap_or(0.0) as f32,
        },
        ScheduleKind::Constant => Decay::Constant,
    };
    Schedule::new(config.lr as f32, batches(config.warmup), decay)
}

/// The optimizer that applies means, and that of local steps.
fn optimizers(config: &RunConfig, spec: &Spec) -> (OptimizerConfig, Option<OptimizerConfig>) {
    let optimizer = optimizer(config, spec);
    if config.local_steps.is_none() {
        return (optimizer, None);
    }
    let momentum = config.outer_momentum.unwrap_or(0.0) as f32;
    let outer = SgdConfig { momentum, nesterov: momentum > 0.0, weight_decay: 0.0 };
    (OptimizerConfig::Sgd(outer), Some(optimizer))
}

fn optimizer(config: &RunConfig, spec: &Spec) -> OptimizerConfig {
    if let Some(momentum) = spec.codec.momentum() {
        let (momentum, nesterov) = (momentum.factor(), momentum.is_nesterov());
        return OptimizerConfig::Sgd(SgdConfig { momentum, nesterov, weight_decay: 0.0 });
    }
    let weight_decay = config.weight_decay as f32;
    let moments = MomentsConfig::default();
    let beta2 = config.beta2.map_or(moments.beta2, |beta2| beta2 as f32);
    let adamw = AdamWConfig { moments: MomentsConfig { beta2, ..moments }, weight_decay };
    match config.optimizer {
        OptimizerKind::Adamw => OptimizerConfig::AdamW(adamw),
        OptimizerKind::AdamwUpdates => OptimizerConfig::AdamWUpdates(adamw),
        OptimizerKind::Muon => OptimizerConfig::Muon(adamw),
        OptimizerKind::Sgd => OptimizerConfig::Sgd(SgdConfig {
            momentum: config.momentum.unwrap_or(0.0) as f32,
            nesterov: config.nesterov.unwrap_or(false),
            weight_decay,
        }),
    }
}
