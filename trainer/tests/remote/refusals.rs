//! What is refused, with which words and which exit code.

use std::os::unix::fs::PermissionsExt;

use crate::support::{Keys, Process, join, serve, trainer};

#[test]
fn settings_that_differ_are_named_by_both_ends() {
    let keys = Keys::new(2);
    let (mut server, endpoint) = serve(&keys, None, &["--steps", "5", "--lr", "0.25"]);
    let mut worker = join(&keys, &endpoint, 1, &["--workers", "2", "--steps", "5", "--lr", "0.5"]);
    worker.says("rank 0 does not fit: lr is 0.5 here and 0.25 there");
    assert_eq!(worker.ends(), Some(2));
    server.says("rank 1 was not let in: lr is 0.25 here and 0.5 there");
    // All that differs, once.
    let other = ["--workers", "2", "--steps", "6", "--lr", "0.25", "--downlink", "none"];
    let mut worker = join(&keys, &endpoint, 1, &other);
    let line = worker.says("rank 0 does not fit: ");
    let compressed = "threshold:value=0,memory=none";
    let differences = format!("downlink is none here and {compressed} there; steps is 6 here and 5 there");
    assert_eq!(line, format!("trainer: rank 0 does not fit: {differences}"));
    assert_eq!(worker.ends(), Some(2));
    assert_eq!(worker.all().matches("does not fit").count(), 1, "{}", worker.all());
    assert_eq!(worker.all().lines().count(), 1, "{}", worker.all());
    // The run still begins, with a worker that fits.
    let worker = join(&keys, &endpoint, 1, &["--workers", "2", "--steps", "5", "--lr", "0.25"]);
    assert_eq!(worker.hash(), server.hash());
}

#[test]
fn a_key_of_another_rank_and_an_unknown_key_are_not_let_in() {
    let keys = Keys::new(3);
    let run = ["--workers", "3", "--batch", "96", "--steps", "5", "--wait", "30"];
    let (mut server, endpoint) = serve(&keys, None, &run);
    // The key of rank 2 under the name of rank 1.
    std::fs::rename(keys.secret(1), keys.secret(9)).unwrap();
    std::fs::copy(keys.secret(2), keys.secret(1)).unwrap();
    let mut worker = join(&keys, &endpoint, 1, &run);
    assert_eq!(worker.ends(), Some(2));
    worker.says("rank of the key is rank 1 here and rank 2 there");
    server.says("rank 2 was not let in: rank of the key");
    let strangers = Keys::new(2);
    std::fs::copy(strangers.secret(1), keys.secret(1)).unwrap();
    let mut worker = join(&keys, &endpoint, 1, &run);
    worker.says("does not let this key in");
    assert_eq!(worker.ends(), Some(2));
    server.says("is not on the list");
}

/// A shell puts the key there in place of the file.
#[test]
fn a_secret_on_the_command_line_is_not_repeated() {
    let keys = Keys::new(2);
    let text = std::fs::read_to_string(keys.secret(0)).unwrap();
    let secret = text.split_whitespace().last().unwrap();
    let (file, peers) = (keys.secret(0).display().to_string(), keys.peers().display().to_string());
    let served = ["serve", "--workers", "2", "--steps", "1", "--listen", "tcp://127.0.0.1:*"];
    let marked = format!("gradwire-secret {secret}");
    for pasted in [&text, secret, &marked, &text.replace('\n', " ")] {
        for arguments in [
            [&served[..], &["--key", pasted, "--peers", &peers]].concat(),
            [&served[..], &["--key", &file, "--peers", pasted]].concat(),
            // Nothing tells a secret without its mark from a public key; nobody answers to it.
            vec!["join", "--wait", "0", "--rank", "1", "--key", &file, "--server-key", pasted],
            vec!["join", "--rank", "1", "--key", pasted, "--server-key", &file],
            vec!["join", "--rank", pasted, "--key", &file, "--server-key", &file],
            vec!["keygen", pasted],
            vec!["keygen", &file, pasted],
            [&served[..], &["--insecure", "--resume", &marked]].concat(),
            [&served[..], &["--insecure", "--listen", &marked, "--out", &file]].concat(),
        ] {
            let mut process = Process::start("refused", trainer().args(&arguments));
            // Nobody came, which is no mistake in the arguments.
            let waited = arguments.contains(&"--wait") && pasted == secret;
            assert_eq!(process.ends(), Some(if waited { 1 } else { 2 }), "{}", arguments[0]);
            let is_bare = pasted == secret && !arguments.contains(&"--insecure");
            let is_misplaced =
                arguments[0] == "keygen" && arguments.len() == 3 || arguments.get(2) == Some(&pasted);
            // The parser knows no secret without its mark.
            if !(is_bare && is_misplaced) {
                assert!(!process.all().contains(secret), "{}: {}", arguments[0], process.all());
            }
        }
    }
}

#[test]
fn addresses_that_are_none_are_refused_and_a_list_may_hold_files_with_ranks() {
    let keys = Keys::new(2);
    let refused = |arguments: &[&str], why: &str| {
        let mut process = Process::start("refused", trainer().args(arguments));
        assert_eq!(process.ends(), Some(2), "{arguments:?}: {}", process.all());
        process.says(why);
    };
    let out = keys.run().display().to_string();
    for port in ["99999", "65536", "5704x", "-1", ""] {
        let listen = format!("tcp://127.0.0.1:{port}");
        let serve = ["serve", "--insecure", "--workers", "2", "--steps", "5", "--out", &out, "--listen"];
        refused(&[&serve[..], &[&listen]].concat(), "is no port: a port is 1 to 65535");
        refused(&["join", "--insecure", "--rank", "1", "--workers", "2", "--server", &listen], "is no port");
    }
    refused(
        &["join", "--insecure", "--beyond-loopback", "--rank", "1", "--server", "tcp://*:5555"],
        "name the machine that listens",
    );
    let key = keys.secret(0).display().to_string();
    let file = std::fs::read_to_string(keys.secret(1).with_extension("pub")).unwrap();
    let own = std::fs::read_to_string(keys.secret(0).with_extension("pub")).unwrap();
    let peers = keys.peers().display().to_string();
    std::fs::write(keys.peers(), format!("{own}{file}")).unwrap();
    refused(
        &["serve", "--key", &key, "--peers", &peers, "--batch", "96", "--out", &out],
        "rank 1 has the server's own key",
    );
    let run = ["--workers", "2", "--steps", "1"];
    for list in [format!("1 {file}"), format!("\u{feff}{file}"), format!(" 1\t{file}\r\n")] {
        std::fs::write(keys.peers(), list).unwrap();
        let (server, endpoint) = serve(&keys, None, &run);
        let worker = join(&keys, &endpoint, 1, &run);
        assert_eq!(worker.hash(), server.hash());
    }
}

#[test]
fn what_is_wrong_at_the_start_is_one_line_and_exit_code_2() {
    let keys = Keys::new(2);
    let refused = |arguments: &[&str], why: &str| {
        let mut process = Process::start("refused", trainer().args(arguments));
        assert_eq!(process.ends(), Some(2), "{arguments:?}: {}", process.all());
        process.says(why);
    };
    let key = keys.secret(0).display().to_string();
    let peers = keys.peers().display().to_string();
    refused(&["keygen", &key], "exists");
    for (read, rest) in [(&key, ["--peers", &peers]), (&peers, ["--peers", &peers])] {
        let serve = ["serve", "--key", &key, "--trace", read];
        refused(&[&serve[..], &rest].concat(), "the same file as ");
    }
    refused(&["serve", "--insecure", "--listen", "tcp://0.0.0.0:*"], "not on the loopback interface");
    refused(&["serve"], "required");
    let absent = keys.secret(7).display().to_string();
    let hyphen = format!("-{}", "0".repeat(39));
    refused(&["join", "--rank", "1", "--server-key", &hyphen, "--key", &absent], "No such file");
    refused(&["serve", "--key", &key, "--peers", &peers, "--workers", "5", "--batch", "100"], "ranks 1 to 4");
    refused(&["serve", "--key", &key, "--peers", &peers, "--quorum", "3"], "quorum = 3");
    refused(&["serve", "--insecure", "--exchange", "all-gather"], "through the server");
    refused(&["serve", "--insecure", "--workers", "2", "--norm-cap", "0.5"], "norm cap 0.5");
    let packets = ["--codec", "topk:max_packet_bytes=1200"];
    refused(
        &[&["serve", "--insecure", "--workers", "2", "--norm-cap", "5"][..], &packets].concat(),
        "leave out max_packet_bytes",
    );
    refused(&["join", "--insecure", "--rank", "0"], "rank = 0");
    refused(&["serve", "--insecure", "--downlink", "nothing"], "codec = nothing");
    std::fs::set_permissions(keys.secret(0), std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&["serve", "--key", &key, "--peers", &peers], "chmod 600");
}
