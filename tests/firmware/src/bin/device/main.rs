//! The frames as a Cortex-M4F makes them, and how much RAM that took. Prints through the debugger
//! (semihosting).
#![no_std]
#![no_main]

mod memory;

use core::panic::PanicInfo;
use cortex_m_rt::entry;
use cortex_m_semihosting::debug::{self, EXIT_FAILURE, EXIT_SUCCESS};
use cortex_m_semihosting::hio::{self, HostStream};
use gradwire_firmware::Buffers;

#[entry]
fn main() -> ! {
    static mut BUFFERS: Buffers = Buffers::new();
    memory::paint_stack();
    let Ok(mut console) = hio::hstdout() else { end(false) };
    let mut line = Line { bytes: [0; 64], len: 0 };
    let done = gradwire_firmware::run(BUFFERS, &mut |piece| line.push(piece, &mut console)).is_some();
    let statics = memory::static_bytes() - size_of::<Buffers>();
    for (name, value) in [("memory: statics ", statics), ("\nmemory: stack ", memory::stack_bytes())] {
        line.push(name.as_bytes(), &mut console);
        line.push_decimal(value, &mut console);
    }
    line.push(b"\n", &mut console);
    line.flush(&mut console);
    end(done)
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    end(false)
}

fn end(well: bool) -> ! {
    debug::exit(if well { EXIT_SUCCESS } else { EXIT_FAILURE });
    loop {}
}

/// Every call of the debugger stops the processor, so text is gathered first.
struct Line {
    bytes: [u8; 64],
    len: usize,
}

impl Line {
    fn push(&mut self, piece: &[u8], console: &mut HostStream) {
        for &byte in piece {
            if self.len == self.bytes.len() {
                self.flush(console);
            }
            self.bytes[self.len] = byte;
            self.len += 1;
        }
    }

    fn push_decimal(&mut self, value: usize, console: &mut HostStream) {
        let mut power = 1_000_000;
        while power > 0 {
            self.push(&[b'0' + (value / power % 10) as u8], console);
            power /= 10;
        }
    }

    fn flush(&mut self, console: &mut HostStream) {
        if console.write_all(&self.bytes[..self.len]).is_err() {
            end(false);
        }
        self.len = 0;
    }
}
