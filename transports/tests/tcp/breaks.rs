//! Connections that are cut or slow, and peers that stop.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gradwire_transports::tcp::{Bound, Meeting, TcpLimits, TcpTransport, TcpWaker, Timing};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, Wanted};

use crate::support::{LONG, World, join, long};

/// Passes bytes between the end that connects to it and `to`, until it is told otherwise.
struct Proxy {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    /// Whether bytes are held back for now.
    is_cut: Arc<Mutex<bool>>,
    /// How long each 64 KiB take.
    pace: Arc<Mutex<Duration>>,
}

impl Proxy {
    fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (streams, is_cut) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(false)));
        let pace = Arc::new(Mutex::new(Duration::ZERO));
        let (all, cut, slow) = (Arc::clone(&streams), Arc::clone(&is_cut), Arc::clone(&pace));
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(to).unwrap();
                all.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                for (mut from, mut into) in
                    [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)]
                {
                    let (cut, slow) = (Arc::clone(&cut), Arc::clone(&slow));
                    thread::spawn(move || {
                        let mut bytes = [0; 65_536];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            thread::sleep(*slow.lock().unwrap());
                            while *cut.lock().unwrap() {
                                thread::sleep(Duration::from_millis(5));
                            }
                            if into.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = into.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address, streams, is_cut, pace }
    }

    /// Breaks all connections.
    fn break_all(&self) {
        self.streams.lock().unwrap().iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// From now on 64 KiB take so long.
    fn slow_down(&self, pace: Duration) {
        *self.pace.lock().unwrap() = pace;
    }

    /// Holds all bytes back, or passes them on again.
    fn hold(&self, is_cut: bool) {
        *self.is_cut.lock().unwrap() = is_cut;
    }
}

/// A world in which the last rank reaches rank 0 through a proxy.
fn proxied(world: &World) -> (Vec<TcpTransport>, Proxy) {
    let mut bound = world.bind();
    let proxy = Proxy::to(bound[0].address());
    let straight: Vec<String> = bound.iter().map(|end| end.address().to_string()).collect();
    let mut crooked = straight.clone();
    crooked[0] = proxy.address.to_string();
    let last = bound.pop().unwrap();
    let ends = thread::scope(|scope| {
        let last = scope.spawn(|| last.join(&Meeting::Hosts(crooked), long()).unwrap());
        let mut ends: Vec<_> =
            join(bound, &Meeting::Hosts(straight), long()).into_iter().map(Result::unwrap).collect();
        ends.push(last.join().unwrap());
        ends
    });
    (ends, proxy)
}

fn gone(rank: u32) -> Result<(), TransportError> {
    Err(TransportError::Disconnected { rank: Rank(rank) })
}

#[test]
fn a_connection_cut_in_the_middle_of_a_message_is_gone_at_both_ends_and_for_all_others() {
    for world in [World::new(3), World::sealed(3)] {
        let (mut ends, proxy) = proxied(&world);
        let (tag, never) = (Tag::new(0, 1), Tag::new(0, 2));
        ends[2].send(Rank(0), tag, b"before", long()).unwrap();
        let mut payload = Vec::new();
        ends[0].recv(Rank(2), tag, &mut payload, long()).unwrap();
        proxy.hold(true);
        ends[2].send(Rank(0), never, &vec![1; 8 << 20], long()).unwrap();
        thread::sleep(Duration::from_millis(50));
        let wakers: Vec<_> = ends.iter().map(TcpTransport::waker).collect();
        let none_is_gone = |waker: &TcpWaker| (0..3).filter(|rank| waker.is_gone(Rank(*rank))).count() == 1;
        assert!(wakers.iter().all(none_is_gone), "but each end itself");
        proxy.break_all();
        let start = Instant::now();
        assert_eq!(ends[0].recv(Rank(2), never, &mut payload, long()), gone(2));
        assert_eq!(ends[2].recv(Rank(0), never, &mut payload, long()), gone(0));
        assert_eq!(ends[0].send(Rank(2), never, b"", long()), gone(2));
        // The third rank has lost no connection, and hears of it from one of the two or from both.
        let both = [0, 2].map(|rank| Wanted::one(Rank(rank), never));
        let lost = ends[1].recv_any(&both, &mut payload, long()).map(drop);
        assert!([gone(0), gone(2)].contains(&lost), "{lost:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "noticed late");
        assert!(wakers[0].is_gone(Rank(2)) && wakers[2].is_gone(Rank(0)) && !wakers[0].is_gone(Rank(3)));
        assert!([0, 2].iter().any(|rank| wakers[1].is_gone(Rank(*rank))));
        assert_eq!(payload, b"before");
        proxy.hold(false);
    }
}

#[test]
fn a_dead_network_is_noticed_after_the_silence_and_a_pause_is_not() {
    let timing = Timing {
        heartbeat: Duration::from_millis(100),
        silence: Duration::from_millis(1000),
        ..Timing::default()
    };
    let (mut ends, proxy) = proxied(&World { timing, ..World::new(2) });
    let (tag, mut payload) = (Tag::new(0, 1), Vec::new());
    // A quiet link that lives longer than the silence is heard of all the same.
    let quiet = ends[0].recv(Rank(1), tag, &mut payload, Deadline::after(Duration::from_millis(1500)));
    assert_eq!(quiet, Err(TransportError::Timeout { from: Rank(1), tag }));
    proxy.hold(true);
    thread::sleep(Duration::from_millis(300));
    proxy.hold(false);
    ends[1].send(Rank(0), tag, b"late", long()).unwrap();
    ends[0].recv(Rank(1), tag, &mut payload, long()).unwrap();
    proxy.hold(true);
    let start = Instant::now();
    assert_eq!(ends[0].recv(Rank(1), Tag::new(0, 2), &mut payload, long()), gone(1));
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(500) && waited < Duration::from_secs(8), "{waited:?}");
    proxy.hold(false);
}

#[test]
fn all_ranks_know_that_a_long_message_moves_and_when_none_does() {
    let timing = Timing { heartbeat: Duration::from_millis(100), ..Timing::default() };
    let world = World { timing, ..World::sealed(3) };
    let (mut ends, proxy) = proxied(&World { limits: TcpLimits::default(), ..world });
    proxy.slow_down(Duration::from_millis(20));
    let wakers: Vec<_> = ends.iter().map(TcpTransport::waker).collect();
    let oldest = || wakers.iter().map(|waker| waker.moved()).min().unwrap();
    let (tag, mut payload, start) = (Tag::new(0, 1), Vec::new(), Instant::now());
    // Far more than the buffers of the system hold.
    ends[2].send(Rank(0), tag, &vec![7; 16 << 20], long()).unwrap();
    ends[0].recv(Rank(2), tag, &mut payload, long()).unwrap();
    let took = start.elapsed();
    assert!(took > Duration::from_secs(2), "it was quick: {took:?}");
    assert!(oldest() > start + took / 2, "somebody takes it for stuck");
    // Signs of life go on, and nothing moves.
    while oldest().elapsed() < Duration::from_secs(1) {
        assert!(start.elapsed() < LONG);
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_stopped_process_is_seen_by_the_deadline() {
    // It says hello and then neither reads nor writes.
    let first = Bound::new(World::new(2).options(0), "127.0.0.1:0").unwrap();
    let address = first.address();
    let mut stopped = TcpStream::connect(address).unwrap();
    stopped.write_all(&crate::hostile::raw_hello()).unwrap();
    let meeting = Meeting::Hosts(vec![address.to_string(), "127.0.0.1:1".to_owned()]);
    let mut first = first.join(&meeting, long()).unwrap();
    let start = Instant::now();
    let tag = |step| Tag::new(0, step);
    let briefly = || Deadline::after(Duration::from_millis(200));
    let late = first.recv(Rank(1), tag(0), &mut Vec::new(), briefly());
    assert_eq!(late, Err(TransportError::Timeout { from: Rank(1), tag: tag(0) }));
    let refused = (0..).find_map(|step| first.send(Rank(1), tag(step), &[1; 500_000], briefly()).err());
    assert!(matches!(refused, Some(TransportError::NoRoom { to: Rank(1), .. })), "{refused:?}");
    assert!(start.elapsed() < Duration::from_secs(8));
    drop(stopped);
    assert_eq!(first.recv(Rank(1), tag(0), &mut Vec::new(), long()), gone(1));
}

#[test]
fn what_was_sent_before_a_process_died_is_taken_first() {
    let first = Bound::new(World::new(2).options(0), "127.0.0.1:0").unwrap();
    let address = first.address();
    let mut dying = TcpStream::connect(address).unwrap();
    let message = [&[1_u8][..], &4_u64.to_le_bytes(), &[0; 20], b"last", &[1, 9, 0, 0]].concat();
    dying.write_all(&[crate::hostile::raw_hello(), message].concat()).unwrap();
    let meeting = Meeting::Hosts(vec![address.to_string(), "127.0.0.1:1".to_owned()]);
    let mut first = first.join(&meeting, long()).unwrap();
    drop(dying);
    let (tag, mut payload) = (Tag::new(0, 0), Vec::new());
    assert_eq!(first.recv(Rank(1), tag.unit(1), &mut payload, long()), gone(1));
    first.recv(Rank(1), tag, &mut payload, long()).unwrap();
    assert_eq!(payload, b"last");
}
