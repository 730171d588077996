//! Packets: several messages in one file.

use gradwire::format::{Divisor, HEADER_BYTES, Header};

use crate::support::{Bench, json_lines, layout, refused, run, tensors};

/// Whole frames, and how the same is spelled as packets.
const PACKETS: [(&str, &str); 3] = [
    ("topk:density=0.1,values=f32", "topk:density=0.1,values=f32,max_packet_bytes=128"),
    ("bf16", "bf16:max_packet_bytes=1200"),
    ("qsgd:bits=4", "qsgd:bits=4,max_packet_bytes=200"),
];

/// The messages of a file, by their headers.
pub(crate) fn messages(mut file: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while !file.is_empty() {
        let body_bytes = Header::parse(file).unwrap().body_bytes as usize;
        let (message, rest) = file.split_at(HEADER_BYTES + body_bytes);
        messages.push(message);
        file = rest;
    }
    messages
}

fn decoded(bench: &Bench, codec: &str, layout: &[&str]) -> Vec<u32> {
    bench.encode(codec, 0);
    let (frame, output) = (bench.path("frame"), bench.path("decoded"));
    run(&[&["decode", "--input", &frame, "--force", "--output", &output], layout].concat());
    tensors(&bench.read("decoded")).into_iter().flat_map(|(_, _, bits)| bits).collect()
}

#[test]
fn packets_decode_to_what_their_frame_decodes_to() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    for (frame, packets) in PACKETS {
        let expected = decoded(&bench, frame, &[]);
        assert_eq!(decoded(&bench, packets, &[]), expected, "{packets}");
        assert_eq!(decoded(&bench, packets, &["--layout", &input]), expected, "{packets}");
    }
}

#[test]
fn bench_and_inspect_count_packets_and_their_bytes() {
    let bench = Bench::new();
    let input = bench.path("gradient.safetensors");
    for (_, codec) in PACKETS {
        let file = bench.encode(codec, 0);
        let messages = messages(&file);
        let size: usize = codec.rsplit('=').next().unwrap().parse().unwrap();
        assert!(messages.len() > 1 && messages.iter().all(|message| message.len() <= size), "{codec}");
        let row =
            &json_lines(&run(&["bench", "--input", &input, "--codec", codec, "--json", "--iters", "1"]))[0];
        assert_eq!((&row["frames"], &row["bytes"]), (&messages.len().into(), &file.len().into()), "{codec}");
        assert!(row["rounds"].is_null());
        let reports = json_lines(&run(&["inspect", "--json", &bench.path("frame")]));
        assert_eq!(reports.len(), messages.len());
        let sum = |key: &str| reports.iter().map(|report| report[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("frame_bytes"), sum("n")), (file.len() as u64, layout().len() as u64), "{codec}");
        let table = run(&["inspect", &bench.path("frame")]);
        assert!(table.contains(&format!("message 2 of {}", messages.len())), "{table}");
    }
}

#[test]
fn messages_that_do_not_belong_together_are_refused() {
    let bench = Bench::new();
    let file = bench.encode("topk:density=0.1,max_packet_bytes=128", 0);
    let other = bench.encode("none", 0);
    let [first, second] = [0, 1].map(|at| messages(&file)[at].to_vec());
    let mut senders = second.clone();
    Divisor::Senders.write_to(&mut senders).unwrap();
    for (bytes, expected) in [
        ([&first[..], &first].concat(), "message 2: its units overlap or contradict"),
        ([&first[..], &second, &first].concat(), "message 3: its units overlap or contradict"),
        ([&first[..], &other].concat(), ": its units overlap or contradict"),
        ([&first[..], &senders].concat(), "message 2: layout, divisor or step"),
        ([&first[..], &second[..second.len() - 1]].concat(), "truncated: "),
        ([&first[..], b"GW"].concat(), "2 bytes after the end of the data"),
    ] {
        let bad = bench.write("bad", &bytes);
        let output = bench.path("nothing");
        let input = bench.path("gradient.safetensors");
        let layout = ["--layout", &input];
        for args in [&["decode", "--input", &bad, "--force", "--output", &output][..], &["inspect", &bad]] {
            for args in [args.to_vec(), [args, &layout].concat()] {
                let (stdout, why) = refused(&args);
                assert_eq!(stdout, "");
                assert!(why.contains(expected), "{args:?}: {why} does not say {expected}");
            }
        }
        assert!(!std::path::Path::new(&output).exists());
    }
}
