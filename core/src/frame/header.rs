//! The fixed header in front of every message.

#[cfg(feature = "full")]
use crate::codec::ParseBody;
use crate::codec::Parser;
use crate::error::{DecodeError, Field};
use crate::gradient::layout::LayoutRef;
use crate::registry;
use crate::wire::checksum::crc32c;
use crate::wire::ids::{CodecId, Experiment};
use crate::wire::reader::Reader;
use crate::wire::writer::Writer;

/// Bytes of the header: `magic` 0..2, `version` 2, `codec` 3, `flags` 4..6, `unit_count` 6..8, `fingerprint`
/// 8..16, `body_bytes` 16..20, `checksum` 20..24.
pub const HEADER_BYTES: usize = 24;

/// ASCII "GW".
pub(crate) const MAGIC: [u8; 2] = *b"GW";

/// The version that is written.
pub(crate) const VERSION: u8 = 1;

/// The versions of the wire format that this build reads, ascending. It writes the last. A frame of another
/// version is refused: `UnsupportedVersion`. FORMAT.md, section 15, says for how long a version is read.
pub const VERSIONS: &[u8] = &[VERSION];

/// The checksum covers the header before it and the body after it.
const CHECKED_HEADER_BYTES: usize = 20;

/// How a sum of frames becomes a mean. Every frame states it, so that two ends cannot divide differently.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Divisor {
    /// Every coordinate is divided by the number of workers whose frame entered the sum.
    #[default]
    Contributors,
    /// Every coordinate is divided by the number of frames that held that coordinate.
    Senders,
}

impl Divisor {
    /// Sets the divisor of a complete frame, and corrects its checksum. Codecs write
    /// [`Contributors`](Self::Contributors). A [void frame](crate::format::VoidFrame) enters no mean and
    /// stays as it is.
    ///
    /// # Errors
    /// As [`Header::parse`]; the frame is then as it was.
    ///
    /// # Panics
    /// If fewer bytes follow the header than it states.
    ///
    /// # Examples
    /// ```
    /// use gradwire::codecs::{IndexChoice, TopK, ValueChoice};
    /// use gradwire::format::{Divisor, Header};
    /// use gradwire::{Density, Gather, Grad, LayoutRef, Scratch, Source, StepInput, StepKey, Unit};
    ///
    /// let codec = TopK::new(Density::new(0.25).unwrap(), IndexChoice::Auto, ValueChoice::F32);
    /// let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
    /// let (mut words, mut out) = ([0; 64], [0; 128]);
    /// let mut scratch = Scratch { words: &mut words, bytes: &mut [] };
    /// let (layout, grad) = (LayoutRef::flat(4), Grad::F32(&[0.5, -3.0, 0.0, 1.0]));
    /// let step = StepInput { key, layout: &layout, units: &[Unit::whole(4)], grad };
    /// let bytes = codec.encode(&step, None, &mut scratch, &mut out)?;
    /// Divisor::Senders.write_to(&mut out[..bytes])?;
    /// assert_eq!(Header::parse(&out)?.divisor, Divisor::Senders);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_to(self, frame: &mut [u8]) -> Result<(), DecodeError> {
        let header = Header { divisor: self, ..Header::parse(frame)? };
        let (head, body) = frame.split_at_mut(HEADER_BYTES);
        let mut body = Writer::new(body);
        body.advance(header.body_bytes as usize);
        head.copy_from_slice(&header.to_bytes(&body));
        Ok(())
    }
}

/// Flag bit 0: the divisor is [`Divisor::Senders`].
const FLAG_SENDERS: u16 = 1;

/// Flag bit 2: a [void frame](crate::format::VoidFrame). No other flag goes with it.
const FLAG_VOID: u16 = 4;

/// The fields of the header. [`parse`](Self::parse) reads them without decoding what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: u8,
    /// The method that made the frame.
    pub codec: CodecId,
    /// How the sum becomes a mean.
    pub divisor: Divisor,
    /// Whether this is a [void frame](crate::format::VoidFrame), which holds no gradient.
    pub is_void: bool,
    /// Units after the header: at least one, and none in a void frame.
    pub unit_count: u16,
    /// Fingerprint of the sender's layout.
    pub fingerprint: u64,
    /// Bytes after the header.
    pub body_bytes: u32,
    /// CRC-32C of all bytes except these four.
    pub checksum: u32,
}

impl Header {
    /// The header of a frame that is being written, for the mean over contributors.
    pub(crate) fn new(codec: CodecId, layout: &LayoutRef<'_>, unit_count: usize, body_bytes: usize) -> Self {
        Self {
            version: VERSION,
            codec,
            divisor: Divisor::Contributors,
            is_void: false,
            unit_count: unit_count as u16,
            fingerprint: layout.fingerprint(),
            body_bytes: body_bytes as u32,
            checksum: 0,
        }
    }

    /// Reads the header at the front of `bytes`, without checking the checksum or the body. A stream reader
    /// calls this to learn how many bytes to wait for.
    ///
    /// # Errors
    /// `Truncated`, `BadMagic`, `UnsupportedVersion`, `UnknownCodec`, `UnknownFlag`,
    /// `InvalidField(UnitCount)`.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::read(bytes, Parser::NONE)
    }

    /// As [`parse`](Self::parse), for a frame that may be one of the [experiment](crate::experiments) that
    /// `parser` is for.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    #[cfg(feature = "full")]
    pub fn parse_with(bytes: &[u8], parser: Option<&dyn ParseBody>) -> Result<Self, DecodeError> {
        Self::read(bytes, Parser::new(parser))
    }

    pub(crate) fn read(bytes: &[u8], parser: Parser<'_>) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC {
            return Err(DecodeError::BadMagic);
        }
        let version = reader.u8()?;
        #[allow(
            clippy::manual_contains,
            reason = "it has code of its own for bytes, too much for a small machine"
        )]
        let is_known = VERSIONS.iter().any(|known| *known == version);
        if !is_known {
            return Err(DecodeError::UnsupportedVersion(version));
        }
        let number = reader.u8()?;
        let codec = CodecId::new(number);
        let flags = reader.u16();
        let is_known = registry::kind_of(codec).or_else(|| parser.kind_of(codec)).is_some();
        // A void frame has no body that needs a parser.
        let is_void_experiment = Experiment::new(number).is_some() && flags == Ok(FLAG_VOID);
        if !is_known && !is_void_experiment {
            return Err(DecodeError::UnknownCodec(number));
        }
        let flags = flags?;
        let is_void = flags == FLAG_VOID;
        if !is_void && flags & !FLAG_SENDERS != 0 {
            return Err(DecodeError::UnknownFlag(flags));
        }
        let divisor = if flags & FLAG_SENDERS == 0 { Divisor::Contributors } else { Divisor::Senders };
        let unit_count = reader.u16()?;
        if (unit_count == 0) != is_void {
            return Err(DecodeError::InvalidField(Field::UnitCount));
        }
        let fingerprint = reader.u64()?;
        let body_bytes = reader.u32()?;
        let checksum = reader.u32()?;
        Ok(Self { version, codec, divisor, is_void, unit_count, fingerprint, body_bytes, checksum })
    }

    /// Bytes of the whole frame, header included.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        u64::from(self.body_bytes) + HEADER_BYTES as u64
    }

    /// The header as bytes, with the checksum over what `body` has written; the `checksum` field is ignored.
    pub(crate) fn to_bytes(self, body: &Writer<'_>) -> [u8; HEADER_BYTES] {
        let senders = if self.divisor == Divisor::Senders { FLAG_SENDERS } else { 0 };
        let flags = if self.is_void { FLAG_VOID } else { senders };
        let mut bytes = [0; HEADER_BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.bytes(&MAGIC);
        writer.u8(self.version);
        writer.u8(self.codec.number());
        writer.bytes(&flags.to_le_bytes());
        writer.bytes(&self.unit_count.to_le_bytes());
        writer.bytes(&self.fingerprint.to_le_bytes());
        writer.bytes(&self.body_bytes.to_le_bytes());
        let (checked, field) = bytes.split_at_mut(CHECKED_HEADER_BYTES);
        let checksum = body.checksum(crc32c(0, checked));
        field.copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

/// CRC-32C over the header without its checksum field, then the body.
pub(crate) fn frame_checksum(header: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let (checked, _) = header.split_at(CHECKED_HEADER_BYTES);
    crc32c(crc32c(0, checked), body)
}
