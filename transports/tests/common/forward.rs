//! For a transport of a test that changes a few calls of the one inside.

/// The calls that go to the transport inside as they are: all but `is_fail_stop`, `send` and `recv_any`,
/// `send_packet` by its default.
macro_rules! forward_to {
    ($inner:tt) => {
        fn rank(&self) -> gradwire_transports::Rank {
            self.$inner.rank()
        }

        fn membership(&self) -> gradwire_transports::Membership {
            self.$inner.membership()
        }

        fn max_message_bytes(&self) -> usize {
            self.$inner.max_message_bytes()
        }

        fn envelope_bytes(&self, payload_bytes: usize) -> usize {
            self.$inner.envelope_bytes(payload_bytes)
        }

        fn try_progress(&mut self) -> Result<(), gradwire_transports::TransportError> {
            self.$inner.try_progress()
        }

        fn retire(&mut self, before: gradwire_transports::Tag) {
            self.$inner.retire(before);
        }

        fn close(
            &mut self,
            by: gradwire_transports::Deadline,
        ) -> Result<(), gradwire_transports::TransportError> {
            self.$inner.close(by)
        }

        fn counters(&self) -> gradwire_transports::Counters {
            self.$inner.counters()
        }
    };
}

pub(crate) use forward_to;
