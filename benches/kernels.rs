//! The parts of encoding and decoding that can be called from outside, and how cost grows with length.

use std::hint::black_box;

use gradwire::arithmetic::clear;
use gradwire::format::{frame_extent, frame_scratch_len};
use gradwire::{
    Encoder, Frame, Grad, Layout, LayoutRef, Limits, Memory, Source, Spec, StepInput, StepKey, Unit,
};
use gradwire_benches::{
    Aligned, CodecRun, DecodeRun, Gradient, Group, Input, Lab, Quality, Settings, Work, harness,
};

/// Codecs whose growth is shown. Where rounding draws, its time less that to nearest is the price of the
/// draws.
const GROWING: [&str; 6] = [
    "bf16",
    "topk:density=0.01",
    "qsgd:bits=4,entropy=fixed",
    "qsgd:bits=4,entropy=fixed,rounding=nearest,memory=none",
    "qsgd:bits=4,entropy=rans",
    "randomk:density=0.01",
];

fn main() {
    let settings = Settings::from_env();
    let lengths = settings.growth();
    let longest = lengths.iter().copied().fold(settings.len.max(thousand_matrices().len()), usize::max);
    let mut criterion = harness();
    let mut lab = Lab::new("Kernels and growth", &settings, longest);
    let gradient = Gradient::new(Input::Heavy, settings.len, &settings);
    let mut group = criterion.benchmark_group("kernels");
    measure_generator(&mut group, &mut lab, settings.len);
    measure_layout(&mut group, &mut lab);
    measure_memory(&mut group, &mut lab, &gradient);
    measure_beside(&mut group, &mut lab, &gradient);
    measure_parsing(&mut group, &mut lab, &gradient);
    group.finish();
    let mut group = criterion.benchmark_group("growth");
    for len in lengths {
        measure_growth(&mut group, &mut lab, &Gradient::new(Input::Heavy, len, &settings));
    }
    group.finish();
    lab.finish();
    criterion.final_summary();
}

/// The generator alone, into a buffer that stays in the first cache level: a little more than to consume them
/// in registers, as rounding does.
fn measure_generator(group: &mut Group<'_>, lab: &mut Lab, len: usize) {
    lab.compare(group, ("16 random bits an element", "heavy"), len, || {
        let stream = StepKey { seed: 1, step: 0, source: Source::Rank(0) }.stream(0);
        let mut draws = [0; 2048];
        Work::new(Quality::default(), move || {
            for first in (0..len).step_by(draws.len()) {
                let draws = &mut draws[..(len - first).min(2048)];
                black_box(&stream).fill_u16(first as u64 / 8, draws);
                black_box(draws);
            }
        })
    });
}

/// A layout of a thousand matrices; the cost is that of its fingerprint, once a run.
fn thousand_matrices() -> Layout {
    Layout::packed((0..1000).map(|i| (format!("{i}"), vec![i % 7 + 1, 64]))).expect("a layout")
}

fn measure_layout(group: &mut Group<'_>, lab: &mut Lab) {
    let len = thousand_matrices().len();
    lab.compare(group, ("layout of 1000 tensors, its fingerprint included", "shapes"), len, || {
        assert_ne!(thousand_matrices().as_ref().fingerprint(), LayoutRef::flat(len).fingerprint());
        Work::new(Quality::default(), || {
            black_box(thousand_matrices().as_ref().fingerprint());
        })
    });
}

fn measure_memory(group: &mut Group<'_>, lab: &mut Lab, gradient: &Gradient) {
    let len = gradient.len();
    let layout = LayoutRef::flat(len);
    let mut residual = Aligned::filled(len, 1.0);
    let saved = || {
        let mut copy = gradient.step(0).to_vec();
        let memory = Memory::new(&mut copy);
        let mut bytes = vec![0; memory.saved_bytes().expect("a size")];
        memory.save(&layout, &mut bytes).expect("room for the memory");
        bytes
    };
    let whole = Quality { bytes: Some(4 * len + 24), error: Some(0.0) };
    lab.compare(group, ("memory, norm", "heavy"), len, || {
        let memory = Memory::new(residual.as_mut_slice());
        assert!(memory.norm() > 0.0);
        Work::new(Quality::default(), move || {
            black_box(black_box(&memory).norm());
        })
    });
    lab.compare(group, ("memory, save", "heavy"), len, || {
        let mut bytes = saved();
        let memory = Memory::new(residual.as_mut_slice());
        Work::new(whole, move || {
            black_box(black_box(&memory).save(&layout, &mut bytes).expect("room for the memory"));
        })
    });
    lab.compare(group, ("memory, load", "heavy"), len, || {
        let bytes = saved();
        residual.as_mut_slice().fill(1.0);
        let mut memory = Memory::new(residual.as_mut_slice());
        memory.load(&layout, &bytes).expect("what was saved");
        assert_eq!(memory.residual(), gradient.step(0));
        Work::new(whole, move || {
            black_box(&mut memory).load(&layout, black_box(&bytes)).expect("what was saved");
        })
    });
}

/// A step that leaves the memory of the step before as it was, beside one that changes it; and what a mean
/// costs before anything is added to it. Long ones are written past the caches.
fn measure_beside(group: &mut Group<'_>, lab: &mut Lab, gradient: &Gradient) {
    let len = gradient.len();
    let spec = Spec::parse("topk:density=0.001").expect("a spelling");
    let (layout, units) = (LayoutRef::flat(len), [Unit::whole(len)]);
    lab.compare(group, ("topk:density=0.001", "heavy"), len, || {
        let mut run = CodecRun::new("topk:density=0.001", gradient);
        let quality = run.checked_step();
        Work::new(quality, move || run.encode())
    });
    lab.compare(group, ("topk:density=0.001, memory beside", "heavy"), len, || {
        let mut memories = [(); 2].map(|()| Memory::for_spec(&spec, &layout).expect("a memory"));
        let (mut encoder, mut step) = (Encoder::new(), 0);
        let mut encode = move |expected: Option<&[u8]>| {
            let key = StepKey { seed: 7, step, source: Source::Rank(0) };
            let grads = [Grad::F32(black_box(gradient.step(step)))];
            let [before, memory] = &mut memories;
            let input = StepInput { key, layout: &layout, units: &units, grad: &grads[..] };
            let frame = encoder.encode_beside(&spec.codec, &input, before, memory);
            let frame = black_box(frame.expect("the gradient can be encoded"));
            assert!(expected.is_none_or(|expected| expected == frame), "the frames differ");
            memories.swap(0, 1);
            step += 1;
        };
        // It is after its fourth step.
        let mut run = CodecRun::new("topk:density=0.001", gradient);
        [None, None, None, Some(run.frame())].into_iter().for_each(&mut encode);
        Work::new(run.checked_step(), move || encode(None))
    });
    let mut zeros = |name, clear: fn(&mut [f32])| {
        lab.compare(group, (name, "heavy"), len, || {
            let (mut mean, mut others) = (Aligned::filled(len, 1.0), Aligned::filled(len, 1.0));
            Work::new(Quality::default(), move || {
                clear(black_box(mean.as_mut_slice()));
                let others = black_box(others.as_mut_slice());
                others.iter_mut().zip(gradient.step(0)).for_each(|(other, value)| *other -= 1e-3 * value);
            })
        });
    };
    zeros("zeros by fill, then work on other values", |mean| mean.fill(0.0));
    zeros("zeros by clear, then work on other values", |mean| clear(mean, mean.len()));
}

/// The checksum (of a frame whose structure is one section), and parsing without adding.
fn measure_parsing(group: &mut Group<'_>, lab: &mut Lab, gradient: &Gradient) {
    let len = gradient.len();
    let layout = LayoutRef::flat(len);
    let limits = Limits::for_layout(&layout);
    lab.compare(group, ("checksum of a dense frame", "heavy"), len, || {
        let mut run = CodecRun::new("none", gradient);
        let quality = run.checked_step();
        assert_eq!(frame_extent(run.frame(), &limits), Ok(len));
        Work::new(quality, move || {
            black_box(frame_extent(black_box(run.frame()), &limits).expect("the frame parses"));
        })
    });
    for codec in ["none", "topk:density=0.01", "qsgd:bits=4,entropy=fixed", "qsgd:bits=4,entropy=rans"] {
        lab.compare(group, (&format!("parse {codec}"), "heavy"), len, || {
            let mut run = CodecRun::new(codec, gradient);
            let quality = run.checked_step();
            let needed = frame_scratch_len(run.frame(), &layout, &limits).expect("the frame parses");
            let mut words = vec![0; needed];
            Work::new(quality, move || {
                let frame = Frame::parse(black_box(run.frame()), &layout, &limits, &mut words);
                black_box(frame.expect("the frame parses").units().count());
            })
        });
    }
}

fn measure_growth(group: &mut Group<'_>, lab: &mut Lab, gradient: &Gradient) {
    let len = gradient.len();
    let input = format!("heavy, {len}");
    for codec in GROWING {
        lab.compare(group, (&format!("encode {codec}"), &input), len, || {
            let mut run = CodecRun::new(codec, gradient);
            Work::new(run.checked_step(), move || run.encode())
        });
        let mut run = None;
        lab.compare(group, (&format!("decode {codec}"), &input), len, || {
            let run = run.insert(CodecRun::new(codec, gradient));
            let quality = run.checked_step();
            let mut decode = DecodeRun::new(run.frame(), len);
            Work::new(quality, move || decode.add())
        });
    }
}
