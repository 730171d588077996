//! What workers write down of their steps adds up.

use crate::support::{Keys, join, serve};

/// kept before + gradient - kept after, the mean, and how many frames are in it, of every step.
fn read(path: &str) -> Vec<(f64, f64, usize)> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| line[name].as_f64().unwrap();
        let sent = number("kept_before") + number("gradient") - number("kept_after");
        (sent, number("mean"), line["contributors"].as_array().unwrap().len())
    };
    text.lines().map(line).collect()
}

#[test]
fn what_all_workers_sent_is_the_mean_times_their_number_in_every_step() {
    let keys = Keys::new(3);
    let run = ["--workers", "3", "--batch", "96", "--steps", "20", "--codec", "topk:density=0.02"];
    let path = |rank: usize| keys.folder.path().join(format!("trace{rank}")).display().to_string();
    let paths = [0, 1, 2].map(path);
    let traced = |rank: usize| [&run[..], &["--trace", &paths[rank]]].concat();
    let (server, endpoint) = serve(&keys, None, &traced(0));
    let workers = [1, 2].map(|rank| join(&keys, &endpoint, rank, &traced(rank)));
    let hash = server.hash();
    assert_eq!(workers.map(|worker| worker.hash()), [hash.clone(), hash]);
    let [first, second, third] = paths.map(|path| read(&path));
    assert_eq!([first.len(), second.len(), third.len()], [20; 3]);
    for ((a, b), c) in first.iter().zip(&second).zip(&third) {
        assert_eq!([a.1, a.1], [b.1, c.1]);
        let sent = a.0 + b.0 + c.0;
        assert!(a.2 == 3 && (sent - 3.0 * a.1).abs() < 1e-4 * (1.0 + sent.abs()), "{a:?} {b:?} {c:?}");
    }
    // Something was sent, and not everything.
    assert!(first.iter().any(|(sent, ..)| *sent != 0.0));
}
