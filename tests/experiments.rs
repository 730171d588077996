//! Codecs of other crates: their frames keep every law that frames of this crate keep, and what they get
//! wrong is refused.

use gradwire::experiments::{
    BodyOutline, EncodeBody, Experiment, Experimental, ParseBody, Refused, UnitBody, UnitSource,
    frame_scratch_len_with,
};
use gradwire::format::{Field, Header, Limit, VoidFrame};
use gradwire::packets::PacketSize;
use gradwire::registry::Law;
use gradwire::{
    DecodeError, Decoder, EncodeError, Encoder, Frame, Gather, Grad, Layout, Limits, Memory, Scratch,
    ScratchLen, Source, Spec, StepInput, StepKey, Trial, Unit,
};
use gradwire_tests::inputs::Words;
use gradwire_tests::naive::header;
use gradwire_tests::run::{self, bits};
use proptest::prelude::*;

/// Coordinates at least half as large as the largest: their number, then position and value of each.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    /// What it does wrong.
    fault: Fault,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    /// Sends next to nothing, and says that it keeps exactly what is left.
    Shrinks,
    /// Writes a body that it refuses to read.
    RefusesItself,
    /// Says that the body holds one more coordinate than it does.
    Overstates,
    /// Visits the first coordinate twice.
    Repeats,
    /// Says that it wrote more than it may.
    Overruns,
    /// Sends infinity.
    Infinite,
}

const NUMBER: u8 = 0xf3;
const ENTRY_BYTES: usize = 8;

impl ParseBody for Peaks {
    fn experiment(&self) -> Experiment {
        Experiment::new(NUMBER).unwrap()
    }

    fn name(&self) -> &'static str {
        "peaks"
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        let Some(count) = body.bytes.first_chunk() else {
            return Ok(BodyOutline { bytes: 4, ..Default::default() });
        };
        let held = u32::from_le_bytes(*count) as usize;
        if held > 1 << 20 {
            return Err(Refused::new("so many peaks"));
        }
        let stated = held + usize::from(self.fault == Fault::Overstates && body.unit.len > 0);
        Ok(BodyOutline { bytes: 4 + ENTRY_BYTES * held, held: stated, scratch_words: 2 * held })
    }

    fn check(&self, body: &UnitBody<'_>, scratch: &mut [u32]) -> Result<(), Refused> {
        if self.fault == Fault::RefusesItself {
            return Err(Refused::new("not mine"));
        }
        for (word, bytes) in scratch.iter_mut().zip(body.bytes[4..].chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().unwrap());
        }
        if scratch.iter().skip(1).step_by(2).any(|value| f32::from_bits(*value) == 0.0) {
            return Err(Refused::new("a peak of zero"));
        }
        Ok(())
    }

    fn visit(&self, _: &UnitBody<'_>, scratch: &[u32], f: &mut dyn FnMut(usize, f32)) {
        for entry in scratch.chunks_exact(2) {
            f(entry[0] as usize, f32::from_bits(entry[1]));
            if self.fault == Fault::Repeats {
                f(entry[0] as usize, f32::from_bits(entry[1]));
            }
        }
    }
}

impl EncodeBody for Peaks {
    fn law(&self) -> Law {
        Law::Exact
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        len.checked_mul(ENTRY_BYTES)?.checked_add(4)
    }

    fn scratch_len(&self, len: usize) -> ScratchLen {
        ScratchLen { words: len, bytes: 3 }
    }

    fn max_parse_words(&self, len: usize) -> usize {
        2 * len
    }

    fn encode_body(
        &self,
        source: &UnitSource<'_>,
        values: &[f32],
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        assert_eq!(values.len(), source.unit.len);
        assert!(scratch.words.len() >= values.len() && scratch.bytes.len() >= 3);
        scratch.words.fill(0xa5a5_a5a5);
        scratch.bytes.fill(0xa5);
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        if largest > 1e30 {
            return Err(Refused::new("too high for a peak"));
        }
        let mut len = 4;
        for (i, &value) in
            values.iter().enumerate().filter(|(_, value)| largest > 0.0 && 2.0 * value.abs() >= largest)
        {
            let sent = match self.fault {
                Fault::Shrinks => 1.3e-12 * value,
                Fault::Infinite => f32::INFINITY,
                _ => value,
            };
            out[len..len + 4].copy_from_slice(&(i as u32).to_le_bytes());
            out[len + 4..len + 8].copy_from_slice(&sent.to_le_bytes());
            len += ENTRY_BYTES;
        }
        out[..4].copy_from_slice(&((len / ENTRY_BYTES) as u32).to_le_bytes());
        Ok(if self.fault == Fault::Overruns { out.len() + 1 } else { len })
    }
}

/// Every coordinate as one bit, for which all of them have the same magnitude; keeps what is rounded off.
struct Halves;

impl ParseBody for Halves {
    fn experiment(&self) -> Experiment {
        Experiment::new(0xfe).unwrap()
    }

    fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
        Ok(BodyOutline { bytes: 4 + body.unit.len, held: body.unit.len, scratch_words: 0 })
    }

    fn visit(&self, body: &UnitBody<'_>, _: &[u32], f: &mut dyn FnMut(usize, f32)) {
        let Some((scale, signs)) = body.bytes.split_first_chunk() else { return };
        let scale = f32::from_le_bytes(*scale);
        signs.iter().enumerate().for_each(|(i, &sign)| f(i, if sign == 0 { scale } else { -scale }));
    }
}

impl EncodeBody for Halves {
    fn law(&self) -> Law {
        Law::Rounded
    }

    fn max_body_bytes(&self, len: usize) -> Option<usize> {
        len.checked_add(4)
    }

    fn encode_body(
        &self,
        _: &UnitSource<'_>,
        values: &[f32],
        _: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, Refused> {
        let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
        let (scale, signs) = out.split_at_mut(4);
        scale.copy_from_slice(&((sum / values.len().max(1) as f64) as f32).to_le_bytes());
        signs.iter_mut().zip(values).for_each(|(sign, value)| *sign = u8::from(*value < 0.0));
        Ok(4 + values.len())
    }
}

const KEY: StepKey = StepKey { seed: 7, step: 300, source: Source::Rank(2) };

fn layout() -> Layout {
    run::layout(&[vec![40, 3], vec![9], vec![31], vec![0]])
}

/// The second tensor goes dense; the empty one is a unit too.
fn units() -> [Unit; 4] {
    [
        Unit { id: 0, start: 0, len: 120, dense: false },
        Unit { id: 1, start: 120, len: 9, dense: true },
        Unit { id: 4, start: 129, len: 31, dense: false },
        Unit { id: 5, start: 160, len: 0, dense: false },
    ]
}

fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut words = Words::new(seed);
    (0..len)
        .map(|_| (words.below(2001) as f32 - 1000.0) / 64.0 * if words.below(9) == 0 { 1e-9 } else { 1.0 })
        .collect()
}

/// A frame in buffers of exactly the stated sizes.
fn encode(
    codec: &dyn Gather,
    grad: Grad<'_>,
    memory: Option<&mut Memory<'_>>,
    fill: u8,
) -> Result<Vec<u8>, EncodeError> {
    let (layout, units) = (layout(), units());
    let needed = codec.scratch_len(&units);
    let (mut words, mut bytes) = (vec![0xa5a5_a5a5; needed.words], vec![fill; needed.bytes]);
    let mut out = vec![fill; codec.max_frame_bytes(&units).unwrap()];
    let mut scratch = Scratch { words: &mut words, bytes: &mut bytes };
    let input = StepInput { key: KEY, layout: &layout.as_ref(), units: &units, grad };
    let len = codec.encode(&input, memory, &mut scratch, &mut out)?;
    out.truncate(len);
    Ok(out)
}

/// Hands the parsed frame to `f`, in scratch memory of exactly the stated size.
fn parse<T>(
    bytes: &[u8],
    parser: Option<&dyn ParseBody>,
    limits: &Limits,
    f: impl FnOnce(&Frame<'_>) -> T,
) -> Result<T, DecodeError> {
    let layout = layout();
    let words = frame_scratch_len_with(bytes, &layout.as_ref(), limits, parser)?;
    let mut scratch = vec![0xa5a5_a5a5; words];
    let frame = Frame::parse_with(bytes, &layout.as_ref(), limits, parser, &mut scratch)?;
    Ok(f(&frame))
}

fn limits() -> Limits {
    Limits::for_layout(&layout().as_ref())
}

/// The same bits, but for the sign of a zero.
fn plain(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

#[test]
fn sent_and_kept_add_up_to_what_was_there_bit_for_bit() {
    let codec = Experimental(Peaks::default());
    let n = layout().len();
    let mut memory = Memory::new(values(1, n));
    for step in 0..5 {
        let grad = values(2 + step, n);
        let p: Vec<f32> = memory.residual().iter().zip(&grad).map(|(kept, grad)| kept + grad).collect();
        let frame = encode(&codec, Grad::F32(&grad), Some(&mut memory), 0).unwrap();
        let sum = parse(&frame, codec.parser(), &limits(), |frame| {
            let mut sum = memory.residual().to_vec();
            frame.add_scaled_to(1.0, &mut sum);
            assert_eq!((frame.step(), frame.header().codec.number()), (300, NUMBER));
            let infos: Vec<_> = frame.units().map(|unit| (unit.info().kind, unit.id())).collect();
            assert_eq!(infos, [("peaks", 0), ("dense", 1), ("peaks", 4), ("peaks", 5)]);
            let mut restored = Memory::new(memory.residual().to_vec());
            restored.give_back(frame);
            assert_eq!(plain(restored.residual()), plain(&p));
            let held: usize = frame.units().map(|unit| unit.held()).sum();
            assert!(held > 9 && held < n, "{held}");
            sum
        });
        assert_eq!(plain(&sum.unwrap()), plain(&p));
        assert!(memory.residual().iter().any(|kept| *kept != 0.0));
    }
}

#[test]
fn what_is_rounded_off_is_kept_to_one_rounding() {
    let (codec, n) = (Experimental(Halves), layout().len());
    let (grad, before) = (values(5, n), values(6, n));
    let mut memory = Memory::new(before.clone());
    let frame = encode(&codec, Grad::F32(&grad), Some(&mut memory), 0).unwrap();
    let sent = parse(&frame, codec.parser(), &limits(), |frame| {
        let mut sent = vec![0.0; n];
        frame.add_scaled_to(1.0, &mut sent);
        sent
    });
    for ((kept, sent), (before, grad)) in
        memory.residual().iter().zip(sent.unwrap()).zip(before.iter().zip(&grad))
    {
        assert_eq!(*kept, (before + grad) - sent);
    }
}

#[test]
fn a_frame_depends_on_its_inputs_alone_and_narrow_gradients_are_widened() {
    let codec = Experimental(Peaks::default());
    let half = run::Gradient::new("bf16", &values(8, layout().len()));
    let wide = half.widened();
    let frame = encode(&codec, Grad::F32(&wide), None, 0).unwrap();
    assert_eq!(encode(&codec, Grad::F32(&wide), None, 0xff), Ok(frame.clone()));
    assert_eq!(encode(&codec, half.as_grad(), None, 0x3c), Ok(frame.clone()));
    let mut memory = Memory::new(vec![0.0; wide.len()]);
    assert_eq!(encode(&codec, half.as_grad(), Some(&mut memory), 0x3c), Ok(frame));
}

#[test]
fn readers_without_the_parser_refuse_an_experiment_and_those_with_it_read_all_others() {
    let codec = Experimental(Peaks::default());
    let frame = encode(&codec, Grad::F32(&values(1, layout().len())), None, 0).unwrap();
    let unknown = DecodeError::UnknownCodec(NUMBER);
    let told = "unknown codec 0xf3: of another crate or of Python, and not registered here";
    assert_eq!(unknown.to_string(), told);
    assert_eq!(DecodeError::UnknownCodec(0xef).to_string(), "unknown codec 239");
    assert_eq!(Header::parse(&frame), Err(unknown));
    assert_eq!(Header::parse_with(&frame, codec.parser()).unwrap().codec, codec.id());
    assert_eq!(parse(&frame, None, &limits(), |_| ()), Err(unknown));
    assert_eq!(parse(&frame, Some(&Halves), &limits(), |_| ()), Err(unknown));
    assert_eq!(Decoder::new().parse(&frame, &layout().as_ref(), &limits()).unwrap_err(), unknown);
    assert!(Decoder::new().parse_with(&frame, &layout().as_ref(), &limits(), codec.parser()).is_ok());

    let known = Spec::parse("topk:density=0.1").unwrap().codec;
    assert!(known.parser().is_none());
    let frame = encode(&known, Grad::F32(&values(1, layout().len())), None, 0).unwrap();
    assert_eq!(parse(&frame, codec.parser(), &limits(), |_| ()), Ok(()));
}

#[test]
fn a_trial_of_an_experiment_says_what_its_encode_sends() {
    let (codec, layout, grad) = (Experimental(Peaks::default()), layout(), values(1, layout().len()));
    let (layout, units, grad) = (layout.as_ref(), units(), Grad::F32(&grad));
    let key = StepKey { seed: 1, step: 2, source: Source::Rank(3) };
    let mut memory = Memory::new(vec![0.25; layout.len()]);
    let mut trial = Trial::new();
    let tried = trial
        .encode(&codec, &StepInput { key, layout: &layout, units: &units, grad }, Some(&memory))
        .unwrap();
    assert!(tried.gain.sent > 0.0 && tried.gain.sent < tried.gain.whole, "{:?}", tried.gain);
    assert!(memory.residual().iter().all(|kept| *kept == 0.25), "the memory is as it was");
    let mut encoder = Encoder::new();
    let frame = encoder
        .encode(&codec, &StepInput { key, layout: &layout, units: &units, grad }, Some(&mut memory))
        .unwrap();
    assert_eq!(tried.frame, frame);
}

#[test]
fn a_void_frame_of_an_experiment_takes_no_parser() {
    let (layout, codec) = (layout(), Experiment::new(0xf3).unwrap().codec());
    let (void, mut out) = (VoidFrame { codec, step: 7, index: 3 }, [0; VoidFrame::MAX_BYTES]);
    let bytes = void.write(&layout.as_ref(), &mut out).unwrap();
    assert_eq!(VoidFrame::parse(&out[..bytes], &layout.as_ref()), Ok(Some(void)));
    out[3] = 0xef;
    assert_eq!(VoidFrame::parse(&out[..bytes], &layout.as_ref()), Err(DecodeError::UnknownCodec(0xef)));
}

#[test]
fn a_kind_is_read_only_under_the_codec_with_its_number() {
    let body = [0, 0, 0, 9, NUMBER, 0, 0, 0, 0];
    let shapes = [vec![40, 3], vec![9], vec![31], vec![0]];
    let mut frame = header::frame(NUMBER, 1, header::fingerprint(&shapes), &body);
    assert_eq!(parse(&frame, Some(&Peaks::default()), &limits(), |_| ()), Ok(()));
    for (codec, kind) in [(3, NUMBER), (NUMBER, 1), (NUMBER, 0xfe)] {
        (frame[3], frame[28]) = (codec, kind);
        header::patch_checksum(&mut frame);
        let refused = parse(&frame, Some(&Peaks::default()), &limits(), |_| ());
        assert_eq!(refused, Err(DecodeError::InvalidField(Field::Kind)), "kind {kind} under {codec}");
    }
}

#[test]
fn what_the_parser_refuses_is_reported_with_its_unit() {
    let codec = Experimental(Peaks::default());
    let frame = encode(&codec, Grad::F32(&values(1, layout().len())), None, 0).unwrap();
    let refused_as = |frame: &mut Vec<u8>, at: usize, with: [u8; 4]| {
        let was: [u8; 4] = frame[at..at + 4].try_into().unwrap();
        frame[at..at + 4].copy_from_slice(&with);
        header::patch_checksum(frame);
        let mut acc = vec![0.5; layout().len()];
        let result = parse(frame, codec.parser(), &limits(), |frame| frame.add_scaled_to(1.0, &mut acc));
        assert!(acc.iter().all(|sum| *sum == 0.5), "the accumulator was touched");
        frame[at..at + 4].copy_from_slice(&was);
        result.unwrap_err()
    };
    // Unit 4 is the third, and its body begins with the number of its entries, a position and a value.
    let unit =
        parse(&frame, codec.parser(), &limits(), |frame| frame.units().last().unwrap().info()).unwrap();
    let (mut frame, empty) = (frame.clone(), unit.body_bytes);
    assert_eq!(empty, 4);
    let held =
        parse(&frame, codec.parser(), &limits(), |frame| frame.units().nth(2).unwrap().held()).unwrap();
    let body = frame.len() - empty - 4 - ENTRY_BYTES * held - 4;
    let experiment = |why| DecodeError::Experiment { unit: 4, why };
    assert_eq!(refused_as(&mut frame, body, [0xff; 4]), experiment("so many peaks"));
    assert_eq!(refused_as(&mut frame, body, [32, 0, 0, 0]), experiment("more coordinates than the unit has"));
    assert_eq!(refused_as(&mut frame, body + 8, [0; 4]), experiment("a peak of zero"));
    assert_eq!(refused_as(&mut frame, body + 4, [31, 0, 0, 0]), DecodeError::IndexOutOfRange);
    assert_eq!(refused_as(&mut frame, body + 8, [0, 0, 0x80, 0x7f]), DecodeError::NonFiniteValue);
    assert_eq!(experiment("so many peaks").to_string(), "unit 4 refused by the experiment: so many peaks");
    let repeats = Peaks { fault: Fault::Repeats };
    header::patch_checksum(&mut frame);
    assert_eq!(parse(&frame, Some(&repeats), &limits(), |_| ()), Err(DecodeError::IndexOutOfRange));
    let overstates = Peaks { fault: Fault::Overstates };
    let more =
        DecodeError::Experiment { unit: 0, why: "another number of coordinates than its outline says" };
    assert_eq!(parse(&frame, Some(&overstates), &limits(), |_| ()), Err(more));
}

#[test]
fn limits_hold_for_bodies_of_an_experiment() {
    let codec = Experimental(Peaks::default());
    let grad = values(1, layout().len());
    let frame = encode(&codec, Grad::F32(&grad), None, 0).unwrap();
    let held = parse(&frame, codec.parser(), &limits(), |frame| {
        frame.units().filter(|unit| unit.info().kind == "peaks").map(|unit| unit.held()).sum::<usize>()
    });
    let held = held.unwrap();
    let exact = Limits {
        max_elements: grad.len(),
        max_entries: held,
        max_scratch_words: 2 * held,
        max_units: 4,
        max_body_bytes: frame.len() - 24,
        max_magnitude: grad.iter().fold(0.0, |largest, value| largest.max(value.abs())),
    };
    assert_eq!(parse(&frame, codec.parser(), &exact, |_| ()), Ok(()));
    for (limits, limit) in [
        (Limits { max_elements: exact.max_elements - 1, ..exact }, Limit::Elements),
        (Limits { max_entries: held - 1, ..exact }, Limit::Entries),
        (Limits { max_scratch_words: 2 * held - 1, ..exact }, Limit::ScratchWords),
        (Limits { max_units: 3, ..exact }, Limit::Units),
        (Limits { max_body_bytes: frame.len() - 25, ..exact }, Limit::BodyBytes),
        (Limits { max_magnitude: exact.max_magnitude / 1.01, ..exact }, Limit::Magnitude),
    ] {
        assert_eq!(parse(&frame, codec.parser(), &limits, |_| ()), Err(DecodeError::LimitExceeded(limit)));
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_is_refused() {
    let codec = Experimental(Peaks::default());
    let mut frame = encode(&codec, Grad::F32(&values(1, layout().len())), None, 0).unwrap();
    for len in 0..frame.len() {
        let error = parse(&frame[..len], codec.parser(), &limits(), |_| ()).unwrap_err();
        assert!(matches!(error, DecodeError::Truncated { .. }), "cut to {len}: {error}");
    }
    for bit in 0..8 * frame.len() {
        frame[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&frame, codec.parser(), &limits(), |_| ()).is_err(), "bit {bit}");
        frame[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn an_encode_that_fails_changes_nothing_whichever_unit_is_to_blame() {
    let n = layout().len();
    let refused_at = |unit, index, why| Err(EncodeError::Experiment { unit, index, why });
    let refused = |unit, why| refused_at(unit, if unit == 4 { 129 } else { 0 }, why);
    let (grad, mut late, mut high) = (values(1, n), values(1, n), values(1, n));
    (late[150], high[140]) = (f32::NAN, 1e31);
    for (fault, grad, expected) in [
        (Fault::None, &late, Err(EncodeError::NonFiniteInput { index: 150 })),
        (Fault::None, &high, refused(4, "too high for a peak")),
        (Fault::Shrinks, &grad, refused_at(0, 8, "what it sends and keeps would not add up")),
        (Fault::RefusesItself, &grad, refused(0, "not mine")),
        (Fault::Overstates, &grad, refused(0, "another number of coordinates than its outline says")),
        (Fault::Repeats, &grad, refused(0, "its positions do not ascend inside of a unit")),
        (Fault::Overruns, &grad, refused(0, "more bytes than its bound")),
        (Fault::Infinite, &grad, refused(0, "it decodes to a value that is not finite")),
    ] {
        let before = values(9, n);
        let mut memory = Memory::new(before.clone());
        let result = encode(&Experimental(Peaks { fault }), Grad::F32(grad), Some(&mut memory), 0);
        assert_eq!(result.map(|_| ()), expected, "{fault:?}");
        assert_eq!(bits(memory.residual()), bits(&before), "{fault:?}");
    }
}

#[test]
fn what_would_overflow_when_it_is_given_back_is_refused() {
    let mut grad = vec![0.0; layout().len()];
    // Of 31 values in unit 4: fl(fl(p − sent) + sent) is past the largest float.
    grad[129..132].fill(f32::MAX);
    let mut memory = Memory::new(vec![0.0; grad.len()]);
    let result = encode(&Experimental(Halves), Grad::F32(&grad), Some(&mut memory), 0);
    let why = "what it sends and keeps would not add up";
    assert_eq!(result, Err(EncodeError::Experiment { unit: 4, index: 129, why }));
    assert!(memory.residual().iter().all(|kept| kept.to_bits() == 0), "the memory is as it was");
}

#[test]
fn buffers_that_are_too_small_and_units_that_do_not_fit_are_refused() {
    let codec = Experimental(Peaks::default());
    let (layout, units, grad) = (layout(), units(), values(1, layout().len()));
    let (needed, bytes) = (codec.scratch_len(&units), codec.max_frame_bytes(&units).unwrap());
    let encode = |words: usize, units: &[Unit], room: usize| {
        let (mut words, mut few, mut out) = (vec![0; words], [0; 3], vec![0; room]);
        let mut scratch = Scratch { words: &mut words, bytes: &mut few };
        let input = StepInput { key: KEY, layout: &layout.as_ref(), units, grad: Grad::F32(&grad) };
        codec.encode(&input, None, &mut scratch, &mut out)
    };
    assert!(encode(needed.words, &units, bytes).is_ok());
    let actual = bytes - 1;
    assert_eq!(
        encode(needed.words, &units, actual),
        Err(EncodeError::BufferTooSmall { needed: bytes, actual })
    );
    assert_eq!(encode(needed.words - 1, &units, bytes), Err(EncodeError::ScratchTooSmall { needed }));
    let reversed = [units[2], units[0]];
    assert_eq!(encode(needed.words, &reversed, bytes), Err(EncodeError::UnitOutOfOrder { unit: 0 }));
    let mut scratch = Scratch { words: &mut [], bytes: &mut [] };
    let (size, layout) = (PacketSize::new(1200).unwrap(), layout.as_ref());
    let input = StepInput { key: KEY, layout: &layout, units: &units, grad: Grad::F32(&grad) };
    let packets = codec.packets(&input, None, &mut scratch, size);
    assert_eq!(packets.map(|_| ()).unwrap_err(), EncodeError::NoPackets);
}

#[test]
fn a_codec_that_keeps_nothing_takes_no_memory() {
    struct Forgets;
    impl ParseBody for Forgets {
        fn experiment(&self) -> Experiment {
            Halves.experiment()
        }
        fn outline(&self, body: &UnitBody<'_>) -> Result<BodyOutline, Refused> {
            Halves.outline(body)
        }
        fn visit(&self, body: &UnitBody<'_>, scratch: &[u32], f: &mut dyn FnMut(usize, f32)) {
            Halves.visit(body, scratch, f);
        }
    }
    impl EncodeBody for Forgets {
        fn law(&self) -> Law {
            Law::NotKept
        }
        fn max_body_bytes(&self, len: usize) -> Option<usize> {
            Halves.max_body_bytes(len)
        }
        fn encode_body(
            &self,
            source: &UnitSource<'_>,
            values: &[f32],
            scratch: &mut Scratch<'_>,
            out: &mut [u8],
        ) -> Result<usize, Refused> {
            Halves.encode_body(source, values, scratch, out)
        }
    }
    let (grad, mut memory) = (values(1, layout().len()), Memory::new(vec![0.0; layout().len()]));
    let refused = encode(&Experimental(Forgets), Grad::F32(&grad), Some(&mut memory), 0);
    assert_eq!(refused, Err(EncodeError::MemoryRefused));
    assert!(encode(&Experimental(Forgets), Grad::F32(&grad), None, 0).is_ok());
}

proptest! {
    /// Whatever stands behind an intact header: refused, or finite values inside of the units; never a panic.
    #[test]
    fn the_reader_is_total(body in proptest::collection::vec(any::<u8>(), 0..200), units in 1_u16..4, is_small in any::<bool>()) {
        let shapes = [vec![40, 3], vec![9], vec![31], vec![0]];
        let mut body = body;
        if is_small {
            // A header of a unit that is likely to be good, so that the content is looked at.
            body.splice(..body.len().min(9), [0, 0, 0, 120, NUMBER, 2, 0, 0, 0]);
        }
        let frame = header::frame(NUMBER, units, header::fingerprint(&shapes), &body);
        let mut acc = vec![0.5; layout().len()];
        let result = parse(&frame, Some(&Peaks::default()), &limits(), |frame| frame.add_scaled_to(1.0, &mut acc));
        prop_assert!(acc.iter().all(|sum| sum.is_finite()));
        prop_assert!(result.is_ok() || acc.iter().all(|sum| *sum == 0.5));
    }

    /// Every gradient and residual: the law holds, and what was encoded is read.
    #[test]
    fn the_law_holds_for_every_gradient(
        grad in proptest::collection::vec(-1e20_f32..1e20, 160),
        kept in proptest::collection::vec(prop_oneof![Just(0.0_f32), -1e-20_f32..1e-20, -1e20_f32..1e20], 160),
    ) {
        let codec = Experimental(Peaks::default());
        let p: Vec<f32> = kept.iter().zip(&grad).map(|(kept, grad)| kept + grad).collect();
        let mut memory = Memory::new(kept);
        let (layout, mut encoder) = (layout(), Encoder::new());
        let frame = encoder.encode(&codec, &StepInput { key: KEY, layout: &layout.as_ref(), units: &units(), grad: Grad::F32(&grad) }, Some(&mut memory)).unwrap();
        let mut decoder = Decoder::new();
        let frame = decoder.parse_with(frame, &layout.as_ref(), &limits(), codec.parser()).unwrap();
        memory.give_back(&frame);
        prop_assert_eq!(plain(memory.residual()), plain(&p));
    }
}
