//! The server's part of the roll: it decides which ranks are members of which step.

use std::thread;
use std::time::{Duration, Instant};

use super::message::{Leaves, Notice, Report};
use super::place::{Change, Place};
use super::tags::{NOTICE, REPORT, contains, request};
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;
use crate::zmq::transport::ZmqTransport;

/// Time between two checks for workers that ask to join, while there are too few.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The most ranks that a line names.
const NAMED: usize = 8;
/// A state that takes longer than this, or than its bytes take at this rate, does not excuse its receiver
/// from steps any longer: a peer may be slow on purpose.
const STATE_WITHIN: Duration = Duration::from_secs(60);
const LEAST_BYTES_PER_SECOND: u64 = 4000;

/// When a step counts, and which members stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The fewest members, the server included, with which a step may begin.
    pub quorum: usize,
    /// Consecutive steps for which a member may be late.
    pub may_miss: u32,
    /// Consecutive frames of a member that may be refused. With the next one it is shut out of the run.
    pub may_spoil: u32,
}

/// The membership of a run, seen from its server.
#[derive(Debug)]
pub struct Server {
    rules: Rules,
    quorum: usize,
    places: Vec<Place>,
    buffer: Vec<u8>,
}

impl Server {
    /// A server without workers. Its transport then has a membership of one, in epoch 1.
    ///
    /// # Errors
    /// As [`ZmqTransport::adopt`].
    ///
    /// # Panics
    /// If the transport has adopted a membership before.
    pub fn new(transport: &mut ZmqTransport, rules: Rules) -> Result<Self, TransportError> {
        let me = transport.rank();
        let place = |rank| Place {
            rank,
            member: None,
            asked: (0, 0),
            wants_in: false,
            missed: 0,
            state: None,
            spoiled: (0, String::new()),
            norm: 0.0,
            is_lost: false,
            fault: None,
        };
        let places = transport.membership().ranks.iter().filter(|&rank| rank != me).map(place).collect();
        transport.adopt(Membership { epoch: 1, ranks: [me].into_iter().collect() })?;
        Ok(Self { rules, quorum: rules.quorum, places, buffer: Vec::new() })
    }

    /// Current members, the server included.
    pub fn members(&self) -> usize {
        1 + self.places.iter().filter(|place| place.member.is_some()).count()
    }

    /// The fewest members with which the next step may begin. It is the number of the rules, or a smaller one
    /// if too few ranks can still join, because others were shut out or taken off the list. It rises again
    /// only when a step closes or while there are no members, because a step that members were told of must
    /// take place.
    pub fn quorum(&self) -> usize {
        self.quorum
    }

    /// Whether there are enough members, together with workers that ask to become members.
    fn is_enough(&self) -> bool {
        let is_counted = |place: &&Place| place.wants_in || place.member.is_some();
        1 + self.places.iter().filter(is_counted).count() >= self.quorum
    }

    /// Waits until there is a quorum of members and of workers that ask to become members.
    ///
    /// # Errors
    /// The errors of `recv`; `Timeout` names the first rank that is missing.
    pub fn wait_for_quorum(
        &mut self,
        transport: &mut ZmqTransport,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        loop {
            self.look(transport)?;
            let quorum = self.rules.quorum.min(1 + transport.admitted());
            self.quorum = if self.members() == 1 { quorum } else { self.quorum.min(quorum) };
            if self.is_enough() {
                return Ok(());
            }
            if deadline.has_passed() {
                let missing = self.places.iter().find(|place| !place.wants_in && place.member.is_none());
                let from = missing.map_or(transport.rank(), |place| place.rank);
                return Err(TransportError::Timeout { from, tag: request(0, 0) });
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// What a step waits for, in words: how many workers are there and asked to join, and who did not.
    pub fn awaited(&self, transport: &ZmqTransport, step: u64) -> String {
        let here = self.places.iter().filter(|place| place.wants_in || place.member.is_some()).count();
        let absent = self.places.iter().filter(|place| !place.wants_in && place.member.is_none());
        let present = transport.present();
        let names = absent.map(|place| match present.contains(place.rank) {
            true => format!("{} is connected and has not asked to join", place.rank),
            false => format!("{} is not connected", place.rank),
        });
        let names: Vec<String> = names.take(NAMED).collect();
        let (there, quorum) = (here + 1, self.quorum);
        let are = if there == 1 { "is" } else { "are" };
        format!("waiting for {quorum} ranks before step {step}: {there} {are} there; {}", names.join(", "))
    }

    /// Records sessions that ended and requests that arrived.
    fn look(&mut self, transport: &mut ZmqTransport) -> Result<(), TransportError> {
        for place in &mut self.places {
            let Some(session) = transport.session(place.rank) else {
                place.wants_in = false;
                continue;
            };
            if place.asked.0 != session {
                (place.asked, place.wants_in) = ((session, 0), false);
            }
            let tag = request(session, place.asked.1);
            match transport.recv(place.rank, tag, &mut self.buffer, Deadline::now()) {
                Ok(()) => {
                    place.wants_in = true;
                    place.asked.1 += 1;
                }
                Err(TransportError::Timeout { .. } | TransportError::Disconnected { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// Receives the reports of the members in the step of `tag`, and returns the norm of each residual. A
    /// member is put out if its parameters differ from the server's own, whose hash the caller passes.
    ///
    /// # Errors
    /// The errors of `recv`.
    pub fn reports(
        &mut self,
        transport: &mut ZmqTransport,
        tag: Tag,
        own_hash: u64,
    ) -> Result<Vec<(Rank, f64)>, TransportError> {
        let mut norms = Vec::new();
        for place in self.places.iter_mut().filter(|place| place.member.is_some()) {
            match transport.recv(place.rank, tag.chunk(REPORT), &mut self.buffer, Deadline::now()) {
                Ok(()) => match Report::read(&self.buffer) {
                    Some(report) => {
                        place.norm = report.residual_norm;
                        norms.push((place.rank, report.residual_norm));
                        place.is_lost = report.leaves == Leaves::Losing;
                        if report.leaves == Leaves::Keeping {
                            place.fault = Some("it leaves, with what it keeps back".to_owned());
                        }
                        if report.params_hash != 0 && own_hash != 0 && report.params_hash != own_hash {
                            place.fault = Some("its parameters differ".to_owned());
                        }
                    }
                    None => place.fault = Some("its report makes no sense".to_owned()),
                },
                Err(TransportError::Timeout { .. } | TransportError::Disconnected { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(norms)
    }

    /// Puts a member out when the step closes.
    pub fn blame(&mut self, rank: Rank, why: String) {
        if let Some(place) = self.places.iter_mut().find(|place| place.rank == rank) {
            place.fault = Some(why);
        }
    }

    /// Records that a member's frame was refused in this step. After too many in a row, the member is shut
    /// out when the step closes, because each refused frame may make a step void.
    pub fn spoiled(&mut self, rank: Rank, why: String) {
        if let Some(place) = self.places.iter_mut().find(|place| place.rank == rank) {
            place.spoiled = (place.spoiled.0 + 1, why);
        }
    }

    fn shut_out(&mut self, transport: &mut ZmqTransport, contributors: &[Rank]) {
        for Place { rank, spoiled, .. } in &mut self.places {
            if contains(contributors, *rank) {
                spoiled.0 = 0;
            }
            if spoiled.0 > self.rules.may_spoil {
                let (times, why) = std::mem::take(spoiled);
                transport.shut_out(
                    *rank,
                    &format!("{times} frames in a row were refused, the last one so: {why}"),
                );
            }
        }
    }

    /// Puts all members out when the step closes; they may ask again.
    pub fn dismiss(&mut self, why: &str) {
        for place in self.places.iter_mut().filter(|place| place.member.is_some()) {
            place.fault = Some(why.to_owned());
        }
    }

    /// Closes the step of `tag`, in which `contributors` took part in time. Decides who takes part in
    /// `next_step`, tells the members, and sends `state` to workers that join. Before the first step there
    /// are no members to tell.
    ///
    /// # Errors
    /// The errors of `send` that no single worker caused, and those of [`ZmqTransport::adopt`].
    pub fn close(
        &mut self,
        transport: &mut ZmqTransport,
        (tag, contributors): (Tag, &[Rank]),
        (next_step, is_over): (u64, bool),
        state: impl FnOnce() -> Vec<u8>,
        deadline: Deadline,
    ) -> Result<Vec<Change>, TransportError> {
        self.shut_out(transport, contributors);
        self.look(transport)?;
        let before: Vec<(Rank, u64)> =
            self.places.iter().filter_map(|place| Some((place.rank, place.member?))).collect();
        let mut changes = Vec::new();
        for place in &mut self.places {
            let is_in = contains(contributors, place.rank) || place.had_no_state(transport, Instant::now());
            place.judge(transport.session(place.rank), is_in, self.rules.may_miss, &mut changes);
        }
        self.quorum = self.rules.quorum.min(1 + transport.admitted());
        let is_enough = self.is_enough();
        if !is_over && !is_enough {
            changes.extend(self.places.iter_mut().filter_map(Place::wait_for_others));
        }
        let lets_in = is_enough && !is_over;
        let joining: Vec<Rank> =
            if lets_in { self.places.iter_mut().filter_map(Place::let_in).collect() } else { Vec::new() };
        changes.extend(joining.iter().map(|&rank| Change::Joined { rank }));

        let me = transport.rank();
        let mut ranks: Vec<Rank> =
            self.places.iter().filter(|place| place.member.is_some()).map(|place| place.rank).collect();
        ranks.push(me);
        ranks.sort_unstable();
        let epoch = transport.membership().epoch + u32::from(!changes.is_empty());
        let notice = Notice { epoch, step: next_step, is_over, ranks };
        self.tell(transport, tag, &before, &notice, deadline)?;
        if !changes.is_empty() {
            let ranks = notice.ranks.iter().copied().collect();
            transport.adopt(Membership { epoch, ranks })?;
            let members = self.places.iter().filter_map(|place| Some((place.rank, place.member?)));
            members.for_each(|(rank, session)| transport.bind(rank, session));
        }
        if !joining.is_empty() {
            self.send_state(transport, &notice, &joining, &state(), deadline)?;
        }
        Ok(changes)
    }

    /// Tells the members of the closed step what comes next.
    fn tell(
        &mut self,
        transport: &mut ZmqTransport,
        tag: Tag,
        before: &[(Rank, u64)],
        notice: &Notice,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        self.buffer.clear();
        notice.write(&mut self.buffer);
        let is_same = |&&(rank, session): &&(Rank, u64)| transport.session(rank) == Some(session);
        let present: Vec<Rank> = before.iter().filter(is_same).map(|&(rank, _)| rank).collect();
        present
            .into_iter()
            .try_for_each(|rank| lenient(transport.send(rank, tag.chunk(NOTICE), &self.buffer, deadline)))
    }

    fn send_state(
        &mut self,
        transport: &mut ZmqTransport,
        notice: &Notice,
        joining: &[Rank],
        state: &[u8],
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        self.buffer.clear();
        notice.write(&mut self.buffer);
        self.buffer.extend_from_slice(state);
        let seconds = self.buffer.len() as u64 / LEAST_BYTES_PER_SECOND;
        let excused = Instant::now() + STATE_WITHIN + Duration::from_secs(seconds);
        for place in self.places.iter_mut().filter(|place| contains(joining, place.rank)) {
            let (session, asked) = place.asked;
            let tag = request(session, asked - 1).chunk(1);
            place.state = Some((tag, excused));
            lenient(transport.send(place.rank, tag, &self.buffer, deadline))?;
        }
        Ok(())
    }
}

/// A worker that is gone, or receives nothing, is noticed when the next step closes.
fn lenient(sent: Result<(), TransportError>) -> Result<(), TransportError> {
    match sent {
        Err(TransportError::Disconnected { .. } | TransportError::NoRoom { .. }) => Ok(()),
        other => other,
    }
}
