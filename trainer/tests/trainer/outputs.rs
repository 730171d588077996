//! Files in and out of the commands, as a user meets them: names, places, permissions, file systems.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::command_line::trainer;

const SMALL: [&str; 10] =
    ["--hidden", "8", "--workers", "1", "--batch", "32", "--eval-every", "0", "--steps", "3"];

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn done(folder: &Path, arguments: &[&str]) {
    let output = trainer(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
}

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = trainer(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", told(&output));
    told(&output).trim_end().strip_prefix("trainer: ").unwrap().to_owned()
}

/// A gradient of eight values, as a safetensors file.
pub(super) fn gradient() -> Vec<u8> {
    let header = br#"{"w":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}         "#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend((0..8).flat_map(|value| (value as f32 - 3.5).to_le_bytes()));
    file
}

/// Every command that writes a file, with a file that it reads and the option before its result.
fn writers() -> Vec<(Vec<&'static str>, &'static str, &'static str)> {
    let encode = vec!["codec", "encode", "--codec", "topk:density=0.5", "--input", "gradient"];
    let decode = vec!["codec", "decode", "--input", "frame"];
    let advise = vec![
        "advise",
        "--compute-ms",
        "5",
        "--codec",
        "f16",
        "--iters",
        "1",
        "--workers",
        "2",
        "--input",
        "gradient",
    ];
    let priced = vec!["advise", "--compute-ms", "5", "--costs", "costs"];
    vec![
        (encode, "gradient", "--output"),
        (decode.clone(), "frame", "--output"),
        ([decode, vec!["--layout", "gradient"]].concat(), "gradient", "--output"),
        (advise.clone(), "gradient", "--save-costs"),
        (advise, "gradient", "--heat-map"),
        (priced.clone(), "costs", "--heat-map"),
        (priced, "costs", "--save-costs"),
        (vec!["report", "run"], "run/metrics.jsonl", "--out"),
        (vec!["report", "run"], "run/config.toml", "--out"),
        (vec!["report", "run/metrics.jsonl"], "run/summary.json", "--out"),
    ]
}

#[test]
fn no_result_takes_the_place_of_what_is_read_by_any_path() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("gradient"), gradient()).unwrap();
    fs::create_dir(at("below")).unwrap();
    done(folder.path(), &[&["train", "--out", "run"][..], &SMALL].concat());
    done(folder.path(), &["codec", "encode", "--codec", "f16", "--input", "gradient", "--output", "frame"]);
    let ask = ["advise", "--compute-ms", "5", "--codec", "f16", "--iters", "1", "--input", "gradient"];
    done(folder.path(), &[&ask[..], &["--save-costs", "costs"]].concat());
    for (command, input, option) in writers() {
        let before = fs::read(at(input)).unwrap();
        let mut paths = vec![input.to_owned(), format!("below/../{input}"), at(input).display().to_string()];
        fs::hard_link(at(input), at("hard")).unwrap();
        paths.push("hard".to_owned());
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at(input), at("soft")).unwrap();
            std::os::unix::fs::symlink("soft", at("softer")).unwrap();
            paths.extend(["soft", "softer"].map(str::to_owned));
        }
        for path in &paths {
            for force in [&[][..], &["--force"]] {
                let said = refused(folder.path(), &[&command[..], &[option, path], force].concat());
                assert!(said.contains(": the same file as "), "{command:?} {path}: {said}");
            }
        }
        assert_eq!(fs::read(at(input)).unwrap(), before, "{command:?}");
        // Another file is kept without --force, and replaced with it.
        fs::write(at("other"), "kept").unwrap();
        let result = [&command[..], &[option, "other"]].concat();
        let said = refused(folder.path(), &result);
        assert!(said.starts_with("other: exists already; ") && said.contains("--force"), "{said}");
        assert_eq!(fs::read_to_string(at("other")).unwrap(), "kept");
        done(folder.path(), &[&result[..], &["--force"]].concat());
        assert_ne!(fs::read(at("other")).unwrap(), b"kept");
        for name in ["hard", "soft", "softer"] {
            let _ = fs::remove_file(at(name));
        }
    }
    let both = [&ask[..], &["--save-costs", "one", "--heat-map", "below/../one"]].concat();
    assert!(refused(folder.path(), &both).contains(": the same file as one"));
}

#[test]
fn a_folder_for_results_is_none_in_which_the_command_reads_what_it_would_write() {
    let folder = tempfile::tempdir().unwrap();
    let adapt = ["--codec", "topk", "--adapt", "steps:0=0.1"];
    done(folder.path(), &[&["train", "--out", "run"][..], &SMALL, &adapt].concat());
    done(folder.path(), &[&["compare", "--codec", "none", "--out", "c"][..], &SMALL].concat());
    let replay = "replay:run/metrics.jsonl";
    let before = fs::read(folder.path().join("run/metrics.jsonl")).unwrap();
    for (arguments, file) in [
        (vec!["train", "--config", "run/config.toml", "--out", "run", "--force"], "config.toml"),
        (vec!["train", "--config", "c/../run/config.toml", "--out", "run/../run", "--force"], "config.toml"),
        (
            vec!["train", "--codec", "topk", "--steps", "3", "--adapt", replay, "--out", "run", "--force"],
            "metrics.jsonl",
        ),
        (vec!["compare", "--grid", "c/grid.toml", "--out", "c", "--force"], "grid.toml"),
        (
            vec![
                "compare",
                "--codec",
                "none",
                "--config",
                "c/none-seed-1/config.toml",
                "--out",
                "c",
                "--force",
            ],
            "config.toml",
        ),
    ] {
        let said = refused(folder.path(), &arguments);
        assert!(said.contains(&format!("{file}: the same file as ")), "{arguments:?}: {said}");
    }
    assert_eq!(fs::read(folder.path().join("run/metrics.jsonl")).unwrap(), before);
    done(folder.path(), &["train", "--config", "run/config.toml", "--out", "again"]);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_no_place_for_a_result() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gradient"), gradient()).unwrap();
    std::os::unix::fs::symlink("nothing", folder.path().join("dangling")).unwrap();
    let made = Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    assert!(made.unwrap().success());
    let encode = ["codec", "encode", "--codec", "f16", "--input", "gradient", "--output"];
    for (path, expected) in [
        ("pipe", "a pipe, not a file"),
        ("/dev/stdout", "a pipe, not a file"),
        (".", "a folder, not a file"),
        ("dangling", "a link to nothing, which does not exist"),
        ("none/frame", "No such file or directory"),
        ("gradient/frame", "Not a directory"),
        (&"n".repeat(300), "File name too long"),
    ] {
        for force in [&[][..], &["--force"]] {
            let said = refused(folder.path(), &[&encode[..], &[path], force].concat());
            assert!(said.contains(expected) && !said.contains(".gradwire-"), "{path}: {said}");
        }
    }
}

#[cfg(unix)]
#[test]
fn files_have_the_permissions_that_the_umask_leaves() {
    use std::os::unix::fs::PermissionsExt;
    fn modes(folder: &Path, all: &mut Vec<(String, u32)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            all.push((path.display().to_string(), mode & if path.is_dir() { 0o077 } else { 0o177 }));
            if path.is_dir() {
                modes(&path, all);
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for (umask, dir, file) in [("077", 0, 0), ("022", 0o055, 0o044), ("027", 0o050, 0o040)] {
        let script = format!("umask {umask}; exec \"$0\" train --out run{umask} {}", SMALL.join(" "));
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_trainer")]).current_dir(folder.path());
        assert!(shell.output().unwrap().status.success());
        let (run, mut all) = (folder.path().join(format!("run{umask}")), Vec::new());
        modes(&run, &mut all);
        assert!(all.len() > 8, "{all:?}");
        for (path, mode) in all {
            let expected = if Path::new(&path).is_dir() { dir } else { file };
            assert_eq!(format!("{mode:o}"), format!("{expected:o}"), "umask {umask}: {path}");
        }
    }
}

/// Makes one call of the system fail as a file system without it does.
#[cfg(target_os = "linux")]
const WITHOUT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
static int fails(const char *call) {
    const char *said = getenv("WITHOUT");
    size_t len = strlen(call);
    if (!said || strncmp(said, call, len) || said[len] != ':') return 0;
    errno = atoi(said + len + 1);
    return 1;
}
static int next(const char *name, int fd) { return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd); }
int flock(int fd, int how) { return fails("flock") ? -1 : ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, how); }
int fchmod(int fd, mode_t mode) { return fails("fchmod") ? -1 : ((int (*)(int, mode_t))dlsym(RTLD_NEXT, "fchmod"))(fd, mode); }
int fsync(int fd) {
    struct stat is;
    if (!fstat(fd, &is) && S_ISDIR(is.st_mode) && fails("fsyncdir")) return -1;
    return fails("fsync") ? -1 : next("fsync", fd);
}
/* Each look finds the clock an hour before the last one. */
int clock_gettime(clockid_t id, struct timespec *now) {
    static long looks;
    int said = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(id, now);
    if (!said && id == CLOCK_REALTIME && fails("clock")) now->tv_sec -= 3600 * ++looks;
    return said;
}
int fdatasync(int fd) { return fails("fsync") ? -1 : next("fdatasync", fd); }
"#;

/// Runs the trainer with a call of the system changed.
#[cfg(target_os = "linux")]
fn compiled(folder: &Path) -> impl Fn(&str, &[&str]) -> Output {
    let library = folder.join("without.so");
    fs::write(folder.join("without.c"), WITHOUT).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", "without.so", "without.c", "-ldl"]).current_dir(folder);
    assert!(compiler.status().unwrap().success());
    move |without, arguments| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_trainer"));
        program.args(arguments).env("LD_PRELOAD", &library).env("WITHOUT", without);
        program.current_dir(library.parent().unwrap()).output().unwrap()
    }
}

/// At every look, as no clock of a real machine does.
#[cfg(target_os = "linux")]
#[test]
fn a_clock_that_is_set_back_changes_no_bit_and_no_duration() {
    let folder = tempfile::tempdir().unwrap();
    let run = compiled(folder.path());
    let hash_and_date = |without: &str| {
        let own = ["train", "--out", without, "--log-format", "time", "--tensorboard"];
        let output = run(without, &[&own[..], &SMALL[..8], &["--steps", "40"]].concat());
        assert!(output.status.success(), "{}", told(&output));
        let read = |name: &str| fs::read_to_string(folder.path().join(without).join(name)).unwrap();
        let json = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
        for line in read("metrics.jsonl").lines().map(json) {
            for key in ["compute_ns", "encode_ns", "exchange_ns", "decode_ns"] {
                assert!(line[key].as_u64().unwrap() < 60_000_000_000, "{without}: {line}");
            }
        }
        let summary = json(&read("summary.json"));
        ["/params_hash", "/origin/date"].map(|key| summary.pointer(key).unwrap().to_string())
    };
    let ([hash, date], [other_hash, earlier]) = (hash_and_date("nothing"), hash_and_date("clock:1"));
    assert_eq!(hash, other_hash);
    assert!(earlier < date, "{earlier} {date}: the clock was not set back");
}

#[cfg(target_os = "linux")]
#[test]
fn a_call_that_a_file_system_lacks_ends_no_run_and_is_noted_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = compiled(folder.path());
    // EPERM, EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP, ENOTSUPP.
    for (without, notes) in [
        ("fsyncdir:22", 1),
        ("fsyncdir:1", 1),
        ("fsyncdir:38", 1),
        ("fsync:22", 2),
        ("fsync:95", 2),
        ("flock:37", 1),
        ("flock:38", 1),
        ("flock:95", 1),
        ("flock:524", 1),
        ("fchmod:1", 0),
        ("fchmod:95", 0),
    ] {
        let out = without.replace(':', "-");
        let began = ["train", "--out", &out, "--checkpoint-every", "1"];
        let longer = ["train", "--resume", &out, "--steps", "5"];
        for arguments in [[&began[..], &SMALL].concat(), longer.to_vec()] {
            let output = run(without, &arguments);
            let said = told(&output);
            assert!(output.status.success(), "{without}: {said}");
            assert_eq!(said.matches("trainer: note: ").count(), notes, "{without}: {said}");
        }
    }
    // A disk that fails is another matter: EIO, ENOSPC.
    for without in ["fsync:5", "fsyncdir:5", "fsync:28"] {
        let output = run(without, &[&["train", "--out", &without.replace(':', "-")][..], &SMALL].concat());
        assert_eq!(output.status.code(), Some(1), "{without}: {}", told(&output));
    }
}

/// Files longer than so many KiB cannot be written: what a full disk looks like to a program.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_of_the_file_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gradient"), gradient()).unwrap();
    let small = &SMALL[..8];
    // Its checkpoints are longer than its first lines of metrics.
    let wide = [&["--hidden", "64"], &small[2..]].concat();
    let train = ["train", "--steps", "60", "--checkpoint-every", "20", "--force", "--out", "run"];
    let compare = ["compare", "--steps", "60", "--codec", "none", "--force", "--out", "c"];
    let encode = ["codec", "encode", "--codec", "f16", "--input", "gradient", "--output", "frame"];
    let advise = ["advise", "--compute-ms", "5", "--codec", "f16", "--iters", "1", "--input", "gradient"];
    let commands: [(Vec<&str>, &[u32]); 4] = [
        ([&train[..], &wide].concat(), &[0, 1, 4, 8, 16]),
        ([&compare[..], small].concat(), &[0, 4, 32]),
        (encode.to_vec(), &[0]),
        ([&advise[..], &["--save-costs", "costs"]].concat(), &[0]),
    ];
    let mut blamed = std::collections::BTreeSet::new();
    let tries =
        commands.iter().flat_map(|(command, limits)| limits.iter().map(move |limit| (command, limit)));
    for (command, limit) in tries {
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("bash");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_trainer")]).args(command).current_dir(folder.path());
        let output = shell.output().unwrap();
        let said = told(&output);
        assert_eq!(output.status.success(), !said.contains("File too large"), "{limit} {command:?}: {said}");
        assert!([".gradwire-", ".draft-", ".tmp"].iter().all(|name| !said.contains(name)), "{said}");
        let place = said.split_once(": File too large").and_then(|(before, _)| before.rsplit(' ').next());
        blamed.extend(place.map(str::to_owned));
        let lines = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap_or_default();
        assert!(lines.is_empty() || lines.ends_with('\n'), "{limit} {command:?}: half a line is left");
        let mut drafts = Command::new("find");
        drafts.arg(folder.path()).args(["-name", ".gradwire-*", "-o", "-name", ".draft-*"]);
        assert!(drafts.output().unwrap().stdout.is_empty(), "{limit} {command:?}");
    }
    for file in ["run/config.toml", "run/metrics.jsonl", "c/grid.toml", "frame", "costs"] {
        assert!(blamed.contains(file), "{file}: {blamed:?}");
    }
    assert!(blamed.iter().any(|file| file.starts_with("run/checkpoints/step-000000")), "{blamed:?}");
}

#[test]
fn what_cannot_be_written_at_the_end_is_shown_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let compare = ["compare", "--codec", "none", "--codec", "topk", "--force", "--out", "c"];
    for name in ["report.html", "results.csv", "summary.json"] {
        let _ = fs::remove_dir_all(folder.path().join("c"));
        // Nothing can take the place of a folder that holds something.
        fs::create_dir_all(folder.path().join("c").join(name).join("full")).unwrap();
        let output = trainer(folder.path(), &[&compare[..], &SMALL].concat());
        let (shown, said) = (String::from_utf8_lossy(&output.stdout), told(&output));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(shown.contains("accuracy") && shown.contains("topk:density=0.01"), "{shown}");
        assert!(said.contains(name) && said.contains("the results are shown above"), "{said}");
    }
    let _ = fs::remove_dir_all(folder.path().join("run"));
    fs::create_dir_all(folder.path().join("run/report.html/full")).unwrap();
    let output = trainer(folder.path(), &[&["train", "--force", "--out", "run"][..], &SMALL].concat());
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("accuracy"));
}

/// A run that nobody can read ends soon, with or without checkpoints.
#[cfg(unix)]
#[test]
fn a_folder_that_is_taken_away_ends_its_run_and_no_half_of_one_appears() {
    let long = [&SMALL[..8], &["--steps", "100000000", "--codec", "none"]].concat();
    for (command, run, checkpoints) in
        [("train", "out", "0"), ("train", "out", "5"), ("compare", "out/none-seed-1", "0")]
    {
        for is_moved in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let mut program = Command::new(env!("CARGO_BIN_EXE_trainer"));
            program.args([command, "--out", "out", "--checkpoint-every", checkpoints]).args(&long);
            program.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = program.spawn().unwrap();
            let lines = folder.path().join(run).join("metrics.jsonl");
            wait_until(|| fs::metadata(&lines).is_ok_and(|found| found.len() > 0));
            match is_moved {
                true => fs::rename(folder.path().join("out"), folder.path().join("elsewhere")).unwrap(),
                // It may be written to meanwhile.
                false => wait_until(|| fs::remove_dir_all(folder.path().join("out")).is_ok()),
            }
            wait_until(|| child.try_wait().unwrap().is_some());
            let output = child.wait_with_output().unwrap();
            let said = told(&output);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(
                said.contains("out/") && (said.contains("is gone") || said.contains("No such file")),
                "{said}"
            );
            assert!(!folder.path().join("out").exists(), "{command}: {said}");
        }
    }
}

#[cfg(unix)]
fn wait_until(mut is_true: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_true() {
        assert!(start.elapsed().as_secs() < 60);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Runs a command in a folder that is mounted a second time, to be read only.
#[cfg(target_os = "linux")]
fn read_only(folder: &Path, arguments: &[&str]) -> Output {
    let mounts = "mount --bind . . && mount -o remount,bind,ro . && cd \"$PWD\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", mounts, "sh"]).args(arguments);
    command.current_dir(folder).output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn where_nothing_can_be_written_a_command_says_so_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    if !read_only(folder.path(), &["true"]).status.success() {
        println!("skipped: this kernel gives users no namespaces of their own");
        return;
    }
    done(folder.path(), &[&["train", "--out", "run"][..], &SMALL].concat());
    done(folder.path(), &[&["compare", "--codec", "none", "--out", "c"][..], &SMALL].concat());
    fs::write(folder.path().join("gradient"), gradient()).unwrap();
    for (command, place) in [
        (&["train", "--out", "new"][..], "new"),
        (&["train", "--resume", "run", "--steps", "5"], "run"),
        (&["train", "--resume-or-start", "other/new"], "other/new"),
        (&["compare", "--codec", "none", "--out", "d"], "d"),
        (&["compare", "--resume", "c", "--steps", "5"], "c"),
        (&["report", "run", "--out", "r.html"], "r.html"),
        (&["codec", "encode", "--codec", "f16", "--input", "gradient", "--output", "frame"], "frame"),
        (&[], "runs/quickstart"),
    ] {
        let output = read_only(folder.path(), &[&[env!("CARGO_BIN_EXE_trainer")], command].concat());
        let (code, said) = (output.status.code(), told(&output));
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{command:?}: {said}");
        assert!(said.starts_with(&format!("trainer: {place}: Read-only file system")), "{command:?}: {said}");
        assert!(output.stdout.is_empty(), "{command:?}");
    }
}

/// The message names what is there, not what the system says of it.
#[cfg(unix)]
#[test]
fn what_is_no_folder_is_no_place_for_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "mine").unwrap();
    std::os::unix::fs::symlink("nothing", at("dangling")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for (path, said) in [
        ("file", "file: a file, not a folder"),
        ("file/below", "file: a file, not a folder"),
        ("dangling", "dangling: a link to nothing, which does not exist, not a folder"),
        ("dangling/below", "dangling: a link to nothing, which does not exist, not a folder"),
        ("loop", "loop: a link to loop, which leads nowhere: "),
        ("pipe", "pipe: a pipe, not a folder"),
        ("/dev/null", "/dev/null: a device, not a folder"),
    ] {
        for force in [&[][..], &["--force"]] {
            for command in ["train", "compare"] {
                let arguments = [command, "--codec", "none", "--steps", "1", "--out", path];
                let error = refused(folder.path(), &[&arguments[..], force].concat());
                assert!(error.contains(said) && error.contains("give another --out"), "{path}: {error}");
            }
        }
    }
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "mine");
    assert!(!at("nothing").exists());
    let from_nowhere = "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" train --steps 1 --out run";
    let mut shell = Command::new("sh");
    shell.args(["-c", from_nowhere, env!("CARGO_BIN_EXE_trainer")]).current_dir(folder.path());
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("run: the current folder was removed; "), "{}", told(&output));
}
