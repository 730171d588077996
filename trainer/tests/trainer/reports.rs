//! Reports of recorded runs, and what a run says of itself.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::command_line::{refusal_in, trainer};

/// A line as the hook of the Python package writes it.
const OF_THE_HOOK: &str = r#"{"codec":"powersgd:rank=2","step":0,"epoch":0,"loss":1.5,"lr":0.1,"bytes_up":10,"bytes_down":10,"ratio":20.0,"wire_ratio":19.0,"contributors":2,"encode_ns":1,"exchange_ns":2,"decode_ns":3,"residual_norm":1.0,"density":0.5,"target_density":null}
"#;

fn told(folder: &Path, arguments: &[&str]) -> String {
    let output = trainer(folder, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const SMALL: [&str; 8] = ["--steps", "6", "--hidden", "8", "--eval-every", "2", "--link-gbps", "0.1"];

#[test]
fn a_report_is_made_of_metrics_of_this_program_and_of_the_hook() {
    let folder = tempfile::tempdir().unwrap();
    let run = ["train", "--codec", "topk:density=0.1,index=auto", "--out", "sparse"];
    told(folder.path(), &[&run[..], &SMALL].concat());
    fs::create_dir(folder.path().join("<b>hook")).unwrap();
    fs::write(folder.path().join("<b>hook/metrics.jsonl"), OF_THE_HOOK).unwrap();
    let said = told(folder.path(), &["report", "sparse", "<b>hook"]);
    for part in [
        "Report: report.html",
        "topk:density=0.1",
        "powersgd:rank=2",
        "optdigits",
        "Where the time of a step goes",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.replace('\n', " ").contains("is the bottleneck"), "{said}");
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(page.contains("&#60;b&#62;hook") && !page.contains("<b>"), "names are escaped");
    assert!(
        page.contains("perfect network")
            && page.contains("bottleneck</th>")
            && page.contains("trainer train --codec"),
        "{page}"
    );
    let again = refusal_in(folder.path(), &["report", "sparse"]);
    assert!(again.starts_with("report.html: exists already"), "{again}");
    let none = refusal_in(folder.path(), &["report", "nowhere", "--out", "other.html"]);
    assert!(none.starts_with("nowhere: "), "{none}");
}

#[test]
fn a_report_takes_the_folder_of_a_comparison_in_any_form() {
    let folder = tempfile::tempdir().unwrap();
    let compare = ["compare", "--codec", "none", "--codec", "qsgd:bits=4", "--seeds", "2", "--out", "c"];
    told(folder.path(), &[&compare[..], &SMALL].concat());
    let report = |format: &str| {
        told(folder.path(), &["report", "c", "--force", "--format", format, "--target", "0.1"])
    };
    let text = report("text");
    for run in ["none-seed-1", "none-seed-2", "qsgd-bits-4-seed-1", "qsgd-bits-4-seed-2"] {
        assert!(text.contains(run), "{run}: {text}");
    }
    let csv = report("csv");
    let mut tables = csv.split("\n\n").map(|table| table.lines().collect::<Vec<_>>());
    let main = tables.next().unwrap();
    assert!(
        main[0].starts_with("run,codec,data,model,seed,workers,steps,training loss,accuracy,bytes up"),
        "{csv}"
    );
    assert!(main.len() == 5 && main[1].starts_with("none-seed-1,none,optdigits,mlp,1,4,6,"), "{csv}");
    let target = tables.next().unwrap();
    assert!(target[0] == "run,steps,bytes up,time" && target[1].starts_with("none-seed-1,2,"), "{csv}");
    assert!(report("markdown").contains("| none-seed-1 | none | optdigits | mlp | 1 | 4 | 6 |"));
    assert_eq!(report("latex").matches("\\begin{tabular}").count(), 3);
}

#[test]
fn data_sets_are_not_mixed_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    told(folder.path(), &[&["train", "--out", "digits"][..], &SMALL].concat());
    let text = ["train", "--data", "tiny-shakespeare", "--model", "lstm", "--batch", "8", "--workers", "2"];
    told(
        folder.path(),
        &[&text[..], &["--hidden", "4", "--steps", "1", "--eval-every", "0", "--out", "text"]].concat(),
    );
    let refused = refusal_in(folder.path(), &["report", "digits", "text"]);
    assert!(refused.contains("digits of optdigits, text of tiny-shakespeare; give --mixed"), "{refused}");
    assert!(told(folder.path(), &["report", "digits", "text", "--mixed"]).contains("tiny-shakespeare"));
}

#[test]
fn a_run_says_where_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let compare = ["compare", "--codec", "none", "--codec", "topk", "--out", "a folder"];
    told(folder.path(), &[&compare[..], &SMALL].concat());
    let folder = folder.path().join("a folder");
    let runs: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(folder.join("summary.json")).unwrap()).unwrap();
    let own: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("none-seed-1/summary.json")).unwrap()).unwrap();
    for run in runs.iter().chain([&own]) {
        let text = |key: &str| run["origin"][key].as_str().unwrap_or_default().to_owned();
        assert_eq!(text("version"), env!("CARGO_PKG_VERSION"));
        assert!(text("date").ends_with('Z') && !text("cpu").is_empty(), "{run}");
        assert!(
            text("command").ends_with("--out 'a folder' --steps 6 --hidden 8 --eval-every 2 --link-gbps 0.1"),
            "{run}"
        );
    }
    let csv = fs::read_to_string(folder.join("results.csv")).unwrap();
    assert!(
        csv.lines().next().unwrap().ends_with("compute_seconds,version,commit,date,cpu,command"),
        "{csv}"
    );
    assert!(csv.lines().skip(1).all(|line| line.contains("compare --codec none")), "{csv}");
    assert!(fs::read_to_string(folder.join("report.html")).unwrap().contains("Made by trainer "));
}
