//! Encoding and adding on several threads: the feature `parallel`.

use crate::codec::{PacketSize, ParseBody};
use crate::error::EncodeError;
use crate::frame::FrameUnit;
use crate::frame::gather::{Gather, StepInput};
use crate::frame::message::Encoding;
use crate::frame::packets::Packets;
use crate::frame::rounds_first::RoundsFirst;
use crate::gradient::grad::Grad;
use crate::gradient::unit::Unit;
use crate::memory::Memory;
use crate::registry::AsUnitCodec;
use crate::scratch::{Scratch, ScratchLen};
use crate::threads;
use crate::wire::ids::CodecId;
use alloc::vec::Vec;

/// The same codec on the threads of the rayon pool in which the caller runs. Its frames, its errors and the
/// memory that it leaves are the same, bit for bit, for any number of threads.
///
/// Units are cut into parts of 32,768 elements or more. These run in parts: the check of all values, casts
/// and the checksum of their output, the selection pass of [`TopK`](crate::codecs::TopK), norms, rounding and
/// fixed packing of [`Qsgd`](crate::codecs::Qsgd). These run on one thread: selection among the candidates,
/// index coders, entropy coders, the passes of DGC and SIDCo, packets, and codecs of other crates. The lists
/// of parts are allocated at each call. A [plan on threads](crate::plan::Plan::on_threads) also adds received
/// units side by side.
///
/// # Examples
/// ```
/// use gradwire::{Encoder, Grad, LayoutRef, Parallel, Source, StepInput, StepKey, Unit};
/// use gradwire::codecs::Dense;
///
/// let grad = vec![0.5; 100_000];
/// let (layout, units) = (LayoutRef::flat(grad.len()), [Unit::whole(grad.len())]);
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let (mut one, mut many) = (Encoder::new(), Encoder::new());
/// let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&grad) };
/// let expected = one.encode(&Dense::Bf16, &step, None).unwrap();
/// let frame = many.encode(&Parallel(Dense::Bf16), &step, None).unwrap();
/// assert_eq!(frame, expected);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parallel<C>(pub C);

impl<C: AsUnitCodec> Gather for Parallel<C> {
    fn id(&self) -> CodecId {
        self.0.id()
    }

    fn parser(&self) -> Option<&dyn ParseBody> {
        self.0.parser()
    }

    fn rounds_first(&self) -> Option<&dyn RoundsFirst> {
        self.0.rounds_first()
    }

    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize> {
        self.0.max_frame_bytes(units)
    }

    fn scratch_len(&self, units: &[Unit]) -> ScratchLen {
        self.0.scratch_len(units)
    }

    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let threads = rayon::current_num_threads();
        let codec = self.0.as_unit_codec();
        if codec.as_experiment().is_some() {
            return self.0.encode(step, memory, scratch, out);
        }
        Encoding { threads, ..Encoding::new(codec, step) }.encode(memory, scratch, out)
    }

    fn encode_beside(
        &self,
        step: &StepInput<'_, &[Grad<'_>]>,
        before: &Memory<'_>,
        memory: &mut Memory<'_>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let threads = rayon::current_num_threads();
        if self.0.as_unit_codec().as_experiment().is_some() {
            return self.0.encode_beside(step, before, memory, scratch, out);
        }
        let encoding = Encoding::beside(self.0.as_unit_codec(), step, before);
        Encoding { threads, ..encoding }.encode_beside(before, memory, scratch, out)
    }

    fn packet_scratch_len(&self, units: &[Unit], size: PacketSize) -> ScratchLen {
        self.0.packet_scratch_len(units, size)
    }

    fn packets<'a>(
        &'a self,
        step: &StepInput<'a>,
        memory: Option<&'a mut Memory<'_>>,
        scratch: &'a mut Scratch<'_>,
        size: PacketSize,
    ) -> Result<Packets<'a>, EncodeError> {
        self.0.packets(step, memory, scratch, size)
    }
}

/// Adds each unit to its accumulator, several at a time.
pub(crate) fn add_units(weight: f32, units: Vec<(FrameUnit<'_>, &mut [f32])>) {
    threads::on_each(units, |(unit, sum)| unit.add_scaled_to(weight, sum));
}
