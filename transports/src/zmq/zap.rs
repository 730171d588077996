//! Answers libzmq's question whether a key is admitted (RFC 27, ZAP 1.0).

use super::keys::PublicKey;
use super::roster::Roster;
use crate::rank::Rank;

/// The frames of libzmq's question: version, request, domain, address, routing id, mechanism, credentials.
const QUESTION_FRAMES: usize = 7;

/// The answer to one question.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Version, request, status code, status text, user id, metadata.
    pub(super) frames: [Vec<u8>; 6],
    /// The peer that was turned away, and the reason.
    pub(super) denied: Option<(String, String)>,
}

/// Admits only keys of the list that belong to one of `ranks`. The user id is the key.
pub(super) fn answer(question: &[Vec<u8>], roster: &Roster, ranks: &[Rank]) -> Option<Answer> {
    let [version, request, ..] = question else { return None };
    let reply = |code: &str, text: &str, user: String| {
        let [code, text] = [code, text].map(|part| part.as_bytes().to_vec());
        [version.clone(), request.clone(), code, text, user.into_bytes(), Vec::new()]
    };
    let address =
        question.get(3).map_or_else(String::new, |address| String::from_utf8_lossy(address).into_owned());
    match allowed(question, roster, ranks) {
        Ok(key) => Some(Answer { frames: reply("200", "OK", key.to_string()), denied: None }),
        Err(why) => {
            // 400 tells the other end not to try again with this key.
            Some(Answer { frames: reply("400", "not allowed", String::new()), denied: Some((address, why)) })
        }
    }
}

fn allowed(question: &[Vec<u8>], roster: &Roster, ranks: &[Rank]) -> Result<PublicKey, String> {
    let mechanism = question.get(5).map_or(&[][..], Vec::as_slice);
    if question.len() != QUESTION_FRAMES || mechanism != b"CURVE" {
        return Err("it shows no key".to_owned());
    }
    let key = <[u8; 32]>::try_from(question[6].as_slice()).map(PublicKey);
    let key = key.map_err(|_| "its key is no key".to_owned())?;
    match roster.rank_of(&key) {
        None => Err(format!("key {key} is not on the list")),
        Some(rank) if !ranks.contains(&rank) => {
            Err(format!("key {key} belongs to {rank}, which has no business here"))
        }
        Some(_) => Ok(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zmq::Entry;

    fn question(mechanism: &str, key: &[u8]) -> Vec<Vec<u8>> {
        let parts = [&b"1.0"[..], b"7", b"gradwire", b"10.0.0.9", b"", mechanism.as_bytes(), key];
        parts.map(<[u8]>::to_vec).to_vec()
    }

    #[test]
    fn only_keys_of_the_list_come_in_and_only_those_that_connect_here() {
        let entry = |byte| Entry { key: Some(PublicKey([byte; 32])), endpoint: None };
        let roster = Roster::new().with(Rank(1), entry(1)).with(Rank(2), entry(2));
        let code = |question: &[Vec<u8>]| {
            let answer = answer(question, &roster, &[Rank(1)]).unwrap();
            (String::from_utf8(answer.frames[2].clone()).unwrap(), answer.denied.map(|(_, why)| why))
        };
        assert_eq!(code(&question("CURVE", &[1; 32])), ("200".into(), None));
        let denied = [
            question("CURVE", &[2; 32]),
            question("CURVE", &[3; 32]),
            question("CURVE", &[1; 31]),
            question("NULL", &[]),
        ];
        for (question, why) in denied.iter().zip(["no business", "not on the list", "no key", "shows no key"])
        {
            let (status, reason) = code(question);
            assert_eq!(status, "400");
            assert!(reason.unwrap().contains(why));
        }
        assert_eq!(code(&question("CURVE", &[1; 32])[..6]).0, "400");
        assert_eq!(answer(&[], &roster, &[]), None);
    }
}
