//! The program `trainer` with two more codecs. Every command takes their spellings: `cargo run --release -p
//! own-codec -- compare --codec none x:dice x:window:density=0.1`.

mod dice;
mod window;

use std::process::ExitCode;

use dice::Dice;
use gradwire::Density;
use gradwire::experiments::OwnCodec;
use window::Window;

fn main() -> ExitCode {
    let dice =
        OwnCodec::gather("dice", "the signs of some coordinates by chance, a scale a block", Dice::read);
    let dice = dice.keys("block=512").examples(&["x:dice", "x:dice:block=64,unit=tensor"]);
    let window = OwnCodec::gather("window", "consecutive coordinates, others at every step", |_| Ok(Window));
    let window = window.density(Density::new(0.01).expect("a fraction")).examples(&["x:window"]);
    gradwire_trainer::main_with([dice, window])
}
