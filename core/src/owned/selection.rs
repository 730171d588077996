//! An encode in two steps: one read of the gradient, and then a frame or rounds at one of several densities.

use crate::arithmetic::gain::{Gain, SquareSum};
use crate::codec::{Beside, Chosen, EncodeUnit, MultiLevel, Round, UnitInput, UnitStep, Whole, read_beside};
use crate::codecs::Dense;
use crate::corrected::Corrected;
use crate::error::EncodeError;
use crate::frame::gather::StepInput;
use crate::frame::message::{
    Encoding, check_frame_fits, check_units, codec_of, max_frame_bytes, momentum_of,
};
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::gradient::layout::{LayoutRef, Span};
use crate::gradient::unit::Unit;
use crate::kernels::{self, CANDIDATE_SLACK, Candidates};
use crate::memory::Memory;
use crate::owned::buffers::{Encoder, grow};
use crate::registry::codecs::{AsUnitCodec, Codec};
use crate::rng::key::StepKey;
use crate::scratch::{LinearScratch, Scratch};
use crate::wire::writer::Writer;
use alloc::vec::Vec;
use core::ops::Range;

/// What a step would send at several densities, from one read of residual and gradient. For callers that
/// decide on the density of a step after they know the [gain](Gain) of each.
///
/// 1. [`select`](Self::select) reads the gradient and the memory, changes neither, and gives the gain of each
///    density. It keeps p = fl(residual + gradient) or, with momentum, fl(residual + step), and the entries
///    that the codec sends at each density. Where these are the largest values, those of lower densities are
///    chosen among those that are enough for the highest one; otherwise they are chosen out of p.
/// 2. [`keep`](Self::keep) moves p into the memory, as if nothing were sent. Without a memory it is left out.
/// 3. [`encode`](Self::encode) writes the frame of one density and takes what it holds out of the memory.
///
/// For a [`Linear`](crate::Linear) codec, [`begin`](Self::begin) takes the place of the second and third step
/// if payloads are to be summed.
///
/// Frame, payload, memory and mean are then those of an [encode](crate::Gather::encode), or of
/// [rounds](crate::Linear::begin), with the codec at that density, bit for bit. Up to the second step a
/// selection can be dropped, and nothing has happened. A caller that sends everything calls
/// [`take_all`](Self::take_all) in place of the second and third step, and sends [`values`](Self::values).
///
/// It works with the codecs that [`fits`](Self::fits) allows; for others,
/// [`Trial`](crate::Trial) gives the gain. It holds 4 bytes a coordinate, 8 with momentum,
/// and 8 for each entry of each density; it allocates on the first call, and later only when units grow. A
/// memory that owns its storage trades it with the selection, so `keep` copies nothing.
///
/// # Examples
/// ```
/// use gradwire::{Density, Encoder, Grad, LayoutRef, Memory, Selection, Source, Spec};
/// use gradwire::{StepInput, StepKey, Unit};
///
/// let (spec, layout, units) = (Spec::parse("topk")?, LayoutRef::flat(4), [Unit::whole(4)]);
/// let mut memory = Memory::new(vec![0.0, 2.0, 0.0, 0.0]);
/// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
/// let grad = Grad::F32(&[1.0, 1.0, -2.0, 1.0]);
/// let densities = [0.5, 0.25].map(|share| Density::new(share).unwrap());
///
/// let step = StepInput { key, layout: &layout, units: &units, grad };
/// let mut selection = Selection::new();
/// let gains = selection.select(&spec.codec, &step, Some(&memory), &densities)?;
/// assert_eq!([gains[0].ratio(), gains[1].ratio()], [13.0 / 15.0, 9.0 / 15.0]);
/// assert_eq!(memory.residual(), [0.0, 2.0, 0.0, 0.0]);
///
/// // Half of the coordinates: the first of the two densities.
/// let mut encoder = Encoder::new();
/// selection.keep(&mut memory);
/// let frame = selection.encode(&mut encoder, 0, &layout, &units, Some(&mut memory));
/// assert_eq!(memory.residual(), [1.0, 0.0, 0.0, 1.0]);
///
/// let (mut other, half) = (Memory::new(vec![0.0, 2.0, 0.0, 0.0]), spec.codec.with_density(densities[0]));
/// let mut encoder = Encoder::new();
/// assert_eq!(frame, encoder.encode(&half, &step, Some(&mut other))?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Source
/// Tyagi, Swany: GraVAC (arXiv 2305.12201), whose multi-level compression compresses further what was
/// compressed once.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    of: Option<Selected>,
    is_kept: bool,
    gains: Vec<Gain>,
    /// p, one element a coordinate of the layout. Once it is kept, this is the residual before.
    values: Vec<f32>,
    /// The momentum after the step, likewise; empty for a codec without momentum.
    momentum: Vec<f32>,
    /// The entries of all densities, one after the other.
    indices: Vec<u32>,
    entries: Vec<u32>,
    spare: Vec<u32>,
}

/// What was selected.
#[derive(Clone, Debug)]
struct Selected {
    codec: Codec,
    key: StepKey,
    layout_len: usize,
    densities: Vec<Density>,
    units: Vec<UnitEntries>,
    has_memory: bool,
}

#[derive(Clone, Debug)]
struct UnitEntries {
    unit: Unit,
    whole: Whole,
    /// Where the entries of each density are; empty for a unit that is sent dense.
    places: Vec<Range<usize>>,
}

impl Selection {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether entries of this codec at several densities follow from one read of the gradient: [`TopK`],
    /// [`Dgc`], [`Redsync`], [`RandomK`], and [`Sidco`] with a fixed number of stages. With stages that
    /// adapt, they also depend on what earlier steps sent. No codec without a density fits.
    ///
    /// [`TopK`]: crate::codecs::TopK
    /// [`Dgc`]: crate::codecs::Dgc
    /// [`Redsync`]: crate::codecs::Redsync
    /// [`RandomK`]: crate::codecs::RandomK
    /// [`Sidco`]: crate::codecs::Sidco
    #[must_use]
    pub fn fits(codec: &Codec) -> bool {
        codec.as_unit_codec().as_multi_level().is_some()
    }

    /// Selects at each of the `densities`, which may be none and have any order, and returns as many gains.
    /// The codec's own density does not matter.
    ///
    /// The memory, if there is one, has the length of the layout. A gain is that of the values before they
    /// are coded: with `values=f32` it is that of the frame. Units that are sent dense count as sent whole.
    ///
    /// # Errors
    /// Those of [`encode`](crate::Gather::encode) at each of the densities, except that buffers grow. Without
    /// densities, values of any magnitude are allowed, since none is coded. After an error nothing is
    /// selected.
    ///
    /// # Panics
    /// For a codec that does not [fit](Self::fits), and when the gradient or the memory has another length
    /// than the layout.
    ///
    /// # Determinism
    /// Same codec, key, layout, units, gradient, memory and densities: same bits, on every machine. The order
    /// of sums is that of every gain.
    pub fn select(
        &mut self,
        codec: &Codec,
        step: &StepInput<'_>,
        memory: Option<&Memory<'_>>,
        densities: &[Density],
    ) -> Result<&[Gain], EncodeError> {
        (self.of, self.is_kept) = (None, false);
        let levels = codec.as_unit_codec().as_multi_level().expect("a codec that a selection fits");
        check(codec, step, memory, densities)?;
        let StepInput { key, layout, units, grad } = *step;
        self.gains.clear();
        self.gains.resize(densities.len(), Gain::default());
        self.values.resize(layout.len(), 0.0);
        self.momentum.resize(codec.momentum().map_or(0, |_| layout.len()), 0.0);
        let (mut selected, mut filled) = (Vec::with_capacity(units.len()), 0);
        for unit in units {
            let source = source_of(codec, unit, grad, memory, densities);
            let entries = if unit.dense {
                self.take_whole(unit, &source, densities.len())?
            } else {
                self.choose((levels, step, unit), &source, densities, &mut filled)?
            };
            selected.push(entries);
        }
        let (codec, layout_len, densities) = (*codec, layout.len(), densities.to_vec());
        let has_memory = memory.is_some();
        self.of = Some(Selected { codec, key, layout_len, densities, units: selected, has_memory });
        Ok(&self.gains)
    }

    /// The gain at each density of the last selection.
    #[must_use]
    pub fn gains(&self) -> &[Gain] {
        &self.gains
    }

    /// p, one element a coordinate of the layout: what is to be sent and kept. Coordinates outside of the
    /// units are unspecified. So are those after the first that was refused, if the selection failed; that
    /// one has the value that was refused.
    ///
    /// # Panics
    /// When p was [kept](Self::keep).
    #[must_use]
    pub fn values(&self) -> &[f32] {
        assert!(!self.is_kept, "the values were moved into the memory");
        &self.values
    }

    /// The position of a density in the last selection; `None` if nothing is selected, or not with it.
    #[must_use]
    pub fn position(&self, density: Density) -> Option<usize> {
        self.of.as_ref()?.densities.iter().position(|known| *known == density)
    }

    /// The codec of the last selection at the density with that position; `None` if nothing is selected, or
    /// if there is no such density.
    #[must_use]
    pub fn codec(&self, at: usize) -> Option<Codec> {
        let of = self.of.as_ref()?;
        Some(of.codec.with_density(*of.densities.get(at)?))
    }

    /// The key of the last selection; `None` if nothing is selected.
    #[must_use]
    pub fn key(&self) -> Option<StepKey> {
        self.of.as_ref().map(|of| of.key)
    }

    /// Moves p of all units into `memory`, which must be as it was for [`select`](Self::select), and the
    /// momentum after the step, if the codec has it. Everything is then kept, and nothing is sent yet.
    /// Coordinates outside of the units do not change.
    ///
    /// # Panics
    /// When nothing is selected, when it was selected without a memory, when it was kept before, and when the
    /// memory has another length than the layout.
    pub fn keep(&mut self, memory: &mut Memory<'_>) {
        let of = self.of.as_ref().expect("a selection");
        assert!(of.has_memory && !self.is_kept, "a selection with a memory, kept once");
        self.is_kept = true;
        fill_gaps(&mut self.values, memory.residual(), of.units.iter().map(|entries| &entries.unit));
        let largest = of.units.iter().map(|entries| entries.whole.largest.residual).max().unwrap_or(0);
        let bound = f32::from_bits(largest).max(of.bound_of_gaps(memory.magnitude_bound()));
        memory.take_residual(&mut self.values, bound);
        if let Some(known) = memory.momentum().filter(|_| !self.momentum.is_empty()) {
            let moved = of.units.iter().map(|entries| &entries.unit).filter(|unit| !unit.dense);
            fill_gaps(&mut self.momentum, known, moved);
            let largest = of.units.iter().map(|entries| entries.whole.largest.momentum).max().unwrap_or(0);
            let bound = if of.moves_all() { 0.0 } else { memory.momentum_bound() };
            memory.take_momentum(&mut self.momentum, f32::from_bits(largest).max(bound));
        }
    }

    /// Takes everything that was selected out of `memory`: the residual of all units becomes +0.0, and with
    /// momentum, that of the units that are not dense. For a caller that sends [`values`](Self::values) in
    /// another way.
    ///
    /// # Panics
    /// When nothing is selected, when it was kept, and when the memory has another length than the layout.
    pub fn take_all(&self, memory: &mut Memory<'_>) {
        let of = self.of.as_ref().expect("a selection");
        assert!(!self.is_kept, "the values were moved into the memory");
        assert_eq!(memory.len(), of.layout_len, "memory and layout differ in length");
        for UnitEntries { unit, .. } in &of.units {
            let mut memory = memory.slice(unit.range());
            let has_momentum = !unit.dense && !self.momentum.is_empty();
            let (residual, momentum) = memory.parts_mut();
            residual.unwrap_or_default().fill(0.0);
            momentum.filter(|_| has_momentum).unwrap_or_default().fill(0.0);
        }
    }

    /// Writes the frame of the density at position `at` into the encoder's buffer, and takes what it holds
    /// out of the memory, which is as [`keep`](Self::keep) left it. `layout` and `units` are those of
    /// [`select`](Self::select), or a run of those units, so that a step may consist of several frames; each
    /// unit is encoded once. Without a memory the frame can be written any number of times. Cannot fail: the
    /// selection has checked everything.
    ///
    /// # Panics
    /// When nothing is selected, when there is no such density, for other units or another layout than were
    /// selected, and unless a memory that was lent to the selection was kept and is lent here.
    ///
    /// # Determinism
    /// The bytes and the memory of [`encode`](crate::Gather::encode) with the codec at that density.
    pub fn encode<'e>(
        &self,
        encoder: &'e mut Encoder,
        at: usize,
        layout: &LayoutRef<'_>,
        units: &[Unit],
        memory: Option<&mut Memory<'_>>,
    ) -> &'e [u8] {
        let of = self.of.as_ref().expect("a selection");
        assert_eq!(layout.len(), of.layout_len, "another layout than that of the selection");
        assert_eq!(memory.is_some(), of.has_memory, "a memory for both steps, or for none");
        assert_eq!(memory.is_some(), self.is_kept, "the memory keeps the values first");
        let codec = self.codec(at).expect("a density of the selection");
        let mut rest = of.run(units).iter();
        let written = encoder.encode_by(&codec, layout, units, |scratch, out| {
            let unit_codec = codec.as_unit_codec();
            let step = StepInput { key: of.key, layout, units, grad: Grad::F32(&self.values) };
            let encoding = Encoding::new(unit_codec, &step);
            encoding.write_by(memory, scratch, out, |unit_codec, mut input, scratch, writer| {
                let entries = rest.next().expect("as many units as frames have");
                set_bounds(entries, &mut input);
                let chosen = entries.places.get(at);
                match (unit_codec.as_multi_level(), chosen) {
                    (Some(levels), Some(place)) => {
                        self.write_entries(levels, unit_codec, place, input, scratch, writer);
                        Ok(())
                    }
                    _ => write_dense(input, scratch, writer),
                }
            })
        });
        written.expect("the selection has checked what can fail")
    }

    /// Begins the rounds of one of the units at the density with position `at`, as
    /// [`Linear::begin`](crate::Linear::begin) does with the codec at that density. The rounds go on as with
    /// [`rounds_of`](crate::registry::LinearCodec::rounds_of) of that codec, and the memory as it was for
    /// [`select`](Self::select). Layout and unit are as for [`encode`](Self::encode). Copies p to the scratch
    /// memory; reads neither gradient nor memory.
    ///
    /// # Errors
    /// `LinearScratchTooSmall`: `scratch` has less than the codec needs at that density. The selection has
    /// checked everything else.
    ///
    /// # Panics
    /// When nothing is selected, when there is no such density, for another unit, layout or key than were
    /// selected, for a codec that is not linear, and when p was [kept](Self::keep).
    ///
    /// # Determinism
    /// Payload, mean and memory of [`Linear::begin`](crate::Linear::begin) and what follows it.
    pub fn begin(
        &self,
        at: usize,
        step: &UnitStep<'_>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        let of = self.of.as_ref().expect("a selection");
        assert_eq!(step.layout.len(), of.layout_len, "another layout than that of the selection");
        assert_eq!(step.key, of.key, "another key than that of the selection");
        let unit = step.unit;
        let [entries] = of.run(core::slice::from_ref(unit)) else { unreachable!("one for each unit") };
        let linear = self.codec(at).expect("a density of the selection").as_linear().expect("a linear codec");
        let (codec, p) = (linear.rounds_of(unit), &self.values()[unit.range()]);
        let needed = codec.round_scratch_len(step.layout, unit, step.workers);
        if !scratch.holds(needed) {
            return Err(EncodeError::LinearScratchTooSmall { needed });
        }
        let levels = linear.as_unit_codec().as_multi_level();
        let Some((levels, place)) = levels.zip(entries.places.get(at)) else {
            let round = codec.begin(step, Grad::F32(p), None, scratch)?;
            // Without a memory a codec need not write it, and the caller's memory takes it back from there.
            scratch.words[..unit.len].copy_from_slice(kernels::bits_of(p));
            return Ok(round);
        };
        let entries = (&self.indices[place.clone()], &self.entries[place.clone()]);
        Ok(levels.begin_chosen(unit, p, entries, scratch).expect("the rounds of a linear codec"))
    }

    /// Copies the entries to the scratch memory and writes their body.
    fn write_entries(
        &self,
        levels: &dyn MultiLevel,
        codec: &dyn EncodeUnit,
        place: &Range<usize>,
        input: UnitInput<'_, '_>,
        scratch: &mut Scratch<'_>,
        writer: &mut Writer<'_>,
    ) {
        debug_assert!(scratch.holds(codec.unit_scratch_len(input.unit.len)), "the encoder made room");
        let (indices, words) = scratch.words.split_at_mut(place.len());
        let (values, words) = words.split_at_mut(place.len());
        indices.copy_from_slice(&self.indices[place.clone()]);
        values.copy_from_slice(&self.entries[place.clone()]);
        let len = place.len();
        let scratch = Scratch { words, bytes: scratch.bytes };
        levels.encode_chosen(input, Candidates { indices, values, len }, scratch, writer);
    }

    /// Writes p of a unit whose entries need not be chosen: it is sent dense, or at no density.
    fn take_whole(
        &mut self,
        unit: &Unit,
        source: &Corrected<'_>,
        densities: usize,
    ) -> Result<UnitEntries, EncodeError> {
        let whole = read_beside(source, &mut beside(&mut self.values, &mut self.momentum, unit), |_, _| {})?;
        let gain = Gain { sent: whole.squares, whole: whole.squares };
        self.gains[..densities].iter_mut().for_each(|sum| *sum += gain);
        Ok(UnitEntries { unit: *unit, whole, places: Vec::new() })
    }

    /// Chooses the entries of a unit at each density, after the `filled` entries of the units before it.
    fn choose(
        &mut self,
        (levels, step, unit): (&dyn MultiLevel, &StepInput<'_>, &Unit),
        source: &Corrected<'_>,
        densities: &[Density],
        filled: &mut usize,
    ) -> Result<UnitEntries, EncodeError> {
        let Some(&most) = densities.iter().max() else { return self.take_whole(unit, source, 0) };
        let (room, spares) = (levels.held_len(most, unit.len), densities.iter());
        let spare = spares.map(|&density| levels.spare_len(density, unit.len)).max().unwrap_or(0);
        grow(&mut self.spare, spare);
        self.grow_entries(*filled + room);
        let mut beside = beside(&mut self.values, &mut self.momentum, unit);
        let (indices, values) = (&mut self.indices[*filled..], &mut self.entries[*filled..]);
        let mut held = Candidates { indices: &mut indices[..room], values: &mut values[..room], len: 0 };
        let whole = levels.hold(most, source, &mut beside, &mut held, &mut self.spare)?;
        let held = *filled..*filled + held.len;
        *filled = held.end;
        let mut places = Vec::with_capacity(densities.len());
        for (&density, gain) in densities.iter().zip(0..) {
            let place = self.choose_at((levels, step, unit), density, held.clone(), filled);
            self.gains[gain] +=
                Gain { sent: SquareSum::of(&self.entries[place.clone()]), whole: whole.squares };
            places.push(place);
        }
        Ok(UnitEntries { unit: *unit, whole, places })
    }

    /// Where the entries at that density are, out of those that are held.
    fn choose_at(
        &mut self,
        (levels, step, unit): (&dyn MultiLevel, &StepInput<'_>, &Unit),
        density: Density,
        held: Range<usize>,
        filled: &mut usize,
    ) -> Range<usize> {
        let (start, len) = (*filled, held.len());
        self.grow_entries(start + len.max(levels.choice_len(density, unit.len)) + CANDIDATE_SLACK);
        self.indices.copy_within(held.clone(), start);
        self.entries.copy_within(held.clone(), start);
        let (indices, values) = (&mut self.indices[start..], &mut self.entries[start..]);
        let mut candidates = Candidates { indices, values, len };
        let span = Span::of(step.layout, unit);
        let of = Chosen { density, key: step.key, unit: unit.id, span, p: &self.values[unit.range()] };
        levels.choose(&of, &mut candidates, &mut self.spare);
        if candidates.len == len {
            return held;
        }
        *filled += candidates.len;
        start..*filled
    }

    fn grow_entries(&mut self, len: usize) {
        grow(&mut self.indices, len);
        grow(&mut self.entries, len);
    }
}

impl Selected {
    /// These units among those that were selected.
    ///
    /// # Panics
    /// When they are not there, one after the other.
    fn run(&self, units: &[Unit]) -> &[UnitEntries] {
        let first = units.first().and_then(|first| self.units.iter().position(|of| of.unit == *first));
        let run = first.and_then(|first| self.units.get(first..first + units.len()));
        let run = run.expect("units of the selection");
        assert!(run.iter().zip(units).all(|(of, unit)| of.unit == *unit), "other units than were selected");
        run
    }

    fn covers_all(&self) -> bool {
        self.units.iter().map(|of| of.unit.len).sum::<usize>() == self.layout_len
    }

    fn moves_all(&self) -> bool {
        self.covers_all() && self.units.iter().all(|of| !of.unit.dense)
    }

    /// A bound on what the memory keeps outside of the units.
    fn bound_of_gaps(&self, known: f32) -> f32 {
        if self.covers_all() { 0.0 } else { known }
    }
}

/// Checks what an encode at each of the densities would check, except for values.
fn check(
    codec: &Codec,
    step: &StepInput<'_>,
    memory: Option<&Memory<'_>>,
    densities: &[Density],
) -> Result<(), EncodeError> {
    let encoding = Encoding::new(codec.as_unit_codec(), step);
    encoding.check_lengths(memory)?;
    check_units(step.layout, step.units)?;
    for &density in densities {
        let codec = codec.with_density(density);
        check_frame_fits(max_frame_bytes(codec.as_unit_codec(), step.units), usize::MAX)?;
    }
    encoding.check_parts(memory)
}

/// The values that a unit encodes.
fn source_of<'a>(
    codec: &Codec,
    unit: &Unit,
    grad: Grad<'a>,
    memory: Option<&'a Memory<'_>>,
    densities: &[Density],
) -> Corrected<'a> {
    let codec = codec_of(codec.as_unit_codec(), unit);
    let view = memory.map(|memory| memory.view(unit.range()));
    let bound = if densities.is_empty() { f32::INFINITY } else { codec.overflow_bound() };
    let momentum = momentum_of(codec).zip(view.and_then(|view| view.momentum));
    let (grad, residual) = (grad.slice(unit.start, unit.len), view.map(|view| view.residual));
    Corrected::new(grad, residual, unit.start, bound).with_momentum(momentum)
}

/// Where p and the momentum of a unit go. A unit that is sent dense has no momentum to write.
fn beside<'b>(values: &'b mut [f32], momentum: &'b mut [f32], unit: &Unit) -> Beside<'b> {
    let is_moved = !unit.dense && !momentum.is_empty();
    let momentum = if is_moved { &mut momentum[unit.range()] } else { &mut [] };
    Beside { p: &mut values[unit.range()], momentum }
}

/// Copies what lies outside of the units.
fn fill_gaps<'u>(into: &mut [f32], from: &[f32], units: impl Iterator<Item = &'u Unit>) {
    assert_eq!(into.len(), from.len(), "memory and layout differ in length");
    let mut end = 0;
    for unit in units {
        into[end..unit.start].copy_from_slice(&from[end..unit.start]);
        end = unit.range().end;
    }
    into[end..].copy_from_slice(&from[end..]);
}

/// Tells the unit's part of the memory what is known of p and of the momentum there.
fn set_bounds(entries: &UnitEntries, input: &mut UnitInput<'_, '_>) {
    let Some(memory) = &mut input.memory else { return };
    memory.set_magnitude_bound(f32::from_bits(entries.whole.largest.residual));
    if input.momentum.is_some() {
        memory.set_momentum_bound(f32::from_bits(entries.whole.largest.momentum));
    }
}

/// The body of a unit that is sent dense. The memory holds p, and then nothing.
fn write_dense(
    mut input: UnitInput<'_, '_>,
    scratch: &mut Scratch<'_>,
    writer: &mut Writer<'_>,
) -> Result<(), EncodeError> {
    let Some(memory) = input.memory.take() else { return Dense::F32.encode_body(input, scratch, writer) };
    let input = UnitInput { grad: Grad::F32(memory.residual()), memory: None, ..input };
    Dense::F32.encode_body(input, scratch, writer)?;
    memory.residual_mut().fill(0.0);
    memory.set_magnitude_bound(0.0);
    Ok(())
}
