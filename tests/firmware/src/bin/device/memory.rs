//! How much RAM the program takes, from the linker's symbols and a painted stack.

use core::ptr::{read_volatile, write_volatile};

// Addresses that cortex-m-rt's linker script defines; what lies there is not looked at through them.
unsafe extern "C" {
    /// Where the statics begin.
    static __sdata: u32;
    /// Where they end.
    static __ebss: u32;
    /// Where the stack begins, growing downwards.
    static _stack_start: u32;
}

/// Nothing that the program would write there.
const PAINT: u32 = 0xa5c3_5a3c;

/// Bytes below the stack pointer that are left alone: the frame of the painting function itself.
const MARGIN: usize = 128;

/// Statics.
pub(crate) fn static_bytes() -> usize {
    &raw const __ebss as usize - &raw const __sdata as usize
}

/// Fills the free part of the stack.
pub(crate) fn paint_stack() {
    let free = &raw const __ebss as usize..cortex_m::register::msp::read() as usize - MARGIN;
    for address in free.step_by(4) {
        // SAFETY: RAM between the statics and the stack pointer holds nothing yet, and the linker script
        // aligns it.
        unsafe { write_volatile(address as *mut u32, PAINT) }
    }
}

/// The deepest that the stack ever was since it was painted.
pub(crate) fn stack_bytes() -> usize {
    let (end, start) = (&raw const __ebss as usize, &raw const _stack_start as usize);
    // SAFETY: as above; reading it changes nothing.
    let is_painted = |address: &usize| unsafe { read_volatile(*address as *const u32) } == PAINT;
    let free = (end..start).step_by(4).take_while(is_painted).count();
    start - end - 4 * free
}
