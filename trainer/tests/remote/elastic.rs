//! Workers that come late, die, fall silent and come back, and a server that is started again.

use std::collections::BTreeSet;

use crate::support::{Keys, Process, join, serve, trainer};

const RUN: [&str; 4] = ["--workers", "4", "--steps", "1000"];
/// Long enough for a worker to come back in it.
const LONG_RUN: [&str; 6] = ["--workers", "4", "--steps", "4000", "--hidden", "8"];

/// A server that goes on with two of four, and its workers.
fn scene(keys: &Keys, run: &[&str], patience: &[&str], ranks: &[usize]) -> (Process, String, Vec<Process>) {
    let elastic = [run, &["--quorum", "2"], patience].concat();
    let (mut server, endpoint) = serve(keys, None, &elastic);
    let workers = ranks.iter().map(|&rank| join(keys, &endpoint, rank, run)).collect();
    for rank in ranks {
        server.says(&format!("rank {rank} takes part"));
    }
    (server, endpoint, workers)
}

/// Dense rings of the workers that took part, over the bytes that went through the server, in every line of
/// the record, in the summary and in the report. Returns the numbers of workers that took part.
fn counts_what_was_there(keys: &Keys) -> BTreeSet<u64> {
    let read = |name: &str| std::fs::read_to_string(keys.run().join(name)).unwrap();
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let summary = json(&read("summary.json"));
    let params = summary["params"].as_f64().unwrap();
    let (mut rings, mut bytes, mut numbers) = (0.0, 0.0, BTreeSet::new());
    for line in read("metrics.jsonl").lines().map(json) {
        let moved = line["bytes_up"].as_f64().unwrap() + line["bytes_down"].as_f64().unwrap();
        let contributors = line["contributors"].as_u64().unwrap();
        // Each of them sends and receives 2(N - 1)/N of 4 bytes a parameter.
        let ring = 16.0 * params * contributors.saturating_sub(1) as f64;
        match line["wire_ratio"].as_f64() {
            Some(ratio) => assert!((ratio * moved / ring - 1.0).abs() < 1e-9, "{line}"),
            None => assert!(contributors < 2, "{line}"),
        }
        (rings, bytes) = (rings + ring, bytes + moved);
        numbers.insert(contributors);
    }
    let ratio = summary["wire_ratio"].as_f64().unwrap();
    assert!((ratio * bytes / rings - 1.0).abs() < 1e-9, "{ratio} is not {}", rings / bytes);
    let mut report = trainer();
    let shown =
        report.arg("report").arg(keys.run()).arg("--out").arg(keys.run().join("r.html")).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(&format!("{ratio:.1}")), "{ratio} is not in {shown}");
    numbers
}

#[test]
fn a_worker_that_joins_in_the_middle_ends_with_the_same_parameters() {
    let keys = Keys::new(4);
    let (mut server, endpoint, mut workers) = scene(&keys, &RUN, &[], &[1]);
    server.says("step 20: ");
    // The server has no patience set, so it waits for this one, and the other has time to come.
    workers[0].signal("-STOP");
    workers.push(join(&keys, &endpoint, 3, &RUN));
    server.says("rank 3 is here");
    workers[0].signal("-CONT");
    server.says("rank 3 takes part");
    server.says("3 contributors");
    let hash = server.hash();
    for worker in workers {
        assert_eq!(worker.hash(), hash);
    }
    assert!(counts_what_was_there(&keys).is_superset(&BTreeSet::from([2, 3])));
}

/// With the median itself as the cap, about every second frame is too long.
#[test]
fn frames_beyond_the_norm_cap_are_named_with_what_was_lost_and_all_end_alike() {
    let keys = Keys::new(3);
    let run = ["--workers", "3", "--batch", "96", "--steps", "30"];
    let (mut server, endpoint) = serve(&keys, None, &[&run[..], &["--norm-cap", "1"]].concat());
    let workers = [1, 2].map(|rank| join(&keys, &endpoint, rank, &run));
    let line = server.says("frame of rank 1 scaled down: its norm is");
    assert!(line.contains("the median") && line.contains("lost: norm"), "{line}");
    let hash = server.hash();
    workers.into_iter().for_each(|worker| assert_eq!(worker.hash(), hash));
}

#[test]
fn a_killed_worker_is_reported_with_what_it_kept_back_and_the_run_goes_on_without_it() {
    let keys = Keys::new(4);
    let (mut server, endpoint, mut workers) = scene(&keys, &RUN, &[], &[1, 2, 3]);
    // A worker reports what it keeps back behind a step when the next one begins.
    server.says_times(2, "4 contributors");
    workers[0].signal("-STOP");
    workers[1].kill();
    // It comes back as a new process with nothing kept back.
    workers[1] = join(&keys, &endpoint, 2, &RUN);
    server.says("rank 2 is gone: it was started again");
    workers[0].signal("-CONT");
    let lost = server.says("rank 2 is gone; its residual is lost: norm ");
    let norm: f64 = lost.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(norm > 0.0, "{lost}");
    let back = server.says("rank 2 is back with a residual of norm 0.000000");
    assert!(back.ends_with(&format!("norm {norm:.6} is lost")), "{back}");
    let hash = server.hash();
    let summary = std::fs::read_to_string(keys.run().join("summary.json")).unwrap();
    let note = "workers that left and did not come back: 0; of the residuals of workers that died, norms of ";
    let reported = summary.split(note).nth(1).unwrap_or_else(|| panic!("{summary}"));
    let reported: f64 = reported.split(' ').next().unwrap().parse().unwrap();
    assert!((reported - norm).abs() < 1e-5, "{reported} is not {norm}");
    for worker in workers {
        assert_eq!(worker.hash(), hash);
    }
}

#[test]
fn a_worker_that_sleeps_misses_steps_and_gets_the_new_state() {
    let keys = sleeps(&LONG_RUN);
    assert!(counts_what_was_there(&keys).is_superset(&BTreeSet::from([3, 4])));
    sleeps(&[&LONG_RUN[..], &["--local-steps", "2", "--fragments", "2", "--delayed"]].concat());
}

/// One of three does, for some steps of such a run.
fn sleeps(run: &[&str]) -> Keys {
    let keys = Keys::new(4);
    let (mut server, _, mut workers) = scene(&keys, run, &["--patience", "0.3"], &[1, 2, 3]);
    server.says("step 20: ");
    workers[2].signal("-STOP");
    server.says("rank 3 is out until it asks again: it missed 4 steps in a row");
    server.says("3 contributors");
    workers[2].signal("-CONT");
    workers[2].says("too late; the frame was given back");
    workers[2].says("asking to begin again");
    workers[2].says("steps away; of the residual, norm");
    let hash = server.hash();
    for worker in workers {
        assert_eq!(worker.hash(), hash);
    }
    keys
}

#[test]
fn workers_find_a_server_that_was_started_again() {
    let keys = Keys::new(4);
    let all = ["--workers", "4", "--steps", "300"];
    let (mut server, endpoint) = serve(&keys, None, &all);
    let workers: Vec<_> = (1..4).map(|rank| join(&keys, &endpoint, rank, &all)).collect();
    server.says("step 10: ");
    server.kill();
    let (server, _) = serve(&keys, Some(&endpoint), &all);
    let hash = server.hash();
    for mut worker in workers {
        worker.says("the server is gone; waiting for it");
        assert_eq!(worker.hash(), hash);
    }
}
