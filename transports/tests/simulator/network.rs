//! A network of made-up time: messages travel as long as the seed says, and some never arrive.

use gradwire_transports::{Rank, Tag};

/// Random numbers of one schedule: SplitMix64.
#[derive(Debug)]
pub(crate) struct Draws(pub u64);

impl Draws {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// How a network treats messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// The longest time of travel.
    pub(crate) delay: u64,
    /// In percent of all messages.
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    pub(crate) cut: u64,
    /// Whether an inbox holds one message of each sender, and hands over only what is asked for.
    pub(crate) is_narrow: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) tag: Tag,
    pub(crate) bytes: Vec<u8>,
    /// When it arrives.
    pub(crate) at: u64,
}

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) faults: Faults,
    pub(crate) flying: Vec<Message>,
    /// Messages that arrived and that their receiver has not asked for.
    pub(crate) waiting: Vec<Message>,
    /// A rank of another version, as all others are for it.
    pub(crate) stranger: Option<Rank>,
}

/// The last byte of a message of this version, and of another one.
pub(crate) const VERSION: u8 = 0xe1;
pub(crate) const OTHER_VERSION: u8 = 2;

impl Network {
    pub(crate) fn new(faults: Faults, stranger: Option<Rank>) -> Self {
        Self { faults, flying: Vec::new(), waiting: Vec::new(), stranger }
    }

    /// Sends a message; returns whether there was room for it. Packets are lost in every world.
    pub(crate) fn send(&mut self, draws: &mut Draws, now: u64, message: Message, is_packet: bool) -> bool {
        if is_packet && draws.percent(10) {
            return true;
        }
        let same = |other: &Message| (other.from, other.to) == (message.from, message.to);
        if self.faults.is_narrow && self.flying.iter().chain(&self.waiting).any(same) {
            return false;
        }
        if draws.percent(self.faults.lost) {
            return true;
        }
        let mut message = message;
        if !is_packet {
            assert_eq!(message.bytes.last(), Some(&VERSION), "a message without a version");
            if [message.from, message.to].map(Some).contains(&self.stranger) {
                *message.bytes.last_mut().unwrap() += OTHER_VERSION - 1;
            }
        }
        if draws.percent(self.faults.cut) && !message.bytes.is_empty() {
            message.bytes.truncate(draws.below(message.bytes.len() as u64) as usize);
        }
        for _ in 0..=u64::from(draws.percent(self.faults.twice)) {
            let at = now + 1 + draws.below(self.faults.delay);
            self.flying.push(Message { at, ..message.clone() });
        }
        true
    }

    /// When the last message that travels has arrived.
    pub(crate) fn last(&self, now: u64) -> u64 {
        self.flying.iter().map(|message| message.at).fold(now, u64::max)
    }

    /// When the next message arrives.
    pub(crate) fn next(&self) -> Option<u64> {
        self.flying.iter().map(|message| message.at).min()
    }

    /// The receivers of the messages that arrive now.
    pub(crate) fn land(&mut self, now: u64) -> Vec<Rank> {
        let (here, flying) =
            std::mem::take(&mut self.flying).into_iter().partition(|message| message.at <= now);
        self.flying = flying;
        let receivers = here.iter().map(|message: &Message| message.to).collect();
        self.waiting.extend(here);
        receivers
    }

    /// Takes the messages for a rank that satisfy a condition.
    pub(crate) fn take(&mut self, to: Rank, mut wants: impl FnMut(&Message) -> bool) -> Vec<Message> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, left) = all.into_iter().partition(|message| message.to == to && wants(message));
        self.waiting = left;
        taken
    }
}

/// Which peers learn that a rank is gone, and when.
#[derive(Debug, Default)]
pub(crate) struct News(Vec<(u64, usize, Rank)>);

impl News {
    /// All of `peers` but `who`, which has this rank, learn of its death some time after `last`.
    pub(crate) fn of_death(&mut self, who: usize, rank: Rank, peers: usize, last: u64, draws: &mut Draws) {
        let others = (0..peers).filter(|at| *at != who);
        self.0.extend(others.map(|at| (last + 1 + draws.below(300), at, rank)));
    }

    /// When the next peer learns of something.
    pub(crate) fn next(&self) -> Option<u64> {
        self.0.iter().map(|news| news.0).min()
    }

    /// Tells each peer what it learns by now. It is told once more in its next step if `tell` says that there
    /// may be one.
    pub(crate) fn tell(&mut self, now: u64, mut tell: impl FnMut(usize, Rank) -> bool) {
        let (told, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|news| news.0 <= now);
        self.0 = later;
        for (_, at, rank) in told {
            if tell(at, rank) {
                self.0.push((now + 50, at, rank));
            }
        }
    }
}
