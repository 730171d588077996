//! Bad input: one line that says what and where, exit code 2, nothing written.

use crate::support::{Bench, le_bytes, refused, safetensors_bytes};

/// Runs a command that must be refused without a word on standard output and without a trace in the folder.
fn assert_refused(bench: &Bench, args: &[&str], expected: &[&str]) {
    let before = bench.files();
    let (stdout, stderr) = refused(args);
    assert_eq!(stdout, "", "{args:?}");
    for part in expected {
        assert!(stderr.contains(part), "{args:?}: {stderr} does not say {part}");
    }
    assert!(bench.files() == before, "{args:?} left something behind");
}

/// A gradient file must be refused by everything that reads one.
fn assert_gradient_refused(bytes: &[u8], expected: &str) {
    let bench = Bench::new();
    let (good, bad) = (bench.path("gradient.safetensors"), bench.write("bad", bytes));
    let output = bench.write("output", b"as it was");
    let parts = [bad.as_str(), expected];
    assert_refused(
        &bench,
        &["encode", "--codec", "topk", "--input", &bad, "--force", "--output", &output],
        &parts,
    );
    assert_refused(&bench, &["bench", "--codec", "topk", "--input", &good, &bad], &parts);
    assert_refused(&bench, &["bench", "--json", "--codec", "topk", "--input", &good, &bad], &parts);
}

/// A frame file must be refused by everything that reads one.
fn assert_frame_refused(bytes: &[u8], expected: &str) {
    let bench = Bench::new();
    let (bad, layout) = (bench.write("bad", bytes), bench.path("gradient.safetensors"));
    let output = bench.write("output", b"as it was");
    let parts = [bad.as_str(), expected];
    let decode = ["decode", "--input", &bad, "--force", "--output", &output];
    assert_refused(&bench, &decode, &parts);
    assert_refused(&bench, &[&decode[..], &["--layout", &layout]].concat(), &parts);
    assert_refused(&bench, &["inspect", &bad], &parts);
    assert_refused(&bench, &["inspect", &bad, "--json"], &parts);
}

#[test]
fn missing_files_are_named() {
    let bench = Bench::new();
    let (missing, output) = (bench.path("missing"), bench.path("output"));
    let parts = [missing.as_str(), "No such file"];
    assert_refused(&bench, &["bench", "--codec", "topk", "--input", &missing], &parts);
    assert_refused(
        &bench,
        &["encode", "--codec", "topk", "--input", &missing, "--force", "--output", &output],
        &parts,
    );
    assert_refused(&bench, &["decode", "--input", &missing, "--force", "--output", &output], &parts);
    assert_refused(&bench, &["inspect", &missing], &parts);
    let folder = bench.folder.path().to_str().unwrap();
    assert_refused(&bench, &["inspect", folder], &[folder, "not a regular file"]);
}

#[test]
fn outputs_that_cannot_be_written_are_named() {
    let bench = Bench::new();
    let (input, folder) = (bench.path("gradient.safetensors"), bench.folder.path().to_str().unwrap());
    let encode = ["encode", "--codec", "topk", "--input", &input, "--force", "--output"];
    let nowhere = bench.path("missing/frame");
    assert_refused(&bench, &[&encode[..], &[nowhere.as_str()]].concat(), &[&nowhere, "No such file"]);
    assert_refused(&bench, &[&encode[..], &[folder]].concat(), &[folder, "a folder, not a file"]);
}

#[test]
fn bad_spellings_name_the_key_and_what_it_allows() {
    let bench = Bench::new();
    let (input, output) = (bench.path("gradient.safetensors"), bench.path("output"));
    for (codec, reason) in [
        ("topk:density=7", "density=7: expected a fraction from 1e-9 to 1"),
        ("tpok", "unknown codec 'tpok': expected one of none, f16"),
        ("qsgd:level=3", "qsgd has no key 'level': expected one of bits levels bucket"),
        ("none:memory=ef", "memory=ef: none sends everything"),
        ("topk:density=0.1\n", "density=0.1\\n: expected a fraction"),
    ] {
        assert_refused(&bench, &["bench", "--codec", "none", codec, "--input", &input], &[reason]);
        assert_refused(
            &bench,
            &["encode", "--codec", codec, "--input", &input, "--force", "--output", &output],
            &[reason],
        );
    }
}

#[test]
fn files_that_are_not_safetensors_are_refused() {
    assert_gradient_refused(b"", "not a safetensors file: it has 0 bytes");
    assert_gradient_refused(b"a plain text file", "not a safetensors file: its header would have");
    assert_gradient_refused(b"\x10\0\0\0\0\0\0\0{\"a\":}          ", "not a safetensors file: bad header");
    let mut huge = u64::MAX.to_le_bytes().to_vec();
    huge.extend([b' '; 100]);
    assert_gradient_refused(&huge, "its header would have 18446744073709551615 bytes, the file has 108");
}

#[test]
fn files_of_other_kinds_are_named() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123456\n";
    let array = b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (8,), }";
    let pytorch = b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pkl";
    let index = br#"{"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#;
    let cases: [(&[u8], &str); 9] = [
        (pytorch, "this is a PyTorch file: save the tensors with safetensors.torch.save_file"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "this is a Python pickle: save the tensors with"),
        (array, "this is a NumPy array: save the arrays with safetensors.numpy.save_file"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03 a gradient", "this is a gzip file: unpack it first"),
        (b"<!DOCTYPE html>\n<html><body>Sign in</body>", "this is an HTML page: the download gave this"),
        (pointer, "this is a pointer of Git LFS: fetch the file itself with: git lfs pull"),
        (index, "this is the index of a model in several files: give one of the files"),
        (b"GGUF\x03\0\0\0 and so on", "this is a GGUF file: "),
        (&[0; 4096], "this is nothing but zeros: "),
    ];
    for (bytes, expected) in cases {
        assert_gradient_refused(bytes, &format!("not a safetensors file: {expected}"));
        assert_frame_refused(bytes, expected);
    }
    let bench = Bench::new();
    assert_gradient_refused(&bench.encode("topk", 0), "this is a frame of gradwire: `codec decode`");
    assert_frame_refused(&bench.read("gradient.safetensors"), "bad magic number: this is a safetensors file");
}

#[test]
fn safetensors_of_another_length_than_their_header_says_are_refused() {
    let file = safetensors_bytes(&[("a", "F32", &[2], le_bytes(&[1.0, 2.0]))]);
    let expected = format!("truncated: {} bytes needed, {} present", file.len(), file.len() - 1);
    assert_gradient_refused(&file[..file.len() - 1], &expected);
    assert_gradient_refused(&[&file[..], b"1"].concat(), "1 bytes after the end of the data");
    let claim = safetensors_bytes(&[("a", "F32", &[1 << 60], Vec::new())]);
    assert_gradient_refused(&claim, "not a safetensors file: bad header");
}

#[test]
fn files_without_a_gradient_are_refused() {
    let bench = Bench::new();
    for tensors in [&[][..], &[("a", "F32", &[0][..], Vec::new())]] {
        // It can be encoded, but there is nothing to measure.
        let empty = bench.write("empty", &safetensors_bytes(tensors));
        assert_refused(&bench, &["bench", "--codec", "topk", "--input", &empty], &[&empty, "no gradient"]);
    }
    let integers = safetensors_bytes(&[("steps", "I64", &[1], vec![0; 8])]);
    assert_gradient_refused(&integers, "tensor 'steps' has type I64: expected F32, F16 or BF16");
}

#[test]
fn values_that_are_not_finite_are_placed() {
    for bad in [f32::NAN, f32::INFINITY] {
        let file = safetensors_bytes(&[
            ("good", "F32", &[2], le_bytes(&[1.0, 2.0])),
            ("bad", "F32", &[2, 2], le_bytes(&[1.0, 2.0, 3.0, bad])),
        ]);
        let expected = "topk:density=0.01: non-finite value at coordinate 5 (tensor 'bad', element 3)";
        assert_gradient_refused(&file, expected);
    }
}

#[test]
fn values_that_overflow_a_narrow_format_are_placed() {
    let bench = Bench::new();
    let file = safetensors_bytes(&[("a", "F32", &[2], le_bytes(&[1.0, 1e6]))]);
    let (input, output) = (bench.write("large", &file), bench.path("output"));
    let parts = [input.as_str(), "f16: value at coordinate 1 overflows", "(tensor 'a', element 1)"];
    assert_refused(
        &bench,
        &["encode", "--codec", "f16", "--input", &input, "--force", "--output", &output],
        &parts,
    );
    assert_refused(&bench, &["bench", "--codec", "f16", "--input", &input], &parts);
}

#[test]
fn damaged_frames_are_refused() {
    let bench = Bench::new();
    let frame = bench.encode("topk", 0);
    assert_frame_refused(b"", "truncated");
    assert_frame_refused(b"GW", "truncated");
    assert_frame_refused(&bench.read("gradient.safetensors"), "not a gradwire frame: bad magic number");
    let expected = format!("truncated: {} bytes needed, {} present", frame.len(), frame.len() - 1);
    assert_frame_refused(&frame[..frame.len() - 1], &expected);
    assert_frame_refused(&[&frame[..], b"1"].concat(), "1 bytes after the end of the data");
    let with = |at: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[at] = byte;
        frame
    };
    assert_frame_refused(&with(2, 9), "unsupported version 9");
    assert_frame_refused(&with(3, 99), "unknown codec 99");
    assert_frame_refused(&with(5, 1), "unknown flag");
}

#[test]
fn a_wrong_checksum_writes_no_gradient() {
    let bench = Bench::new();
    let mut frame = bench.encode("topk", 0);
    *frame.last_mut().unwrap() ^= 1;
    let (frame, output) = (bench.write("frame", &frame), bench.path("output"));
    assert_refused(
        &bench,
        &["decode", "--input", &frame, "--force", "--output", &output],
        &[&frame, "checksum mismatch"],
    );
}

#[test]
fn frames_of_another_layout_are_refused() {
    let bench = Bench::new();
    bench.encode("topk", 0);
    let other = bench.write("other", &safetensors_bytes(&[("a", "F32", &[2], le_bytes(&[1.0, 2.0]))]));
    let (frame, output) = (bench.path("frame"), bench.path("output"));
    let args = ["decode", "--input", &frame, "--force", "--output", &output, "--layout", &other];
    assert_refused(&bench, &args, &[&frame, "made for another layout than", &other]);
}

#[test]
fn lone_frames_beyond_the_limit_are_refused() {
    let bench = Bench::new();
    bench.encode("threshold:value=1000000", 0);
    let (frame, output) = (bench.path("frame"), bench.path("output"));
    let parts = [frame.as_str(), "more than 2440 coordinates; raise --max-elements"];
    let limit = ["--max-elements", "2440"];
    let decode = ["decode", "--input", &frame, "--force", "--output", &output];
    assert_refused(&bench, &[&decode[..], &limit].concat(), &parts);
    assert_refused(&bench, &[&["inspect", frame.as_str()], &limit[..]].concat(), &parts);
}
