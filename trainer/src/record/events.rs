//! The event file of TensorBoard: the numbers of `metrics.jsonl` as scalars.
//!
//! ```text
//! file     records; the first one is an event with the version of the file, and has no step
//! record   length u64 | masked CRC-32C of the length u32 | content | masked CRC-32C of the content u32
//! content  an Event of protocol buffers: 1 wall time f64, 2 step, 3 version text, 5 Summary
//! Summary  1 Value, again and again: 1 tag text, 2 value f32
//! ```
//! All little-endian. A mask of a checksum c is (c rotated right by 15) + 0xa282ead8. The format has not
//! changed for years and is as short as this; crates for it bring protocol compilers along.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Metrics;
use super::folder::{Folder, FolderError};

/// The name that TensorBoard looks for in a folder. One file a run: a run that continues writes its steps
/// anew.
pub(crate) const FILE: &str = "events.out.tfevents.gradwire";

const VERSION: &str = "brain.Event:2";

/// An event file that grows by an event a step.
#[derive(Debug)]
pub(crate) struct EventFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl EventFile {
    /// Begins the file, with the steps that are done.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub(crate) fn create(folder: &Folder, done: &[Metrics]) -> Result<Self, FolderError> {
        let path = folder.file(FILE);
        let file = File::create(&path).map_err(|error| FolderError::Io { path: path.clone(), error })?;
        let mut events = Self { path, file: BufWriter::new(file) };
        events.write(&event(now(), None, &text(3, VERSION)))?;
        done.iter().try_for_each(|metrics| events.push(metrics))?;
        Ok(events)
    }

    /// Appends the event of a step, which the system has when this returns.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub(crate) fn push(&mut self, metrics: &Metrics) -> Result<(), FolderError> {
        self.write(&event(now(), Some(metrics.step), &summary(metrics)))
    }

    fn write(&mut self, content: &[u8]) -> Result<(), FolderError> {
        let write = |file: &mut BufWriter<File>| -> io::Result<()> {
            file.write_all(&record(content))?;
            file.flush()
        };
        write(&mut self.file).map_err(|error| FolderError::Io { path: self.path.clone(), error })
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |passed| passed.as_secs_f64())
}

/// The scalars of a step. Tags with the same word before the slash stand side by side.
fn scalars(line: &Metrics) -> Vec<(&'static str, f64)> {
    let ms = |ns: u64| ns as f64 * 1e-6;
    let always = [
        ("loss/train", line.loss),
        ("run/lr", f64::from(line.lr)),
        ("run/contributors", line.contributors as f64),
        ("bytes/up", line.bytes_up as f64),
        ("bytes/down", line.bytes_down as f64),
        ("ms/encode", ms(line.encode_ns)),
        ("ms/exchange", ms(line.exchange_ns)),
        ("ms/decode", ms(line.decode_ns)),
        ("gradient/density", line.density),
        ("gradient/residual_norm", line.residual_norm),
    ];
    let sometimes = [
        ("bytes/ratio", line.ratio),
        ("bytes/wire_ratio", line.wire_ratio),
        ("bytes/packet_loss", line.packet_loss),
        ("gradient/target_density", line.target_density),
        ("loss/validation", line.eval_loss),
        ("validation/accuracy", line.accuracy),
        ("validation/perplexity", line.perplexity),
        ("validation/consensus_distance", line.consensus_distance),
    ];
    let known = sometimes.into_iter().filter_map(|(tag, value)| Some((tag, value?)));
    always.into_iter().chain(known).collect()
}

/// Field 5 of an event.
fn summary(line: &Metrics) -> Vec<u8> {
    let values = scalars(line).into_iter().map(|(tag, value)| {
        let number = [&[2 << 3 | 5][..], &(value as f32).to_le_bytes()].concat();
        bytes(1, &[text(1, tag), number].concat())
    });
    bytes(5, &values.collect::<Vec<_>>().concat())
}

fn event(seconds: f64, step: Option<u64>, what: &[u8]) -> Vec<u8> {
    let mut content = vec![1 << 3 | 1];
    content.extend_from_slice(&seconds.to_le_bytes());
    if let Some(step) = step {
        content.push(2 << 3);
        push_varint(&mut content, step);
    }
    content.extend_from_slice(what);
    content
}

/// A field of bytes.
fn bytes(field: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    push_varint(&mut out, content.len() as u64);
    out.extend_from_slice(content);
    out
}

fn text(field: u8, content: &str) -> Vec<u8> {
    bytes(field, content.as_bytes())
}

/// Seven bits a byte, lowest first.
fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn record(content: &[u8]) -> Vec<u8> {
    let len = (content.len() as u64).to_le_bytes();
    let mut out = len.to_vec();
    out.extend_from_slice(&masked_crc(&len).to_le_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(&masked_crc(content).to_le_bytes());
    out
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The checksum of Castagnoli, bit by bit: a few hundred bytes a step.
fn crc32c(bytes: &[u8]) -> u32 {
    let shifted = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| shifted(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the catalogue of CRCs, and the first bytes of every event file of TensorFlow.
    #[test]
    fn checksums_and_the_first_record_are_those_of_other_writers() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let first = record(&event(1.5, None, &text(3, VERSION)));
        assert_eq!(first[..13], [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22, 9]);
        assert_eq!(&first[21..36], b"\x1a\x0dbrain.Event:2");
        assert_eq!(first.len(), 12 + 24 + 4);
    }

    #[test]
    fn long_numbers_take_seven_bits_a_byte() {
        let varint = |value| {
            let mut out = Vec::new();
            push_varint(&mut out, value);
            out
        };
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(127), [127]);
        assert_eq!(varint(300), [0xac, 2]);
        assert_eq!(varint(u64::MAX).len(), 10);
    }
}
