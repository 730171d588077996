//! The tables of the documentation that follow from the registry of codecs. One stands between the comments
//! `<!-- registry: NAME -->` and `<!-- end -->`; the program `tables` writes them, and the test `lists`
//! compares.

use crate::manifest;
use gradwire::registry::{CODECS, CodecEntry, KEYS, KeyEntry};
use gradwire::state::{Keeper, MemoryChoice};
use gradwire::{Codec, LayoutRef, Spec, TensorRef, Unit};
use std::path::PathBuf;

/// The pages with such tables.
pub const PAGES: [&str; 3] = ["README.md", "docs/choosing-a-codec.md", "docs/codecs.md"];

const BEGINS: &str = "<!-- registry: ";
const NAME_ENDS: &str = " -->\n";
const ENDS: &str = "<!-- end -->";

/// Where a page is.
#[must_use]
pub fn path(page: &str) -> PathBuf {
    manifest::folder("..").join(page)
}

/// The text of a page with its tables as the registry makes them.
///
/// # Panics
/// When a mark has no end, or names no table.
#[must_use]
pub fn made(text: &str) -> String {
    let mut parts = text.split(BEGINS);
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(NAME_ENDS).expect("the mark of a table ends its line");
        let (_, after) = rest.split_once(ENDS).expect("a table has an end");
        made += &[BEGINS, name, NAME_ENDS, &table(name), ENDS, after].concat();
    }
    made
}

fn table(name: &str) -> String {
    match name {
        "codecs" => rows(["codec", "kind", "sends", "examples"], CODECS.iter().map(codec)),
        "costs" => rows(["codec", "pays where", "costs"], CODECS.iter().map(costs)),
        "keys" => rows(["key", "means", "codecs"], KEYS.iter().map(key)),
        "spellings" => rows(
            ["codec, as you spell it", "what is sent", "more keys", "kept between steps", "combined by"],
            CODECS.iter().map(spelling),
        ),
        other => panic!("the registry makes no table of {other}"),
    }
}

fn rows<const N: usize>(titles: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let line = |cells: [String; N]| format!("| {} |\n", cells.join(" | "));
    let head = line(titles.map(str::to_owned)) + &line([(); N].map(|()| "---".to_owned()));
    rows.fold(head, |text, cells| text + &line(cells))
}

fn quoted<'w>(words: impl IntoIterator<Item = &'w str>, separator: &str) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    quoted.join(separator)
}

fn names(entry: &CodecEntry) -> impl Iterator<Item = &'static str> {
    entry.names.iter().map(|(name, _)| *name)
}

fn codec(entry: &CodecEntry) -> [String; 4] {
    let examples = quoted(entry.examples.iter().copied(), " ");
    [quoted(names(entry), ", "), entry.kind.to_owned(), entry.summary.to_owned(), examples]
}

fn costs(entry: &CodecEntry) -> [String; 3] {
    [quoted(names(entry), ", "), entry.suits.to_owned(), entry.costs.to_owned()]
}

fn key(entry: &KeyEntry) -> [String; 3] {
    let has = |codec: &&CodecEntry| codec.keys.split(' ').any(|key| key == entry.key);
    let codecs: Vec<&CodecEntry> = CODECS.iter().filter(has).collect();
    let of = if codecs.len() == CODECS.len() {
        "all".to_owned()
    } else {
        quoted(codecs.iter().map(|codec| codec.names[0].0), " ")
    };
    [format!("`{}`", entry.key), entry.means.to_owned(), of]
}

/// Keys that nearly all codecs have. They say how a gradient is cut and what is kept, not what is sent.
const COMMON: [&str; 6] = ["memory", "decay", "unit", "dense_below", "dense_1d", "max_packet_bytes"];

fn spelling(entry: &CodecEntry) -> [String; 5] {
    let first = entry.examples[0];
    let as_spelled = if entry.names.len() > 1 { quoted(names(entry), ", ") } else { quoted([first], "") };
    let is_more = |key: &&str| !COMMON.contains(key) && !first.contains(&format!("{key}="));
    let spec = Spec::parse(first).unwrap_or_else(|error| panic!("{first}: {error}"));
    let keys = quoted(entry.keys.split(' ').filter(is_more), " ");
    [as_spelled, entry.summary.to_owned(), keys, kept(&spec).to_owned(), combined(entry, &spec)]
}

/// What a codec keeps of a gradient, or of a model.
fn kept(spec: &Spec) -> &'static str {
    let matrix = [TensorRef { name: "matrix", shape: &[64, 64], offset: 0 }];
    let layout = LayoutRef::new(&matrix).expect("a matrix");
    if let Codec::Gossip(codec) = spec.codec {
        let len = codec.rounds().kept_len(&layout, &Unit::whole(layout.len()));
        return match len {
            0 => "nothing",
            _ if len < layout.len() => "factors, for each edge",
            _ => "what is believed of both models, for each edge",
        };
    }
    let has_factors = spec.codec.state_len(&layout, 1, Keeper::Worker).factors() > 0;
    match spec.memory {
        MemoryChoice::None => "nothing",
        MemoryChoice::ErrorFeedback if has_factors => "what was not sent, and factors",
        MemoryChoice::ErrorFeedback => "what was not sent",
        MemoryChoice::Momentum => "what was not sent, and momentum",
        MemoryChoice::State => "sketches of what was not sent and of momentum",
        other => panic!("{other:?} has no words"),
    }
}

fn combined(entry: &CodecEntry, spec: &Spec) -> String {
    let is_sum = |name: &&str| Spec::parse(name).is_ok_and(|spec| spec.codec.as_linear().is_some());
    match spec.codec {
        Codec::Linear(_) => "all-reduce".to_owned(),
        Codec::Gossip(_) => "gossip".to_owned(),
        _ if names(entry).any(|name| is_sum(&name)) => {
            format!("all-gather; all-reduce ({})", quoted(names(entry).filter(is_sum), ", "))
        }
        _ => "all-gather".to_owned(),
    }
}
