//! Gradients of real models, where `GRADWIRE_DATA` says that there are some.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::support::{json_lines, run};

/// Larger files say nothing more, and take their time in a debug build.
const MAX_FILE_BYTES: u64 = 4_000_000;

/// The folder `gradients` of the one that `GRADWIRE_DATA` names.
fn gradients() -> Option<PathBuf> {
    let root = std::env::var_os("GRADWIRE_DATA").filter(|root| !root.is_empty())?;
    Some(Path::new(&root).join("gradients"))
}

fn folder_entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

/// One file of every model, of those that are not too large.
fn one_file_a_model(gradients: &Path) -> Vec<String> {
    let models = folder_entries(gradients).into_iter().filter(|model| model.is_dir());
    let is_small = |file: &PathBuf| {
        file.extension() == Some(OsStr::new("safetensors"))
            && file.metadata().unwrap().len() <= MAX_FILE_BYTES
    };
    models
        .filter_map(|model| folder_entries(&model).into_iter().find(is_small))
        .map(|file| file.to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn real_gradients_shrink_as_promised() {
    let Some(folder) = gradients() else {
        println!("SKIPPED real_gradients_shrink_as_promised: GRADWIRE_DATA is not set");
        return;
    };
    let files = one_file_a_model(&folder);
    assert!(!files.is_empty());
    let folder = tempfile::tempdir().unwrap();
    let frame = folder.path().join("frame");
    for (codec, least_ratio) in [
        ("none", 0.99),
        ("topk:density=0.01", 70.0),
        ("topk:density=0.01,values=q8", 150.0),
        ("qsgd:bits=4", 7.0),
    ] {
        for file in &files {
            let text = run(&["bench", "--input", file, "--codec", codec, "--json", "--iters", "1"]);
            let row = &json_lines(&text)[0];
            assert!(row["ratio"].as_f64().unwrap() >= least_ratio, "{row}");
            assert!((0.0..1.0).contains(&row["nmse"].as_f64().unwrap()), "{row}");
            run(&[
                "encode",
                "--codec",
                codec,
                "--input",
                file,
                "--force",
                "--output",
                frame.to_str().unwrap(),
            ]);
            assert_eq!(row["bytes"], frame.metadata().unwrap().len(), "{row}");
        }
    }
}
