//! What every route needs in a step, and the time that its phases take.

use gradwire::format::{Divisor, VoidFrame};
use gradwire::packets::PacketSize;
use gradwire::plan::Plan;
use gradwire::{Gather, Grad, Layout, Memory, Selection, StepKey, Unit};

use super::error::ExchangeError;
use super::fit::packets_of;
use super::incoming::Requirements;
use super::measure::Measure;
use super::port::{Body, Care, Port};
use super::report::{Clock, Report};
use crate::rank::{Rank, RankSet};
use crate::tag::Tag;

/// What every route needs in a step.
pub(super) struct Step<'a> {
    pub(super) port: &'a mut Port,
    pub(super) plan: &'a Plan,
    /// What was selected before the step, and the position of the density that is sent.
    pub(super) selected: Option<(&'a Selection, usize)>,
    pub(super) layout: &'a Layout,
    /// The divisor that the workers' frames state.
    pub(super) divisor: Divisor,
    pub(super) key: StepKey,
    pub(super) tag: Tag,
    /// Measures the gain of this rank's own frames, if that was requested.
    pub(super) measure: Option<&'a mut Measure>,
}

impl<'a> Step<'a> {
    /// The units of the whole step.
    pub(super) fn units(&self) -> &'a [Unit] {
        self.plan.units()
    }

    /// The codec of the first group: of all units, if there is one group.
    pub(super) fn codec(&self) -> &'a dyn Gather {
        self.plan.groups()[0].codec()
    }

    /// The size of packets, if gradients are cut into packets.
    pub(super) fn packets(&self) -> Option<PacketSize> {
        packets_of(self.plan)
    }

    pub(super) fn rank(&self) -> Rank {
        self.port.rank()
    }

    /// All members.
    pub(super) fn members(&self) -> RankSet {
        self.port.members().ranks.clone()
    }

    /// This rank's void frame for a gradient that was refused; `None` if something else failed.
    pub(super) fn void_frame(&self, error: &ExchangeError) -> Option<VoidFrame> {
        let ExchangeError::Encode(error) = error else { return None };
        VoidFrame::of(self.codec().id(), self.key.step, error)
    }

    /// The position of this rank among the members.
    pub(super) fn place_in(&self, members: &RankSet) -> usize {
        members.position(self.rank()).unwrap_or(0)
    }

    /// The other members with their positions, beginning after this rank, so that not all ranks send to the
    /// same one first.
    pub(super) fn others_in<'m>(
        &self,
        members: &'m RankSet,
    ) -> impl Iterator<Item = (usize, Rank)> + use<'m> {
        let me = self.place_in(members);
        (me + 1..members.len()).chain(0..me).map(|place| (place, members.as_slice()[place]))
    }

    /// If requested, measures the gain of this rank's messages, which hold these units. Call it right after
    /// encoding them.
    pub(super) fn measure<'f>(
        &mut self,
        own: impl Iterator<Item = &'f [u8]>,
        units: &[Unit],
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) {
        let Some(measure) = self.measure.take() else { return };
        let (layout, expected) = (self.layout.as_ref(), Requirements::own(self, units));
        own.for_each(|message| measure.add(message, &layout, &expected, grad, memory));
        self.measure = Some(measure);
    }

    /// What this rank reports about the step if no server refuses, caps or takes packets.
    pub(super) fn report(
        &self,
        contributors: RankSet,
        frame_bytes: usize,
        held: usize,
        Clock { encode, exchange, decode }: Clock,
    ) -> Report {
        let (refused, capped, packets) = Default::default();
        let gain = self.measure.as_ref().map(|measure| measure.sum);
        Report { contributors, refused, capped, frame_bytes, packets, held, gain, encode, exchange, decode }
    }

    /// Queues a frame of a part for every peer: see [`InParts::frame`](super::pipeline::InParts::frame).
    pub(super) fn send_frame_to_all(&mut self, tag: Tag, part: usize, place: usize) {
        let members = self.members();
        for (_, to) in self.others_in(&members) {
            self.port.queue(to, tag, Body::Frame { part, place }, Care::Must);
        }
    }

    /// Queues a short message for every peer.
    pub(super) fn send_to_all(&mut self, tag: Tag, message: &[u8], care: Care) {
        let members = self.members();
        self.others_in(&members).for_each(|(_, to)| self.port.queue_copy(to, tag, message, care));
    }

    /// Records that every other member will send this rank a message with that tag.
    pub(super) fn expect_from_all(&mut self, tag: Tag) {
        let (members, me) = (self.members(), self.rank());
        members.iter().filter(|rank| *rank != me).for_each(|from| self.port.expect(from, tag));
    }

    /// Takes the message that is expected first, if it is here: see [`Port::take`].
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> Result<bool, ExchangeError> {
        self.port.take(into, self.layout)
    }
}
