//! Links that are slow, far, or become so: everything arrives, over one session, and nobody is missed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gradwire_transports::zmq::{Bound, Event, ZmqOptions, ZmqTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport};

use crate::support::{Heard, World};

/// What a modem holds before it takes no more.
const BUFFER: Duration = Duration::from_secs(4);
/// Long enough for the slowest of these links.
const PATIENCE: Duration = Duration::from_secs(150);

/// A link with a rate in bytes per second and a delay each way, in milliseconds. Both may change.
pub(crate) struct Slow {
    rate: AtomicU64,
    delay: AtomicU64,
}

impl Slow {
    /// To `tcp://HOST:PORT`; returns where it listens.
    pub(crate) fn to(endpoint: &str, kbit: u64, delay: u64) -> (String, Arc<Self>) {
        let slow = Arc::new(Self { rate: AtomicU64::new(kbit * 125), delay: AtomicU64::new(delay) });
        let target = endpoint.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = format!("tcp://{}", listener.local_addr().unwrap());
        let shared = Arc::clone(&slow);
        thread::spawn(move || {
            for inside in listener.incoming().flatten() {
                let Ok(outside) = TcpStream::connect(&target) else { continue };
                let copies = [&inside, &outside].map(|stream| stream.try_clone().unwrap());
                let [back, forth] = copies;
                shared.carry(inside, outside);
                shared.carry(forth, back);
            }
        });
        (own, slow)
    }

    fn carry(self: &Arc<Self>, from: TcpStream, to: TcpStream) {
        let (sends, receives) = channel();
        let slow = Arc::clone(self);
        thread::spawn(move || slow.take(from, &sends));
        thread::spawn(move || deliver(to, &receives));
    }

    /// Reads as fast as the link takes it, and says when each piece is at the other end.
    fn take(&self, mut from: TcpStream, sends: &Sender<(Instant, Vec<u8>)>) {
        let (mut buffer, mut free) = ([0; 1400], Instant::now());
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let seconds = read as f64 / self.rate.load(SeqCst) as f64;
            free = free.max(Instant::now()) + Duration::from_secs_f64(seconds);
            let due = free + Duration::from_millis(self.delay.load(SeqCst));
            if sends.send((due, buffer[..read].to_vec())).is_err() {
                return;
            }
            thread::sleep(free.saturating_duration_since(Instant::now() + BUFFER));
        }
    }
}

fn deliver(mut to: TcpStream, receives: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in receives {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

struct Scene {
    server: ZmqTransport,
    worker: ZmqTransport,
    link: Arc<Slow>,
    heard: Heard,
}

/// A server and a worker behind such a link.
fn scene(kbit: u64, delay: u64) -> Scene {
    let (world, heard) = (World::star(2), Heard::default());
    let bind = |at| {
        let options = world.options(at);
        let limits = gradwire_transports::zmq::ZmqLimits::default();
        Bound::new(ZmqOptions { log: heard.log(), limits, ..options }).unwrap()
    };
    let (server, mut worker) = (bind(0), bind(1));
    let (endpoint, link) = Slow::to(server.endpoint().unwrap(), kbit, delay);
    worker.locate(Rank(0), &endpoint);
    let worker = thread::spawn(move || worker.join(Deadline::after(PATIENCE)).unwrap());
    let server = server.join(Deadline::after(PATIENCE)).unwrap();
    Scene { server, worker: worker.join().unwrap(), link, heard }
}

impl Scene {
    /// Both ends send so many bytes at once; returns how long it took.
    fn exchange(&mut self, step: u64, bytes: usize) -> Duration {
        let (start, tag) = (Instant::now(), Tag::new(0, step));
        let message = |rank: u32| (0..bytes).map(|at| (at as u32 * 7 + rank) as u8).collect::<Vec<_>>();
        let patience = Deadline::after(PATIENCE);
        self.server.send(Rank(1), tag, &message(0), patience).unwrap();
        self.worker.send(Rank(0), tag, &message(1), patience).unwrap();
        let mut got = Vec::new();
        let at_server = self.server.recv(Rank(1), tag, &mut got, patience);
        assert_eq!(at_server, Ok(()), "{:?}", self.heard.events());
        assert!(got == message(1));
        let at_worker = self.worker.recv(Rank(0), tag, &mut got, patience);
        assert_eq!(at_worker, Ok(()), "{:?}", self.heard.events());
        assert!(got == message(0));
        start.elapsed()
    }

    fn sessions(&self) -> [u64; 2] {
        [self.server.tally(Rank(1)).sessions, self.worker.tally(Rank(0)).sessions]
    }

    /// Nothing was said but that both are there.
    fn is_calm(&self) {
        let events = self.heard.events();
        let is_odd = |event: &&Event| !matches!(event, Event::Joined { .. } | Event::Waiting { .. });
        let odd: Vec<String> = events.iter().filter(is_odd).map(ToString::to_string).collect();
        assert!(odd.is_empty(), "{odd:?}");
        assert_eq!(self.sessions(), [1, 1]);
        assert_eq!(self.server.tally(Rank(1)).resent + self.worker.tally(Rank(0)).resent, 0);
    }
}

#[test]
fn a_modem_of_64_kbit_far_away_carries_messages() {
    let mut scene = scene(64, 750);
    scene.exchange(1, 20_000);
    scene.exchange(2, 100);
    scene.is_calm();
}

#[test]
fn messages_much_longer_than_the_silence_of_a_fast_link_arrive() {
    for (kbit, delay, bytes) in [(256, 20, 300_000), (1500, 40, 1_500_000), (40, 10, 30_000)] {
        let mut scene = scene(kbit, delay);
        let took = scene.exchange(1, bytes).as_secs_f64();
        assert!(took < 2.0 * bytes as f64 / (kbit as f64 * 125.0) + 3.0, "{kbit} kbit/s: {took} s");
        scene.is_calm();
    }
}

#[test]
fn a_round_trip_of_more_than_half_a_second_passes_every_handshake() {
    for delay in [300, 600, 1000] {
        let mut scene = scene(20_000, delay);
        scene.exchange(1, 100_000);
        scene.exchange(2, 100);
        scene.is_calm();
    }
}

/// Chunks that were cut for the fast link are too long for the slow one.
#[test]
fn a_link_that_becomes_slow_in_the_middle_goes_on_in_its_session() {
    let mut scene = scene(80_000, 10);
    scene.exchange(1, 4_000_000);
    scene.link.rate.store(16_000, SeqCst);
    scene.exchange(2, 200_000);
    scene.link.delay.store(400, SeqCst);
    scene.exchange(3, 50_000);
    scene.link.rate.store(10_000_000, SeqCst);
    scene.link.delay.store(10, SeqCst);
    scene.exchange(4, 2_000_000);
    assert_eq!(scene.sessions(), [1, 1]);
}
