//! Whatever a stranger sends to an end that listens, in pieces of any size, with a key or without: it is let
//! speak only if it greets, nothing panics, and the answer is short. Without the key nothing is a greeting.
#![no_main]

use gradwire_transports::tcp::{Key, greet_stranger};
use libfuzzer_sys::fuzz_target;

/// A preface, and one message of the Noise handshake with its length.
const LONGEST_ANSWER: usize = 11 + 2 + 48;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let key = (choice % 2 == 1).then(|| Key::new([7; 32]));
    // After a preface that is right, too: the rest is seldom reached otherwise.
    let preface = [&b"gradwire"[..], &[1, 0, u8::from(key.is_some())]].concat();
    let stream = if choice % 4 > 1 { [&preface, bytes].concat() } else { bytes.to_vec() };
    let (greeted, answered) = greet_stranger(&stream, usize::from(choice / 4), key.as_ref());
    assert!(answered <= LONGEST_ANSWER);
    assert!(!greeted || key.is_none());
});
