//! The manifest of `messages/`: gradients of which the tensors fall under several rules, as the frames of all
//! groups. `golden/README.md` explains the words.

use crate::golden::{parse_states, spelled_states};
use crate::inputs::Input;
use crate::manifest::{self, Line, digest};
use crate::naive;
use crate::run::{self, Gradient, Kept};
use gradwire::plan::Plan;
use gradwire::rules::Rules;
use gradwire::state::{MemoryChoice, UnitState};
use gradwire::{Decoder, EncodeError, Encoder, Layout, Source, StepInput, StepKey};

/// A gradient and its rules: everything that encoding it needs.
#[derive(Clone, Debug)]
pub struct Message {
    /// Name of the file, without its ending.
    pub name: String,
    /// The rules.
    pub rules: Rules,
    /// Names of the tensors.
    pub names: Vec<String>,
    /// Shapes of the tensors.
    pub shapes: Vec<Vec<usize>>,
    /// Names the draws.
    pub key: StepKey,
    /// The gradient.
    pub gradient: Gradient,
    /// What the memory held before.
    pub before: Option<Kept>,
}

/// What encoding a message makes: the words of its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// How many frames there are.
    pub frames: usize,
    /// Digest of the decoded values.
    pub values: String,
    /// Digest of what is kept back after.
    pub kept: Option<String>,
    /// Digest of the momentum after.
    pub kept_momentum: Option<String>,
    /// Words of the states after.
    pub kept_states: Option<String>,
}

/// A layout of tensors with these names and shapes.
///
/// # Panics
/// When they do not fit the address space.
#[must_use]
pub fn layout(names: &[String], shapes: &[Vec<usize>]) -> Layout {
    let tensors = names.iter().cloned().zip(shapes.iter().cloned());
    Layout::packed(tensors).expect("shapes fit the address space")
}

/// The memory that the groups ask for, as its parts; `None` where nothing is kept.
#[must_use]
pub fn kept(groups: &Plan, n: usize) -> Option<Kept> {
    let keeping: Vec<_> = groups.groups().iter().filter(|group| group.keeps()).collect();
    let has_momentum = keeping.iter().any(|group| group.spec.memory == MemoryChoice::Momentum);
    let adapts = keeping.iter().any(|group| group.spec.codec.capabilities().adapts);
    (!keeping.is_empty()).then(|| Kept {
        residual: vec![0.0; n],
        momentum: has_momentum.then(|| vec![0.0; n]),
        states: vec![UnitState::default(); if adapts { groups.units().len() } else { 0 }],
    })
}

impl Message {
    /// # Panics
    /// When a word is missing or not understood.
    #[must_use]
    pub fn new(line: &Line) -> Self {
        let rules = Rules::parse(line.value("rules")).unwrap_or_else(|error| panic!("{error}"));
        let names: Vec<String> = line.value("names").split('+').map(str::to_owned).collect();
        let shapes = manifest::shapes(line.value("layout"));
        assert_eq!(names.len(), shapes.len(), "a name for each shape");
        let layout = layout(&names, &shapes);
        let vector = |key| {
            Input::parse(line.value(key)).unwrap_or_else(|error| panic!("{error}")).values(layout.len())
        };
        let before = kept(&Plan::of_rules(&rules, &layout.as_ref()), layout.len()).map(|kept| Kept {
            residual: vector("residual"),
            momentum: kept.momentum.map(|_| vector("momentum")),
            states: line.find("states").map_or(kept.states, parse_states),
        });
        let source = Source::Rank(line.number("rank") as u32);
        Self {
            name: line.value("file").to_owned(),
            rules,
            names,
            shapes,
            key: StepKey { seed: line.number("seed"), step: line.number("step"), source },
            gradient: Gradient::new(line.value("format"), &vector("input")),
            before,
        }
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> Layout {
        layout(&self.names, &self.shapes)
    }

    /// The bytes of the file.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let path = manifest::folder("messages").join(format!("{}.bin", self.name));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Frames and new memory as the crate under test makes them.
    ///
    /// # Errors
    /// As [`Encoder::encode_plan`].
    pub fn encode(&self) -> Result<(Vec<u8>, Option<Kept>), EncodeError> {
        let (layout, mut kept) = (self.layout(), self.before.clone());
        let groups = Plan::of_rules(&self.rules, &layout.as_ref());
        let mut memory = kept.as_mut().map(Kept::lend);
        let mut encoder = Encoder::new();
        let grad = self.gradient.as_grad();
        let input = StepInput { key: self.key, layout: &layout.as_ref(), units: groups.units(), grad };
        let bytes = encoder.encode_plan(&groups, &input, memory.as_mut())?.to_vec();
        Ok((bytes, kept))
    }

    /// The same as the naive reference makes them.
    ///
    /// # Errors
    /// As [`naive::rules::frames`].
    pub fn encode_naively(&self) -> Result<naive::encode::Encoded, EncodeError> {
        let groups = naive::rules::groups(&self.rules, &self.names, &self.shapes);
        let grad = self.gradient.widened();
        naive::rules::frames(&groups, self.key, &self.shapes, &grad, self.before.as_ref())
    }

    /// What the line says, of these frames and this memory.
    ///
    /// # Panics
    /// When the frames are refused.
    #[must_use]
    pub fn outcome(&self, bytes: &[u8], kept: Option<&Kept>) -> Outcome {
        let (layout, mut decoder) = (self.layout(), Decoder::new());
        let (layout, groups) = (layout.as_ref(), Plan::of_rules(&self.rules, &layout.as_ref()));
        let frames = decoder.parse_plan(&groups, groups.units(), bytes, &layout, &run::no_limits());
        let frames = frames.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let mut values = vec![0.0; layout.len()];
        frames.add_scaled_to(1.0, &mut values);
        let states = kept.filter(|kept| !kept.states.is_empty());
        Outcome {
            frames: frames.frames().len(),
            values: digest(&values),
            kept: kept.map(|kept| digest(&kept.residual)),
            kept_momentum: kept.and_then(|kept| kept.momentum.as_deref()).map(digest),
            kept_states: states.map(|kept| spelled_states(&kept.states)),
        }
    }
}

impl Outcome {
    /// What a complete line says.
    #[must_use]
    pub fn stated(line: &Line) -> Self {
        let text = |key| line.find(key).map(str::to_owned);
        let (values, frames) = (line.value("values").to_owned(), line.number("frames") as usize);
        let (kept_momentum, kept_states) = (text("kept_momentum"), text("kept_states"));
        Self { frames, values, kept: text("kept"), kept_momentum, kept_states }
    }

    /// Completes a line.
    pub fn write(self, line: &mut Line) {
        line.set("values", self.values);
        line.set("frames", self.frames.to_string());
        let words =
            [("kept", self.kept), ("kept_momentum", self.kept_momentum), ("kept_states", self.kept_states)];
        for (key, value) in words {
            if let Some(value) = value {
                line.set(key, value);
            }
        }
    }
}

/// All messages, and what their lines say.
#[must_use]
pub fn all() -> Vec<(Message, Outcome)> {
    let lines = manifest::lines(&manifest::folder("messages"));
    lines.iter().map(|line| (Message::new(line), Outcome::stated(line))).collect()
}
