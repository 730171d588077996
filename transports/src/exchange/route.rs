//! How frames travel.

use std::time::Duration;

use gradwire::{Codec, Spec};

use crate::collective::Wire;
use crate::rank::Rank;

/// How frames travel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Route {
    /// Every frame goes to every rank. A step is all or nothing, and ends alike at all ranks, as far as
    /// [the end of a step](super#the-end-of-a-step) says.
    AllGather,
    /// Every rank owns blocks of the coordinates. It receives the values of the others' frames in its blocks,
    /// sums them, and sends the sums to all. For codecs that send few coordinates; the mean has the bits of
    /// [`Route::AllGather`]. Blocks in which almost no value is zero travel dense. A rank whose part was
    /// refused tells all others, for whom the step then fails too.
    ///
    /// # Source
    /// Renggli et al.: SparCML (arXiv 1802.08021), split and all-gather with its switch to dense; Li,
    /// Hoefler: Near-Optimal Sparse Allreduce for Distributed Deep Learning (Ok-Topk, arXiv 2201.07598),
    /// whose balanced regions are here blocks dealt in turn. Nothing is dropped on the way.
    SparseAllReduce,
    /// Payloads are summed around a ring; for linear codecs, and for `none`. Ends as [`Route::AllGather`]
    /// does.
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
    /// As [`Route::AllReduce`], but summed by the all-reduce of the transport's own library, if it has one.
    /// Only the library knows its order of sums, so the bits differ from those of other routes.
    Native {
        /// What an f32 takes in the library's sums.
        wire: Wire,
    },
    /// Every frame goes to one rank, which sends back the mean.
    Server(ServerOptions),
}

/// Settings of a parameter server. The server is a member that contributes a gradient of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// Which rank serves.
    pub server: Rank,
    /// Number of frames, the server's own included, without which a step fails; 0 means all.
    pub quorum: usize,
    /// How long the server waits for frames; it then continues with those it has. A worker's packets that did
    /// not get through by then are not sent again. `None`: until the deadline of the step.
    pub patience: Option<Duration>,
    /// How the mean is sent back: codec and memory count, which the server keeps; units are those of the
    /// workers' frames, and it is one frame whatever the spelling says of packets. A codec that has no
    /// spelling goes with [`Exchange::with_downlink`](super::Exchange::with_downlink).
    pub downlink: Spec,
    /// A frame whose Euclidean norm exceeds this multiple of a running median enters the sum scaled down to
    /// it, the server's own too. The multiple is at least 1. `None`: no frame is scaled. Only the server's
    /// setting matters.
    ///
    /// The median is that of the last 64 decoded norms before the frame, zeros left out, the lower of two
    /// middle ones; the first 8 frames pass. [`Exchange::norms`](super::Exchange::norms) saves them for a
    /// server that is started again. What is cut off is lost, not given back: with error feedback it would
    /// come again with the next frame. One member can then move a mean no further than that multiple of the
    /// others' median, in a direction of its choice.
    pub norm_cap: Option<f32>,
}

impl Default for ServerOptions {
    /// Rank 0 serves, waits for all, answers with dense f32, and caps no norm.
    fn default() -> Self {
        let downlink = Spec::new(Codec::NONE);
        Self { server: Rank(0), quorum: 0, patience: None, downlink, norm_cap: None }
    }
}
