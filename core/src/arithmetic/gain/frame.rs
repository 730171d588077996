//! The gain of a frame that was written.

use super::Gain;
use super::squares::SquareSum;
use crate::corrected::{BLOCK, Corrected};
use crate::error::EncodeError;
use crate::frame::{Frame, FrameUnit};
use crate::gradient::grad::Grad;
use crate::kernels::{self, Isa};

/// The gain of the encode that wrote `frame` and left `residual`, which has one element for each coordinate
/// of the layout.
///
/// Each coordinate that was encoded is the sum of what was sent and what was kept, so no other input is
/// needed. Codecs of the class [rounded](crate::registry::Law::Rounded) keep fl(p − sent), so p is known
/// except for that rounding. Reads the residual once. For one of several packets, it is the gain of that
/// packet's own coordinates.
///
/// # Panics
/// When `residual` has another length than the layout.
///
/// # Examples
#[cfg_attr(feature = "alloc", doc = "```")]
#[cfg_attr(not(feature = "alloc"), doc = "```ignore")]
/// use gradwire::arithmetic::gain::of_frame_and_residual;
/// use gradwire::{Decoder, Encoder, Grad, LayoutRef, Limits, Memory, Source, Spec, StepInput, StepKey, Unit};
///
/// let (spec, layout) = (Spec::parse("topk:density=0.25")?, LayoutRef::flat(4));
/// let mut memory = Memory::for_spec(&spec, &layout).unwrap();
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let grad = Grad::F32(&[1.0, -3.0, 1.0, 1.0]);
/// let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
/// let step = StepInput { key, layout: &layout, units: &[Unit::whole(4)], grad };
/// let frame = encoder.encode(&spec.codec, &step, Some(&mut memory))?;
/// let frame = decoder.parse(frame, &layout, &Limits::for_layout(&layout))?;
/// assert_eq!(of_frame_and_residual(&frame, memory.residual()).ratio(), 9.0 / 12.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn of_frame_and_residual(frame: &Frame<'_>, residual: &[f32]) -> Gain {
    assert_eq!(residual.len(), frame.layout_len(), "residual and layout differ in length");
    let mut gain = Gain::default();
    frame.units().for_each(|unit| gain += sent_and_kept(&unit, &residual[unit.range()]));
    gain
}

fn sent_and_kept(unit: &FrameUnit<'_>, residual: &[f32]) -> Gain {
    let (mut sent, mut whole, mut passed) = (SquareSum::new(), SquareSum::new(), 0);
    unit.for_each(|at, value| {
        sent.push(value);
        whole.extend(&residual[passed..at]);
        whole.push(residual[at] + value);
        passed = at + 1;
    });
    whole.extend(&residual[passed..]);
    Gain { sent: sent.total(), whole: whole.total() }
}

/// The gain of the encode that made `frame` of `grad` without a memory. A gradient that is not finite has no
/// such frame, and its gain is NaN. Reads the gradient once.
///
/// # Panics
/// When `grad` has another length than the layout.
#[must_use]
pub fn of_frame_and_gradient(frame: &Frame<'_>, grad: Grad<'_>) -> Gain {
    assert_eq!(grad.len(), frame.layout_len(), "gradient and layout differ in length");
    let mut gain = Gain::default();
    for unit in frame.units() {
        let range = unit.range();
        let grad = grad.slice(range.start, range.len());
        let mut sent = SquareSum::new();
        unit.for_each(|_, value| sent.push(value));
        let whole = squares(&Corrected::new(grad, None, range.start, f32::INFINITY)).unwrap_or(f64::NAN);
        gain += Gain { sent: sent.total(), whole };
    }
    gain
}

/// ‖p‖².
///
/// # Errors
/// The errors of [`Corrected::fold`].
pub(super) fn squares(source: &Corrected<'_>) -> Result<f64, EncodeError> {
    let (mut whole, mut room) = (SquareSum::new(), [0; BLOCK]);
    for first in (0..source.len()).step_by(BLOCK) {
        let room = &mut room[..BLOCK.min(source.len() - first)];
        let (p, _) = source.bits(Isa::best(), first, room)?;
        whole.extend(kernels::floats_of(p));
    }
    Ok(whole.total())
}
