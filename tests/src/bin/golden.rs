//! Completes `golden/`: for every line of the manifest with `values=?`, writes the frame and fills the line in. Files
//! that exist are never touched: a golden frame is added, not edited. Writes the void frames that are not there yet.

use gradwire_tests::golden::{Golden, spelled_states};
use gradwire_tests::manifest::{self, Line, digest};
use gradwire_tests::naive::{header, void};
use gradwire_tests::{run, voids};

fn main() {
    let folder = manifest::folder("golden");
    let text = manifest::completed(&folder, complete);
    std::fs::write(folder.join("manifest.txt"), text).expect("the manifest can be written");
    write_voids();
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

fn complete(line: &mut Line) -> bool {
    if line.value("values") != "?" {
        return false;
    }
    let golden = Golden::new(line);
    let (frame, kept) = golden.encode().unwrap_or_else(|error| panic!("{}: {error}", golden.name));
    let naive = golden.encode_naively().expect("both or neither refuse the input");
    assert_eq!(frame, naive.frame, "{}: the naive reference makes another frame", golden.name);
    let path = manifest::folder("golden").join(format!("{}.bin", golden.name));
    assert!(!path.exists(), "{} exists", path.display());
    let values = run::decode(&frame, &golden.layout().as_ref()).expect("what was encoded decodes");
    std::fs::write(path, frame).expect("the frame can be written");
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
