//! Who is shut out of a run, and who may come in when the list has changed.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::support::{Keys, Process, join, serve, trainer};

/// How a frame begins, at version 1.
const FRAME: &[u8] = b"GW\x01";

/// Forwards connections to `tcp://HOST:PORT` and damages every frame on its way there; returns where it
/// listens.
fn damage_frames(endpoint: &str) -> String {
    let target = endpoint.strip_prefix("tcp://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for inside in listener.incoming().flatten() {
            let Ok(outside) = TcpStream::connect(&target) else { continue };
            let [back, forth] = [&outside, &inside].map(|stream| stream.try_clone().unwrap());
            thread::spawn(move || forward(inside, outside, true));
            thread::spawn(move || forward(back, forth, false));
        }
    });
    format!("tcp://127.0.0.1:{port}")
}

fn forward(mut from: TcpStream, mut to: TcpStream, damages: bool) {
    let mut buffer = [0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let frame = buffer[..read].windows(FRAME.len()).position(|bytes| bytes == FRAME);
        if let Some(at) = frame.filter(|_| damages) {
            buffer[at] ^= 1;
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
}

/// The page of a process.
#[cfg(feature = "metrics")]
fn page_of(process: &mut Process) -> String {
    let line = process.says("metrics at http://");
    page(line.strip_prefix("metrics at http://").unwrap().strip_suffix("/metrics").unwrap())
}

/// What was refused and waited for is counted.
#[cfg(feature = "metrics")]
fn counted(server: &mut Process) {
    let page = page_of(server);
    assert!(page.contains("\ngradwire_frames_refused_total{rank=\"2\"} 3\n"), "{page}");
    for known in [
        "gradwire_contributions_total{rank=\"1\"} ",
        "gradwire_quorum_wait_seconds_total ",
        "gradwire_workers 3\n",
    ] {
        assert!(page.contains(known), "{known}\n{page}");
    }
}

/// What Prometheus gets.
#[cfg(feature = "metrics")]
fn page(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_worker_that_sends_garbage_is_shut_out_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = ["--workers", "3", "--batch", "96", "--steps", "1000000", "--hidden", "8", "--insecure"];
    let mut serve = trainer();
    serve.args(["serve", "--listen", "tcp://127.0.0.1:*", "--report-every", "1"]).args(run);
    #[cfg(feature = "metrics")]
    serve.args(["--metrics-listen", "127.0.0.1:0"]);
    let mut server = Process::start("server", serve.arg("--out").arg(folder.path().join("run")));
    let line = server.says("listening at ");
    let endpoint = line.strip_prefix("listening at ").unwrap().split(',').next().unwrap().to_owned();
    let join = |rank: &str, endpoint: &str| {
        let mut join = trainer();
        Process::start(rank, join.args(["join", "--server", endpoint, "--rank", rank]).args(run))
    };
    let honest = join("1", &endpoint);
    let mut hostile = join("2", &damage_frames(&endpoint));
    server.says("frame of rank 2 refused: not a gradwire frame");
    server.says("rank 2 is gone: 3 frames in a row were refused, the last one so: not a gradwire frame");
    server.says("the quorum is now 2: 2 ranks can take part");
    hostile.says("that rank was shut out of this run");
    assert_eq!(hostile.ends(), Some(2));
    server.says(" 2 contributors");
    #[cfg(feature = "metrics")]
    counted(&mut server);
    server.signal("-INT");
    assert_eq!(server.ends(), Some(130));
    drop(honest);
}

#[test]
fn the_list_of_peers_is_read_again_when_it_has_changed() {
    let keys = Keys::new(3);
    let run = ["--workers", "3", "--batch", "96", "--steps", "1000000", "--hidden", "8", "--eval-every", "0"];
    let (mut server, endpoint) = serve(&keys, None, &run);
    let worker = join(&keys, &endpoint, 1, &run);
    let listed = fs::read_to_string(keys.peers()).unwrap();
    // Nothing of it is taken over, not even the half that makes sense.
    fs::write(keys.peers(), listed.lines().next().unwrap().to_owned() + "\n2 nonsense\n").unwrap();
    server.says("line 2: 'nonsense'");
    server.says("the list stays as it was");
    // Another machine for rank 2.
    let (old, new) = (keys.secret(2), keys.secret(9));
    let made = trainer().arg("keygen").arg(&new).output().unwrap();
    assert!(made.status.success());
    let public = fs::read_to_string(new.with_extension("pub")).unwrap();
    let public = public.split_whitespace().last().unwrap();
    let first = listed.lines().next().unwrap();
    fs::write(keys.peers(), format!("{first}\n2 {public}\n")).unwrap();
    server.says("rank 2 has another key on the list");
    let mut refused = join(&keys, &endpoint, 2, &run);
    refused.says("does not let this key in");
    assert_eq!(refused.ends(), Some(2));
    fs::rename(&new, &old).unwrap();
    let mut taken_off = join(&keys, &endpoint, 2, &run);
    server.says("3 contributors");
    fs::write(keys.peers(), format!("{first}\n")).unwrap();
    server.says("rank 2 was taken off the list");
    server.says("rank 2 is gone: it was taken off the list");
    server.says("the quorum is now 2: 2 ranks can take part");
    server.says(" 2 contributors");
    assert_eq!(taken_off.ends(), Some(2), "{}", taken_off.all());
    // On the list again, it is waited for again, by a run that waits for all; whoever took part begins with
    // it.
    fs::write(keys.peers(), format!("{first}\n2 {public}\n")).unwrap();
    server.says("rank 2 is on the list again");
    server.says("rank 1 is out until it asks again: too few are left for a step");
    let mut back = join(&keys, &endpoint, 2, &run);
    back.says("let in for step");
    server.says("the quorum is now 3: 3 ranks can take part");
    server.signal("-INT");
    assert_eq!(server.ends(), Some(130));
    drop(worker);
}

/// A worker knows its own steps and who is in the means that it gets, and nothing else of other ranks.
#[cfg(feature = "metrics")]
#[test]
fn a_worker_shows_what_it_sees_itself() {
    let keys = Keys::new(3);
    let run = ["--workers", "3", "--batch", "48", "--steps", "1000000", "--hidden", "8", "--eval-every", "0"];
    let (mut server, endpoint) = serve(&keys, None, &run);
    let mut worker = join(&keys, &endpoint, 2, &[&run[..], &["--metrics-listen", "127.0.0.1:0"]].concat());
    // Alone with the server, it does no step, and its page is there.
    server.says("rank 2 is here");
    let waiting = page_of(&mut worker);
    assert_eq!(["gradwire_steps_total", "gradwire_step"].map(|name| value(&waiting, name)), [0.0; 2]);
    let mut other = join(&keys, &endpoint, 1, &run);
    server.says("step 20: ");
    other.kill();
    // Then nothing changes any more.
    worker.says("out of the run at step ");
    let page = page_of(&mut worker);
    let (steps, void) =
        (value(&page, "gradwire_steps_total"), worker.all().matches("was void").count() as f64);
    assert!(steps >= 20.0 && void <= 1.0, "{page}");
    for (name, expected) in [
        ("gradwire_step", steps),
        ("gradwire_workers", 3.0),
        ("gradwire_contributors", if void > 0.0 { 0.0 } else { 3.0 }),
        ("gradwire_refused_steps_total", void),
        ("gradwire_contributions_total{rank=\"0\"}", steps - void),
        ("gradwire_contributions_total{rank=\"1\"}", steps - void),
        ("gradwire_contributions_total{rank=\"2\"}", steps - void),
        ("gradwire_quorum_wait_seconds_total", 0.0),
    ] {
        assert_eq!(value(&page, name), expected, "{name}\n{page}\n{}", worker.all());
    }
    let up = "gradwire_bytes_total{direction=\"up\"}";
    for name in ["gradwire_loss", "gradwire_learning_rate", up] {
        assert!(value(&page, name) > 0.0, "{name}\n{page}");
    }
    for name in ["compute_seconds_total", "exchange_seconds_total", "residual_norm"] {
        assert!(value(&page, &format!("gradwire_{name}{{rank=\"2\"}}")) > 0.0, "{name}\n{page}");
        assert!(!page.contains(&format!("gradwire_{name}{{rank=\"1\"}}")), "{name}\n{page}");
    }
}

#[cfg(feature = "metrics")]
fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
}
