//! A codec as a training run uses it: step after step, with its memory.

use std::hint::black_box;

use gradwire::registry::{GatherCodec, Law};
use gradwire::{
    Codec, Decoder, EncodeError, Encoder, Frame, Grad, LayoutRef, Limits, Memory, Parallel, Source, Spec,
    StepInput, StepKey, Unit,
};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::buffer::Aligned;
use crate::inputs::Gradient;
use crate::lab::Quality;

/// Steps before the first measurement. A residual that has been through them is neither empty nor of one
/// size.
const WARM_UP_STEPS: u64 = 4;

/// One worker's encoder.
pub struct CodecRun<'g> {
    spec: Spec,
    layout: LayoutRef<'static>,
    units: Vec<Unit>,
    gradient: &'g Gradient,
    memory: Option<Memory<'static>>,
    encoder: Encoder,
    /// Threads that encode in parts.
    pool: Option<ThreadPool>,
    step: u64,
}

impl<'g> CodecRun<'g> {
    /// The codec with the memory that its spelling asks for, the whole gradient in one unit, after a few
    /// steps.
    ///
    /// # Panics
    /// When the spelling is wrong.
    #[must_use]
    pub fn new(spelling: &str, gradient: &'g Gradient) -> Self {
        let spec = Spec::parse(spelling).unwrap_or_else(|error| panic!("{spelling}: {error}"));
        let layout = LayoutRef::flat(gradient.len());
        let units = spec.units.units(&layout).collect();
        let memory = Memory::for_spec(&spec, &layout);
        let mut run =
            Self { spec, layout, units, gradient, memory, encoder: Encoder::new(), pool: None, step: 0 };
        (0..WARM_UP_STEPS).for_each(|_| run.encode());
        run
    }

    /// The same on so many threads.
    ///
    /// # Panics
    /// When there can be no such threads.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.pool = Some(ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool"));
        self.encode();
        self
    }

    /// Encodes the next step.
    ///
    /// # Panics
    /// When the codec refuses the gradient.
    pub fn encode(&mut self) {
        black_box(self.try_encode().expect("the gradient can be encoded"));
    }

    fn try_encode(&mut self) -> Result<&[u8], EncodeError> {
        let key = StepKey { seed: 7, step: self.step, source: Source::Rank(0) };
        let grad = Grad::F32(black_box(self.gradient.step(self.step)));
        self.step += 1;
        let Self { spec, layout, units, memory, encoder, pool, .. } = self;
        let memory = memory.as_mut();
        match pool {
            None => encoder.encode(&spec.codec, &StepInput { key, layout, units, grad }, memory),
            Some(pool) => pool.install(|| {
                encoder.encode(&Parallel(spec.codec), &StepInput { key, layout, units, grad }, memory)
            }),
        }
    }

    /// The last frame.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        self.encoder.frame()
    }

    /// Encodes one more step, decodes its frame and checks the one against the other; says what the frame
    /// achieves.
    ///
    /// # Panics
    /// When the frame does not decode to what this codec promises.
    #[must_use]
    pub fn checked_step(&mut self) -> Quality {
        let mut p = self.gradient.step(self.step).to_vec();
        let momentum = self.memory.as_ref().and_then(Memory::momentum);
        if let Some((rule, momentum)) = self.spec.codec.momentum().zip(momentum) {
            p.iter_mut().zip(momentum).for_each(|(p, momentum)| *p += rule.factor() * momentum);
        }
        if let Some(memory) = &self.memory {
            p.iter_mut().zip(memory.residual()).for_each(|(p, kept)| *p += kept);
        }
        self.encode();
        let mut decoded = vec![0.0; p.len()];
        let mut decode = DecodeRun::new(self.frame(), p.len());
        decode.parse(|frame| frame.add_scaled_to(1.0, &mut decoded));
        let error = squared_error(&p, &decoded);
        if let Some(memory) = &self.memory {
            let is_exact = self.spec.codec.capabilities().law == Law::Exact;
            for ((p, decoded), kept) in p.iter().zip(&decoded).zip(memory.residual()) {
                let adds_up = if is_exact { decoded + kept == *p } else { *kept == p - decoded };
                assert!(adds_up, "{}: what is kept is not what is missing", self.spec);
            }
        }
        self.check_promise(&p, &decoded, error);
        Quality { bytes: Some(self.frame().len()), error: Some(error) }
    }

    /// What the codec promises about single values.
    fn check_promise(&self, p: &[f32], decoded: &[f32], error: f64) {
        let spec = &self.spec;
        let within = |bound: f64| assert!(error <= bound, "{spec}: error {error} is above {bound}");
        let held = || decoded.iter().filter(|&&value| value != 0.0).count();
        match spec.codec {
            Codec::Gather(GatherCodec::Dense(gradwire::codecs::Dense::F32)) => within(0.0),
            // Half a unit in the last place of 11 and of 8 bits, squared, and room for what is too small for
            // f16.
            Codec::Gather(GatherCodec::Dense(gradwire::codecs::Dense::F16)) => within(f64::powi(2.0, -20)),
            Codec::Gather(GatherCodec::Dense(gradwire::codecs::Dense::Bf16)) => within(f64::powi(2.0, -18)),
            Codec::Gather(GatherCodec::TopK(topk)) => {
                let nonzero = p.iter().filter(|&&value| value != 0.0).count();
                let chunk = topk.chunk().map_or(p.len(), |chunk| chunk as usize);
                let k: usize = p.chunks(chunk).map(|chunk| topk.density().count(chunk.len())).sum();
                assert_eq!(held(), k.min(nonzero), "{spec}: not the k largest");
                within(1.0);
            }
            Codec::Gather(GatherCodec::Threshold(threshold)) => {
                let above = p.iter().filter(|value| value.abs() >= threshold.value()).count();
                assert_eq!(held(), above, "{spec}: not the values above the threshold");
                within(1.0);
            }
            Codec::Gather(GatherCodec::Qsgd(qsgd)) if qsgd.cutoff().is_none() => {
                let levels = qsgd.bits().levels();
                let largest = p.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                let bound = largest / levels as f32 * 1.001;
                let is_near = |(p, decoded): (&f32, &f32)| (p - decoded).abs() <= bound;
                assert!(p.iter().zip(decoded).all(is_near), "{spec}: an error of more than a level");
            }
            // What is kept back must not grow from step to step.
            _ if self.memory.is_some() => within(1.0),
            // What is right on average may be far off, but it does not point the other way.
            _ => {
                let product: f64 =
                    p.iter().zip(decoded).map(|(p, sent)| f64::from(*p) * f64::from(*sent)).sum();
                assert!(product >= 0.0, "{spec}: what is sent points against the gradient");
            }
        }
    }
}

/// One receiver: parses a frame and adds it up.
pub struct DecodeRun<'b> {
    bytes: &'b [u8],
    layout: LayoutRef<'static>,
    limits: Limits,
    decoder: Decoder,
    sum: Aligned,
}

impl<'b> DecodeRun<'b> {
    /// A receiver of that frame, for a flat gradient of `len` elements.
    #[must_use]
    pub fn new(bytes: &'b [u8], len: usize) -> Self {
        let layout = LayoutRef::flat(len);
        let limits = Limits::for_layout(&layout);
        Self { bytes, layout, limits, decoder: Decoder::new(), sum: Aligned::filled(len, 0.0) }
    }

    /// Parses the frame and hands it to `then`.
    ///
    /// # Panics
    /// When the bytes are not a frame.
    pub fn parse<T>(&mut self, then: impl FnOnce(&Frame<'_>) -> T) -> T {
        let frame = self.decoder.parse(black_box(self.bytes), &self.layout, &self.limits);
        then(&frame.expect("the frame parses"))
    }

    /// Parses the frame and adds it to the sum.
    ///
    /// # Panics
    /// When the bytes are not a frame.
    pub fn add(&mut self) {
        let frame = self.decoder.parse(black_box(self.bytes), &self.layout, &self.limits);
        frame.expect("the frame parses").add_scaled_to(1.0, black_box(self.sum.as_mut_slice()));
    }
}

/// ‖p − decoded‖² / ‖p‖², in f64; zero where both are.
#[must_use]
pub fn squared_error(p: &[f32], decoded: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let energy: f64 = p.iter().map(|&p| square(f64::from(p))).sum();
    let error: f64 =
        p.iter().zip(decoded).map(|(&p, &decoded)| square(f64::from(p) - f64::from(decoded))).sum();
    if error == 0.0 { 0.0 } else { error / energy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_relative_to_what_was_encoded() {
        assert_eq!(squared_error(&[3.0, 4.0], &[3.0, 0.0]), 16.0 / 25.0);
        assert_eq!(squared_error(&[0.0], &[0.0]), 0.0);
    }
}
