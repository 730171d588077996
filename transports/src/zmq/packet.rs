//! The packets of a link, each one ZeroMQ frame, little-endian.
//!
//! | kind | name | then |
//! | --- | --- | --- |
//! | 1, 2 | hello, welcome | version u16, session u64, resumes u8, sender u32, receiver u32, received u64,
//! limit u64, terms |
//! | 3 | refusal | session u64, reason u8, three texts, once or for each difference |
//! | 4 | data | session u64, seq u64, tag (epoch u32, step u64, unit u32, chunk u32), total u64, offset u64,
//! bytes |
//! | 5 | bye | session u64, seq u64 |
//! | 6 | ack | session u64, received u64, limit u64, gap u8 |
//! | 7 | skip | session u64, seq u64 |
//!
//! A skip takes the place of a message of one chunk that is too late to be sent: it has its number and
//! delivers nothing. A message may be cut anywhere, into chunks that are not empty; those that were not
//! acknowledged are cut anew over a new connection. A bye is the last packet of a session. With seq 0 it also
//! answers a refusal, so that the end that refused may stop. A text is its length as u16, then UTF-8. Terms
//! are their number as u16, then a name and a value for each. Any bytes are either one of these packets or
//! refused; no byte may be left over.

use super::refusal::Refusal;
use crate::rank::Rank;
use crate::tag::Tag;
use crate::terms::{Difference, MAX_TERMS, Terms, put_text, split_text};

/// The version of this protocol. An end with another version is refused, with both versions named.
pub(super) const VERSION: u16 = 2;
/// Bytes of a data packet before its payload.
pub(super) const DATA_HEADER: usize = 1 + 8 + 8 + Tag::BYTES + 8 + 8;
/// Bytes of an acknowledgement.
pub(super) const ACK_BYTES: usize = 1 + 8 + 8 + 8 + 1;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSAL: u8 = 3;
const DATA: u8 = 4;
const BYE: u8 = 5;
const ACK: u8 = 6;
const SKIP: u8 = 7;

/// Names of the kinds, for tests that damage packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Hello(Greeting),
    Welcome(Greeting),
    Refusal { session: u64, refusal: Refusal },
    Data(Data<'a>),
    Bye { session: u64, seq: u64 },
    Skip { session: u64, seq: u64 },
    Ack { session: u64, ack: Ack },
}

/// Opens a session, or resumes it after the connection was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Drawn at random by the end that connects; never used twice.
    pub(super) session: u64,
    /// Whether packets of this session may already have been exchanged.
    pub(super) resumes: bool,
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) ack: Ack,
    pub(super) terms: Terms,
}

/// Up to where the sender of this packet has received, and up to where it has room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ack {
    /// All sequence numbers below this one have arrived.
    pub(super) received: u64,
    /// Sequence numbers below this one may be sent.
    pub(super) limit: u64,
    /// A later packet arrived before this one: send again from here.
    pub(super) gap: bool,
}

/// One chunk of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data<'a> {
    pub(super) session: u64,
    pub(super) seq: u64,
    pub(super) tag: Tag,
    /// Bytes of the whole message.
    pub(super) total: u64,
    /// Where in the message this chunk begins.
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
}

impl Packet<'_> {
    /// The bytes of a greeting; `answers` makes it a welcome.
    pub(super) fn greeting(greeting: &Greeting, answers: bool) -> Vec<u8> {
        let mut out = vec![if answers { WELCOME } else { HELLO }];
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&greeting.session.to_le_bytes());
        out.push(u8::from(greeting.resumes));
        out.extend_from_slice(&greeting.from.0.to_le_bytes());
        out.extend_from_slice(&greeting.to.0.to_le_bytes());
        out.extend_from_slice(&greeting.ack.received.to_le_bytes());
        out.extend_from_slice(&greeting.ack.limit.to_le_bytes());
        greeting.terms.put(&mut out);
        out
    }

    pub(super) fn refusal(session: u64, refusal: &Refusal) -> Vec<u8> {
        let mut out = vec![REFUSAL];
        out.extend_from_slice(&session.to_le_bytes());
        out.push(refusal.byte());
        let texts = match refusal {
            Refusal::Differs(differences) => differences.iter().map(Difference::texts).collect(),
            _ => vec![[""; 3]],
        };
        texts.iter().flatten().for_each(|text| put_text(&mut out, text));
        out
    }

    pub(super) fn data(data: &Data<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(DATA_HEADER + data.bytes.len());
        out.push(DATA);
        out.extend_from_slice(&data.session.to_le_bytes());
        out.extend_from_slice(&data.seq.to_le_bytes());
        out.extend_from_slice(&data.tag.epoch.to_le_bytes());
        out.extend_from_slice(&data.tag.step.to_le_bytes());
        out.extend_from_slice(&data.tag.unit.to_le_bytes());
        out.extend_from_slice(&data.tag.chunk.to_le_bytes());
        out.extend_from_slice(&data.total.to_le_bytes());
        out.extend_from_slice(&data.offset.to_le_bytes());
        out.extend_from_slice(data.bytes);
        out
    }

    pub(super) fn bye(session: u64, seq: u64) -> Vec<u8> {
        [&[BYE], &session.to_le_bytes()[..], &seq.to_le_bytes()].concat()
    }

    pub(super) fn skip(session: u64, seq: u64) -> Vec<u8> {
        [&[SKIP], &session.to_le_bytes()[..], &seq.to_le_bytes()].concat()
    }

    pub(super) fn ack(session: u64, ack: Ack) -> Vec<u8> {
        let (received, limit) = (ack.received.to_le_bytes(), ack.limit.to_le_bytes());
        [&[ACK], &session.to_le_bytes()[..], &received, &limit, &[u8::from(ack.gap)]].concat()
    }
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    /// The peer uses another version. The refusal names it.
    Version {
        session: u64,
        theirs: u16,
    },
    Garbage,
}

impl<'a> Packet<'a> {
    /// Reads a packet.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(bytes);
        let kind = cursor.u8()?;
        let packet = match kind {
            HELLO => Self::Hello(cursor.greeting()?),
            WELCOME => Self::Welcome(cursor.greeting()?),
            REFUSAL => Self::Refusal { session: cursor.u64()?, refusal: cursor.refusal()? },
            DATA => Self::Data(cursor.data()?),
            BYE => Self::Bye { session: cursor.u64()?, seq: cursor.u64()? },
            SKIP => Self::Skip { session: cursor.u64()?, seq: cursor.u64()? },
            ACK => {
                let session = cursor.u64()?;
                let (received, limit) = (cursor.u64()?, cursor.u64()?);
                Self::Ack { session, ack: Ack { received, limit, gap: cursor.flag()? } }
            }
            _ => return Err(Malformed::Garbage),
        };
        if cursor.0.is_empty() { Ok(packet) } else { Err(Malformed::Garbage) }
    }
}

/// The only cursor over packets.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed::Garbage)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Garbage),
        }
    }

    fn text(&mut self) -> Result<String, Malformed> {
        split_text(&mut self.0).map(str::to_owned).ok_or(Malformed::Garbage)
    }

    fn greeting(&mut self) -> Result<Greeting, Malformed> {
        let (version, session) = (self.u16()?, self.u64()?);
        if version != VERSION {
            return Err(Malformed::Version { session, theirs: version });
        }
        let resumes = self.flag()?;
        let (from, to) = (Rank(self.u32()?), Rank(self.u32()?));
        let ack = Ack { received: self.u64()?, limit: self.u64()?, gap: false };
        let terms = Terms::split_off(&mut self.0).ok_or(Malformed::Garbage)?;
        Ok(Greeting { session, resumes, from, to, ack, terms })
    }

    fn refusal(&mut self) -> Result<Refusal, Malformed> {
        let code = self.u8()?;
        let mut differences = vec![self.difference()?];
        // Each end has some terms, and all names may differ.
        while code == 0 && !self.0.is_empty() && differences.len() < 2 * MAX_TERMS {
            differences.push(self.difference()?);
        }
        match code {
            0 => Ok(Refusal::Differs(differences)),
            1 => Ok(Refusal::Taken),
            2 => Ok(Refusal::UnknownSession),
            3 => Ok(Refusal::TooLate),
            4 => Ok(Refusal::ShutOut),
            _ => Err(Malformed::Garbage),
        }
    }

    fn difference(&mut self) -> Result<Difference, Malformed> {
        Ok(Difference { name: self.text()?, own: self.text()?, theirs: self.text()? })
    }

    fn data(&mut self) -> Result<Data<'a>, Malformed> {
        let (session, seq) = (self.u64()?, self.u64()?);
        let (epoch, step) = (self.u32()?, self.u64()?);
        let tag = Tag { epoch, step, unit: self.u32()?, chunk: self.u32()? };
        let (total, offset) = (self.u64()?, self.u64()?);
        let bytes = std::mem::take(&mut self.0);
        Ok(Data { session, seq, tag, total, offset, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Vec<u8>> {
        let terms = Terms::default().with("codec", "topk").with("lr", 0.25);
        let ack = Ack { received: 7, limit: 23, gap: false };
        let greeting = Greeting { session: 1 << 40, resumes: true, from: Rank(3), to: Rank(0), ack, terms };
        let difference = Difference { name: "lr".into(), own: "1".into(), theirs: "2".into() };
        let tag = Tag { epoch: 1, step: 2, unit: 3, chunk: 4 };
        vec![
            Packet::greeting(&greeting, false),
            Packet::greeting(&greeting, true),
            Packet::refusal(5, &Refusal::Differs(vec![difference])),
            Packet::refusal(5, &Refusal::Taken),
            Packet::data(&Data { session: 5, seq: 6, tag, total: 10, offset: 4, bytes: b"abc" }),
            Packet::bye(5, 6),
            Packet::skip(5, 6),
            Packet::ack(5, Ack { gap: true, ..ack }),
        ]
    }

    /// What `parse` has read, written again.
    fn written(packet: &Packet<'_>) -> Vec<u8> {
        match packet {
            Packet::Hello(greeting) => Packet::greeting(greeting, false),
            Packet::Welcome(greeting) => Packet::greeting(greeting, true),
            Packet::Refusal { session, refusal } => Packet::refusal(*session, refusal),
            Packet::Data(data) => Packet::data(data),
            Packet::Bye { session, seq } => Packet::bye(*session, *seq),
            Packet::Skip { session, seq } => Packet::skip(*session, *seq),
            Packet::Ack { session, ack } => Packet::ack(*session, *ack),
        }
    }

    #[test]
    fn packets_round_trip() {
        for bytes in samples() {
            assert_eq!(written(&Packet::parse(&bytes).unwrap()), bytes);
        }
    }

    /// One difference has the bytes that it had when there could be no more.
    #[test]
    fn all_differences_of_a_refusal_come_through() {
        let difference =
            |name: &str| Difference { name: name.into(), own: "1".into(), theirs: String::new() };
        let one = Packet::refusal(5, &Refusal::Differs(vec![difference("lr")]));
        assert_eq!(one, [&[3][..], &5u64.to_le_bytes(), &[0, 2, 0, b'l', b'r', 1, 0, b'1', 0, 0]].concat());
        let refusal = Refusal::Differs((0..2 * MAX_TERMS).map(|at| difference(&at.to_string())).collect());
        let bytes = Packet::refusal(5, &refusal);
        assert_eq!(Packet::parse(&bytes), Ok(Packet::Refusal { session: 5, refusal }));
        assert_eq!(Packet::parse(&bytes[..bytes.len() - 1]), Err(Malformed::Garbage));
        let more = [&bytes[..], &[0; 6]].concat();
        assert_eq!(Packet::parse(&more), Err(Malformed::Garbage), "more than two ends can have");
        let taken = [&Packet::refusal(5, &Refusal::Taken)[..], &[0; 6]].concat();
        assert_eq!(Packet::parse(&taken), Err(Malformed::Garbage));
    }

    #[test]
    fn a_data_header_has_its_stated_length() {
        let empty = Data { session: 0, seq: 0, tag: Tag::default(), total: 0, offset: 0, bytes: b"" };
        assert_eq!(Packet::data(&empty).len(), DATA_HEADER);
        assert_eq!(Packet::ack(0, Ack::default()).len(), ACK_BYTES);
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_a_packet_or_refused() {
        for bytes in samples() {
            for len in 0..bytes.len() {
                // A data packet may end anywhere after its header.
                let cut = Packet::parse(&bytes[..len]);
                assert!(cut.is_err() || matches!(cut, Ok(Packet::Data(_))), "{len} of {bytes:?}");
            }
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let _ = Packet::parse(&damaged);
            }
            if bytes[0] != DATA {
                assert_eq!(Packet::parse(&[&bytes[..], &[0]].concat()), Err(Malformed::Garbage));
            }
        }
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let mut hello = samples().swap_remove(0);
        hello[1] = 9;
        assert_eq!(Packet::parse(&hello), Err(Malformed::Version { session: 1 << 40, theirs: 9 }));
        assert_eq!(Packet::parse(&[]), Err(Malformed::Garbage));
    }
}
