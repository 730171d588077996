//! Golden frames decode to the stated values and are encoded again to the same bytes, by the crate and by the naive
//! reference.

use gradwire_tests::golden::{self, Golden};
use gradwire_tests::manifest::{self, digest};
use gradwire_tests::{naive, run};

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

#[test]
fn every_file_has_its_line() {
    for (folder, names) in [
        ("golden", golden::all().into_iter().map(|golden| golden.name).collect::<Vec<_>>()),
        ("bad", gradwire_tests::bad::all().into_iter().map(|bad| bad.name).collect()),
    ] {
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
