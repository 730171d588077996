//! A socket, what came over it and what waits to be written to it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};

use mio::net::TcpStream;

use super::inlet::{Arrived, Channel, Inlet, PIECE};

/// The most frames that one call of the system takes.
const SLICES: usize = 16;
/// Sealed bytes that are collected before they are written.
const SEALED: usize = 128 << 10;

/// A frame that waits to be written.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    /// Whether it is a message, whose buffer and room its queue wants back.
    pub(super) is_message: bool,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    pub(super) inlet: Inlet,
    /// Whether the socket may have more to read, or room to write, since it last said that it has none.
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    frames: VecDeque<Frame>,
    /// How much of the first frame was written, or sealed.
    done: usize,
    /// What was sealed but not written.
    sealed: Vec<u8>,
    sealed_done: usize,
    /// About how many bytes of messages were not written.
    unwritten: usize,
    /// Bytes that came.
    received: u64,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            inlet: Inlet::new(),
            is_readable: false,
            is_writable: false,
            frames: VecDeque::new(),
            done: 0,
            sealed: Vec::new(),
            sealed_done: 0,
            unwritten: 0,
            received: 0,
        }
    }

    /// Whether everything was written.
    pub(super) fn is_idle(&self) -> bool {
        self.frames.is_empty() && self.sealed.is_empty()
    }

    /// Queues bytes that are sealed already, or need not be.
    pub(super) fn push_raw(&mut self, bytes: &[u8]) {
        self.sealed.extend_from_slice(bytes);
    }

    /// Whether bytes of messages wait to be written.
    pub(super) fn has_messages(&self) -> bool {
        self.unwritten > 0
    }

    /// Bytes that came since the connection began.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn push(&mut self, frame: Frame) {
        self.unwritten += if frame.is_message { frame.bytes.len() } else { 0 };
        self.frames.push_back(frame);
    }

    pub(super) fn push_control(&mut self, bytes: Vec<u8>) {
        self.push(Frame { bytes, is_message: false });
    }

    /// Reads what is there, up to a bound.
    pub(super) fn read(&mut self) -> io::Result<Arrived> {
        let arrived = self.inlet.read(&mut self.stream)?;
        self.is_readable = !matches!(arrived, Arrived::Nothing);
        if let Arrived::Some(count) = arrived {
            self.received += count as u64;
        }
        Ok(arrived)
    }

    /// Writes until the socket has no room, or about `most` bytes. Frames that were written go to `written`.
    /// Returns the bytes written.
    pub(super) fn flush(&mut self, most: usize, mut written: impl FnMut(Frame)) -> io::Result<usize> {
        let mut total = 0;
        while self.is_writable && !self.is_idle() && total < most {
            self.seal(&mut written)?;
            let count = if self.sealed.is_empty() { self.write_frames()? } else { self.write_sealed()? };
            total += count;
            if self.sealed.is_empty() {
                self.finish_frames(&mut written);
            }
        }
        self.unwritten = self.unwritten.saturating_sub(total);
        Ok(total)
    }

    /// Seals frames ahead of the socket, if they must be.
    fn seal(&mut self, written: &mut impl FnMut(Frame)) -> io::Result<()> {
        if matches!(self.inlet.channel, Channel::Plain) {
            return Ok(());
        }
        while self.sealed.len() < SEALED
            && let Some(frame) = self.frames.front()
        {
            let end = frame.bytes.len().min(self.done + PIECE);
            let sealed = self.inlet.seal(&frame.bytes[self.done..end], &mut self.sealed);
            sealed.map_err(|_| io::Error::other("the channel cannot be used any more"))?;
            self.done = end;
            self.finish_frames(written);
        }
        Ok(())
    }

    fn write_sealed(&mut self) -> io::Result<usize> {
        let written = self.stream.write(&self.sealed[self.sealed_done..]);
        let count = self.count(written)?;
        self.sealed_done += count;
        if self.sealed_done == self.sealed.len() {
            self.sealed.clear();
            self.sealed_done = 0;
        }
        Ok(count)
    }

    fn write_frames(&mut self) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        for (slice, (at, frame)) in slices.iter_mut().zip(self.frames.iter().enumerate()) {
            *slice = IoSlice::new(&frame.bytes[if at == 0 { self.done } else { 0 }..]);
        }
        let written = self.stream.write_vectored(&slices);
        let count = self.count(written)?;
        self.done += count;
        Ok(count)
    }

    /// How much was written, if the socket lives.
    fn count(&mut self, written: io::Result<usize>) -> io::Result<usize> {
        match written {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_writable = false;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            written => written,
        }
    }

    fn finish_frames(&mut self, written: &mut impl FnMut(Frame)) {
        while let Some(len) =
            self.frames.front().map(|frame| frame.bytes.len()).filter(|len| self.done >= *len)
            && let Some(frame) = self.frames.pop_front()
        {
            self.done -= len;
            written(frame);
        }
    }
}
