//! Key files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use gradwire_transports::zmq::{KeyPair, NotAKey, PublicKey, Roster, ZmqError, read_public};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("gradwire-keys-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_key_file_is_its_owners_alone_and_reads_back() {
    let folder = Folder::new("written");
    let (pair, path) = (KeyPair::generate().unwrap(), folder.0.join("rank1"));
    let public = pair.write(&path).unwrap();
    assert_eq!(public, folder.0.join("rank1.pub"));
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(KeyPair::read(&path).unwrap(), pair);
    assert_eq!(read_public(&public).unwrap(), pair.public());
    assert_eq!(read_public(&path).unwrap(), pair.public());
    let text = fs::read_to_string(&public).unwrap();
    assert!(!text.contains("secret") && format!("{pair:?}") == format!("KeyPair({})", pair.public()));
}

#[test]
fn a_key_file_that_others_may_use_is_not_read() {
    let folder = Folder::new("open");
    let path = folder.0.join("rank1");
    KeyPair::generate().unwrap().write(&path).unwrap();
    for mode in [0o660, 0o604, 0o620, 0o601] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = KeyPair::read(&path).unwrap_err().to_string();
        assert!(refused.contains("others than its owner") && refused.contains("chmod 600"), "{refused}");
    }
}

#[test]
fn existing_files_are_never_written_over() {
    let folder = Folder::new("existing");
    let (pair, path) = (KeyPair::generate().unwrap(), folder.0.join("rank1"));
    fs::write(folder.0.join("rank1.pub"), "mine").unwrap();
    assert!(matches!(pair.write(&path), Err(ZmqError::KeyFile { .. })));
    assert!(!path.exists(), "a secret without its public key is not left behind");
    fs::remove_file(folder.0.join("rank1.pub")).unwrap();
    pair.write(&path).unwrap();
    assert!(matches!(KeyPair::generate().unwrap().write(&path), Err(ZmqError::KeyFile { .. })));
    assert_eq!(KeyPair::read(&path).unwrap(), pair);
}

#[test]
fn a_key_in_place_of_a_file_is_refused_and_not_repeated() {
    let folder = Folder::new("pasted");
    let (pair, path) = (KeyPair::generate().unwrap(), folder.0.join("rank1"));
    pair.write(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let secret = text.split_whitespace().last().unwrap();
    let pasted = [
        text.clone(),
        text.replace('\n', " "),
        secret.to_owned(),
        format!("{secret}\n"),
        format!("gradwire-secret {secret}"),
    ];
    for pasted in pasted.map(PathBuf::from) {
        let refused = [
            KeyPair::read(&pasted).unwrap_err(),
            read_public(&pasted).unwrap_err(),
            Roster::read(&pasted).unwrap_err(),
            KeyPair::generate().unwrap().write(&pasted).unwrap_err(),
        ];
        for refused in refused {
            let said = format!("{refused} {refused:?}");
            assert!(said.contains("this is a key, not the name of a file"), "{said}");
            assert!(!said.contains(secret), "{said}");
        }
    }
}

#[test]
fn names_that_look_like_keys_are_names() {
    let folder = Folder::new("names");
    let inner = folder.0.join("gradwire-secret");
    fs::create_dir_all(&inner).unwrap();
    let mut paths = vec![inner.join("rank1")];
    // A name as long as a key, of letters that a key has too, with and without `.pub`.
    let start = format!("{}/", folder.0.display());
    for (letter, tail) in [("k", ""), ("l", ".pub")] {
        let rest = 40_usize.saturating_sub(start.len() + tail.len()).max(1);
        paths.push(PathBuf::from(format!("{start}{}", letter.repeat(rest))));
    }
    for path in paths {
        let pair = KeyPair::generate().unwrap();
        let missing = KeyPair::read(&path).unwrap_err().to_string();
        assert!(missing.contains(&path.display().to_string()), "{missing}");
        let public = pair.write(&path).unwrap();
        assert_eq!(KeyPair::read(&path).unwrap(), pair);
        assert_eq!(read_public(&public).unwrap(), pair.public());
        assert!(matches!(Roster::read(&path), Err(ZmqError::Roster { .. })), "a key file is no list");
    }
}

#[test]
fn damaged_files_and_texts_are_refused() {
    let folder = Folder::new("damaged");
    let path = folder.0.join("rank1");
    assert!(matches!(KeyPair::read(&path), Err(ZmqError::KeyFile { .. })));
    let pair = KeyPair::generate().unwrap();
    pair.write(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    for damaged in ["", &text[..text.len() - 5], &text.replace("gradwire-secret", "secret")] {
        fs::write(&path, damaged).unwrap();
        assert!(KeyPair::read(&path).unwrap_err().to_string().contains("does not hold"));
    }
    for text in ["", "short", &"a".repeat(41), &"\u{e9}".repeat(20), &"~".repeat(40), &"#".repeat(40)] {
        assert_eq!(text.parse::<PublicKey>(), Err(NotAKey), "{text}");
    }
    assert_eq!(pair.public().to_string().parse(), Ok(pair.public()));
}
