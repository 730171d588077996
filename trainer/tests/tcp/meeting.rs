//! Ranks that do not come together: each says who, where and why.

use crate::support::{Process, Scene, steps};

const RUN: [&str; 6] = ["--steps", "4", "--eval-every", "0", "--hidden", "8"];

#[test]
fn a_rank_that_never_comes_is_named_with_its_address_while_it_is_waited_for_and_at_the_end() {
    let scene = Scene::new(3);
    let arguments = [&RUN[..], &["--batch", "12", "--wait", "5"]].concat();
    let mut ranks = [0, 1].map(|rank| scene.start(rank, &arguments));
    for rank in &mut ranks {
        let line = rank.says("waiting for ");
        assert!(line.contains(&format!("waiting for rank 2 at {} (", scene.hosts[2])), "{line}");
        assert!(line.contains("s so far"), "{line}");
        assert_eq!(rank.ends(), Some(1), "{}", rank.all());
        let line = rank.says("not there in time: ");
        // The other one gives up at the same time, maybe a moment sooner.
        let has_left = line.contains("it closed the connection");
        assert!(line.contains("rank 2 (") && (has_left || !line.contains("rank 1 (")), "{line}");
    }
    assert_eq!(steps(&scene.run()), 0);
}

#[test]
fn a_rank_that_waits_ends_at_a_signal() {
    let scene = Scene::new(2);
    let mut rank = scene.start(1, &RUN);
    rank.says("waiting for rank 0");
    rank.heeds_signals();
    rank.signal("-INT");
    assert_eq!(rank.ends(), Some(130), "{}", rank.all());
    rank.says_times(1, "ended before the run began");
}

#[test]
fn another_key_and_no_key_are_said_at_both_ends() {
    for (own, words) in [(Some("5"), "has another key"), (None, "has no key")] {
        let scene = Scene::new(2);
        let key = scene.key("run.key", "4").display().to_string();
        let mut first = scene.start(0, &[&RUN[..], &["--key", &key, "--wait", "60"]].concat());
        first.says("listens at ");
        let own = own.map(|digit| scene.key("own.key", digit).display().to_string());
        let own: Vec<&str> = own.iter().flat_map(|path| ["--key", path.as_str()]).collect();
        let mut other = scene.start(1, &[&RUN[..], &own].concat());
        assert_eq!(other.ends(), Some(2), "{}", other.all());
        assert!(other.all().contains("rank 0 at "), "{}", other.all());
        // The first one goes on waiting for who has the key.
        let mut right = scene.start(1, &[&RUN[..], &["--key", &key]].concat());
        right.succeeds();
        first.succeeds();
        assert!(!words.is_empty());
    }
}

#[test]
fn settings_that_differ_are_named_at_both_ends_with_both_values() {
    let scene = Scene::new(2);
    let with = |codec, lr| [&RUN[..], &["--codec", codec, "--lr", lr]].concat();
    let mut first = scene.start(0, &with("topk:density=0.1", "0.5"));
    first.says("listens at ");
    let mut other = scene.start(1, &with("qsgd:bits=4", "0.25"));
    for (rank, lr) in
        [(&mut first, "lr is 0.5 here and 0.25 there"), (&mut other, "lr is 0.25 here and 0.5 there")]
    {
        assert_eq!(rank.ends(), Some(2), "{}", rank.all());
        let line = rank.says(lr);
        assert!(line.contains("codec is ") && !line.contains("seed"), "{line}");
    }
}

#[test]
fn arguments_that_do_not_go_together_are_refused_in_one_line() {
    let scene = Scene::new(2);
    let refused = |arguments: &[&str], words: &str| {
        let mut command = crate::support::trainer();
        let mut process =
            Process::start("refused", command.arg("train").args(arguments).current_dir(scene.folder.path()));
        assert_eq!(process.ends(), Some(2), "{arguments:?}: {}", process.all());
        process.says(words);
        assert_eq!(process.all().lines().count(), 1, "{}", process.all());
    };
    let two = "127.0.0.1:5701,127.0.0.1:5702";
    refused(&["--transport", "tcp"], "give --rank, and --hosts");
    refused(&["--transport", "tcp", "--hosts", two], "rank = nothing: expected 0 to 1");
    refused(&["--transport", "tcp", "--hosts", two, "--rank", "2"], "rank = 2: expected 0 to 1");
    refused(
        &["--transport", "tcp", "--hosts", two, "--rank", "0", "--workers", "4"],
        "workers = 4: expected 2, the addresses in --hosts",
    );
    refused(&["--rank", "0"], "--rank with transport = local: it belongs to tcp");
    refused(&["--wait", "3"], "--wait with transport = local: it belongs to tcp");
    refused(
        &["--transport", "tcp", "--hosts", "192.0.2.1:5701,192.0.2.2:5701", "--rank", "0"],
        "not on the loopback interface",
    );
    refused(&["--resume", "nowhere", "--hosts", two, "--rank", "1"], "started as the first time");
    refused(
        &["--transport", "tcp", "--hosts", two, "--rank", "0", "--exchange", "native"],
        "exchange = native",
    );
    refused(&["--transport", "tcp", "--hosts", two, "--rank", "0", "--key", "nowhere"], "key file nowhere");
}
