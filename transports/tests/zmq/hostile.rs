//! Strangers, and peers that were let in and mean harm: the run of the others goes on, and the log says who
//! and why.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gradwire_transports::zmq::{Bound, KeyPair, Returns, Timing, ZmqOptions, ZmqTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::raw::{REFUSAL, Raw, VERSION, WELCOME};
use crate::support::{Heard, World, limits, long};

/// A server and an honest worker, rank 1; the key of rank 2 is the attacker's.
struct Scene {
    world: World,
    server: ZmqTransport,
    worker: ZmqTransport,
    heard: Heard,
    endpoint: String,
    step: u64,
}

/// The longest time for a handshake: short, so that tests of it are.
const HANDSHAKE: Duration = Duration::from_secs(2);

impl Scene {
    fn new() -> Self {
        let (world, heard) = (World::star(3), Heard::default());
        let timing = Timing { handshake: HANDSHAKE, ..Timing::default() };
        let options =
            ZmqOptions { returns: Returns::AtAnyTime, log: heard.log(), timing, ..world.options(0) };
        let bound = Bound::new(options).unwrap();
        let endpoint = bound.endpoint().unwrap().to_owned();
        let server = bound.join(long()).unwrap();
        let mut bound = Bound::new(world.options(1)).unwrap();
        bound.locate(Rank(0), &endpoint);
        let worker = bound.join(long()).unwrap();
        Self { world, server, worker, heard, endpoint, step: 1 }
    }

    fn attacker(&self, session: u64) -> Raw {
        Raw::new(&self.endpoint, self.world.key(0), Some(&self.world.pairs[2]), session)
    }

    /// Server and worker exchange messages of several chunks, both ways.
    fn goes_on(&mut self) {
        let long_message = vec![self.step as u8; 3 * limits().chunk_bytes + 5];
        let (tag, mut got) = (Tag::new(0, 1_000_000 + self.step), Vec::new());
        self.worker.send(Rank(0), tag, &long_message, long()).unwrap();
        self.server.recv(Rank(1), tag, &mut got, long()).unwrap();
        assert!(got == long_message);
        self.server.send(Rank(1), tag, &got, long()).unwrap();
        self.worker.recv(Rank(0), tag, &mut got, long()).unwrap();
        assert!(got == long_message);
        self.step += 1;
    }
}

#[test]
fn an_unknown_key_no_key_and_no_protocol_at_all_are_not_let_in() {
    let mut scene = Scene::new();
    let stranger = KeyPair::generate().unwrap();
    let unknown = Raw::new(&scene.endpoint, scene.world.key(0), Some(&stranger), 11);
    let keyless = Raw::new(&scene.endpoint, scene.world.key(0), None, 12);
    for raw in [&unknown, &keyless] {
        raw.send(&raw.hello(VERSION, 2, 0));
    }
    scene.heard.wait_for(&format!("key {} is not on the list", stranger.public()));
    let came_in = format!("an unknown peer (connected to {}) was not let in: ", scene.endpoint);
    scene.heard.wait_for(&format!("{came_in}the handshake failed"));
    scene.goes_on();
    assert!(!unknown.hears(Duration::from_millis(100)) && !keyless.hears(Duration::from_millis(100)));
    assert_eq!(scene.server.present().as_slice(), [Rank(1)]);
}

#[test]
fn half_a_greeting_and_an_endless_frame_are_cut_off() {
    let mut scene = Scene::new();
    let address = scene.endpoint.strip_prefix("tcp://").unwrap().to_owned();
    // The signature of ZMTP and then silence; the claim of a frame of 2^56 bytes; noise.
    let openings: [&[u8]; 3] =
        [b"\xff\0\0\0\0\0\0\0\x01\x7f", &[0x02, 0x01, 0, 0, 0, 0, 0, 0, 0], &[0x5a; 200]];
    for opening in openings {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(opening).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let start = Instant::now();
        let mut buffer = [0; 256];
        // The server may say its own greeting first; then it hangs up.
        while matches!(stream.read(&mut buffer), Ok(read) if read > 0) {}
        assert!(start.elapsed() < Duration::from_secs(15), "never cut off");
        scene.goes_on();
    }
}

/// Each byte comes in time; all of them do not.
#[test]
fn greetings_that_trickle_hold_their_connections_no_longer_than_a_handshake_may_take() {
    let mut scene = Scene::new();
    let address = scene.endpoint.strip_prefix("tcp://").unwrap().to_owned();
    // As long as it must be: signature, version, mechanism, as a client.
    let mut greeting = [0; 64];
    greeting[..17].copy_from_slice(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE");
    let trickling: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            std::thread::spawn(move || {
                let start = Instant::now();
                stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let (mut bytes, mut buffer) = (greeting.iter(), [0; 256]);
                loop {
                    if let Some(byte) = bytes.next()
                        && stream.write_all(&[*byte]).is_err()
                    {
                        return start.elapsed();
                    }
                    // The end of the stream, or a reset. Otherwise what it says is of no account.
                    match stream.read(&mut buffer) {
                        Ok(0) => return start.elapsed(),
                        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                            return start.elapsed();
                        }
                        _ => assert!(start.elapsed() < Duration::from_secs(30), "never cut off"),
                    }
                }
            })
        })
        .collect();
    scene.goes_on();
    for ended in trickling {
        let held = ended.join().unwrap();
        assert!(held < HANDSHAKE + Duration::from_secs(5), "held for {held:?}");
    }
    scene.heard.wait_for("the handshake failed: the other end hung up, or was not done after 2 s");
    scene.goes_on();
}

#[test]
fn nobody_takes_the_rank_of_another_key() {
    let mut scene = Scene::new();
    let raw = scene.attacker(21);
    raw.send(&raw.hello(VERSION, 1, 0));
    raw.wait(REFUSAL);
    scene.heard.wait_for("rank 2 was not let in: rank of the key is rank 2 here and rank 1 there");
    // Let in under its own rank, it speaks for no other.
    raw.enter(2);
    raw.send(&raw.data(0, 5, 3, 0, b"bad"));
    scene.server.recv(Rank(2), Tag::new(0, 5), &mut Vec::new(), long()).unwrap();
    scene.goes_on();
    let nothing = scene.server.recv(Rank(1), Tag::new(0, 5), &mut Vec::new(), Deadline::now());
    assert!(matches!(nothing, Err(TransportError::Timeout { .. })));
}

#[test]
fn another_version_another_place_and_another_codec_are_refused_by_name() {
    let mut scene = Scene::new();
    let raw = scene.attacker(31);
    let codec = |mut hello: Vec<u8>| {
        let at = hello.windows(4).position(|window| window == b"topk").unwrap();
        hello[at..at + 4].copy_from_slice(b"topx");
        hello
    };
    for (hello, why) in [
        (raw.hello(7, 2, 0), "protocol version is 2 here and 7 there"),
        (raw.hello(VERSION, 2, 1), "rank that listens is rank 0 here and rank 1 there"),
        (codec(raw.hello(VERSION, 2, 0)), "codec is topk"),
    ] {
        raw.send(&hello);
        raw.wait(REFUSAL);
        scene.heard.wait_for(why);
    }
    raw.enter(2);
    scene.goes_on();
}

#[test]
fn garbage_of_a_valid_key_is_dropped_and_named() {
    let mut scene = Scene::new();
    let raw = scene.attacker(41);
    for hello in [false, true] {
        if hello {
            raw.enter(2);
        }
        raw.send(b"");
        raw.send(&[0xff; 300]);
        raw.send(&raw.hello(VERSION, 2, 0)[..40]);
        raw.send_parts(&[&raw.hello(VERSION, 2, 0), b"more", b"and more"]);
        scene.heard.wait_for("dropped from rank 2: 300 bytes that are no packet");
        scene.heard.wait(|event| event.to_string().contains("a message of several parts"));
        scene.goes_on();
    }
    // It was no more than noise: the session still works.
    raw.send(&raw.data(0, 3, 4, 0, b"good"));
    let mut got = Vec::new();
    scene.server.recv(Rank(2), Tag::new(0, 3), &mut got, long()).unwrap();
    assert_eq!(got, b"good");
}

#[test]
fn replayed_reordered_and_repeated_packets_make_each_message_once() {
    let mut scene = Scene::new();
    let raw = scene.attacker(51);
    raw.enter(2);
    let packets: Vec<Vec<u8>> = (0..4).map(|seq| raw.data(seq, 10 + seq, 1, 0, &[seq as u8])).collect();
    for at in [2, 0, 0, 3, 1, 0, 1, 2, 2, 3, 0, 3] {
        raw.send(&packets[at]);
    }
    let mut got = Vec::new();
    for seq in 0..4 {
        scene.server.recv(Rank(2), Tag::new(0, 10 + seq), &mut got, long()).unwrap();
        assert_eq!(got, [seq as u8]);
    }
    // Replayed after it was taken, under its own number and under a new one.
    raw.send(&packets[3]);
    raw.send(&raw.data(4, 13, 1, 0, b"x"));
    raw.send(&raw.data(5, 20, 1, 0, b"y"));
    scene.server.recv(Rank(2), Tag::new(0, 20), &mut got, long()).unwrap();
    let again = scene.server.recv(Rank(2), Tag::new(0, 13), &mut got, Deadline::now());
    assert!(matches!(again, Err(TransportError::Timeout { .. })));
    assert!(scene.server.tally(Rank(2)).duplicates >= 5);
    scene.goes_on();
}

#[test]
fn who_breaks_the_protocol_is_put_out_and_stays_out() {
    let chunk = limits().chunk_bytes;
    type Attack = (&'static str, fn(&Raw, usize) -> Vec<u8>);
    let attacks: [Attack; 5] = [
        ("announced a message of", |raw, _| raw.data(0, 1, 1 << 40, 0, &[0; 100])),
        ("does not continue its message", |raw, chunk| raw.data(0, 1, 2 * chunk as u64, 7, &vec![0; chunk])),
        ("does not continue its message", |raw, chunk| {
            raw.data(0, 1, 2 * chunk as u64, 0, &vec![0; chunk + 1])
        }),
        ("does not continue its message", |raw, chunk| raw.data(0, 1, 2 * chunk as u64, 0, b"")),
        ("acknowledged what was never sent", |raw, _| raw.ack(1)),
    ];
    for (at, (why, packet)) in attacks.into_iter().enumerate() {
        let mut scene = Scene::new();
        let raw = scene.attacker(60 + at as u64);
        raw.enter(2);
        raw.send(&packet(&raw, chunk));
        let event = scene.heard.wait_for(why).to_string();
        assert!(event.starts_with("rank 2 is gone: it broke the protocol"), "{event}");
        let gone = scene.server.recv(Rank(2), Tag::new(0, 1), &mut Vec::new(), long());
        assert_eq!(gone, Err(TransportError::Disconnected { rank: Rank(2) }));
        let again = scene.attacker(70 + at as u64);
        again.send(&again.hello(VERSION, 2, 0));
        again.wait(REFUSAL);
        scene.goes_on();
    }
}

#[test]
fn a_frame_over_the_limit_ends_its_connection_before_room_is_made_for_it() {
    let mut scene = Scene::new();
    let raw = scene.attacker(81);
    raw.enter(2);
    raw.send(&vec![0xff; 1 << 20]);
    scene.heard.wait_for("rank 2 is silent");
    scene.goes_on();
    // The connection comes back by itself, and the session with it.
    raw.send(&raw.hello(VERSION, 2, 0));
    raw.wait(WELCOME);
    scene.goes_on();
    // Nobody ever saw the frame, so nobody made room for it.
    assert!(!scene.heard.events().iter().any(|event| event.to_string().contains("1048576 bytes")));
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10
}

/// What libzmq keeps of parts that come without end, measured for SECURITY.md. Without keys anybody can write
/// such parts by hand.
#[test]
#[ignore = "measures memory of hundreds of megabytes"]
fn what_a_message_without_end_makes_libzmq_keep() {
    let part_bytes = std::env::var("GRADWIRE_PART_BYTES").map_or(0_u8, |bytes| bytes.parse().unwrap());
    let world = World { is_secure: false, ..World::star(2) };
    let bound = Bound::new(ZmqOptions { returns: Returns::AtAnyTime, ..world.options(0) }).unwrap();
    let address = bound.endpoint().unwrap().strip_prefix("tcp://").unwrap().to_owned();
    let _server = bound.join(Deadline::now()).unwrap();
    let mut stream = TcpStream::connect(&address).unwrap();
    // ZMTP 3.0: signature, version, the mechanism NULL, as a client; then READY of a DEALER.
    let mut greeting = [0; 64];
    greeting[..16].copy_from_slice(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL");
    stream.write_all(&greeting).unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    stream.write_all(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER").unwrap();
    // Bit 0 says that more parts follow.
    let part = [&[1, part_bytes][..], &vec![0; usize::from(part_bytes)][..]].concat();
    let block = part.repeat((1 << 20) / part.len());
    let before = resident();
    (0..8).for_each(|_| stream.write_all(&block).unwrap());
    // What is in the buffers of the kernel is not kept yet.
    std::thread::sleep(Duration::from_secs(1));
    let (sent, kept) = (8.0 * block.len() as f64, (resident() - before) as f64);
    println!(
        "parts of {part_bytes} bytes: {:.0} MB on the wire, {:.0} MB kept, {:.1} times as much",
        sent / 1e6,
        kept / 1e6,
        kept / sent
    );
}
