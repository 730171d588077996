//! Every file of `bad/` is refused with the error that its manifest states, and every error has a file.

use gradwire::format::{VoidFrame, frame_scratch_len};
use gradwire::state::UnitState;
use gradwire::{DecodeError, Decoder, Frame, LayoutRef, Memory};
use gradwire_tests::bad::{self, Bad, Reader, spelled, variants};
use gradwire_tests::run;

fn frame_error(bad: &Bad) -> DecodeError {
    let layout = bad.layout();
    let bytes = bad.bytes();
    let error = run::parse(&bytes, &layout.as_ref(), &bad.limits, |_| ());
    let error = error.expect_err(&format!("{} is accepted", bad.name));
    let same = Decoder::new().parse(&bytes, &layout.as_ref(), &bad.limits).map(|_| ());
    assert_eq!(same, Err(error), "{}: the decoder that allocates disagrees", bad.name);
    error
}

fn memory_error(bad: &Bad) -> DecodeError {
    let layout = bad.layout();
    let (mut residual, mut momentum) = (vec![0.25; layout.len()], vec![0.5; layout.len()]);
    let (mut states, mut factors) = ([UnitState::default()], [0.75; 2]);
    let memory = Memory::new(&mut residual);
    let mut memory = match bad.reader {
        Reader::FullMemory => memory.with_momentum(&mut momentum).with_states(&mut states),
        Reader::FactorMemory => memory.with_factors(&mut factors),
        _ => memory,
    };
    let error = memory.load(&layout.as_ref(), &bad.bytes());
    let is_unchanged = residual.iter().all(|&kept| kept == 0.25)
        && momentum.iter().all(|&momentum| momentum == 0.5)
        && (states, factors) == ([UnitState::default()], [0.75; 2]);
    assert!(is_unchanged, "{}: the memory was changed", bad.name);
    error.expect_err(&format!("{} is accepted", bad.name))
}

fn void_error(bad: &Bad) -> DecodeError {
    let read = VoidFrame::parse(&bad.bytes(), &bad.layout().as_ref());
    read.expect_err(&format!("{} is accepted", bad.name))
}

/// Checksums and fingerprints are numbers nobody can check by eye; the manifest may leave out what is behind
/// the name.
fn is_stated(error: &DecodeError, stated: &str) -> bool {
    let spelled = spelled(error);
    let without_numbers =
        matches!(error, DecodeError::ChecksumMismatch { .. } | DecodeError::LayoutMismatch { .. });
    spelled == stated || (without_numbers && spelled.starts_with(stated))
}

#[test]
fn every_bad_file_is_refused_with_the_stated_error() {
    for bad in bad::all() {
        let error = match bad.reader {
            Reader::Frame => frame_error(&bad),
            Reader::Void => void_error(&bad),
            _ => memory_error(&bad),
        };
        assert!(is_stated(&error, &bad.error), "{}: stated {}, got {}", bad.name, bad.error, spelled(&error));
    }
}

#[test]
fn the_naive_decoder_refuses_them_too() {
    for bad in
        bad::all().iter().filter(|bad| bad.reader == Reader::Frame && !bad.error.starts_with("LimitExceeded"))
    {
        assert!(
            gradwire_tests::naive::decode::decode(&bad.bytes(), &bad.shapes).is_err(),
            "{} is accepted",
            bad.name
        );
    }
}

#[test]
fn the_naive_reader_of_void_frames_refuses_them_too() {
    for bad in bad::all().iter().filter(|bad| bad.reader == Reader::Void) {
        let read = gradwire_tests::naive::void::decode(&bad.bytes(), &bad.shapes);
        assert!(read.is_err(), "{} is accepted", bad.name);
        // As a frame it is refused as well.
        assert!(run::decode(&bad.bytes(), &bad.layout().as_ref()).is_err(), "{} is a frame", bad.name);
    }
}

#[test]
fn no_bad_frame_is_refused_for_a_checksum_by_mistake() {
    for bad in bad::all() {
        let bytes = bad.bytes();
        if bytes.len() < 24
            || !matches!(bad.reader, Reader::Frame | Reader::Void)
            || bad.error.starts_with("ChecksumMismatch")
            || bad.name == "header_alone"
        {
            continue;
        }
        let stated = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        assert_eq!(gradwire_tests::naive::header::checksum_of(&bytes), stated, "{}", bad.name);
    }
}

#[test]
fn every_error_has_a_file() {
    let stated: Vec<String> = bad::all().into_iter().map(|bad| bad.error).collect();
    let missing = |spelling: &str| !stated.iter().any(|error| error.starts_with(spelling));
    let top = variants("DecodeError");
    assert!(top.len() >= 13, "the source was not understood");
    // They depend on the caller's memory or layout and on the build as well as on the bytes: tested below,
    // and in the crate.
    let elsewhere = ["ScratchTooSmall", "LayoutUnknown", "NotBuilt", "Experiment"];
    for variant in top.iter().filter(|variant| !elsewhere.contains(&variant.as_str())) {
        assert!(!missing(variant), "no file provokes {variant}");
    }
    for field in variants("Field") {
        assert!(!missing(&format!("InvalidField({field})")), "no file provokes Field::{field}");
    }
    for limit in variants("Limit") {
        assert!(!missing(&format!("LimitExceeded({limit})")), "no file provokes Limit::{limit}");
    }
}

#[test]
fn scratch_memory_of_one_word_less_is_refused() {
    for golden in gradwire_tests::golden::all() {
        let (frame, layout, limits) = (golden.frame(), golden.layout(), run::no_limits());
        let needed = frame_scratch_len(&frame, &layout.as_ref(), &limits).unwrap();
        if needed > 0 {
            let mut words = vec![0; needed - 1];
            let error = Frame::parse(&frame, &layout.as_ref(), &limits, &mut words).map(|_| ());
            assert_eq!(error, Err(DecodeError::ScratchTooSmall { needed }), "{}", golden.name);
        }
    }
}

#[test]
fn positions_under_context_models_are_refused_by_a_reader_without_the_shapes() {
    let mut frames = 0;
    for golden in gradwire_tests::golden::all() {
        let (frame, layout) = (golden.frame(), golden.layout());
        // The fingerprint of a single dimension gives it away.
        let is_flat = golden.shapes == [vec![layout.len()]];
        let opaque = LayoutRef::opaque(layout.len(), layout.fingerprint());
        let is_context = run::parse(&frame, &layout.as_ref(), &run::no_limits(), |frame| {
            frame.units().any(|unit| unit.info().index.is_some_and(|(name, _)| name.starts_with("context")))
        });
        let error = run::decode(&frame, &opaque).map(|_| ());
        let is_refused = is_context.unwrap() && !is_flat;
        assert_eq!(
            error,
            if is_refused { Err(DecodeError::LayoutUnknown) } else { Ok(()) },
            "{}",
            golden.name
        );
        assert_eq!(
            gradwire_tests::naive::decode::decode_for(&frame, layout.fingerprint(), layout.len()).is_err(),
            is_refused
        );
        frames += usize::from(is_refused);
    }
    assert!(frames > 5, "only {frames} frames were refused");
}

#[test]
fn a_frame_for_another_layout_of_the_same_length_is_refused() {
    for golden in gradwire_tests::golden::all().iter().filter(|golden| golden.shapes.len() != 1) {
        let layout = LayoutRef::flat(golden.layout().len());
        let error = run::decode(&golden.frame(), &layout);
        assert!(matches!(error, Err(DecodeError::LayoutMismatch { .. })), "{}", golden.name);
    }
}
