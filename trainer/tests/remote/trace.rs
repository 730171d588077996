//! What workers write down of their steps adds up.

use crate::support::{Keys, join, serve};

/// A line, but for what nobody asks for.
#[derive(serde::Deserialize)]
pub(crate) struct Line {
    pub(crate) step: u64,
    pub(crate) kept_before: f64,
    gradient: f64,
    pub(crate) kept_after: f64,
    pub(crate) norm_before: f64,
    pub(crate) norm_after: f64,
    mean: Option<f64>,
    contributors: Vec<u32>,
    #[serde(default)]
    server_lost: bool,
}

impl Line {
    fn sent(&self) -> f64 {
        self.kept_before + self.gradient - self.kept_after
    }
}

/// All that are complete.
pub(crate) fn lines(path: &str) -> Vec<Line> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What was sent, the mean, and how many frames are in it, of every step that exchanged anything.
fn read(path: &str) -> Vec<(f64, f64, usize)> {
    let lines = lines(path);
    let exchanged = lines.iter().filter_map(|line| Some((line, line.mean?)));
    exchanged.map(|(line, mean)| (line.sent(), mean, line.contributors.len())).collect()
}

#[test]
fn a_step_in_which_the_server_is_lost_has_a_line_that_says_so() {
    let keys = Keys::new(3);
    let run = ["--workers", "3", "--batch", "96", "--steps", "3000", "--codec", "topk:density=0.02"];
    let path = keys.folder.path().join("trace").display().to_string();
    let (mut server, endpoint) = serve(&keys, None, &run);
    let mut worker = join(&keys, &endpoint, 1, &[&run[..], &["--trace", &path]].concat());
    let other = join(&keys, &endpoint, 2, &run);
    server.says("step 5: ");
    // The server then waits for the other one's frame, and this one for the server.
    other.signal("-STOP");
    server.says("rank 2 is silent");
    server.kill();
    worker.says("the server is gone; waiting for it");
    let lines = lines(&path);
    let last = lines.last().unwrap();
    assert!(lines.iter().enumerate().all(|(at, line)| line.step == at as u64), "every step has its line");
    assert!(last.server_lost && last.contributors.is_empty() && last.mean.is_none());
    assert!(last.sent().abs() < 1e-4 * (1.0 + last.kept_after.abs()), "everything was given back");
    assert_eq!(lines.iter().filter(|line| line.server_lost).count(), 1);
}

#[test]
fn what_all_workers_sent_is_the_mean_times_their_number_in_every_step() {
    adds_up(&[], 20);
    adds_up(&["--local-steps", "6", "--fragments", "3"], 20);
    // The first step exchanges nothing.
    adds_up(&["--local-steps", "6", "--fragments", "3", "--delayed"], 19);
}

fn adds_up(own: &[&str], exchanges: usize) {
    let keys = Keys::new(3);
    let run = ["--workers", "3", "--batch", "96", "--steps", "20", "--codec", "topk:density=0.02"];
    let run = [&run[..], own].concat();
    let path = |rank: usize| keys.folder.path().join(format!("trace{rank}")).display().to_string();
    let paths = [0, 1, 2].map(path);
    let traced = |rank: usize| [&run[..], &["--trace", &paths[rank]]].concat();
    let (server, endpoint) = serve(&keys, None, &traced(0));
    let workers = [1, 2].map(|rank| join(&keys, &endpoint, rank, &traced(rank)));
    let hash = server.hash();
    assert_eq!(workers.map(|worker| worker.hash()), [hash.clone(), hash]);
    let [first, second, third] = paths.map(|path| read(&path));
    assert_eq!([first.len(), second.len(), third.len()], [exchanges; 3]);
    for ((a, b), c) in first.iter().zip(&second).zip(&third) {
        assert_eq!([a.1, a.1], [b.1, c.1]);
        let sent = a.0 + b.0 + c.0;
        assert!(a.2 == 3 && (sent - 3.0 * a.1).abs() < 1e-4 * (1.0 + sent.abs()), "{a:?} {b:?} {c:?}");
    }
    // Something was sent, and not everything.
    assert!(first.iter().any(|(sent, ..)| *sent != 0.0));
}
