//! The page for Prometheus: it agrees with what the run writes down.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::watching::{LONG, trainer, words};

/// The first line that names the page, and the rest of what the process says.
fn address(child: &mut Child) -> (String, BufReader<ChildStderr>) {
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("metrics at http://").unwrap_or_else(|| panic!("{line}"));
    (address.strip_suffix("/metrics").unwrap().to_owned(), said)
}

fn page(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("openmetrics-text"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    body.to_owned()
}

fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
}

#[test]
fn the_page_for_prometheus_agrees_with_the_file_of_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let run = ["--steps", "2000000", "--codec", "topk", "--metrics-listen", "127.0.0.1:0"];
    let mut child =
        trainer(folder.path()).args(run).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (address, _said) = address(&mut child);
    let started = Instant::now();
    // A page may be made in the middle of a step: most are not.
    let agrees = |page: &str| {
        let steps = value(page, "gradwire_steps_total") as usize;
        let text = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap_or_default();
        let lines: Vec<Value> =
            text.lines().take(steps).filter_map(|line| serde_json::from_str(line).ok()).collect();
        let Some(last) = lines.last().filter(|_| steps > 10 && lines.len() == steps) else { return false };
        let sum = |key: &str| lines.iter().map(|line| line[key].as_f64().unwrap()).sum::<f64>();
        let near = |name: &str, expected: f64| (value(page, name) - expected).abs() <= 1e-6 * expected.abs();
        near("gradwire_step", steps as f64)
            && near("gradwire_loss", last["loss"].as_f64().unwrap())
            && near("gradwire_learning_rate", last["lr"].as_f64().unwrap())
            && near("gradwire_workers", 2.0)
            && near("gradwire_contributors", 2.0)
            && near("gradwire_bytes_total{direction=\"up\"}", sum("bytes_up"))
            && near("gradwire_bytes_total{direction=\"down\"}", sum("bytes_down"))
            && (0..2)
                .all(|rank| near(&format!("gradwire_contributions_total{{rank=\"{rank}\"}}"), steps as f64))
            && (0..2)
                .all(|rank| value(page, &format!("gradwire_exchange_seconds_total{{rank=\"{rank}\"}}")) > 0.0)
    };
    let mut agreed = 0;
    while agreed < 3 {
        let page = page(&address);
        agreed += usize::from(page.contains("gradwire_bytes_total{") && agrees(&page));
        assert!(started.elapsed() < LONG, "{page}");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_address_that_is_in_use_is_one_line_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output =
        trainer(folder.path()).args(["--steps", "1", "--metrics-listen", &address]).output().unwrap();
    let said = words(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("--metrics-listen {address}: ")) && said.lines().count() == 1, "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
