//! Whole steps of gossip under random schedules, and what holds after each of them.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use gradwire::registry::GossipCodec;
use gradwire::rounds::{Edge, Gossip, RoundBuffers, Turn};
use gradwire::{Codec, EncodeError, Layout, Source, Spec, StepKey, Unit, UnitPolicy};
use gradwire_transports::exchange::{Care, ExchangeError, Machine, Progress, Refusal, Setting};
use gradwire_transports::gossip::{Mixed, Mixer, Topology};
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::{Membership, Rank, RankSet, TransportError};

use super::network::{Draws, Faults, Message, Network, News};
use super::run_all;

#[path = "../common/learned.rs"]
mod learned;
use learned::Learned;

/// Bytes of early messages of each sender.
const EARLY: InboxLimits = InboxLimits { messages: 64, bytes: 500 };
/// No message here is longer.
const LONGEST: usize = 300;
const UNITS: UnitPolicy = UnitPolicy { per_tensor: true, dense_below: 0, dense_1d: false };

fn layout() -> Layout {
    Layout::packed([("w", vec![5, 4]), ("b", vec![3]), ("v", vec![17]), ("u", vec![1])]).unwrap()
}

/// The codecs that gossip here.
#[derive(Clone, Copy, Debug)]
enum Method {
    Listed(GossipCodec),
    Learned,
}

fn listed(spelling: &str) -> Method {
    let Codec::Gossip(codec) = Spec::parse(spelling).unwrap().codec else { panic!("{spelling}: no gossip") };
    Method::Listed(codec)
}

impl Method {
    fn mixer(self, topology: Topology) -> Mixer {
        match self {
            Self::Listed(codec) => {
                let spec =
                    Spec { codec: Codec::Gossip(codec), units: UNITS, ..Spec::parse("dpsgd").unwrap() };
                Mixer::new(spec, layout(), topology).unwrap()
            }
            Self::Learned => Mixer::with_codec(Learned, UNITS, layout(), topology),
        }
        .keeping_early(EARLY)
    }

    fn codec(&self) -> &dyn Gossip {
        match self {
            Self::Listed(codec) => codec.rounds(),
            Self::Learned => &Learned,
        }
    }
}

/// How often steps ended in each way, and how often two ends of an edge began afresh.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    mixed: u64,
    void: u64,
    failed: u64,
    afresh: u64,
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.mixed += other.mixed;
        self.void += other.void;
        self.failed += other.failed;
        self.afresh += other.afresh;
    }
}

/// What edges keep, by neighbour, as bits.
type Edges = BTreeMap<Rank, Vec<u32>>;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn edges_of(mixer: &Mixer) -> Edges {
    mixer.edges().map(|(rank, kept)| (rank, bits(kept))).collect()
}

/// What a rank had when a step began.
#[derive(Clone, Debug)]
struct Begun {
    model: Vec<f32>,
    edges: Edges,
}

/// What it had when the step was over.
#[derive(Clone, Debug)]
struct Ended {
    outcome: Result<Mixed, ExchangeError>,
    model: Vec<f32>,
    edges: Edges,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// It begins the next step then.
    Idle(u64),
    Mixing,
    Over,
}

struct Peer {
    rank: Rank,
    mixer: Mixer,
    model: Vec<f32>,
    stage: Stage,
    step: usize,
    by: u64,
    stopped: u64,
    is_dead: bool,
    retry: u64,
    begun: BTreeMap<usize, Begun>,
    ended: BTreeMap<usize, Ended>,
}

struct Schedule {
    method: Method,
    topology: Topology,
    peers: Vec<Peer>,
    /// Who takes part in each step.
    members: Vec<Membership>,
    network: Network,
    is_lossy: bool,
    has_deaths: bool,
    draws: Draws,
    now: u64,
    patience: u64,
    news: News,
}

impl Schedule {
    fn new(method: Method, topology: Topology, seed: u64) -> Self {
        let mut draws = Draws(seed);
        let world = 2 + if draws.percent(80) { draws.below(4) } else { draws.below(15) } as u32;
        let is_lossy = draws.percent(60);
        let faulty = if is_lossy && draws.percent(70) { draws.below(4) } else { 0 };
        let faults = Faults {
            delay: 1 + draws.below(400),
            lost: faulty,
            twice: if is_lossy { draws.below(10) } else { 0 },
            cut: faulty / 2,
            is_narrow: draws.percent(50),
        };
        let has_deaths = !is_lossy && draws.percent(15);
        let peers = (0..world).map(|rank| {
            let stream = StepKey { seed, step: 0, source: Source::Rank(rank) }.stream(0);
            let model = (0..layout().len() as u64).map(|at| stream.u64_at(at) as i32 as f32 / 1e9).collect();
            Peer {
                rank: Rank(rank),
                mixer: method.mixer(topology),
                model,
                stage: Stage::Idle(draws.below(300)),
                step: 0,
                by: 0,
                stopped: 0,
                is_dead: false,
                retry: u64::MAX,
                begun: BTreeMap::new(),
                ended: BTreeMap::new(),
            }
        });
        let peers: Vec<Peer> = peers.collect();
        let steps = 1 + draws.below(5);
        let mut members = vec![Membership { epoch: 0, ranks: RankSet::contiguous(world) }];
        while members.len() < steps as usize {
            let last = members.last().unwrap().clone();
            members.push(if has_deaths || draws.percent(60) {
                last
            } else {
                changed(&mut draws, &last, world)
            });
        }
        Self {
            method,
            topology,
            peers,
            members,
            network: Network::new(faults, None),
            is_lossy,
            has_deaths,
            patience: if is_lossy { 500 + draws.below(20_000) } else { u64::MAX },
            draws,
            now: 0,
            news: News::default(),
        }
    }

    fn run(mut self) -> Seen {
        let death =
            self.has_deaths.then(|| (self.draws.below(1500), self.draws.below(self.peers.len() as u64)));
        let mut death = death.map(|(at, who)| (at, who as usize));
        while let Some(next) = self.next_event(death.map(|(at, _)| at)) {
            self.now = self.now.max(next);
            if death.is_some_and(|(at, _)| at <= self.now) {
                let who = death.take().unwrap().1;
                self.peers[who].is_dead = true;
                self.tell_all_of(who);
            }
            self.tell_news();
            self.network.land(self.now);
            let first = self.draws.below(self.peers.len() as u64) as usize;
            for at in 0..self.peers.len() {
                self.act((first + at) % self.peers.len());
            }
            assert!(self.now < 2_000_000, "the steps do not end");
        }
        let stuck = self.peers.iter().find(|peer| !peer.is_dead && peer.stage != Stage::Over);
        assert!(stuck.is_none(), "{} waits for ever, at step {}", stuck.unwrap().rank, stuck.unwrap().step);
        check(&self)
    }

    /// When something happens next.
    fn next_event(&self, death: Option<u64>) -> Option<u64> {
        let of_peer = |peer: &Peer| {
            let deadline = peer.mixer.deadline().min(peer.retry);
            let at = match peer.stage {
                Stage::Over => return None,
                _ if peer.is_dead => return None,
                Stage::Idle(at) => at,
                Stage::Mixing if deadline == u64::MAX => return None,
                Stage::Mixing => deadline,
            };
            Some(at.max(peer.stopped).max(self.now + 1))
        };
        let is_over = self.peers.iter().all(|peer| peer.is_dead || peer.stage == Stage::Over);
        let others = self.network.next().into_iter().chain(death).chain(self.news.next());
        let others = others.filter(|_| !is_over).min();
        [self.peers.iter().filter_map(of_peer).min(), others].into_iter().flatten().min()
    }

    /// The others learn that a rank is gone once its last messages have arrived.
    fn tell_all_of(&mut self, who: usize) {
        let rank = self.peers[who].rank;
        let last = self.network.last(self.now);
        self.news.of_death(who, rank, self.peers.len(), last, &mut self.draws);
    }

    fn tell_news(&mut self) {
        self.news.tell(self.now, |at, rank| {
            self.peers[at].mixer.peer_lost(rank);
            self.peers[at].stage != Stage::Over
        });
    }

    /// All that a rank can do now.
    fn act(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        if peer.is_dead || peer.stopped > self.now {
            return;
        }
        if matches!(peer.stage, Stage::Idle(when) if when <= self.now) {
            self.begin(at);
        }
        self.peers[at].mixer.retry();
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
        let (now, step) = (self.now, self.peers[at].step);
        let members = self.members[step].clone();
        if !members.ranks.contains(self.peers[at].rank) {
            return self.sit_out(at);
        }
        let is_bad = self.draws.percent(2);
        if self.is_lossy && self.draws.percent(5) {
            // It stops, and returns.
            self.peers[at].stopped = now + self.draws.below(40_000);
        }
        let (bad, by) = (self.draws.below(layout().len() as u64), now.saturating_add(self.patience));
        let peer = &mut self.peers[at];
        let (before, key) = (edges_of(&peer.mixer), key(step, peer.rank));
        let setting = Setting { rank: peer.rank, membership: members, is_fail_stop: !self.is_lossy };
        peer.mixer.begin(setting, key, now, by).unwrap();
        let edges = edges_of(&peer.mixer);
        for (neighbour, kept) in &edges {
            let kept_before = before.get(neighbour).cloned().unwrap_or_else(|| vec![0; kept.len()]);
            assert_eq!(*kept, kept_before, "{} and {neighbour}, in a changed membership", peer.rank);
        }
        let mut model = peer.model.clone();
        if is_bad {
            model[bad as usize] = f32::NAN;
        }
        peer.begun.insert(step, Begun { model: model.clone(), edges });
        (peer.model, peer.stage, peer.by) = (model, Stage::Mixing, by);
    }

    /// A rank that is no member of a step. It may come back without what its edges kept.
    fn sit_out(&mut self, at: usize) {
        let next = self.now + self.draws.below(200);
        if self.draws.percent(50) {
            self.peers[at].mixer = self.method.mixer(self.topology);
        }
        self.next_step(at, next);
    }

    fn next_step(&mut self, at: usize, when: u64) {
        let peer = &mut self.peers[at];
        peer.step += 1;
        peer.stage = if peer.step == self.members.len() { Stage::Over } else { Stage::Idle(when) };
    }

    /// Sends what finds room.
    fn post(&mut self, at: usize) {
        let dead: Vec<Rank> = self.peers.iter().filter(|peer| peer.is_dead).map(|peer| peer.rank).collect();
        let peer = &mut self.peers[at];
        if peer.stage != Stage::Mixing {
            return;
        }
        while let Some(out) = peer.mixer.outgoing() {
            let message =
                Message { from: peer.rank, to: out.to, tag: out.tag, bytes: out.bytes.to_vec(), at: 0 };
            assert!(message.bytes.len() < LONGEST, "a message of {} bytes", message.bytes.len());
            let (id, care) = (out.id, out.care);
            if dead.contains(&message.to) {
                peer.mixer.not_sent(id, TransportError::Disconnected { rank: message.to });
            } else if self.network.send(&mut self.draws, self.now, message, false) {
                peer.mixer.sent(id);
            } else {
                peer.mixer.no_room(id, self.now);
                if !matches!(care, Care::Until(until) if until <= self.now) {
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
        if peer.stage != Stage::Mixing {
            return;
        }
        let step = peer.step as u64;
        self.network.take(peer.rank, |message| message.tag.step < step);
        let (wanted, is_narrow) = (peer.mixer.wanted().to_vec(), self.network.faults.is_narrow);
        let epoch = self.members[peer.step].epoch;
        let here = self.network.take(peer.rank, |message| {
            message.tag.epoch == epoch
                && (!is_narrow || wanted.iter().any(|wanted| wanted.holds(message.from, message.tag)))
        });
        for Message { from, to, tag, bytes, at } in here {
            match peer.mixer.receive(from, tag, bytes) {
                Ok(()) | Err(Refusal::Duplicate { .. } | Refusal::Stale { .. }) => {}
                Err(Refusal::Full { message: bytes, .. }) => {
                    self.network.waiting.push(Message { from, to, tag, bytes, at });
                }
                Err(refused) => panic!("{refused}"),
            }
        }
        let (world, filed) = (self.peers.len(), self.peers[at].mixer.filed_bytes());
        let bound = (world - 1) * (EARLY.bytes.max(LONGEST) + 4 * LONGEST);
        assert!(filed <= bound, "{filed} bytes are filed");
    }

    /// One piece of work; returns whether there may be more.
    fn work(&mut self, at: usize) -> bool {
        let (world, now) = (self.peers.len() as u64, self.now);
        let peer = &mut self.peers[at];
        if peer.stage != Stage::Mixing {
            return false;
        }
        let outcome = match peer.mixer.work(&mut peer.model, now) {
            Ok(Progress::Worked(_)) => return true,
            Ok(Progress::Waiting) => return false,
            Ok(Progress::Lent) => unreachable!("nothing is summed"),
            Ok(Progress::Done(mixed)) => Ok(mixed),
            Err(error) => Err(error),
        };
        let last = peer.by.max(peer.stopped).saturating_add(world);
        assert!(now <= last, "{} ends late", peer.rank);
        let (model, edges) = (peer.model.clone(), edges_of(&peer.mixer));
        // A model that is not finite is repaired for the next step.
        peer.model.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = 0.5);
        let leaves = self.has_deaths && outcome.is_err();
        peer.ended.insert(peer.step, Ended { outcome, model, edges });
        let next = now + self.draws.below(200);
        self.next_step(at, next);
        if leaves {
            self.peers[at].stage = Stage::Over;
            self.tell_all_of(at);
        }
        false
    }
}

fn key(step: usize, rank: Rank) -> StepKey {
    StepKey { seed: 5, step: step as u64, source: Source::Rank(rank.0) }
}

/// A rank leaves, or one that was away comes back.
fn changed(draws: &mut Draws, last: &Membership, world: u32) -> Membership {
    let who = Rank(draws.below(world.into()) as u32);
    let is_here = last.ranks.contains(who);
    let others = last.ranks.iter().filter(|rank| *rank != who).chain((!is_here).then_some(who));
    let ranks: RankSet = others.collect();
    let ranks = if ranks.is_empty() { RankSet::contiguous(world) } else { ranks };
    Membership { epoch: last.epoch + 1, ranks }
}

/// One rank in a step by the book: its model, and what its edges keep with their working memory.
struct ByTheBook {
    model: Vec<f32>,
    edges: BTreeMap<Rank, (Vec<f32>, Vec<RoundBuffers>)>,
}

/// A step of all members without any machine, round by round. `None` for ranks that cannot end it.
fn by_the_book(
    schedule: &Schedule,
    step: usize,
    seen: &mut Seen,
) -> Option<BTreeMap<Rank, Option<ByTheBook>>> {
    let (layout, codec) = (layout(), schedule.method.codec());
    let layout = layout.as_ref();
    let units: Vec<Unit> = UNITS.units(&layout).collect();
    let ranks = &schedule.members[step].ranks;
    let world = ranks.len();
    let weight = schedule.topology.weight(world);
    let neighbours = |rank: Rank| {
        let near = schedule.topology.neighbours(world, ranks.position(rank).unwrap());
        near.into_iter().map(|at| ranks.as_slice()[at]).collect::<Vec<_>>()
    };
    let begun = |rank: Rank| schedule.peers[rank.0 as usize].begun.get(&step);
    let mut all = BTreeMap::new();
    for rank in ranks.iter() {
        let mut edges = BTreeMap::new();
        for neighbour in neighbours(rank) {
            let ends = [begun(rank)?.edges.get(&neighbour), begun(neighbour)?.edges.get(&rank)];
            let [Some(mine), Some(theirs)] = ends else {
                edges.insert(neighbour, (Vec::new(), Vec::new()));
                continue;
            };
            // Ends that differ begin afresh.
            let kept = if mine == theirs { mine.clone() } else { vec![0; mine.len()] };
            seen.afresh += u64::from(mine != theirs);
            edges.insert(neighbour, (kept.into_iter().map(f32::from_bits).collect(), Vec::new()));
        }
        all.insert(rank, Some(ByTheBook { model: begun(rank)?.model.clone(), edges }));
    }
    for round in 0..codec.rounds() {
        let turn = |rank: Rank, neighbour: Rank, unit| {
            let edge = Edge { low: rank.0.min(neighbour.0), high: rank.0.max(neighbour.0) };
            let key = StepKey { source: Source::Shared, ..key(step, rank) };
            Turn { key, edge, is_low: rank < neighbour, layout: &layout, unit, round }
        };
        let mut said = BTreeMap::new();
        for rank in ranks.iter() {
            let Some(ByTheBook { model, edges }) = all.get_mut(&rank).unwrap() else { continue };
            let mut speak = || {
                for (neighbour, (kept, buffers)) in edges.iter_mut() {
                    buffers.resize_with(units.len(), RoundBuffers::new);
                    let (mut at, mut payloads) = (0, Vec::new());
                    for (unit, buffers) in units.iter().zip(buffers) {
                        buffers.grow(codec.round_scratch_len(unit.len));
                        let kept_len = codec.kept_len(&layout, unit);
                        let kept = &mut kept[at..at + kept_len];
                        let turn = turn(rank, *neighbour, unit);
                        let mut scratch = buffers.scratch();
                        payloads
                            .push(codec.payload(&turn, &model[unit.range()], kept, &mut scratch)?.to_vec());
                        at += kept_len;
                    }
                    said.insert((rank, *neighbour), payloads);
                }
                Ok::<_, EncodeError>(())
            };
            if speak().is_err() {
                all.insert(rank, None);
            }
        }
        let failed: Vec<Rank> = ranks
            .iter()
            .filter(|rank| neighbours(*rank).iter().any(|near| !said.contains_key(&(*near, *rank))))
            .collect();
        for rank in ranks.iter() {
            let Some(ByTheBook { model, edges }) = all.get_mut(&rank).unwrap() else { continue };
            if failed.contains(&rank) {
                all.insert(rank, None);
                continue;
            }
            for (neighbour, (kept, buffers)) in edges.iter_mut() {
                let mut at = 0;
                for ((unit, buffers), theirs) in units.iter().zip(buffers).zip(&said[&(*neighbour, rank)]) {
                    let kept_len = codec.kept_len(&layout, unit);
                    let (kept, model) = (&mut kept[at..at + kept_len], &mut model[unit.range()]);
                    let turn = turn(rank, *neighbour, unit);
                    codec.advance(&turn, theirs, weight, model, kept, &mut buffers.scratch());
                    at += kept_len;
                }
            }
        }
    }
    Some(all)
}

fn check(schedule: &Schedule) -> Seen {
    let mut seen = Seen::default();
    for step in 0..schedule.members.len() {
        let book = by_the_book(schedule, step, &mut seen);
        let members = || schedule.members[step].ranks.iter().map(|rank| &schedule.peers[rank.0 as usize]);
        let is_bad =
            |peer: &Peer| peer.begun.get(&step).is_none_or(|begun| begun.model.iter().any(|v| v.is_nan()));
        let is_bad = members().any(is_bad);
        for peer in members() {
            let (Some(begun), Some(ended)) = (peer.begun.get(&step), peer.ended.get(&step)) else { continue };
            match &ended.outcome {
                Ok(_) => {
                    seen.mixed += 1;
                    moved_by_the_book(peer.rank, ended, book.as_ref());
                }
                Err(error) => {
                    assert_eq!(bits(&ended.model), bits(&begun.model), "{} moved: {error}", peer.rank);
                    assert_eq!(ended.edges, begun.edges, "{} learned: {error}", peer.rank);
                    let is_due = schedule.is_lossy || schedule.has_deaths || is_bad;
                    assert!(is_due, "{} failed without a cause: {error}", peer.rank);
                    seen.void += u64::from(error.is_void());
                    seen.failed += u64::from(!error.is_void());
                }
            }
        }
        let ended: BTreeMap<Rank, &Ended> =
            members().filter_map(|peer| Some((peer.rank, peer.ended.get(&step)?))).collect();
        ends_agree(&ended);
        let is_whole = ended.len() == members().count() && ended.values().all(|ended| ended.outcome.is_ok());
        if is_whole && !is_bad {
            mean_stays(members().map(|peer| (&peer.begun[&step].model, &peer.ended[&step].model)).collect());
        }
    }
    seen
}

fn moved_by_the_book(rank: Rank, ended: &Ended, book: Option<&BTreeMap<Rank, Option<ByTheBook>>>) {
    // A rank that died before it began has no part in the book.
    let Some(book) = book else { return };
    let expected = book[&rank].as_ref().unwrap_or_else(|| panic!("{rank} went on without a message"));
    assert_eq!(bits(&ended.model), bits(&expected.model), "{rank} moved otherwise");
    for (neighbour, kept) in &ended.edges {
        assert_eq!(kept, &bits(&expected.edges[neighbour].0), "{rank} keeps something else for {neighbour}");
    }
}

/// Both ends of an edge keep the same, if both ended the step.
fn ends_agree(ended: &BTreeMap<Rank, &Ended>) {
    for (rank, end) in ended {
        for (neighbour, kept) in &end.edges {
            if let Some(other) = ended.get(neighbour)
                && end.outcome.is_ok()
                && other.outcome.is_ok()
            {
                assert_eq!(Some(kept), other.edges.get(rank), "{rank} and {neighbour} keep different things");
            }
        }
    }
}

fn mean_stays(models: Vec<(&Vec<f32>, &Vec<f32>)>) {
    for at in 0..layout().len() {
        let moved: f64 =
            models.iter().map(|(before, after)| f64::from(after[at]) - f64::from(before[at])).sum();
        let size: f64 =
            models.iter().map(|(before, after)| f64::from(before[at].abs() + after[at].abs())).sum();
        assert!(moved.abs() <= 1e-5 * (size + 1.0), "the mean moved by {moved} at {at}");
    }
}

fn run(name: &str, method: Method, topology: Topology) {
    let has_edges = !matches!(method, Method::Listed(GossipCodec::Dpsgd(_)));
    run_all(
        name,
        |seed| Schedule::new(method, topology, seed).run(),
        |seen: &Seen| {
            [seen.mixed, seen.void, seen.failed].iter().all(|count| *count > 0)
                && has_edges == (seen.afresh > 0)
        },
    );
}

macro_rules! gossip {
    ($($name:ident: $method:expr, $topology:ident;)*) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name), $method, Topology::$topology);
            }
        )*
    };
}

gossip! {
    whole_models_around_a_ring: listed("dpsgd"), Ring;
    whole_models_on_a_torus: listed("dpsgd"), Torus;
    whole_models_between_all: listed("dpsgd"), Complete;
    whole_models_in_powers_of_two: listed("dpsgd"), Exponential;
    edges_with_memory_around_a_ring: Method::Learned, Ring;
    edges_with_memory_on_a_torus: Method::Learned, Torus;
    edges_with_memory_between_all: Method::Learned, Complete;
    edges_with_memory_in_powers_of_two: Method::Learned, Exponential;
    factors_around_a_ring: listed("powergossip:rank=1,iterations=2"), Ring;
    factors_in_powers_of_two: listed("powergossip:rank=2"), Exponential;
    beliefs_on_a_torus: listed("choco:density=0.3"), Torus;
    beliefs_of_signs_between_all: listed("choco:density=1,values=sign,diffusion=0.2"), Complete;
}
