//! How frames travel.

use std::time::Duration;

use gradwire::{Codec, Spec};

use super::fit::Kind;
use crate::collective::Wire;
use crate::rank::Rank;

/// How frames travel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Route {
    /// Every frame goes to every rank. A step succeeds or fails as a whole, and at all ranks alike, with the
    /// exception that [the end of a step](super#the-end-of-a-step) describes.
    AllGather,
    /// Every rank owns blocks of the coordinates. It receives the values of the others' frames in its blocks,
    /// sums them, and sends the sums to all. For codecs that send few coordinates. The mean has the bits of
    /// [`Route::AllGather`]. Blocks in which almost no value is zero travel dense. If an owner refuses a
    /// part, it tells all others, and the step fails for them too.
    ///
    /// # Source
    /// Renggli et al.: SparCML (arXiv 1802.08021), split and all-gather with its switch to dense; Li,
    /// Hoefler: Near-Optimal Sparse Allreduce for Distributed Deep Learning (Ok-Topk, arXiv 2201.07598),
    /// whose balanced regions are here blocks dealt in turn. Nothing is dropped on the way.
    SparseAllReduce,
    /// Payloads are summed around a ring, for linear codecs and for `none`. A step ends as with
    /// [`Route::AllGather`].
    AllReduce {
        /// What an f32 takes between two hops.
        wire: Wire,
    },
    /// As [`Route::AllReduce`], but summed up a binomial tree and sent down again: in ⌈log₂N⌉ steps each way
    /// instead of N−1, each with the whole payload. For short payloads and long round trips.
    Tree {
        /// What an f32 takes between two hops.
        wire: Wire,
    },
    /// As [`Route::AllReduce`], but every rank sums a segment, which all others send to it, in rank order. So
    /// the bits of a sum do not depend on where its element lies, as those of a ring do, and two messages
    /// wait for each other instead of 2(N−1). Each rank sends as much as around a ring, to all others instead
    /// of one. By bfloat16 all operands and the sum are rounded once each.
    Owners {
        /// What an f32 takes on its way.
        wire: Wire,
    },
    /// As [`Route::AllReduce`], but summed by the all-reduce of the transport's own library, if it has one.
    /// Only the library knows its order of sums, so the bits differ from those of other routes.
    ///
    /// Nobody in the library can be told of a rank that does not come. So every rank first says to all others
    /// that it enters, in a message of one byte, and enters once all have said so: one latency more. From
    /// then on it enters whatever happens, so a caller that [fails](super::Exchange::fail) is heard after the
    /// sum.
    Native {
        /// What an f32 takes in the library's sums.
        wire: Wire,
    },
    /// Every frame goes to one rank, which sends back the mean. Of linear codecs without frames, payloads go
    /// there, and their reductions come back: see [a server of payloads](super#a-server-of-payloads).
    Server(ServerOptions),
}

impl Route {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::AllGather => Kind::Frames,
            Self::SparseAllReduce => Kind::SparseFrames,
            Self::AllReduce { .. } | Self::Tree { .. } | Self::Owners { .. } | Self::Native { .. } => {
                Kind::Sums
            }
            Self::Server(_) => Kind::Server,
        }
    }
}

/// Settings of a parameter server. The server is a member that contributes a gradient of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// Which rank serves.
    pub server: Rank,
    /// The fewest frames with which a step succeeds, the server's own included; 0 means all. Payloads come
    /// from all members, or the step fails.
    pub quorum: usize,
    /// How long the server waits for frames. It then continues with those that it has. A worker does not
    /// resend packets after that time. `None`: until the deadline of the step. Once a quorum is there, a
    /// worker whose connection broke and was not made anew is waited for no longer, if the transport
    /// [notices](crate::Wanted::unless_cut_off), as that over ZeroMQ does.
    pub patience: Option<Duration>,
    /// How the server encodes the mean that it sends back. Of this spelling, the codec and the memory count;
    /// the server keeps the memory. Units are those of the workers' frames, and the mean is always one frame.
    /// For a codec without a spelling, use [`Exchange::with_downlink`](super::Exchange::with_downlink).
    pub downlink: Spec,
    /// A frame whose Euclidean norm exceeds this multiple of a running median is scaled down to it before it
    /// enters the sum, also the server's own. The multiple is at least 1. `None`: no frame is scaled. Only
    /// the server's setting matters.
    ///
    /// The median is that of the last 64 decoded norms before the frame, without zeros; of two middle norms
    /// it is the lower. The first 8 frames pass. [`Exchange::norms`](super::Exchange::norms) returns the
    /// norms, to be saved for a server that is started again. What is cut off is lost and not given back,
    /// because error feedback would send it again with the next frame. So one member can move a mean by at
    /// most that multiple of the others' median, in a direction of its choice.
    pub norm_cap: Option<f32>,
}

impl Default for ServerOptions {
    /// Rank 0 serves, waits for all frames, answers with dense f32, and caps no norm.
    fn default() -> Self {
        let downlink = Spec::new(Codec::NONE);
        Self { server: Rank(0), quorum: 0, patience: None, downlink, norm_cap: None }
    }
}
