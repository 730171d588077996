//! Several spellings for one model: the name of a tensor says how it is sent.

mod pattern;

use crate::keys::SpecError;
use crate::keys::name::{Escaped, unescape};
use crate::registry::codecs::{AsUnitCodec, Codec};
use crate::spec::Spec;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Separates rules, and a pattern from its spelling.
const BETWEEN: char = ';';
const GIVES: char = '=';

/// The pattern of the last rule.
const ALL: &str = "*";

/// The pattern of tensor names that a rule is for, and how these tensors are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pattern: String,
    spec: Spec,
}

impl Rule {
    /// The pattern, as it is and not escaped.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// How the tensors are sent.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Whether the pattern fits a name.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        pattern::fits(&self.pattern, name)
    }
}

/// Rules by tensor name, in order: the first whose pattern fits a name says how that tensor is sent. The last
/// rule is for all tensors that no other fits.
///
/// They are spelled in one text: `PATTERN=SPELLING`, separated by `;`, and at the end a spelling alone. So a
/// single spelling is also a valid text of rules.
///
/// A pattern is that of Python's `fnmatch.fnmatchcase`: `*` stands for any text, `?` for any character,
/// `[abc]` and `[a-z]` for one of these, `[!abc]` for a character that is none of these. As in the names of a
/// spelling, `%`, `,`, `=`, `:`, `+`, `;`, white space and control characters are escaped: `dense:0` is
/// `dense%3A0`. White space around a rule is ignored. In a shell, put the whole text in single quotes.
///
/// ```text
/// rules   = *(pattern "=" spelling ";") [("*" "=")] spelling
/// pattern = 1*(character / escape)
/// ```
///
/// # Examples
/// ```
/// use gradwire::rules::Rules;
/// let rules = Rules::parse("*.bias=none; embed.*=topk:density=0.001; topk:density=0.01")?;
/// assert_eq!(rules.spec_of("layer1.bias").to_string(), "none");
/// assert_eq!(rules.spec_of("embed.bias").to_string(), "none");
/// assert_eq!(rules.spec_of("embed.weight").to_string(), "topk:density=0.001");
/// assert_eq!(rules.spec_of("layer1.weight").to_string(), "topk:density=0.01");
/// assert_eq!(rules.to_string(), "*.bias=none;embed.*=topk:density=0.001;topk:density=0.01");
///
/// let error = Rules::parse("embed.*=topk:density=7; topk").unwrap_err();
/// assert_eq!(error.to_string(), "rule 'embed.*=topk:density=7': density=7: expected a fraction from 1e-9 to 1");
/// # Ok::<(), gradwire::rules::RulesError<'static>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// At least one; the last is for all.
    rules: Vec<Rule>,
}

impl From<Spec> for Rules {
    /// One rule for all tensors. A codec that cannot be used in rules is refused when it encodes.
    fn from(spec: Spec) -> Self {
        Self { rules: alloc::vec![Rule { pattern: ALL.into(), spec }] }
    }
}

impl Rules {
    /// Reads rules.
    ///
    /// # Errors
    /// [`RulesError`], which names the rule and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, RulesError<'_>> {
        let mut rules = Self { rules: Vec::new() };
        let mut last = "";
        for rule in text.split(BETWEEN).map(str::trim) {
            last = rule;
            Rule::parse(rule).and_then(|rule| rules.push(rule)).map_err(|why| RulesError { rule, why })?;
        }
        rules.check_last(last)
    }

    /// Rules from patterns, not escaped, each with the spelling for its tensors. `others` is for all other
    /// tensors.
    ///
    /// # Errors
    /// As [`parse`](Self::parse); the rule is named by its pattern.
    ///
    /// # Examples
    /// ```
    /// use gradwire::Spec;
    /// use gradwire::rules::Rules;
    /// let rules = Rules::new(&[("dense:0", Spec::parse("none").unwrap())], Spec::parse("topk").unwrap()).unwrap();
    /// assert_eq!(rules.to_string(), "dense%3A0=none;topk:density=0.01");
    /// ```
    pub fn new<'a>(rules: &[(&'a str, Spec)], others: Spec) -> Result<Self, RulesError<'a>> {
        let mut all = Self { rules: Vec::new() };
        for &(rule, spec) in rules.iter().chain([&(ALL, others)]) {
            let parsed = (!rule.is_empty()).then(|| Rule { pattern: rule.into(), spec });
            let added = parsed.ok_or(RulesProblem::Pattern).and_then(|rule| all.push(rule));
            added.map_err(|why| RulesError { rule, why })?;
        }
        Ok(all)
    }

    /// Adds a rule after the others.
    fn push(&mut self, rule: Rule) -> Result<(), RulesProblem<'static>> {
        if self.rules.iter().any(|before| before.pattern == ALL || before.pattern == rule.pattern) {
            return Err(RulesProblem::NeverReached);
        }
        if let Some(why) = conflict(&rule.spec) {
            return Err(RulesProblem::Conflict(why));
        }
        self.rules.push(rule);
        Ok(())
    }

    /// Returns the rules, if the last one is for all tensors. `rule` is its text, for the error.
    fn check_last(self, rule: &str) -> Result<Self, RulesError<'_>> {
        let is_complete = self.rules.last().is_some_and(|rule| rule.pattern == ALL);
        if is_complete { Ok(self) } else { Err(RulesError { rule, why: RulesProblem::NotForAll }) }
    }

    /// The rules in order, at least one; the last is for all.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Position of the rule for a tensor of that name.
    pub(crate) fn position(&self, name: &str) -> usize {
        let others = self.rules.len() - 1;
        self.rules[..others].iter().position(|rule| rule.fits(name)).unwrap_or(others)
    }

    /// How the tensors are sent that no other rule fits: the last rule.
    #[must_use]
    pub fn others(&self) -> &Spec {
        &self.rules[self.rules.len() - 1].spec
    }

    /// How a tensor of that name is sent.
    #[must_use]
    pub fn spec_of(&self, name: &str) -> &Spec {
        &self.rules[self.position(name)].spec
    }

    /// The same rules as they are in an epoch, counted from 0: every codec at the density of its
    /// [warm-up](Spec::codec_in).
    #[must_use]
    pub fn in_epoch(&self, epoch: u64) -> Self {
        let in_epoch = |rule: &Rule| {
            let spec = Spec { codec: rule.spec.codec_in(epoch), ..rule.spec };
            Rule { pattern: rule.pattern.clone(), spec }
        };
        Self { rules: self.rules.iter().map(in_epoch).collect() }
    }
}

impl Rule {
    /// Reads one rule: a `=` before any `:` ends a pattern, because names of codecs hold none and patterns
    /// escape both.
    fn parse(text: &str) -> Result<Self, RulesProblem<'_>> {
        let at = text.find([GIVES, ':']).filter(|&at| text[at..].starts_with(GIVES));
        let (pattern, spelling) = at.map_or((ALL, text), |at| (&text[..at], &text[at + 1..]));
        if spelling.is_empty() {
            return Err(RulesProblem::Empty);
        }
        let pattern: Option<String> = unescape(pattern).collect();
        let pattern = pattern.filter(|pattern| !pattern.is_empty()).ok_or(RulesProblem::Pattern)?;
        let spec = Spec::parse(spelling).map_err(RulesProblem::Spec)?;
        Ok(Self { pattern, spec })
    }
}

/// Why a spelling cannot be a rule's, if it cannot.
fn conflict(spec: &Spec) -> Option<&'static str> {
    if matches!(spec.codec, Codec::Gossip(_)) {
        return Some("gossip mixes whole models: it cannot be a rule for some tensors");
    }
    if !spec.codec.as_unit_codec().capabilities().has_frames {
        return Some("this codec has rounds between all workers and no frames, so it cannot be a rule");
    }
    let other = spec.codec.as_unit_codec().as_experiment();
    if other.is_some_and(|other| other.shared().is_some()) {
        return Some("this codec has rounds before its frames, so it cannot be a rule");
    }
    spec.packets.map(|_| "max_packet_bytes: frames of rules are not cut into packets")
}

/// Prints the text that the rules are read from: patterns escaped, and the last rule without one.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (others, rules) = self.rules.split_last().ok_or(fmt::Error)?;
        for Rule { pattern, spec } in rules {
            write!(f, "{}{GIVES}{spec}{BETWEEN}", Escaped(pattern))?;
        }
        others.spec.fmt(f)
    }
}

/// Why a text is not valid rules: the rule, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RulesError<'a> {
    /// The rule as it was written.
    pub rule: &'a str,
    /// What is wrong with it.
    pub why: RulesProblem<'a>,
}

/// What is wrong with a rule.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesProblem<'a> {
    /// The spelling is missing.
    Empty,
    /// The pattern is empty or not well escaped.
    Pattern,
    /// The spelling was refused.
    Spec(SpecError<'a>),
    /// The spelling cannot be a rule's; the text says why.
    Conflict(&'static str),
    /// A rule before it has the same pattern, or is for all.
    NeverReached,
    /// It is the last, and is not for all.
    NotForAll,
}

impl fmt::Display for RulesProblem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("expected PATTERN=SPELLING, or at the end a spelling"),
            Self::Pattern => {
                f.write_str("expected a pattern of names, with % , = : + ; and spaces escaped as in %2C")
            }
            Self::Spec(error) => error.fmt(f),
            Self::Conflict(why) => f.write_str(why),
            Self::NeverReached => {
                f.write_str("never reached: a rule before it has its pattern, or is for all")
            }
            Self::NotForAll => f.write_str("the last rule must be for all other tensors: a spelling alone"),
        }
    }
}

impl fmt::Display for RulesError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule '{}': {}", self.rule, self.why)
    }
}

impl core::error::Error for RulesError<'_> {}
