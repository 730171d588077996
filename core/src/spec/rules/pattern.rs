//! Patterns of names, as shells and Python's `fnmatch` have them.

use core::str::Chars;

/// Whether a pattern fits the whole of a name, as Python's `fnmatch.fnmatchcase` does. Letter case counts.
/// `*` stands for any text, `?` for any character, `[abc]` and `[a-z]` for one of those, `[!abc]` for a
/// character that is none of those. So `[*]` is a star. `]` stands for itself right after `[` or `[!`, and so
/// does a `[` that nothing closes.
///
/// The number of steps grows at most with the product of both lengths.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // The pattern after the last star, and the name from where that star may take one character more.
    let mut retry: Option<(Chars<'_>, Chars<'_>)> = None;
    loop {
        let mut ahead = pattern.clone();
        let first = ahead.next();
        if first == Some('*') {
            retry = Some((ahead.clone(), name.clone()));
            pattern = ahead;
            continue;
        }
        if first.is_none() && name.as_str().is_empty() {
            return true;
        }
        let pair = first.zip(name.next());
        if pair.is_some_and(|(first, character)| takes(first, &mut ahead, character)) {
            pattern = ahead;
            continue;
        }
        let Some((behind_star, from)) = &mut retry else { return false };
        if from.next().is_none() {
            return false;
        }
        (pattern, name) = (behind_star.clone(), from.clone());
    }
}

/// Whether the element of the pattern that begins with `first` takes the character; `rest` then begins after
/// the element.
fn takes(first: char, rest: &mut Chars<'_>, character: char) -> bool {
    if first == '?' {
        return true;
    }
    let Some(set) = (first == '[').then(|| set(rest)).flatten() else { return first == character };
    let (is_negated, set) = set.strip_prefix('!').map_or((false, set), |set| (true, set));
    has(set, character) != is_negated
}

/// The content of brackets after `[`, if they are closed; `rest` then begins after them.
fn set<'p>(rest: &mut Chars<'p>) -> Option<&'p str> {
    let text = rest.as_str();
    let own = usize::from(text.starts_with('!'));
    // The first character of the set is never the end.
    let own = own + usize::from(text[own..].starts_with(']'));
    let end = own + text[own..].find(']')?;
    *rest = text[end + 1..].chars();
    Some(&text[..end])
}

/// Whether the set of characters and ranges has the character.
fn has(set: &str, character: char) -> bool {
    let mut rest = set.chars();
    while let Some(low) = rest.next() {
        let mut ahead = rest.clone();
        let high = if ahead.next() == Some('-') { ahead.next() } else { None };
        if high.is_some() {
            rest = ahead;
        }
        if (low..=high.unwrap_or(low)).contains(&character) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::fits;
    use std::string::String;

    /// Each line is an answer of Python's `fnmatch.fnmatchcase(name, pattern)`.
    #[test]
    fn patterns_mean_what_they_mean_in_python() {
        for (pattern, name, expected) in [
            ("*.bias", "fc.bias", true),
            ("*.bias", ".bias", true),
            ("*.bias", "fc.bias.x", false),
            ("*.bias", "bias", false),
            ("embed.*", "embed.weight", true),
            ("embed.*", "decoder.embed.weight", false),
            ("*", "", true),
            ("*", "a\nb/c", true),
            ("?", "", false),
            ("?", "Ω", true),
            ("layer?.w*", "layer1.weight", true),
            ("layer?.w*", "layer10.weight", false),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("A", "a", false),
            ("layer[12].*", "layer2.bias", true),
            ("layer[12].*", "layer3.bias", false),
            ("layer[0-3].*", "layer3.bias", true),
            ("layer[!0-3].*", "layer3.bias", false),
            ("layer[!0-3].*", "layer4.bias", true),
            ("a[*]", "a*", true),
            ("a[*]", "ab", false),
            ("a[", "a[", true),
            ("a[b", "a[b", true),
            ("a[]", "a[]", true),
            ("[]a]", "]", true),
            ("[!]a]", "b", true),
            ("[!]a]", "]", false),
            ("[a-]", "-", true),
            ("[-a]", "-", true),
            ("[--/]", ".", true),
            ("[a-b-c]", "-", true),
            ("[a-b-c]", "c", true),
            ("[b-a]", "a", false),
            ("[!b-a]", "a", true),
            ("[b-a-c]", "-", true),
            ("[b-a-c]", "b", false),
            ("[!]", "[!]", true),
            ("[!]", "a", false),
            ("[a!]", "!", true),
            ("[\\]]", "\\]", true),
            ("[Α-Ω]", "Λ", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "'{pattern}' and '{name}'");
        }
    }

    #[test]
    fn many_stars_take_no_time_that_doubles_with_each() {
        let (pattern, name) = ("*a".repeat(200) + "b", String::from("a").repeat(2000));
        assert!(!fits(&pattern, &name));
        assert!(fits(&pattern, &(name + "b")));
    }
}
