//! Workers that come and go: nothing is lost but what dies with a worker, and that is reported.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::zmq::roll::{Change, Leaves, Notice, Report, Rules, Server, Worker};
use gradwire_transports::zmq::{Bound, Entry, KeyPair, Returns, Roster, ZmqError, ZmqOptions, ZmqTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::proxy::Proxy;
use crate::slow::Slow;
use crate::support::{Heard, LONG, World, long};

const LEN: usize = 64;

/// Small whole numbers, so that every sum is exact.
fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 5, step, source: Source::Rank(rank) }.stream(0);
    (0..LEN as u64).map(|at| (stream.u64_at(at) % 17) as f32 - 8.0).collect()
}

fn add(sum: &mut [f64], values: &[f32], weight: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, &value)| *sum += weight * f64::from(value));
}

const FRAMES: &str = "topk:density=0.1";
const PACKETS: &str = "topk:density=0.1,max_packet_bytes=1200";

/// One rank: its exchange, what it keeps back, and everything it ever computed.
struct Replica {
    exchange: Exchange,
    residual: Vec<f32>,
    mean: Vec<f32>,
    params: Vec<f32>,
    computed: Vec<f64>,
}

impl Replica {
    fn new(spec: &str, quorum: usize, patience: Option<Duration>) -> Self {
        let options = ServerOptions { quorum, patience, ..ServerOptions::default() };
        let spec = Spec::parse(spec).unwrap();
        let layout = Layout::packed([("w", vec![LEN])]).unwrap();
        let exchange = Exchange::new(spec, layout, Route::Server(options)).unwrap();
        let zeros = vec![0.0; LEN];
        Self {
            exchange,
            residual: zeros.clone(),
            mean: zeros.clone(),
            params: zeros,
            computed: vec![0.0; LEN],
        }
    }

    /// One step; returns who was in it.
    fn step(&mut self, transport: &mut ZmqTransport, step: u64) -> Result<Vec<Rank>, ExchangeError> {
        let rank = transport.rank().0;
        let grad = gradient(rank, step);
        add(&mut self.computed, &grad, 1.0);
        let mut memory = Memory::new(&mut self.residual[..]);
        let key = StepKey { seed: 1, step, source: Source::Rank(rank) };
        let never = Deadline::NEVER;
        self.exchange.start(transport, key, Grad::F32(&grad), Some(&mut memory), never)?;
        let report = self.exchange.finish(transport, &mut self.mean, Some(&mut memory), never)?;
        self.params.iter_mut().zip(&self.mean).for_each(|(param, mean)| *param -= mean);
        Ok(report.contributors.as_slice().to_vec())
    }

    fn state(&self) -> Vec<u8> {
        self.params.iter().flat_map(|param| param.to_le_bytes()).collect()
    }

    fn restore(&mut self, state: &[u8]) {
        self.params = state.as_chunks().0.iter().take(LEN).map(|&bytes| f32::from_le_bytes(bytes)).collect();
    }

    fn hash(&self) -> u64 {
        self.params
            .iter()
            .fold(1, |hash, param| hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(param.to_bits()))
    }
}

/// What a worker has at the end.
struct End {
    replica: Replica,
    /// How often it was let in.
    entries: usize,
}

/// Asks and waits to be let in; returns what comes next, and the server's state.
fn come_in(place: &mut Worker, transport: &mut ZmqTransport) -> Result<(Notice, Vec<u8>), TransportError> {
    place.ask(transport, long())?;
    let (notice, state) = place.answer(transport, long())?;
    Ok((notice, state.to_vec()))
}

/// A worker that does as it is told until the run is over or the server gone; `spoils` names a step before
/// which its parameters change by themselves.
fn worker(transport: ZmqTransport, spoils: Option<u64>) -> JoinHandle<End> {
    worker_of(FRAMES, transport, spoils)
}

fn worker_of(spec: &'static str, transport: ZmqTransport, spoils: Option<u64>) -> JoinHandle<End> {
    thread::spawn(move || work(Replica::new(spec, 0, None), transport, (spoils, None)))
}

/// As [`worker`], from what another one kept; `leaves` names the step behind which it goes.
fn work(
    mut replica: Replica,
    mut transport: ZmqTransport,
    (spoils, leaves): (Option<u64>, Option<u64>),
) -> End {
    let (mut place, mut entries) = (Worker::new(Rank(0)), 0);
    'out: while let Ok((mut notice, state)) = come_in(&mut place, &mut transport) {
        replica.restore(&state);
        entries += 1;
        loop {
            if notice.is_over {
                break 'out;
            }
            if spoils == Some(notice.step) {
                replica.params[3] += 1.0;
            }
            let leaves = leaves == Some(notice.step);
            let tag = Tag::new(notice.epoch, notice.step);
            let norm = replica.residual.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
            let goes = if leaves { Leaves::Keeping } else { Leaves::No };
            let report = Report { residual_norm: norm, params_hash: replica.hash(), leaves: goes };
            let reported = place.report(&mut transport, tag, report, long());
            match reported
                .map_err(ExchangeError::from)
                .and_then(|()| replica.step(&mut transport, notice.step))
            {
                Ok(_) | Err(ExchangeError::NoQuorum { .. }) => {}
                Err(ExchangeError::Transport(_)) => break 'out,
                Err(other) => panic!("{other}"),
            }
            let Ok(next) = place.next(&mut transport, tag, Deadline::NEVER) else { break 'out };
            notice = next;
            if leaves {
                assert!(!notice.ranks.contains(&transport.rank()));
                break 'out;
            }
            if !notice.is_over && !notice.ranks.contains(&transport.rank()) {
                break;
            }
        }
    }
    // The others may still wait for what this end has acknowledged.
    let _ = transport.close(long());
    End { replica, entries }
}

/// The server's side: runs steps, keeps what was applied, and what changed.
struct Run {
    transport: ZmqTransport,
    server: Server,
    replica: Replica,
    applied: Vec<f64>,
    changes: Vec<Change>,
    void: usize,
    /// Bytes that follow the parameters in the state of the server.
    padding: usize,
}

impl Run {
    fn step(&mut self, step: u64, is_last: bool) -> Vec<Rank> {
        self.server.wait_for_quorum(&mut self.transport, long()).unwrap();
        if self.server.members() < self.server.quorum() {
            let tag = Tag::new(self.transport.membership().epoch, step);
            self.close((tag, &[]), (step, false));
        }
        self.replica.exchange.set_quorum(self.server.quorum());
        let tag = Tag::new(self.transport.membership().epoch, step);
        let hash = self.replica.hash();
        let contributors = match self.replica.step(&mut self.transport, step) {
            Ok(contributors) => {
                let count = contributors.len() as f32;
                let sum: Vec<f32> = self.replica.mean.iter().map(|mean| (mean * count).round()).collect();
                add(&mut self.applied, &sum, 1.0);
                contributors
            }
            Err(ExchangeError::NoQuorum { refused, .. }) => {
                refused.into_iter().for_each(|(rank, error)| self.server.spoiled(rank, error.to_string()));
                self.void += 1;
                Vec::new()
            }
            Err(other) => panic!("{other}"),
        };
        self.server.reports(&mut self.transport, tag, hash).unwrap();
        self.close((tag, &contributors), (step + 1, is_last));
        contributors
    }

    fn close(&mut self, closed: (Tag, &[Rank]), next: (u64, bool)) {
        let replica = &self.replica;
        let changes = self
            .server
            .close(
                &mut self.transport,
                closed,
                next,
                || [replica.state(), vec![0; self.padding]].concat(),
                long(),
            )
            .unwrap();
        self.changes.extend(changes);
    }

    fn has(&self, what: impl Fn(&Change) -> bool) -> bool {
        self.changes.iter().any(what)
    }
}

struct Scene {
    world: World,
    run: Run,
    endpoint: String,
    heard: Heard,
}

fn scene(world: usize, quorum: usize, patience: Option<Duration>, may_miss: u32) -> Scene {
    scene_of(FRAMES, world, (quorum, patience, may_miss))
}

fn scene_of(spec: &str, world: usize, (quorum, patience, may_miss): (usize, Option<Duration>, u32)) -> Scene {
    let (world, heard) = (World::star(world), Heard::default());
    let options = ZmqOptions { returns: Returns::AtAnyTime, log: heard.log(), ..world.options(0) };
    let bound = Bound::new(options).unwrap();
    let endpoint = bound.endpoint().unwrap().to_owned();
    let mut transport = bound.join(long()).unwrap();
    let server = Server::new(&mut transport, Rules { quorum, may_miss, may_spoil: 2 }).unwrap();
    let (applied, changes) = (vec![0.0; LEN], Vec::new());
    let replica = Replica::new(spec, quorum, patience);
    let run = Run { transport, server, replica, applied, changes, void: 0, padding: 0 };
    Scene { world, run, endpoint, heard }
}

impl Scene {
    fn connect(&self, rank: usize, endpoint: &str) -> ZmqTransport {
        let options = ZmqOptions { returns: Returns::AtAnyTime, ..self.world.options(rank) };
        let mut bound = Bound::new(options).unwrap();
        bound.locate(Rank(0), endpoint);
        bound.join(long()).unwrap()
    }

    /// Lets in who asks, before the first step.
    fn begin(&mut self) {
        self.run.server.wait_for_quorum(&mut self.run.transport, long()).unwrap();
        let tag = Tag::new(self.run.transport.membership().epoch, 0);
        self.run.close((tag, &[]), (0, false));
    }
}

/// Applied and kept back together are all that was ever computed, exactly.
fn assert_conserved(run: &Run, ends: &[End], lost: &[f64]) {
    let (mut have, mut computed) = (run.applied.clone(), run.replica.computed.clone());
    add(&mut have, &run.replica.residual, 1.0);
    for end in ends {
        add(&mut have, &end.replica.residual, 1.0);
        computed.iter_mut().zip(&end.replica.computed).for_each(|(sum, value)| *sum += value);
    }
    have.iter_mut().zip(lost).for_each(|(sum, value)| *sum += value);
    assert_eq!(have, computed);
    for end in ends {
        assert_eq!(end.replica.params, run.replica.params);
    }
}

#[test]
fn a_worker_that_is_cut_off_misses_steps_begins_again_and_nothing_is_lost() {
    is_cut_off_and_comes_back(FRAMES);
}

#[test]
fn a_worker_that_sends_packets_is_cut_off_misses_steps_begins_again_and_nothing_is_lost() {
    is_cut_off_and_comes_back(PACKETS);
}

fn is_cut_off_and_comes_back(spec: &'static str) {
    let mut scene = scene_of(spec, 3, (2, Some(Duration::from_millis(400)), 1));
    let proxy = Proxy::to(&scene.endpoint);
    let workers = [scene.connect(1, &scene.endpoint.clone()), scene.connect(2, &proxy.endpoint())]
        .map(|end| worker_of(spec, end, None));
    scene.run.server.wait_for_quorum(&mut scene.run.transport, long()).unwrap();
    scene.begin();
    let (mut step, mut seen) = (0, Vec::new());
    let run = &mut scene.run;
    let out = |change: &Change| matches!(change, Change::Out { rank: Rank(2), why } if why.contains("missed 2 steps"));
    let back = |change: &&Change| matches!(change, Change::Joined { rank: Rank(2) });
    // Everyone; then without the second; then with it again.
    while !seen.contains(&3) {
        seen.push(run.step(step, false).len());
        step += 1;
    }
    proxy.hold(true);
    while !run.has(out) {
        seen.push(run.step(step, false).len());
        step += 1;
    }
    proxy.hold(false);
    while run.changes.iter().filter(back).count() < 2 {
        seen.push(run.step(step, false).len());
        step += 1;
    }
    run.step(step, false);
    run.step(step + 1, true);
    assert!(seen.contains(&2) && seen.contains(&3), "{seen:?}");
    run.transport.close(long()).unwrap();
    let ends = workers.map(|end| end.join().unwrap());
    assert_eq!([ends[0].entries, ends[1].entries], [1, 2]);
    assert_conserved(run, &ends, &[]);
}

/// The state takes several steps to arrive. They are not missed: the worker could not take part in them.
#[test]
fn a_worker_behind_a_slow_link_gets_the_state_and_takes_part() {
    let mut scene = scene(3, 2, Some(Duration::from_millis(700)), 0);
    scene.run.padding = 40_000;
    let (endpoint, _link) = Slow::to(&scene.endpoint, 64, 50);
    let near = worker(scene.connect(1, &scene.endpoint.clone()), None);
    scene.begin();
    let far = worker(scene.connect(2, &endpoint), None);
    let run = &mut scene.run;
    let (mut step, mut seen) = (0, Vec::new());
    let start = std::time::Instant::now();
    while !seen.contains(&3) {
        assert!(start.elapsed() < LONG, "{} steps, {:?}", seen.len(), run.changes);
        seen.push(run.step(step, false).len());
        step += 1;
    }
    let out = |change: &Change| matches!(change, Change::Out { .. } | Change::Left { .. });
    assert!(!run.has(out), "{:?}", run.changes);
    let joined = |change: &Change| matches!(change, Change::Joined { rank: Rank(2) });
    assert!(run.has(joined) && seen.iter().filter(|&&there| there == 2).count() >= 2, "{seen:?}");
    run.step(step, true);
    run.transport.close(long()).unwrap();
    let ends = [near, far].map(|end| end.join().unwrap());
    assert_eq!([ends[0].entries, ends[1].entries], [1, 1]);
    assert_conserved(run, &ends, &[]);
}

#[test]
fn without_a_quorum_a_step_is_void_and_everything_is_given_back() {
    let mut scene = scene(3, 3, Some(Duration::from_millis(300)), 5);
    let proxy = Proxy::to(&scene.endpoint);
    let workers = [scene.connect(1, &scene.endpoint.clone()), scene.connect(2, &proxy.endpoint())]
        .map(|end| worker(end, None));
    scene.begin();
    let run = &mut scene.run;
    assert_eq!(run.step(0, false).len(), 3);
    proxy.hold(true);
    let params = run.replica.params.clone();
    assert!(run.step(1, false).is_empty());
    assert_eq!((run.void, &run.replica.params), (1, &params));
    proxy.hold(false);
    let mut step = 2;
    while run.step(step, false).len() < 3 {
        step += 1;
    }
    run.step(step + 1, true);
    run.transport.close(long()).unwrap();
    let ends = workers.map(|end| end.join().unwrap());
    assert_conserved(run, &ends, &[]);
}

#[test]
fn what_a_worker_kept_back_when_it_left_is_reported_as_lost() {
    let mut scene = scene(2, 1, None, 1);
    let transport = scene.connect(1, &scene.endpoint.clone());
    let steps = std::sync::Arc::new(AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&steps);
    let leaving = thread::spawn(move || {
        let (mut transport, mut replica, mut place) =
            (transport, Replica::new(FRAMES, 0, None), Worker::new(Rank(0)));
        let (mut notice, _) = come_in(&mut place, &mut transport).unwrap();
        let mut norm = 0.0;
        for _ in 0..4 {
            let tag = Tag::new(notice.epoch, notice.step);
            norm = replica.residual.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
            let report = Report { residual_norm: norm, params_hash: 0, leaves: Leaves::No };
            place.report(&mut transport, tag, report, long()).unwrap();
            replica.step(&mut transport, notice.step).unwrap();
            notice = place.next(&mut transport, tag, long()).unwrap();
            counted.fetch_add(1, SeqCst);
        }
        // Gone without a word, as in a crash.
        norm
    });
    let run = &mut scene.run;
    let mut step = 0;
    while run.server.members() < 2 {
        run.step(step, false);
        step += 1;
    }
    while steps.load(SeqCst) < 4 {
        run.step(step, false);
        step += 1;
    }
    let norm = leaving.join().unwrap();
    scene.heard.wait_for("rank 1 is gone");
    run.step(step, true);
    let left = run.changes.iter().find_map(|change| match change {
        Change::Left { rank: Rank(1), lost_norm } => Some(*lost_norm),
        _ => None,
    });
    assert!(norm > 0.0);
    assert_eq!(left, Some(norm));
    assert_eq!(run.server.members(), 1);
}

#[test]
fn a_server_without_patience_does_not_wait_for_a_worker_that_was_started_again() {
    let mut scene = scene(2, 1, None, 9);
    let mut first = scene.connect(1, &scene.endpoint.clone());
    let asking = thread::spawn(move || {
        come_in(&mut Worker::new(Rank(0)), &mut first).unwrap();
        first
    });
    let mut step = 0;
    while scene.run.server.members() < 2 {
        scene.run.step(step, false);
        step += 1;
    }
    // It has the state and never sends a frame: its process ends, and another takes its place.
    drop(asking.join().unwrap());
    let second = worker(scene.connect(1, &scene.endpoint.clone()), None);
    let run = &mut scene.run;
    assert_eq!(run.step(step, false), [Rank(0)]);
    assert!(run.has(|change| matches!(change, Change::Left { rank: Rank(1), .. })));
    while run.server.members() < 2 {
        step += 1;
        run.step(step, false);
    }
    assert_eq!(run.step(step + 1, false), [Rank(0), Rank(1)]);
    run.step(step + 2, true);
    run.transport.close(long()).unwrap();
    assert_eq!(second.join().unwrap().entries, 1);
}

/// A server with two workers, of which the second is behind a proxy, all in a step.
fn all_of_three(spec: &'static str, quorum: usize) -> (Scene, Proxy, [JoinHandle<End>; 2], u64) {
    let mut scene = scene_of(spec, 3, (quorum, None, 1));
    let proxy = Proxy::to(&scene.endpoint);
    let workers = [scene.connect(1, &scene.endpoint.clone()), scene.connect(2, &proxy.endpoint())]
        .map(|end| worker_of(spec, end, None));
    scene.begin();
    let mut step = 0;
    while scene.run.step(step, false).len() < 3 {
        step += 1;
    }
    (scene, proxy, workers, step + 1)
}

#[test]
fn with_a_quorum_nobody_waits_for_a_worker_whose_connection_is_broken_even_without_patience() {
    for spec in [FRAMES, PACKETS] {
        let (mut scene, proxy, workers, mut step) = all_of_three(spec, 2);
        let run = &mut scene.run;
        proxy.hold(true);
        proxy.cut();
        // It is neither gone, which takes longer, nor has it missed more than it may.
        assert_eq!(run.step(step, false), [Rank(0), Rank(1)]);
        assert!(
            run.changes.iter().all(|change| matches!(change, Change::Joined { .. })),
            "{:?}",
            run.changes
        );
        proxy.hold(false);
        while run.step(step + 1, false).len() < 3 {
            step += 1;
        }
        run.step(step + 2, true);
        assert_eq!((run.void, run.transport.tally(Rank(2)).sessions), (0, 1));
        let ends = workers.map(|end| end.join().unwrap());
        assert_conserved(&scene.run, &ends, &[0.0; LEN]);
    }
}

#[test]
fn without_a_quorum_the_server_waits_until_a_broken_connection_is_made_anew() {
    for spec in [FRAMES, PACKETS] {
        let (mut scene, proxy, workers, step) = all_of_three(spec, 3);
        let run = &mut scene.run;
        proxy.hold(true);
        proxy.cut();
        let back = thread::spawn(move || {
            thread::sleep(Duration::from_secs(3));
            proxy.hold(false);
        });
        assert_eq!(run.step(step, false).len(), 3);
        run.step(step + 1, true);
        back.join().unwrap();
        assert_eq!((run.void, run.transport.tally(Rank(2)).sessions), (0, 1));
        let ends = workers.map(|end| end.join().unwrap());
        assert_conserved(&scene.run, &ends, &[0.0; LEN]);
    }
}

#[test]
fn a_replica_that_has_drifted_is_found_and_begins_again() {
    let mut scene = scene(3, 3, None, 1);
    let workers = [scene.connect(1, &scene.endpoint.clone()), scene.connect(2, &scene.endpoint.clone())];
    let [a, b] = workers;
    let workers = [worker(a, None), worker(b, Some(4))];
    scene.begin();
    let run = &mut scene.run;
    let drifted = |change: &Change| matches!(change, Change::Out { rank: Rank(2), why } if why == "its parameters differ");
    for step in 0..12 {
        run.step(step, step == 11);
    }
    assert!(run.has(drifted), "{:?}", run.changes);
    run.transport.close(long()).unwrap();
    let ends = workers.map(|end| end.join().unwrap());
    // Two are too few for a step, so both began again, and no step was lost by that.
    assert_eq!(([ends[0].entries, ends[1].entries], run.void), ([2, 2], 0));
    assert_conserved(run, &ends, &[]);
}

#[test]
fn a_worker_that_leaves_in_order_takes_along_what_it_keeps_and_no_step_is_void() {
    let mut scene = scene(3, 3, None, 1);
    let [stays, leaves] = [1, 2].map(|rank| scene.connect(rank, &scene.endpoint.clone()));
    let stays = worker(stays, None);
    let leaves = thread::spawn(move || work(Replica::new(FRAMES, 0, None), leaves, (None, Some(4))));
    scene.begin();
    (0..=4).for_each(|step| assert_eq!(scene.run.step(step, false).len(), 3, "step {step}"));
    let left =
        |change: &Change| matches!(change, Change::Out { rank: Rank(2), why } if why.contains("leaves"));
    assert!(scene.run.has(left), "{:?}", scene.run.changes);
    let kept = leaves.join().unwrap().replica;
    assert!(kept.residual.iter().any(|&value| value != 0.0));
    let back = scene.connect(2, &scene.endpoint.clone());
    let back = thread::spawn(move || work(kept, back, (None, None)));
    let run = &mut scene.run;
    (5..=8).for_each(|step| assert_eq!(run.step(step, step == 8).len(), 3, "step {step}"));
    run.transport.close(long()).unwrap();
    assert!(run.void == 0 && !run.has(|change| matches!(change, Change::Left { .. })), "{:?}", run.changes);
    assert_conserved(run, &[stays, back].map(|end| end.join().unwrap()), &[]);
}

#[test]
fn a_member_whose_frames_are_refused_again_and_again_is_shut_out_and_the_quorum_goes_without_it() {
    let mut scene = scene(3, 3, None, 1);
    let [honest, mut hostile] = [1, 2].map(|rank| scene.connect(rank, &scene.endpoint.clone()));
    let honest = worker(honest, None);
    // It follows the run, but for its frames.
    let hostile = thread::spawn(move || {
        let mut place = Worker::new(Rank(0));
        while let Ok((mut notice, _)) = come_in(&mut place, &mut hostile) {
            while notice.ranks.contains(&Rank(2)) && !notice.is_over {
                let tag = Tag::new(notice.epoch, notice.step);
                let sent = hostile.send(Rank(0), tag, b"no frame", long());
                match sent.and_then(|()| place.next(&mut hostile, tag, long())) {
                    Ok(next) => notice = next,
                    Err(_) => break,
                }
            }
        }
        hostile.rejoin(long()).unwrap_err().to_string()
    });
    scene.begin();
    let run = &mut scene.run;
    (0..3).for_each(|step| assert!(run.step(step, false).is_empty(), "step {step}"));
    let gone = scene.heard.wait_for("3 frames in a row were refused").to_string();
    assert!(gone.starts_with("rank 2 is gone: ") && gone.contains("the last one so: "), "{gone}");
    assert!(run.has(|change| matches!(change, Change::Left { rank: Rank(2), .. })), "{:?}", run.changes);
    assert_eq!((run.void, run.server.quorum()), (3, 2));
    (3..6).for_each(|step| assert_eq!(run.step(step, step == 5), [Rank(0), Rank(1)], "step {step}"));
    let refused = hostile.join().unwrap();
    assert!(refused.starts_with("refused by rank 0: that rank was shut out of this run; "), "{refused}");
    run.transport.close(long()).unwrap();
    assert_conserved(run, &[honest.join().unwrap()], &[]);
}

#[test]
fn a_list_that_is_replaced_ends_sessions_and_opens_places_and_one_that_makes_no_sense_changes_nothing() {
    let mut world = World::star(3);
    let heard = Heard::default();
    let options = |world: &World, rank| ZmqOptions { returns: Returns::AtAnyTime, ..world.options(rank) };
    let bound = Bound::new(ZmqOptions { log: heard.log(), ..options(&world, 0) }).unwrap();
    let endpoint = bound.endpoint().unwrap().to_owned();
    let mut server = bound.join(long()).unwrap();
    let connect = |world: &World, rank| {
        let mut bound = Bound::new(options(world, rank)).unwrap();
        bound.locate(Rank(0), &endpoint);
        bound
    };
    let mut stays = connect(&world, 1).join(long()).unwrap();
    let mut goes = connect(&world, 2).join(long()).unwrap();
    heard.wait_for("rank 2 is here");
    let refused = |server: &mut ZmqTransport, roster| server.readmit(roster).unwrap_err().to_string();
    let entry = |key| Entry { key, endpoint: None };
    let stranger = world.roster().with(Rank(7), entry(Some(world.key(1))));
    assert_eq!(refused(&mut server, stranger), "rank 7 was not in the list of peers at the start");
    let keyless = world.roster().with(Rank(2), entry(None));
    assert_eq!(refused(&mut server, keyless), "the list of peers has no key for rank 2");
    assert!(refused(&mut stays, world.roster()).contains("only an end that listens"));
    assert_eq!((server.admitted(), server.present().len()), (2, 2));
    // Taken off.
    server.readmit(Roster::new().with(Rank(1), entry(Some(world.key(1))))).unwrap();
    assert_eq!((server.admitted(), server.session(Rank(2))), (1, None));
    heard.wait_for("rank 2 was taken off the list");
    heard.wait_for("rank 2 is gone: it was taken off the list");
    let gone = TransportError::Disconnected { rank: Rank(0) };
    assert_eq!(goes.recv(Rank(0), Tag::new(0, 1), &mut Vec::new(), long()), Err(gone));
    assert!(matches!(goes.rejoin(long()), Err(ZmqError::Denied { peer: Rank(0), .. })));
    let denied = connect(&world, 2).join(long()).unwrap_err();
    assert!(matches!(denied, ZmqError::Denied { .. }), "{denied}");
    // With another key, which is not let in before it is on the list.
    world.pairs[2] = KeyPair::generate().unwrap();
    assert!(matches!(connect(&world, 2).join(long()), Err(ZmqError::Denied { .. })));
    server.readmit(world.roster()).unwrap();
    heard.wait_for("rank 2 is on the list again");
    let mut back = connect(&world, 2).join(long()).unwrap();
    // Whoever stayed has noticed nothing.
    let mut got = Vec::new();
    for (rank, end) in [(1, &mut stays), (2, &mut back)] {
        end.send(Rank(0), Tag::new(0, 2), b"here", long()).unwrap();
        server.recv(Rank(rank), Tag::new(0, 2), &mut got, long()).unwrap();
    }
    assert_eq!(server.tally(Rank(1)).sessions, 1);
    // Shut out, until its rank has another key.
    server.shut_out(Rank(1), "why not");
    heard.wait_for("rank 1 is gone: why not");
    assert_eq!((server.admitted(), server.session(Rank(1))), (1, None));
    world.pairs[1] = KeyPair::generate().unwrap();
    server.readmit(world.roster()).unwrap();
    heard.wait_for("rank 1 has another key on the list");
    connect(&world, 1).join(long()).unwrap();
}

#[test]
fn a_request_that_nobody_waits_for_and_a_notice_of_nonsense_harm_nobody() {
    let mut scene = scene(3, 2, Some(Duration::from_millis(300)), 1);
    let mut odd = scene.connect(2, &scene.endpoint.clone());
    let session = odd.session(Rank(0)).unwrap();
    // Requests of another session and of the future, frames and reports of one who is no member.
    for (step, unit) in [(session ^ 1, 0), (session, 7)] {
        odd.send(Rank(0), Tag { epoch: Tag::JOINING, step, unit, chunk: 0 }, b"", long()).unwrap();
    }
    odd.send(Rank(0), Tag::new(2, 0).chunk(2), b"nonsense", long()).unwrap();
    let honest = worker(scene.connect(1, &scene.endpoint.clone()), None);
    scene.begin();
    let run = &mut scene.run;
    assert_eq!(run.step(0, false), [Rank(0), Rank(1)]);
    // Let in, it reports nonsense and is put out again.
    odd.send(Rank(0), Tag { epoch: Tag::JOINING, step: session, unit: 0, chunk: 0 }, b"", long()).unwrap();
    let mut step = 1;
    while run.server.members() < 3 {
        run.step(step, false);
        step += 1;
    }
    let epoch = run.transport.membership().epoch;
    let state = Tag { epoch: Tag::JOINING, step: session, unit: 0, chunk: 1 };
    odd.recv(Rank(0), state, &mut Vec::new(), long()).unwrap();
    let members = gradwire_transports::Membership { epoch, ranks: run.transport.membership().ranks };
    odd.adopt(members).unwrap();
    odd.send(Rank(0), Tag::new(epoch, step).chunk(2), b"nonsense", long()).unwrap();
    odd.send(Rank(0), Tag::new(epoch, step), b"no frame", long()).unwrap();
    assert_eq!(run.step(step, false), [Rank(0), Rank(1)]);
    assert!(run.has(
        |change| matches!(change, Change::Out { rank: Rank(2), why } if why == "its report makes no sense")
    ));
    run.step(step + 1, true);
    drop(odd);
    run.transport.close(long()).unwrap();
    assert_eq!(honest.join().unwrap().entries, 1);
}

#[test]
fn a_transport_whose_server_was_started_again_begins_a_new_session() {
    let world = World::star(2);
    let serve = |endpoint: &str| {
        let mut options = ZmqOptions { returns: Returns::AtAnyTime, ..world.options(0) };
        let mut entry = options.roster.get(Rank(0)).unwrap().clone();
        entry.endpoint = Some(endpoint.to_owned());
        options.roster = options.roster.with(Rank(0), entry);
        let bound = Bound::new(options).unwrap();
        let endpoint = bound.endpoint().unwrap().to_owned();
        (bound.join(long()).unwrap(), endpoint)
    };
    let (mut server, endpoint) = serve("tcp://127.0.0.1:*");
    let options = ZmqOptions { returns: Returns::AtAnyTime, ..world.options(1) };
    let mut bound = Bound::new(options).unwrap();
    bound.locate(Rank(0), &endpoint);
    let mut client = bound.join(long()).unwrap();
    let (tag, mut got) = (Tag::new(0, 9), Vec::new());
    let open = client.rejoin(long()).unwrap_err().to_string();
    assert_eq!(open, "a session is still open");
    assert!(server.rejoin(long()).unwrap_err().to_string().contains("listens"));
    client.send(Rank(0), tag, b"first life", long()).unwrap();
    server.recv(Rank(1), tag, &mut got, long()).unwrap();
    drop(server);
    let gone = TransportError::Disconnected { rank: Rank(0) };
    assert_eq!(client.recv(Rank(0), tag, &mut got, long()), Err(gone));
    let (mut server, _) = serve(&endpoint);
    client.rejoin(long()).unwrap();
    // The same tag as in the first life is a new message in the second.
    client.send(Rank(0), tag, b"second life", long()).unwrap();
    server.recv(Rank(1), tag, &mut got, long()).unwrap();
    assert_eq!(got, b"second life");
    assert_eq!(client.tally(Rank(0)).sessions, 2);
}
