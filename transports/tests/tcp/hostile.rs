//! Strangers at the door: what they send, and that nobody waits for them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use gradwire_transports::tcp::{Bound, Meeting, TcpError, TcpTransport, Timing};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::support::{World, list, long};

fn knock(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// What the other end answers until it hangs up.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("it does not hang up: {error}"),
        _ => bytes,
    }
}

/// Of the protocol, in hellos that are to be read on.
const VERSION: u16 = 2;

/// A hello without a key, as a stranger may write it: version, whether it encrypts, ranks, and what follows.
fn hello(version: u16, from: u32, to: u32, rest: &[u8]) -> Vec<u8> {
    let body = [&from.to_le_bytes()[..], &to.to_le_bytes(), rest].concat();
    let mut bytes = b"gradwire".to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0, 7]);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Two ranks, of which the second one comes after `meanwhile` is over.
fn two_meet(world: &World, meanwhile: impl FnOnce(SocketAddr)) {
    let mut bound = world.bind();
    let meeting = &list(&bound);
    let (second, first) = (bound.pop().unwrap(), bound.pop().unwrap());
    let address = first.address();
    thread::scope(|scope| {
        let first = scope.spawn(move || first.join(meeting, long()));
        meanwhile(address);
        let mut second = second.join(meeting, long()).unwrap();
        let mut first = first.join().unwrap().unwrap();
        let (tag, mut payload) = (Tag::new(0, 1), Vec::new());
        second.send(Rank(0), tag, b"here", long()).unwrap();
        first.recv(Rank(1), tag, &mut payload, long()).unwrap();
        assert_eq!(payload, b"here");
    });
}

#[test]
fn garbage_is_hung_up_on_and_hinders_nobody() {
    let noise: Vec<u8> = (0..100_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for world in [World::new(2), World::sealed(2)] {
        two_meet(&world, |address| {
            for bytes in
                [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"\x16\x03\x01\x02\x00", &[0; 4096], &noise]
            {
                let mut stream = knock(address);
                // It may have hung up before all is written.
                let _ = stream.write_all(bytes);
                assert_eq!(answer(stream), b"");
            }
        });
    }
}

#[test]
fn a_hello_that_is_wrong_in_any_part_is_refused() {
    two_meet(&World::new(2), |address| {
        // Other versions learn this end's version; nothing else is answered.
        for (bytes, least, most) in [
            (hello(9, 1, 0, &[]), 11, 11),
            (hello(VERSION, 1, 0, &[]), 11, 11),
            (hello(VERSION, 1, 0, &[0xff; 70_000]), 11, 11),
            (hello(VERSION, 1, 0, &[0xff, 0xff, 0xff, 0xff]), 11, 11),
        ] {
            let mut stream = knock(address);
            let _ = stream.write_all(&bytes);
            let len = answer(stream).len();
            assert!((least..=most).contains(&len) || len == 0, "{len} bytes");
        }
        let mut longest = b"gradwire\x02\x00\x00\x07".to_vec();
        longest.extend_from_slice(&u64::MAX.to_le_bytes());
        let mut stream = knock(address);
        stream.write_all(&longest).unwrap();
        assert_eq!(answer(stream).len(), 11);
    });
}

#[test]
fn who_is_slow_or_silent_is_hung_up_on_in_time_and_hinders_nobody() {
    let timing = Timing { greeting: Duration::from_millis(400), ..Timing::default() };
    let start = Instant::now();
    let mut held = Vec::new();
    let world = World { timing, ..World::sealed(2) };
    two_meet(&world, |address| {
        let mut half = knock(address);
        half.write_all(b"gradw").unwrap();
        held.extend([knock(address), half]);
        let mut slow = knock(address);
        held.push(slow.try_clone().unwrap());
        thread::spawn(move || {
            for byte in hello(VERSION, 1, 0, &[0; 20]) {
                if slow.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
    });
    assert!(start.elapsed() < Duration::from_secs(10), "it waited for strangers");
}

#[test]
fn strangers_that_are_silent_are_hung_up_on() {
    let timing = Timing { greeting: Duration::from_millis(200), ..Timing::default() };
    two_meet(&World { timing, ..World::new(2) }, |address| {
        let start = Instant::now();
        assert_eq!(answer(knock(address)), b"");
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(200) && waited < Duration::from_secs(10), "{waited:?}");
    });
}

#[test]
fn more_strangers_than_there_is_room_for_push_out_the_oldest() {
    two_meet(&World::new(2), |address| {
        let first = knock(address);
        let (crowd, start): (Vec<_>, _) = ((0..200).map(|_| knock(address)).collect(), Instant::now());
        assert_eq!(answer(first), b"");
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "it was hung up on for its silence, not for the crowd"
        );
        drop(crowd);
    });
}

#[test]
fn a_second_connection_of_a_rank_is_refused_and_the_first_one_stays() {
    let world = World::sealed(2);
    let bound = world.bind();
    let meeting = list(&bound);
    let mut ends: Vec<_> =
        crate::support::join(bound, &meeting, long()).into_iter().map(Result::unwrap).collect();
    let Meeting::Hosts(hosts) = &meeting else { unreachable!() };
    let again = Bound::new(world.options(1), "127.0.0.1:0").unwrap();
    let briefly = Deadline::after(Duration::from_millis(300));
    let error = again.join(&Meeting::Hosts(hosts.clone()), briefly).map(drop).unwrap_err();
    assert!(error.to_string().contains("that rank is there already"), "{error}");
    let (tag, mut payload) = (Tag::new(0, 1), Vec::new());
    ends[1].send(Rank(0), tag, b"still here", long()).unwrap();
    ends[0].recv(Rank(1), tag, &mut payload, long()).unwrap();
    assert_eq!(payload, b"still here");
}

#[test]
fn another_rank_at_an_address_is_named() {
    let mut bound = World::new(3).bind();
    let Meeting::Hosts(mut hosts) = list(&bound) else { unreachable!() };
    hosts.swap(0, 1);
    let (meeting, last) = (Meeting::Hosts(hosts), bound.pop().unwrap());
    let briefly = Deadline::after(Duration::from_millis(500));
    let others = thread::scope(|scope| {
        let others: Vec<_> = bound
            .into_iter()
            .map(|end| {
                let meeting = &meeting;
                scope.spawn(move || end.join(meeting, briefly).map(drop).unwrap_err())
            })
            .collect();
        let error = last.join(&meeting, briefly).map(drop).unwrap_err();
        assert!(matches!(&error, TcpError::Refused { why, .. } if why.contains("order")), "{error}");
        others.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(others.len(), 2);
}

/// Rank 0 of two, and a rank 1 that greets it and then does as it likes.
fn beside_a_raw_peer(
    timing: Timing,
    peer: impl FnOnce(TcpStream) + Send + 'static,
    check: impl FnOnce(&mut TcpTransport),
) {
    let mut bound = World { timing, ..World::new(2) }.bind();
    bound.truncate(1);
    let first = bound.pop().unwrap();
    let address = first.address();
    let meeting = Meeting::Hosts(vec![address.to_string(), "127.0.0.1:1".to_owned()]);
    let peer = thread::spawn(move || {
        let mut stream = knock(address);
        stream.write_all(&raw_hello()).unwrap();
        let mut welcome = [0; 11 + 9];
        stream.read_exact(&mut welcome).unwrap();
        assert_eq!(welcome[11], 8);
        peer(stream);
    });
    check(&mut first.join(&meeting, long()).unwrap());
    peer.join().unwrap();
}

const GONE: Result<(), TransportError> = Err(TransportError::Disconnected { rank: Rank(1) });

#[test]
fn a_peer_that_sends_what_is_no_frame_is_gone() {
    let noise = |mut stream: TcpStream| {
        stream.write_all(&[99; 64]).unwrap();
        answer(stream);
    };
    beside_a_raw_peer(Timing::default(), noise, |first| {
        assert_eq!(first.recv(Rank(1), Tag::new(0, 1), &mut Vec::new(), long()), GONE);
    });
}

/// The header of a message with that payload, and a heartbeat.
fn begun(tag: Tag, payload: usize) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend_from_slice(&(payload as u64).to_le_bytes());
    bytes.extend_from_slice(&tag.epoch.to_le_bytes());
    bytes.extend_from_slice(&tag.step.to_le_bytes());
    bytes.extend_from_slice(&tag.unit.to_le_bytes());
    bytes.extend_from_slice(&tag.chunk.to_le_bytes());
    bytes
}

/// Whoever begins a message has all of it: what it sends instead of the rest is no sign of life.
#[test]
fn a_peer_that_does_not_go_on_with_its_message_is_gone() {
    let (heartbeat, silence) = (Duration::from_millis(50), Duration::from_millis(500));
    let timing = Timing { heartbeat, silence, ..Timing::default() };
    let tag = Tag::new(0, 1);
    let drips = move |mut stream: TcpStream| {
        stream.write_all(&begun(tag, 1 << 20)).unwrap();
        // As a heartbeat is long, and at its pace.
        while stream.write_all(&[2, 0, 0, 0, 0, 0, 0, 0, 0]).is_ok() {
            thread::sleep(heartbeat);
        }
    };
    beside_a_raw_peer(timing, drips, |first| {
        let start = Instant::now();
        assert_eq!(first.recv(Rank(1), tag, &mut Vec::new(), long()), GONE);
        assert!(start.elapsed() < Duration::from_secs(20));
    });
    let crawls = move |mut stream: TcpStream| {
        stream.write_all(&begun(tag, 16 << 10)).unwrap();
        for _ in 0..16 {
            thread::sleep(2 * heartbeat);
            stream.write_all(&[5; 1 << 10]).unwrap();
        }
        // Until the other end has it, and leaves.
        answer(stream);
    };
    beside_a_raw_peer(timing, crawls, |first| {
        let mut payload = Vec::new();
        first.recv(Rank(1), tag, &mut payload, long()).unwrap();
        assert_eq!(payload, [5; 16 << 10]);
        // The peer does not answer to that.
        assert!(first.close(Deadline::now()).is_err());
    });
}

/// The hello of rank 1 of two, as another program would write it.
pub(crate) fn raw_hello() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    let layout = gradwire::LayoutRef::flat(650);
    let limit = crate::support::limits().max_message_bytes;
    let layout = format!("{} elements, fingerprint {:016x}", layout.len(), layout.fingerprint());
    let terms = [
        ("codec", gradwire::Spec::parse("topk:density=0.01").unwrap().to_string()),
        ("layout", layout),
        ("tcp mesh", format!("2 ranks, messages up to {limit} bytes")),
    ];
    let mut rest = [text("127.0.0.1:1"), 3_u16.to_le_bytes().to_vec()].concat();
    terms.iter().for_each(|(name, value)| rest.extend([text(name), text(value)].concat()));
    hello(VERSION, 1, 0, &rest)
}
