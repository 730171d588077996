//! A rank that is killed, and runs that are ended: all go on from the checkpoint of rank 0, with the same
//! bits.

use crate::support::{Process, Scene, pasted, steps, summary, wait_for_steps};

const LONG: [&str; 10] =
    ["--steps", "200", "--eval-every", "0", "--seed", "5", "--checkpoint-every", "2", "--hidden", "64"];

/// What the line of a rank says to paste.
fn to_paste(line: &str) -> &str {
    line.split("with: ").last().unwrap()
}

fn kills(killed: usize, settings: &[&str]) {
    let scene = Scene::new(3).sealed();
    let arguments = [&LONG[..], &["--batch", "120"], settings].concat();
    let mut ranks = scene.start_all(&arguments);
    wait_for_steps(&scene.run(), 5);
    ranks[killed].kill();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != killed) {
        assert_eq!(process.ends(), Some(1), "rank {rank}: {}", process.all());
        let line = process.says("start all ranks again");
        if rank == 0 {
            assert!(to_paste(&line).contains("train --resume run --rank 0 --hosts "), "{line}");
        }
    }
    assert!(!scene.run().join("summary.json").exists(), "the run was faster than its killer");
    let mut others: Vec<Process> = (1..3).map(|rank| scene.start(rank, &arguments)).collect();
    scene.resume().succeeds();
    others.iter_mut().for_each(Process::succeeds);
    assert_eq!(summary(&scene.run())["params_hash"], scene.in_threads(&arguments), "{settings:?}");
    assert_eq!(steps(&scene.run()), 200);
}

#[test]
fn a_run_whose_rank_is_killed_ends_with_the_same_bits_after_all_are_started_again() {
    kills(1, &["--codec", "topk:density=0.02,values=q8", "--momentum", "0.9"]);
    kills(0, &["--codec", "topk:density=0.02,values=q4", "--optimizer", "adamw-updates"]);
    kills(2, &["--codec", "dpsgd"]);
    kills(1, &["--codec", "topk:density=0.02", "--exchange", "server", "--downlink", "bf16:memory=ef"]);
}

/// Everything that a rank may keep beside its residual comes from rank 0.
#[test]
fn what_a_rank_keeps_comes_from_the_checkpoint_of_the_first_one() {
    kills(2, &["--codec", "dgc:density=0.05", "--delayed"]);
    kills(1, &["--codec", "topk", "--adapt", "gravac:min=2,max=100,eps=0.8,window=3,clock=none"]);
    let fragments = ["--local-steps", "6", "--fragments", "3", "--delayed", "--outer-momentum", "0.9"];
    kills(1, &[&["--codec", "topk:density=0.05", "--optimizer", "adamw"][..], &fragments].concat());
}

#[test]
fn a_signal_to_any_rank_ends_all_and_the_line_of_the_first_one_goes_on() {
    for (signalled, name) in [(1, "-INT"), (0, "-TERM")] {
        let scene = Scene::new(2);
        let arguments = [&LONG[..], &["--codec", "topk:density=0.02"]].concat();
        let mut ranks = scene.start_all(&arguments);
        wait_for_steps(&scene.run(), 3);
        ranks[signalled].signal(name);
        assert_eq!(ranks.iter_mut().map(Process::ends).collect::<Vec<_>>(), [Some(130); 2]);
        ranks[1].says("the run was ended after ");
        let line = ranks[0].says("go on with: ");
        let line = format!("cd {} && exec {}", scene.folder.path().display(), to_paste(&line));
        let mut other = scene.start(1, &arguments);
        let mut first = pasted("rank 0", &format!("bash -c {}", shlex::try_quote(&line).unwrap()));
        first.succeeds();
        other.succeeds();
        assert_eq!(summary(&scene.run())["params_hash"], scene.in_threads(&arguments), "{name}");
    }
}

#[test]
fn one_command_starts_and_resumes_with_the_same_bits() {
    let scene = Scene::new(2);
    let arguments = [&LONG[..], &["--codec", "topk:density=0.02"]].concat();
    let start = |rank| {
        let mut command = scene.command(rank, &arguments);
        Process::start(&format!("rank {rank}"), command.args(["--resume-or-start", "run"]))
    };
    let mut ranks = [0, 1].map(start);
    wait_for_steps(&scene.run(), 3);
    ranks[0].kill();
    assert_eq!(ranks[1].ends(), Some(1));
    for mut rank in [0, 1].map(start) {
        rank.succeeds();
    }
    assert_eq!(summary(&scene.run())["params_hash"], scene.in_threads(&arguments));
}

/// The others state the later end as a setting, in the greeting.
#[test]
fn a_run_that_is_over_trains_longer_with_the_bits_of_a_long_one() {
    let scene = Scene::new(3).sealed();
    let to = |end| {
        let plain = ["--schedule", "constant", "--eval-every", "0", "--hidden", "16", "--batch", "60"];
        [&plain[..], &["--codec", "dgc:density=0.05,warmup=0", "--steps", end]].concat()
    };
    scene.start_all(&to("7")).iter_mut().for_each(Process::succeeds);
    assert_eq!(steps(&scene.run()), 7);
    let mut others: Vec<Process> = (1..3).map(|rank| scene.start(rank, &to("12"))).collect();
    let mut first = scene.resume_with(&["--steps", "12"]);
    first.succeeds();
    first.says("Resuming at step 7 of 12");
    others.iter_mut().for_each(Process::succeeds);
    assert_eq!(summary(&scene.run())["params_hash"], scene.in_threads(&to("12")));
    assert_eq!(steps(&scene.run()), 12);

    // A rank that still has the earlier end is no rank of this run.
    let mut stale = scene.start(1, &to("12"));
    let mut later = scene.resume_with(&["--steps", "15"]);
    assert_eq!([later.ends(), stale.ends()], [Some(2); 2]);
    stale.says("steps");
}

/// As where a service manager starts all of them again, in any order.
#[test]
fn ranks_of_a_run_that_is_over_are_told_so() {
    for scene in [Scene::new(3), Scene::by_rendezvous(3).sealed()] {
        let arguments = ["--steps", "3", "--eval-every", "0", "--hidden", "8", "--batch", "120"];
        let start = |rank, own: &[&str]| {
            let mut command = scene.command(rank, &arguments);
            Process::start(&format!("rank {rank}"), command.args(["--resume-or-start", "run"]).args(own))
        };
        [0, 1, 2].map(|rank| start(rank, &[])).iter_mut().for_each(Process::succeeds);
        let before = std::fs::read(scene.run().join("metrics.jsonl")).unwrap();

        let mut early = start(2, &[]);
        early.says("rank 2 listens");
        let mut first = start(0, &[]);
        early.says("all steps are done; rank 0 has the results");
        early.succeeds();
        first.says("run: all steps are done");
        start(1, &[]).succeeds();
        first.says("all other ranks were told");
        first.succeeds();

        let mut alone = start(0, &["--wait", "1"]);
        alone.succeeds();
        alone.says("not told that the run is over: rank 1");
        let mut ended = start(0, &[]);
        ended.says("waiting for rank 1");
        ended.signal("-INT");
        ended.succeeds();
        assert_eq!(std::fs::read(scene.run().join("metrics.jsonl")).unwrap(), before);
    }
}
