//! The manifest of `golden/rounds/`: what the workers of a few steps send in each round, and the memories
//! that they keep. `golden/README.md` explains the words.

use crate::inputs::Input;
use crate::manifest::{self, Line};
use crate::rounds::{self, Worker};
use crate::run;
use gradwire::registry::{GossipCodec, LinearCodec};
use gradwire::rounds::{Edge, Reduction, Turn};
use gradwire::{Codec, Layout, LayoutRef, Memory, Source, Spec, StepKey, Unit};

/// Steps of several workers: all that makes their payloads.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name of the file, without its ending.
    pub name: String,
    /// The codec.
    pub spec: Spec,
    /// Shapes of the layout.
    pub shapes: Vec<Vec<usize>>,
    /// Names the draws of the first step, but for the rank.
    pub key: StepKey,
    /// How many steps there are.
    pub steps: usize,
    /// How many workers there are.
    pub workers: usize,
    /// Gradients of step after step, in each of worker after worker; or with gossip the two models.
    pub input: Input,
}

/// What the steps make.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Of each round its reduction, and the elements of a payload: the word `rounds`.
    pub rounds: Vec<String>,
    /// The file: payloads of step after step, in each of unit after unit, round after round and worker after
    /// worker.
    pub bytes: Vec<u8>,
    /// The mean of the last step; or with gossip what the edge keeps after it.
    pub values: Vec<f32>,
    /// The memory of each worker, if there are any.
    pub memories: Vec<Memory<'static>>,
}

impl Outcome {
    /// Adds a round of these payloads, a word for each element.
    fn add<'p>(&mut self, reduction: &str, payloads: impl Iterator<Item = &'p [u32]>) {
        let mut elements = 0;
        for payload in payloads {
            elements = payload.len();
            self.bytes.extend(payload.iter().flat_map(|word| word.to_le_bytes()));
        }
        self.rounds.push(format!("{reduction}:{elements}"));
    }

    fn add_rounds(&mut self, workers: &[Worker]) {
        for (at, &(reduction, _)) in workers[0].sent().iter().enumerate() {
            let name = match reduction {
                Reduction::SumF32 => "sum-f32",
                Reduction::SumI32 => "sum-i32",
                Reduction::MaxF32 => "max-f32",
                Reduction::And => "and-u32",
                _ => panic!("a reduction of no codec here"),
            };
            self.add(name, workers.iter().map(|worker| &worker.sent()[at].1[..]));
        }
    }
}

impl Golden {
    /// # Panics
    /// When a word is missing or not understood.
    #[must_use]
    pub fn new(line: &Line) -> Self {
        let spelling = line.value("codec");
        Self {
            name: line.value("file").to_owned(),
            spec: Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}")),
            shapes: manifest::shapes(line.value("layout")),
            key: StepKey { seed: line.number("seed"), step: line.number("step"), source: Source::Shared },
            steps: line.number("steps") as usize,
            workers: line.number("workers") as usize,
            input: Input::parse(line.value("input")).unwrap_or_else(|error| panic!("{error}")),
        }
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> Layout {
        run::layout(&self.shapes)
    }

    /// Runs all steps.
    ///
    /// # Panics
    /// When a codec has frames alone, or refuses the input.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let layout = self.layout();
        if let Codec::Gossip(codec) = &self.spec.codec {
            return self.mixed(codec, &layout.as_ref());
        }
        let codec = self.spec.codec.as_linear();
        self.reduced(&codec.unwrap_or_else(|| panic!("{} has no rounds", self.spec)), &layout.as_ref())
    }

    fn key(&self, step: usize) -> StepKey {
        StepKey { step: self.key.step + step as u64, ..self.key }
    }

    fn reduced(&self, codec: &LinearCodec, layout: &LayoutRef<'_>) -> Outcome {
        let (n, units) = (layout.len(), self.spec.units.units(layout).collect::<Vec<_>>());
        let memories = (0..self.workers).filter_map(|_| Memory::for_spec(&self.spec, layout)).collect();
        let mut outcome = Outcome { values: vec![0.0; n], memories, ..Outcome::default() };
        let grads = self.input.values(self.steps * self.workers * n);
        for (step, grads) in grads.chunks(self.workers * n).enumerate() {
            for unit in &units {
                let (codec, memories) = (codec.rounds_of(unit), &mut outcome.memories);
                let parts: Vec<_> = grads.chunks(n).map(|grad| grad[unit.range()].to_vec()).collect();
                let mut workers = rounds::begin(codec, self.key(step), layout, unit, &parts, memories);
                let (mean, _) = rounds::finish(codec, layout, &mut workers, memories, false);
                outcome.values[unit.range()].copy_from_slice(&mean);
                outcome.add_rounds(&workers);
            }
        }
        outcome
    }

    /// Of two workers, ranks 0 and 1, with a weight of 1/2.
    fn mixed(&self, codec: &GossipCodec, layout: &LayoutRef<'_>) -> Outcome {
        let (codec, edge) = (codec.rounds(), Edge { low: 0, high: 1 });
        let units: Vec<Unit> = self.spec.units.units(layout).collect();
        let kept_len = |unit: &Unit| codec.kept_len(layout, unit);
        let mut kept = [(); 2].map(|()| vec![0.0; units.iter().map(kept_len).sum()]);
        let mut models = self.input.values(2 * layout.len());
        let (low, high) = models.split_at_mut(layout.len());
        let mut outcome = Outcome::default();
        for step in 0..self.steps {
            let mut first = 0;
            for unit in &units {
                let at = Turn { key: self.key(step), edge, is_low: true, layout, unit, round: 0 };
                let part = first..first + kept_len(unit);
                let kept = kept.each_mut().map(|kept| &mut kept[part.clone()]);
                let models = [&mut low[unit.range()], &mut high[unit.range()]];
                for payloads in rounds::gossip(codec, at, models, kept) {
                    let words = payloads.map(|payload| run::bits(&payload));
                    outcome.add("edge-f32", words.iter().map(Vec::as_slice));
                }
                first = part.end;
            }
        }
        let [kept, _] = kept;
        Outcome { values: kept, ..outcome }
    }
}

/// The bytes of a file of the folder.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn file(name: &str) -> Vec<u8> {
    let path = manifest::folder(FOLDER).join(format!("{name}.bin"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folder, beside the manifest of this package.
pub const FOLDER: &str = "golden/rounds";

/// The lines of payloads, or of the memories after them.
#[must_use]
pub fn lines(reader: &str) -> Vec<Line> {
    let lines = manifest::lines(&manifest::folder(FOLDER));
    lines.into_iter().filter(|line| line.value("reader") == reader).collect()
}

/// The memory that the line of a memory is about, as the steps leave it.
///
/// # Panics
/// When there are no such steps, or no such memory.
#[must_use]
pub fn kept(line: &Line) -> (Golden, Memory<'static>) {
    let steps = lines("rounds").into_iter().find(|steps| steps.value("file") == line.value("after"));
    let steps = Golden::new(&steps.unwrap_or_else(|| panic!("no steps before {line:?}")));
    let memory = steps.run().memories.swap_remove(line.number("rank") as usize);
    (steps, memory)
}

/// A memory as bytes.
///
/// # Panics
/// When it is that of another layout.
#[must_use]
pub fn saved(memory: &Memory<'_>, layout: &LayoutRef<'_>) -> Vec<u8> {
    let mut bytes = vec![0xa5; memory.saved_bytes().expect("it fits the address space")];
    assert_eq!(memory.save(layout, &mut bytes), Ok(bytes.len()));
    bytes
}

/// All values of a memory: of the residual, the momentum, the factors and the arrays.
#[must_use]
pub fn contents(memory: &Memory<'_>) -> Vec<f32> {
    let arrays = memory.arrays().iter().filter_map(|array| memory.array(array.name));
    let momentum = memory.momentum().unwrap_or_default();
    [memory.residual(), momentum, memory.factors()].into_iter().chain(arrays).flatten().copied().collect()
}
