//! The other end does not come, or not back, within `--wait`: who is missing, where, and how to go on.
//! go on.

use std::net::TcpListener;

use crate::support::{Keys, Process, join, pasted, serve};

const RUN: [&str; 6] = ["--workers", "3", "--batch", "48", "--hidden", "8"];

fn endless() -> Vec<&'static str> {
    [&RUN[..], &["--steps", "1000000", "--eval-every", "0"]].concat()
}

/// The one line with which it ends, without a word of tags.
fn last_word(process: &mut Process, part: &str) -> String {
    let line = process.says(part);
    assert_eq!(process.ends(), Some(1), "{}", process.all());
    let all = process.all();
    assert!(!all.contains("4294967295") && !all.contains("chunk") && !all.contains("0x"), "{all}");
    line
}

/// What a line says to paste.
fn to_paste(line: &str) -> &str {
    line.split("go on with: ").nth(1).unwrap_or_else(|| panic!("{line}"))
}

/// Any of its workers may be missing, from the start or later.
#[test]
fn a_server_without_enough_workers_says_who_is_missing_where_and_how_to_go_on() {
    for present in [&[][..], &[1], &[2]] {
        let keys = Keys::new(3);
        let (mut server, endpoint) = serve(&keys, None, &[&endless()[..], &["--wait", "3"]].concat());
        let workers: Vec<Process> =
            present.iter().map(|&rank| join(&keys, &endpoint, rank, &endless())).collect();
        let line = last_word(&mut server, "gave up waiting for 3 ranks before step 0: ");
        let there = 1 + present.len();
        assert!(line.contains(if there == 1 { ": 1 is there; " } else { ": 2 are there; " }), "{line}");
        for rank in [1, 2] {
            let is_named = line.contains(&format!("rank {rank} is not connected"));
            assert_eq!(is_named, !present.contains(&rank), "{line}");
        }
        for part in [" for 3 s (--wait)", &format!("listens at {endpoint}"), "--quorum", "0 steps are kept"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        drop(workers);
    }
}

#[test]
fn a_server_whose_workers_are_gone_keeps_its_steps_when_it_gives_up() {
    let keys = Keys::new(3);
    let (mut server, endpoint) = serve(&keys, None, &[&endless()[..], &["--wait", "2"]].concat());
    let mut workers = [1, 2].map(|rank| join(&keys, &endpoint, rank, &endless()));
    server.says("step 5: ");
    workers[1].kill();
    let line = last_word(&mut server, "gave up waiting for 3 ranks before step ");
    assert!(line.contains("rank 2 is not connected"), "{line}");
    let steps: u64 = line.split(" before step ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
    assert!(steps >= 5 && line.contains(&format!("; {steps} steps are kept")), "{line}");
    let mut server = pasted("server again", to_paste(&line));
    server.says(&format!("continuing at step {steps} of "));
}

#[test]
fn a_worker_without_a_server_says_where_it_looked_and_what_it_found() {
    let closed = format!("tcp://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = format!("tcp://{}", silent.local_addr().unwrap());
    let cases = [
        (closed.as_str(), "nothing listens there, or it cannot be reached"),
        ("tcp://nosuch.invalid:5555", "its name has no address"),
        (silent_at.as_str(), "connected, but no answer to the handshake"),
    ];
    let keys = Keys::new(3);
    let started = cases.map(|(endpoint, known)| {
        (endpoint, known, join(&keys, endpoint, 1, &[&endless()[..], &["--wait", "2.5"]].concat()))
    });
    for (endpoint, known, mut worker) in started {
        let line = last_word(&mut worker, "no server within 2.5 s (--wait): ");
        for part in [endpoint, known, "trainer serve", "--server"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[test]
fn a_worker_whose_server_stays_away_keeps_its_state_and_says_how_to_go_on() {
    let keys = Keys::new(3);
    let (mut server, endpoint) = serve(&keys, None, &endless());
    let state = keys.folder.path().join("state").display().to_string();
    let own = [&endless()[..], &["--wait", "2", "--out", &state]].concat();
    let mut worker = join(&keys, &endpoint, 1, &own);
    let mut other = join(&keys, &endpoint, 2, &[&endless()[..], &["--wait", "2"]].concat());
    server.says("step 5: ");
    server.kill();
    let line = last_word(&mut worker, "no server within 2 s (--wait): ");
    assert!(line.contains(&endpoint) && line.contains(" steps are kept"), "{line}");
    // Without a folder there is nothing to go on with.
    assert!(!last_word(&mut other, "no server within 2 s").contains("go on with"));
    let mut again = pasted("worker again", to_paste(&line));
    last_word(&mut again, "no server within 2 s (--wait): ");
}
