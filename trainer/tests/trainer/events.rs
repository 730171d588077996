//! Event files as TensorBoard reads them: a reader that is written from the format.

use std::fs;
use std::path::Path;

use gradwire_trainer::checkpoint::latest;
use gradwire_trainer::record::folder::Folder;
use gradwire_trainer::run::in_folder::{resume_into, run_into};

use crate::digits_job;

/// A step and its scalars.
type Event = (u64, Vec<(String, f32)>);

/// The next `len` bytes.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(len);
    *bytes = rest;
    taken
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    unreachable!()
}

/// The fields of a message: their numbers, and their bytes as they are.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let content = match key & 7 {
            0 => varint(&mut bytes).to_le_bytes().to_vec(),
            1 => take(&mut bytes, 8).to_vec(),
            2 => {
                let len = varint(&mut bytes) as usize;
                take(&mut bytes, len).to_vec()
            }
            5 => take(&mut bytes, 4).to_vec(),
            kind => panic!("wire type {kind}"),
        };
        fields.push((key >> 3, content));
    }
    fields
}

fn field(fields: &[(u64, Vec<u8>)], number: u64) -> Option<&[u8]> {
    fields.iter().find(|(known, _)| *known == number).map(|(_, content)| content.as_slice())
}

fn events(path: &Path) -> Vec<Event> {
    let file = fs::read(path.join("events.out.tfevents.gradwire")).unwrap();
    let mut bytes = file.as_slice();
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let len = u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap());
        take(&mut bytes, 4);
        all.push(fields(take(&mut bytes, len as usize)));
        take(&mut bytes, 4);
    }
    let first = all.remove(0);
    assert_eq!(field(&first, 3), Some(&b"brain.Event:2"[..]));
    let event = |event: Vec<(u64, Vec<u8>)>| {
        let step = u64::from_le_bytes(field(&event, 2).unwrap().try_into().unwrap());
        let values = fields(field(&event, 5).unwrap()).into_iter().map(|(number, value)| {
            assert_eq!(number, 1);
            let value = fields(&value);
            let tag = String::from_utf8(field(&value, 1).unwrap().to_vec()).unwrap();
            (tag, f32::from_le_bytes(field(&value, 2).unwrap().try_into().unwrap()))
        });
        (step, values.collect())
    };
    all.into_iter().map(event).collect()
}

fn value(event: &Event, tag: &str) -> Option<f32> {
    event.1.iter().find(|(known, _)| known == tag).map(|(_, value)| *value)
}

#[test]
fn event_files_say_what_metrics_say_also_after_a_resume() {
    let job = digits_job("topk:density=0.01", 9, |settings| {
        (settings.tensorboard, settings.eval_every) = (Some(true), Some(4));
        settings.checkpoint_every = Some(4);
    });
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::create(root.path(), false).unwrap();
    let outcome = run_into(&job, &folder, "", 0).unwrap();
    let check = || {
        let events = events(root.path());
        assert_eq!(events.len(), 9);
        for (event, line) in events.iter().zip(&outcome.metrics) {
            assert_eq!(event.0, line.step);
            assert_eq!(value(event, "loss/train"), Some(line.loss as f32));
            assert_eq!(value(event, "bytes/up"), Some(line.bytes_up as f32));
            assert_eq!(value(event, "validation/accuracy"), line.accuracy.map(|value| value as f32));
            assert_eq!(value(event, "loss/validation").is_some(), [3, 7, 8].contains(&line.step));
        }
    };
    check();
    let checkpoint = latest(&root.path().join("checkpoints/step-00000008")).unwrap();
    let checkpoint = checkpoint.read_all(&job.layout).unwrap();
    resume_into(&job, &folder, &checkpoint, "", 0).unwrap();
    check();
}

#[test]
fn without_the_setting_there_is_no_event_file_and_an_old_one_goes() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("events.out.tfevents.gradwire");
    fs::write(&file, "of a run before").unwrap();
    let job = digits_job("none", 1, |_| ());
    run_into(&job, &Folder::create(root.path(), true).unwrap(), "", 0).unwrap();
    assert!(!file.exists());
}
