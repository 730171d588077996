//! `format.json` owns the numbers of the wire: the library knows those that are in use, and no other.

use gradwire::experiments::Experiment;
use gradwire::format::{CodecId, VERSIONS};
use gradwire::state::{SAVED_VERSIONS, UnitState};
use gradwire::{DecodeError, Memory};
use gradwire_tests::bad::{spelled, variants};
use gradwire_tests::naive::header::{self, fingerprint, frame, varint};
use gradwire_tests::{manifest, run};
use serde_json::Value;
use std::collections::BTreeSet;

/// A field whose numbers have meanings.
struct Room {
    name: String,
    size: u16,
    refusal: String,
    /// Those in use.
    numbers: BTreeSet<u16>,
}

fn registry() -> Value {
    let path = manifest::folder("..").join("format.json");
    let text = std::fs::read_to_string(path).expect("format.json is there");
    serde_json::from_str(&text).expect("format.json is JSON")
}

fn number(value: &Value) -> u16 {
    value.as_u64().and_then(|number| u16::try_from(number).ok()).expect("a number of a room")
}

fn rooms() -> Vec<Room> {
    let room = |room: &Value| {
        let named = room["values"].as_array().into_iter().flatten().map(|value| number(&value["number"]));
        let range = room.get("range").map(|range| number(&range[0])..=number(&range[1]));
        Room {
            name: room["room"].as_str().expect("a name").to_owned(),
            size: number(&room["size"]),
            refusal: room["refusal"].as_str().expect("a refusal").to_owned(),
            numbers: named.chain(range.into_iter().flatten()).collect(),
        }
    };
    registry()["rooms"].as_array().expect("rooms").iter().map(room).collect()
}

/// A frame at step 0 whose only unit is the whole of a flat layout of eight elements.
fn whole(codec: u8, kind: u8, body: &[&[u8]]) -> Vec<u8> {
    frame(codec, 1, fingerprint(&[vec![8]]), &[&[0, 0, 0, 8, kind][..], &body.concat()].concat())
}

/// A good frame but for what is changed.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = frame(0, 1, fingerprint(&[vec![8]]), &[&[0, 0, 0, 8, 0, 0][..], &[0; 32]].concat());
    change(&mut bytes);
    header::patch_checksum(&mut bytes);
    bytes
}

fn sparse(coding: u8, body: &[&[u8]]) -> Vec<u8> {
    whole(3, 1, &[&[1, coding], &body.concat()])
}

/// A section with the number of its bytes in front of it.
fn section(bytes: &[u8]) -> Vec<u8> {
    [varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// Levels in one bucket.
fn levels(form: u8, norm: u8, body: &[u8]) -> Vec<u8> {
    whole(5, 2, &[&[form, norm], body])
}

/// Bytes that have the number in the room, and are good up to there. Bytes of 0 may follow.
fn bytes(room: &str, n: u8) -> Vec<u8> {
    let one = 1f32.to_le_bytes();
    match room {
        "version" => changed(|frame| frame[2] = n),
        "codec" => changed(|frame| frame[3] = n),
        "flag" => changed(|frame| frame[4..6].copy_from_slice(&(1u16 << n).to_le_bytes())),
        // The kinds of each codec are tested on their own.
        "kind" => whole([0, 3, 5, 6, 0, 9].get(usize::from(n)).copied().unwrap_or(0), n, &[]),
        // Half formats are those of two codecs.
        "dense format" => whole(if n < 3 { n } else { 0 }, 0, &[&[n]]),
        // A tile of eight columns, of which it has one.
        "seeded format" if n >> 4 == 2 => whole(6, 3, &[&[7; 8], &[0, n, 8, 1]]),
        "seeded format" => whole(6, 3, &[&[7; 8], &[0, n]]),
        "index coder" => sparse(n, &[]),
        "value format" => sparse(n << 4, &[]),
        "rice block" => sparse(2, &[&section(&[n, 0, 0, 1])]),
        "chunk" => sparse(6, &[&section(&[n, 0, 0, 1])]),
        "chunk width" => sparse(6, &[&section(&[6, 0, n, 1])]),
        "codebook packing" => sparse(0x30, &[&[0, n << 4 | 1], &[0x80, 0x3f].repeat(2)]),
        "codebook log2" => sparse(0x30, &[&[0, n], &[0x80, 0x3f].repeat(1 << n)]),
        "f32 shift" => sparse(0x40, &[&[0, n, 0, 0]]),
        "f16 shift" => sparse(0x50, &[&[0, n, 0, 0]]),
        "bf16 shift" => sparse(0x60, &[&[0, n, 0, 0]]),
        "heads" => sparse(0x40, &[&[0, 0, n, 0]]),
        "level bits" => levels(n, 1, &[if n == 10 { &[5][..] } else { &[] }, &[8], &one].concat()),
        "levels" => levels(10, 1, &[&[n, 8][..], &one].concat()),
        "norm" => levels(4, n, &[&[8][..], &one].concat()),
        // The coding of norms 2 and the packing 4 come together.
        "norm coding" if n == 2 => levels(0x44, 0x21, &[8, 8, 4, 0, 0, 0, 0]),
        "norm coding" => levels(4, 1 | n << 4, &[&[8][..], &one].concat()),
        "level packing" if n == 4 => bytes("norm coding", 2),
        "level packing" => levels(2 | n << 4, 1, &[&[8][..], &one].concat()),
        "lanes" => levels(0x22, 1, &[&[8][..], &one, &section(&[n, 0, 0])].concat()),
        "classes" => levels(0x22, 1, &[&[8][..], &one, &section(&[0x80, n, 0])].concat()),
        other => panic!("no frame has a number in '{other}'"),
    }
}

/// The names of the refusals, without numbers, with any number of bytes of 0 after these: what is missing or
/// left over may be found before a number that is not known.
fn refusals(bytes: &[u8]) -> BTreeSet<String> {
    let (layout, mut bytes) = (run::layout(&[vec![8]]), bytes.to_vec());
    let mut names = BTreeSet::new();
    for _ in 0..48 {
        names.extend(run::decode(&bytes, &layout.as_ref()).err().map(|error| name(&error)));
        bytes.push(0);
        let body_bytes = (bytes.len() - header::HEADER_BYTES) as u32;
        bytes[16..20].copy_from_slice(&body_bytes.to_le_bytes());
        header::patch_checksum(&mut bytes);
    }
    names
}

fn name(error: &DecodeError) -> String {
    let text = spelled(error);
    let is_named = matches!(error, DecodeError::InvalidField(_) | DecodeError::LimitExceeded(_));
    if is_named { text } else { text.split(['(', '{']).next().unwrap_or_default().to_owned() }
}

#[test]
fn the_library_knows_the_numbers_in_use_and_refuses_all_others_by_name() {
    for room in rooms().iter().filter(|room| !room.name.starts_with("memory")) {
        for n in 0..room.size {
            let names = refusals(&bytes(&room.name, n as u8));
            let is_known = !names.contains(&room.refusal);
            assert_eq!(is_known, room.numbers.contains(&n), "{} {n}: refused as {names:?}", room.name);
        }
    }
}

#[test]
fn the_library_knows_the_kinds_of_each_codec_and_its_name() {
    for codec in registry()["rooms"][1]["values"].as_array().expect("codecs") {
        let id = number(&codec["number"]) as u8;
        let kinds: Vec<u16> = codec["kinds"].as_array().expect("kinds").iter().map(number).collect();
        assert_eq!(CodecId::new(id).name(), codec["name"].as_str());
        for kind in 0..=255 {
            let is_known = !refusals(&whole(id, kind, &[])).contains("InvalidField(Kind)");
            assert_eq!(is_known, kinds.contains(&kind.into()), "kind {kind} of codec {id}");
        }
    }
}

#[test]
fn the_library_leaves_the_same_numbers_to_experiments() {
    for room in registry()["rooms"].as_array().expect("rooms") {
        if let Some(range) = room.get("experiments") {
            let range = number(&range[0])..=number(&range[1]);
            assert!((0..=255).all(|n| Experiment::new(n as u8).is_some() == range.contains(&n)));
        }
    }
}

#[test]
fn versions_and_parts_of_saved_memories_are_those_of_the_library() {
    let layout = run::layout(&[vec![2]]);
    let (mut residual, mut momentum) = ([0.0; 2], [0.0; 2]);
    let (mut states, mut factors) = ([UnitState::default()], [0.0; 3]);
    let memory = Memory::new(&mut residual).with_momentum(&mut momentum);
    let mut memory = memory.with_states(&mut states).with_factors(&mut factors);
    let mut saved = vec![0; memory.saved_bytes().expect("it is small")];
    memory.save(&layout.as_ref(), &mut saved).expect("there is room");
    let mut load = |at: usize, byte: u8| {
        let mut changed = saved.clone();
        changed[at] = byte;
        let end = changed.len() - 4;
        let checksum = gradwire_tests::naive::checksum::crc32c(&changed[..end]);
        changed[end..].copy_from_slice(&checksum.to_le_bytes());
        memory.load(&layout.as_ref(), &changed).err().map_or(String::new(), |error| name(&error))
    };
    for room in rooms() {
        let known: Vec<u8> = room.numbers.iter().map(|&n| n as u8).collect();
        match room.name.as_str() {
            "version" => assert_eq!(known, VERSIONS),
            "memory version" => {
                assert_eq!(known, SAVED_VERSIONS);
                for n in 0..=255 {
                    assert_eq!(load(2, n) != room.refusal, known.contains(&n), "version {n}");
                }
            }
            "memory kind" => {
                // This memory has all parts.
                assert_eq!(saved[3], known.iter().map(|bit| 1 << bit).sum::<u8>());
                for bit in (0..room.size as u8).filter(|bit| !known.contains(bit)) {
                    assert_eq!(load(3, saved[3] | 1 << bit), room.refusal, "kind bit {bit}");
                }
            }
            _ => {}
        }
    }
}

#[test]
fn names_of_refusals_are_those_of_the_library() {
    let names =
        |of: &str| registry()[of].as_object().expect("names").keys().cloned().collect::<BTreeSet<_>>();
    let (frames, library) = (names("refusals"), names("refusals of the library"));
    let in_field = |parent: &str, field: &str| {
        variants(field).into_iter().map(move |name| format!("{parent}({name})")).collect::<Vec<_>>()
    };
    let plain =
        variants("DecodeError").into_iter().filter(|name| name != "InvalidField" && name != "LimitExceeded");
    let all = plain.chain(in_field("InvalidField", "Field")).chain(in_field("LimitExceeded", "Limit"));
    assert_eq!(all.collect::<BTreeSet<_>>(), frames.union(&library).cloned().collect());
}
