//! Sparse all-reduce: the mean of all-gather, bit for bit, by another way.

use std::thread;
use std::time::{Duration, Instant};

use gradwire::plan::Plan;
use gradwire::random::Stream;
use gradwire::rules::Rules;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::cost::Link;
use gradwire_transports::exchange::{Exchange, ExchangeError, Report, Route};
use gradwire_transports::layer::{FaultInjector, FaultPlan, LinkSpeed, Throttle};
use gradwire_transports::{Deadline, Rank, Transport, TransportError, local};

/// Long enough for several blocks to an owner.
fn layout() -> Layout {
    Layout::packed([("w", vec![150, 331]), ("b", vec![331]), ("v", vec![7, 11])]).unwrap()
}

/// Heavy tails, and loud in one part, different on every rank and step.
fn gradient(rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream: Stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let value = |i: u64| {
        let uniform = stream.u64_at(i) as u32 as f32 / u32::MAX as f32 - 0.5;
        uniform * uniform * uniform * if i < len as u64 / 8 { 64.0 } else { 16.0 }
    };
    (0..len as u64).map(value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What one rank has after some steps.
#[derive(Debug)]
struct Done {
    means: Vec<Vec<u32>>,
    residual: Vec<u32>,
    reports: Vec<Report>,
    up: u64,
    down: u64,
}

struct Worker {
    transport: Box<dyn Transport>,
    exchange: Exchange,
    memory: Option<Memory<'static>>,
    mean: Vec<f32>,
    wait: Duration,
}

impl Worker {
    fn new(transport: Box<dyn Transport>, spec: &str, route: Route) -> Self {
        let (spec, layout) = (Spec::parse(spec).unwrap(), layout());
        let memory = Memory::for_spec(&spec, &layout.as_ref());
        let mean = vec![f32::NAN; layout.len()];
        let exchange = Exchange::new(spec, layout, route).unwrap();
        Self { transport, exchange, memory, mean, wait: Duration::from_secs(60) }
    }

    fn step(&mut self, step: u64, grad: &[f32]) -> Result<Report, ExchangeError> {
        let key = StepKey { seed: 7, step, source: Source::Rank(self.transport.rank().0) };
        let (deadline, transport) = (Deadline::after(self.wait), self.transport.as_mut());
        self.exchange.start(transport, key, Grad::F32(grad), self.memory.as_mut(), deadline)?;
        self.exchange.finish(transport, &mut self.mean, self.memory.as_mut(), deadline)
    }

    fn residual(&self) -> Vec<u32> {
        self.memory.as_ref().map_or_else(Vec::new, |memory| bits(memory.residual()))
    }

    fn run(mut self, steps: u64) -> Done {
        let (mut means, mut reports) = (Vec::new(), Vec::new());
        for step in 0..steps {
            let grad = gradient(self.transport.rank().0, step, self.mean.len());
            reports.push(self.step(step, &grad).unwrap());
            means.push(bits(&self.mean));
        }
        let counters = self.transport.counters();
        let (up, down) = (counters.up.payload_bytes, counters.down.payload_bytes);
        Done { means, residual: self.residual(), reports, up, down }
    }
}

fn on_threads<T: Send>(workers: Vec<Worker>, run: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn workers(world: u32, spec: &str, route: &Route) -> Vec<Worker> {
    let transports = local::world(world).into_iter();
    transports.map(|transport| Worker::new(Box::new(transport), spec, route.clone())).collect()
}

#[test]
fn the_mean_and_what_is_kept_are_those_of_all_gather_bit_for_bit() {
    for spec in [
        "topk:density=0.01",
        "topk:density=0.2,values=q4,unit=tensor,dense_1d=true",
        "threshold:value=0.9",
        "threshold:value=1e9",
        "threshold:value=0",
        "sidco:density=0.02",
        "dgc:density=0.01",
        "topk:density=0.05,memory=none",
    ] {
        for world in [1, 2, 3, 5] {
            let expected = on_threads(workers(world, spec, &Route::AllGather), |worker| worker.run(2));
            let done = on_threads(workers(world, spec, &Route::SparseAllReduce), |worker| worker.run(2));
            for (done, expected) in done.iter().zip(&expected) {
                assert!(done.means == expected.means, "{spec} over {world}: another mean");
                assert!(done.residual == expected.residual, "{spec} over {world}: another residual");
                for (report, expected) in done.reports.iter().zip(&expected.reports) {
                    assert_eq!((&report.contributors, report.held), (&expected.contributors, expected.held));
                }
            }
        }
    }
}

#[test]
fn a_slow_network_changes_nothing() {
    let (spec, speed) = ("topk:density=0.01", LinkSpeed::new(1e8, Duration::from_millis(2)));
    let expected = on_threads(workers(3, spec, &Route::AllGather), |worker| worker.run(2));
    let slow = Throttle::network(local::world(3), speed).into_iter();
    let slow = slow.map(|transport| Worker::new(Box::new(transport), spec, Route::SparseAllReduce)).collect();
    for (done, expected) in on_threads(slow, |worker| worker.run(2)).iter().zip(&expected) {
        assert!(done.means == expected.means && done.residual == expected.residual);
    }
}

#[test]
fn every_byte_reported_is_sent_and_owners_share_the_load() {
    let done = on_threads(workers(2, "topk:density=0.01", &Route::SparseAllReduce), |worker| worker.run(4));
    for done in &done {
        let reported: u64 = done.reports.iter().map(|report| report.frame_bytes as u64).sum();
        // Each message ends with the version of the exchange.
        let versions = 2 * done.reports.len() as u64;
        assert_eq!(done.up - versions, reported, "one part and one sum, to one peer");
    }
    let done = on_threads(workers(8, "topk:density=0.01", &Route::SparseAllReduce), |worker| worker.run(1));
    let (up, down): (u64, u64) =
        (done.iter().map(|done| done.up).sum(), done.iter().map(|done| done.down).sum());
    assert_eq!(up, down);
    // Most entries are in the first eighth of the gradient, which would be the first owner's if it were cut
    // in eight.
    let most = done.iter().map(|done| done.up).max().unwrap();
    assert!(most * 8 < up * 2, "{most} of {up} bytes");
}

/// What a rank sends in one step.
fn up(world: u32, spec: &str, route: &Route) -> u64 {
    on_threads(workers(world, spec, route), |worker| worker.run(1)).iter().map(|done| done.up).max().unwrap()
}

#[test]
fn blocks_in_which_nothing_is_zero_travel_dense_and_others_do_not() {
    let (n, world) = (layout().len() as u64, 4);
    let ring = 2 * (u64::from(world) - 1) * 4 * n / u64::from(world);
    let all = up(world, "threshold:value=0", &Route::SparseAllReduce);
    assert!((ring..ring + ring / 100).contains(&all), "{all} bytes, a dense ring {ring}");
    let few = up(world, "topk:density=0.01", &Route::SparseAllReduce);
    assert!(few < ring / 10, "{few} bytes, a dense ring {ring}");
    let none = up(world, "threshold:value=1e9", &Route::SparseAllReduce);
    assert!(none < 2000, "{none} bytes of nothing");
}

#[test]
fn it_sends_less_than_all_gather_where_frames_overlap_or_fill_up() {
    let [gathered, reduced] =
        [Route::AllGather, Route::SparseAllReduce].map(|route| up(16, "topk:density=0.1", &route));
    assert!(reduced * 3 < gathered * 2, "{reduced} against {gathered} bytes");
}

#[test]
fn the_cost_model_chooses_the_route_that_sends_less() {
    let link = Link::from_gbps(0.1, 0.0);
    for (world, density, expected) in [
        (2, 0.01, Route::AllGather),
        (4, 0.01, Route::AllGather),
        (4, 0.5, Route::SparseAllReduce),
        (16, 0.1, Route::SparseAllReduce),
    ] {
        let spelling = format!("topk:density={density}");
        let spec = Spec::parse(&spelling).unwrap();
        let route = Exchange::route_over(&Plan::of(&spec, &layout().as_ref()), world, &link);
        assert_eq!(route, expected, "{world} ranks, density {density}");
        let (gathered, reduced) = (
            up(world as u32, &spelling, &Route::AllGather),
            up(world as u32, &spelling, &Route::SparseAllReduce),
        );
        assert_eq!(reduced < gathered, route == Route::SparseAllReduce, "{reduced} and {gathered} bytes");
    }
    // Two phases wait twice as long for the first byte.
    let far = Link { latency_s: 1.0, ..link };
    let spec = Spec::parse("topk:density=0.1").unwrap();
    assert_eq!(Exchange::route_over(&Plan::of(&spec, &layout().as_ref()), 16, &far), Route::AllGather);
    // Several groups: all of them count.
    let rules = |text: &str| Plan::of_rules(&Rules::parse(text).unwrap(), &layout().as_ref());
    for (rest, expected) in
        [("topk:density=0.5", Route::SparseAllReduce), ("topk:density=0.001", Route::AllGather)]
    {
        let plan = rules(&format!("b=topk:density=0.001; {rest}"));
        assert_eq!(Exchange::route_over(&plan, 4, &link), expected, "{rest}");
    }
    let levels = rules("b=topk:density=0.5; qsgd");
    assert_eq!(Exchange::route_over(&levels, 16, &link), Route::AllGather, "frames of unknown length");
    let dense = Spec::parse("qsgd").unwrap();
    assert_eq!(Exchange::route_over(&Plan::of(&dense, &layout().as_ref()), 16, &link), Route::AllGather);
}

#[test]
fn a_codec_that_sends_everything_is_refused() {
    for codec in ["none", "qsgd", "randomk", "bf16"] {
        let error = Exchange::new(Spec::parse(codec).unwrap(), layout(), Route::SparseAllReduce).unwrap_err();
        assert_eq!(error, ExchangeError::NotSparse { codec });
    }
}

#[test]
fn a_damaged_part_fails_the_step_everywhere_and_everything_is_kept() {
    for seed in 0..4 {
        let transports = local::world(3).into_iter().enumerate();
        let set = transports.map(|(rank, transport)| {
            let flip = if rank == 2 { 1.0 } else { 0.0 };
            let transport = FaultInjector::new(transport, FaultPlan { seed, flip, ..FaultPlan::default() });
            Worker::new(Box::new(transport), "topk:density=0.01", Route::SparseAllReduce)
        });
        let started = Instant::now();
        let results = on_threads(set.collect(), |mut worker| {
            let grad = gradient(worker.transport.rank().0, 0, worker.mean.len());
            let error = worker.step(0, &grad).unwrap_err();
            // Nobody leaves before all have been told.
            (error, worker.residual() == bits(&grad), worker)
        });
        assert!(started.elapsed() < Duration::from_secs(30), "nobody waits for the deadline");
        for (rank, (error, has_all, _)) in results.iter().enumerate() {
            let told = match error {
                ExchangeError::Frame { rank, .. } => *rank == Rank(2),
                ExchangeError::NoSum { rank } => *rank != Rank(2),
                // The vote of one that failed, where it came first.
                ExchangeError::NotAgreed { .. } => true,
                _ => false,
            };
            assert!(told, "rank {rank}: {error}");
            assert!(has_all, "rank {rank}");
        }
    }
}

#[test]
fn a_rank_that_is_gone_fails_the_step_and_everything_is_kept() {
    let results = on_threads(workers(3, "topk:density=0.01", &Route::SparseAllReduce), |mut worker| {
        worker.wait = Duration::from_millis(300);
        let rank = worker.transport.rank();
        if rank == Rank(1) {
            return None;
        }
        let grad = gradient(rank.0, 0, worker.mean.len());
        let error = worker.step(0, &grad).unwrap_err();
        Some((error, worker.residual() == bits(&grad)))
    });
    for (error, has_all) in results.into_iter().flatten() {
        let is_gone = matches!(
            error,
            ExchangeError::NoSum { .. }
                | ExchangeError::Transport(
                    TransportError::Timeout { .. } | TransportError::Disconnected { .. }
                )
        );
        assert!(is_gone && has_all, "{error}");
    }
}

#[test]
fn a_sum_that_overflows_is_refused_by_all_alike_and_the_next_step_goes_on() {
    let results = on_threads(workers(3, "topk:density=0.01", &Route::SparseAllReduce), |mut worker| {
        let rank = worker.transport.rank().0;
        let mut grad = gradient(rank, 0, worker.mean.len());
        grad[49_900] = f32::MAX;
        let error = worker.step(0, &grad).unwrap_err();
        let has_all = worker.residual() == bits(&grad);
        worker.memory.as_mut().unwrap().clear();
        let next = worker.step(1, &gradient(rank, 1, grad.len()));
        (error, has_all, next.is_ok(), bits(&worker.mean))
    });
    for (error, has_all, goes_on, mean) in &results {
        assert_eq!(*error, ExchangeError::NonFiniteMean { index: 49_900, rank: None });
        assert!(*has_all && *goes_on && *mean == results[0].3);
    }
}
