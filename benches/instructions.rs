//! Runs one piece of work under the name `measured`, for a tool that counts instructions: see
//! `instructions.sh`.

use std::env;

use gradwire_benches::{CodecRun, DecodeRun, Gradient, Input, Settings, with_all_codecs};

/// The main paths.
const CODECS: [&str; 18] = [
    "none",
    "f16",
    "bf16",
    "topk:density=0.1",
    "topk:density=0.01",
    "topk:density=0.001",
    "topk:density=0.01,values=q8",
    "topk:density=0.01,values=q4",
    "topk:density=0.01,chunk=4096",
    "threshold:value=0.017",
    "qsgd:bits=4,entropy=fixed",
    "qsgd:bits=4,entropy=rans",
    "qsgd:bits=4,entropy=elias",
    "qsgd:bits=ternary",
    "qsgd:bits=8,entropy=fixed",
    "qsgd:bits=4,bucket=4294967295,entropy=fixed,rounding=nearest",
    "randomk:density=0.01",
    "efsign",
];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments == ["list"] {
        with_all_codecs(&CODECS).iter().for_each(|codec| println!("{codec}"));
        return;
    }
    let [direction, codec, len] = arguments.as_slice() else {
        panic!("usage: instructions list, or instructions encode|decode CODEC ELEMENTS");
    };
    let len = len.parse().expect("a number of elements");
    let gradient = Gradient::new(Input::Heavy, len, &Settings::from_env());
    let mut run = CodecRun::new(codec, &gradient);
    match direction.as_str() {
        "encode" => measured(|| run.encode()),
        "decode" => {
            let mut decode = DecodeRun::new(run.frame(), len);
            // Buffers grow in the first run.
            decode.add();
            measured(|| decode.add());
        }
        other => panic!("'{other}' is neither encode nor decode"),
    }
}

/// Counting begins and ends with this function.
#[inline(never)]
fn measured(mut work: impl FnMut()) {
    work();
}
