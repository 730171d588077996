//! What every route needs in a step, and the time that its phases take.

use std::time::{Duration, Instant};

use gradwire::format::Divisor;
use gradwire::packets::PacketSize;
use gradwire::plan::Plan;
use gradwire::{Gather, Grad, Layout, Memory, Selection, StepKey, Unit};

use super::fit::packets_of;
use super::incoming::Requirements;
use super::measure::Measure;
use super::report::Report;
use super::underway::Underway;
use super::void::Reader;
use crate::error::TransportError;
use crate::rank::{Rank, RankSet};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;

/// What every route needs in a step.
pub(super) struct Step<'a> {
    pub(super) transport: &'a mut dyn Transport,
    pub(super) underway: &'a mut Underway,
    pub(super) plan: &'a Plan,
    /// What was selected before the step, and the position of the density that is sent.
    pub(super) selected: Option<(&'a Selection, usize)>,
    pub(super) layout: &'a Layout,
    /// The divisor that the workers' frames state.
    pub(super) divisor: Divisor,
    pub(super) key: StepKey,
    pub(super) tag: Tag,
    pub(super) deadline: Deadline,
    pub(super) clock: Clock,
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

    /// The position of this rank among the members.
    pub(super) fn place_in(&self, members: &RankSet) -> usize {
        members.position(self.transport.rank()).unwrap_or(0)
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
        timed(&mut self.clock.encode, || {
            own.for_each(|message| measure.add(message, &layout, &expected, grad, memory));
        });
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

    /// Sends a message of a pipeline.
    pub(super) fn send(&mut self, to: Rank, tag: Tag, message: &[u8]) -> Result<(), TransportError> {
        let (underway, transport, deadline) = (&mut *self.underway, &mut *self.transport, self.deadline);
        let reader = Reader { layout: self.layout, step: self.key.step };
        timed(&mut self.clock.exchange, || underway.send(transport, (to, tag), message, &reader, deadline))
    }

    /// Records that every other member will send this rank a message with that tag.
    pub(super) fn expect_from_all(&mut self, tag: Tag) {
        let (members, me) = (self.transport.membership().ranks, self.transport.rank());
        members.iter().filter(|rank| *rank != me).for_each(|from| self.underway.expect(from, tag));
    }

    /// Receives the message of a pipeline that is expected first.
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> Result<(), TransportError> {
        let (underway, transport, deadline) = (&mut *self.underway, &mut *self.transport, self.deadline);
        let reader = Reader { layout: self.layout, step: self.key.step };
        timed(&mut self.clock.exchange, || underway.take(transport, into, &reader, deadline))
    }
}

/// Time spent in each phase of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    pub(super) encode: Duration,
    pub(super) exchange: Duration,
    pub(super) decode: Duration,
}

/// Runs `work` and adds its time to `sum`.
pub(super) fn timed<T>(sum: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *sum += start.elapsed();
    result
}
