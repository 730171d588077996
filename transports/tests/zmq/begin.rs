//! How a run begins, and why it does not.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use gradwire::{LayoutRef, Spec};
use gradwire_transports::zmq::{
    Bound, Entry, Event, KeyPair, Returns, Security, Terms, Timing, Topology, ZmqError, ZmqOptions,
    ZmqTransport, has_curve,
};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::proxy::Proxy;
use crate::raw::{REFUSAL, Raw};
use crate::support::{Heard, LONG, World, introduce, long};

#[test]
fn the_libzmq_of_this_build_has_curve() {
    assert!(has_curve(), "{}", ZmqError::NoCurve);
}

/// What both ends say when the second is told something else.
fn both(change: impl Fn(&mut ZmqOptions)) -> [ZmqError; 2] {
    let world = World::new(2);
    let mut options = [world.options(0), world.options(1)];
    change(&mut options[1]);
    let mut bound: Vec<Bound> = options.map(|options| Bound::new(options).unwrap()).into();
    introduce(&mut bound, &world.ranks);
    let joining: Vec<_> =
        bound.into_iter().map(|end| thread::spawn(move || end.join(long()).unwrap_err())).collect();
    let errors: Vec<ZmqError> = joining.into_iter().map(|end| end.join().unwrap()).collect();
    errors.try_into().unwrap()
}

#[test]
fn ends_that_differ_both_say_in_what() {
    let spec = |text: &str| Spec::parse(text).unwrap();
    type Change<'a> = (&'a str, &'a dyn Fn(&mut ZmqOptions));
    let changes: [Change<'_>; 4] = [
        ("codec", &|options| options.terms = Terms::new(&LayoutRef::flat(650), &spec("none"))),
        ("layout", &|options| options.terms = Terms::new(&LayoutRef::flat(651), &spec("topk:density=0.01"))),
        ("batch", &|options| options.terms = options.terms.clone().with("batch", 7)),
        ("zmq link", &|options| options.limits.chunk_bytes /= 2),
    ];
    for (name, change) in changes {
        let [first, second] = both(change);
        let (
            ZmqError::Differs { peer: a, differences: here },
            ZmqError::Differs { peer: b, differences: there },
        ) = (&first, &second)
        else {
            panic!("{first} / {second}");
        };
        let ([here], [there]) = (&here[..], &there[..]) else { panic!("{first} / {second}") };
        assert_eq!((*a, *b), (Rank(1), Rank(0)));
        assert_eq!((here.name.as_str(), there.name.as_str()), (name, name));
        assert_eq!((&here.own, &here.theirs), (&there.theirs, &there.own));
        assert_ne!(here.own, here.theirs);
    }
}

/// A listening end whose peer, rank 1, was told another codec.
fn refusing(world: &World, heard: &Heard) -> (Bound, String) {
    let bound = Bound::new(ZmqOptions { log: heard.log(), ..world.options(0) }).unwrap();
    let endpoint = bound.endpoint().unwrap().to_owned();
    (bound, endpoint)
}

#[test]
fn a_refusal_that_is_lost_with_its_connection_is_told_again() {
    let (world, heard) = (World::new(2), Heard::default());
    let (refusing, endpoint) = refusing(&world, &heard);
    let proxy = Proxy::to(&endpoint);
    proxy.delay_answers(Duration::from_millis(200));
    let mut options = world.options(1);
    options.terms = options.terms.with("batch", 7);
    let mut refused = Bound::new(options).unwrap();
    refused.locate(Rank(0), &proxy.endpoint());
    let refusing = thread::spawn(move || refusing.join(long()).unwrap_err());
    let refused = thread::spawn(move || refused.join(long()).unwrap_err());
    // The refusal is on its way, and lost.
    heard.wait_for("rank 1 was not let in: batch");
    proxy.cut();
    let said = [refusing, refused].map(|end| end.join().unwrap().to_string());
    assert_eq!(
        said,
        [
            "rank 1 does not fit: batch is not set here and 7 there",
            "rank 0 does not fit: batch is 7 here and not set there"
        ]
    );
    assert!(proxy.connections() >= 2);
}

#[test]
fn an_end_that_refuses_answers_until_the_other_has_heard_why() {
    let (world, heard) = (World::new(2), Heard::default());
    let (refusing, endpoint) = refusing(&world, &heard);
    let refusing = thread::spawn(move || refusing.join(long()).unwrap_err());
    let connect = |session| Raw::new(&endpoint, world.key(0), Some(&world.pairs[1]), session);
    for session in [91, 92] {
        let deaf = connect(session);
        deaf.send(&deaf.hello(7, 1, 0));
        deaf.wait(REFUSAL);
        thread::sleep(Duration::from_millis(400));
    }
    assert!(!refusing.is_finished());
    let raw = connect(93);
    raw.send(&raw.hello(7, 1, 0));
    raw.wait(REFUSAL);
    let heard_why = Instant::now();
    raw.send(&raw.bye(0));
    assert!(refusing.join().unwrap().to_string().contains("protocol version"));
    assert!(heard_why.elapsed() < Duration::from_secs(5), "it did not listen to the answer");
}

#[test]
fn without_keys_nothing_listens_or_connects_beyond_loopback() {
    let world = World { is_secure: false, ..World::new(2) };
    for (at, rank) in [(0, Rank(0)), (1, Rank(0))] {
        let mut options = world.options(at);
        let entry = Entry { key: None, endpoint: Some("tcp://0.0.0.0:*".to_owned()) };
        options.roster = options.roster.with(rank, entry);
        let refused = Bound::new(options).and_then(|bound| bound.join(Deadline::now())).unwrap_err();
        assert_eq!(refused, ZmqError::NotLoopback { endpoint: "tcp://0.0.0.0:*".to_owned() });
    }
    let mut options = world.options(0);
    options.security = Security::Plain { beyond_loopback: true };
    options.roster =
        options.roster.with(Rank(0), Entry { key: None, endpoint: Some("tcp://0.0.0.0:*".into()) });
    assert!(Bound::new(options).unwrap().endpoint().unwrap().starts_with("tcp://0.0.0.0:"));
}

/// An end that listens for whoever comes, for as long as it is kept, and another one that knocks, changed.
fn knock(change: impl FnOnce(&mut ZmqOptions)) -> (Bound, ZmqTransport, String, Heard) {
    let (world, heard) = (World::new(2), Heard::default());
    let options = ZmqOptions { log: heard.log(), returns: Returns::AtAnyTime, ..world.options(0) };
    let listening = Bound::new(options).unwrap();
    let endpoint = listening.endpoint().unwrap().to_owned();
    let mut knocking = world.options(1);
    change(&mut knocking);
    let mut knocking = Bound::new(knocking).unwrap();
    knocking.locate(Rank(0), &endpoint);
    (knocking, listening.join(long()).unwrap(), endpoint, heard)
}

#[test]
fn a_key_that_is_not_on_the_list_is_denied_and_both_ends_say_so() {
    let stranger = KeyPair::generate().unwrap();
    let (knocking, _listening, endpoint, heard) = knock(|options| {
        let entry = Entry { key: Some(stranger.public()), endpoint: None };
        options.roster = options.roster.clone().with(Rank(1), entry);
        options.security = Security::Curve(stranger.clone());
    });
    assert_eq!(knocking.join(long()).unwrap_err(), ZmqError::Denied { peer: Rank(0), endpoint });
    heard.wait_for(&format!("127.0.0.1 was not let in: key {} is not on the list", stranger.public()));
}

#[test]
fn a_server_with_another_key_than_expected_is_not_talked_to() {
    let (knocking, listening, endpoint, heard) = knock(|options| {
        let entry = Entry { key: Some(KeyPair::generate().unwrap().public()), endpoint: None };
        options.roster = options.roster.clone().with(Rank(0), entry);
    });
    let knocking = thread::spawn(move || knocking.join(Deadline::after(Duration::from_secs(5))).unwrap_err());
    heard.wait_for("the handshake failed");
    let why = knocking.join().unwrap().to_string();
    let place = format!("not there in time: rank 0 ({endpoint}: the handshake failed");
    assert!(why.starts_with(&place), "{why}");
    assert!(listening.present().is_empty());
}

#[test]
fn who_does_not_come_is_named_at_the_deadline() {
    let world = World::new(3);
    let bound = Bound::new(world.options(0)).unwrap();
    let missing = bound.join(Deadline::after(Duration::from_millis(50))).unwrap_err();
    let [first, second] = [1, 2].map(|rank| format!("rank {rank} (it has not connected to this end)"));
    assert_eq!(missing.to_string(), format!("not there in time: {first}, {second}"));
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_listens() {
    let world = World::new(2);
    let refused = |change: &dyn Fn(&mut ZmqOptions)| {
        let mut options = world.options(1);
        change(&mut options);
        match Bound::new(options).and_then(|bound| bound.join(Deadline::now())).unwrap_err() {
            ZmqError::Options { what } => what,
            other => panic!("{other:?}"),
        }
    };
    let keyless = || Entry { key: None, endpoint: None };
    assert_eq!(refused(&|options| options.rank = Rank(9)), "rank 9 is not in the list of peers");
    let star = Topology::Star { server: Rank(7) };
    assert_eq!(
        refused(&|options| options.topology = star),
        "the server, rank 7, is not in the list of peers"
    );
    let set = |rank, entry: Entry| {
        move |options: &mut ZmqOptions| {
            options.roster = options.roster.clone().with(rank, entry.clone());
        }
    };
    assert_eq!(refused(&set(Rank(0), keyless())), "the list of peers has no key for rank 0");
    assert!(refused(&set(Rank(1), keyless())).contains("gives rank 1 another key"));
    let nowhere = Entry { key: Some(world.key(0)), endpoint: None };
    assert_eq!(refused(&set(Rank(0), nowhere)), "the list of peers does not say where rank 0 listens");
    let odd = Entry { key: Some(world.key(0)), endpoint: Some("ipc://x".to_owned()) };
    assert_eq!(refused(&set(Rank(0), odd)), "'ipc://x' is not tcp://HOST:PORT");
    assert!(refused(&|options| options.limits.chunk_bytes = 0).contains("1 byte to 16 MiB"));
    assert!(refused(&|options| options.limits.window = 0).contains("1 to 4096 chunks"));
    assert!(refused(&|options| options.limits.outbox.messages = 0).contains("at least one message"));
}

#[test]
fn in_a_star_workers_reach_the_server_and_nobody_else() {
    let world = World::star(3);
    let mut ends = world.join();
    let (tag, mut got) = (Tag::new(0, 1), Vec::new());
    for worker in [1, 2] {
        ends[worker].send(Rank(0), tag, b"up", long()).unwrap();
        ends[0].recv(Rank(worker as u32), tag, &mut got, long()).unwrap();
        ends[0].send(Rank(worker as u32), tag, b"down", long()).unwrap();
        ends[worker].recv(Rank(0), tag, &mut got, long()).unwrap();
        assert_eq!(got, b"down");
    }
    let none = Err(TransportError::Unsupported { operation: "link between two workers of a star" });
    assert_eq!(ends[1].send(Rank(2), tag, b"", long()), none);
    assert_eq!(ends[2].recv(Rank(1), tag, &mut got, Deadline::after(LONG)), none);
}

/// What an end that knocks there says within a few seconds.
fn said_at(endpoint: &str, timing: Timing, part: &str) -> String {
    let (world, heard) = (World::new(2), Heard::default());
    let mut knocking = Bound::new(ZmqOptions { log: heard.log(), timing, ..world.options(1) }).unwrap();
    knocking.locate(Rank(0), endpoint);
    let mut knocking = knocking.start().unwrap();
    let said = heard.wait(|event| {
        matches!(event, Event::Waiting { rank: Rank(0), .. }) && event.to_string().contains(part)
    });
    // Who stops waiting is told the same.
    let missing = knocking.wait_for_peers(Deadline::now()).unwrap_err().to_string();
    assert!(missing.starts_with("not there in time: rank 0 (") && missing.contains(part), "{missing}");
    said.to_string()
}

#[test]
fn who_waits_says_for_whom_where_and_what_is_known_of_the_reason() {
    let timing = Timing { handshake: Duration::from_secs(5), ..Timing::default() };
    let listener = |answers: fn(TcpStream)| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        thread::spawn(move || listener.incoming().flatten().for_each(answers));
        endpoint
    };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = listener(|stream| drop(thread::spawn(move || (thread::sleep(LONG), stream))));
    let hangs_up = listener(drop);
    let other = listener(|mut stream| {
        let _ =
            stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n and so on, and so on, and so on");
        thread::spawn(move || (thread::sleep(LONG), stream));
    });
    let cases = [
        (format!("tcp://{closed}"), "nothing listens there, or it cannot be reached"),
        ("tcp://nosuch.invalid:5555".to_owned(), "its name has no address"),
        (silent.clone(), "connected, but no answer to the handshake for"),
        (silent, "the handshake failed: connected, but no answer for 5 s"),
        (hangs_up, "the handshake failed: the other end hung up; it may have another key"),
        (other, "the handshake failed"),
    ];
    let asking: Vec<_> = cases
        .into_iter()
        .map(|(endpoint, part)| {
            thread::spawn(move || {
                let said = said_at(&endpoint, timing, part);
                assert!(said.starts_with("waiting for rank 0 for ") && said.contains(&endpoint), "{said}");
                let may_be_a_key = part.contains("hung up");
                assert_eq!(said.contains("key"), may_be_a_key, "{said}");
            })
        })
        .collect();
    asking.into_iter().for_each(|asking| asking.join().unwrap());
}

#[test]
fn a_second_worker_of_a_rank_and_the_server_both_say_so_and_it_comes_in_when_the_first_leaves() {
    let world = World::star(2);
    let [told, first, second] = [(); 3].map(|()| Heard::default());
    let options = ZmqOptions { log: told.log(), returns: Returns::AtAnyTime, ..world.options(0) };
    let server = Bound::new(options).unwrap();
    let endpoint = server.endpoint().unwrap().to_owned();
    let server = server.join(long()).unwrap();
    let worker = |heard: &Heard| {
        let options = ZmqOptions { log: heard.log(), ..world.options(1) };
        let mut worker = Bound::new(options).unwrap();
        worker.locate(Rank(0), &endpoint);
        worker.start().unwrap()
    };
    let mut one = worker(&first);
    one.wait_for_peers(long()).unwrap();
    let mut other = worker(&second);
    told.wait_for("rank 1 was not let in: that rank is connected already: stop one of the two");
    second.wait_for("it has another worker of this rank, which must leave first");
    let missing = other.wait_for_peers(Deadline::now()).unwrap_err().to_string();
    assert!(missing.contains("another worker of this rank"), "{missing}");
    // It is told again, but not each time that it is asked.
    thread::sleep(Duration::from_secs(4));
    let lines = told.events().iter().filter(|event| event.to_string().contains("already")).count();
    assert!((1..=3).contains(&lines), "{:?}", told.events());
    one.close(long()).unwrap();
    other.wait_for_peers(long()).unwrap();
    assert_eq!(server.present().as_slice(), [Rank(1)]);
}

#[test]
fn who_waits_for_a_message_says_for_whose_and_how_much_of_it_is_here() {
    let (world, heard) = (World::star(2), Heard::default());
    let server = Bound::new(ZmqOptions { log: heard.log(), ..world.options(0) }).unwrap();
    let endpoint = server.endpoint().unwrap().to_owned();
    let joining = thread::spawn(move || server.join(long()).unwrap());
    let raw = Raw::new(&endpoint, world.key(0), Some(&world.pairs[1]), 99);
    raw.enter(1);
    let mut server = joining.join().unwrap();
    let waiting = thread::spawn(move || {
        let ended = server.recv(Rank(1), Tag::new(0, 7), &mut Vec::new(), long());
        (server, ended)
    });
    for _ in 0..70 {
        raw.send(&raw.ack(0));
        thread::sleep(Duration::from_millis(100));
    }
    heard.wait_for(
        "waiting for rank 1 for 5 s: step 7: it is connected, and nothing of its next message is here",
    );
    raw.send(&raw.data(0, 7, 1000, 0, &[1; 600]));
    for _ in 0..110 {
        raw.send(&raw.ack(0));
        thread::sleep(Duration::from_millis(100));
    }
    heard.wait_for("waiting for rank 1 for 15 s: step 7: 600 of 1000 bytes of its message are here");
    raw.send(&raw.data(1, 7, 1000, 600, &[1; 400]));
    assert_eq!(waiting.join().unwrap().1, Ok(()));
}
