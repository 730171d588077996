//! Codecs and frames may be shared between threads and sent to others; traits stay usable behind `dyn`.

use gradwire::codecs::{Dense, DenseSum, MaxNorm, Qsgd, RandomK, Threshold, TopK};
use gradwire::format::{FrameUnit, Header};
use gradwire::random::Stream;
use gradwire::registry::{GatherCodec, LinearCodec};
use gradwire::rounds::Gossip;
use gradwire::{
    Codec, DecodeError, Decoder, EncodeError, Encoder, Frame, Gather, Grad, Layout, LayoutRef, Limits,
    Linear, Memory, Scratch, Source, Spec, SpecError, StepInput, StepKey, Unit, UnitPolicy,
};

const fn crosses_threads<T: Send + Sync + ?Sized>() {}

const _: () = {
    crosses_threads::<Codec>();
    crosses_threads::<GatherCodec>();
    crosses_threads::<LinearCodec>();
    crosses_threads::<Dense>();
    crosses_threads::<DenseSum>();
    crosses_threads::<TopK>();
    crosses_threads::<Threshold>();
    crosses_threads::<Qsgd>();
    crosses_threads::<RandomK>();
    crosses_threads::<MaxNorm>();
    crosses_threads::<Frame<'_>>();
    crosses_threads::<FrameUnit<'_>>();
    crosses_threads::<Header>();
    crosses_threads::<Spec>();
    crosses_threads::<UnitPolicy>();
    crosses_threads::<SpecError<'_>>();
    crosses_threads::<Layout>();
    crosses_threads::<LayoutRef<'_>>();
    crosses_threads::<Limits>();
    crosses_threads::<Memory<'_>>();
    crosses_threads::<Scratch<'_>>();
    crosses_threads::<Grad<'_>>();
    crosses_threads::<StepKey>();
    crosses_threads::<Stream>();
    crosses_threads::<Encoder>();
    crosses_threads::<Decoder>();
    crosses_threads::<EncodeError>();
    crosses_threads::<DecodeError>();
    crosses_threads::<dyn Gather>();
    crosses_threads::<dyn Linear>();
    crosses_threads::<dyn Gossip>();
};

#[test]
fn one_frame_is_added_by_many_threads_alike() {
    let spec = Spec::parse("qsgd:bits=4").unwrap();
    let codec: &dyn Gather = &spec.codec;
    let layout = LayoutRef::flat(1000);
    let grad: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.0) / 7.0).collect();
    let key = StepKey { seed: 1, step: 2, source: Source::Rank(3) };
    let frames: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let encode = || {
            let mut encoder = Encoder::new();
            let input =
                StepInput { key, layout: &layout, units: &[Unit::whole(1000)], grad: Grad::F32(&grad) };
            encoder.encode(codec, &input, None).unwrap().to_vec()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(encode)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(frames.iter().all(|frame| *frame == frames[0]));
    let mut decoder = Decoder::new();
    let frame = decoder.parse(&frames[0], &layout, &Limits::for_layout(&layout)).unwrap();
    let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let add = || {
            let mut sum = vec![0.0; 1000];
            frame.add_scaled_to(0.5, &mut sum);
            sum
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(sums.iter().all(|sum| *sum == sums[0]));
}
