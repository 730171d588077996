//! What `bench` measures: the frame, its error, and medians of times taken in turns.

use std::hint::black_box;
use std::time::Instant;

use gradwire::format::frame_scratch_len;
use gradwire::{DecodeError, Frame, LayoutRef, Limits};

use super::error::{CliError, FileFault};
use super::gradient::zeroed;
use super::job::Job;
use super::quality::{Distance, Entries};

/// One codec on one gradient, measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    /// Bytes of the finished frame.
    pub(super) bytes: usize,
    /// What the frame holds.
    pub(super) entries: Entries,
    /// How far its decoded values are from the gradient.
    pub(super) distance: Distance,
    /// Median times.
    pub(super) times: Times,
}

/// Median times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    /// Gradient and memory to finished frame.
    pub(super) encode: f64,
    /// Frame to accumulator, all checks included.
    pub(super) decode: f64,
    /// A copy of the dense f32 gradient.
    pub(super) memcpy: f64,
}

/// Measures a codec on a gradient, over `iters` rounds.
pub(super) fn measure(job: &mut Job<'_>, iters: u32) -> Result<Measurement, CliError> {
    let gradient = job.gradient();
    let frame = job.encode()?.to_vec();
    let accumulator = zeroed(gradient.values.len()).map_err(|fault| gradient.fault(fault))?;
    let mut receiver = Receiver::new(&frame, gradient.layout.as_ref(), accumulator)
        .map_err(|error| job.own_frame_fault(error))?;
    let entries = receiver.entries().map_err(|error| job.own_frame_fault(error))?;
    receiver.receive().map_err(|error| job.own_frame_fault(error))?;
    let distance = Distance::between(&gradient.values, &receiver.accumulator);
    let mut copy = AlignedCopy::new(&gradient.values).map_err(|fault| gradient.fault(fault))?;
    let times = time_in_turns(job, &mut receiver, &mut copy, iters)?;
    Ok(Measurement { bytes: frame.len(), entries, distance, times })
}

/// One round to warm the buffers, then `iters` rounds in which a copy of the gradient, encode and decode take turns: what
/// slows the machine down for a while slows all three. Memory and accumulator are emptied between the timed parts.
fn time_in_turns(
    job: &mut Job<'_>,
    receiver: &mut Receiver<'_>,
    copy: &mut AlignedCopy,
    iters: u32,
) -> Result<Times, CliError> {
    let mut samples: [Vec<f64>; 3] = Default::default();
    for round in 0..=iters {
        job.clear_memory();
        receiver.accumulator.fill(0.0);
        let (_, memcpy) = timed(|| copy.run());
        let (encoded, encode) = timed(|| job.encode().map(|frame| black_box(frame).len()));
        encoded?;
        let (received, decode) = timed(|| receiver.receive());
        received.map_err(|error| job.own_frame_fault(error))?;
        if round > 0 {
            samples.iter_mut().zip([memcpy, encode, decode]).for_each(|(samples, time)| samples.push(time));
        }
    }
    let [memcpy, encode, decode] = samples.map(median);
    Ok(Times { encode, decode, memcpy })
}

/// What `f` returns, and the seconds it took.
fn timed<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = black_box(f());
    (result, start.elapsed().as_secs_f64())
}

/// The middle of the samples, or the mean of the two in the middle; 0 for none.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    match (samples.len() / 2, samples.len() % 2) {
        (0, 0) => 0.0,
        (half, 0) => (samples[half - 1] + samples[half]) / 2.0,
        (half, _) => samples[half],
    }
}

/// One worker's receiving end of a frame, its buffers warm.
struct Receiver<'f> {
    frame: &'f [u8],
    layout: LayoutRef<'f>,
    limits: Limits,
    scratch: Vec<u32>,
    accumulator: Vec<f32>,
}

impl<'f> Receiver<'f> {
    fn new(frame: &'f [u8], layout: LayoutRef<'f>, accumulator: Vec<f32>) -> Result<Self, DecodeError> {
        let limits = Limits::for_layout(&layout);
        let scratch = vec![0; frame_scratch_len(frame, &layout, &limits)?];
        Ok(Self { frame, layout, limits, scratch, accumulator })
    }

    fn entries(&mut self) -> Result<Entries, DecodeError> {
        Frame::parse(self.frame, &self.layout, &self.limits, &mut self.scratch)
            .map(|frame| Entries::of(&frame))
    }

    /// Checks the frame completely and adds it to the accumulator.
    fn receive(&mut self) -> Result<(), DecodeError> {
        let bytes = black_box(self.frame);
        let frame = Frame::parse(bytes, &self.layout, &self.limits, &mut self.scratch)?;
        frame.add_scaled_to(1.0, &mut self.accumulator);
        black_box(self.accumulator.as_slice());
        Ok(())
    }
}

/// Two touched buffers of the size of a gradient, aligned to cache lines, and the copy between them.
struct AlignedCopy {
    source: Vec<f32>,
    target: Vec<f32>,
    len: usize,
}

impl AlignedCopy {
    const ALIGN_BYTES: usize = 64;

    fn new(values: &[f32]) -> Result<Self, FileFault> {
        let len = values.len();
        let room = len + Self::ALIGN_BYTES / size_of::<f32>();
        let mut copy = Self { source: zeroed(room)?, target: zeroed(room)?, len };
        aligned(&mut copy.source, len).copy_from_slice(values);
        copy.run();
        Ok(copy)
    }

    fn run(&mut self) {
        let source = black_box(aligned(&mut self.source, self.len));
        let target = aligned(&mut self.target, self.len);
        target.copy_from_slice(source);
        black_box(target);
    }
}

/// The first `len` elements from an aligned address on.
fn aligned(buffer: &mut [f32], len: usize) -> &mut [f32] {
    let offset = buffer.as_ptr().align_offset(AlignedCopy::ALIGN_BYTES);
    // The offset is unknown only where code is interpreted; alignment is then of no account.
    let offset = offset.min(buffer.len() - len);
    &mut buffer[offset..offset + len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn the_copy_is_aligned_and_complete() {
        let mut copy = AlignedCopy::new(&[1.0, 2.0, 3.0]).unwrap();
        let target = aligned(&mut copy.target, 3);
        assert_eq!(target, [1.0, 2.0, 3.0]);
        assert_eq!(target.as_ptr().align_offset(AlignedCopy::ALIGN_BYTES), 0);
    }
}
