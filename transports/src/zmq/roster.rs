//! Which ranks may take part, each with its key and the address at which it listens.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::ZmqError;
use super::keys::{PUBLIC, PublicKey, SECRET, is_no_key, quoted};
use crate::rank::{Rank, RankSet};

/// One participant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its key; `None` without encryption.
    pub key: Option<PublicKey>,
    /// The address at which it listens; `None` if it only connects.
    pub endpoint: Option<String>,
}

/// All participants by rank, with their keys and addresses.
///
/// As text, each line is a rank, a key (or `-`) and, for a rank that listens, an endpoint. Lines that begin
/// with `#` are comments. A key may be the content of a `.pub` file of
/// [`KeyPair::write`](super::KeyPair::write). Such a line may lack the rank: it then gets the rank after that
/// of the previous line, or 1 in the first line.
///
/// # Examples
/// ```
/// use gradwire_transports::{Rank, zmq::Roster};
///
/// let roster: Roster = "# the server\n0 - tcp://127.0.0.1:5555\n1 -\n".parse().unwrap();
/// assert_eq!(roster.get(Rank(0)).unwrap().endpoint.as_deref(), Some("tcp://127.0.0.1:5555"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster(BTreeMap<Rank, Entry>);

impl Roster {
    /// An empty roster.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a participant, or replaces it.
    pub fn with(mut self, rank: Rank, entry: Entry) -> Self {
        self.0.insert(rank, entry);
        self
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `Roster`; `KeyFile` for the text of a key in place of the name of a file.
    pub fn read(path: &Path) -> Result<Self, ZmqError> {
        is_no_key(path)?;
        let fault = |what: String| ZmqError::Roster { line: 0, what: format!("{}: {what}", path.display()) };
        let bytes = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
        String::from_utf8(bytes).map_err(|_| fault("not UTF-8 text; save it as UTF-8".to_owned()))?.parse()
    }

    /// The participant with that rank.
    pub fn get(&self, rank: Rank) -> Option<&Entry> {
        self.0.get(&rank)
    }

    /// All ranks.
    pub fn ranks(&self) -> RankSet {
        self.0.keys().copied().collect()
    }

    /// The rank with this key.
    pub fn rank_of(&self, key: &PublicKey) -> Option<Rank> {
        self.0.iter().find_map(|(rank, entry)| (entry.key.as_ref() == Some(key)).then_some(*rank))
    }

    /// Refuses a key that two ranks share, because it would prove neither.
    fn check(&self) -> Result<(), String> {
        let mut keys: Vec<PublicKey> = self.0.values().filter_map(|entry| entry.key).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("key {} stands for two ranks", pair[0])),
            None => Ok(()),
        }
    }
}

impl std::str::FromStr for Roster {
    type Err = ZmqError;

    fn from_str(text: &str) -> Result<Self, ZmqError> {
        let (mut roster, mut last) = (Self::new(), Rank(0));
        // Editors of some systems begin a file with this mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (at, line) in text.lines().map(str::trim).enumerate() {
            let fault = |what: String| ZmqError::Roster { line: at + 1, what };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (rank, entry) = entry(line, last).map_err(fault)?;
            last = rank;
            if roster.0.insert(rank, entry).is_some() {
                return Err(fault(format!("{rank} stands twice in the list")));
            }
        }
        roster.check().map_err(|what| ZmqError::Roster { line: 0, what })?;
        Ok(roster)
    }
}

/// The participant of a line; `last` is the rank of the line before.
fn entry(line: &str, last: Rank) -> Result<(Rank, Entry), String> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    if words.contains(&SECRET.trim()) {
        return Err("a secret key: list the .pub files, and make new keys if others may have read this one"
            .to_owned());
    }
    let is_file = |word: &&str| *word == PUBLIC.trim();
    let next = Rank(last.0.saturating_add(1));
    let rank = match words.first().filter(|word| !is_file(word)) {
        Some(rank) => rank.parse().map(Rank).map_err(|_| format!("{} is not a rank", quoted(rank)))?,
        None => next,
    };
    let has_rank = words.first().is_some_and(|word| !is_file(word));
    words.drain(..usize::from(has_rank));
    let from_file = words.first().is_some_and(is_file);
    words.drain(..usize::from(from_file));
    let ([key] | [key, _]) = words[..] else {
        return Err("expected: RANK KEY [ENDPOINT]".to_owned());
    };
    let key = match key {
        "-" => None,
        key => Some(key.parse().map_err(|error| format!("{}: {error}", quoted(key)))?),
    };
    Ok((rank, Entry { key, endpoint: words.get(1).map(|&endpoint| endpoint.to_owned()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

    fn fault(text: &str) -> String {
        text.parse::<Roster>().unwrap_err().to_string()
    }

    #[test]
    fn a_list_is_read_with_comments_keys_and_endpoints() {
        let roster: Roster = format!("# all\n\n3 {KEY} tcp://host:1\n 1  -\n").parse().unwrap();
        assert_eq!(roster.ranks().as_slice(), [Rank(1), Rank(3)]);
        assert_eq!(roster.rank_of(&KEY.parse().unwrap()), Some(Rank(3)));
        assert_eq!(roster.get(Rank(1)), Some(&Entry::default()));
        assert_eq!(roster.get(Rank(3)).unwrap().endpoint.as_deref(), Some("tcp://host:1"));
    }

    #[test]
    fn files_of_public_keys_are_lines_with_the_next_rank() {
        let pairs = [(); 3].map(|()| crate::zmq::KeyPair::generate().unwrap());
        let file = |at: usize| format!("{PUBLIC}{}\n", pairs[at].public());
        let list = format!("{}# then one with a rank\n7 {}\n{}", file(0), pairs[1].public(), file(2));
        let roster: Roster = list.parse().unwrap();
        let ranks = pairs.iter().map(|pair| roster.rank_of(&pair.public()).unwrap());
        assert_eq!(ranks.collect::<Vec<_>>(), [Rank(1), Rank(7), Rank(8)]);
        assert!(fault("gradwire-public short").starts_with("list of peers, line 1: 'short'"));
    }

    #[test]
    fn a_line_may_hold_a_rank_and_the_content_of_a_file() {
        let line = format!("{PUBLIC}{KEY}");
        for (list, rank, endpoint) in [
            (format!("1 {line}\n"), 1, None),
            (format!("7 {line} tcp://host:5"), 7, Some("tcp://host:5")),
            (format!("{line} tcp://host:5"), 1, Some("tcp://host:5")),
            (format!("\u{feff}{line}\r\n"), 1, None),
            (format!("\u{feff}3 {KEY}\r\n\r\n"), 3, None),
            (format!("  # indented\n\t 4\t{line}  \n"), 4, None),
            (format!("2 -\n{line}"), 3, None),
        ] {
            let roster: Roster = list.parse().unwrap_or_else(|error| panic!("{list}: {error}"));
            assert_eq!(roster.rank_of(&KEY.parse().unwrap()), Some(Rank(rank)), "{list}");
            assert_eq!(roster.get(Rank(rank)).unwrap().endpoint.as_deref(), endpoint, "{list}");
        }
    }

    #[test]
    fn nothing_that_may_be_a_secret_is_repeated() {
        let secret = &KEY.replace('r', "s");
        for list in [
            format!("{PUBLIC}{KEY}\n{SECRET}{secret}\n"),
            format!("1 {PUBLIC}{KEY} {SECRET}{secret}"),
            format!("1 {SECRET}{secret}"),
            format!("{SECRET}{secret}"),
            format!("{secret} 1"),
            format!("1 {secret}x"),
            format!("1 {}", &secret[1..]),
            format!("gradwire-secret:{secret}"),
            format!("{PUBLIC}{secret}{secret}"),
        ] {
            let said = fault(&list);
            assert!(!said.contains(&secret[5..30]), "{said}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_line() {
        assert_eq!(fault("1 -\n1 -"), "list of peers, line 2: rank 1 stands twice in the list");
        assert_eq!(fault("x -"), "list of peers, line 1: 'x' is not a rank");
        assert_eq!(fault("1"), "list of peers, line 1: expected: RANK KEY [ENDPOINT]");
        assert_eq!(fault("1 short"), "list of peers, line 1: 'short': a key has 40 characters of z85");
        assert!(fault(&format!("1 {KEY}\n2 {KEY}")).contains("stands for two ranks"));
    }
}
