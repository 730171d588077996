//! What `bench` measures: the frame, its error, and medians of alternating times.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gradwire::format::frame_scratch_len;
use gradwire::{DecodeError, Frame, LayoutRef, Limits};

use super::error::{CliError, FileFault};
use super::gradient::zeroed;
use super::job::Job;
use super::quality::{Distance, Entries};
use super::rounds::{Rounds, without_frames};

/// The fastest of so many turns counts as not interrupted.
const UNINTERRUPTED: usize = 10;

/// One codec on one gradient, measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    /// Bytes of all frames, or payloads.
    pub(super) bytes: usize,
    /// What is sent.
    pub(super) sent: Sent,
    /// What the frame holds.
    pub(super) entries: Entries,
    /// How far its decoded values are from the gradient.
    pub(super) distance: Distance,
    /// Median times.
    pub(super) times: Times,
    /// The times of somebody who shares the core.
    pub(super) expected: Expected,
}

/// What carries the content of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Frames: one, or packets.
    Frames(usize),
    /// Payloads of so many rounds.
    Rounds(u32),
}

/// Median times, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    /// Gradient and memory to finished frames; or to the payloads of the first round.
    pub(super) encode: f64,
    /// Frames to accumulator, all checks included; or payloads to the next round, and at last to the mean.
    pub(super) decode: f64,
    /// A copy of the dense f32 gradient.
    pub(super) memcpy: f64,
}

/// What to expect, in seconds, on a core that may be shared.
///
/// Where other programs take turns on the core, a short piece of work is seldom interrupted, but then for
/// much longer than it takes. Its median does not show that, and its mean shows it only after many turns. So
/// each piece is as long as when it is not interrupted, times one factor for all of them: the mean of whole
/// turns over what their pieces take uninterrupted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    pub(super) encode: f64,
    pub(super) decode: f64,
    pub(super) memcpy: f64,
}

/// How often is measured: so many turns, and at least for so long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Often {
    pub(super) turns: u32,
    pub(super) time: Duration,
}

impl Often {
    pub(super) fn turns(turns: u32) -> Self {
        Self { turns, time: Duration::ZERO }
    }
}

/// Measures a codec on a gradient.
pub(super) fn measure(job: Job<'_>, often: Often) -> Result<Measurement, CliError> {
    match without_frames(&job.spec.codec) {
        Some(codec) => measure_rounds(Rounds::new(job, codec), often),
        None => measure_frames(job, often),
    }
}

/// Whether the codec can encode the gradient at all.
pub(super) fn rehearse(mut job: Job<'_>) -> Result<(), CliError> {
    match without_frames(&job.spec.codec) {
        Some(codec) => Rounds::new(job, codec).begin(),
        None => job.encode(),
    }
}

fn measure_frames(mut job: Job<'_>, often: Often) -> Result<Measurement, CliError> {
    let gradient = job.gradient();
    job.encode()?;
    let frames: Vec<Vec<u8>> = job.frames().into_iter().map(<[u8]>::to_vec).collect();
    let accumulator = zeroed(gradient.values.len()).map_err(|fault| gradient.fault(fault))?;
    let receiver = Receiver::new(&frames, gradient.layout.as_ref(), accumulator);
    let mut receiver = receiver.map_err(|error| job.own_frame_fault(error))?;
    let entries = receiver.entries().map_err(|error| job.own_frame_fault(error))?;
    receiver.receive().map_err(|error| job.own_frame_fault(error))?;
    let distance = Distance::between(&gradient.values, &receiver.accumulator);
    let (bytes, sent) = (frames.iter().map(Vec::len).sum(), Sent::Frames(frames.len()));
    let mut copy = AlignedCopy::new(&gradient.values).map_err(|fault| gradient.fault(fault))?;
    let (times, expected) = time_in_turns(&mut Framed { job, receiver }, &mut copy, often)?;
    Ok(Measurement { bytes, sent, entries, distance, times, expected })
}

fn measure_rounds(mut rounds: Rounds<'_>, often: Often) -> Result<Measurement, CliError> {
    let gradient = rounds.job().gradient();
    let mut mean = zeroed(gradient.values.len()).map_err(|fault| gradient.fault(fault))?;
    rounds.clear_memory();
    rounds.begin()?;
    let contribution = rounds.finish(&mut mean);
    let distance = Distance::between(&gradient.values, &mean);
    let entries = Entries { sent: rounds.held(), position_bytes: None, value_bytes: contribution.bytes };
    let mut copy = AlignedCopy::new(&gradient.values).map_err(|fault| gradient.fault(fault))?;
    let (times, expected) = time_in_turns(&mut Summed { rounds, mean }, &mut copy, often)?;
    let sent = Sent::Rounds(contribution.rounds);
    Ok(Measurement { bytes: contribution.bytes, sent, entries, distance, times, expected })
}

/// Both directions of a codec, as often as wanted.
trait Turns {
    /// Goes back to the start; not timed.
    fn clear(&mut self);

    fn encode(&mut self) -> Result<(), CliError>;

    fn decode(&mut self) -> Result<(), CliError>;
}

/// A codec with frames, and their receivers.
struct Framed<'g, 'f> {
    job: Job<'g>,
    receiver: Receiver<'f>,
}

impl Turns for Framed<'_, '_> {
    fn clear(&mut self) {
        self.job.clear_memory();
        self.receiver.accumulator.fill(0.0);
    }

    fn encode(&mut self) -> Result<(), CliError> {
        self.job.encode()
    }

    fn decode(&mut self) -> Result<(), CliError> {
        self.receiver.receive().map_err(|error| self.job.own_frame_fault(error))
    }
}

/// A codec without frames, and its mean.
struct Summed<'g> {
    rounds: Rounds<'g>,
    mean: Vec<f32>,
}

impl Turns for Summed<'_> {
    fn clear(&mut self) {
        self.rounds.clear_memory();
    }

    fn encode(&mut self) -> Result<(), CliError> {
        self.rounds.begin()
    }

    fn decode(&mut self) -> Result<(), CliError> {
        self.rounds.finish(&mut self.mean);
        black_box(self.mean.as_slice());
        Ok(())
    }
}

/// One turn to warm the buffers, then turns in which a copy of the gradient, encode and decode alternate:
/// what slows the machine down for a while slows all three. Memory and accumulator are emptied between the
/// timed parts.
fn time_in_turns(
    codec: &mut impl Turns,
    copy: &mut AlignedCopy,
    often: Often,
) -> Result<(Times, Expected), CliError> {
    let mut turn = || {
        let ((), clear) = timed(|| codec.clear());
        let ((), memcpy) = timed(|| copy.run());
        let (encoded, encode) = timed(|| codec.encode());
        encoded?;
        let (decoded, decode) = timed(|| codec.decode());
        decoded.map(|()| [clear, memcpy, encode, decode])
    };
    turn()?;
    let mut samples: [Vec<f64>; 4] = Default::default();
    let started = Instant::now();
    while samples[0].len() < often.turns as usize || started.elapsed() < often.time {
        samples.iter_mut().zip(turn()?).for_each(|(samples, time)| samples.push(time));
    }
    samples.iter_mut().for_each(|samples| samples.sort_by(f64::total_cmp));
    let expected = expected(&samples);
    let [_, memcpy, encode, decode] = samples.map(median);
    Ok((Times { encode, decode, memcpy }, expected))
}

/// Of the sorted times of clearing, copying, encoding and decoding.
fn expected(samples: &[Vec<f64>; 4]) -> Expected {
    let turns = samples[0].len();
    let uninterrupted = samples.each_ref().map(|samples| samples[turns / UNINTERRUPTED]);
    let mean = samples.iter().flatten().sum::<f64>() / turns as f64;
    let factor = mean / uninterrupted.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let [_, memcpy, encode, decode] = uninterrupted.map(|time| factor * time);
    Expected { encode, decode, memcpy }
}

/// What `f` returns, and the seconds it took.
pub(crate) fn timed<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = black_box(f());
    (result, start.elapsed().as_secs_f64())
}

/// The middle of the samples, or the mean of the two in the middle; 0 for none.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    match (samples.len() / 2, samples.len() % 2) {
        (0, 0) => 0.0,
        (half, 0) => (samples[half - 1] + samples[half]) / 2.0,
        (half, _) => samples[half],
    }
}

/// One worker's receiving end of frames, its buffers warm.
struct Receiver<'f> {
    frames: &'f [Vec<u8>],
    layout: LayoutRef<'f>,
    limits: Limits,
    scratch: Vec<u32>,
    accumulator: Vec<f32>,
}

impl<'f> Receiver<'f> {
    fn new(frames: &'f [Vec<u8>], layout: LayoutRef<'f>, accumulator: Vec<f32>) -> Result<Self, DecodeError> {
        let limits = Limits::for_layout(&layout);
        let needed = |most: usize, frame: &Vec<u8>| Ok(most.max(frame_scratch_len(frame, &layout, &limits)?));
        let words = frames.iter().try_fold(0, needed)?;
        Ok(Self { frames, layout, limits, scratch: vec![0; words], accumulator })
    }

    fn entries(&mut self) -> Result<Entries, DecodeError> {
        let mut entries = Entries::default();
        for frame in self.frames {
            entries.add(&Frame::parse(frame, &self.layout, &self.limits, &mut self.scratch)?);
        }
        Ok(entries)
    }

    /// Checks the frames completely and adds them to the accumulator.
    fn receive(&mut self) -> Result<(), DecodeError> {
        for bytes in black_box(self.frames) {
            let frame = Frame::parse(bytes, &self.layout, &self.limits, &mut self.scratch)?;
            frame.add_scaled_to(1.0, &mut self.accumulator);
        }
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
    // The offset is unknown only where code is interpreted; alignment then does not matter.
    let offset = offset.min(buffer.len() - len);
    &mut buffer[offset..offset + len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_take_of_the_core_is_expected_of_every_piece() {
        // Every other turn waits 4 ms for others: twice while it encodes, once while it decodes.
        let encode = [1e-3, 1e-3, 1e-3, 1e-3, 5e-3, 5e-3].to_vec();
        let decode = [0.5e-3, 0.5e-3, 0.5e-3, 0.5e-3, 0.5e-3, 4.5e-3].to_vec();
        let samples = [vec![0.25e-3; 6], vec![0.25e-3; 6], encode, decode];
        let found = expected(&samples);
        // Twice as long as alone: 4 ms in 6 turns of 2 ms, of which 3 waited.
        assert!((found.encode - 2e-3).abs() < 1e-12 && (found.decode - 1e-3).abs() < 1e-12, "{found:?}");
        assert!((found.memcpy - 0.5e-3).abs() < 1e-12, "{found:?}");
    }

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
