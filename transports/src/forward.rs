//! A box or a mutable reference of a transport is a transport. It forwards every call, so overrides of the
//! inner transport run too.

use crate::collective::Reduce;
use crate::counters::Counters;
use crate::error::TransportError;
use crate::rank::{Membership, Rank, RankSet};
use crate::tag::{Deadline, Tag, Wanted};
use crate::transport::Transport;

macro_rules! forward {
    ($pointer:ty) => {
        impl<T: Transport + ?Sized> Transport for $pointer {
            fn rank(&self) -> Rank {
                (**self).rank()
            }

            fn membership(&self) -> Membership {
                (**self).membership()
            }

            fn is_fail_stop(&self) -> bool {
                (**self).is_fail_stop()
            }

            fn max_message_bytes(&self) -> usize {
                (**self).max_message_bytes()
            }

            fn envelope_bytes(&self, payload_bytes: usize) -> usize {
                (**self).envelope_bytes(payload_bytes)
            }

            fn send(
                &mut self,
                to: Rank,
                tag: Tag,
                payload: &[u8],
                by: Deadline,
            ) -> Result<(), TransportError> {
                (**self).send(to, tag, payload, by)
            }

            fn send_packet(
                &mut self,
                to: Rank,
                tag: Tag,
                payload: &[u8],
                until: Deadline,
            ) -> Result<(), TransportError> {
                (**self).send_packet(to, tag, payload, until)
            }

            fn recv_any(
                &mut self,
                wanted: &[Wanted],
                into: &mut Vec<u8>,
                by: Deadline,
            ) -> Result<(Rank, Tag), TransportError> {
                (**self).recv_any(wanted, into, by)
            }

            fn try_progress(&mut self) -> Result<(), TransportError> {
                (**self).try_progress()
            }

            fn retire(&mut self, before: Tag) {
                (**self).retire(before);
            }

            fn close(&mut self, by: Deadline) -> Result<(), TransportError> {
                (**self).close(by)
            }

            fn counters(&self) -> Counters {
                (**self).counters()
            }

            fn native_all_reduce(
                &mut self,
                tag: Tag,
                data: Reduce<'_>,
                by: Deadline,
            ) -> Result<RankSet, TransportError> {
                (**self).native_all_reduce(tag, data, by)
            }
        }
    };
}

forward!(Box<T>);
forward!(&mut T);
