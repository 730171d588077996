//! Gradients in packets over links that lose them: a lost packet is a lost range, and nothing is lost in
//! silence.

use std::thread;
use std::time::Duration;

use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepInput, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Report, Route, ServerOptions};
use gradwire_transports::layer::{FaultInjector, FaultPlan, FaultTally};
use gradwire_transports::{Deadline, Rank, Tag, Transport, local};

const WORLD: u32 = 4;

fn layout() -> Layout {
    Layout::packed([("w", vec![30, 40]), ("b", vec![40]), ("v", vec![17, 11])]).unwrap()
}

fn key(rank: u32, step: u64) -> StepKey {
    StepKey { seed: 7, step, source: Source::Rank(rank) }
}

/// Small whole numbers, so that sums are exact.
fn whole_numbers(rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream = key(rank, step).stream(9);
    (0..len as u64).map(|at| (stream.u64_at(at) % 33) as f32 - 16.0).collect()
}

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

/// One step of one rank.
#[derive(Debug)]
struct Done {
    mean: Vec<f32>,
    /// fl(residual + gradient) before the step, less the residual after it.
    gone: Vec<f32>,
    report: Result<Report, ExchangeError>,
}

/// Steps of one rank, over a link with faults.
struct Worker {
    end: FaultInjector<local::LocalTransport>,
    exchange: Exchange,
    residual: Vec<f32>,
    keeps: bool,
}

impl Worker {
    fn step(&mut self, step: u64, grad: &[f32]) -> Done {
        let rank = self.end.rank().0;
        let before: Vec<f32> = self.residual.iter().zip(grad).map(|(a, b)| a + b).collect();
        let (mut mean, mut memory) = (vec![f32::NAN; grad.len()], Memory::new(&mut self.residual[..]));
        let mut memory = self.keeps.then_some(&mut memory);
        let (exchange, end) = (&mut self.exchange, &mut self.end);
        exchange.start(end, key(rank, step), Grad::F32(grad), memory.as_deref_mut(), long()).unwrap();
        let report = exchange.finish(end, &mut mean, memory, long());
        let gone = before.iter().zip(&self.residual).map(|(before, after)| before - after).collect();
        Done { mean, gone, report }
    }
}

struct Run {
    /// By rank, then step.
    done: Vec<Vec<Done>>,
    residuals: Vec<Vec<f32>>,
    faults: FaultTally,
}

/// Runs `steps` on threads of their own.
fn run(
    spec: &str,
    options: &ServerOptions,
    plan: FaultPlan,
    steps: u64,
    grad: impl Fn(u32, u64, usize) -> Vec<f32> + Sync,
) -> Run {
    let work = |end| {
        let (spec, layout) = (Spec::parse(spec).unwrap(), layout());
        let len = layout.len();
        let keeps = spec.memory == MemoryChoice::ErrorFeedback;
        let exchange = Exchange::new(spec, layout, Route::Server(options.clone())).unwrap();
        let end = FaultInjector::new(end, FaultPlan { only_packets: true, ..plan });
        let mut worker = Worker { end, exchange, residual: vec![0.0; len], keeps };
        let rank = worker.end.rank().0;
        let done: Vec<Done> = (0..steps).map(|step| worker.step(step, &grad(rank, step, len))).collect();
        (done, worker.residual, worker.end.tally())
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let ends: Vec<_> = local::world(WORLD).into_iter().map(|end| scope.spawn(|| work(end))).collect();
        ends.into_iter().map(|end| end.join().unwrap()).collect()
    });
    let mut run = Run { done: Vec::new(), residuals: Vec::new(), faults: FaultTally::default() };
    for (done, residual, tally) in ends {
        run.done.push(done);
        run.residuals.push(residual);
        run.faults.dropped += tally.dropped;
        run.faults.flipped += tally.flipped;
        run.faults.reordered += tally.reordered;
        run.faults.duplicated += tally.duplicated;
    }
    run
}

impl Run {
    /// Steps, each with what the ranks have of it.
    fn steps(&self) -> impl Iterator<Item = Vec<&Done>> {
        (0..self.done[0].len()).map(|step| self.done.iter().map(|done| &done[step]).collect())
    }

    fn lost(&self) -> usize {
        self.done
            .iter()
            .flatten()
            .map(|done| done.report.as_ref().map_or(0, |report| report.packets.lost))
            .sum()
    }
}

const LOSSY: FaultPlan = FaultPlan {
    seed: 3,
    drop: 0.2,
    duplicate: 0.2,
    reorder: 0.2,
    truncate: 0.0,
    flip: 0.1,
    only_packets: true,
};

#[test]
fn without_loss_packets_make_the_mean_that_frames_make() {
    for spec in
        ["topk:density=0.2", "topk:density=0.2,values=q4,dense_1d=true", "qsgd:bits=4,bucket=64", "none"]
    {
        let both = ["", "max_packet_bytes=128"].map(|key| {
            let join = if spec.contains(':') || key.is_empty() { "," } else { ":" };
            let spec = format!("{spec}{join}{key}");
            run(spec.trim_end_matches(','), &ServerOptions::default(), FaultPlan::default(), 3, whole_numbers)
        });
        for (frames, packets) in both[0].done.iter().flatten().zip(both[1].done.iter().flatten()) {
            assert_eq!(frames.mean, packets.mean, "{spec}");
            let (frames, packets) = (frames.report.as_ref().unwrap(), packets.report.as_ref().unwrap());
            assert_eq!((frames.held, packets.packets.lost), (packets.held, 0), "{spec}");
            assert!(packets.packets.sent > 3 && frames.packets.sent == 0, "{spec}");
        }
        assert_eq!(both[0].residuals, both[1].residuals, "{spec}");
    }
}

#[test]
fn a_lost_packet_is_a_lost_range_and_each_coordinate_is_divided_by_those_it_came_from() {
    // The mean of a set of these tells the set.
    let value = |rank: u32| [1.0_f32, 10.0, 100.0, 1000.0][rank as usize];
    let run = run("none:max_packet_bytes=256", &ServerOptions::default(), LOSSY, 4, |rank, _, len| {
        vec![value(rank); len]
    });
    let mean = |set: u32| {
        let ranks: Vec<u32> = (0..WORLD).filter(|rank| set >> rank & 1 == 1).collect();
        ranks.iter().map(|&rank| value(rank)).sum::<f32>() / ranks.len() as f32
    };
    let (mut ranges, mut missing) = (0, 0);
    for step in run.steps() {
        let sets: Vec<u32> = step[0]
            .mean
            .iter()
            // The server's own packets are never lost.
            .map(|&x| {
                (1..1 << WORLD).step_by(2).find(|&set| mean(set) == x).expect("the mean of some workers")
            })
            .collect();
        ranges += 1 + sets.windows(2).filter(|pair| pair[0] != pair[1]).count();
        missing += sets.iter().filter(|&&set| set != (1 << WORLD) - 1).count();
        assert!(step.iter().all(|done| done.mean == step[0].mean), "replicas differ");
        let ranks: Vec<Rank> = (0..WORLD).map(Rank).collect();
        assert!(step.iter().all(|done| done.report.as_ref().unwrap().contributors.as_slice() == ranks));
    }
    assert!(run.faults.dropped > 20 && run.lost() > 20, "{:?}, {} lost", run.faults, run.lost());
    assert!(missing > 1000 && ranges < 200, "{missing} coordinates without somebody, in {ranges} ranges");
}

#[test]
fn what_was_lost_reordered_damaged_or_repeated_is_added_once_or_given_back() {
    for (seed, spec) in (0..).zip([
        "topk:density=0.3,max_packet_bytes=100",
        "topk:density=0.3,max_packet_bytes=64,unit=tensor,dense_1d=true",
        "threshold:value=3,max_packet_bytes=333",
        "topk:density=1,max_packet_bytes=1200",
    ]) {
        let plan = FaultPlan { seed, ..LOSSY };
        // A worker of few packets may lose all of them; the step has a mean all the same.
        let options = ServerOptions { quorum: 1, ..ServerOptions::default() };
        let run = run(spec, &options, plan, 12, whole_numbers);
        for (at, step) in run.steps().enumerate() {
            assert!(step.iter().all(|done| done.report.is_ok()), "{spec}: step {at} failed");
            let entered: Vec<f32> =
                (0..layout().len()).map(|c| step.iter().map(|done| done.gone[c]).sum()).collect();
            for (c, (&sum, &mean)) in entered.iter().zip(&step[0].mean).enumerate() {
                let fits = (1..=WORLD).any(|workers| sum / workers as f32 == mean);
                assert!(fits, "{spec}: step {at}, coordinate {c}: {sum} went in, the mean is {mean}");
            }
            assert!(step.iter().all(|done| done.mean == step[0].mean), "replicas differ");
        }
        // What was computed has gone into means or is kept back.
        let mut computed = vec![0.0; layout().len()];
        for (rank, step) in (0..WORLD).flat_map(|rank| (0..12).map(move |step| (rank, step))) {
            let grad = whole_numbers(rank, step, computed.len());
            computed.iter_mut().zip(grad).for_each(|(sum, value)| *sum += value);
        }
        let parts = run.done.iter().flatten().map(|done| &done.gone).chain(&run.residuals);
        parts.for_each(|part| computed.iter_mut().zip(part).for_each(|(sum, value)| *sum -= value));
        assert!(computed.iter().all(|&missing| missing == 0.0), "{spec}");
        let FaultTally { dropped, flipped, reordered, duplicated, .. } = run.faults;
        assert!(dropped > 5 && flipped > 1 && reordered > 5 && duplicated > 5, "{:?}", run.faults);
        assert!(run.lost() as u64 >= dropped, "{} lost", run.lost());
    }
}

#[test]
fn when_everything_is_lost_the_server_is_alone_and_the_others_have_everything_again() {
    let plan = FaultPlan { drop: 1.0, ..LOSSY };
    let options = ServerOptions { quorum: 1, ..ServerOptions::default() };
    let run = run("topk:density=0.3,max_packet_bytes=100", &options, plan, 2, whole_numbers);
    for (rank, done) in run.done.iter().enumerate() {
        let reports: Vec<&Report> = done.iter().map(|done| done.report.as_ref().unwrap()).collect();
        assert!(reports.iter().all(|report| report.contributors.as_slice() == [Rank(0)]));
        let all_lost = reports.iter().all(|report| report.packets.lost == report.packets.sent);
        assert_eq!(all_lost, rank > 0);
        assert_eq!(done.iter().all(|done| done.gone.iter().all(|&gone| gone == 0.0)), rank > 0);
    }
}

#[test]
fn a_step_that_fails_gives_back_packets_that_arrived_too() {
    let plan = FaultPlan { drop: 0.5, ..LOSSY };
    let options = ServerOptions { quorum: WORLD as usize + 1, ..ServerOptions::default() };
    let run = run("topk:density=0.3,max_packet_bytes=100", &options, plan, 2, whole_numbers);
    for done in run.done.iter().flatten() {
        assert!(matches!(done.report, Err(ExchangeError::NoQuorum { .. })));
        assert!(done.gone.iter().all(|&gone| gone == 0.0));
    }
}

#[test]
fn the_same_losses_make_the_same_means() {
    let plan = FaultPlan { seed: 5, drop: 0.3, ..FaultPlan::default() };
    let run =
        || run("topk:density=0.1,max_packet_bytes=64", &ServerOptions::default(), plan, 4, whole_numbers);
    let (first, second) = (run(), run());
    assert_eq!(first.residuals, second.residuals);
    let means = |run: &Run| run.done.iter().flatten().map(|done| done.mean.clone()).collect::<Vec<_>>();
    assert_eq!(means(&first), means(&second));
}

/// The server's side of a step in which rank 1 does what `misbehave` says, instead of an exchange.
fn against(
    spec: &str,
    patience: Option<Duration>,
    misbehave: impl FnOnce(&mut local::LocalTransport, Tag),
) -> Result<Report, ExchangeError> {
    let mut ends = local::world(2);
    let (mut other, mut end) = (ends.pop().unwrap(), ends.pop().unwrap());
    misbehave(&mut other, Tag::new(0, 3));
    let options = ServerOptions { quorum: 1, patience, ..ServerOptions::default() };
    let mut exchange = Exchange::new(Spec::parse(spec).unwrap(), layout(), Route::Server(options)).unwrap();
    let grad = whole_numbers(0, 3, layout().len());
    let mut mean = vec![0.0; grad.len()];
    exchange.start(&mut end, key(0, 3), Grad::F32(&grad), None, long()).unwrap();
    exchange.finish(&mut end, &mut mean, None, long())
}

/// Packets of rank 1 in step 3, as a worker would send them.
fn packets(spec: &str) -> Vec<Vec<u8>> {
    let (spec, layout) = (Spec::parse(spec).unwrap(), layout());
    let mut encoder = gradwire::packets::PacketEncoder::new();
    let grad = whole_numbers(1, 3, layout.len());
    let units: Vec<gradwire::Unit> = spec.units.units(&layout.as_ref()).collect();
    let (layout, size) = (layout.as_ref(), spec.packets.unwrap());
    let input = StepInput { key: key(1, 3), layout: &layout, units: &units, grad: Grad::F32(&grad) };
    let count = encoder.encode(&spec.codec, &input, None, size).unwrap();
    (0..count).map(|at| encoder.packet(at).unwrap().to_vec()).collect()
}

const NONE: &str = "none:max_packet_bytes=400";

/// Announces `count` packets, sends these, and says that it is done.
fn send(end: &mut local::LocalTransport, tag: Tag, count: &[u8], packets: &[&[u8]]) {
    end.send(Rank(0), tag, &versioned(count), long()).unwrap();
    for (chunk, packet) in (0..).zip(packets) {
        end.send(Rank(0), tag.unit(1).chunk(chunk), packet, long()).unwrap();
    }
    end.send(Rank(0), tag.chunk(4), &versioned(b""), long()).unwrap();
}

/// With the version of the exchange, by which every message ends that is no packet.
fn versioned(message: &[u8]) -> Vec<u8> {
    [message, &[0xe1]].concat()
}

#[test]
fn announcements_of_nonsense_announce_nothing() {
    for count in [&b""[..], b"four", &u32::MAX.to_le_bytes(), &[1, 0, 0, 0, 0]] {
        let packets = packets(NONE);
        let report = against(NONE, None, |end, tag| send(end, tag, count, &[&packets[0]])).unwrap();
        assert_eq!(report.contributors.as_slice(), [Rank(0)], "{count:?}");
    }
}

#[test]
fn packets_that_are_damaged_or_belong_elsewhere_are_not_added() {
    let all = packets(NONE);
    let both = 2_u32.to_le_bytes();
    let report = against(NONE, None, |end, tag| send(end, tag, &both, &[&all[0][..50], &all[1]])).unwrap();
    assert_eq!((report.contributors.len(), report.refused.len()), (2, 1));
    // The same range twice.
    let twice = against(NONE, None, |end, tag| send(end, tag, &both, &[&all[0], &all[0]]));
    assert!(matches!(twice, Err(ExchangeError::WrongUnits { rank: Rank(1) })));
    // Of other units than those that the spelling makes.
    let odd = packets("topk:density=0.3,max_packet_bytes=400,unit=tensor");
    let whole = "topk:density=0.3,memory=none,max_packet_bytes=400";
    let other = against(whole, None, |end, tag| send(end, tag, &both, &[&odd[0], odd.last().unwrap()]));
    assert!(matches!(other, Err(ExchangeError::WrongUnits { rank: Rank(1) })), "{other:?}");
    // Longer than a packet.
    let long = packets("none:max_packet_bytes=2000");
    let report = against(NONE, None, |end, tag| send(end, tag, &both, &[&long[0], &long[1]])).unwrap();
    assert_eq!((report.contributors.len(), report.refused.len()), (1, 1));
}

#[test]
fn a_worker_that_stops_in_the_middle_is_waited_for_no_longer_than_patience() {
    let all = packets(NONE);
    let report = against(NONE, Some(Duration::from_millis(50)), |end, tag| {
        end.send(Rank(0), tag, &versioned(&(all.len() as u32).to_le_bytes()), long()).unwrap();
        end.send(Rank(0), tag.unit(1).chunk(2), &all[2], long()).unwrap();
    });
    assert_eq!(report.unwrap().contributors.as_slice(), [Rank(0), Rank(1)]);
}

#[test]
fn routes_without_a_server_refuse_packets_by_name() {
    for route in [Route::AllGather, Route::AllReduce { wire: Wire::F32 }] {
        let refused = Exchange::new(Spec::parse(NONE).unwrap(), layout(), route).unwrap_err();
        assert_eq!(refused, ExchangeError::Packets);
        assert!(refused.to_string().contains("max_packet_bytes"));
    }
}
