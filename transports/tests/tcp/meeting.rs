//! How ranks find each other, and what they say when they cannot.

use std::thread;
use std::time::{Duration, Instant};

use gradwire_transports::tcp::{Bound, Key, Meeting, Met, Security, TcpError, TcpOptions};
use gradwire_transports::{Deadline, Rank, Tag, Transport};

use crate::support::{LONG, World, join, key, list, long, terms};

/// Each rank sends each other one a message.
fn talk(ends: Vec<impl Transport>) {
    thread::scope(|scope| {
        for mut end in ends {
            scope.spawn(move || {
                let tag = Tag::new(0, 1);
                let others: Vec<Rank> =
                    end.membership().ranks.iter().filter(|&rank| rank != end.rank()).collect();
                others.iter().for_each(|&to| end.send(to, tag, &[end.rank().0 as u8], long()).unwrap());
                for from in others {
                    let mut payload = Vec::new();
                    end.recv(from, tag, &mut payload, long()).unwrap();
                    assert_eq!(payload, [from.0 as u8]);
                }
                end.close(long()).unwrap();
            });
        }
    });
}

#[test]
fn ranks_that_know_the_address_of_rank_0_alone_find_each_other() {
    for world in [World::new(4), World { host: "[::1]", ..World::sealed(4) }] {
        let bound = world.bind();
        let meeting = Meeting::Rendezvous { root: bound[0].address().to_string(), world: 4 };
        talk(join(bound, &meeting, long()).into_iter().map(Result::unwrap).collect());
    }
}

#[test]
fn ranks_may_come_in_any_order_and_by_name() {
    let bound = World::new(3).bind();
    let hosts = bound.iter().map(|end| format!("localhost:{}", end.address().port())).collect();
    let meeting = &Meeting::Hosts(hosts);
    let ends = thread::scope(|scope| {
        let late = |(number, end): (usize, Bound)| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(100 * (2 - number as u64)));
                end.join(meeting, long()).unwrap()
            })
        };
        let joining: Vec<_> = bound.into_iter().enumerate().map(late).collect();
        joining.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    talk(ends);
}

/// Each hears it as it comes, whoever else is there; who is missing is known.
#[test]
fn ranks_that_come_to_a_run_that_is_over_are_told_so() {
    for world in [World::new(4), World::sealed(4)] {
        let mut bound = world.bind();
        let root = bound[0].address().to_string();
        let meetings = [list(&bound), Meeting::Rendezvous { root, world: 4 }];
        let first = bound.remove(0);
        let refused = Bound::new(world.options(1), &format!("{}:0", world.host)).unwrap();
        let refused = refused.dismiss(&meetings[0]).map(drop);
        assert!(matches!(refused, Err(TcpError::Options { .. })), "{refused:?}");
        thread::scope(|scope| {
            let joining = first.dismiss(&meetings[0]).unwrap();
            let last = bound.pop().unwrap();
            for (end, meeting) in bound.into_iter().zip(&meetings) {
                scope.spawn(move || {
                    let told = end.join(meeting, long()).map(drop);
                    assert!(matches!(told, Err(TcpError::Over { peer: Rank(0), .. })), "{told:?}");
                });
            }
            let by = Instant::now() + LONG;
            let mut joining = Some(joining);
            let missing = loop {
                match joining.take().unwrap().wait(Deadline::after(Duration::from_millis(20))).unwrap() {
                    Met::Some(still) if still.missing().len() == 1 => break still,
                    Met::Some(still) if Instant::now() < by => joining = Some(still),
                    met => panic!("{met:?}"),
                }
            };
            assert_eq!(missing.missing()[0].0, Rank(3));
            let told = scope.spawn(|| last.join(&meetings[1], long()).map(drop));
            assert!(matches!(missing.wait(long()), Ok(Met::All(_))));
            assert!(matches!(told.join().unwrap(), Err(TcpError::Over { .. })));
        });
    }
}

#[test]
fn a_rank_that_begins_again_while_others_are_missing_is_taken_in() {
    let world = World::new(3);
    let mut bound = world.bind();
    let meeting = list(&bound);
    let last = bound.pop().unwrap();
    let second = bound.pop().unwrap();
    let address = second.address().to_string();
    let first = bound.pop().unwrap();
    let ends = thread::scope(|scope| {
        let meeting = &meeting;
        let first = scope.spawn(move || first.join(meeting, long()).unwrap());
        let early = second.join(meeting, Deadline::after(Duration::from_millis(150)));
        let missing = early.map(drop).unwrap_err();
        assert!(matches!(&missing, TcpError::NotAllThere { missing, .. } if missing[0].0 == Rank(2)));
        let again = Bound::new(world.options(1), &address).unwrap();
        let second = scope.spawn(move || again.join(meeting, long()).unwrap());
        let last = scope.spawn(move || last.join(meeting, long()).unwrap());
        [first, second, last].into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    talk(ends);
}

/// The errors of two ranks, of which the higher one was told something else.
fn errors(first: TcpOptions, second: TcpOptions, by: Duration) -> [TcpError; 2] {
    let bound: Vec<_> =
        [first, second].into_iter().map(|options| Bound::new(options, "127.0.0.1:0").unwrap()).collect();
    let meeting = list(&bound);
    let ends = join(bound, &meeting, Deadline::after(by));
    let errors: Vec<_> = ends.into_iter().map(|end| end.map(drop).unwrap_err()).collect();
    errors.try_into().unwrap()
}

#[test]
fn both_ends_name_every_term_on_which_they_differ_and_at_once() {
    for world in [World::new(2), World::sealed(2)] {
        let with = |rank, lr: f32, batch: u32| TcpOptions {
            terms: terms().with("lr", lr).with("batch", batch),
            ..world.options(rank)
        };
        let start = Instant::now();
        let [first, second] = errors(with(0, 0.5, 8), with(1, 0.25, 9), Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(20));
        assert!(first.to_string().ends_with("batch is 8 here and 9 there; lr is 0.5 here and 0.25 there"));
        assert!(second.to_string().ends_with("batch is 9 here and 8 there; lr is 0.25 here and 0.5 there"));
        for (peer, error) in [(1, first), (0, second)] {
            assert!(matches!(error, TcpError::Differs { peer: Rank(rank), .. } if rank == peer));
        }
    }
}

#[test]
fn keys_and_encryption_that_differ_are_named() {
    let briefly = Duration::from_millis(400);
    let with =
        |rank, security: &Security| TcpOptions { security: security.clone(), ..World::new(2).options(rank) };
    let other = Security::Key(Key::new([43; 32]));
    let [first, second] = errors(with(0, &key()), with(1, &other), briefly);
    assert!(matches!(second, TcpError::OtherKey { peer: Rank(0), .. }), "{second}");
    assert!(first.to_string().contains("it has another key"), "{first}");
    for (low, high, they_encrypt) in [(key(), Security::Loopback, true), (Security::Loopback, key(), false)] {
        let [first, second] = errors(with(0, &low), with(1, &high), briefly);
        let expected = |error: &TcpError| matches!(error, TcpError::Encryption { peer: Rank(0), they_encrypt: it, .. } if *it == they_encrypt);
        assert!(expected(&second), "{second}");
        assert!(first.to_string().contains("encrypt"), "{first}");
    }
}

#[test]
fn who_is_missing_is_named_with_its_address_and_the_reason() {
    let mut bound = World::new(2).bind();
    let meeting = list(&bound);
    let second = bound.pop().unwrap();
    let address = bound.pop().unwrap().address();
    let error = second.join(&meeting, Deadline::after(Duration::from_millis(300))).map(drop).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("rank 0") && text.contains(&address.to_string()), "{text}");
    assert!(text.to_lowercase().contains("refused"), "{text}");
    let unknown = Meeting::Hosts(vec!["no.such.host.invalid:1".to_owned(), "127.0.0.1:1".to_owned()]);
    let second = Bound::new(World::new(2).options(1), "127.0.0.1:0").unwrap();
    let error = second.join(&unknown, Deadline::after(Duration::from_millis(500))).map(drop).unwrap_err();
    assert!(error.to_string().contains("rank 0 ("), "{error}");
}

#[test]
fn without_a_key_no_address_off_the_loopback_interface_is_used() {
    let options = World::new(2).options(1);
    let refused = Bound::new(options.clone(), "0.0.0.0:0").map(drop).unwrap_err();
    assert_eq!(refused, TcpError::NotLoopback { address: "0.0.0.0:0".to_owned() });
    let meeting = Meeting::Hosts(vec!["192.0.2.1:9".to_owned(), "127.0.0.1:1".to_owned()]);
    let end = Bound::new(options, "127.0.0.1:0").unwrap().join(&meeting, long());
    assert_eq!(end.map(drop), Err(TcpError::NotLoopback { address: "192.0.2.1:9".to_owned() }));
    let insecure = TcpOptions { security: Security::Insecure, ..World::new(1).options(0) };
    Bound::new(insecure, "0.0.0.0:0").unwrap();
    let sealed = World::sealed(1).options(0);
    Bound::new(sealed, "0.0.0.0:0").unwrap();
}

#[test]
fn options_that_cannot_hold_are_refused() {
    let bound = |options| Bound::new(options, "127.0.0.1:0").unwrap();
    let one = Meeting::Hosts(vec!["127.0.0.1:1".to_owned()]);
    let refused = bound(World::new(2).options(1)).join(&one, long()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("rank 1 does not exist among 1 ranks"), "{refused}");
    let taken = bound(World::new(1).options(0));
    let address = taken.address().to_string();
    let twice = Bound::new(World::new(1).options(0), &address).map(drop).unwrap_err();
    assert!(matches!(&twice, TcpError::Listen { address: named, .. } if *named == address), "{twice}");
}

#[test]
fn a_key_goes_into_a_file_of_its_owner_and_comes_back() {
    let path = std::env::temp_dir().join(format!("gradwire-tcp-key-{}", std::process::id()));
    let key = Key::generate().unwrap();
    key.write(&path).unwrap();
    assert!(key == Key::read(&path).unwrap());
    let twice = key.write(&path).unwrap_err();
    assert!(matches!(twice, TcpError::KeyFile { .. }));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let shown = Key::read(&path).unwrap_err().to_string();
        assert!(shown.contains("chmod 600"), "{shown}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::fs::write(&path, "not a key, but a password").unwrap();
    let refused = Key::read(&path).unwrap_err().to_string();
    assert!(refused.contains("64 hexadecimal") && !refused.contains("password"), "{refused}");
    std::fs::remove_file(&path).unwrap();
}
