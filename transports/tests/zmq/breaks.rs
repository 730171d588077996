//! Connections that break, peers that fall silent, and processes that die.

use std::env;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::exchange::{Exchange, ExchangeError, Route};
use gradwire_transports::zmq::{
    Bound, Event, KeyPair, Returns, Roster, Security, Timing, Topology, ZmqOptions, ZmqTransport,
};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::proxy::Proxy;
use crate::support::{Heard, LONG, World, introduce, limits, long, terms};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A server and a worker whose connection goes through a proxy.
struct Scene {
    server: ZmqTransport,
    worker: ZmqTransport,
    proxy: Proxy,
    heard: Heard,
}

fn scene(give_up: Duration) -> Scene {
    let (world, heard) = (World::star(2), Heard::default());
    let timing = Timing { give_up, ..Timing::default() };
    let server = Bound::new(ZmqOptions { log: heard.log(), timing, ..world.options(0) }).unwrap();
    let mut worker = Bound::new(ZmqOptions { timing, ..world.options(1) }).unwrap();
    let proxy = Proxy::to(server.endpoint().unwrap());
    worker.locate(Rank(0), &proxy.endpoint());
    let worker = thread::spawn(move || worker.join(long()).unwrap());
    let server = server.join(long()).unwrap();
    Scene { server, worker: worker.join().unwrap(), proxy, heard }
}

fn message(step: u64) -> Vec<u8> {
    vec![step as u8; step as usize * 7919 % 300_000]
}

#[test]
fn a_connection_that_is_cut_again_and_again_loses_nothing_and_repeats_nothing() {
    const STEPS: u64 = 120;
    let Scene { mut server, mut worker, proxy, heard } = scene(LONG);
    let sender = thread::spawn(move || {
        for step in 0..STEPS {
            worker.send(Rank(0), Tag::new(0, step), &message(step), long()).unwrap();
            worker.send(Rank(0), Tag::new(0, step).unit(1), b"second", long()).unwrap();
        }
        worker.close(long()).unwrap();
    });
    let mut got = Vec::new();
    for step in 0..STEPS {
        if step % 12 == 3 {
            proxy.cut();
        }
        server.recv(Rank(1), Tag::new(0, step), &mut got, long()).unwrap();
        assert!(got == message(step), "step {step}");
        server.recv(Rank(1), Tag::new(0, step).unit(1), &mut got, long()).unwrap();
    }
    let over = server.recv(Rank(1), Tag::new(0, STEPS), &mut got, long());
    assert_eq!(over, Err(TransportError::Disconnected { rank: Rank(1) }));
    sender.join().unwrap();
    assert!(proxy.connections() > 5, "the proxy cut {} connections", proxy.connections());
    assert_eq!(server.tally(Rank(1)).sessions, 1);
    heard.wait_for("rank 1 is gone: it left");
}

#[test]
fn a_peer_that_falls_silent_is_missed_and_goes_on_later_as_if_nothing_had_been() {
    let Scene { mut server, mut worker, proxy, heard } = scene(LONG);
    proxy.hold(true);
    heard.wait_for("rank 1 is silent");
    worker.send(Rank(0), Tag::new(0, 1), b"sent into silence", long()).unwrap();
    let start = Instant::now();
    let late = server.recv(Rank(1), Tag::new(0, 1), &mut Vec::new(), Deadline::after(MS(100)));
    assert_eq!(late, Err(TransportError::Timeout { from: Rank(1), tag: Tag::new(0, 1) }));
    assert!(start.elapsed() >= MS(100) && start.elapsed() < Duration::from_secs(10));
    proxy.hold(false);
    let mut got = Vec::new();
    server.recv(Rank(1), Tag::new(0, 1), &mut got, long()).unwrap();
    assert_eq!(got, b"sent into silence");
    heard.wait(|event| matches!(event, Event::Resumed { rank: Rank(1) }));
    assert_eq!(server.tally(Rank(1)).sessions, 1);
}

/// A silence makes a new connection at most, which goes on where the old one was.
#[test]
fn a_peer_that_falls_silent_again_and_again_is_there_again_each_time() {
    let Scene { mut server, mut worker, proxy, heard } = scene(LONG);
    let mut got = Vec::new();
    for step in 1..6 {
        proxy.hold(true);
        worker.send(Rank(0), Tag::new(0, step), &message(step), long()).unwrap();
        if step == 1 {
            heard.wait_for("rank 1 is silent");
        }
        thread::sleep(MS(1000));
        proxy.hold(false);
        server.recv(Rank(1), Tag::new(0, step), &mut got, long()).unwrap();
        assert!(got == message(step), "step {step}");
    }
    assert!(proxy.connections() < 7, "{} connections", proxy.connections());
    assert_eq!(server.tally(Rank(1)).sessions, 1);
}

#[test]
fn a_peer_that_stays_silent_is_given_up_at_both_ends() {
    let Scene { mut server, mut worker, proxy, heard } = scene(MS(1500));
    proxy.hold(true);
    let gone = |rank| Err(TransportError::Disconnected { rank: Rank(rank) });
    assert_eq!(server.recv(Rank(1), Tag::new(0, 1), &mut Vec::new(), Deadline::NEVER), gone(1));
    assert_eq!(worker.recv(Rank(0), Tag::new(0, 1), &mut Vec::new(), Deadline::NEVER), gone(0));
    assert_eq!(server.send(Rank(1), Tag::new(0, 1), b"", long()), gone(1));
    heard.wait_for("rank 1 is gone: nothing was heard of it for");
    proxy.hold(false);
    // Its session is over: the server does not know it any more, and the worker does not come back by itself.
    assert_eq!(worker.send(Rank(0), Tag::new(0, 2), b"", long()), gone(0));
}

/// Ranks 0 and 2 lose each other after their frames have left them; rank 1 has all frames.
#[test]
fn a_step_whose_frames_reach_some_ranks_and_not_others_is_undone_by_all_of_them() {
    let world = World::new(3);
    let timing = Timing { give_up: MS(1500), ..Timing::default() };
    let mut bound: Vec<_> =
        (0..3).map(|at| Bound::new(ZmqOptions { timing, ..world.options(at) }).unwrap()).collect();
    introduce(&mut bound, &world.ranks);
    let proxy = Proxy::to(bound[0].endpoint().unwrap());
    bound[2].locate(Rank(0), &proxy.endpoint());
    let joining: Vec<_> = bound.into_iter().map(|end| thread::spawn(|| end.join(long()).unwrap())).collect();
    let ends: Vec<_> = joining.into_iter().map(|end| end.join().unwrap()).collect();
    proxy.hold(true);
    let step = |mut end: ZmqTransport| {
        let (spec, layout) =
            (Spec::parse("topk:density=0.05").unwrap(), Layout::packed([("w", vec![650])]).unwrap());
        let mut memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
        let mut exchange = Exchange::new(spec, layout, Route::AllGather).unwrap();
        let key = StepKey { seed: 1, step: 0, source: Source::Rank(end.rank().0) };
        let (grad, mut mean) = ([0.5; 650], [0.0; 650]);
        let memory = &mut memory;
        exchange.start(&mut end, key, Grad::F32(&grad), Some(&mut *memory), long()).unwrap();
        let ended = exchange.finish(&mut end, &mut mean, Some(&mut *memory), long());
        (end.rank(), ended.map(|_| ()), memory.residual() == grad, end)
    };
    let stepping: Vec<_> = ends.into_iter().map(|end| thread::spawn(move || step(end))).collect();
    let ended: Vec<_> = stepping.into_iter().map(|end| end.join().unwrap()).collect();
    for (rank, ended, has_all, _) in &ended {
        assert!(*has_all, "{rank}: {ended:?}");
        match (rank.0, ended) {
            (1, Err(ExchangeError::NotAgreed { rank: Rank(0 | 2) })) => {}
            // Whichever of the two misses the other first tells all.
            (0 | 2, Err(ExchangeError::Transport(_) | ExchangeError::NotAgreed { .. })) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_slow_receiver_stops_its_sender_within_the_bound() {
    let world = World::star(2);
    let small = |at| {
        let mut options = world.options(at);
        (options.limits.inbox.bytes, options.limits.outbox.bytes) = (100_000, 100_000);
        Bound::new(options).unwrap()
    };
    let mut ends = crate::support::join(vec![small(0), small(1)]);
    let (mut worker, mut server) = (ends.pop().unwrap(), ends.pop().unwrap());
    let mut sent = 0;
    let refused = loop {
        match worker.send(Rank(0), Tag::new(0, sent), &[7; 50_000], Deadline::after(MS(500))) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, TransportError::NoRoom { to: Rank(0), tag: Tag::new(0, sent) });
    // Two in each queue, one that waits for the inbox, and a window of chunks.
    assert!(sent <= 2 + 2 + 1 + limits().window as u64, "{sent} messages found room");
    for step in 0..sent {
        server.recv(Rank(1), Tag::new(0, step), &mut Vec::new(), long()).unwrap();
    }
    worker.send(Rank(0), Tag::new(0, sent), &[7; 50_000], long()).unwrap();
    server.recv(Rank(1), Tag::new(0, sent), &mut Vec::new(), long()).unwrap();
    assert_eq!(worker.tally(Rank(0)).resent, 0);
}

/// What a worker in a process of its own reads.
const FOLDER: &str = "GRADWIRE_TEST_ZMQ_ECHO";
const ENDPOINT: &str = "GRADWIRE_TEST_ZMQ_ENDPOINT";

/// Not a test of its own: answers every message of rank 0 with the same one, until rank 0 leaves.
#[test]
fn echo_in_a_process_of_its_own() {
    let (Ok(folder), Ok(endpoint)) = (env::var(FOLDER), env::var(ENDPOINT)) else { return };
    let folder = std::path::PathBuf::from(folder);
    let roster = Roster::read(&folder.join("peers")).unwrap();
    let keys = KeyPair::read(&folder.join("1")).unwrap();
    let star = Topology::Star { server: Rank(0) };
    let options = ZmqOptions::new(Rank(1), roster, star, Security::Curve(keys), terms());
    let mut bound = Bound::new(ZmqOptions { limits: limits(), ..options }).unwrap();
    bound.locate(Rank(0), &endpoint);
    let mut worker = bound.join(long()).unwrap();
    let mut got = Vec::new();
    let mut step = 0;
    loop {
        match worker.recv(Rank(0), Tag::new(0, step), &mut got, long()) {
            Ok(()) => worker.send(Rank(0), Tag::new(0, step), &got, long()).unwrap(),
            // After the server has greeted this session only, its steps begin where they are.
            Err(TransportError::Timeout { .. }) => panic!("nothing to do"),
            Err(_) => break,
        }
        step += 1;
    }
}

struct Processes {
    folder: std::path::PathBuf,
    server: ZmqTransport,
    endpoint: String,
    heard: Heard,
}

impl Processes {
    fn new(name: &str, returns: Returns) -> Self {
        let folder = env::temp_dir().join(format!("gradwire-echo-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (world, heard) = (World::star(2), Heard::default());
        world.pairs[1].write(&folder.join("1")).unwrap();
        std::fs::write(folder.join("peers"), format!("0 {}\n1 {}\n", world.key(0), world.key(1))).unwrap();
        let options = ZmqOptions { log: heard.log(), returns, ..world.options(0) };
        let bound = Bound::new(options).unwrap();
        let endpoint = bound.endpoint().unwrap().to_owned();
        let server = bound.join(long()).unwrap();
        Self { folder, server, endpoint, heard }
    }

    fn spawn(&self) -> Child {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "breaks::echo_in_a_process_of_its_own"]);
        command.env(FOLDER, &self.folder).env(ENDPOINT, &self.endpoint).stdout(Stdio::null());
        command.spawn().unwrap()
    }

    fn echo(&mut self, step: u64) {
        let (tag, mut got) = (Tag::new(0, step), Vec::new());
        self.server.send(Rank(1), tag, &message(step + 1), long()).unwrap();
        self.server.recv(Rank(1), tag, &mut got, long()).unwrap();
        assert!(got == message(step + 1));
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn signal(name: &str, child: &Child) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_stopped_process_goes_on_where_it_was() {
    let mut processes = Processes::new("stop", Returns::AtAnyTime);
    let mut child = processes.spawn();
    processes.heard.wait_for("rank 1 is here");
    processes.echo(0);
    signal("-STOP", &child);
    processes.server.send(Rank(1), Tag::new(0, 1), b"while it sleeps", long()).unwrap();
    processes.heard.wait_for("rank 1 is silent");
    signal("-CONT", &child);
    let mut got = Vec::new();
    processes.server.recv(Rank(1), Tag::new(0, 1), &mut got, long()).unwrap();
    assert_eq!(got, b"while it sleeps");
    processes.echo(2);
    processes.server.close(long()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_killed_process_may_come_back_as_a_new_session() {
    let mut processes = Processes::new("kill", Returns::AtAnyTime);
    let mut child = processes.spawn();
    processes.heard.wait_for("rank 1 is here");
    processes.echo(0);
    signal("-KILL", &child);
    child.wait().unwrap();
    let mut child = processes.spawn();
    processes.heard.wait_for("rank 1 is gone: it was started again");
    let start = Instant::now();
    while processes.server.tally(Rank(1)).sessions < 2 || processes.server.present().is_empty() {
        assert!(start.elapsed() < LONG);
        thread::sleep(MS(2));
    }
    // The tags of its first life are taken; the echo begins at step 0, so it is sent that again under no
    // one's eyes.
    processes.server.send(Rank(1), Tag::new(0, 0), b"again", long()).unwrap();
    processes.echo(1);
    processes.server.close(long()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn ranks_that_leave_at_about_the_same_time_do_not_wait_for_each_other() {
    // Without keys, where all goes fastest; of forty pairs some hang up while the answer is on its way.
    for _ in 0..40 {
        let world = World { is_secure: false, ..World::new(2) };
        let [mut stays, mut leaves] = world.join().try_into().ok().unwrap();
        let leaving = thread::spawn(move || {
            let start = Instant::now();
            leaves.close(long()).unwrap();
            start.elapsed()
        });
        let gone = stays.recv(Rank(1), Tag::new(0, 1), &mut Vec::new(), long());
        assert_eq!(gone, Err(TransportError::Disconnected { rank: Rank(1) }));
        stays.close(long()).unwrap();
        let took = leaving.join().unwrap();
        assert!(took < Duration::from_secs(10), "it waited {took:?} for who was gone");
    }
}
