//! Encoding, and parsing, decoding and adding up, with every codec, beside memcpy and peers.

use gradwire_benches::peers::{self, NaiveTopK, PackedPositions, RangeCoder, Selection, Zstd};
use gradwire_benches::{
    CodecRun, DecodeRun, Gradient, Input, Lab, Quality, Settings, Work, harness, with_all_codecs,
};

const CODECS: [&str; 31] = [
    "none",
    "f16",
    "bf16",
    "topk:density=0.1",
    "topk:density=0.01",
    "topk:density=0.001",
    "topk:density=0.01,chunk=4096",
    "topk:density=0.01,index=context",
    "topk:density=0.01,index=smallest",
    "topk:density=0.01,values=q8",
    "topk:density=0.01,values=q4",
    "dgc:density=0.01,momentum=0,dense_1d=false",
    "dgc:density=0.01,dense_1d=false",
    "sidco:density=0.01,fit=exp",
    "sidco:density=0.01,fit=gamma",
    "sidco:density=0.01",
    "sidco:density=0.01,stages=1",
    "sidco:density=0.01,cap=exact",
    "threshold",
    "qsgd:bits=4,entropy=fixed",
    "qsgd:bits=4,entropy=rans",
    "qsgd:bits=4,entropy=adaptive",
    "qsgd:bits=4",
    "qsgd:bits=3,entropy=fixed",
    "qsgd:bits=ternary,entropy=fixed",
    "qsgd:bits=ternary",
    "qsgd:bits=8,entropy=fixed",
    "qsgd:bits=4,bucket=4294967295,entropy=fixed,rounding=nearest",
    "qsgd:bits=4,bucket=4294967295,entropy=fixed,rounding=nearest,memory=none",
    "randomk:density=0.01",
    "randomk:density=0.1",
];

/// Codecs whose work depends on what the gradient looks like.
const SENSITIVE: [&str; 3] = ["topk:density=0.01", "topk:density=0.1", "qsgd:bits=4"];

/// Codecs that encode in parts.
const PARALLEL: [&str; 4] =
    ["bf16", "topk:density=0.01", "qsgd:bits=4,entropy=fixed", "qsgd:bits=4,entropy=rans"];

fn main() {
    let settings = &Settings::from_env();
    let mut criterion = harness();
    let mut lab = Lab::new("Codecs", settings, settings.len);
    let gradient = |input| Gradient::new(input, settings.len, settings);
    for input in Input::USUAL.into_iter().filter(|input| input.is_available(settings)) {
        measure_codecs(&mut criterion, &mut lab, input, &gradient(input), &with_all_codecs(&CODECS));
    }
    for input in Input::UNUSUAL {
        measure_codecs(&mut criterion, &mut lab, input, &gradient(input), &SENSITIVE);
    }
    measure_threads(&mut criterion, &mut lab, &gradient(Input::Heavy));
    for input in [Input::Heavy, Input::File].into_iter().filter(|input| input.is_available(settings)) {
        measure_peers(&mut criterion, &mut lab, input, &gradient(input));
    }
    lab.finish();
    criterion.final_summary();
}

/// The name in results and the spelling: a threshold has to fit the input.
fn spelling(codec: &str, gradient: &Gradient) -> String {
    match codec {
        "threshold" => format!("threshold:value={}", gradient.one_percent_magnitude()),
        codec => codec.to_owned(),
    }
}

fn measure_codecs(
    criterion: &mut criterion::Criterion,
    lab: &mut Lab,
    input: Input,
    gradient: &Gradient,
    codecs: &[&str],
) {
    let mut group = criterion.benchmark_group("codecs");
    for codec in codecs {
        lab.compare(&mut group, (&format!("encode {codec}"), input.name()), gradient.len(), || {
            let mut run = CodecRun::new(&spelling(codec, gradient), gradient);
            Work::new(run.checked_step(), move || run.encode())
        });
        let mut run = None;
        lab.compare(&mut group, (&format!("decode {codec}"), input.name()), gradient.len(), || {
            let run = run.insert(CodecRun::new(&spelling(codec, gradient), gradient));
            let quality = run.checked_step();
            let mut decode = DecodeRun::new(run.frame(), gradient.len());
            Work::new(quality, move || decode.add())
        });
    }
    group.finish();
}

/// One thread, two, and as many as there are cores; the copy stays that of one.
fn measure_threads(criterion: &mut criterion::Criterion, lab: &mut Lab, gradient: &Gradient) {
    let mut group = criterion.benchmark_group("threads");
    let mut counts = vec![1, 2, std::thread::available_parallelism().map_or(2, usize::from)];
    counts.dedup();
    for (codec, threads) in PARALLEL.into_iter().flat_map(|codec| counts.iter().map(move |n| (codec, *n))) {
        let input = format!("heavy, {threads} threads");
        lab.compare(&mut group, (&format!("encode {codec}"), &input), gradient.len(), || {
            let mut run = CodecRun::new(codec, gradient).with_threads(threads);
            Work::new(run.checked_step(), move || run.encode())
        });
    }
    group.finish();
}

fn measure_peers(criterion: &mut criterion::Criterion, lab: &mut Lab, input: Input, gradient: &Gradient) {
    let mut group = criterion.benchmark_group("peers");
    let len = gradient.len();
    let exact = |bytes: usize| Quality { bytes: Some(bytes), error: Some(0.0) };
    let with_bytes = |bytes: usize| Quality { bytes: Some(bytes), error: None };

    for level in [1, 3] {
        lab.compare(&mut group, (&format!("zstd -{level} compress"), input.name()), len, || {
            let mut zstd = Zstd::new(peers::bytes_of(gradient.step(0)), level);
            Work::new(exact(zstd.compressed_bytes()), move || zstd.compress())
        });
        lab.compare(&mut group, (&format!("zstd -{level} decompress"), input.name()), len, || {
            let mut zstd = Zstd::new(peers::bytes_of(gradient.step(0)), level);
            Work::new(exact(zstd.compressed_bytes()), move || zstd.decompress())
        });
    }

    let k = len / 100;
    for (selection, name) in [(Selection::Sort, "sorted"), (Selection::Partition, "select_nth")] {
        if selection == Selection::Sort && input != Input::Heavy {
            // Seconds a run, and much the same whatever is sorted.
            continue;
        }
        lab.compare(&mut group, (&format!("naive top-k 0.01, {name}"), input.name()), len, || {
            let mut topk = NaiveTopK::new(gradient, selection, k);
            topk.encode();
            Work::new(with_bytes(topk.message_bytes()), move || topk.encode())
        });
    }

    let positions = || {
        let mut topk = NaiveTopK::new(gradient, Selection::Partition, k);
        topk.encode();
        PackedPositions::new(topk.positions().to_vec())
    };
    lab.compare(&mut group, ("bitpacking of the 0.01 positions, pack", input.name()), len, || {
        let mut packed = positions();
        Work::new(with_bytes(packed.packed_bytes()), move || packed.encode())
    });
    lab.compare(&mut group, ("bitpacking of the 0.01 positions, unpack", input.name()), len, || {
        let mut packed = positions();
        Work::new(with_bytes(packed.packed_bytes()), move || packed.decode())
    });

    lab.compare(&mut group, ("constriction of the 4-bit levels, encode", input.name()), len, || {
        let mut coder = RangeCoder::new(gradient.step(0));
        Work::new(with_bytes(coder.coded_bytes()), move || coder.encode())
    });
    lab.compare(&mut group, ("constriction of the 4-bit levels, decode", input.name()), len, || {
        let coder = RangeCoder::new(gradient.step(0));
        Work::new(with_bytes(coder.coded_bytes()), move || coder.decode())
    });
    group.finish();
}
