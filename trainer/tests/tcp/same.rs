//! Ranks over TCP train as threads do, bit by bit.

use crate::support::{Process, Scene, summary};

const TASK: [&str; 8] = ["--steps", "12", "--eval-every", "5", "--hash-every", "3", "--seed", "7"];

fn trains_alike(scene: &Scene, settings: &[&str]) {
    let arguments = [&TASK[..], settings].concat();
    let mut ranks = scene.start_all(&arguments);
    let shown = ranks.remove(0).hash();
    ranks.iter_mut().for_each(Process::succeeds);
    let there = summary(&scene.run());
    assert!(shown.starts_with(there["params_hash"].as_str().unwrap()), "{shown}");
    assert_eq!(there["params_hash"], scene.in_threads(&arguments), "{settings:?}");
    let here = summary(&scene.folder.path().join("threads"));
    for key in ["accuracy", "notes", "ratio"] {
        assert_eq!(here[key], there[key], "{key}: {settings:?}");
    }
    assert!(there["bytes_up"].as_u64() > Some(0));
}

#[test]
fn ranks_with_a_list_of_addresses_train_as_threads_do_on_every_way_to_a_mean() {
    for (world, settings) in [
        (3, &["--codec", "topk:density=0.02,values=q8", "--batch", "120"][..]),
        (2, &["--codec", "none", "--exchange", "all-reduce", "--wire", "bf16"]),
        (2, &["--codec", "qsgd:bits=4", "--exchange", "server"]),
        (3, &["--codec", "topk:density=0.03", "--exchange", "sparse", "--batch", "120"]),
        (2, &["--codec", "dgc:density=0.02", "--delayed"]),
        (3, &["--codec", "dpsgd", "--topology", "ring", "--batch", "120"]),
        (4, &["--codec", "powergossip:rank=2,iterations=2", "--topology", "torus"]),
        (3, &["--codec", "choco:density=0.1", "--batch", "120"]),
        (2, &["--rules", "*.bias=none; topk:density=0.05"]),
        (
            2,
            &[
                "--codec",
                "qsgd:bits=4",
                "--optimizer",
                "adamw",
                "--local-steps",
                "4",
                "--fragments",
                "2",
                "--delayed",
            ],
        ),
        // Latents from the eighth step on.
        (2, &["--codec", "x:lgc:top=0.1,dense_steps=2,train_steps=6,gate=0.99", "--hidden", "16"]),
    ] {
        trains_alike(&Scene::new(world), settings);
    }
}

#[test]
fn ranks_that_meet_at_the_first_one_train_as_threads_do_with_a_key() {
    trains_alike(&Scene::by_rendezvous(3).sealed(), &["--codec", "topk:density=0.05", "--batch", "120"]);
    trains_alike(&Scene::new(2).sealed(), &["--codec", "none", "--exchange", "owners"]);
}
