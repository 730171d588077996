//! One connection: to somebody who is not known yet, or to a peer.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::greeting::Greeting;
use super::options::Timing;
use super::reader::Reader;
use super::wire::Wire;

/// Fewer bytes than these are a sign of life only if they end a frame. Who has begun a frame has the rest of
/// it ready, so on a link that carries gradients at all more of it comes before a silence is too long.
const LEAST: usize = 1024;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) address: SocketAddr,
    /// When it began.
    pub(super) since: Instant,
    pub(super) stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// To that rank; the system has not connected yet.
    Connecting(usize),
    /// With that rank, or with who has not said.
    Greeting(Box<Greeting>, Option<usize>),
    /// Turned away. What it sends is dropped, so that it can read why; then it ends.
    Dismissed,
    Peer(Link),
}

/// The link to a peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: usize,
    pub(super) reader: Reader,
    /// Whether its next message has no room here, so that nothing is read.
    pub(super) is_blocked: bool,
    /// Whether it said that no message follows.
    pub(super) has_left: bool,
    /// Whether this end said so.
    pub(super) said_bye: bool,
    pub(super) last_sent: Instant,
    last_heard: Instant,
    /// Bytes that came since then.
    came: usize,
    /// The longest silence that ended.
    longest: Duration,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, address: SocketAddr, stage: Stage, now: Instant) -> Self {
        Self { wire: Wire::new(stream), address, since: now, stage }
    }

    /// The link, if it is to a peer.
    pub(super) fn link(&mut self) -> Option<(&mut Wire, &mut Link)> {
        match &mut self.stage {
            Stage::Peer(link) => Some((&mut self.wire, link)),
            _ => None,
        }
    }

    pub(super) fn is_peer(&self) -> bool {
        matches!(self.stage, Stage::Peer(_))
    }
}

impl Link {
    pub(super) fn new(rank: usize, reader: Reader, now: Instant) -> Self {
        Self {
            rank,
            reader,
            is_blocked: false,
            has_left: false,
            said_bye: false,
            last_sent: now,
            last_heard: now,
            came: 0,
            longest: Duration::ZERO,
        }
    }

    /// Bytes came, of frames that may not be whole.
    pub(super) fn came(&mut self, count: usize, now: Instant) {
        self.came += count;
        if self.came >= LEAST {
            self.heard(now);
        }
    }

    /// A whole frame came, or much of one.
    pub(super) fn heard(&mut self, now: Instant) {
        self.longest = self.longest.max(now - self.last_heard);
        self.did_not_listen(now);
    }

    /// Nothing was read, so nothing could be heard.
    pub(super) fn did_not_listen(&mut self, now: Instant) {
        self.last_heard = now;
        self.came = 0;
    }

    /// For how long it has been silent, if that is too long.
    pub(super) fn is_silent(&self, timing: &Timing, now: Instant) -> Option<Duration> {
        let silence = now - self.last_heard;
        (silence > timing.silence_after(self.longest)).then_some(silence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_too_long_by_what_was_seen_before_and_only_while_somebody_listens() {
        let (timing, start) = (Timing::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut link = Link::new(1, Reader::new(0, 0), start);
        assert_eq!(link.is_silent(&timing, at(10)), None);
        assert_eq!(link.is_silent(&timing, at(11)), Some(Duration::from_secs(11)));
        link.did_not_listen(at(100));
        assert_eq!(link.is_silent(&timing, at(110)), None);
        link.heard(at(106));
        assert_eq!(link.is_silent(&timing, at(124)), None);
        assert_eq!(link.is_silent(&timing, at(125)), Some(Duration::from_secs(19)));
    }

    #[test]
    fn a_few_bytes_of_a_frame_that_does_not_end_are_no_sign_of_life() {
        let (timing, start) = (Timing::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut link = Link::new(1, Reader::new(0, 0), start);
        (1..=11).for_each(|second| link.came(9, at(second)));
        assert_eq!(link.is_silent(&timing, at(11)), Some(Duration::from_secs(11)));
        link.came(LEAST - 99, at(11));
        assert_eq!(link.is_silent(&timing, at(21)), None);
        link.came(LEAST - 1, at(12));
        link.heard(at(13));
        link.came(1, at(14));
        assert_eq!(link.is_silent(&timing, at(47)), Some(Duration::from_secs(34)));
    }
}
