//! A peer that holds a valid key and writes its packets by hand.

use std::time::{Duration, Instant};

use gradwire_transports::zmq::{KeyPair, PublicKey};
use zmq::{Context, DEALER, Socket};

use crate::support::{LONG, limits};

/// The version of the protocol.
pub(crate) const VERSION: u16 = 2;
/// Kinds of packets.
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSAL: u8 = 3;

pub(crate) struct Raw {
    socket: Socket,
    pub(crate) session: u64,
    _context: Context,
}

/// Writes what packets are made of.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn put(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.put(&(text.len() as u16).to_le_bytes()).put(text.as_bytes())
    }
}

/// The terms of this folder's worlds, as a greeting holds them.
fn terms() -> [(&'static str, String); 3] {
    let layout = gradwire::LayoutRef::flat(650);
    let (chunk, window, message) = (limits().chunk_bytes, limits().window, limits().max_message_bytes);
    [
        ("codec", gradwire::Spec::parse("topk:density=0.01").unwrap().to_string()),
        ("layout", format!("650 elements, fingerprint {:016x}", layout.fingerprint())),
        ("zmq link", format!("chunks of {chunk} bytes, window {window}, messages up to {message}")),
    ]
}

impl Raw {
    /// Connects with the key of `pair`, or without any.
    pub(crate) fn new(endpoint: &str, server: PublicKey, pair: Option<&KeyPair>, session: u64) -> Self {
        let context = Context::new();
        let socket = context.socket(DEALER).unwrap();
        socket.set_linger(0).unwrap();
        if let Some(pair) = pair {
            // A key pair shows its secret to nobody but its file.
            let folder = std::env::temp_dir().join(format!("gradwire-raw-{}-{session}", std::process::id()));
            pair.write(&folder).unwrap();
            let text = std::fs::read_to_string(&folder).unwrap();
            std::fs::remove_file(&folder).unwrap();
            std::fs::remove_file(folder.with_extension("pub")).unwrap();
            let secret = text.lines().find_map(|line| line.strip_prefix("gradwire-secret ")).unwrap();
            socket.set_curve_secretkey(&zmq::z85_decode(secret).unwrap()).unwrap();
            socket.set_curve_publickey(&pair.public().0).unwrap();
            socket.set_curve_serverkey(&server.0).unwrap();
        }
        socket.connect(endpoint).unwrap();
        Self { socket, session, _context: context }
    }

    pub(crate) fn send(&self, packet: &[u8]) {
        self.socket.send(packet, 0).unwrap();
    }

    pub(crate) fn send_parts(&self, parts: &[&[u8]]) {
        self.socket.send_multipart(parts, 0).unwrap();
    }

    pub(crate) fn hello(&self, version: u16, from: u32, to: u32) -> Vec<u8> {
        let greeting =
            Bytes::default().put(&[1]).put(&version.to_le_bytes()).put(&self.session.to_le_bytes());
        let greeting = greeting.put(&[0]).put(&from.to_le_bytes()).put(&to.to_le_bytes());
        let greeting = greeting.put(&0_u64.to_le_bytes()).put(&8_u64.to_le_bytes()).put(&3_u16.to_le_bytes());
        terms().iter().fold(greeting, |bytes, (name, value)| bytes.text(name).text(value)).0
    }

    pub(crate) fn data(&self, seq: u64, step: u64, total: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let packet = Bytes::default().put(&[4]).put(&self.session.to_le_bytes()).put(&seq.to_le_bytes());
        let tag = packet.put(&0_u32.to_le_bytes()).put(&step.to_le_bytes()).put(&[0; 8]);
        tag.put(&total.to_le_bytes()).put(&offset.to_le_bytes()).put(bytes).0
    }

    pub(crate) fn ack(&self, received: u64) -> Vec<u8> {
        let packet = Bytes::default().put(&[6]).put(&self.session.to_le_bytes());
        packet.put(&received.to_le_bytes()).put(&8_u64.to_le_bytes()).put(&[0]).0
    }

    pub(crate) fn bye(&self, seq: u64) -> Vec<u8> {
        Bytes::default().put(&[5]).put(&self.session.to_le_bytes()).put(&seq.to_le_bytes()).0
    }

    /// The next packet of that kind.
    pub(crate) fn wait(&self, kind: u8) -> Vec<u8> {
        self.socket.set_rcvtimeo(100).unwrap();
        let start = Instant::now();
        while start.elapsed() < LONG {
            if let Ok(packet) = self.socket.recv_bytes(0)
                && packet[0] == kind
            {
                return packet;
            }
        }
        panic!("no packet of kind {kind}");
    }

    /// Whether anything comes within a moment.
    pub(crate) fn hears(&self, moment: Duration) -> bool {
        self.socket.set_rcvtimeo(moment.as_millis() as i32).unwrap();
        self.socket.recv_bytes(0).is_ok()
    }

    /// Says hello as `from` and waits to be welcomed.
    pub(crate) fn enter(&self, from: u32) {
        self.send(&self.hello(VERSION, from, 0));
        self.wait(WELCOME);
    }
}
