//! How much may be sent to a rank before it must confirm that it receives messages.

use super::library::End;

/// Bytes that the library may hold for a receiver that receives nothing.
const MOST: usize = 64 << 10;
/// The least number of bytes that a message counts as, because the library also keeps a record of it.
const LEAST_COST: usize = 1 << 10;

/// How much may still be sent to one rank without a confirmation. Messages are received in the order of
/// sending, so the confirmation of one covers all before it.
#[derive(Debug)]
pub(super) struct Credit {
    most: usize,
    left: usize,
    /// Messages in flight for which a confirmation was requested.
    asked: usize,
}

impl Credit {
    /// A receiver keeps `bytes` itself; the library does not keep more.
    pub(super) fn new(bytes: usize) -> Self {
        let most = bytes.min(MOST);
        Self { most, left: most, asked: 0 }
    }

    /// How to send a message of so many bytes. After [`End::Taken`], [`confirm`](Self::confirm) must follow.
    pub(super) fn end_of(&mut self, bytes: usize) -> End {
        let cost = bytes.max(LEAST_COST);
        if self.asked > 0 || cost > self.left {
            return self.ask();
        }
        self.left -= cost;
        End::Handed
    }

    /// The same for a message that always needs a confirmation.
    pub(super) fn ask(&mut self) -> End {
        self.asked += 1;
        End::Taken
    }

    /// Records the confirmation of a message.
    pub(super) fn confirm(&mut self) {
        self.asked -= 1;
        self.left = self.most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_that_takes_nothing_is_sent_no_more_than_the_credit_without_asking() {
        for bytes in [1, LEAST_COST, 5_000, MOST, MOST + 1] {
            let mut credit = Credit::new(1 << 30);
            let covered = (0..1000).filter(|_| credit.end_of(bytes) == End::Handed).count();
            assert_eq!(covered, MOST / bytes.max(LEAST_COST));
            assert_eq!(credit.asked, 1000 - covered);
        }
        assert_eq!(Credit::new(LEAST_COST - 1).end_of(1), End::Taken);
    }

    #[test]
    fn credit_returns_when_everything_asked_for_was_taken() {
        let mut credit = Credit::new(2 * LEAST_COST);
        assert_eq!([(); 4].map(|()| credit.end_of(1)), [End::Handed, End::Handed, End::Taken, End::Taken]);
        credit.confirm();
        // The last is still in flight, so nothing is known of the messages after it.
        assert_eq!(credit.end_of(1), End::Taken);
        credit.confirm();
        credit.confirm();
        assert_eq!([(); 3].map(|()| credit.end_of(1)), [End::Handed, End::Handed, End::Taken]);
    }
}
