//! Groups of tensors that are sent in the same way: the result of applying rules to a layout.

use super::Rules;
use crate::gradient::layout::{LayoutRef, TensorRef};
use crate::gradient::unit::Unit;
use crate::keys::MemoryChoice;
use crate::spec::Spec;
use alloc::vec::Vec;

/// The tensors of a layout that one rule is for.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Position of the rule among all, from 0.
    pub rule: usize,
    /// How the tensors are sent.
    pub spec: Spec,
    /// Positions of the tensors in the layout, ascending.
    pub tensors: Vec<usize>,
    /// The units, ascending. Identifiers count the units of all groups by their place in the layout, so that
    /// no two groups share a random draw.
    pub units: Vec<Unit>,
}

impl Group {
    /// Whether the memory keeps a residual of these tensors.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.spec.memory != MemoryChoice::None
    }
}

/// A layout cut into groups by [`Rules`]: the groups in the order of their rules. A rule without tensors has
/// no group.
///
/// Within a group, the spelling says how tensors are cut into units. A unit is one range of the layout, so it
/// ends before a tensor of another group. With `unit=model`, a group has one unit for each run of
/// neighbouring tensors that are treated alike.
///
/// # Examples
/// ```
/// use gradwire::rules::Rules;
/// use gradwire::{LayoutRef, TensorRef};
/// let tensors = [
///     TensorRef { name: "a.weight", shape: &[4, 2], offset: 0 },
///     TensorRef { name: "a.bias", shape: &[4], offset: 8 },
///     TensorRef { name: "b.weight", shape: &[3, 4], offset: 12 },
/// ];
/// let layout = LayoutRef::new(&tensors).unwrap();
/// let groups = Rules::parse("*.bias=none; topk").unwrap().groups(&layout);
/// let numbers = |group: usize| groups.groups()[group].units.iter().map(|unit| unit.id).collect::<Vec<_>>();
/// assert_eq!((numbers(0), numbers(1)), (vec![1], vec![0, 2]));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    groups: Vec<Group>,
    unit_count: usize,
    fingerprint: u64,
}

impl Rules {
    /// The groups of a layout.
    #[must_use]
    pub fn groups(&self, layout: &LayoutRef<'_>) -> Groups {
        let empty = |rule, spec| Group { rule, spec, tensors: Vec::new(), units: Vec::new() };
        let rules = self.rules.iter().enumerate();
        let mut groups: Vec<Group> = rules.map(|(position, rule)| empty(position, rule.spec)).collect();
        let (mut before, mut unit_count) = (None, 0);
        for (position, tensor) in layout.tensors().enumerate() {
            let rule = self.position(tensor.name);
            let group = &mut groups[rule];
            group.tensors.push(position);
            if !group.joins(before == Some(rule), &tensor) {
                group.units.push(unit(unit_count, &group.spec, &tensor));
                unit_count += 1;
            }
            before = Some(rule);
        }
        if let Some(others) = groups.last_mut().filter(|_| unit_count == 0) {
            // A layout without tensors is one empty unit.
            others.units.push(Unit::whole(0));
            unit_count = 1;
        }
        groups.retain(|group| !group.units.is_empty());
        Groups { groups, unit_count, fingerprint: layout.fingerprint() }
    }
}

/// The unit that begins with a tensor.
fn unit(id: usize, spec: &Spec, tensor: &TensorRef<'_>) -> Unit {
    let len = tensor.checked_len().unwrap_or(0);
    Unit { id: id as u32, start: tensor.offset, len, dense: spec.units.is_dense(tensor.shape, len) }
}

impl Group {
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

impl Groups {
    /// The groups, in the order of their rules.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Number of units of all groups together; identifiers are below this.
    #[must_use]
    pub fn unit_count(&self) -> usize {
        self.unit_count
    }

    /// # Panics
    /// If the groups are those of another layout.
    pub(crate) fn assert_for(&self, layout: &LayoutRef<'_>) {
        assert_eq!(self.fingerprint, layout.fingerprint(), "groups and layout differ");
    }
}
