//! Runs one piece of work under the name `measured`, for a tool that counts instructions: see
//! `instructions.sh`.

use std::env;

use gradwire_benches::{CodecRun, DecodeRun, Gradient, Input, Settings};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [direction, codec, len] = arguments.as_slice() else {
        panic!("usage: instructions encode|decode CODEC ELEMENTS");
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
