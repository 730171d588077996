//! Calls of the C interface in any order, with pointers that are null, misaligned, to memory that is too
//! short or to another kind of object, and with bytes of strangers: each returns a result that has a name
//! and is no panic, and touches no memory that it was not given (which the address sanitizer sees).
//!
//! What the manual asks of a caller is kept: memory is as long as the call says, objects that another stands
//! on stay, and the gradient of a step is the same in every call.
#![no_main]

mod c_interface {
    pub mod calls;
    pub mod world;
}

use c_interface::world::World;
use libfuzzer_sys::fuzz_target;

/// More memory than there can be is an error of a call, as it is without the sanitizer.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const std::ffi::c_char {
    c"allocator_may_return_null=1".as_ptr()
}

fuzz_target!(|data: &[u8]| {
    let mut world = World::new(data);
    for _ in 0..200 {
        if world.is_over() {
            break;
        }
        c_interface::calls::one(&mut world);
    }
});
