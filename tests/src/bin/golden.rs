//! Completes `golden/`, `golden/rounds/` and `messages/`: for every line of a manifest with `values=?`, it
//! writes the file and fills the line in. Files that exist are never touched: a golden frame is added, not
//! edited. Also writes the void frames that are not there yet.

use gradwire_tests::golden::{Golden, spelled_states};
use gradwire_tests::manifest::{self, Line, digest};
use gradwire_tests::messages::Message;
use gradwire_tests::naive::{header, void};
use gradwire_tests::{payloads, run, voids};

fn main() {
    complete_folder("golden", complete);
    complete_folder("messages", complete_message);
    complete_folder(payloads::FOLDER, complete_rounds);
    write_voids();
}

fn complete_folder(name: &str, complete: fn(&mut Line) -> bool) {
    let folder = manifest::folder(name);
    let text = manifest::completed(&folder, complete);
    std::fs::write(folder.join("manifest.txt"), text).expect("the manifest can be written");
}

fn write_voids() {
    for golden in voids::all() {
        let path = manifest::folder("golden/voids").join(format!("{}.bin", golden.name));
        if !path.exists() {
            let (void, print) = (golden.void, header::fingerprint(&golden.shapes));
            let naive = void::encode(void.codec.number(), void.step, void.index as u64, print);
            assert_eq!(golden.encode(), naive, "{}: the naive reference makes another frame", golden.name);
            std::fs::write(path, naive).expect("the frame can be written");
        }
    }
}

/// Writes a file that is not there yet.
fn write_new(folder: &str, name: &str, bytes: &[u8]) {
    let path = manifest::folder(folder).join(format!("{name}.bin"));
    assert!(!path.exists(), "{} exists", path.display());
    std::fs::write(path, bytes).expect("the file can be written");
}

fn complete_rounds(line: &mut Line) -> bool {
    if line.value("values") != "?" {
        return false;
    }
    let (bytes, values) = match line.value("reader") {
        "memory" => {
            let (steps, memory) = payloads::kept(line);
            (payloads::saved(&memory, &steps.layout().as_ref()), payloads::contents(&memory))
        }
        _ => {
            let made = payloads::Golden::new(line).run();
            line.set("rounds", made.rounds.join(","));
            (made.bytes, made.values)
        }
    };
    write_new(payloads::FOLDER, line.value("file"), &bytes);
    line.set("values", digest(&values));
    true
}

fn complete_message(line: &mut Line) -> bool {
    if line.value("values") != "?" {
        return false;
    }
    let message = Message::new(line);
    let (bytes, kept) = message.encode().unwrap_or_else(|error| panic!("{}: {error}", message.name));
    let naive = message.encode_naively().expect("both or neither refuse the input");
    assert_eq!(bytes, naive.frame, "{}: the naive reference makes other frames", message.name);
    write_new("messages", &message.name, &bytes);
    message.outcome(&bytes, kept.as_ref()).write(line);
    true
}

fn complete(line: &mut Line) -> bool {
    if line.value("values") != "?" {
        return false;
    }
    let golden = Golden::new(line);
    let (frame, kept) = golden.encode().unwrap_or_else(|error| panic!("{}: {error}", golden.name));
    let naive = golden.encode_naively().expect("both or neither refuse the input");
    assert_eq!(frame, naive.frame, "{}: the naive reference makes another frame", golden.name);
    let values = run::decode(&frame, &golden.layout().as_ref()).expect("what was encoded decodes");
    write_new("golden", &golden.name, &frame);
    line.set("values", digest(&values));
    if let Some(kept) = kept {
        line.set("kept", digest(&kept.residual));
        if let Some(momentum) = &kept.momentum {
            line.set("kept_momentum", digest(momentum));
        }
        if !kept.states.is_empty() {
            line.set("kept_states", spelled_states(&kept.states));
        }
    }
    true
}
