//! What `trainer codec inspect` and `decode` take of memory, by the allocator: the bounds of SECURITY.md.

#[path = "codec_cli/forged.rs"]
mod forged;

use std::alloc::{GlobalAlloc, Layout as Allocation, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use clap::Parser;
use gradwire::format::{CodecId, VoidFrame};
use gradwire::packets::PacketEncoder;
use gradwire::plan::Plan;
use gradwire::rules::Rules;
use gradwire::{Encoder, Grad, Layout, LayoutRef, Source, Spec, StepInput, StepKey};
use gradwire_trainer::codec_cli::{self, CodecArgs};

/// Counts the bytes that are in use, and the most that ever were.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract. Counting neither
// allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Allocation) -> *mut u8 {
        let in_use = IN_USE.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(in_use, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Allocation) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above; the pointer comes from `alloc`, thus from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The command line below `trainer codec`.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    codec: CodecArgs,
}

/// The most that a command takes beside what was there before.
fn taken(args: &[&str]) -> usize {
    let args = Cli::parse_from([&["codec"], args].concat()).codec;
    let before = IN_USE.load(Relaxed);
    MOST.store(before, Relaxed);
    codec_cli::run(args, &mut std::io::sink()).unwrap_or_else(|error| panic!("{error}"));
    MOST.load(Relaxed) - before
}

/// Coordinates of most frames.
const LEN: usize = 1 << 18;

/// What a command takes whatever it reads: its buffers, and the tables that it prints.
const FIXED: usize = 1 << 20;

/// A file, with the coordinates that are decoded or, where working memory is what is claimed, may be.
struct Case {
    name: String,
    bytes: Vec<u8>,
    decoded: usize,
}

/// Two tensors.
fn layout(len: usize) -> Layout {
    let shape = vec![len / 2 / 512, 512];
    Layout::packed([("a.weight", shape.clone()), ("b.weight", shape)]).unwrap()
}

fn key() -> StepKey {
    StepKey { seed: 1, step: 0, source: Source::Rank(0) }
}

fn values(len: usize) -> Vec<f32> {
    let stream = key().stream(0);
    (0..len as u64).map(|at| ((stream.u64_at(at) >> 40) as f32 / 8_388_608.0 - 1.0).powi(5)).collect()
}

/// The messages of a gradient by rules; of several tensors if there are several.
fn encoded(rules: &str, values: &[f32]) -> Vec<u8> {
    let layout = layout(values.len());
    let plan = Plan::of_rules(&Rules::parse(rules).unwrap(), &layout.as_ref());
    let grad = Grad::F32(values);
    let step = StepInput { key: key(), layout: &layout.as_ref(), units: plan.units(), grad };
    Encoder::new().encode_plan(&plan, &step, None).unwrap().to_vec()
}

fn packets(spelling: &str, values: &[f32]) -> Vec<u8> {
    let (layout, spec) = (layout(values.len()), Spec::parse(spelling).unwrap());
    let (layout, mut encoder) = (layout.as_ref(), PacketEncoder::new());
    let units: Vec<_> = spec.units.units(&layout).collect();
    let (grad, size) = (Grad::F32(values), spec.packets.unwrap());
    let count = encoder
        .encode(&spec.codec, &StepInput { key: key(), layout: &layout, units: &units, grad }, None, size)
        .unwrap();
    (0..count).flat_map(|at| encoder.packet(at).unwrap()).copied().collect()
}

/// Levels of `bits` under context in one bucket, whose stream has so many bytes more than it needs.
fn context(bits: u8, len: usize, more: usize) -> Vec<u8> {
    forged::context(bits, len as u64, &[&b"\x80gradwire"[..], &vec![0; more]].concat())
}

/// Coordinates that `inspect` decodes of a file without a layout.
fn most_decoded(bytes: usize) -> usize {
    (1 << 20) + 64 * bytes
}

/// A frame of one unit with as many coordinates as `inspect` decodes of a file of its length.
fn longest(name: &str, codec: u8, kind: u8, body: impl Fn(usize) -> Vec<u8>) -> Case {
    let mut bytes = Vec::new();
    for _ in 0..4 {
        let len = most_decoded(bytes.len());
        bytes = forged::forged(codec, 1, len as u64, kind, &body(len));
    }
    let decoded = most_decoded(bytes.len());
    Case { name: name.to_owned(), bytes, decoded }
}

/// Units of 16 coordinates and one entry under context-max, which take 9.5 kB of working memory each: nearly
/// as much as `inspect` lends.
fn small_units() -> Case {
    let count = 1800;
    let unit = [&[0, 0, 16, 1, 1, 4, 2, 0x20, 0][..], &1_f32.to_le_bytes()].concat();
    let fingerprint = LayoutRef::flat(16 * usize::from(count)).fingerprint();
    let bytes = forged::frame(3, fingerprint, count, &unit.repeat(count.into()));
    let decoded = most_decoded(bytes.len());
    Case { name: "small units under context-max".to_owned(), bytes, decoded }
}

fn void() -> Vec<u8> {
    let void = VoidFrame { codec: CodecId::new(3), step: 0, index: 7 };
    let mut out = [0; VoidFrame::MAX_BYTES];
    let bytes = void.write(&layout(LEN).as_ref(), &mut out).unwrap();
    out[..bytes].to_vec()
}

fn cases() -> Vec<Case> {
    let small = |name: &str, bytes: Vec<u8>, decoded| Case { name: name.to_owned(), bytes, decoded };
    let empty =
        |kind| forged::frame(if kind == 0 { 0 } else { 3 }, 1, u16::MAX, &[0, 0, 0, kind, 0].repeat(65_535));
    let mut cases = vec![
        longest("levels of 8 bits, context", 5, 2, |len| context(8, len, 7)),
        longest("levels of 2 bits, context, a longer file", 5, 2, |len| context(2, len, 20_000)),
        longest("seeded", 6, 3, |_| forged::seeded()),
        small_units(),
        small("empty sparse units", empty(1), 0),
        small("empty dense units", empty(0), 0),
        small("void", void(), 0),
    ];
    let (noise, alike) = (values(LEN), vec![1.0; LEN]);
    for (rules, values) in [
        ("none", &noise),
        ("f16", &noise),
        ("efsign:unit=model", &noise),
        ("topk:density=1,index=raw", &noise),
        ("topk:density=1,index=bitmap,values=q2", &alike),
        ("topk:density=0.5,index=small", &noise),
        ("topk:density=0.5,index=chunks,values=bf16", &noise),
        ("topk:density=0.01,unit=tensor", &noise),
        ("randomk:density=0.5", &noise),
        ("qsgd:bits=4,entropy=rans", &alike),
        ("qsgd:bits=8,entropy=adaptive", &noise),
        ("qsgd:bits=8,entropy=elias,bucket=8", &noise),
        ("qsgd:bits=ternary,entropy=fixed", &noise),
        ("a*=qsgd;topk:density=0.3", &noise),
    ] {
        cases.push(small(rules, encoded(rules, values), LEN));
    }
    for spelling in ["topk:density=0.1,max_packet_bytes=1400", "qsgd:max_packet_bytes=65536"] {
        cases.push(small(spelling, packets(spelling, &noise), LEN));
    }
    cases
}

/// A safetensors file with one tensor of zeros.
fn zeros(folder: &Path, len: usize) -> String {
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{len}],"data_offsets":[0,{}]}}}}"#, 4 * len);
    let path = folder.join("layout");
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    // A hole as long as the data.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len((8 + header.len() + 4 * len) as u64).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What `inspect` may take for a file of that length of which so many coordinates are decoded.
fn inspected(bytes: usize, decoded: usize) -> usize {
    let again = decoded.min((1 << 20) + 16 * bytes);
    8 * decoded + 24 * again + 60 * bytes + FIXED
}

#[test]
fn what_inspect_and_decode_take_of_memory_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, output) = (path("frame"), path("output"));
    for Case { name, bytes, decoded } in cases() {
        std::fs::write(&file, &bytes).unwrap();
        let stated = inspected(bytes.len(), decoded);
        for args in [&["inspect", &file][..], &["inspect", "--json", &file]] {
            let taken = taken(args);
            println!("{name}: {} bytes, {decoded} coordinates: {taken} of {stated}, {args:?}", bytes.len());
            assert!(taken <= stated, "{name}: {args:?}: {taken} bytes, {stated} are stated");
        }
        if name != "void" {
            let taken = taken(&["decode", "--input", &file, "--force", "--output", &output]);
            let stated = 12 * decoded + 8 * bytes.len() + FIXED;
            println!("{name}: {taken} of {stated} to decode");
            assert!(taken <= stated, "{name}: decode: {taken} bytes, {stated} are stated");
        }
    }
    // With a layout it is the layout that says how much is decoded.
    let len = 3 << 20;
    let shapes = Layout::packed([("a", vec![len])]).unwrap();
    let bytes = forged::forged(5, shapes.fingerprint(), len as u64, 2, &context(8, len, 100));
    let layout = zeros(folder.path(), len);
    std::fs::write(&file, &bytes).unwrap();
    let (taken, stated) = (taken(&["inspect", "--layout", &layout, &file]), inspected(bytes.len(), len));
    println!("with a layout of {len} coordinates, a frame of {} bytes: {taken} of {stated}", bytes.len());
    assert!(taken <= stated, "{taken} bytes, {stated} are stated");
}
