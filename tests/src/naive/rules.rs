//! Rules by tensor name: groups of tensors, and a frame for each.

use super::encode::{Encoded, Job, encode};
use crate::run::Kept;
use gradwire::rules::{Rule, Rules};
use gradwire::state::MemoryChoice;
use gradwire::{EncodeError, StepKey, Unit};

/// Whether a pattern of `*`, `?` and simple sets fits a name.
#[must_use]
pub fn fits(pattern: &[char], name: &[char]) -> bool {
    let rest = |behind: usize| !name.is_empty() && fits(&pattern[behind..], &name[1..]);
    match pattern.first() {
        None => name.is_empty(),
        Some('*') => (0..=name.len()).any(|taken| fits(&pattern[1..], &name[taken..])),
        Some('?') => rest(1),
        Some('[') => {
            let end = pattern.iter().position(|&c| c == ']').expect("sets of the tests are closed");
            name.first().is_some_and(|&c| is_in(&pattern[1..end], c)) && rest(end + 1)
        }
        Some(c) => name.first() == Some(c) && rest(1),
    }
}

fn is_in(set: &[char], c: char) -> bool {
    match set {
        ['!', others @ ..] => !is_in(others, c),
        [low, '-', high] => *low <= c && c <= *high,
        _ => set.contains(&c),
    }
}

/// One group: its rule, and its units with their numbers in the whole model.
#[derive(Clone, Debug)]
pub struct Group<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The units.
    pub units: Vec<Unit>,
}

/// The groups of tensors with these names and shapes, in the order of their rules.
#[must_use]
pub fn groups<'r>(rules: &'r Rules, names: &[String], shapes: &[Vec<usize>]) -> Vec<Group<'r>> {
    let chars = |text: &str| text.chars().collect::<Vec<_>>();
    let rule_of = |name: &str| {
        let rules = rules.rules().iter();
        rules.enumerate().find(|(_, rule)| fits(&chars(rule.pattern()), &chars(name))).expect("a last rule").0
    };
    // Rule and unit of each tensor, and whether it may be one with its neighbour; then neighbours are joined.
    let mut start = 0;
    let mut units: Vec<(usize, Unit)> = Vec::new();
    for (name, shape) in names.iter().zip(shapes) {
        let (rule, len) = (rule_of(name), shape.iter().product());
        let policy = rules.rules()[rule].spec().units;
        let dense = len < policy.dense_below || policy.dense_1d && shape.len() <= 1;
        match units.last_mut() {
            Some((before, unit)) if *before == rule && unit.dense == dense && !policy.per_tensor => {
                unit.len += len;
            }
            _ => units.push((rule, Unit { id: units.len() as u32, start, len, dense })),
        }
        start += len;
    }
    if units.is_empty() {
        units.push((rules.rules().len() - 1, Unit::whole(0)));
    }
    let of_rule = |rule| units.iter().filter(|unit| unit.0 == rule).map(|unit| unit.1).collect::<Vec<_>>();
    let groups = rules.rules().iter().enumerate().map(|(i, rule)| Group { rule, units: of_rule(i) });
    groups.filter(|group| !group.units.is_empty()).collect()
}

/// The frames of all groups, what they decode to together, and what is kept.
///
/// # Errors
/// As [`encode`], of the first group that has one.
pub fn frames(
    groups: &[Group<'_>],
    key: StepKey,
    shapes: &[Vec<usize>],
    grad: &[f32],
    before: Option<&Kept>,
) -> Result<Encoded, EncodeError> {
    let mut all = Encoded { frame: vec![], decoded: vec![0.0; grad.len()], kept: before.cloned() };
    for Group { rule, units } in groups {
        let keeps = rule.spec().memory != MemoryChoice::None;
        let before = all.kept.clone().filter(|_| keeps);
        let codec = &rule.spec().codec;
        let own = encode(&Job { codec, key, shapes, units, grad, before: before.as_ref() })?;
        all.frame.extend(own.frame);
        all.decoded.iter_mut().zip(own.decoded).for_each(|(sum, value)| *sum += value);
        all.kept = if keeps { own.kept } else { all.kept };
    }
    Ok(all)
}
