//! What is encoded how: the units of a layout, in groups that have a codec each.

mod by_unit;
mod change;
mod memory;
mod message;
mod method;

use crate::codec::Linear;
use crate::frame::FrameUnit;
use crate::frame::gather::Gather;
use crate::gradient::layout::{LayoutRef, TensorRef};
use crate::gradient::unit::Unit;
use crate::keys::MemoryChoice;
use crate::registry::codecs::Codec;
use crate::spec::rules::{Rule, Rules};
use crate::spec::{Spec, UnitPolicy};
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::type_name;
use method::Method;

pub use change::PlanError;
pub use message::{GroupFrames, GroupsDecodeError};

/// The tensors of a layout that have one codec.
#[non_exhaustive]
#[derive(Debug)]
pub struct Group {
    /// Position of the rule among all, from 0.
    pub rule: usize,
    /// How the tensors are sent, as it was spelled; what sets densities and ranks between steps does not
    /// change it. Of a codec of another crate, which has no spelling: `none`, with its units.
    pub spec: Spec,
    /// Positions of the tensors in the layout, ascending.
    pub tensors: Vec<usize>,
    /// The units, ascending. Identifiers count the units of all groups by their place in the layout, so that
    /// no two groups share a random draw.
    pub units: Vec<Unit>,
    method: Method,
    #[cfg(feature = "parallel")]
    on_threads: bool,
}

/// What is encoded how: a layout cut into units, and for each unit its codec, density and rank. Units with
/// one codec are a [`Group`].
///
/// | made from | groups |
/// | --- | --- |
/// | a [`Spec`] | one |
/// | [`Rules`] by tensor name | one for each rule that has tensors, in the order of the rules |
/// | a codec of another crate: [`of_gather`](Self::of_gather), [`of_linear`](Self::of_linear) | one |
///
/// Densities and ranks may change between steps, for all units or for each; units stay.
///
/// Within a group, the spelling says how tensors are cut into units. A unit is one range of the layout, so it
/// ends before a tensor of another group. With `unit=model`, a group has one unit for each run of
/// neighbouring tensors that are treated alike.
///
/// # Examples
/// ```
/// use gradwire::plan::Plan;
/// use gradwire::rules::Rules;
/// use gradwire::{LayoutRef, TensorRef};
/// let tensors = [
///     TensorRef { name: "a.weight", shape: &[4, 2], offset: 0 },
///     TensorRef { name: "a.bias", shape: &[4], offset: 8 },
///     TensorRef { name: "b.weight", shape: &[3, 4], offset: 12 },
/// ];
/// let layout = LayoutRef::new(&tensors).unwrap();
/// let plan = Plan::of_rules(&Rules::parse("*.bias=none; topk").unwrap(), &layout);
/// let numbers = |group: usize| plan.groups()[group].units.iter().map(|unit| unit.id).collect::<Vec<_>>();
/// assert_eq!((numbers(0), numbers(1)), (vec![1], vec![0, 2]));
/// ```
#[derive(Debug)]
pub struct Plan {
    /// At least one.
    groups: Vec<Group>,
    /// Those of all groups, ascending; at least one.
    units: Vec<Unit>,
    /// The position of each unit's group, by the unit's identifier.
    group_of: Vec<usize>,
    fingerprint: u64,
}

/// What a [`Plan`] for any layout follows from: a [`Spec`], [`Rules`], or a plan itself.
pub trait ToPlan {
    /// The plan for a layout.
    fn to_plan(self, layout: &LayoutRef<'_>) -> Plan;
}

impl ToPlan for Plan {
    fn to_plan(self, layout: &LayoutRef<'_>) -> Plan {
        self.assert_for(layout);
        self
    }
}

impl ToPlan for Spec {
    fn to_plan(self, layout: &LayoutRef<'_>) -> Plan {
        Plan::of(&self, layout)
    }
}

impl ToPlan for &Rules {
    fn to_plan(self, layout: &LayoutRef<'_>) -> Plan {
        Plan::of_rules(self, layout)
    }
}

impl Plan {
    /// Every unit by one spelling.
    #[must_use]
    pub fn of(spec: &Spec, layout: &LayoutRef<'_>) -> Self {
        Self::of_rules(&Rules::from(*spec), layout)
    }

    /// Every tensor by the first rule that fits its name. A rule without tensors has no group.
    #[must_use]
    pub fn of_rules(rules: &Rules, layout: &LayoutRef<'_>) -> Self {
        let rule = |(rule, spec): (usize, &Spec)| Group {
            rule,
            spec: *spec,
            tensors: Vec::new(),
            units: Vec::new(),
            method: Method::listed(spec.codec),
            #[cfg(feature = "parallel")]
            on_threads: false,
        };
        let specs = rules.rules().iter().map(Rule::spec);
        let mut groups: Vec<Group> = specs.enumerate().map(rule).collect();
        let (mut before, mut units) = (None, 0);
        for (position, tensor) in layout.tensors().enumerate() {
            let rule = rules.position(tensor.name);
            let group = &mut groups[rule];
            group.tensors.push(position);
            if !group.joins(before == Some(rule), &tensor) {
                group.units.push(unit(units, &group.spec, &tensor));
                units += 1;
            }
            before = Some(rule);
        }
        if let Some(others) = groups.last_mut().filter(|_| units == 0) {
            // A layout without tensors is one empty unit.
            others.units.push(Unit::whole(0));
        }
        groups.retain(|group| !group.units.is_empty());
        Self::from_groups(groups, layout)
    }

    /// Every tensor by one spelling, in these units instead of those that it cuts. Their identifiers are the
    /// caller's, and determine random draws; such a plan takes no densities and ranks by unit.
    ///
    /// # Panics
    /// Without a unit, and if units do not ascend, overlap, or end beyond the layout.
    #[must_use]
    pub fn of_units(spec: &Spec, units: Vec<Unit>, layout: &LayoutRef<'_>) -> Self {
        let ascends = |pair: &[Unit]| pair[0].id < pair[1].id && pair[0].range().end <= pair[1].start;
        let ends_inside = units.last().is_some_and(|unit| unit.range().end <= layout.len());
        assert!(ends_inside && units.windows(2).all(ascends), "units of the layout, ascending");
        let mut plan = Self::of(spec, layout);
        plan.groups.truncate(1);
        plan.groups[0].units.clone_from(&units);
        plan.group_of = alloc::vec![0; units[units.len() - 1].id as usize + 1];
        plan.units = units;
        plan
    }

    /// The same, with frames of listed codecs encoded on the threads of the rayon pool in which the caller
    /// runs: see [`Parallel`](crate::Parallel), which has the same bits with any number of threads. Units
    /// with a density or rank of their own, and packets, are encoded on one thread. Received units are
    /// [added](Self::add_units) side by side.
    ///
    /// # Examples
    /// ```
    /// use gradwire::plan::Plan;
    /// use gradwire::{Encoder, Grad, LayoutRef, Source, Spec, StepInput, StepKey};
    ///
    /// let (grad, layout) = (vec![0.5; 100_000], LayoutRef::flat(100_000));
    /// let plan = || Plan::of(&Spec::parse("bf16").unwrap(), &layout);
    /// let (one, many) = (plan(), plan().on_threads());
    /// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
    /// let step = StepInput { key, layout: &layout, units: one.units(), grad: Grad::F32(&grad) };
    /// let encode = |plan: &Plan| {
    ///     Encoder::new().encode(plan.groups()[0].codec(), &step, None).unwrap().to_vec()
    /// };
    /// assert_eq!(encode(&many), encode(&one));
    /// ```
    #[cfg(feature = "parallel")]
    #[must_use]
    pub fn on_threads(mut self) -> Self {
        self.groups.iter_mut().for_each(|group| group.on_threads = true);
        self
    }

    /// Whether it works [on several threads](crate::Parallel).
    #[must_use]
    pub fn is_on_threads(&self) -> bool {
        #[cfg(feature = "parallel")]
        return self.groups.iter().any(|group| group.on_threads);
        #[cfg(not(feature = "parallel"))]
        false
    }

    /// Adds `weight` times every value of each unit of a frame to its own accumulator, as
    /// [`FrameUnit::add_scaled_to`] does: [on several threads](Self::is_on_threads), as many units at a time.
    /// The bits are the same.
    ///
    /// # Panics
    /// When an accumulator has another length than its unit.
    pub fn add_units(&self, weight: f32, units: Vec<(FrameUnit<'_>, &mut [f32])>) {
        #[cfg(feature = "parallel")]
        if self.is_on_threads() {
            return crate::owned::parallel::add_units(weight, units);
        }
        units.into_iter().for_each(|(unit, sum)| unit.add_scaled_to(weight, sum));
    }

    /// Whether the identifier of each unit is its position.
    pub(crate) fn counts_units(&self) -> bool {
        self.group_of.len() == self.units.len()
    }

    fn from_groups(groups: Vec<Group>, layout: &LayoutRef<'_>) -> Self {
        let of = |(position, group): (usize, &Group)| {
            group.units.iter().map(|unit| (*unit, position)).collect::<Vec<_>>()
        };
        let mut all: Vec<(Unit, usize)> = groups.iter().enumerate().flat_map(of).collect();
        all.sort_unstable_by_key(|(unit, _)| unit.id);
        let (units, group_of) = all.into_iter().unzip();
        Self { groups, units, group_of, fingerprint: layout.fingerprint() }
    }

    /// Every unit by frames of any codec, also one of [another crate](crate::experiments). The memory is the
    /// one that the codec needs; for experiments it is `Memory::new(vec![0.0; layout.len()])` or none. The
    /// codec stays as it is.
    #[must_use]
    pub fn of_gather<C: Gather + 'static>(codec: C, units: UnitPolicy, layout: &LayoutRef<'_>) -> Self {
        Self::of_method(Method::Gather(Box::new(codec), type_name::<C>()), units, layout)
    }

    /// Every unit by sums of any linear codec, also one of another crate. Units that are sent dense are plain
    /// sums. The codec stays as it is.
    #[must_use]
    pub fn of_linear<C: Linear + 'static>(codec: C, units: UnitPolicy, layout: &LayoutRef<'_>) -> Self {
        Self::of_method(Method::Linear(Box::new(codec), type_name::<C>()), units, layout)
    }

    fn of_method(method: Method, units: UnitPolicy, layout: &LayoutRef<'_>) -> Self {
        let mut plan = Self::of(&Spec { units, ..Spec::new(Codec::NONE) }, layout);
        plan.groups[0].method = method;
        plan
    }

    /// The groups, in the order of their rules; at least one.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The units of all groups, in the order of the layout. The identifier of each is its position, but for
    /// [units of one's own](Self::of_units).
    #[must_use]
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The group of a unit.
    ///
    /// # Panics
    /// For a unit of another plan.
    #[must_use]
    pub fn group_of(&self, unit: &Unit) -> &Group {
        &self.groups[self.group_of[unit.id as usize]]
    }

    /// The only group; `None` if there are several.
    #[must_use]
    pub fn only(&self) -> Option<&Group> {
        if let [group] = &self.groups[..] { Some(group) } else { None }
    }

    /// The rounds of a unit: see [`Group::rounds_of`].
    ///
    /// # Panics
    /// As it, and for a unit of another plan.
    #[must_use]
    pub fn rounds_of(&self, unit: &Unit) -> &dyn Linear {
        self.group_of(unit).rounds_of(unit)
    }

    /// Whether a memory is lent to the codec of a unit. One of several groups gets it if its spelling says
    /// so. The codec of the only group gets any memory, and refuses one that it has no use for. A unit that
    /// is sent whole gets none beside a codec that keeps [only a state](MemoryChoice::State): there is no
    /// residual for it.
    ///
    /// # Panics
    /// For a unit of another plan.
    #[must_use]
    pub fn lends_to(&self, unit: &Unit) -> bool {
        let group = self.group_of(unit);
        let has_residual = !unit.dense || group.spec.memory != MemoryChoice::State;
        has_residual && (self.only().is_some() || group.keeps())
    }

    /// # Panics
    /// If the plan is that of another layout.
    pub(crate) fn assert_for(&self, layout: &LayoutRef<'_>) {
        assert_eq!(self.fingerprint, layout.fingerprint(), "plan and layout differ");
    }
}

/// The unit that begins with a tensor.
fn unit(id: usize, spec: &Spec, tensor: &TensorRef<'_>) -> Unit {
    let len = tensor.checked_len().unwrap_or(0);
    Unit { id: id as u32, start: tensor.offset, len, dense: spec.units.is_dense(tensor.shape, len) }
}

impl Group {
    /// Whether the memory keeps anything of these tensors.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.spec.memory != MemoryChoice::None
    }

    /// The units of this group among some units of the plan, ascending. Copies them only if the plan has
    /// others between those.
    #[must_use]
    pub fn units_in(&self, part: &[Unit]) -> Cow<'_, [Unit]> {
        let (Some(first), Some(last)) = (part.first(), part.last()) else { return Cow::Borrowed(&[]) };
        let start = self.units.partition_point(|unit| unit.id < first.id);
        let end = self.units.partition_point(|unit| unit.id <= last.id);
        let between = &self.units[start..end];
        if (last.id - first.id) as usize + 1 == part.len() {
            return Cow::Borrowed(between);
        }
        let is_in = |unit: &&Unit| part.binary_search_by_key(&unit.id, |one| one.id).is_ok();
        Cow::Owned(between.iter().filter(is_in).copied().collect())
    }

    /// Adds a tensor to the last unit if it belongs to that unit. `follows` says whether the tensor before it
    /// is in this group.
    fn joins(&mut self, follows: bool, tensor: &TensorRef<'_>) -> bool {
        let next = unit(0, &self.spec, tensor);
        let may_join = follows && !self.spec.units.per_tensor;
        let Some(last) = self.units.last_mut().filter(|last| may_join && last.dense == next.dense) else {
            return false;
        };
        last.len += next.len;
        true
    }
}
