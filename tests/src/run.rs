//! Encoding and decoding through the public interface that needs no heap, in buffers of exactly the stated
//! size.

use gradwire::format::frame_scratch_len;
use gradwire::half::{bf16, f16};
use gradwire::packets::PacketSize;
use gradwire::state::{MemoryChoice, UnitState};
use gradwire::{
    Codec, DecodeError, EncodeError, Frame, Gather, Grad, Layout, LayoutRef, Limits, Memory, Scratch, Spec,
    StepInput, StepKey, Unit,
};

/// A gradient in one of the formats that encode takes.
#[derive(Clone, Debug)]
pub enum Gradient {
    /// Single precision.
    F32(Vec<f32>),
    /// Half precision.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
}

impl Gradient {
    /// `values` rounded to the format with this name.
    ///
    /// # Panics
    /// When there is no such format.
    #[must_use]
    pub fn new(format: &str, values: &[f32]) -> Self {
        match format {
            "f32" => Self::F32(values.to_vec()),
            "f16" => Self::F16(values.iter().map(|&value| f16::from_f32(value)).collect()),
            "bf16" => Self::Bf16(values.iter().map(|&value| bf16::from_f32(value)).collect()),
            _ => panic!("unknown format '{format}'"),
        }
    }

    /// As encode takes it.
    #[must_use]
    pub fn as_grad(&self) -> Grad<'_> {
        match self {
            Self::F32(values) => Grad::F32(values),
            Self::F16(values) => Grad::F16(values),
            Self::Bf16(values) => Grad::Bf16(values),
        }
    }

    /// As f32, which is exact.
    #[must_use]
    pub fn widened(&self) -> Vec<f32> {
        match self {
            Self::F32(values) => values.clone(),
            Self::F16(values) => values.iter().map(|value| value.to_f32()).collect(),
            Self::Bf16(values) => values.iter().map(|value| value.to_f32()).collect(),
        }
    }
}

/// A layout of tensors with these shapes.
///
/// # Panics
/// When they do not fit the address space.
#[must_use]
pub fn layout(shapes: &[Vec<usize>]) -> Layout {
    Layout::packed(shapes.iter().map(|shape| ("t", shape.clone()))).expect("shapes fit the address space")
}

/// What a memory holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// The residual.
    pub residual: Vec<f32>,
    /// The momentum, if the memory holds it.
    pub momentum: Option<Vec<f32>>,
    /// The states of the units.
    pub states: Vec<UnitState>,
}

impl Kept {
    /// The memory that the spelling asks for, `n` zeros; `None` where it keeps nothing.
    #[must_use]
    pub fn new(spec: &Spec, n: usize, units: &[Unit]) -> Option<Self> {
        let states = units.last().map_or(0, |unit| unit.id as usize + 1);
        (spec.memory != MemoryChoice::None).then(|| Self {
            residual: vec![0.0; n],
            momentum: (spec.memory == MemoryChoice::Momentum).then(|| vec![0.0; n]),
            states: vec![UnitState::default(); if spec.codec.capabilities().adapts { states } else { 0 }],
        })
    }

    /// As encode takes it.
    pub fn lend(&mut self) -> Memory<'_> {
        let memory = Memory::new(&mut self.residual).with_states(&mut self.states);
        match &mut self.momentum {
            Some(momentum) => memory.with_momentum(momentum),
            None => memory,
        }
    }

    /// All of it as words, for comparisons that tell zeros apart.
    #[must_use]
    pub fn words(&self) -> Vec<u32> {
        let floats = self.residual.iter().chain(self.momentum.iter().flatten());
        let states = self.states.iter().flat_map(|state| state.words());
        floats.map(|value| value.to_bits()).chain(states).collect()
    }
}

/// What stands in every buffer before it is used.
const FILL: u8 = 0xa5;

/// Encodes into a buffer of exactly `max_frame_bytes`, filled with 0xa5, with exactly `scratch_len` of dirty
/// scratch memory and `more` elements on top.
///
/// # Errors
/// As [`Gather::encode`].
///
/// # Panics
/// When a bound overflows.
pub fn encode(
    codec: &Codec,
    key: StepKey,
    layout: &LayoutRef<'_>,
    units: &[Unit],
    grad: Grad<'_>,
    residual: Option<&mut [f32]>,
    more: usize,
) -> Result<Vec<u8>, EncodeError> {
    let mut memory = residual.map(Memory::new);
    encode_with(codec, key, layout, units, grad, memory.as_mut(), more)
}

/// The same with a memory of any parts.
///
/// # Errors
/// As [`Gather::encode`].
///
/// # Panics
/// When a bound overflows.
pub fn encode_with(
    codec: &Codec,
    key: StepKey,
    layout: &LayoutRef<'_>,
    units: &[Unit],
    grad: Grad<'_>,
    memory: Option<&mut Memory<'_>>,
    more: usize,
) -> Result<Vec<u8>, EncodeError> {
    let needed = codec.scratch_len(units);
    let mut words = vec![u32::from_le_bytes([FILL; 4]); needed.words + more];
    let mut bytes = vec![FILL; needed.bytes + more];
    let mut out = vec![FILL; codec.max_frame_bytes(units).expect("the bound fits the address space")];
    let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
    let written = codec.encode(&StepInput { key, layout, units, grad }, memory, &mut scratch, &mut out)?;
    out.truncate(written);
    Ok(out)
}

/// All packets, drawn into a buffer of exactly the packet size, filled with 0xa5, with exactly
/// `packet_scratch_len` of dirty scratch memory.
///
/// # Errors
/// As [`Gather::packets`].
pub fn packets(
    codec: &Codec,
    key: StepKey,
    layout: &LayoutRef<'_>,
    units: &[Unit],
    grad: Grad<'_>,
    residual: Option<&mut [f32]>,
    size: PacketSize,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    let mut memory = residual.map(Memory::new);
    packets_with(codec, key, layout, units, grad, memory.as_mut(), size)
}

/// The same with a memory of any parts.
///
/// # Errors
/// As [`Gather::packets`].
pub fn packets_with(
    codec: &Codec,
    key: StepKey,
    layout: &LayoutRef<'_>,
    units: &[Unit],
    grad: Grad<'_>,
    memory: Option<&mut Memory<'_>>,
    size: PacketSize,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    let needed = codec.packet_scratch_len(units, size);
    let mut words = vec![u32::from_le_bytes([FILL; 4]); needed.words];
    let mut bytes = vec![FILL; needed.bytes];
    let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
    let mut packets = codec.packets(&StepInput { key, layout, units, grad }, memory, &mut scratch, size)?;
    let draw = || {
        let mut out = vec![FILL; size.bytes()];
        let written = packets.next_into(&mut out)?;
        out.truncate(written);
        Some(out)
    };
    Ok(std::iter::from_fn(draw).collect())
}

/// Parses in dirty scratch memory of exactly `frame_scratch_len` and hands the frame to `then`.
///
/// # Errors
/// As [`Frame::parse`].
pub fn parse<T>(
    bytes: &[u8],
    layout: &LayoutRef<'_>,
    limits: &Limits,
    then: impl FnOnce(&Frame<'_>) -> T,
) -> Result<T, DecodeError> {
    let mut words = vec![u32::from_le_bytes([FILL; 4]); frame_scratch_len(bytes, layout, limits)?];
    Frame::parse(bytes, layout, limits, &mut words).map(|frame| then(&frame))
}

/// Limits that stand in nobody's way, for tests of other things.
#[must_use]
pub fn no_limits() -> Limits {
    Limits {
        max_elements: usize::MAX,
        max_body_bytes: usize::MAX,
        max_entries: usize::MAX,
        max_units: usize::MAX,
        max_scratch_words: usize::MAX,
        max_magnitude: f32::MAX,
    }
}

/// What an accumulator of zeros holds after the frame was added with weight 1.
///
/// # Errors
/// As [`Frame::parse`].
pub fn decode(bytes: &[u8], layout: &LayoutRef<'_>) -> Result<Vec<f32>, DecodeError> {
    let mut sum = vec![0.0; layout.len()];
    parse(bytes, layout, &no_limits(), |frame| frame.add_scaled_to(1.0, &mut sum))?;
    Ok(sum)
}

/// The bits of values, for comparisons that tell zeros apart.
#[must_use]
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
