//! What came over a socket: bytes as they came, and the plain bytes that they open to. Also seals what goes
//! the other way.

use std::io::{self, ErrorKind, Read};

use snow::TransportState;

use super::reader::Garbage;

/// What Noise adds to each of its messages, beside the length before it: an authenticator.
const TAG: usize = 16;
/// The length of a Noise message, as u16, before it.
const LENGTH: usize = 2;
/// The most plain bytes of one Noise message.
pub(super) const PIECE: usize = u16::MAX as usize - TAG;
/// Bytes on the wire for each piece of a sealed frame, beside the piece.
pub(super) const SEAL: usize = LENGTH + TAG;
/// The most bytes that are kept unopened.
const ROOM: usize = 256 << 10;

/// How the bytes of a connection travel.
#[derive(Debug)]
pub(super) enum Channel {
    Plain,
    /// Noise messages, each after its length as u16, little-endian.
    Noise(Box<TransportState>),
}

/// Bytes that came over one connection.
#[derive(Debug)]
pub(super) struct Inlet {
    pub(super) channel: Channel,
    raw: Bytes,
    /// The last Noise message, opened.
    plain: Bytes,
}

/// A buffer of fixed size that is filled at its end and emptied from its front.
#[derive(Debug, Default)]
struct Bytes {
    /// Made when it is first needed.
    room: Vec<u8>,
    start: usize,
    end: usize,
}

impl Bytes {
    fn left(&self) -> &[u8] {
        &self.room[self.start..self.end]
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// The room behind what is left, which moves to the front of `size` bytes.
    fn free(&mut self, size: usize) -> &mut [u8] {
        self.room.resize(size, 0);
        self.room.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.room[self.end..]
    }
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// So many bytes.
    Some(usize),
    /// Nothing now.
    Nothing,
    /// Nothing ever again.
    End,
}

impl Inlet {
    /// Empty, and without encryption.
    pub(super) fn new() -> Self {
        Self { channel: Channel::Plain, raw: Bytes::default(), plain: Bytes::default() }
    }

    /// Reads what is there, up to a bound on what is kept. Whatever is kept was looked at before, so there is
    /// room for more.
    pub(super) fn read(&mut self, from: &mut impl Read) -> io::Result<Arrived> {
        let free = self.raw.free(ROOM);
        loop {
            return match from.read(free) {
                Ok(0) => Ok(Arrived::End),
                Ok(count) => {
                    self.raw.end += count;
                    Ok(Arrived::Some(count))
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Arrived::Nothing),
                Err(error) => Err(error),
            };
        }
    }

    /// The bytes as they came.
    pub(super) fn raw(&self) -> &[u8] {
        self.raw.left()
    }

    pub(super) fn take_raw(&mut self, count: usize) {
        self.raw.take(count);
    }

    /// Plain bytes; empty when more must come first.
    pub(super) fn plain(&mut self) -> Result<&[u8], Garbage> {
        let Channel::Noise(noise) = &mut self.channel else { return Ok(self.raw.left()) };
        while self.plain.left().is_empty() {
            let Some(sealed) = sealed_message(self.raw.left()) else { break };
            let count = noise.read_message(sealed, self.plain.free(PIECE)).map_err(|_| Garbage)?;
            self.plain.end = count;
            let used = LENGTH + sealed.len();
            self.raw.take(used);
        }
        Ok(self.plain.left())
    }

    pub(super) fn take_plain(&mut self, count: usize) {
        match self.channel {
            Channel::Plain => self.raw.take(count),
            Channel::Noise(_) => self.plain.take(count),
        }
    }

    /// Appends a piece of a frame to `out`, as it travels. A piece has at most [`PIECE`] bytes.
    pub(super) fn seal(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Garbage> {
        let Channel::Noise(noise) = &mut self.channel else {
            out.extend_from_slice(piece);
            return Ok(());
        };
        let start = out.len();
        out.extend_from_slice(&((piece.len() + TAG) as u16).to_le_bytes());
        out.resize(start + SEAL + piece.len(), 0);
        // Fails only once 2^64 messages were sealed.
        noise.write_message(piece, &mut out[start + LENGTH..]).map(|_| ()).map_err(|_| Garbage)
    }

    /// Appends a whole frame to `out`, as it travels.
    pub(super) fn seal_frame(&mut self, frame: &[u8], out: &mut Vec<u8>) -> Result<(), Garbage> {
        frame.chunks(PIECE).try_for_each(|piece| self.seal(piece, out))
    }
}

/// The first message, without its length, if all of it is there.
pub(super) fn sealed_message(raw: &[u8]) -> Option<&[u8]> {
    let (length, rest) = raw.split_first_chunk()?;
    rest.get(..usize::from(u16::from_le_bytes(*length)))
}
