//! What C programs cannot check: the source, and every codec of the list.

use crate::encoder::gw_frame_bound;
use codecs::registry::CODECS;
use codecs::{Gather, Spec, Unit};
use std::fs;
use std::path::Path;

/// Every source file, by its path, without its tests.
fn sources() -> Vec<(String, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("tests.rs")
            {
                let source = fs::read_to_string(&path).unwrap();
                let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
                sources.push((path.display().to_string(), code.to_owned()));
            }
        }
    }
    sources
}

/// Every function that C can call: its name, its description, its signature and its body.
fn functions() -> Vec<[String; 4]> {
    let mut functions = Vec::new();
    for (_, source) in sources() {
        for (at, _) in source.match_indices("extern \"C\" fn gw_") {
            let (before, after) = source.split_at(at);
            let (name, rest) = after["extern \"C\" fn ".len()..].split_once('(').unwrap();
            let (signature, body) = rest.split_once(" {\n").unwrap();
            let lines = before.lines().rev().skip(1).skip_while(|line| line.starts_with("#["));
            let description: Vec<_> = lines.take_while(|line| line.starts_with("///")).collect();
            let body = body.split_once("\n}\n").unwrap().0;
            functions.push([name, &description.join("\n"), signature, body].map(str::to_owned));
        }
    }
    assert!(functions.len() > 100, "{} functions were found", functions.len());
    functions
}

/// Every function that returns a result begins with `boundary`; the others do nothing that can fail.
#[test]
fn every_body_runs_inside_of_the_boundary() {
    let cannot_fail = ["gw_version_number", "gw_format_version_min", "gw_format_version_max"];
    let texts = ["gw_result_name", "gw_result_text"];
    for [name, _, signature, body] in functions() {
        let code = body.lines().find(|line| !line.trim_start().starts_with("//")).unwrap().trim_start();
        if signature.ends_with("-> gw_result") {
            assert!(code.starts_with("boundary(|| unsafe {"), "{name}: {code}");
        } else if !cannot_fail.contains(&&*name) && !texts.contains(&&*name) {
            assert!(code.contains(".unwrap_or(0)") || code.contains("saturating"), "{name}: {code}");
        }
    }
}

/// A function says its errors, and one without says from which threads it may be called; an object says that
/// of all its functions.
#[test]
fn every_description_has_its_errors_and_its_threads() {
    for [name, description, signature, _] in functions() {
        let part = if signature.ends_with("-> gw_result") { "Errors: " } else { "Threads: " };
        assert!(description.contains(part), "{name} does not say '{part}'");
    }
    let mut objects = 0;
    for (path, source) in sources() {
        for (before, _) in source.match_indices("\npub struct gw_").map(|(at, _)| source.split_at(at)) {
            let last = before.lines().last().unwrap();
            assert!(last.starts_with("/// Threads: "), "{path}: {last}");
            objects += 1;
        }
    }
    assert_eq!(objects, OBJECTS.len() + 1, "an object is not listed here");
}

/// Without the exchange, which allocates.
const OBJECTS: &[&str] = &["codec", "encoder", "frame", "layout", "limits", "memory", "outline", "rounds"];

#[test]
fn every_object_can_be_made_in_both_ways() {
    let names: Vec<_> = functions().into_iter().map(|[name, ..]| name).collect();
    for object in OBJECTS {
        for call in ["size", "init", "new", "free"] {
            assert!(names.contains(&format!("gw_{object}_{call}")), "there is no gw_{object}_{call}");
        }
    }
}

#[test]
fn nothing_is_global_but_a_table_that_nobody_changes() {
    for (path, source) in sources() {
        for line in source.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
            let item = line.trim_start_matches("pub ").trim_start_matches("(crate) ");
            let is_static = item.starts_with("static ") && !item.starts_with("static ALL: &[");
            let changes = ["thread_local", "Atomic", "OnceLock", "LazyLock", "Mutex", "Cell<"];
            assert!(!is_static && !changes.iter().any(|word| line.contains(word)), "{path}: {line}");
        }
    }
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
