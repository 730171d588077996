//! What needs no network: whole steps over threads. They are one program, because each further one would be
//! compiled and linked by itself.

#[path = "../common/mod.rs"]
mod common;

mod apart;
mod conformance;
mod copies;
mod decay;
mod downlink;
mod edges;
mod ending;
mod exchange;
mod gossip;
mod layers;
mod local;
mod minima;
mod norm_cap;
mod own_codec;
mod owners;
mod packets;
mod parts;
mod pipeline;
mod rounds_first;
mod rules;
mod selection;
mod senders;
mod served;
mod sketch;
mod sparse;
mod versions;
mod void;
mod votes;
mod wakeups;
