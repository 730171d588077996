//! The frames that two ranks exchange once their channel is open, little-endian.
//!
//! Every frame begins with its kind as u8 and the length of what follows the header as u64. The header of a
//! message is longer: it holds its tag too.
//!
//! | kind | name | then |
//! | --- | --- | --- |
//! | 1 | message | tag (epoch u32, step u64, unit u32, chunk u32), payload |
//! | 2 | heartbeat | nothing |
//! | 3 | bye: no message follows | nothing |
//! | 4 | farewell: everything before the bye has arrived | nothing |
//! | 5 | lost: the connection to a third rank broke | rank u32 |
//! | 6 | roster: the addresses of all ranks | a text for each |
//! | 7 | hello | from u32, to u32, listening address (text), terms |
//! | 8 | welcome | nothing |
//! | 9 | refusal | reason u8; for reason 0, the terms of the end that refuses |
//! | 10 | moving: a heartbeat of an end that messages move to or from | nothing |
//!
//! A text is its length as u16, then UTF-8. Terms are their number as u16, then a name and a value for each.

use crate::rank::Rank;
use crate::tag::Tag;
use crate::terms::{Terms, put_text, split_text};

/// Bytes before the body of every frame but a message.
pub(super) const HEADER: usize = 1 + 8;
/// Bytes before the payload of a message.
pub(super) const MESSAGE_HEADER: usize = HEADER + Tag::BYTES;
/// The kind of a message.
pub(super) const MESSAGE: u8 = 1;
/// The longest body of a greeting: 64 terms of 512 bytes, and some more.
pub(super) const MAX_GREETING: u64 = 68 << 10;
/// The longest body of any other frame: the addresses of thousands of ranks.
pub(super) const MAX_CONTROL: u64 = 1 << 20;

const HEARTBEAT: u8 = 2;
const BYE: u8 = 3;
const FAREWELL: u8 = 4;
const LOST: u8 = 5;
const ROSTER: u8 = 6;
const HELLO: u8 = 7;
const WELCOME: u8 = 8;
const REFUSAL: u8 = 9;
const MOVING: u8 = 10;

/// Every frame but a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Heartbeat,
    Moving,
    Bye,
    Farewell,
    Lost(Rank),
    Roster(Vec<String>),
    Hello(Hello),
    Welcome,
    Refusal(Refusal),
}

/// What the end that connects says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) from: Rank,
    pub(super) to: Rank,
    /// Where it listens for higher ranks.
    pub(super) listens: String,
    pub(super) terms: Terms,
}

/// Why a hello is not answered with a welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The terms of the end that refuses, which differ.
    Differs(Terms),
    /// That rank is connected already.
    Taken,
    /// The hello is meant for another rank, or comes from a rank that does not connect to this one.
    Misplaced,
    /// That rank was here and its connection broke, or it left.
    TooLate,
    /// The run is over.
    Over,
}

/// The header of a message.
pub(super) fn message_header(tag: Tag, payload_bytes: usize) -> [u8; MESSAGE_HEADER] {
    let mut header = [0; MESSAGE_HEADER];
    header[0] = MESSAGE;
    header[1..9].copy_from_slice(&(payload_bytes as u64).to_le_bytes());
    header[9..13].copy_from_slice(&tag.epoch.to_le_bytes());
    header[13..21].copy_from_slice(&tag.step.to_le_bytes());
    header[21..25].copy_from_slice(&tag.unit.to_le_bytes());
    header[25..29].copy_from_slice(&tag.chunk.to_le_bytes());
    header
}

/// The tag in the header of a message.
pub(super) fn tag_of(header: &[u8; MESSAGE_HEADER]) -> Tag {
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
    let step = u64::from_le_bytes(std::array::from_fn(|byte| header[13 + byte]));
    Tag { epoch: word(9), step, unit: word(21), chunk: word(25) }
}

/// The length in the header of any frame.
pub(super) fn length_of(header: &[u8; MESSAGE_HEADER]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| header[1 + byte]))
}

impl Control {
    /// The whole frame.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        out[0] = match self {
            Self::Heartbeat => HEARTBEAT,
            Self::Moving => MOVING,
            Self::Bye => BYE,
            Self::Farewell => FAREWELL,
            Self::Welcome => WELCOME,
            Self::Lost(rank) => {
                out.extend_from_slice(&rank.0.to_le_bytes());
                LOST
            }
            Self::Roster(addresses) => {
                addresses.iter().for_each(|address| put_text(&mut out, address));
                ROSTER
            }
            Self::Hello(hello) => {
                hello.put(&mut out);
                HELLO
            }
            Self::Refusal(refusal) => {
                refusal.put(&mut out);
                REFUSAL
            }
        };
        let length = (out.len() - HEADER) as u64;
        out[1..HEADER].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// Reads the body of a frame of that kind; `None` if it is no frame, or if bytes are left over.
    pub(super) fn parse(kind: u8, mut body: &[u8]) -> Option<Self> {
        let bytes = &mut body;
        let control = match kind {
            HEARTBEAT => Self::Heartbeat,
            MOVING => Self::Moving,
            BYE => Self::Bye,
            FAREWELL => Self::Farewell,
            WELCOME => Self::Welcome,
            LOST => Self::Lost(rank(bytes)?),
            ROSTER => {
                let mut addresses = Vec::new();
                while !bytes.is_empty() {
                    addresses.push(split_text(bytes)?.to_owned());
                }
                Self::Roster(addresses)
            }
            HELLO => Self::Hello(Hello::split_off(bytes)?),
            REFUSAL => Self::Refusal(Refusal::split_off(bytes)?),
            _ => return None,
        };
        body.is_empty().then_some(control)
    }
}

fn rank(bytes: &mut &[u8]) -> Option<Rank> {
    let (rank, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(Rank(u32::from_le_bytes(*rank)))
}

impl Hello {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.from.0.to_le_bytes());
        out.extend_from_slice(&self.to.0.to_le_bytes());
        put_text(out, &self.listens);
        self.terms.put(out);
    }

    fn split_off(bytes: &mut &[u8]) -> Option<Self> {
        let (from, to) = (rank(bytes)?, rank(bytes)?);
        let listens = split_text(bytes)?.to_owned();
        Some(Self { from, to, listens, terms: Terms::split_off(bytes)? })
    }
}

impl Refusal {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Differs(terms) => {
                out.push(0);
                terms.put(out);
            }
            Self::Taken => out.push(1),
            Self::Misplaced => out.push(2),
            Self::TooLate => out.push(3),
            Self::Over => out.push(4),
        }
    }

    fn split_off(bytes: &mut &[u8]) -> Option<Self> {
        let (reason, rest) = bytes.split_first()?;
        *bytes = rest;
        match reason {
            0 => Terms::split_off(bytes).map(Self::Differs),
            1 => Some(Self::Taken),
            2 => Some(Self::Misplaced),
            3 => Some(Self::TooLate),
            4 => Some(Self::Over),
            _ => None,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Differs(_) => "its settings differ",
            Self::Taken => "that rank is there already",
            Self::Misplaced => {
                "another rank answers at that address: is the order of the addresses the same everywhere?"
            }
            Self::TooLate => "that rank was there before and is gone; the run has begun without it",
            Self::Over => "the run is over",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Control> {
        let terms = Terms::default().with("codec", "topk").with("lr", 0.25);
        let hello =
            Hello { from: Rank(3), to: Rank(0), listens: "[::1]:80".to_owned(), terms: terms.clone() };
        vec![
            Control::Heartbeat,
            Control::Moving,
            Control::Bye,
            Control::Farewell,
            Control::Welcome,
            Control::Lost(Rank(70_000)),
            Control::Roster(vec![String::new(), "node1:5000".to_owned()]),
            Control::Hello(hello),
            Control::Refusal(Refusal::Differs(terms)),
            Control::Refusal(Refusal::Taken),
            Control::Refusal(Refusal::Misplaced),
            Control::Refusal(Refusal::TooLate),
            Control::Refusal(Refusal::Over),
        ]
    }

    #[test]
    fn frames_round_trip_and_nothing_is_left_over() {
        for control in samples() {
            let bytes = control.to_bytes();
            let body = &bytes[HEADER..];
            assert_eq!(bytes[1..HEADER], (body.len() as u64).to_le_bytes());
            assert_eq!(Control::parse(bytes[0], body), Some(control.clone()));
            let more = [body, &[0]].concat();
            assert_ne!(Control::parse(bytes[0], &more), Some(control));
        }
    }

    #[test]
    fn every_truncation_and_every_flip_of_a_bit_is_refused_or_another_frame() {
        for control in samples() {
            let bytes = control.to_bytes();
            for cut in HEADER..bytes.len() {
                assert_ne!(Control::parse(bytes[0], &bytes[HEADER..cut]), Some(control.clone()));
            }
            for bit in (0..8).chain(HEADER * 8..bytes.len() * 8) {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Control::parse(damaged[0], &damaged[HEADER..]), Some(control.clone()));
            }
        }
    }

    #[test]
    fn headers_of_messages_round_trip() {
        let tag = Tag { epoch: 1, step: u64::MAX - 2, unit: 3, chunk: Tag::FIRST_COLLECTIVE_CHUNK | 4 };
        let header = message_header(tag, 5 << 20);
        assert_eq!((header[0], length_of(&header), tag_of(&header)), (MESSAGE, 5 << 20, tag));
    }
}
