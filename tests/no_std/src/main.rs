//! One step of an edge node: a spelling is parsed, a gradient encoded, the frame parsed and added, the memory
//! saved and loaded, without heap and without an operating system. It is linked for a bare-metal target, not
//! run.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;
use gradwire::format::{Header, frame_scratch_len};
use gradwire::rounds::{LinearScratch, UnitStep};
use gradwire::{
    Frame, Gather, Grad, LayoutRef, Limits, Memory, Scratch, Source, Spec, StepInput, StepKey, TensorRef,
    Unit,
};

/// Elements of the gradient.
const N: usize = 96;

/// What went wrong, for a debugger to look at.
#[derive(Debug)]
struct Failed;

/// Entry point: where the boot code of a real node jumps to.
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    for spelling in [
        "none",
        "bf16",
        "topk:density=0.1,values=q4",
        "threshold:value=1",
        "qsgd:bits=4",
        "qsgd:entropy=elias",
        "randomk",
    ] {
        black_box(step(black_box(spelling)).is_ok());
    }
    loop {}
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

fn step(spelling: &str) -> Result<f32, Failed> {
    let tensors = [
        TensorRef { name: "w", shape: &[8, 10], offset: 0 },
        TensorRef { name: "b", shape: &[16], offset: 80 },
    ];
    let layout = LayoutRef::new(&tensors).map_err(|_| Failed)?;
    let spec = Spec::parse(spelling).map_err(|_| Failed)?;
    let units = [spec.units.units(&layout).next().ok_or(Failed)?];
    let grad: [f32; N] = core::array::from_fn(|i| i as f32 - 40.0);
    let (mut residual, mut saved, mut acc) = ([0.0; N], [0; 4 * N + 24], [0.0; N]);
    let mut out = [0; 2048];
    let mut memory = Memory::new(&mut residual);
    let len = encode(&spec, &layout, &units, &grad, &mut memory, &mut out)?;
    memory.save(&layout, &mut saved).map_err(|_| Failed)?;
    memory.load(&layout, &saved).map_err(|_| Failed)?;
    memory.decay(0.5).map_err(|_| Failed)?;
    memory.remap(&layout, &layout, &mut Memory::new(&mut acc), |_| ());
    acc.fill(0.0);
    add(out.get(..len).ok_or(Failed)?, &layout, &mut memory, &mut acc)?;
    sum(&spec, &layout, &units[0], &grad, &mut acc)?;
    Ok(acc[0] + memory.norm() as f32)
}

fn encode(
    spec: &Spec,
    layout: &LayoutRef<'_>,
    units: &[Unit],
    grad: &[f32],
    memory: &mut Memory<'_>,
    out: &mut [u8],
) -> Result<usize, Failed> {
    let (mut words, mut bytes) = ([0; 4096], [0; 512]);
    let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
    let key = StepKey { seed: 1, step: 2, source: Source::Rank(3) };
    spec.codec
        .encode(&StepInput { key, layout, units, grad: Grad::F32(grad) }, Some(memory), &mut scratch, out)
        .map_err(|_| Failed)
}

fn add(bytes: &[u8], layout: &LayoutRef<'_>, memory: &mut Memory<'_>, acc: &mut [f32]) -> Result<(), Failed> {
    let limits = Limits::for_layout(layout);
    Header::parse(bytes).map_err(|_| Failed)?;
    frame_scratch_len(bytes, layout, &limits).map_err(|_| Failed)?;
    let mut words = [0; 5000];
    let frame = Frame::parse(bytes, layout, &limits, &mut words).map_err(|_| Failed)?;
    frame.add_scaled_to(0.5, acc);
    memory.give_back(&frame);
    Ok(())
}

fn sum(
    spec: &Spec,
    layout: &LayoutRef<'_>,
    unit: &Unit,
    grad: &[f32],
    mean: &mut [f32],
) -> Result<(), Failed> {
    let Some(linear) = spec.codec.as_linear() else { return Ok(()) };
    let (mut words, mut floats) = ([0; 512], [0.0; N]);
    let mut scratch = LinearScratch { words: &mut words, floats: &mut floats, ints: &mut [] };
    let key = StepKey { seed: 1, step: 2, source: Source::Shared };
    let step = UnitStep { key, layout, unit, workers: 1, place: 0 };
    let round = linear.rounds().begin(&step, Grad::F32(grad), None, &mut scratch).map_err(|_| Failed)?;
    linear.rounds().advance(&step, round, &mut scratch, mean, None);
    Ok(())
}
