//! A stream of plain bytes, cut into frames as they come in.

use super::frame::{Control, HEADER, MESSAGE, MESSAGE_HEADER, length_of, tag_of};
use crate::tag::Tag;

/// The most bytes that are reserved for a message before any of it is there.
pub(super) const AHEAD: usize = 1 << 20;

/// The bytes are no frames of this protocol, or a frame is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbage;

/// What a stream of bytes holds next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    Control(Control),
    Message(Tag, Vec<u8>),
    /// The next message has no room yet. Its payload was not read.
    Blocked,
}

/// What happens to a message of which the header is here.
pub(super) enum Entry {
    /// It goes into this buffer, which is empty.
    Into(Vec<u8>),
    /// Its bytes are dropped.
    Drop,
    /// There is no room yet.
    Full,
}

/// The state between two reads.
#[derive(Debug)]
pub(super) struct Reader {
    header: [u8; MESSAGE_HEADER],
    have: usize,
    body: Option<Body>,
    /// The longest payload of a message.
    most: u64,
    /// The longest body of any other frame.
    most_control: u64,
}

#[derive(Debug)]
struct Body {
    left: usize,
    /// `None` when it is dropped.
    bytes: Option<Vec<u8>>,
}

impl Reader {
    pub(super) fn new(max_message_bytes: usize, max_control_bytes: u64) -> Self {
        let (most, most_control) = (max_message_bytes as u64, max_control_bytes);
        Self { header: [0; MESSAGE_HEADER], have: 0, body: None, most, most_control }
    }

    /// Takes bytes off the front of `input` until something is complete; `None` when all are taken. `enter`
    /// decides what happens to a message of that tag and length.
    pub(super) fn next(
        &mut self,
        input: &mut &[u8],
        mut enter: impl FnMut(Tag, usize) -> Entry,
    ) -> Result<Option<Item>, Garbage> {
        loop {
            if let Some(body) = &mut self.body {
                let (now, rest) = input.split_at(input.len().min(body.left));
                *input = rest;
                body.left -= now.len();
                if let Some(bytes) = &mut body.bytes {
                    extend(bytes, now, body.left);
                }
                if body.left > 0 {
                    return Ok(None);
                }
                self.have = 0;
                let Some(bytes) = self.body.take().and_then(|body| body.bytes) else { continue };
                return self.finish(bytes).map(Some);
            }
            if !self.take_header(input) {
                return Ok(None);
            }
            let length = length_of(&self.header);
            let is_message = self.header[0] == MESSAGE;
            if length > if is_message { self.most } else { self.most_control } {
                return Err(Garbage);
            }
            let left = usize::try_from(length).map_err(|_| Garbage)?;
            let entry = if is_message { enter(tag_of(&self.header), left) } else { Entry::Into(Vec::new()) };
            let bytes = match entry {
                Entry::Into(bytes) => Some(bytes),
                Entry::Drop => None,
                Entry::Full => return Ok(Some(Item::Blocked)),
            };
            self.body = Some(Body { left, bytes });
        }
    }

    /// Bytes of the message under way that have not come; 0 if none is under way.
    pub(super) fn left(&self) -> usize {
        self.body.as_ref().filter(|_| self.header[0] == MESSAGE).map_or(0, |body| body.left)
    }

    /// Whether the whole header is there.
    fn take_header(&mut self, input: &mut &[u8]) -> bool {
        loop {
            let is_message = self.have > 0 && self.header[0] == MESSAGE;
            let need = if is_message { MESSAGE_HEADER } else { HEADER };
            if self.have >= need {
                return true;
            }
            let Some((first, rest)) = input.split_first() else { return false };
            self.header[self.have] = *first;
            self.have += 1;
            *input = rest;
        }
    }

    fn finish(&mut self, bytes: Vec<u8>) -> Result<Item, Garbage> {
        if self.header[0] == MESSAGE {
            return Ok(Item::Message(tag_of(&self.header), bytes));
        }
        Control::parse(self.header[0], &bytes).map(Item::Control).ok_or(Garbage)
    }
}

/// Appends what came. Memory grows with what is there, not with what a header claims.
fn extend(bytes: &mut Vec<u8>, now: &[u8], left: usize) {
    let free = bytes.capacity() - bytes.len();
    if free < now.len() {
        let grown = bytes.len().max(AHEAD).min(left);
        bytes.reserve_exact(now.len() + grown);
    }
    bytes.extend_from_slice(now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;
    use crate::tcp::frame::{MAX_CONTROL, message_header};

    fn message(tag: Tag, payload: &[u8]) -> Vec<u8> {
        [&message_header(tag, payload.len())[..], payload].concat()
    }

    fn items(stream: &[u8], piece: usize) -> Result<Vec<Item>, Garbage> {
        let (mut reader, mut items) = (Reader::new(1000, MAX_CONTROL), Vec::new());
        for piece in stream.chunks(piece) {
            let mut input = piece;
            while let Some(item) = reader.next(&mut input, |_, _| Entry::Into(Vec::new()))? {
                items.push(item);
            }
        }
        assert!(reader.body.is_none() && reader.have == 0);
        Ok(items)
    }

    #[test]
    fn frames_come_out_the_same_however_the_stream_is_cut() {
        let (tag, lost) = (Tag::new(1, 2).unit(3), Control::Lost(Rank(7)));
        let stream = [message(tag, b"payload"), lost.to_bytes(), message(tag, b"")].concat();
        let expected = || {
            vec![
                Item::Message(tag, b"payload".to_vec()),
                Item::Control(lost.clone()),
                Item::Message(tag, Vec::new()),
            ]
        };
        for piece in 1..=stream.len() {
            assert_eq!(items(&stream, piece), Ok(expected()));
        }
    }

    #[test]
    fn what_is_left_of_a_message_is_known_while_it_comes_and_of_nothing_else() {
        let (tag, lost) = (Tag::new(0, 1), Control::Lost(Rank(7)).to_bytes());
        let mut reader = Reader::new(1000, MAX_CONTROL);
        let mut left = |mut piece: &[u8]| {
            let item = reader.next(&mut piece, |_, _| Entry::Into(Vec::new())).unwrap();
            (item.is_some(), reader.left())
        };
        let stream = message(tag, b"payload");
        let (header, payload) = stream.split_at(MESSAGE_HEADER);
        assert_eq!(left(&header[..3]), (false, 0));
        assert_eq!(left(&header[3..]), (false, 7));
        assert_eq!(left(&payload[..2]), (false, 5));
        assert_eq!(left(&payload[2..]), (true, 0));
        let (begin, end) = lost.split_at(lost.len() - 1);
        assert_eq!(left(begin), (false, 0));
        assert_eq!(left(end), (true, 0));
    }

    #[test]
    fn a_message_without_room_waits_and_one_that_is_dropped_leaves_nothing() {
        let tag = Tag::new(0, 1);
        let stream = [message(tag, b"first"), message(tag.unit(1), b"second")].concat();
        let (mut reader, mut input) = (Reader::new(1000, MAX_CONTROL), stream.as_slice());
        for _ in 0..2 {
            assert_eq!(reader.next(&mut input, |_, _| Entry::Full), Ok(Some(Item::Blocked)));
        }
        assert_eq!(input.len(), stream.len() - MESSAGE_HEADER);
        let drop_first = |entering: Tag, _| match entering == tag {
            true => Entry::Drop,
            false => Entry::Into(Vec::new()),
        };
        let second = Item::Message(tag.unit(1), b"second".to_vec());
        assert_eq!(reader.next(&mut input, drop_first), Ok(Some(second)));
    }

    #[test]
    fn frames_that_are_too_long_or_of_no_kind_are_refused_before_any_of_their_bytes() {
        let refuse = |_, _| -> Entry { unreachable!("it is not asked for room") };
        for (kind, length) in [(MESSAGE, 1001), (MESSAGE, u64::MAX), (2, MAX_CONTROL + 1), (99, u64::MAX)] {
            let mut stream = vec![kind];
            stream.extend_from_slice(&length.to_le_bytes());
            stream.extend_from_slice(&[0; Tag::BYTES]);
            assert_eq!(Reader::new(1000, MAX_CONTROL).next(&mut stream.as_slice(), refuse), Err(Garbage));
        }
        let unknown = [&[99][..], &0_u64.to_le_bytes()].concat();
        assert_eq!(Reader::new(1000, MAX_CONTROL).next(&mut unknown.as_slice(), refuse), Err(Garbage));
    }
}
