//! Golden frames decode to the stated values and are encoded again to the same bytes, by the crate and by the
//! naive reference.

use gradwire::format::{Header, Outline, VoidFrame, frame_extent};
use gradwire::{DecodeError, LayoutRef};
use gradwire_tests::golden::{self, Golden};
use gradwire_tests::manifest::{self, digest};
use gradwire_tests::{naive, run, voids};

fn for_each(check: impl FnMut(&Golden)) {
    golden::all().iter().for_each(check);
}

#[test]
fn golden_frames_decode_to_the_stated_values() {
    for_each(|golden| {
        let decoded = run::decode(&golden.frame(), &golden.layout().as_ref());
        let decoded = decoded.unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        assert_eq!(digest(&decoded), golden.values, "{}", golden.name);
    });
}

#[test]
fn golden_inputs_encode_to_the_same_bytes() {
    for_each(|golden| {
        let (frame, kept) = golden.encode().unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        assert!(frame == golden.frame(), "{}: other bytes", golden.name);
        assert!(golden.keeps(kept.as_ref()), "{}: keeps {kept:?}", golden.name);
    });
}

#[test]
fn the_naive_reference_reads_and_writes_them_too() {
    for_each(|golden| {
        let encoded = golden.encode_naively().unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        assert!(encoded.frame == golden.frame(), "{}: other bytes", golden.name);
        let decoded = naive::decode::decode(&golden.frame(), &golden.shapes);
        let decoded = decoded.unwrap_or_else(|why| panic!("{}: {why}", golden.name));
        assert_eq!(digest(&decoded.dense(golden.layout().len())), golden.values, "{}", golden.name);
    });
}

/// Divisors of the mean over senders count what is held, so both must be the same in every kind and packing.
#[test]
fn each_coordinate_that_a_unit_holds_is_visited_once_and_in_order() {
    for_each(|golden| {
        run::parse(&golden.frame(), &golden.layout().as_ref(), &run::no_limits(), |frame| {
            for unit in frame.units() {
                let mut visited = Vec::new();
                unit.for_each(|at, _| visited.push(at));
                assert_eq!(visited.len(), unit.held(), "{}: unit {}", golden.name, unit.id());
                assert!(visited.is_sorted_by(|one, next| one < next), "{}: unit {}", golden.name, unit.id());
                assert!(visited.last().is_none_or(|&last| last < unit.range().len()), "{}", golden.name);
                let is_whole = !matches!(unit.info().kind, "sparse" | "seeded");
                assert!(!is_whole || unit.held() == unit.range().len(), "{}", golden.name);
            }
        })
        .unwrap();
    });
}

/// The byte of the version is the third, in every version.
#[test]
fn every_version_that_is_read_has_golden_frames() {
    let mut versions = std::collections::BTreeSet::new();
    for_each(|golden| {
        versions.insert(golden.frame()[2]);
    });
    assert_eq!(versions.into_iter().collect::<Vec<_>>(), gradwire::format::VERSIONS);
}

/// The last row of the table of section 15 is about this release.
#[test]
fn format_md_states_which_versions_this_release_reads() {
    let page = std::fs::read_to_string(manifest::folder("..").join("FORMAT.md")).unwrap();
    let table = page.split("| release | reads frames |").nth(1).expect("the table of support");
    let row = table.lines().skip(2).take_while(|line| line.starts_with('|')).last().expect("a release");
    let list = |versions: &[u8]| versions.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    let (frames, memories) = (list(gradwire::format::VERSIONS), list(gradwire::state::SAVED_VERSIONS));
    let release = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    assert!(row.starts_with(&format!("| {release} | {frames} | {memories} | ")), "{row}");
}

#[test]
fn every_file_has_its_line() {
    for folder in ["golden", "golden/voids", "golden/memories", "golden/rounds", "messages", "bad"] {
        let lines = manifest::lines(&manifest::folder(folder));
        let names: Vec<_> = lines.iter().map(|line| line.value("file").to_owned()).collect();
        let files = std::fs::read_dir(manifest::folder(folder)).expect("the folder can be listed");
        for path in files.map(|file| file.expect("the folder can be listed").path()) {
            if path.extension().is_some_and(|ending| ending == "bin") {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                assert!(names.contains(&name), "{folder}/{name}.bin has no line in the manifest");
            }
        }
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "a name is taken twice in {folder}");
    }
}

#[test]
fn golden_void_frames_are_written_and_read_alike_and_are_no_frames_of_a_gradient() {
    for golden in voids::all() {
        let (frame, layout) = (golden.frame(), golden.layout());
        assert_eq!(golden.encode(), frame, "{}: other bytes", golden.name);
        assert_eq!(VoidFrame::parse(&frame, &layout.as_ref()), Ok(Some(golden.void)), "{}", golden.name);
        let VoidFrame { codec, step, index } = golden.void;
        let naive = naive::void::decode(&frame, &golden.shapes);
        assert_eq!(naive, Ok((codec.number(), step, index)), "{}", golden.name);
        assert_eq!(run::decode(&frame, &layout.as_ref()), Err(DecodeError::Void), "{}", golden.name);
        assert_eq!(Outline::read(&frame, &run::no_limits()).err(), Some(DecodeError::Void));
        assert_eq!(frame_extent(&frame, &run::no_limits()), Err(DecodeError::Void));
        let header = Header::parse(&frame).unwrap();
        assert!(header.is_void && header.unit_count == 0);
        assert!((0..frame.len()).all(|len| VoidFrame::parse(&frame[..len], &layout.as_ref()).is_err()));
        for bit in 0..8 * frame.len() {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(VoidFrame::parse(&flipped, &layout.as_ref()).is_err(), "{}: bit {bit}", golden.name);
        }
    }
}

#[test]
fn a_frame_of_a_gradient_is_no_void_frame() {
    for_each(|golden| {
        let read = VoidFrame::parse(&golden.frame(), &golden.layout().as_ref());
        // Of a layout of no elements, the library's limits for bytes may be too small.
        assert!(matches!(read, Ok(None) | Err(DecodeError::LimitExceeded(_))), "{}: {read:?}", golden.name);
    });
    let void = VoidFrame { codec: gradwire::format::CodecId::new(3), step: 0, index: 4 };
    let write = |len, out: &mut [u8]| void.write(&LayoutRef::flat(len), out);
    assert!(write(5, &mut [0; VoidFrame::MAX_BYTES - 1]).is_err());
    assert!(std::panic::catch_unwind(|| write(4, &mut [0; VoidFrame::MAX_BYTES])).is_err());
}

/// What the golden frames are made of, as `UnitInfo` tells it.
#[test]
fn golden_frames_hold_every_kind_coder_and_packing() {
    let mut seen = std::collections::BTreeSet::new();
    for_each(|golden| {
        let layout = golden.layout();
        run::parse(&golden.frame(), &layout.as_ref(), &run::no_limits(), |frame| {
            frame.units().map(|unit| unit.info()).collect::<Vec<_>>()
        })
        .unwrap()
        .into_iter()
        .for_each(|info| {
            let name = |part: Option<(&'static str, usize)>| part.map_or("", |(name, _)| name);
            seen.insert(format!("{} {} {}", info.kind, name(info.index), name(info.values)));
        });
    });
    for expected in [
        "dense  f32",
        "dense  f16",
        "dense  bf16",
        "sparse  ",
        "levels norms fixed",
        "levels norms ternary",
        "levels norms elias",
        "levels norms rans",
        "levels norm-planes adaptive",
        "levels norms-in-stream context",
        "seeded  f32",
    ] {
        assert!(seen.contains(expected), "no golden frame is '{expected}'");
    }
    for values in ["f32-planes", "f16-planes", "bf16-planes"] {
        assert!(seen.iter().any(|name| name.ends_with(values)), "no golden frame has values in '{values}'");
    }
    for index in ["raw", "bitmap", "rice"] {
        for values in ["f32", "f16", "bf16", "codebook"] {
            assert!(
                seen.contains(&format!("sparse {index} {values}")),
                "no golden frame is 'sparse {index} {values}'"
            );
        }
    }
}
