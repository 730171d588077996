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
