//! A run and a comparison keep their settings and their data: what was changed under them is refused.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use super::command_line::trainer;

const SMALL: [&str; 8] = ["--hidden", "8", "--workers", "1", "--batch", "32", "--eval-every", "0"];

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = trainer(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = trainer(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", told(&output));
    told(&output).trim_end().to_owned()
}

/// All files below a folder, but for locks.
fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(content(&path));
        } else if path.file_name().is_some_and(|name| name != ".lock") {
            all.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

fn edit(file: &Path, change: &[(&str, &str)]) {
    let text = fs::read_to_string(file).unwrap();
    let changed = change.iter().fold(text.clone(), |text, (from, to)| text.replace(from, to));
    assert_ne!(text, changed, "{change:?} in {text}");
    fs::write(file, changed).unwrap();
}

#[test]
fn a_comparison_that_was_changed_by_hand_is_refused_and_its_runs_stay() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let begin = ["compare", "--codec", "none", "--codec", "topk", "lr=0.1", "--out", "c", "--steps", "4"];
    done(folder, &[&begin[..], &SMALL].concat());
    let grid = folder.join("c/grid.toml");
    let (before, text) = (content(&folder.join("c")), fs::read_to_string(&grid).unwrap());
    for (change, differs) in [
        (&[("steps = 4", "steps = 5")][..], "steps = 5 instead of 4"),
        (&[("steps = 4", "steps = 3")], "steps = 3 instead of 4"),
        (&[("steps = 4", "epochs = 1")], "epochs = 1, which was not set, steps is not set, and was 4"),
        (&[("batch = 32", "batch = 64")], "batch = 64 instead of 32"),
        (&[("batch = 32", "batch = 64"), ("workers = 1", "workers = 2")], "workers = 2 instead of 1"),
        (&[("[settings]\n", "[settings]\nmomentum = 0.5\n")], "momentum = 0.5 instead of 0.0"),
    ] {
        edit(&grid, change);
        let said = refused(folder, &["compare", "--resume", "c"]);
        assert!(said.contains("c/grid.toml: changed since none was trained: "), "{said}");
        assert!(said.contains(differs), "{said}");
        assert_eq!(
            said.contains("trainer compare --resume c --steps 5"),
            differs == "steps = 5 instead of 4",
            "{said}"
        );
        fs::write(&grid, &text).unwrap();
        assert_eq!(content(&folder.join("c")), before, "{change:?}");
    }
    done(folder, &["compare", "--resume", "c", "--steps", "6"]);
    done(folder, &["compare", "--resume", "c"]);
    edit(&grid, &[("steps = 6", "steps = 9")]);
    assert!(refused(folder, &["compare", "--resume", "c"]).contains("steps = 9 instead of 6"));
}

/// How often a comparison is killed, at which run, and with which codec it ends first.
#[test]
fn one_command_starts_a_comparison_and_resumes_it_until_it_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let task = ["--codec", "none", "--codec", "topk", "lr=0.1", "--seeds", "2", "--checkpoint-every", "1"];
    let own = [&task[..], &["--steps", "150"], &SMALL].concat();
    done(folder, &[&["compare", "--out", "undisturbed"][..], &own].concat());
    let start = [&["compare", "--resume-or-start", "c"][..], &own].concat();
    // Killed before the first run, and in the middle of others.
    fs::create_dir(folder.join("c")).unwrap();
    fs::write(folder.join("c/.lock"), "").unwrap();
    for run in ["none-seed-1", "none-seed-2", "topk-density-0.01-lr-0.1-seed-1"] {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_trainer"));
        program.args(&start).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = program.spawn().unwrap();
        wait_for_lines(&folder.join("c").join(run).join("metrics.jsonl"), 20);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let shown = done(folder, &start);
    assert!(shown.contains("mean of 2 seeds"), "{shown}");
    let hashes = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(folder.join(name).join("summary.json")).unwrap();
        text.lines().filter(|line| line.contains("params_hash")).map(str::to_owned).collect()
    };
    assert_eq!(hashes("c"), hashes("undisturbed"));
    assert_eq!(hashes("c").len(), 4);
    // A service manager may start it again when it is done: the runs are kept, and the table is shown.
    let runs = |name: &str| content(&folder.join(name));
    let before: Vec<_> = ["c/none-seed-1", "c/topk-density-0.01-lr-0.1-seed-2"].map(runs).into();
    assert!(done(folder, &start).contains("mean of 2 seeds"));
    assert_eq!(["c/none-seed-1", "c/topk-density-0.01-lr-0.1-seed-2"].map(runs).to_vec(), before);
}

fn wait_for_lines(file: &Path, lines: usize) {
    let start = std::time::Instant::now();
    while fs::read_to_string(file).map_or(0, |text| text.lines().count()) < lines {
        assert!(start.elapsed().as_secs() < 120, "{}", file.display());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn one_command_changes_no_comparison_of_other_settings_and_nothing_that_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let start = |own: &[&'static str]| {
        let task = ["compare", "--resume-or-start", "c", "--codec", "none", "--codec", "topk", "lr=0.1"];
        [&task[..], own, &SMALL].concat()
    };
    done(folder, &start(&["--steps", "4"]));
    let before = content(&folder.join("c"));
    for (own, there, here) in [
        (&["--steps", "5"][..], "has steps = 4;", "says steps = 5:"),
        (&["--steps", "4", "--lr", "0.7"], "has nothing of the kind;", "says lr = 0.7:"),
        (&["--steps", "4", "--seeds", "2"], "has nothing of the kind;", "says seeds = 2:"),
        (&["--steps", "4", "--codec", "qsgd"], "has nothing of the kind;", "spec = \"qsgd\""),
        (&["--steps", "4", "--vary", "momentum=0,0.5"], "has nothing of the kind;", "momentum = [0, 0.5]"),
    ] {
        let said = refused(folder, &start(own));
        assert!(said.contains(there) && said.contains(here), "{own:?}: {said}");
        assert!(said.contains("c: the comparison there ") && said.contains("or another folder"), "{said}");
        assert_eq!(content(&folder.join("c")), before, "{own:?}");
    }
    // Longer, by the command for it; then the new length is that of the comparison.
    done(folder, &["compare", "--resume", "c", "--steps", "6"]);
    assert!(refused(folder, &start(&["--steps", "4"])).contains("has steps = 6;"));
    done(folder, &start(&["--steps", "6"]));
    // One run, and what is no run at all.
    done(folder, &[&["train", "--out", "run", "--steps", "4"][..], &SMALL].concat());
    fs::create_dir(folder.join("thesis")).unwrap();
    fs::write(folder.join("thesis/thesis.tex"), "years of work").unwrap();
    for (name, expected) in
        [("run", "run: one run; go on with: trainer train --resume run"), ("thesis", "not empty")]
    {
        let before = content(&folder.join(name));
        let mut arguments = start(&["--steps", "4"]);
        arguments[2] = name;
        assert!(refused(folder, &arguments).contains(expected));
        assert_eq!(content(&folder.join(name)), before);
    }
    for other in [&["--resume", "c"][..], &["--out", "d"], &["--force"]] {
        assert!(refused(folder, &[&start(&[])[..], other].concat()).contains("cannot be used with"));
    }
}

#[test]
fn codecs_and_seeds_may_be_added_and_the_runs_that_are_there_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let begin = ["compare", "--codec", "none", "--out", "c", "--steps", "4", "--seeds", "1"];
    done(folder, &[&begin[..], &SMALL].concat());
    let (grid, first) = (folder.join("c/grid.toml"), folder.join("c/none-seed-1"));
    let before = content(&first);
    edit(&grid, &[("seeds = 1", "seeds = 2")]);
    fs::write(&grid, fs::read_to_string(&grid).unwrap() + "\n[[codec]]\nspec = \"topk\"\n").unwrap();
    let shown = done(folder, &["compare", "--resume", "c"]);
    assert!(shown.contains("topk:density=0.01") && shown.contains("mean of 2 seeds"), "{shown}");
    for run in ["none-seed-2", "topk-density-0.01-seed-1", "topk-density-0.01-seed-2"] {
        assert!(folder.join("c").join(run).join("summary.json").exists(), "{run}");
    }
    assert_eq!(content(&first), before);
}

#[test]
fn a_run_whose_configuration_was_changed_by_hand_is_refused_and_the_change_stays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &[&["train", "--out", "run", "--steps", "4"][..], &SMALL].concat());
    let config = folder.join("run/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    for (change, differs, way) in [
        (("lr = 0.3", "lr = 0.1"), "lr = 0.1 instead of 0.3", "begin another run with it"),
        (("seed = 1", "seed = 2"), "seed = 2 instead of 1", "begin another run with it"),
        (("steps = 4", "steps = 9"), "steps = 9 instead of 4", "give --steps or --epochs"),
        (("steps = 4", "steps = 2"), "steps = 2 instead of 4", "give --steps or --epochs"),
    ] {
        edit(&config, &[change]);
        let before = content(&folder.join("run"));
        for arguments in [&["train", "--resume", "run"][..], &["train", "--resume", "run", "--steps", "6"]] {
            let said = refused(folder, arguments);
            assert!(said.contains("run/config.toml: changed since the run began: "), "{said}");
            assert!(said.contains(differs) && said.contains(way), "{said}");
        }
        assert_eq!(content(&folder.join("run")), before, "{change:?}");
        fs::write(&config, &text).unwrap();
    }
    fs::write(&config, "lr = fast\n").unwrap();
    assert!(
        refused(folder, &["train", "--resume", "run", "--steps", "6"]).contains("line 1: text needs quotes")
    );
    // What is missing is written again.
    fs::remove_file(&config).unwrap();
    done(folder, &["train", "--resume", "run", "--steps", "6"]);
    assert_eq!(fs::read_to_string(&config).unwrap(), text.replace("steps = 4", "steps = 6"));
}

#[test]
fn a_record_that_is_shorter_than_its_checkpoint_names_the_one_that_fits() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let begin = ["--steps", "12", "--checkpoint-every", "4"];
    done(folder, &[&["train", "--out", "run"][..], &begin, &SMALL].concat());
    let metrics = folder.join("run/metrics.jsonl");
    let whole = fs::read(&metrics).unwrap();
    let line_ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
    for (len, lines) in
        [(line_ends[11] - 5, 11), (line_ends[8] + 1, 9), (line_ends[8] + 9, 9), (line_ends[7] + 1, 8)]
    {
        fs::write(&metrics, &whole[..len]).unwrap();
        let output = trainer(folder, &["train", "--resume", "run", "--steps", "14"]);
        let said = told(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let way = "the checkpoint before it is whole: --resume run/checkpoints/step-00000008";
        assert!(said.contains("metrics.jsonl: damaged: ") && said.contains(way), "{lines} lines: {said}");
    }
    // Nothing fits fewer lines than the oldest checkpoint has steps.
    fs::write(&metrics, &whole[..line_ends[5] + 1]).unwrap();
    let said = told(&trainer(folder, &["train", "--resume", "run", "--steps", "14"]));
    assert!(said.trim_end().ends_with("6 lines, but 12 steps are done"), "{said}");
    fs::write(&metrics, &whole[..line_ends[11] - 5]).unwrap();
    let older = "run/checkpoints/step-00000008";
    fs::remove_file(folder.join("run/summary.json")).unwrap();
    let shown = done(folder, &["train", "--resume", older]);
    assert!(shown.contains("Resuming at step 8 of 12"), "{shown}");
    assert_eq!(fs::read_to_string(&metrics).unwrap().lines().count(), 12);
}

#[test]
fn a_comparison_continues_from_the_checkpoint_that_its_record_reaches() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let begin = ["--codec", "none", "--steps", "12", "--checkpoint-every", "4", "--out", "c"];
    done(folder, &[&["compare"][..], &begin, &SMALL].concat());
    let run = folder.join("c/none-seed-1");
    let hash = |run: &Path| {
        let text = fs::read_to_string(run.join("summary.json")).unwrap();
        text.lines().find(|line| line.contains("params_hash")).unwrap().to_owned()
    };
    let before = hash(&run);
    let whole = fs::read(run.join("metrics.jsonl")).unwrap();
    for (cut, way) in [(200, "continuing from step 8"), (whole.len() * 2 / 3, "starting this run again")] {
        fs::remove_file(run.join("summary.json")).unwrap();
        fs::write(run.join("metrics.jsonl"), &whole[..whole.len() - cut]).unwrap();
        let output = trainer(folder, &["compare", "--resume", "c"]);
        assert!(output.status.success() && told(&output).contains(way), "{}", told(&output));
        assert_eq!(hash(&run), before, "the bits of a run that was never stopped");
    }
}

/// The smallest data set in IDX files: images of 2×2 pixels in ten classes.
fn put_images(folder: &Path, first: u8) {
    fs::create_dir_all(folder).unwrap();
    for (part, count) in [("train", 64_u32), ("t10k", 16)] {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        let mut images = words(&[0x803, count, 2, 2]);
        images.extend((0..4 * count).map(|at| (at * 37 % 251) as u8));
        *images.last_mut().unwrap() = first;
        let mut labels = words(&[0x801, count]);
        labels.extend((0..count).map(|at| (at % 10) as u8));
        fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_of_data_is_written_down_exactly_whatever_its_name() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;
    let folder = tempfile::tempdir().unwrap();
    for (number, name) in
        [&b"donn\xe9es"[..], b"\xff\xfe", "größe 🙂".as_bytes(), b"with \"quotes\" and\nlines"]
            .into_iter()
            .enumerate()
    {
        let data = folder.path().join(OsString::from_vec(name.to_vec()));
        put_images(&data, 7);
        let run = |arguments: &[&str], data: Option<&Path>| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_trainer"));
            program.args(arguments).current_dir(folder.path());
            if let Some(data) = data {
                program.arg("--data-dir").arg(data);
            }
            program.output().unwrap()
        };
        let (out, grid) = (format!("run{number}"), format!("c{number}"));
        let task = ["--data", "mnist", "--steps", "3"];
        for command in [
            [&["train", "--out", &out][..], &task, &SMALL].concat(),
            [&["compare", "--codec", "none", "--out", &grid][..], &task, &SMALL].concat(),
        ] {
            let output = run(&command, Some(&data));
            assert!(output.status.success(), "{name:?}: {}", told(&output));
        }
        for file in [
            format!("{out}/config.toml"),
            format!("{grid}/grid.toml"),
            format!("{grid}/none-seed-1/config.toml"),
        ] {
            let text = fs::read_to_string(folder.path().join(&file)).unwrap();
            assert!(text.contains("data = \"mnist\"") && text.contains("data_dir = "), "{file}: {text}");
        }
        let resume = ["train", "--resume", &out, "--steps", "5"];
        // Other data under the same name are refused, and so is none.
        put_images(&data, 8);
        let output = run(&resume, None);
        assert_eq!(output.status.code(), Some(2));
        assert!(told(&output).contains("other data than the run began with: CRC-32 "), "{}", told(&output));
        let output = run(&["compare", "--resume", &grid, "--steps", "5"], None);
        let said = told(&output);
        assert!(said.contains(": other data (CRC-32 ") && said.contains("that none in c"), "{said}");
        assert!(!said.contains("changed since"), "the settings are what they were: {said}");
        fs::rename(&data, folder.path().join("away")).unwrap();
        assert_eq!(run(&resume, None).status.code(), Some(2));
        fs::rename(folder.path().join("away"), &data).unwrap();
        put_images(&data, 7);
        for command in [&resume[..], &["compare", "--resume", &grid, "--steps", "5"]] {
            let output = run(command, None);
            assert!(output.status.success(), "{name:?}: {}", told(&output));
            assert!(String::from_utf8_lossy(&output.stdout).contains("mlp on mnist"));
        }
    }
}

#[test]
fn numbers_that_cannot_be_written_down_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, key) in [
        (&["train", "--seed", "18446744073709551615"][..], "seed = 18446744073709551615: expected at most"),
        (&["train", "--seed", "9223372036854775808"], "seed = 9223372036854775808: expected at most"),
        (&["train", "--eval-every", "9223372036854775808"], "eval_every = 9223372036854775808"),
        (
            &["compare", "--codec", "none", "--seeds", "2", "--seed", "9223372036854775807"],
            "seed = 9223372036854775808",
        ),
        (&["compare", "--codec", "none", "--seed", "18446744073709551615"], "seed = 18446744073709551615"),
    ] {
        let said = refused(folder.path(), &[arguments, &["--out", "x"]].concat());
        assert!(said.contains(key), "{arguments:?}: {said}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments:?}");
    }
}

#[test]
fn a_codec_with_settings_of_any_length_has_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let list: Vec<String> = (1..60).map(|step| format!("{}=0.{step:02}", step - 1)).collect();
    let own = [1, 2].map(|last| format!("adapt=steps:{},60=0.{last}", list.join(",")));
    let begin =
        ["compare", "--codec", "topk", &own[0], "--codec", "topk", &own[1], "--out", "c", "--steps", "2"];
    done(folder.path(), &[&begin[..], &SMALL].concat());
    done(folder.path(), &["compare", "--resume", "c"]);
    let runs = fs::read_dir(folder.path().join("c"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(runs.count(), 2);
}
