//! One schedule: some ranks, some steps, and everything that the seed lets happen to them.

use std::time::Duration;

use gradwire::plan::{Plan, ToPlan};
use gradwire::rules::Rules;
use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey, Unit};
use gradwire_transports::exchange::{
    Care, Exchange, ExchangeError, Machine, NewPart, PartState, Progress, Report, Route, Setting,
};
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::{Membership, Rank, RankSet, Tag, TransportError};

use super::library::Library;
use super::network::{Draws, Faults, Message, Network, News, VERSION};
use super::rules::{self, Seen};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Rules, or one spelling.
    pub(crate) rules: &'static str,
    pub(crate) route: Route,
    /// How far sums may be off, for the largest of them.
    pub(crate) rounding: f64,
    /// Whether parts are added one by one.
    pub(crate) adds: bool,
}

impl Case {
    fn plan(&self) -> Plan {
        let layout = layout();
        match Spec::parse(self.rules) {
            Ok(spec) => spec.to_plan(&layout.as_ref()),
            Err(_) => Plan::of_rules(&Rules::parse(self.rules).unwrap(), &layout.as_ref()),
        }
    }
}

/// Bytes of early messages of each sender.
const EARLY: InboxLimits = InboxLimits { messages: 64, bytes: 2000 };
/// No frame or payload here is longer.
const LONGEST: usize = 1000;

/// Where a rank stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    /// It begins the next step then.
    Idle(u64),
    Encoding,
    /// It asks for the mean then.
    Computing(u64),
    Completing,
    /// All steps are over.
    Over,
}

/// A rank, and what it had before and after each step.
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    pub(crate) exchange: Exchange,
    pub(crate) memory: Option<Memory<'static>>,
    pub(crate) grad: Vec<f32>,
    pub(crate) mean: Vec<f32>,
    pub(crate) before: Vec<f32>,
    /// What a server kept of its means before the step.
    downlink: Vec<f32>,
    /// What the codec kept beside the residual before the step.
    state: Vec<u32>,
    pub(crate) stage: Stage,
    pub(crate) step: u64,
    by: u64,
    /// It does nothing before then.
    stopped: u64,
    is_dead: bool,
    retry: u64,
    /// Whether it is in the network's library, where it cannot be reached until all ranks are.
    is_inside: bool,
    /// The next part to add, and when.
    next: usize,
    next_at: u64,
    /// Of each part, the bits of its mean when it was first there; `None` for one that is void.
    given: Vec<Option<Vec<u32>>>,
    /// After so many pieces of work, this rank says that it fails.
    fails_after: Option<u64>,
    /// After so many messages of all steps, its network fails for good.
    breaks_after: Option<u64>,
    pub(crate) ends: Vec<End>,
    /// The votes and words that it has been given.
    pub(crate) heard: Vec<(Rank, Tag, Vec<u8>)>,
}

impl Peer {
    /// What a server has not sent yet of its means.
    fn kept_of_means(&mut self) -> Vec<f32> {
        let memory = self.exchange.downlink_memory();
        memory.map_or_else(|| vec![0.0; layout().len()], |memory| memory.residual().to_vec())
    }

    /// The bits of the arrays that the codec keeps beside the residual.
    fn state_now(&self) -> Vec<u32> {
        let arrays = |memory: &Memory<'_>| -> Vec<u32> {
            let names = memory.arrays().iter().map(|array| array.name);
            names.flat_map(|name| memory.array(name).unwrap()).map(|value| value.to_bits()).collect()
        };
        self.memory.as_ref().map_or_else(Vec::new, arrays)
    }
}

/// How a step ended at a rank.
pub(crate) struct End {
    pub(crate) outcome: Result<(Vec<f32>, Report), ExchangeError>,
    pub(crate) grad: Vec<f32>,
    pub(crate) before: Vec<f32>,
    pub(crate) after: Vec<f32>,
    /// What a server kept of its means before and after the step.
    pub(crate) downlink: [Vec<f32>; 2],
    /// What the codec kept beside the residual before and after the step.
    pub(crate) state: [Vec<u32>; 2],
    pub(crate) given: Vec<Option<Vec<u32>>>,
    /// How many votes and words it had been given by then.
    pub(crate) heard: usize,
}

pub(crate) struct Schedule {
    pub(crate) peers: Vec<Peer>,
    pub(crate) network: Network,
    pub(crate) is_lossy: bool,
    pub(crate) undoes: bool,
    /// Whether the job ends with the first step that fails.
    pub(crate) ends_with_failure: bool,
    /// Whether a rank dies, or its network fails.
    pub(crate) has_deaths: bool,
    /// Whether rank 0 makes the mean.
    pub(crate) is_served: bool,
    /// Whether each coordinate of the mean was sent by the same ranks.
    pub(crate) is_whole: bool,
    /// Whether a memory keeps a coordinate.
    pub(crate) keeps: Vec<bool>,
    pub(crate) rounding: f64,
    pub(crate) steps: u64,
    /// The units of each part, if parts are added.
    pub(crate) parts: Vec<Vec<u32>>,
    units: Vec<Unit>,
    /// Whether all ranks vote at the end of each step.
    votes: bool,
    draws: Draws,
    now: u64,
    patience: u64,
    /// Who learns when that a rank is gone.
    news: News,
}

fn layout() -> Layout {
    Layout::packed([("w", vec![5, 4]), ("b", vec![3]), ("v", vec![17]), ("u", vec![1])]).unwrap()
}

impl Schedule {
    pub(crate) fn new(case: &Case, seed: u64) -> Self {
        let mut draws = Draws(seed);
        let world = 2 + if draws.percent(80) { draws.below(4) } else { draws.below(15) } as u32;
        let is_native = matches!(case.route, Route::Native { .. });
        let (is_lossy, undoes) = (draws.percent(60) && !is_native, draws.percent(50));
        let is_narrow = draws.percent(50);
        let faulty = if is_lossy && draws.percent(70) { draws.below(4) } else { 0 };
        let faults = Faults {
            delay: 1 + draws.below(400),
            lost: faulty,
            twice: if is_lossy { draws.below(10) } else { 0 },
            cut: faulty / 2,
            is_narrow,
        };
        let stranger = draws.percent(5).then(|| Rank(draws.below(u64::from(world)) as u32));
        let has_deaths = !is_lossy && !is_native && draws.percent(20);
        let (parts, votes) = (1 + draws.below(4) as usize, draws.percent(50));
        let plan = case.plan();
        let (is_served, has_packets) = match &case.route {
            Route::Server(_) => (true, case.rules.contains("max_packet_bytes")),
            _ => (false, false),
        };
        let (quorum, waits) = (draws.below(u64::from(world) + 1) as usize, 50 + draws.below(5_000));
        let mut keeps = vec![false; layout().len()];
        let has_only_state = Spec::parse(case.rules).is_ok_and(|spec| spec.memory == MemoryChoice::State);
        let keeps_all = |unit| plan.group_of(unit).keeps() && !has_only_state;
        plan.units().iter().for_each(|unit| keeps[unit.range()].fill(keeps_all(unit)));
        let peers = (0..world).map(|rank| {
            let mut exchange =
                Exchange::new(case.plan(), layout(), case.route.clone()).unwrap().keeping_early(EARLY);
            if is_lossy {
                exchange.set_quorum(quorum);
                exchange.set_patience(Duration::from_nanos(waits));
            }
            if votes {
                exchange = exchange.voting();
            }
            let is_whole = case.adds || matches!(case.route, Route::Tree { .. } | Route::Server(_));
            if parts > 1 && !is_whole && !is_native {
                exchange = exchange.pipelined(parts).unwrap();
            }
            if undoes {
                exchange = exchange.undoing();
            }
            let memory = Memory::for_plan(&plan, &layout().as_ref());
            let (grad, mean, before) = (Vec::new(), vec![f32::NAN; layout().len()], Vec::new());
            let stage = Stage::Idle(draws.below(300));
            Peer {
                rank: Rank(rank),
                exchange,
                memory,
                grad,
                mean,
                before,
                downlink: Vec::new(),
                state: Vec::new(),
                stage,
                step: 0,
                by: 0,
                stopped: 0,
                is_dead: false,
                retry: u64::MAX,
                is_inside: false,
                next: 0,
                next_at: 0,
                given: Vec::new(),
                fails_after: None,
                breaks_after: None,
                ends: Vec::new(),
                heard: Vec::new(),
            }
        });
        let mut peers: Vec<Peer> = peers.collect();
        if has_deaths && draws.percent(50) {
            // A server that fails has answered some workers, or none.
            let who = if is_served { 0 } else { draws.below(u64::from(world)) as usize };
            peers[who].breaks_after = Some(draws.below(2 * u64::from(world)));
        }
        let mut units: Vec<u32> = plan.units().iter().map(|unit| unit.id).collect();
        let mut dealt = Vec::new();
        while case.adds && !units.is_empty() {
            let mut part: Vec<u32> = units.extract_if(.., |_| draws.percent(50)).collect();
            part.sort_unstable();
            dealt.extend(Some(part).filter(|part| !part.is_empty()));
        }
        let patience = if is_lossy { 500 + draws.below(20_000) } else { u64::MAX };
        Self {
            peers,
            network: Network::new(faults, stranger),
            is_lossy,
            undoes,
            ends_with_failure: has_deaths || !is_lossy && stranger.is_some(),
            has_deaths,
            is_served,
            is_whole: !has_packets,
            keeps,
            rounding: case.rounding,
            steps: 1 + draws.below(3),
            parts: dealt,
            units: plan.units().to_vec(),
            votes: is_lossy || votes || case.adds,
            draws,
            now: 0,
            patience,
            news: News::default(),
        }
    }

    /// The bits of the values of some units.
    pub(crate) fn bits_of(&self, units: &[u32], values: &[f32]) -> Vec<u32> {
        let values = units.iter().flat_map(|id| &values[self.units[*id as usize].range()]);
        values.map(|value| value.to_bits()).collect()
    }

    pub(crate) fn run(mut self) -> Seen {
        let dies = self.has_deaths && self.peers.iter().all(|peer| peer.breaks_after.is_none());
        let death = dies.then(|| (self.draws.below(1500), self.draws.below(self.peers.len() as u64)));
        let mut death = death.map(|(at, who)| (at, who as usize));
        while let Some(next) = self.next_event(death.map(|(at, _)| at)) {
            self.now = self.now.max(next);
            if death.is_some_and(|(at, _)| at <= self.now) {
                self.die(death.take().unwrap().1);
            }
            self.tell_news();
            self.network.land(self.now);
            // Any order: the messages of one moment arrive as the seed says.
            let first = self.draws.below(self.peers.len() as u64) as usize;
            for at in 0..self.peers.len() {
                self.act((first + at) % self.peers.len());
            }
            self.sum_inside();
            let stages: Vec<_> =
                self.peers.iter().map(|peer| (peer.stage, peer.step, peer.is_dead)).collect();
            assert!(self.now < 1_000_000, "the steps do not end: {stages:?}");
        }
        let stuck = self.peers.iter().find(|peer| !peer.is_dead && peer.stage != Stage::Over);
        assert!(stuck.is_none(), "{} waits for ever, at step {}", stuck.unwrap().rank, stuck.unwrap().step);
        rules::check(&self)
    }

    /// When something happens next.
    fn next_event(&self, death: Option<u64>) -> Option<u64> {
        let of_peer = |peer: &Peer| {
            let is_adding = peer.stage == Stage::Encoding && self.adds();
            let added = if is_adding { peer.next_at } else { u64::MAX };
            let deadline = peer.exchange.deadline().min(peer.retry).min(added);
            let at = match peer.stage {
                Stage::Over => return None,
                _ if peer.is_dead || peer.is_inside => return None,
                Stage::Idle(at) | Stage::Computing(at) => at,
                Stage::Encoding | Stage::Completing if deadline == u64::MAX => return None,
                Stage::Encoding | Stage::Completing => deadline,
            };
            Some(at.max(peer.stopped).max(self.now + 1))
        };
        let peers = self.peers.iter().filter_map(of_peer).min();
        let is_over = self.peers.iter().all(|peer| peer.is_dead || peer.stage == Stage::Over);
        let others = self.network.next().into_iter().chain(death).chain(self.news.next());
        let others = others.filter(|_| !is_over).min();
        [peers, others].into_iter().flatten().min()
    }

    /// A rank is gone, in a world where the others learn of it once its last messages have arrived.
    fn die(&mut self, who: usize) {
        self.peers[who].is_dead = true;
        self.tell_all_of(who);
    }

    fn tell_all_of(&mut self, who: usize) {
        let rank = self.peers[who].rank;
        let last = self.network.last(self.now);
        self.news.of_death(who, rank, self.peers.len(), last, &mut self.draws);
    }

    fn tell_news(&mut self) {
        self.news.tell(self.now, |at, rank| {
            self.peers[at].exchange.peer_lost(rank);
            self.peers[at].stage != Stage::Over
        });
    }

    /// All that a rank can do now.
    fn act(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        if peer.is_dead || peer.is_inside || peer.stopped > self.now {
            return;
        }
        match peer.stage {
            Stage::Idle(when) if when <= self.now => self.begin(at),
            Stage::Computing(when) if when <= self.now => {
                peer.stage = Stage::Completing;
                peer.by = self.now.saturating_add(self.patience);
            }
            _ => {}
        }
        self.peers[at].exchange.retry();
        self.peers[at].retry = u64::MAX;
        loop {
            self.post(at);
            self.hand_in(at);
            if !self.work(at) {
                break;
            }
        }
    }

    fn begin(&mut self, at: usize) {
        let (step, patience, now, len) = (self.peers[at].step, self.patience, self.now, layout().len());
        let is_bad = self.draws.percent(3);
        if self.is_lossy && self.draws.percent(5) {
            // It stops, and returns.
            self.peers[at].stopped = now + self.draws.below(40_000);
        }
        let ranks = RankSet::contiguous(self.peers.len() as u32);
        let peer = &mut self.peers[at];
        let key = StepKey { seed: 5, step, source: Source::Rank(peer.rank.0) };
        let stream = StepKey { seed: 77, ..key }.stream(0);
        peer.grad = (0..len as u64).map(|at| (stream.u64_at(at) as i32 / 7_000_000) as f32 / 16.0).collect();
        if is_bad {
            let index = (stream.u64_at(999) % len as u64) as usize;
            peer.grad[index] = f32::NAN;
        }
        peer.before =
            peer.memory.as_ref().map_or_else(|| vec![0.0; len], |memory| memory.residual().to_vec());
        (peer.downlink, peer.state) = (peer.kept_of_means(), peer.state_now());
        let membership = Membership { epoch: 0, ranks };
        let setting = Setting { rank: peer.rank, membership, is_fail_stop: !self.is_lossy };
        let by = now.saturating_add(patience);
        (peer.next, peer.next_at, peer.given) = (0, now, vec![None; self.parts.len()]);
        if self.parts.is_empty() {
            peer.exchange.begin(setting, key, peer.memory.as_ref(), now, by).unwrap();
        } else {
            peer.exchange.begin_in_parts(setting, key, peer.memory.as_ref(), now, by).unwrap();
            peer.mean.fill(0.0);
        }
        (peer.stage, peer.by) = (Stage::Encoding, by);
        // Without votes it can tell the others only before all is encoded.
        // So can a worker, and the server until it answers.
        let is_late = if self.is_served { at == 0 } else { self.votes };
        let (fails, later) = (self.draws.percent(3), self.draws.below(if is_late { 30 } else { 1 }));
        self.peers[at].fails_after = Some(later).filter(|_| fails);
    }

    /// Sends what finds room.
    fn post(&mut self, at: usize) {
        let dead: Vec<Rank> = self.peers.iter().filter(|peer| peer.is_dead).map(|peer| peer.rank).collect();
        let peer = &mut self.peers[at];
        if !matches!(peer.stage, Stage::Encoding | Stage::Completing) {
            return;
        }
        while let Some(out) = peer.exchange.outgoing() {
            let message =
                Message { from: peer.rank, to: out.to, tag: out.tag, bytes: out.bytes.to_vec(), at: 0 };
            assert!(message.bytes.len() < LONGEST, "a message of {} bytes", message.bytes.len());
            let (id, care) = (out.id, out.care);
            if peer.breaks_after == Some(0) {
                peer.exchange.not_sent(id, TransportError::Closed);
                peer.exchange.network_failed(TransportError::Closed);
            } else if dead.contains(&message.to) {
                peer.exchange.not_sent(id, TransportError::Disconnected { rank: message.to });
            } else if self.network.send(&mut self.draws, self.now, message, matches!(care, Care::Packet(_))) {
                peer.exchange.sent(id);
                peer.breaks_after = peer.breaks_after.map(|after| after - 1);
            } else {
                peer.exchange.no_room(id, self.now);
                if care == Care::Must
                    || matches!(care, Care::Until(until) | Care::Packet(until) if until > self.now)
                {
                    peer.retry = self.now + 20;
                }
            }
        }
    }

    /// Hands in what has arrived: all of it, or what is asked for.
    fn hand_in(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        if peer.stage == Stage::Over {
            self.network.take(peer.rank, |_| true);
            return;
        }
        let is_early = peer.ends.is_empty() && matches!(peer.stage, Stage::Idle(_));
        if is_early {
            return;
        }
        // As a transport does, which forgets the messages of earlier steps, also those that arrive later.
        if !matches!(peer.stage, Stage::Idle(_)) {
            let step = peer.step;
            self.network.take(peer.rank, |message| message.tag.step < step);
        }
        let (wanted, is_narrow) = (peer.exchange.wanted().to_vec(), self.network.faults.is_narrow);
        let here = self.network.take(peer.rank, |message| {
            !is_narrow || wanted.iter().any(|wanted| wanted.holds(message.from, message.tag))
        });
        for Message { from, to, tag, bytes, at } in here {
            use gradwire_transports::exchange::Refusal::{Duplicate, Full, Stale};
            let heard = (tag.unit == u32::MAX).then(|| without_version(&bytes));
            match peer.exchange.receive(from, tag, bytes) {
                Ok(()) => peer.heard.extend(heard.map(|bytes| (from, tag, bytes))),
                Err(Duplicate { .. } | Stale { .. }) => {}
                Err(Full { message: bytes, .. }) => {
                    self.network.waiting.push(Message { from, to, tag, bytes, at });
                }
                Err(refused) => panic!("{refused}"),
            }
        }
        let (world, filed) = (self.peers.len(), self.peers[at].exchange.filed_bytes());
        // Of each sender: early messages, and those that this rank waits for, at most a part's in each round.
        let bound = (world - 1) * (EARLY.bytes.max(LONGEST) + 8 * LONGEST);
        assert!(filed <= bound, "{filed} bytes are filed");
    }

    /// One piece of work; returns whether there may be more.
    fn work(&mut self, at: usize) -> bool {
        let (world, now) = (self.peers.len(), self.now);
        if matches!(self.peers[at].stage, Stage::Encoding | Stage::Completing) {
            let peer = &mut self.peers[at];
            if peer.fails_after == Some(0) {
                peer.exchange.fail(&text(peer.rank, peer.step));
            }
            peer.fails_after = peer.fails_after.and_then(|after| after.checked_sub(1));
        }
        if self.peers[at].stage == Stage::Encoding && self.adds() {
            return self.add(at);
        }
        let peer = &mut self.peers[at];
        let outcome = match peer.stage {
            Stage::Encoding => match peer.exchange.encode(Grad::F32(&peer.grad), peer.memory.as_mut(), now) {
                Ok(Progress::Worked(_)) => return true,
                Ok(Progress::Waiting) => return false,
                Ok(Progress::Lent) => unreachable!("no library sums before all is encoded"),
                Ok(Progress::Done(())) => {
                    peer.stage = Stage::Computing(now + self.draws.below(200));
                    return false;
                }
                Err(error) => Err(error),
            },
            Stage::Completing => {
                match peer.exchange.complete(&mut peer.mean, peer.memory.as_mut(), now, peer.by) {
                    Ok(Progress::Worked(_)) => return true,
                    Ok(Progress::Waiting) => return false,
                    Ok(Progress::Lent) => {
                        assert!(peer.exchange.outgoing().is_none(), "a message waits behind the sum");
                        peer.is_inside = true;
                        return false;
                    }
                    Ok(Progress::Done(report)) => {
                        assert!(self.is_served || report.contributors.len() == world);
                        Ok((peer.mean.clone(), report))
                    }
                    Err(error) => Err(error),
                }
            }
            _ => return false,
        };
        let peer = &mut self.peers[at];
        // Each look for what has arrived takes a moment: with packets, one for each worker.
        let last = peer.by.max(peer.stopped).saturating_add(world as u64);
        assert!(now <= last, "{} ends late", peer.rank);
        let after =
            peer.memory.as_ref().map_or_else(|| vec![0.0; peer.grad.len()], |m| m.residual().to_vec());
        let (grad, before) = (std::mem::take(&mut peer.grad), std::mem::take(&mut peer.before));
        let (given, heard) = (std::mem::take(&mut peer.given), peer.heard.len());
        let downlink = [std::mem::take(&mut peer.downlink), peer.kept_of_means()];
        let state = [std::mem::take(&mut peer.state), peer.state_now()];
        // It has not what others may have learned of the mean, and all need the same.
        let is_behind = !state[0].is_empty() && rules::is_open(self.is_served, peer.rank, &outcome);
        peer.ends.push(End { outcome, grad, before, after, downlink, state, given, heard });
        peer.step += 1;
        let is_broken = peer.breaks_after == Some(0);
        let has_failed = is_broken || peer.ends.last().is_some_and(|end| end.outcome.is_err());
        let leaves = self.ends_with_failure && has_failed || is_behind;
        peer.stage = if peer.step == self.steps || leaves {
            Stage::Over
        } else {
            Stage::Idle(now + self.draws.below(200))
        };
        if leaves {
            self.tell_all_of(at);
        }
        false
    }

    /// The library sums once all ranks are inside.
    fn sum_inside(&mut self) {
        if self.peers.iter().all(|peer| peer.is_inside) {
            Library::default().sum(&mut self.peers);
            self.peers.iter_mut().for_each(|peer| (peer.is_inside, peer.retry) = (false, self.now));
        }
    }

    fn adds(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Adds the next part, if it is time, or works on those that were added. Returns whether there may be
    /// more to do.
    fn add(&mut self, at: usize) -> bool {
        let (now, patience) = (self.now, self.patience);
        let peer = &self.peers[at];
        if peer.next_at <= now && peer.next < self.parts.len() {
            self.add_next(at);
            return true;
        }
        let is_last = peer.next == self.parts.len() && peer.next_at <= now;
        let peer = &mut self.peers[at];
        match peer.exchange.advance(&mut peer.mean, peer.memory.as_mut(), now) {
            Ok(Progress::Worked(_)) => {}
            Ok(_) if is_last => {
                peer.stage = Stage::Completing;
                peer.by = now.saturating_add(patience);
            }
            Ok(_) => {
                self.look(at);
                return false;
            }
            Err(error) => panic!("{error}"),
        }
        self.look(at);
        true
    }

    fn add_next(&mut self, at: usize) {
        let ids = &self.parts[self.peers[at].next];
        let lacks: Vec<u32> = ids.iter().copied().filter(|_| self.draws.percent(25)).collect();
        let wait = self.draws.below(300);
        let peer = &mut self.peers[at];
        let says = said(peer.rank, peer.step, peer.next);
        let part = NewPart { units: ids, lacks: &lacks, says: &says };
        // Of a unit that it lacks, the gradient is not read.
        lacks.iter().for_each(|id| peer.grad[self.units[*id as usize].range()].fill(f32::NAN));
        let added = peer.exchange.add(&part, Grad::F32(&peer.grad), peer.memory.as_mut(), self.now);
        assert_eq!(added, Ok(peer.next));
        lacks.iter().for_each(|id| peer.grad[self.units[*id as usize].range()].fill(0.0));
        (peer.next, peer.next_at) = (peer.next + 1, self.now + wait);
    }

    /// Looks at the parts of a step.
    fn look(&mut self, at: usize) {
        for (number, units) in self.parts.iter().enumerate() {
            let (peer, ranks) = (&self.peers[at], self.peers.iter().map(|peer| peer.rank));
            let values = self.bits_of(units, &peer.mean);
            match peer.exchange.part(number) {
                Some(PartState::Void) => {
                    assert!(
                        values.iter().all(|bits| f32::from_bits(*bits).is_nan()),
                        "a void part has values"
                    );
                }
                Some(PartState::Complete) if peer.given[number].is_none() => {
                    for rank in ranks {
                        let said = said(rank, peer.step, number);
                        assert_eq!(peer.exchange.said(number, rank), Some(&said[..]), "part {number}");
                    }
                    self.peers[at].given[number] = Some(values);
                }
                _ => {}
            }
        }
    }
}

/// A message that was damaged counts as an empty one.
fn without_version(message: &[u8]) -> Vec<u8> {
    message.strip_suffix(&[VERSION]).unwrap_or_default().to_vec()
}

/// What a rank says with a part.
fn said(rank: Rank, step: u64, part: usize) -> Vec<u8> {
    format!("{rank} at {step}").repeat(part).into_bytes()
}

/// What a rank says that fails.
pub(crate) fn text(rank: Rank, step: u64) -> String {
    format!("{rank} has no batch for step {step}")
}
