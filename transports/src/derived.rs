//! Tags that collectives derive for their messages from the tag that they are called with.

use crate::error::TransportError;
use crate::tag::Tag;

/// The collectives that derive tags. The number is part of the tag, so two collectives never derive the same
/// tag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Barrier = 0,
    Broadcast = 1,
    Gather = 2,
    AllGather = 3,
    ReduceScatter = 4,
    AllReduce = 5,
    Gossip = 6,
    TreeReduce = 7,
    Owners = 8,
}

impl Tag {
    /// The tag of message `hop` of a collective: bit 31, 4 bits of kind, 11 of the caller's chunk, 16 of hop.
    pub(crate) fn derive(self, kind: Kind, hop: usize) -> Result<Self, TransportError> {
        let hop = u16::try_from(hop).map_err(|_| TransportError::TagOutOfRange { tag: self })?;
        if self.chunk >= Self::COLLECTIVE_CHUNKS {
            return Err(TransportError::TagOutOfRange { tag: self });
        }
        let chunk = Self::FIRST_COLLECTIVE_CHUNK | (kind as u32) << 27 | self.chunk << 16 | u32::from(hop);
        Ok(self.chunk(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_tags_of_different_collectives_chunks_and_hops_differ() {
        let mut tags = Vec::new();
        let reductions = [Kind::ReduceScatter, Kind::AllReduce, Kind::TreeReduce, Kind::Owners];
        for kind in [Kind::Barrier, Kind::AllGather].into_iter().chain(reductions) {
            for chunk in [0, 1, Tag::COLLECTIVE_CHUNKS - 1] {
                tags.extend([0, 1, 65535].map(|hop| Tag::new(1, 2).chunk(chunk).derive(kind, hop).unwrap()));
            }
        }
        let total = tags.len();
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), total);
        assert!(tags.iter().all(|tag| tag.chunk >= Tag::FIRST_COLLECTIVE_CHUNK));
    }

    #[test]
    fn a_chunk_or_hop_that_does_not_fit_is_an_error() {
        let tag = Tag::new(0, 0);
        let wide = tag.chunk(Tag::COLLECTIVE_CHUNKS);
        assert_eq!(wide.derive(Kind::Barrier, 0), Err(TransportError::TagOutOfRange { tag: wide }));
        assert_eq!(tag.derive(Kind::Barrier, 65536), Err(TransportError::TagOutOfRange { tag }));
    }
}
