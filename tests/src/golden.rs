//! The manifest of `golden/`: how each frame was made, and what it decodes to. `golden/README.md` explains
//! the words.

use crate::inputs::Input;
use crate::manifest::{self, Line, digest};
use crate::naive;
use crate::run::{self, Gradient, Kept};
use gradwire::format::Divisor;
use gradwire::state::{MemoryChoice, UnitState};
use gradwire::{EncodeError, Layout, Source, Spec, StepKey, Unit};

/// One golden frame: everything that encoding it needs.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name of the file, without its ending.
    pub name: String,
    /// The codec.
    pub spec: Spec,
    /// Shapes of the layout.
    pub shapes: Vec<Vec<usize>>,
    /// Units of the message.
    pub units: Vec<Unit>,
    /// Names the draws.
    pub key: StepKey,
    /// The gradient.
    pub gradient: Gradient,
    /// What the memory held before.
    pub before: Option<Kept>,
    /// Which packet is in the file, where the gradient is cut.
    pub packet: Option<usize>,
    /// The mean that the frame asks for.
    pub divisor: Divisor,
    /// Digest of the decoded values.
    pub values: String,
    /// Digest of what is kept back after.
    pub kept: Option<String>,
    /// Digest of the momentum after.
    pub kept_momentum: Option<String>,
    /// Words of the states after.
    pub kept_states: Option<String>,
}

impl Golden {
    /// # Panics
    /// When a word is missing or not understood.
    #[must_use]
    pub fn new(line: &Line) -> Self {
        let spelling = line.value("codec");
        let spec = Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"));
        let shapes = manifest::shapes(line.value("layout"));
        let layout = run::layout(&shapes);
        let units = match line.find("units") {
            Some(units) => units.split(';').map(parse_unit).collect(),
            None => spec.units.units(&layout.as_ref()).collect(),
        };
        let key = StepKey {
            seed: line.number("seed"),
            step: line.number("step"),
            source: Source::Rank(line.number("rank") as u32),
        };
        let vector = |key| {
            Input::parse(line.value(key)).unwrap_or_else(|error| panic!("{error}")).values(layout.len())
        };
        let gradient = Gradient::new(line.value("format"), &vector("input"));
        let before = (spec.memory != MemoryChoice::None).then(|| Kept {
            residual: vector("residual"),
            momentum: (spec.memory == MemoryChoice::Momentum).then(|| vector("momentum")),
            states: line.find("states").map_or_else(Vec::new, parse_states),
        });
        let values = line.value("values").to_owned();
        let text = |key| line.find(key).map(str::to_owned);
        let (kept, kept_momentum, kept_states) = (text("kept"), text("kept_momentum"), text("kept_states"));
        let packet = spec.packets.map(|_| line.number("packet") as usize);
        let divisor = match line.find("divisor") {
            None => Divisor::Contributors,
            Some("senders") => Divisor::Senders,
            Some(other) => panic!("divisor '{other}'"),
        };
        Self {
            name: line.value("file").to_owned(),
            spec,
            shapes,
            units,
            key,
            gradient,
            before,
            packet,
            divisor,
            values,
            kept,
            kept_momentum,
            kept_states,
        }
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> Layout {
        run::layout(&self.shapes)
    }

    /// The bytes of the file.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let path = manifest::folder("golden").join(format!("{}.bin", self.name));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Whether this is what the memory holds after encoding.
    #[must_use]
    pub fn keeps(&self, kept: Option<&Kept>) -> bool {
        let momentum = kept.and_then(|kept| kept.momentum.as_deref()).map(digest);
        let states = kept.filter(|kept| !kept.states.is_empty()).map(|kept| spelled_states(&kept.states));
        kept.map(|kept| digest(&kept.residual)) == self.kept
            && momentum == self.kept_momentum
            && states == self.kept_states
    }

    /// Frame and new memory as the crate under test makes them.
    ///
    /// # Errors
    /// As [`gradwire::Gather::encode`].
    pub fn encode(&self) -> Result<(Vec<u8>, Option<Kept>), EncodeError> {
        let mut kept = self.before.clone();
        let layout = self.layout();
        let grad = self.gradient.as_grad();
        let codec = &self.spec.codec;
        let (layout, mut memory) = (layout.as_ref(), kept.as_mut().map(Kept::lend));
        let (units, memory) = (&self.units, memory.as_mut());
        let mut frame = match (self.spec.packets, self.packet) {
            (Some(size), Some(packet)) => {
                run::packets_with(codec, self.key, &layout, units, grad, memory, size)?.swap_remove(packet)
            }
            _ => run::encode_with(codec, self.key, &layout, units, grad, memory, 0)?,
        };
        if self.divisor != Divisor::Contributors {
            self.divisor.write_to(&mut frame).expect("a frame that was just written");
        }
        Ok((frame, kept))
    }

    /// Frame and new residual as the naive reference makes them.
    ///
    /// # Errors
    /// As [`naive::encode::encode`].
    pub fn encode_naively(&self) -> Result<naive::encode::Encoded, EncodeError> {
        let job = naive::encode::Job {
            codec: &self.spec.codec,
            key: self.key,
            shapes: &self.shapes,
            units: &self.units,
            grad: &self.gradient.widened(),
            before: self.before.as_ref(),
        };
        let mut encoded = naive::encode::encode(&job)?;
        if let (Some(size), Some(packet)) = (self.spec.packets, self.packet) {
            encoded.frame = naive::encode::packets(&job, size.bytes()).swap_remove(packet);
        }
        if self.divisor == Divisor::Senders {
            encoded.frame[4] = 1;
            naive::header::patch_checksum(&mut encoded.frame);
        }
        Ok(encoded)
    }
}

/// Reads `states`.
///
/// # Panics
/// When a word is not a number.
#[must_use]
pub fn parse_states(text: &str) -> Vec<UnitState> {
    let word = |word| u32::from_str_radix(word, 16).unwrap_or_else(|_| panic!("states '{text}'"));
    let words: Vec<u32> = text.split(',').map(word).collect();
    words.as_chunks().0.iter().map(|&words| UnitState::from_words(words)).collect()
}

/// As `states` is written.
#[must_use]
pub fn spelled_states(states: &[UnitState]) -> String {
    let words = states.iter().flat_map(|state| state.words());
    words.map(|word| format!("{word:x}")).collect::<Vec<_>>().join(",")
}

fn parse_unit(text: &str) -> Unit {
    let mut words = text.split(':');
    let mut number = || {
        words.next().and_then(|word| word.parse::<usize>().ok()).unwrap_or_else(|| panic!("unit '{text}'"))
    };
    let (id, start, len) = (number() as u32, number(), number());
    Unit { id, start, len, dense: words.next() == Some("dense") }
}

/// All golden frames.
#[must_use]
pub fn all() -> Vec<Golden> {
    manifest::lines(&manifest::folder("golden")).iter().map(Golden::new).collect()
}
