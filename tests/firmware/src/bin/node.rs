//! Both codecs, the decoder and the start-up code, and nothing else: its size is what they take.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;
use cortex_m as _;
use cortex_m_rt::entry;
use gradwire::Gather;
use gradwire_firmware::{Buffers, qsgd, topk};

#[entry]
fn main() -> ! {
    static mut BUFFERS: Buffers = Buffers::new();
    for step in 0.. {
        black_box(topk().and_then(|topk| exchange(BUFFERS, &topk, step, true)));
        black_box(qsgd().and_then(|qsgd| exchange(BUFFERS, &qsgd, step, false)));
    }
    loop {}
}

fn exchange(buffers: &mut Buffers, codec: &dyn Gather, step: u32, takes_memory: bool) -> Option<()> {
    let len = buffers.encode(codec, step, takes_memory)?;
    buffers.decode(len)
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
