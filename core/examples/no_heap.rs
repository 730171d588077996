//! A training step without a heap: every buffer is an array of the caller's.
//!
//! ```sh
//! cargo run -p gradwire --no-default-features --example no_heap
//! ```
use gradwire::codecs::{IndexChoice, TopK, ValueChoice};
use gradwire::format::frame_scratch_len;
use gradwire::{
    Density, Frame, Gather, Grad, LayoutRef, Limits, Memory, Scratch, Source, StepInput, StepKey, TensorRef,
    Unit,
};

const N: usize = 1024;

fn main() {
    let tensors = [TensorRef { name: "weights", shape: &[32, 32], offset: 0 }];
    let layout = LayoutRef::new(&tensors).expect("one tensor of 1024 elements");
    let units = [Unit::whole(N)];
    let codec = TopK::new(Density::new(0.02).expect("a fraction"), IndexChoice::Rice, ValueChoice::Bf16);

    // Their sizes are asked for here, and stated in the source of a program for one model.
    let (mut words, mut frame, mut residual) = ([0; 4096], [0; 4096], [0.0; N]);
    let scratch_words = codec.scratch_len(&units).words;
    let frame_bytes = codec.max_frame_bytes(&units).expect("it fits");
    assert!(scratch_words <= words.len() && frame_bytes <= frame.len());
    let mut memory = Memory::new(&mut residual);
    let mut mean = [0.0; N];

    for step in 0..3 {
        let grad: [f32; N] = core::array::from_fn(|i| ((i as u64 * 37 + step * 11) % 101) as f32 - 50.0);
        let key = StepKey { seed: 1, step, source: Source::Rank(0) };
        let mut scratch = Scratch { words: &mut words, bytes: &mut [] };
        let grad = Grad::F32(&grad);
        let input = StepInput { key, layout: &layout, units: &units, grad };
        let sent = codec.encode(&input, Some(&mut memory), &mut scratch, &mut frame);
        let bytes = sent.expect("a finite gradient, and buffers that are large enough");

        // The other side: bytes from a stranger, checked before a value is used.
        let (received, limits) = (&frame[..bytes], Limits::for_layout(&layout));
        let needed = frame_scratch_len(received, &layout, &limits).expect("an honest frame");
        let received =
            Frame::parse(received, &layout, &limits, &mut words[..needed]).expect("an honest frame");
        mean.fill(0.0);
        received.add_scaled_to(1.0, &mut mean);
        let held: usize = received.units().map(|unit| unit.held()).sum();
        println!(
            "step {step}: {held} of {N} coordinates in {bytes} bytes, kept back: norm {:.1}",
            memory.norm()
        );
        assert_eq!(held, 20);
    }
}
