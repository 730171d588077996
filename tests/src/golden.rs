//! The manifest of `golden/`: how each frame was made, and what it decodes to.
//!
//! | word | says |
//! | --- | --- |
//! | `file` | the frame is in `golden/FILE.bin` |
//! | `codec` | spelling; its memory and units are those of the frame |
//! | `layout` | shapes: tensors separated by `+`, dimensions by `x`, `-` for a scalar |
//! | `units` | units as `id:start:len` or `id:start:len:dense`, separated by `;`, where not those of the spelling |
//! | `seed` `step` `rank` | the key |
//! | `format` | of the gradient |
//! | `input` | the gradient, see [`Input`] |
//! | `residual` | what was kept back before; only with a memory |
//! | `values` | what an accumulator of zeros holds after the frame was added: exact bits, or a hash of many |
//! | `kept` | what is kept back after encoding, in the same way; only with a memory |
//!
//! To add a frame, append a line with `values=?` and run `cargo run -p gradwire-tests --bin golden`.

use crate::inputs::Input;
use crate::manifest::{self, Line};
use crate::naive;
use crate::run::{self, Gradient};
use gradwire::{EncodeError, Layout, MemoryChoice, Source, Spec, StepKey, Unit};

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
    /// What was kept back before.
    pub residual: Option<Vec<f32>>,
    /// Digest of the decoded values.
    pub values: String,
    /// Digest of what is kept back after.
    pub kept: Option<String>,
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
        let residual = (spec.memory == MemoryChoice::ErrorFeedback).then(|| vector("residual"));
        let values = line.value("values").to_owned();
        let kept = line.find("kept").map(str::to_owned);
        Self {
            name: line.value("file").to_owned(),
            spec,
            shapes,
            units,
            key,
            gradient,
            residual,
            values,
            kept,
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

    /// Frame and new residual as the crate under test makes them.
    ///
    /// # Errors
    /// As [`gradwire::Gather::encode`].
    pub fn encode(&self) -> Result<(Vec<u8>, Option<Vec<f32>>), EncodeError> {
        let mut residual = self.residual.clone();
        let layout = self.layout();
        let grad = self.gradient.as_grad();
        let codec = &self.spec.codec;
        let frame =
            run::encode(codec, self.key, &layout.as_ref(), &self.units, grad, residual.as_deref_mut(), 0)?;
        Ok((frame, residual))
    }

    /// Frame and new residual as the naive reference makes them.
    ///
    /// # Errors
    /// As [`naive::encode::encode`].
    pub fn encode_naively(&self) -> Result<naive::encode::Encoded, EncodeError> {
        naive::encode::encode(&naive::encode::Job {
            codec: &self.spec.codec,
            key: self.key,
            shapes: &self.shapes,
            units: &self.units,
            grad: &self.gradient.widened(),
            residual: self.residual.as_deref(),
        })
    }
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
