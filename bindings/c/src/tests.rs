//! What C programs cannot check: the source, and every codec of the list.

use crate::encoder::gw_frame_bound;
use codecs::registry::CODECS;
use codecs::{Gather, Spec, Unit};

const SOURCES: &[&str] = &[
    include_str!("codec.rs"),
    include_str!("draws.rs"),
    include_str!("encoder/settings.rs"),
    include_str!("encoder/half.rs"),
    include_str!("encoder/mod.rs"),
    include_str!("encoder/packets.rs"),
    include_str!("exchange/messages.rs"),
    include_str!("exchange/mod.rs"),
    include_str!("exchange/settings.rs"),
    include_str!("frame.rs"),
    include_str!("heap.rs"),
    include_str!("layout.rs"),
    include_str!("limits.rs"),
    include_str!("memory.rs"),
    include_str!("outline.rs"),
    include_str!("rounds.rs"),
    include_str!("small.rs"),
    include_str!("spelling.rs"),
];

/// Every function that C can call and that returns a result begins with `boundary`.
#[test]
fn every_body_runs_inside_of_the_boundary() {
    let mut count = 0;
    for source in SOURCES {
        for function in source.split("pub unsafe extern \"C\" fn ").skip(1) {
            let (name, _) = function.split_once('(').unwrap();
            let (signature, body) = function.split_once(" -> gw_result {\n").unwrap();
            assert!(!signature.contains('{'), "{name} returns no result");
            let code = body.lines().find(|line| !line.trim_start().starts_with("//")).unwrap();
            assert!(code.trim_start().starts_with("boundary(|| unsafe {"), "{name}: {code}");
            count += 1;
        }
        // The others do nothing that can fail.
        for function in source.split("pub extern \"C\" fn ").skip(1) {
            let (_, body) = function.split_once(" -> usize {\n").expect("a size");
            let line = body.lines().next().unwrap();
            assert!(line.contains(".unwrap_or(0)") || line.contains("saturating"), "{line}");
        }
    }
    assert!(count > 50, "{count} functions were found");
}

#[test]
fn no_frame_of_any_codec_is_longer_than_the_bound() {
    let widest =
        ["qsgd:bits=8,bucket=1", "qsgd:bits=8,bucket=1,entropy=elias", "topk:density=1,index=raw,values=f32"];
    for spelling in CODECS.iter().flat_map(|entry| entry.examples).chain(&widest) {
        let codec = Spec::parse(spelling).unwrap().codec;
        if !codec.capabilities().has_frames {
            continue;
        }
        for n in (0..300).chain([511, 512, 513, 4096, 65_535, 65_536, 1 << 20, (1 << 24) + 1]) {
            let frame = codec.max_frame_bytes(&[Unit::whole(n)]).unwrap();
            let bound = gw_frame_bound(n);
            assert!(frame <= bound, "{spelling}: {n} elements take {frame} bytes, the bound is {bound}");
        }
    }
    assert_eq!(gw_frame_bound(usize::MAX), usize::MAX);
}
