//! The binary as a user meets it.

use std::path::Path;
use std::process::{Command, Output};

use gradwire_trainer::config::{RunConfig, Settings};

use crate::word;

pub(super) fn trainer(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainer")).args(arguments).current_dir(folder).output().unwrap()
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// The one line that a refused command says; nothing may be written.
fn refusal(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    refusal_in(folder.path(), arguments)
}

pub(super) fn refusal_in(folder: &Path, arguments: &[&str]) -> String {
    let before = entries(folder);
    let output = trainer(folder, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(entries(folder), before, "{arguments:?} wrote something");
    said.trim_end().strip_prefix("trainer: ").unwrap().to_owned()
}

#[test]
fn bad_settings_are_refused_in_one_line() {
    for (arguments, message) in [
        (
            &["train", "--model", "rnn"][..],
            "invalid value 'rnn' for '--model <NAME>' [possible values: mlp, cnn, resnet20, gpt, lstm]; a similar value exists: 'cnn'",
        ),
        (
            &["train", "--codec", "topk:density=7"],
            "codec = topk:density=7: density=7: expected a fraction from 1e-9 to 1",
        ),
        (&["train", "--workers", "0"], "workers = 0: expected 1 to 256"),
        (&["train", "--batch", "130"], "batch = 130: expected a multiple of the 4 workers"),
        (&["train", "--lr", "0"], "lr = 0: expected above 0"),
        (&["train", "--lr", "-1"], "lr = -1: expected above 0"),
        (&["train", "--momentum", "-0.5"], "momentum = -0.5: expected at least 0, below 1"),
        (&["train", "--clip", "-1"], "clip = -1: expected above 0"),
        (
            &["train", "--resume", "x", "--lr", "1"],
            "--resume takes no other option but --epochs or --steps: the settings of the run are in its folder",
        ),
        (
            &["train", "--transport", "zmq"],
            "transport = zmq: expected local here; over ZeroMQ a run has a server, `serve`, and workers, `join`",
        ),
        (&["train", "--lr", "fast"], "invalid value 'fast' for '--lr <X>': expected a number, such as 0.1"),
        (
            &["train", "--steps", "1e3"],
            "invalid value '1e3' for '--steps <N>': expected digits only, such as 1000",
        ),
        (
            &["train", "--seed", "-1"],
            "invalid value '-1' for '--seed <N>': expected digits only, such as 1000",
        ),
        (
            &["train", "--eval-every", "-5"],
            "invalid value '-5' for '--eval-every <N>': expected digits only, such as 1000",
        ),
        (
            &["train", "--seed", "18446744073709551616"],
            "invalid value '18446744073709551616' for '--seed <N>': the number is too large",
        ),
        (&["train", "--momentum", "-1"], "momentum = -1: expected at least 0, below 1"),
        (&["train", "--epochs", "1", "--steps", "1"], "epochs and steps: give one of them"),
        (
            &["train", "--transport", "pigeon"],
            "invalid value 'pigeon' for '--transport <KIND>' [possible values: local, mpi, tcp, zmq]",
        ),
        (
            &["train", "--wire", "bf61"],
            "invalid value 'bf61' for '--wire <KIND>' [possible values: f32, bf16]; a similar value exists: 'bf16'",
        ),
        (&["train", "--momentum", "2"], "momentum = 2: expected at least 0, below 1"),
        (&["train", "--nesterov"], "nesterov = true: expected false, or a momentum above 0"),
        (
            &["train", "--hidden", "8", "--model", "cnn"],
            "hidden with model = cnn: it belongs to mlp, gpt and lstm",
        ),
        (
            &["train", "--data", "tiny-shakespeare", "--hidden", "64,32"],
            "hidden with model = gpt: give the same width for each block",
        ),
        (
            &["train", "--data", "characters", "--model", "lstm", "--hidden", "8,8"],
            "hidden with model = lstm: give one width, which all its layers have",
        ),
        (&["train", "--dropout", "0.5"], "bptt, dropout with model = mlp: they belong to lstm"),
        (&["compare", "--codec", "none", "--seeds", "0"], "seeds = 0: expected 1 to 1000"),
        (&["train", "--unheard-of"], "unexpected argument '--unheard-of' found"),
        (&["compare"], "the following required arguments were not provided: --codec <SPEC>..."),
    ] {
        assert_eq!(refusal(arguments), message);
    }
}

/// At the rate of other images its loss jumps, and with four workers it diverges.
#[test]
fn rates_that_are_not_given_suit_the_model_and_the_data() {
    let rate = |data: &str, model: &str, optimizer: &str| {
        let (data, model, optimizer) = (Some(word(data)), Some(word(model)), Some(word(optimizer)));
        RunConfig::resolve(&Settings { data, model, optimizer, ..Settings::default() }).unwrap().lr
    };
    assert_eq!([rate("cifar-10", "mlp", "sgd"), rate("cifar-10", "mlp", "adamw")], [0.05, 0.001]);
    for data in ["optdigits", "mnist", "fashion-mnist"] {
        assert_eq!([rate(data, "mlp", "sgd"), rate(data, "mlp", "adamw")], [0.3, 0.003], "{data}");
    }
    for (data, model) in
        [("cifar-10", "cnn"), ("optdigits", "cnn"), ("tiny-shakespeare", "gpt"), ("text", "gpt")]
    {
        assert_eq!([rate(data, model, "sgd"), rate(data, model, "adamw")], [0.1, 0.003], "{data}");
    }
}

#[test]
fn combinations_that_cannot_work_say_why() {
    let message = refusal(&["train", "--codec", "topk", "--exchange", "all-reduce"]);
    assert!(message.contains("cannot be summed"), "{message}");
    let message = refusal(&["train", "--codec", "qsgd", "--exchange", "sparse"]);
    assert!(message.contains("not sparse; use auto") && message.contains(": topk, "), "{message}");
    let message = refusal(&["train", "--optimizer", "adamw", "--momentum", "0.9"]);
    assert!(message.contains("it has moments of its own; momentum belongs to sgd"), "{message}");
    let message = refusal(&["train", "--codec", "none:memory=ef"]);
    assert!(message.contains("sends everything"), "{message}");
}

#[test]
fn data_that_is_missing_or_empty_is_refused_in_one_line() {
    let message = refusal(&["train", "--data", "mnist"]);
    assert!(message.starts_with("mnist: "), "{message}");
    let message = refusal(&["train", "--data", "mnist", "--data_dir", "/nonexistent"]);
    assert!(message.starts_with("/nonexistent: no such file"), "{message}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("text.txt"), "").unwrap();
    let message = refusal_in(folder.path(), &["train", "--data", "text", "--data_dir", "text.txt"]);
    assert!(message.contains("empty"), "{message}");
    std::fs::write(folder.path().join("text.txt"), "to be ".repeat(60)).unwrap();
    let message = refusal_in(folder.path(), &["train", "--data", "text", "--data-dir", "text.txt"]);
    let (most, ends) =
        (", or fewer workers; an example is a window of the training text, which has", " tokens");
    assert!(message.starts_with("training examples = 2: expected at least 4"), "{message}");
    assert!(message.contains(most) && message.ends_with(ends), "{message}");
    std::fs::write(folder.path().join("text.txt"), "to be ".repeat(10)).unwrap();
    let message = refusal_in(folder.path(), &["train", "--data", "text", "--data-dir", "text.txt"]);
    let expected = "training examples = 0: expected at least 4, one for each worker; an example is a window";
    assert!(message.starts_with(expected), "{message}");
    std::fs::write(folder.path().join("text.txt"), "to be or not ".repeat(60)).unwrap();
    let message = refusal_in(folder.path(), &["train", "--data", "text", "--data-dir", "text.txt"]);
    assert!(
        message.contains("for each of 4 workers: expected 1 to") && message.contains("for all"),
        "{message}"
    );
}

#[test]
fn records_and_tables_that_are_something_else_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let commands: [&[&str]; 4] = [
        &["report", "file"],
        &["train", "--codec", "topk", "--adapt", "replay:file"],
        &["advise", "--compute-ms", "1", "--costs", "file"],
        &["simulate", "file", "--cluster", "file"],
    ];
    for (content, expected) in [
        (&b"<!DOCTYPE html>\n<html>"[..], "this is an HTML page: the download gave"),
        (b"\x1f\x8b\x08\0\0\0", "this is a gzip file: unpack it first"),
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a pointer of Git LFS: fetch"),
        (b"\xff\xfes\0t\0", "this is UTF-16 text: save it as UTF-8"),
        (b"caf\xe9\n", "not UTF-8 text from byte 3 on"),
    ] {
        std::fs::write(&file, content).unwrap();
        for command in commands {
            let said = refusal_in(folder.path(), command);
            assert!(said.contains(&format!("file: {expected}")), "{command:?}: {said}");
        }
    }
    let lines = [
        ("{\"step\":0,\"loss\":NaN}\n", "line 1: NaN is not JSON: write null in its place"),
        ("{\"step\":0,\"loss\":-Infinity}\n", "line 1: Infinity is not JSON: write null"),
        ("[{\"step\":0}]\n", "line 1: a JSON array: write its objects one a line"),
    ];
    for (content, expected) in lines {
        std::fs::write(&file, content).unwrap();
        for command in &commands[..2] {
            let said = refusal_in(folder.path(), command);
            assert!(said.contains(expected), "{command:?}: {said}");
        }
    }
    std::fs::write(&file, "workers = 4\ngbps = fast\n").unwrap();
    std::fs::write(folder.path().join("metrics.jsonl"), "").unwrap();
    let said = refusal_in(folder.path(), &["simulate", "metrics.jsonl", "--cluster", "file"]);
    assert_eq!(said, "file: line 2: text needs quotes: gbps = \"fast\"");
}

#[test]
fn a_data_set_that_does_not_ship_says_which_files_its_folder_has() {
    for (name, file) in [
        ("mnist", "train-images-idx3-ubyte"),
        ("fashion-mnist", "t10k-labels-idx1-ubyte"),
        ("cifar-10", "test_batch.bin"),
        ("ptb", "ptb.train.txt"),
        ("wikitext-2", "wiki.train.tokens"),
        ("text", "train.txt"),
        ("characters", "train.txt"),
    ] {
        let said = refusal(&["train", "--data", name]);
        let begin = format!("{name}: it does not ship with the trainer: give --data-dir, the folder with ");
        assert!(said.starts_with(&begin) && said.contains(file), "{said}");
    }
}

#[test]
fn configuration_files_are_read_and_their_faults_located() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    for (content, message) in [
        ("steps = 5\nspeed = 3\n", "run.toml: line 2: unknown field `speed`"),
        ("steps = \"many\"\n", "run.toml: line 1: invalid type"),
        ("codec = [\n", "run.toml: line"),
        ("steps = 5\ncodec = topk\n", "run.toml: line 2: text needs quotes: codec = \"topk\""),
        ("data_dir = ~/data\n", "run.toml: line 1: text needs quotes: data_dir = \"~/data\""),
        ("data_dir = 5\n", "run.toml: line 1: expected a path: text"),
        ("{\"codec\": \"topk\"}\n", "run.toml: line 1: this is JSON, and TOML is wanted"),
        ("<!DOCTYPE html><html>", "run.toml: this is an HTML page: the download gave"),
        ("version https://git-lfs.github.com/spec/v1\n", "run.toml: this is a pointer of Git LFS: fetch"),
        ("PK\u{3}\u{4}\u{14}", "run.toml: this is a zip archive: unpack it first"),
    ] {
        std::fs::write(&file, content).unwrap();
        let said = refusal_in(folder.path(), &["train", "--config", "run.toml"]);
        assert!(said.starts_with(message), "{said}");
    }
    std::fs::write(&file, "\u{feff}steps = 5\nspeed = 3\n").unwrap();
    let said = refusal_in(folder.path(), &["train", "--config", "run.toml"]);
    assert!(said.starts_with("run.toml: line 2: unknown field `speed`"), "{said}");
    let said = refusal_in(folder.path(), &["train", "--config", "other.toml"]);
    assert!(said.starts_with("other.toml: "), "{said}");
}

#[test]
fn the_command_line_wins_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.toml"), "epochs = 9\nlr = 0.25\ncodec = \"qsgd:bits=8\"\n")
        .unwrap();
    let arguments = ["train", "--config", "run.toml", "--steps", "2", "--codec", "none", "--out", "a"];
    let output = trainer(folder.path(), &arguments);
    assert!(output.status.success(), "{output:?}");
    let config = std::fs::read_to_string(folder.path().join("a/config.toml")).unwrap();
    for line in ["codec = \"none\"", "steps = 2", "lr = 0.25"] {
        assert!(config.lines().any(|other| other == line), "{config}");
    }
    assert!(!config.contains("epochs"));
}

#[test]
fn results_are_not_written_over_unless_forced() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["train", "--steps", "2", "--out", "a"];
    assert!(trainer(folder.path(), &arguments).status.success());
    let message = refusal_in(folder.path(), &arguments);
    assert!(message.starts_with("a: not empty"), "{message}");
    assert!(trainer(folder.path(), &[&arguments[..], &["--force"]].concat()).status.success());
    for file in ["config.toml", "metrics.jsonl", "summary.json", "report.html"] {
        assert!(folder.path().join("a").join(file).is_file(), "{file}");
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    let message = refusal_in(folder.path(), &["train", "--steps", "2", "--out", "file/a"]);
    assert!(message.starts_with("file: a file, not a folder"), "{message}");
}

#[test]
fn lines_in_a_pipe_and_a_table_come_out_of_a_comparison() {
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        ["compare", "--codec", "none", "--codec", "topk", "--steps", "4", "--seeds", "2", "--out", "c"];
    let output = trainer(folder.path(), &arguments);
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("accuracy") && table.contains("\ntopk:density=0.01 "), "{table}");
    let progress = String::from_utf8(output.stderr).unwrap();
    let says =
        |begin: &str, end: &str| progress.lines().any(|line| line.starts_with(begin) && line.contains(end));
    assert!(says("none, seed 1 (run 1 of 4): step 4/4, loss ", ""), "{progress}");
    assert!(says("none, seed 2 (run 2 of 4, about ", " left): step 4/4, loss "), "{progress}");
    assert!(!progress.contains('\u{1b}'), "no escape sequences in a pipe");
}

#[test]
fn candidates_of_a_comparison_have_settings_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let codecs = ["--codec", "none", "momentum=0.5", "--codec", "topk", "lr=0.05", "--codec", "none"];
    let arguments = [&["compare"], &codecs[..], &["--lr", "0.1", "--steps", "2", "--out", "c"]].concat();
    let output = trainer(folder.path(), &arguments);
    assert!(output.status.success(), "{output:?}");
    for (name, lines) in [
        ("none-momentum-0.5-seed-1", ["lr = 0.1", "momentum = 0.5"]),
        ("topk-density-0.01-lr-0.05-seed-1", ["lr = 0.05", "momentum = 0.0"]),
        ("none-seed-1", ["lr = 0.1", "momentum = 0.0"]),
    ] {
        let config = std::fs::read_to_string(folder.path().join("c").join(name).join("config.toml")).unwrap();
        assert!(lines.iter().all(|line| config.lines().any(|other| other == *line)), "{name}: {config}");
    }
    let said = String::from_utf8(output.stdout).unwrap();
    for line in ["optimizer and rate by row", "topk:density=0.01 lr=0.05: plain SGD at rate 0.05"] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn a_codec_that_is_given_twice_is_refused_however_it_is_spelled() {
    let message = refusal(&["compare", "--codec", "topk", "--codec", "topk:density=0.01"]);
    assert_eq!(
        message,
        "codec = topk:density=0.01: topk:density=0.01 with these settings is compared already"
    );
    let message = refusal(&["compare", "--codec", "none", "lr=0.30", "--codec", "none"]);
    assert_eq!(message, "codec = none: none with these settings is compared already");
    let message = refusal(&["compare", "--codec", "none", "speed=3"]);
    assert!(message.starts_with("codec = none: unknown field `speed`"), "{message}");
}

#[cfg(not(feature = "zmq"))]
#[test]
fn commands_that_were_not_built_say_how_to_build_them() {
    for command in ["serve", "join", "keygen"] {
        let message = refusal(&[command]);
        assert!(message.contains(command) && message.ends_with("build it with --features zmq"), "{message}");
    }
}

#[test]
fn a_folder_that_is_not_read_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let output = trainer(folder.path(), &["train", "--steps", "1", "--data-dir", "here", "--out", "a"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Note: data_dir = here: not read, because optdigits ships"), "{said}");
}

/// What FORMAT.md says that this release reads: frames, saved memories, checkpoints.
fn supported() -> [&'static str; 3] {
    let release = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    let row =
        include_str!("../../../FORMAT.md").lines().find(|line| line.starts_with(&format!("| {release} |")));
    let cells: Vec<_> =
        row.expect("FORMAT.md has a row for this release").split('|').map(str::trim).collect();
    [cells[2], cells[3], cells[4]]
}

#[test]
fn licences_and_version_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let said = |argument| String::from_utf8(trainer(folder.path(), &[argument]).stdout).unwrap();
    assert!(said("--licenses").contains("CC BY 4.0"));
    let release = concat!("trainer ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(said("-V"), release);
    let [frames, memories, checkpoints] = supported();
    let reads = format!(
        "reads frames of version {frames}, saved memories of {memories}, checkpoints of {checkpoints}\n"
    );
    assert_eq!(said("--version"), format!("{release}{reads}"));
    assert!(said("--help").contains("compare"));
}

#[test]
fn shells_and_manual_pages_know_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let commands = gradwire_trainer::cli::command();
    let names: Vec<_> = commands.get_subcommands().map(clap::Command::get_name).collect();
    assert!(names.contains(&"train") && names.contains(&"codec"));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = String::from_utf8(trainer(folder.path(), &["completions", shell]).stdout).unwrap();
        assert!(names.iter().all(|name| script.contains(name)) && script.contains("link-gbps"), "{shell}");
    }
    assert!(trainer(folder.path(), &["man", "."]).status.success());
    for name in names {
        let page = std::fs::read_to_string(folder.path().join(format!("trainer-{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{name}: {page}");
    }
    let page = std::fs::read_to_string(folder.path().join("trainer.1")).unwrap();
    assert!(page.contains("quick start"), "{page}");
    for missing in ["nowhere", "trainer.1"] {
        let refused = trainer(folder.path(), &["man", missing]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && said.contains(missing), "{said}");
    }
}

#[test]
fn the_parser_is_consistent() {
    gradwire_trainer::cli::command().debug_assert();
}
