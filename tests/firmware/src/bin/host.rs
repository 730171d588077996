//! The frames as this machine makes them.

use gradwire_firmware::{Buffers, run};
use std::io::{self, Write};

fn main() -> io::Result<()> {
    let mut text = Vec::new();
    let done = run(&mut Buffers::new(), &mut |piece| text.extend_from_slice(piece));
    assert!(done.is_some(), "a codec failed");
    io::stdout().write_all(&text)
}
