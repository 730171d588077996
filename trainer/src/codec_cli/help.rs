//! `trainer codec help`: a codec's keys, what each means, what it allows and what it is by default.

use std::io::{self, Write};

use gradwire::registry::{CodecEntry, KEYS, codecs};
use gradwire::{Spec, SpecError};

use super::error::CliError;
use super::list::write_words;
use crate::nearest::hint;
use crate::terminal;

/// Arguments of `trainer codec help`.
#[derive(Clone, Debug, clap::Args)]
pub struct HelpArgs {
    /// Name of a codec, such as topk
    #[arg(value_name = "CODEC")]
    name: String,
}

pub(super) fn run(args: &HelpArgs, out: &mut impl Write) -> Result<(), CliError> {
    // Keys change nothing of what there is to say.
    let (name, _) = Spec::split(&args.name);
    let Some(entry) = codecs().find(|entry| entry.names.iter().any(|(known, _)| *known == name)) else {
        let known = Spec::names();
        let near = hint(name, known.iter().copied());
        let reason = format!("no codec; expected one of {}{near}", known.join(", "));
        return Err(CliError::Spec { given: name.to_owned(), reason });
    };
    write_entry(name, &entry, out).map_err(CliError::Output)
}

fn write_entry(name: &str, entry: &CodecEntry, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{}", terminal::paragraph(&format!("{name} [{}]: {}.", entry.kind, entry.summary)))?;
    for (title, line) in [("Pays where", entry.suits), ("Costs", entry.costs)] {
        if !line.is_empty() {
            write!(out, "{}", terminal::paragraph(&format!("{title}: {line}.")))?;
        }
    }
    let plain = plain(name, entry);
    let row = |key: &str| {
        let of = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        // A codec of another crate says in its own documentation what its words mean.
        let known = KEYS.iter().filter(|_| !name.starts_with("x:")).find(|known| known.key == key);
        let means = known.map(|known| format!("{}: ", known.means)).unwrap_or_default();
        let told = means + &of(allowed(&plain, key));
        [key.to_owned(), of(stated(entry, key).or_else(|| default(&plain, key))), told]
    };
    let keys: Vec<&str> = entry.keys.split_whitespace().collect();
    if !keys.is_empty() {
        writeln!(out, "\nkey, its default, what it means and what it allows:")?;
        let rows = keys.into_iter().map(row);
        for [key, default, told] in rows {
            write_words(out, &format!("  {key:16} {default:8}  "), told.split(' '))?;
        }
        writeln!(
            out,
            "A key alone stands for key=true. Write keys after the name: {name}:key=value,key=value"
        )?;
    }
    writeln!(out)?;
    entry.examples.iter().try_for_each(|example| writeln!(out, "  {example}"))
}

/// The shortest spelling: the name, with the keys of its first example if it needs some.
fn plain(name: &str, entry: &CodecEntry) -> String {
    let of_name = entry.examples.iter().filter(|example| Spec::split(example).0 == name);
    let mut plain = std::iter::once(name).chain(of_name.copied());
    plain.find(|spelling| Spec::parse(spelling).is_ok()).unwrap_or(name).to_owned()
}

/// The spelling with another value of a key.
fn with(plain: &str, key: &str, value: &str) -> String {
    let (name, pairs) = Spec::split(plain);
    let others = pairs.split(',').filter(|pair| !pair.is_empty() && pair.split('=').next() != Some(key));
    let own = format!("{key}={value}");
    format!("{name}:{}", others.map(str::to_owned).chain([own]).collect::<Vec<_>>().join(","))
}

/// What the key allows, as its fault says it.
fn allowed(plain: &str, key: &str) -> Option<String> {
    match Spec::parse(&with(plain, key, "?")) {
        Err(SpecError::BadValue { allowed, .. }) => Some(allowed.to_string()),
        _ => None,
    }
}

/// The default that a codec of another crate states.
fn stated(entry: &CodecEntry, key: &str) -> Option<String> {
    let mut pairs = entry.defaults.split(',').filter_map(|pair| pair.split_once('='));
    pairs.find(|(other, _)| *other == key).map(|(_, value)| value.to_owned())
}

/// The value without which a spelling means the same: one of the key's words, or a number.
fn default(plain: &str, key: &str) -> Option<String> {
    let same = Spec::parse(plain).ok()?;
    // The canonical spelling has some keys always.
    let printed = same.to_string();
    let pairs = Spec::split(&printed).1.split(',');
    let shown = pairs.filter_map(|pair| pair.split_once('=')).find(|(other, _)| *other == key);
    if let Some((_, value)) = shown {
        return Some(value.to_owned());
    }
    let words = match Spec::parse(&with(plain, key, "?")) {
        Err(SpecError::BadValue { allowed: gradwire::format::Allowed::OneOf(words), .. }) => words,
        _ => &[],
    };
    let numbers = NUMBERS.iter().copied();
    words
        .iter()
        .copied()
        .chain(numbers)
        .find(|value| Spec::parse(&with(plain, key, value)) == Ok(same))
        .map(str::to_owned)
}

/// Numbers that are defaults of some key.
const NUMBERS: [&str; 21] = [
    "0", "0.001", "0.01", "0.1", "0.25", "0.5", "0.9", "1", "2", "3", "4", "5", "8", "16", "64", "128",
    "256", "512", "1024", "4096", "inf",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn help(name: &str) -> Result<String, String> {
        let mut out = Vec::new();
        let told = run(&HelpArgs { name: name.to_owned() }, &mut out);
        told.map(|()| String::from_utf8(out).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_of_every_codec_says_what_it_allows() {
        for (name, entry) in codecs().flat_map(|entry| entry.names.iter().map(move |(name, _)| (name, entry)))
        {
            let text = help(name).unwrap();
            for key in entry.keys.split_whitespace() {
                assert!(text.contains(&format!("  {key} ")), "{name}: {key}: {text}");
            }
            assert!(entry.examples.iter().all(|example| text.contains(example)), "{text}");
            let told = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let means = |key: &str| KEYS.iter().find(|known| known.key == key).unwrap().means;
            for line in entry.keys.split_whitespace().map(means).chain([entry.suits, entry.costs]) {
                assert!(told.contains(line), "{name}: {line}: {told}");
            }
        }
    }

    #[test]
    fn defaults_mean_the_same_as_nothing() {
        for (name, key, expected) in [
            ("topk", "density", "0.01"),
            ("topk", "index", "auto"),
            ("topk", "values", "f32"),
            ("dgc", "momentum", "0.9"),
            ("qsgd", "bits", "4"),
            ("topk", "unit", "model"),
            ("efsign", "unit", "tensor"),
        ] {
            assert_eq!(default(name, key).as_deref(), Some(expected), "{name} {key}");
            assert_eq!(Spec::parse(&with(name, key, expected)), Spec::parse(name), "{name} {key}");
        }
        assert!(allowed("topk", "density").unwrap().contains("1e-9"), "{:?}", allowed("topk", "density"));
        assert_eq!(allowed("topk", "dense_1d").as_deref(), Some("one of false true"));
    }

    #[test]
    fn a_name_that_is_nearly_one_is_corrected() {
        let told = help("topkk").unwrap_err();
        assert!(
            told.starts_with("topkk: no codec; expected one of none, f16")
                && told.ends_with("did you mean topk?"),
            "{told}"
        );
    }
}
