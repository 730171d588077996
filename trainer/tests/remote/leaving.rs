//! Signals to a server and to workers, and the commands that go on afterwards.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Keys, Process, join, pasted, serve, trainer};

const RUN: [&str; 8] = ["--workers", "3", "--batch", "48", "--hidden", "8", "--eval-every", "0"];
/// Longer than any test: where it is waited for, a test fails.
const PATIENCE: [&str; 4] = ["--quorum", "2", "--patience", "100000"];

fn endless() -> Vec<&'static str> {
    [&RUN[..], &["--steps", "1000000"]].concat()
}

/// A server that goes on with one worker, and two of them.
fn scene(keys: &Keys) -> (Process, String, [Process; 2]) {
    let (mut server, endpoint) = serve(keys, None, &[&endless()[..], &PATIENCE].concat());
    let workers = [1, 2].map(|rank| join(keys, &endpoint, rank, &endless()));
    server.says(" 3 contributors");
    (server, endpoint, workers)
}

#[test]
fn a_worker_without_a_folder_leaves_in_order_and_the_server_counts_what_is_lost() {
    for signals in [&["-TERM"][..], &["-INT"], &["-HUP"], &["-TERM", "-TERM", "-HUP"]] {
        let keys = Keys::new(3);
        let (mut server, endpoint, [stays, mut leaves]) = scene(&keys);
        signals.iter().for_each(|signal| leaves.signal(signal));
        leaves.says("ends after this step; again: at once");
        let line = leaves.says("left the run after ");
        assert!(line.contains("is lost: with --out DIR"), "{line}");
        assert_eq!(leaves.ends(), Some(130), "{}", leaves.all());
        server.says("rank 2 is gone; its residual is lost: norm ");
        server.says(" 2 contributors");
        assert!(!server.all().contains("void"), "{}", server.all());
        // The rank is free.
        let mut back = join(&keys, &endpoint, 2, &endless());
        back.says("let in for step ");
        drop(stays);
    }
}

#[test]
fn a_worker_that_waits_for_its_server_ends_when_it_is_told_to() {
    let keys = Keys::new(3);
    let (mut server, _, [mut first, mut second]) = scene(&keys);
    server.kill();
    for worker in [&mut first, &mut second] {
        worker.says("the server is gone; waiting for it");
    }
    let told = Instant::now();
    first.signal("-TERM");
    second.signal("-INT");
    assert_eq!([first.ends(), second.ends()], [Some(130), Some(130)], "{}{}", first.all(), second.all());
    // By default a worker waits for a minute.
    assert!(told.elapsed() < Duration::from_secs(30), "{:?}", told.elapsed());
}

#[test]
fn a_worker_that_has_not_met_its_server_yet_ends_at_once() {
    let keys = Keys::new(2);
    let mut worker = join(&keys, "tcp://127.0.0.1:9", 1, &["--workers", "2", "--steps", "5"]);
    std::thread::sleep(Duration::from_millis(500));
    let told = Instant::now();
    worker.signal("-TERM");
    worker.ends();
    assert!(told.elapsed() < Duration::from_secs(10), "{:?}", told.elapsed());
}

/// Keys, list and folders whose names a shell would take apart, and a port of the system's choice.
#[test]
fn the_lines_that_say_how_to_go_on_can_be_pasted() {
    let keys = Keys::named(3, "it's a $secret; (no) ");
    let (mut server, endpoint) = serve(&keys, None, &[&endless()[..], &["--may-miss", "7"]].concat());
    let folder = |rank: usize| keys.secret(rank).with_extension("state").display().to_string();
    let mut workers: Vec<Process> = [1, 2]
        .iter()
        .map(|&rank| join(&keys, &endpoint, rank, &[&endless()[..], &["--out", &folder(rank)]].concat()))
        .collect();
    server.says("step 5: ");
    let mut lines = Vec::new();
    for process in workers.iter_mut().chain([&mut server]) {
        process.signal("-TERM");
        // A server that has lost its quorum waits, and ends all the same.
        assert_eq!(process.ends(), Some(130), "{}", process.all());
        let line = process.says("go on with: ");
        lines.push(line.split("go on with: ").nth(1).unwrap().to_owned());
    }
    let line = lines.pop().unwrap();
    assert!(line.contains(&endpoint) && line.contains("--may-miss 7") && line.contains("--peers"), "{line}");
    let mut server = pasted("server again", &line);
    server.says("continuing at step ");
    let mut workers: Vec<Process> = lines.iter().map(|line| pasted("worker again", line)).collect();
    // Both are members again, with what they kept back.
    for worker in &mut workers {
        worker.says("the memory is as it was before step ");
    }
    server.says(" 3 contributors");
}

#[test]
fn one_command_starts_and_resumes_a_server_and_its_workers_until_they_are_done() {
    let keys = Keys::new(3);
    let run = [&RUN[..], &["--steps", "300", "--checkpoint-every", "1"]].concat();
    let folder = |rank: usize| keys.folder.path().join(format!("state-{rank}")).display().to_string();
    let serve = |listen: &str| {
        let mut command = trainer();
        command.args(["serve", "--listen", listen, "--report-every", "1", "--resume-or-start", &folder(0)]);
        command.arg("--key").arg(keys.secret(0)).arg("--peers").arg(keys.peers()).args(&run);
        Process::start("server", &mut command)
    };
    let start = |rank: usize, endpoint: &str| {
        let state = folder(rank);
        let own = [&run[..], &["--resume-or-start", &state]].concat();
        join(&keys, endpoint, rank, &own)
    };
    let mut server = serve("tcp://127.0.0.1:*");
    let line = server.says("listening at ");
    let endpoint = line.strip_prefix("listening at ").unwrap().split(',').next().unwrap().to_owned();
    let mut workers = [1, 2].map(|rank| start(rank, &endpoint));
    server.says("step 5: ");
    server.kill();
    workers[1].kill();
    let mut server = serve(&endpoint);
    server.says("continuing at step ");
    workers[1] = start(2, &endpoint);
    workers[1].says("the memory is as it was before step ");
    let hash = server.hash();
    for worker in workers {
        assert_eq!(worker.hash(), hash);
    }
    for mut process in [serve(&endpoint), start(1, &endpoint)] {
        process.says("all steps are done");
        process.succeeds();
    }
    // Other settings than those of the folder.
    let mut other =
        join(&keys, &endpoint, 1, &[&run[..], &["--lr", "0.7", "--resume-or-start", &folder(1)]].concat());
    assert_eq!(other.ends(), Some(2));
    other.says("says lr = 0.7: give the settings of the run, or another folder");
}

/// libzmq ends the process without a word if it cannot make a thread.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_made_are_one_line() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("trainer");
    std::fs::copy(env!("CARGO_BIN_EXE_trainer"), &program).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let ends: [&[&str]; 2] = [
        &[
            "serve",
            "--insecure",
            "--workers",
            "2",
            "--steps",
            "1",
            "--listen",
            "tcp://127.0.0.1:*",
            "--force",
        ],
        &["join", "--insecure", "--workers", "2", "--steps", "1", "--rank", "1", "--wait", "0.1"],
    ];
    for arguments in ends {
        // The limit does not hold for root, and counts all processes of another user: there, any is too many.
        let limits: &[u32] = if is_root { &[1, 2, 3, 4] } else { &[1] };
        for limit in limits {
            let script = format!("ulimit -u {limit}; exec \"$@\"");
            let other_user = ["setpriv", "--reuid=61322", "--regid=61322", "--clear-groups", "bash"];
            let mut command = Command::new(if is_root { other_user[0] } else { "bash" });
            command.args(if is_root { &other_user[1..] } else { &[] });
            command.args(["-c", &script, "bash"]).arg(&program).args(arguments).current_dir(folder.path());
            let mut process = Process::start("limited", &mut command);
            let code = process.ends();
            // With room for all of its threads, a worker does not find its server. A server has one more.
            let is_enough = *limit == 4 && arguments[0] == "join";
            let said = process.says(if is_enough { "no server within 0.1 s" } else { "ulimit -u" });
            assert!(matches!(code, Some(1 | 2)) && !said.contains("panicked"), "{limit}: {code:?} {said}");
            assert!(is_enough || said.contains("no thread for "), "{limit}: {said}");
        }
    }
}

/// Nothing was done yet, and still the line that says how to go on can be pasted.
#[cfg(target_os = "linux")]
#[test]
fn ends_that_have_not_begun_their_first_step_go_on_all_the_same() {
    let keys = Keys::new(3);
    let state = keys.folder.path().join("state").display().to_string();
    let (mut server, endpoint) = serve(&keys, None, &endless());
    let mut worker = join(&keys, &endpoint, 1, &[&endless()[..], &["--out", &state]].concat());
    server.says("rank 1 is here");
    let mut lines = Vec::new();
    for process in [&mut worker, &mut server] {
        process.heeds_signals();
        process.signal("-TERM");
        assert_eq!(process.ends(), Some(130), "{}", process.all());
        let line = process.says("interrupted after 0 steps; go on with: ");
        lines.push(line.split("go on with: ").nth(1).unwrap().to_owned());
    }
    let mut server = pasted("server again", &lines[1]);
    let (_first, _second) = (pasted("worker again", &lines[0]), join(&keys, &endpoint, 2, &endless()));
    server.says(" 3 contributors");
}
