//! What device and host both do: encode and decode the same gradients in the same buffers, and print frames,
//! residual and sum. The two texts must be equal.
#![no_std]
#![deny(unsafe_code)]

use gradwire::codecs::{EntropyChoice, IndexChoice, LevelBits, Qsgd, TopK, ValueChoice};
use gradwire::format::VoidFrame;
use gradwire::{
    Density, Frame, Gather, Grad, LayoutRef, Limits, Memory, Scratch, Source, StepInput, StepKey, Unit,
};

/// Elements of the gradient.
pub const N: usize = 16_384;

/// Steps: in the second the residual is not zero.
const STEPS: u32 = 2;

/// Everything that a caller lends: what it has anyway (gradient, residual, sum), scratch memory, and the
/// frame.
#[derive(Debug)]
pub struct Buffers {
    grad: [f32; N],
    residual: [f32; N],
    sum: [f32; N],
    words: [u32; 4 * N],
    bytes: [u8; 2 * N],
    frame: [u8; 4 * N],
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new()
    }
}

impl Buffers {
    /// All zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            grad: [0.0; N],
            residual: [0.0; N],
            sum: [0.0; N],
            words: [0; 4 * N],
            bytes: [0; 2 * N],
            frame: [0; 4 * N],
        }
    }

    /// Encodes one step, or says that its gradient is not finite; returns the length of the frame.
    #[inline(never)]
    pub fn encode(&mut self, codec: &dyn Gather, step: u32, takes_memory: bool) -> Option<usize> {
        let (layout, units) = (LayoutRef::flat(N), [Unit::whole(N)]);
        let key = StepKey { seed: 1, step: step.into(), source: Source::Rank(3) };
        let memory = &mut Memory::new(&mut self.residual);
        let memory = takes_memory.then_some(memory);
        let mut scratch = Scratch { words: &mut self.words, bytes: &mut self.bytes };
        let grad = Grad::F32(&self.grad);
        let input = StepInput { key, layout: &layout, units: &units, grad };
        match codec.encode(&input, memory, &mut scratch, &mut self.frame) {
            Ok(len) => Some(len),
            Err(error) => VoidFrame::of(codec.id(), key.step, &error)?.write(&layout, &mut self.frame).ok(),
        }
    }

    /// Adds half of the frame to the sum.
    #[inline(never)]
    pub fn decode(&mut self, len: usize) -> Option<()> {
        let layout = LayoutRef::flat(N);
        let limits = Limits::for_layout(&layout);
        let frame = Frame::parse(&self.frame[..len], &layout, &limits, &mut self.words).ok()?;
        frame.add_scaled_to(0.5, &mut self.sum);
        Some(())
    }
}

/// A heavy-tailed gradient, by integer arithmetic alone: the exponent falls with every leading zero of a
/// draw.
fn fill(grad: &mut [f32; N], step: u32) {
    let mut state = step;
    for value in grad {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let exponent = 100 + (state << 1).leading_zeros();
        let mantissa = state.wrapping_mul(0x9e37_79b9) >> 9;
        *value = f32::from_bits(state & 0x8000_0000 | exponent << 23 | mantissa);
    }
}

/// The largest percent, exactly.
pub fn topk() -> Option<TopK> {
    Some(TopK::new(Density::new(0.01)?, IndexChoice::Auto, ValueChoice::F32))
}

/// Four bits a coordinate, in fields of fixed width.
pub fn qsgd() -> Option<Qsgd> {
    Some(Qsgd::new(LevelBits::new(4)?).with_entropy(EntropyChoice::Fixed))
}

/// Runs every codec; `None` if one fails. `write` gets the text, piece by piece.
pub fn run(buffers: &mut Buffers, write: &mut dyn FnMut(&[u8])) -> Option<()> {
    steps(buffers, "topk", &topk()?, true, write)?;
    steps(buffers, "qsgd", &qsgd()?, false, write)?;
    #[cfg(feature = "full")]
    for spelling in SPELLINGS {
        let spec = gradwire::Spec::parse(spelling).ok()?;
        let takes_memory = spec.memory == gradwire::state::MemoryChoice::ErrorFeedback;
        steps(buffers, spelling, &spec.codec, takes_memory, write)?;
    }
    Some(())
}

/// What only a full build has, and the narrow formats.
#[cfg(feature = "full")]
const SPELLINGS: [&str; 8] = [
    "f16",
    "topk:density=0.1,index=rice,values=bf16",
    "topk:density=0.01,values=q4",
    "threshold:value=0.001,values=q8",
    "qsgd:bits=4,entropy=rans",
    "qsgd:bits=3,norm=l2,entropy=elias",
    "qsgd:bits=ternary,bucket=100",
    "randomk:density=0.01",
];

fn steps(
    buffers: &mut Buffers,
    name: &str,
    codec: &dyn Gather,
    takes_memory: bool,
    write: &mut dyn FnMut(&[u8]),
) -> Option<()> {
    buffers.residual.fill(0.0);
    for step in 0..STEPS {
        fill(&mut buffers.grad, step);
        let len = buffers.encode(codec, step, takes_memory)?;
        buffers.decode(len)?;
        write(name.as_bytes());
        write_frame(&buffers.frame[..len], write);
        write(b"residual ");
        hex(digest(&buffers.residual), 8, write);
        write(b"\nsum ");
        hex(digest(&buffers.sum), 8, write);
        write(b"\n");
    }
    // What is sent of a gradient that is not finite says so.
    buffers.grad[N / 3] = f32::NAN;
    let len = buffers.encode(codec, STEPS, takes_memory)?;
    write_frame(&buffers.frame[..len], write);
    Some(())
}

fn write_frame(frame: &[u8], write: &mut dyn FnMut(&[u8])) {
    write(b"\nframe ");
    frame.iter().for_each(|byte| hex(u32::from(*byte), 2, write));
    write(b"\n");
}

/// FNV-1a over words.
fn digest(values: &[f32]) -> u32 {
    values.iter().fold(0x811c_9dc5, |hash, value| (hash ^ value.to_bits()).wrapping_mul(0x0100_0193))
}

/// The lowest `digits` digits.
fn hex(value: u32, digits: u32, write: &mut dyn FnMut(&[u8])) {
    for digit in (0..digits).rev() {
        let nibble = (value >> (4 * digit) & 15) as usize;
        write(&b"0123456789abcdef"[nibble..=nibble]);
    }
}
