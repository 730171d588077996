//! How two ends get to know each other, as a state machine over bytes, without sockets.
//!
//! The end that connects begins. Each end first sends [`PREFACE`] bytes: the magic, the version as u16, and
//! whether it encrypts. With a key, a Noise handshake follows (`NNpsk0`), each message after its length as
//! u16; a length of 0 says that the other end's message cannot be opened, so that the keys differ. The
//! handshake covers the preface of the end that connects. Then, within the channel, the end that connects
//! says hello ([`frame`](super::frame)) and the other end welcomes or refuses it.

use snow::{Builder, HandshakeState};

use super::frame::{Control, Hello, MAX_GREETING, Refusal};
use super::inlet::{Arrived, Channel, Inlet, sealed_message};
use super::key::Key;
use super::reader::{Entry, Garbage, Item, Reader};

/// The first bytes of both ends.
const MAGIC: [u8; 8] = *b"gradwire";
/// The version of everything that follows. An end with another version is refused, with both named.
pub(super) const VERSION: u16 = 2;
/// Length of a preface.
pub(super) const PREFACE: usize = MAGIC.len() + 2 + 1;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Length of each of the two messages of the handshake: a public key and an authenticator.
const HANDSHAKE: usize = 32 + 16;

/// Why a greeting is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The other end does not speak this protocol.
    Garbage,
    /// The other end has this version.
    Version(u16),
    /// The other end encrypts and this one does not, or the other way round.
    Encrypts(bool),
    /// The other end has another key.
    Key,
}

impl From<Garbage> for Fault {
    fn from(Garbage: Garbage) -> Self {
        Self::Garbage
    }
}

/// What the other end said at last.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Hello(Hello),
    Welcome,
    Refusal(Refusal),
}

/// One greeting under way.
#[derive(Debug)]
pub(super) struct Greeting {
    key: Option<Key>,
    /// What an end that connects says.
    hello: Option<Hello>,
    /// Whether the preface of the other end is here.
    is_met: bool,
    /// A handshake that is not over.
    noise: Option<Box<HandshakeState>>,
    reader: Reader,
}

impl Greeting {
    /// Of the end that connects. Appends to `out` what it sends first.
    pub(super) fn dial(key: Option<&Key>, hello: Hello, out: &mut Vec<u8>) -> Result<Self, Fault> {
        let mut greeting = Self { hello: Some(hello), ..Self::answer(key) };
        let preface = preface(key);
        out.extend_from_slice(&preface);
        if let Some(key) = key {
            let builder = builder(key, &preface)?;
            let noise = greeting.noise.insert(Box::new(builder.build_initiator().map_err(unexpected)?));
            write_handshake(noise, out)?;
        }
        Ok(greeting)
    }

    /// Of the end that was connected to.
    pub(super) fn answer(key: Option<&Key>) -> Self {
        let reader = Reader::new(0, MAX_GREETING);
        Self { key: key.cloned(), hello: None, is_met: false, noise: None, reader }
    }

    /// Goes on with what is in `inlet`, and appends its answers to `out`. On an error too, `out` may hold
    /// an answer that tells the other end why.
    pub(super) fn advance(&mut self, inlet: &mut Inlet, out: &mut Vec<u8>) -> Result<Option<Said>, Fault> {
        if !self.is_met && !self.meet(inlet, out)? {
            return Ok(None);
        }
        if self.noise.is_some() && !self.shake_hands(inlet, out)? {
            return Ok(None);
        }
        let item = loop {
            let mut input = inlet.plain()?;
            let before = input.len();
            // There are no messages yet.
            let item = self.reader.next(&mut input, |_, _| Entry::Full)?;
            let used = before - input.len();
            inlet.take_plain(used);
            match item {
                Some(item) => break item,
                None if used == 0 => return Ok(None),
                None => {}
            }
        };
        match (item, &self.hello) {
            (Item::Control(Control::Hello(hello)), None) => Ok(Some(Said::Hello(hello))),
            (Item::Control(Control::Welcome), Some(_)) => Ok(Some(Said::Welcome)),
            (Item::Control(Control::Refusal(refusal)), Some(_)) => Ok(Some(Said::Refusal(refusal))),
            _ => Err(Fault::Garbage),
        }
    }

    /// Reads the other end's preface; whether it is here.
    fn meet(&mut self, inlet: &mut Inlet, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let raw = inlet.raw();
        let known = raw.len().min(MAGIC.len());
        if raw[..known] != MAGIC[..known] {
            return Err(Fault::Garbage);
        }
        let Some(theirs) = raw.first_chunk::<PREFACE>().copied() else { return Ok(false) };
        let is_dialer = self.hello.is_some();
        if !is_dialer {
            out.extend_from_slice(&preface(self.key.as_ref()));
        }
        let version = u16::from_le_bytes([theirs[8], theirs[9]]);
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        match theirs[10] {
            0 | 1 if (theirs[10] == 1) == self.key.is_some() => {}
            0 | 1 => return Err(Fault::Encrypts(theirs[10] == 1)),
            _ => return Err(Fault::Garbage),
        }
        inlet.take_raw(PREFACE);
        self.is_met = true;
        match &self.key {
            None => self.say_hello(inlet, out)?,
            Some(_) if is_dialer => {}
            Some(key) => {
                let noise = builder(key, &theirs)?.build_responder().map_err(unexpected)?;
                self.noise = Some(Box::new(noise));
            }
        }
        Ok(true)
    }

    /// Reads the other end's message of the handshake, after which the channel is open; whether it is here.
    fn shake_hands(&mut self, inlet: &mut Inlet, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let is_dialer = self.hello.is_some();
        let length = inlet.raw().first_chunk().map(|length| usize::from(u16::from_le_bytes(*length)));
        match length {
            None => return Ok(false),
            Some(0) if is_dialer => return Err(Fault::Key),
            Some(HANDSHAKE) => {}
            Some(_) => return Err(Fault::Garbage),
        }
        let Some(message) = sealed_message(inlet.raw()) else { return Ok(false) };
        let Some(mut noise) = self.noise.take() else { return Ok(true) };
        if noise.read_message(message, &mut [0; HANDSHAKE]).is_err() {
            out.extend_from_slice(&0_u16.to_le_bytes());
            return Err(Fault::Key);
        }
        inlet.take_raw(2 + HANDSHAKE);
        if !is_dialer {
            write_handshake(&mut noise, out)?;
        }
        inlet.channel = Channel::Noise(Box::new(noise.into_transport_mode().map_err(unexpected)?));
        self.say_hello(inlet, out)?;
        Ok(true)
    }

    fn say_hello(&self, inlet: &mut Inlet, out: &mut Vec<u8>) -> Result<(), Fault> {
        if let Some(hello) = &self.hello {
            inlet.seal_frame(&Control::Hello(hello.clone()).to_bytes(), out)?;
        }
        Ok(())
    }
}

fn preface(key: Option<&Key>) -> [u8; PREFACE] {
    let mut bytes = [0; PREFACE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10] = key.is_some().into();
    bytes
}

fn builder<'a>(key: &'a Key, prologue: &'a [u8]) -> Result<Builder<'a>, Fault> {
    let pattern = PATTERN.parse().map_err(unexpected)?;
    Builder::new(pattern)
        .prologue(prologue)
        .and_then(|builder| builder.psk(0, key.bytes()))
        .map_err(unexpected)
}

fn write_handshake(noise: &mut HandshakeState, out: &mut Vec<u8>) -> Result<(), Fault> {
    let mut message = [0; HANDSHAKE];
    let count = noise.write_message(&[], &mut message).map_err(unexpected)?;
    out.extend_from_slice(&(count as u16).to_le_bytes());
    out.extend_from_slice(&message[..count]);
    Ok(())
}

/// Only a system without random numbers makes Noise fail here.
fn unexpected(_: snow::Error) -> Fault {
    Fault::Garbage
}

/// What an end does with any bytes of a stranger, for fuzzing: they come in pieces, with or without a key.
/// Returns whether they were a hello, and how many bytes were answered.
#[doc(hidden)]
pub fn greet_stranger(bytes: &[u8], piece: usize, key: Option<&Key>) -> (bool, usize) {
    let (mut inlet, mut out, mut greeting) = (Inlet::new(), Vec::new(), Greeting::answer(key));
    for piece in bytes.chunks(piece.max(1)) {
        let mut from = piece;
        while let Ok(Arrived::Some(_)) = inlet.read(&mut from) {
            match greeting.advance(&mut inlet, &mut out) {
                Ok(None) => {}
                said => return (said.is_ok(), out.len()),
            }
        }
    }
    (false, out.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;
    use crate::terms::Terms;

    fn hello() -> Hello {
        let terms = Terms::default().with("codec", "topk");
        Hello { from: Rank(1), to: Rank(0), listens: "127.0.0.1:1".to_owned(), terms }
    }

    fn keys() -> [Option<Key>; 2] {
        [None, Some(Key::new([7; 32]))]
    }

    /// One end of a greeting: what it hears and what it answers.
    struct End {
        greeting: Greeting,
        inlet: Inlet,
        out: Vec<u8>,
    }

    impl End {
        fn dial(key: Option<&Key>) -> Self {
            let mut out = Vec::new();
            let greeting = Greeting::dial(key, hello(), &mut out).unwrap();
            Self { greeting, inlet: Inlet::new(), out }
        }

        fn answer(key: Option<&Key>) -> Self {
            Self { greeting: Greeting::answer(key), inlet: Inlet::new(), out: Vec::new() }
        }

        fn hear(&mut self, bytes: &[u8]) -> Result<Option<Said>, Fault> {
            let mut from = bytes;
            if !bytes.is_empty() {
                assert_eq!(self.inlet.read(&mut from).unwrap(), Arrived::Some(bytes.len()));
            }
            self.greeting.advance(&mut self.inlet, &mut self.out)
        }
    }

    /// Moves bytes in pieces until one of the two ends has something to say.
    fn meet(dialer: &mut End, listener: &mut End, piece: usize) -> Result<Said, (bool, Fault)> {
        for _ in 0..100 {
            for (is_dialer, from, to) in [(false, 0, 1), (true, 1, 0)] {
                let ends = [&mut *dialer, &mut *listener];
                let bytes = std::mem::take(&mut ends[from].out);
                for piece in bytes.chunks(piece) {
                    if let Some(said) = ends[to].hear(piece).map_err(|fault| (is_dialer, fault))? {
                        return Ok(said);
                    }
                }
            }
        }
        panic!("a greeting that does not end");
    }

    #[test]
    fn a_hello_arrives_with_and_without_a_key_however_it_is_cut() {
        for key in keys() {
            for piece in [1, 2, 7, 1000] {
                let (mut dialer, mut listener) = (End::dial(key.as_ref()), End::answer(key.as_ref()));
                assert_eq!(meet(&mut dialer, &mut listener, piece), Ok(Said::Hello(hello())));
                for (control, said) in [
                    (Control::Welcome, Said::Welcome),
                    (Control::Refusal(Refusal::Taken), Said::Refusal(Refusal::Taken)),
                ] {
                    let mut answer = Vec::new();
                    listener.inlet.seal_frame(&control.to_bytes(), &mut answer).unwrap();
                    assert_eq!(dialer.hear(&answer), Ok(Some(said)));
                }
            }
        }
    }

    #[test]
    fn both_ends_learn_that_keys_or_encryption_differ() {
        let (first, second) = (Key::new([7; 32]), Key::new([8; 32]));
        let (mut dialer, mut listener) = (End::dial(Some(&first)), End::answer(Some(&second)));
        assert_eq!(meet(&mut dialer, &mut listener, 9), Err((false, Fault::Key)));
        assert_eq!(dialer.hear(&listener.out), Err(Fault::Key));
        for (own, theirs) in [(Some(&first), None), (None, Some(&first))] {
            let (mut dialer, mut listener) = (End::dial(own), End::answer(theirs));
            let fault = meet(&mut dialer, &mut listener, 9);
            assert_eq!(fault, Err((false, Fault::Encrypts(own.is_some()))));
            assert_eq!(dialer.hear(&listener.out), Err(Fault::Encrypts(theirs.is_some())));
        }
    }

    #[test]
    fn both_ends_learn_the_version_of_the_other() {
        let (mut dialer, mut listener) = (End::dial(None), End::answer(None));
        dialer.out[8] = 9;
        assert_eq!(meet(&mut dialer, &mut listener, 3), Err((false, Fault::Version(9))));
        listener.out[8] = 8;
        assert_eq!(dialer.hear(&listener.out), Err(Fault::Version(8)));
    }

    #[test]
    fn every_flip_of_a_bit_and_every_end_of_the_stream_are_harmless() {
        for key in keys() {
            let (mut dialer, mut listener) = (End::dial(key.as_ref()), End::answer(key.as_ref()));
            let mut stream = dialer.out.clone();
            listener.hear(&dialer.out).unwrap();
            dialer.out.clear();
            dialer.hear(&listener.out).unwrap();
            stream.extend_from_slice(&dialer.out);
            for bit in 0..stream.len() * 8 {
                let mut damaged = stream.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let (was_hello, answered) = greet_stranger(&damaged, 5, key.as_ref());
                // Without a key, text may be damaged into other text.
                assert!(!was_hello || key.is_none());
                assert!(answered <= PREFACE + 2 + HANDSHAKE);
            }
            for cut in 0..stream.len() {
                assert!(!greet_stranger(&stream[..cut], 5, key.as_ref()).0);
            }
        }
    }

    #[test]
    fn what_speaks_another_protocol_is_known_by_its_first_byte() {
        for bytes in [&b"GET / HTTP/1.1"[..], b"SSH-2.0", &[0; 20], b"gradwirf\x01\x00\x00"] {
            let mut end = End::answer(None);
            assert_eq!(end.hear(bytes), Err(Fault::Garbage));
            assert!(end.out.is_empty());
        }
    }
}
