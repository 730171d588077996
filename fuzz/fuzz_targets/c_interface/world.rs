//! Objects and buffers that exist, and the choice among them that the fuzzer makes.

use libgradwire::codec::gw_codec;
use libgradwire::encoder::gw_encoder;
use libgradwire::exchange::messages::GW_TAG_BYTES;
use libgradwire::exchange::{gw_exchange, gw_exchange_free};
use libgradwire::frame::gw_frame;
use libgradwire::heap::objects::*;
use libgradwire::layout::gw_layout;
use libgradwire::limits::gw_limits;
use libgradwire::memory::gw_memory;
use libgradwire::outline::gw_outline;
use libgradwire::raw::GW_ALIGNMENT;
use libgradwire::results::{GW_ERROR_PANIC, gw_result, gw_result_name};
use libgradwire::rounds::gw_rounds;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::CStr;

/// The lengths of layouts. The first have gradients; the last cannot be addressed.
pub const LENGTHS: [usize; 6] = [5, 64, 1000, 0, 1, usize::MAX];

pub struct Message {
    pub from: u32,
    pub tag: [u8; GW_TAG_BYTES],
    pub bytes: Vec<u8>,
}

/// An exchange, with what has to stay the same while it is in a step.
pub struct Member {
    pub exchange: *mut gw_exchange,
    pub rank: u32,
    pub gradient: Vec<f32>,
    pub mean: Vec<f32>,
}

#[derive(Default)]
pub struct World<'d> {
    data: &'d [u8],
    pub codecs: Vec<*mut gw_codec>,
    pub layouts: Vec<*mut gw_layout>,
    pub limits: Vec<*mut gw_limits>,
    pub memories: Vec<*mut gw_memory>,
    pub encoders: Vec<*mut gw_encoder>,
    pub frames: Vec<*mut gw_frame>,
    pub outlines: Vec<*mut gw_outline>,
    pub rounds: Vec<*mut gw_rounds>,
    pub members: Vec<Member>,
    pub messages: Vec<Message>,
    /// Frames that were made, and bytes that frames were read from: they stay.
    pub frame_bytes: Vec<Vec<u8>>,
    /// Memory of objects, each allocation as long as the object was told, so that a byte more is found.
    rooms: Vec<Room>,
}

struct Room {
    at: *mut u8,
    bytes: Layout,
}

impl Room {
    fn new(size: usize, filled: u8) -> Self {
        let bytes = Layout::from_size_align(size.max(1), GW_ALIGNMENT).unwrap();
        // SAFETY: the size is not 0.
        let at = unsafe { alloc(bytes) };
        assert!(!at.is_null());
        // SAFETY: just allocated.
        unsafe { at.write_bytes(filled, bytes.size()) };
        Self { at, bytes }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, with this layout.
        unsafe { dealloc(self.at, self.bytes) };
    }
}

impl<'d> World<'d> {
    pub fn new(data: &'d [u8]) -> Self {
        let mut world = Self::default();
        world.data = data;
        // Memory in which no object is.
        world.rooms.push(Room::new(512, 0xa5));
        world
    }

    pub fn is_over(&self) -> bool {
        self.data.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.data.split_first().unwrap_or((&0, &[]));
        self.data = rest;
        *first
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte()))
    }

    /// Any bytes, up to 255.
    pub fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte()).min(self.data.len());
        let (bytes, rest) = self.data.split_at(len);
        self.data = rest;
        bytes.to_vec()
    }

    /// A small number, or one at the end of the range.
    pub fn number(&mut self) -> usize {
        match self.byte() {
            255 => usize::MAX,
            254 => usize::MAX / 2,
            small => usize::from(small),
        }
    }

    /// Floats of any kind; mostly finite.
    pub fn floats(&mut self) -> Vec<f32> {
        let len = LENGTHS[self.below(5)];
        let (kind, mut state) = (self.byte(), self.word() | 1);
        let mut floats: Vec<_> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f32::from_bits(state & 0x8fff_ffff | 0x3000_0000)
            })
            .collect();
        if kind > 250 && len > 0 {
            floats[usize::from(kind) % len] =
                [f32::NAN, f32::INFINITY, f32::MAX, -f32::MAX, 0.0][usize::from(255 - kind)];
        }
        floats
    }

    /// One of the objects; sometimes null, misaligned, not an object, or an object of another kind.
    pub fn one_of<T>(&mut self, list: fn(&Self) -> &Vec<*mut T>) -> *mut T {
        let choice = self.byte();
        match choice {
            0..8 => std::ptr::null_mut(),
            8 => self.rooms[0].at.wrapping_add(1).cast(),
            9 => self.rooms[0].at.cast(),
            10 => self.layouts.first().map_or(std::ptr::null_mut(), |other| other.cast()),
            11 => self.codecs.first().map_or(std::ptr::null_mut(), |other| other.cast()),
            _ => {
                let list = list(self);
                let at = usize::from(choice) % list.len().max(1);
                list.get(at).copied().unwrap_or(std::ptr::null_mut())
            }
        }
    }

    /// Memory for an object that needs `size` bytes: mostly enough of it. It stays.
    pub fn room(&mut self, size: usize) -> (*mut std::ffi::c_void, usize) {
        let size = size.min(1 << 20);
        let given = match self.byte() {
            0 => 0,
            1 => size.saturating_sub(1),
            2 => size / 2,
            3 => return (std::ptr::null_mut(), size),
            _ => size,
        };
        let room = Room::new(given, 0x5a);
        let at = room.at;
        self.rooms.push(room);
        let skip = usize::from(given > 0 && self.byte() == 0);
        (at.wrapping_add(skip).cast(), given.saturating_sub(skip))
    }

    /// Bytes that are read as a frame: one that was made, perhaps damaged, or any. They stay.
    pub fn frame(&mut self) -> (*const u8, usize) {
        let made = self.below(self.frame_bytes.len() + 1);
        let mut bytes = self.frame_bytes.get(made).cloned().unwrap_or_default();
        match self.byte() {
            0..64 if !bytes.is_empty() => {
                let at = self.word() as usize % bytes.len();
                bytes[at] ^= self.byte();
            }
            64..80 => bytes.truncate(self.word() as usize % (bytes.len() + 1)),
            80..112 => bytes = self.bytes(),
            _ => {}
        }
        self.frame_bytes.push(bytes);
        self.frame_bytes.last().map_or((std::ptr::null(), 0), |bytes| (bytes.as_ptr(), bytes.len()))
    }
}

/// What every call promises.
pub fn check(result: gw_result) -> gw_result {
    // SAFETY: a static text.
    let name = unsafe { CStr::from_ptr(gw_result_name(result)) };
    assert!(result != GW_ERROR_PANIC && name != c"unknown", "{name:?} ({result})");
    result
}

/// Objects that stand on others go first.
impl Drop for World<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody uses any of them after this.
        unsafe {
            self.members.iter().for_each(|member| {
                check(gw_exchange_free(member.exchange));
            });
            self.frames.iter().for_each(|frame| {
                check(gw_frame_free(*frame));
            });
            self.encoders.iter().for_each(|encoder| {
                check(gw_encoder_free(*encoder));
            });
            self.rounds.iter().for_each(|rounds| {
                check(gw_rounds_free(*rounds));
            });
            self.memories.iter().for_each(|memory| {
                check(gw_memory_free(*memory));
            });
            self.codecs.iter().for_each(|codec| {
                check(gw_codec_free(*codec));
            });
            self.layouts.iter().for_each(|layout| {
                check(gw_layout_free(*layout));
            });
        }
    }
}
