//! What the fuzz targets check holds for every codec of the list, and every codec is in one of them.

use gradwire::registry::CODECS;
use gradwire_tests::fuzzed::{agree_in_rounds, agree_on_an_edge, conserves, framed, mixed, spec, summed};
use gradwire_tests::inputs::Input;
use gradwire_tests::manifest;
use std::fs;

/// As a fuzzer may come to them: floats of all sizes, patterns, few bytes and none.
fn inputs() -> Vec<Vec<u8>> {
    let as_bytes = |values: Vec<f32>| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let floats: [Vec<u8>; 4] = [
        as_bytes(Input::Normal(1).values(700)),
        as_bytes(Input::Heavy(2).values(333)),
        as_bytes(Input::Range(3).values(90)),
        as_bytes(vec![f32::NAN, 1.0, f32::INFINITY, f32::MAX, -0.0, 1e-40]),
    ];
    let heads = [&[][..], &[0, 4, 3], &[3, 0, 200], &[1, 15, 7]];
    let headed = heads.iter().flat_map(|head| floats.iter().map(|floats| [*head, &floats[..]].concat()));
    headed.chain([Vec::new(), vec![1], vec![0; 64], vec![255; 65]]).collect()
}

#[test]
fn the_laws_of_the_targets_hold_for_all_examples() {
    for input in inputs() {
        framed().into_iter().for_each(|example| conserves(&spec(example), &input));
        summed().into_iter().for_each(|example| agree_in_rounds(&spec(example), &input));
        mixed().into_iter().for_each(|example| agree_on_an_edge(&spec(example), &input));
    }
}

#[test]
fn every_codec_is_in_a_target() {
    let fuzzed = [framed(), summed(), mixed()].concat();
    for entry in CODECS {
        assert!(entry.examples.iter().all(|example| fuzzed.contains(example)), "{entry:?}");
    }
    let targets = fs::read_dir(manifest::folder("../fuzz/fuzz_targets")).unwrap();
    let files = targets.map(|target| target.unwrap().path()).filter(|path| path.is_file());
    let text: String = files.map(|path| fs::read_to_string(path).unwrap()).collect();
    for list in ["framed()", "summed()", "mixed()"] {
        assert!(text.contains(list), "no fuzz target goes through {list}");
    }
}
