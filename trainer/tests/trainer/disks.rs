//! Disks that fail in the middle of a run: real file systems, which only root may mount. And programs that
//! change the records of a run meanwhile.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const RUN: [&str; 10] =
    ["--hidden", "8", "--workers", "1", "--batch", "32", "--eval-every", "0", "--steps", "3000"];

/// Runs `$COMMAND` on an ext4 of its own, and does `$FAULT` to it when 30 lines of metrics are there. Then
/// mounts it again, as after a restart, and copies what is there. Ends with the code of the command, or with
/// 77 if this machine mounts nothing.
const SCRIPT: &str = r#"
cd "$1" && truncate -s 32M disk && mkfs.ext4 -q disk && mkdir m || exit 77
mount -o loop,errors=remount-ro disk m || exit 77
device=$(basename "$(findmnt -no SOURCE m)")
[ -w "/sys/fs/ext4/$device/trigger_fs_error" ] || exit 77
eval "$COMMAND" >out 2>err &
command=$!
until [ "$(cat m/metrics.jsonl m/*/metrics.jsonl m/*/*/metrics.jsonl 2>/dev/null | wc -l)" -ge 30 ]; do
    kill -0 $command 2>/dev/null || break
    sleep 0.01
done
eval "$FAULT"
wait $command
code=$?
umount m 2>/dev/null
ls -A m >left
e2fsck -fy disk >fsck 2>&1
mount -o loop disk m && cp -a m after
eval "$AGAIN" >again 2>&1 || exit 78
exit $code
"#;
/// What the kernel does when the disk fails.
const READ_ONLY: &str = r#"echo 1 >"/sys/fs/ext4/$device/trigger_fs_error""#;
const UNMOUNTED: &str = "umount -l m";

/// `None`, and saying so, where nothing can be mounted.
fn with_fault(folder: &Path, command: &str, fault: &str, again: &str) -> Option<Output> {
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "bash", "-c", SCRIPT, "bash"]).arg(folder);
    let trainer = env!("CARGO_BIN_EXE_trainer");
    shell.env("COMMAND", format!("exec {trainer} {command}")).env("FAULT", fault);
    let output = shell.env("AGAIN", again.replace("trainer ", &format!("{trainer} "))).output().ok()?;
    // In a container there may be no namespace to mount in; the script then does not begin.
    if !folder.join("left").exists() {
        println!("skipped: this user mounts no file system: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(output)
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every record below is whole.
fn assert_whole(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            assert_whole(&path);
        } else if name.ends_with(".jsonl") {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.is_empty() || text.ends_with('\n'), "{}: half a line", path.display());
            for line in text.lines() {
                serde_json::from_str::<serde_json::Value>(line).unwrap();
            }
        } else if name != ".lock" {
            assert!(fs::metadata(&path).unwrap().len() > 0, "{} is empty", path.display());
        }
    }
}

fn hash(said: &str) -> &str {
    said.lines().find_map(|line| line.strip_prefix("parameters: ")).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn a_disk_that_turns_read_only_ends_a_run_which_goes_on_to_the_same_bits() {
    let undisturbed = tempfile::tempdir().unwrap();
    let whole = super::command_line::trainer(undisturbed.path(), &[&["train"][..], &RUN].concat());
    let whole = String::from_utf8(whole.stdout).unwrap();
    for every in ["5", "1000"] {
        let folder = tempfile::tempdir().unwrap();
        let command = format!("train --out m/run --checkpoint-every {every} {}", RUN.join(" "));
        let again = if every == "5" { "trainer train --resume m/run" } else { "true" };
        let Some(output) = with_fault(folder.path(), &command, READ_ONLY, again) else { return };
        let said = read(folder.path(), "err");
        assert_eq!(output.status.code(), Some(1), "{said} {}", String::from_utf8_lossy(&output.stderr));
        let last = said.lines().last().unwrap();
        // What is being flushed at that moment fails as the disk does.
        let is_said = ["Read-only file system", "Input/output error"].iter().any(|why| last.contains(why));
        assert!(last.contains("m/run/") && is_said, "{said}");
        let way_out = if every == "5" {
            " steps are kept; go on with: "
        } else {
            "; there is no checkpoint to go on from"
        };
        assert!(last.contains(way_out), "{said}");
        assert_whole(&folder.path().join("after"));
        if every == "5" {
            assert!(last.ends_with("train --resume m/run"), "{said}");
            assert_eq!(hash(&read(folder.path(), "again")), hash(&whole));
        }
    }
}

#[test]
fn a_comparison_on_a_disk_that_turns_read_only_shows_its_table_and_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let command = format!("compare --codec none --codec topk --out m/c {}", RUN.join(" "));
    let again = "trainer compare --resume m/c";
    let Some(output) = with_fault(folder.path(), &command, READ_ONLY, again) else { return };
    let (shown, said) = (read(folder.path(), "out"), read(folder.path(), "err"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(shown.contains("none") && shown.contains("Read-only file system"), "{shown}");
    let last = said.lines().last().unwrap();
    assert!(last.contains("m/c/summary.json: Read-only file system"), "{said}");
    assert!(last.ends_with("compare --resume m/c"), "{said}");
    assert_whole(&folder.path().join("after"));
    let again = read(folder.path(), "again");
    assert!(again.contains("accuracy") && !again.contains("failed"), "{again}");
}

#[test]
fn a_disk_that_is_unmounted_ends_a_run_and_nothing_of_it_appears_below() {
    for every in ["0", "5"] {
        let folder = tempfile::tempdir().unwrap();
        let command =
            format!("train --out m --checkpoint-every {every} {}", RUN.join(" ").replace("3000", "1000000"));
        // The run's folder is the root of the disk, so that there is a folder of its name below.
        let Some(output) = with_fault(folder.path(), &command, UNMOUNTED, "true") else { return };
        let said = read(folder.path(), "err");
        assert_eq!(output.status.code(), Some(1), "{said}");
        // A checkpoint that is being written loses its folder.
        let is_said = ["unmounted?", "No such file or directory"].iter().any(|why| said.contains(why));
        assert!(said.contains(": m/") && is_said, "{said}");
        assert_eq!(read(folder.path(), "left"), "", "{every}: {said}");
    }
}

/// What `logrotate` does, with `create`, `copytruncate` and `olddir`, and a program that writes too.
#[test]
fn a_record_that_another_program_changes_ends_the_run_with_both_lengths() {
    type Change = fn(&Path);
    let changes: [(Change, &str); 4] = [
        (
            |lines| {
                fs::rename(lines, lines.with_extension("1")).unwrap();
                fs::write(lines, "").unwrap();
            },
            "it is not the file that was here, 0 bytes instead of ",
        ),
        (
            |lines| fs::File::options().write(true).open(lines).unwrap().set_len(0).unwrap(),
            "it was cut or written to, ",
        ),
        (|lines| fs::rename(lines, lines.with_extension("1")).unwrap(), "it was here and is gone: "),
        (
            |lines| {
                let mut file = fs::File::options().append(true).open(lines).unwrap();
                std::io::Write::write_all(&mut file, b"mine\n").unwrap();
            },
            "it was cut or written to, ",
        ),
    ];
    for (change, expected) in changes {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_trainer"));
        program.args(["train", "--out", "run"]).args(&RUN[..8]).args(["--steps", "100000000"]);
        program.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = program.spawn().unwrap();
        let (lines, start) = (folder.path().join("run/metrics.jsonl"), Instant::now());
        while fs::metadata(&lines).map_or(0, |found| found.len()) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(2));
        }
        change(&lines);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("run/metrics.jsonl: {expected}")), "{said}");
    }
}
