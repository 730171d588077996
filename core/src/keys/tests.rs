//! Lists and names, on the keys of a codec that does not exist.

extern crate std;
use super::list::List;
use super::name::{Escaped, Name, unescape};
use super::{Keys, Printer, SpecError};
use core::fmt;
use std::string::{String, ToString};
use std::{format, vec::Vec};

const LEVELS: &str = "1 to 3 whole numbers from 1 to 255, joined by +";

/// A codec with a list of numbers, a list of names, and a name.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Layered {
    levels: List<u8, 3>,
    skip: Option<List<Name<24>, 2>>,
    tensor: Option<Name<24>>,
}

impl Layered {
    fn parse(pairs: &str) -> Result<Self, SpecError<'_>> {
        let keys = Keys::new("layered", "levels skip tensor", pairs)?;
        let level = |text: &str| text.parse().ok().filter(|&level| level > 0);
        Ok(Self {
            levels: keys.list("levels", LEVELS, level)?.ok_or(SpecError::MissingKey("levels"))?,
            skip: keys.list("skip", "1 or 2 names, joined by +", Name::parse)?,
            tensor: keys.name("tensor")?,
        })
    }
}

impl fmt::Display for Layered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("layered")?;
        let mut out = Printer { f, separator: ':' };
        out.always("levels", self.levels)?;
        self.skip.map_or(Ok(()), |skip| out.always("skip", skip))?;
        self.tensor.map_or(Ok(()), |tensor| out.always("tensor", tensor))
    }
}

#[test]
fn lists_of_numbers_are_read_in_order_and_print_as_they_were_read() {
    let layered = Layered::parse("levels=6+10").unwrap();
    assert_eq!(layered.levels[..], [6, 10]);
    assert_eq!(layered.to_string(), "layered:levels=6+10");
    assert_eq!(Layered::parse("levels=7").unwrap().levels[..], [7]);
    assert_eq!(Layered::parse("levels=10+6+6").unwrap().levels[..], [10, 6, 6]);
    assert_ne!(Layered::parse("levels=6"), Layered::parse("levels=6+6"));
}

#[test]
fn lists_have_one_value_at_least_and_no_more_than_the_key_allows() {
    for levels in
        ["", "+", "6+", "+6", "6++10", "6+0", "6+256", "6+x", "1+2+3+4", "6 + 10", "6+10;", "6%2B10"]
    {
        let pairs = format!("levels={levels}");
        let error = Layered::parse(&pairs).unwrap_err();
        assert_eq!(error.to_string(), format!("levels={levels}: expected {LEVELS}"));
    }
}

#[test]
fn names_hold_any_character_once_it_is_escaped() {
    let tensor = "a,b=c:d+e;f%g h\u{a0}Ω/*";
    let spelled = "levels=1,tensor=a%2Cb%3Dc%3Ad%2Be%3Bf%25g%20h%C2%A0Ω/*";
    let layered = Layered::parse(spelled).unwrap();
    assert_eq!(layered.tensor.unwrap().as_str(), tensor);
    assert_eq!(layered.to_string(), format!("layered:{spelled}"));
    assert_eq!(Layered::parse("levels=1,tensor=%61%ce%A9").unwrap().tensor.unwrap().as_str(), "aΩ");
}

#[test]
fn names_may_stand_in_lists() {
    let layered = Layered::parse("levels=1,skip=model/dense%3A0+a%2Bb").unwrap();
    let names = layered.skip.unwrap();
    assert_eq!(names.iter().map(Name::as_str).collect::<Vec<_>>(), ["model/dense:0", "a+b"]);
    assert_eq!(layered.to_string(), "layered:levels=1,skip=model/dense%3A0+a%2Bb");
    assert!(Layered::parse("levels=1,skip=a+b+c").is_err());
}

#[test]
fn names_that_are_not_well_escaped_are_refused() {
    for tensor in [
        "", "a b", "a:b", "a=b", "a+b", "a;b", "a\nb", "%", "%2", "%2g", "%ff", "%80", "%C2", "%C2a0",
        "%C2%20", "%E2%82",
    ] {
        let pairs = format!("levels=1,tensor={tensor}");
        assert!(matches!(Layered::parse(&pairs), Err(SpecError::BadValue { key: "tensor", .. })), "{tensor}");
    }
}

#[test]
fn names_have_as_many_bytes_as_the_codec_has_room_for() {
    let name = |text: &str| Name::<3>::parse(text).map(|name| name.as_str().to_string());
    assert_eq!(name("abc").as_deref(), Some("abc"));
    assert_eq!(name("aΩ").as_deref(), Some("aΩ"));
    assert_eq!(name("%2C%2C%2C").as_deref(), Some(",,,"));
    assert_eq!((name("abcd"), name("abΩ")), (None, None));
}

#[test]
fn every_character_comes_back_from_its_escape_and_none_is_a_separator() {
    for character in (0..=0x3000).chain([0xfeff, 0x1f600, 0x10ffff]).filter_map(char::from_u32) {
        let text = String::from(character);
        let escaped = Escaped(&text).to_string();
        assert!(unescape(&escaped).eq([Some(character)]), "{escaped}");
        assert!(
            !escaped.contains([',', '=', ':', '+', ';']) && !escaped.contains(char::is_whitespace),
            "{escaped}"
        );
    }
}
