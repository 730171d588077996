//! What meters count, what throttles delay and what injected faults do.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use gradwire_transports::collective::{self, Buffers, Gathered, Reduce, Wire};
use gradwire_transports::cost::Link;
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::layer::{FaultInjector, FaultPlan, FaultTally, LinkSpeed, Meter, Throttle};
use gradwire_transports::local::{self, LocalLimits, LocalTransport};
use gradwire_transports::{Counters, Deadline, Membership, Rank, RankSet, Tag, Transport, TransportError};

const STEP: Tag = Tag::new(0, 1);
const NEVER: Deadline = Deadline::NEVER;

/// How much longer than they must things may take on a machine that does much else.
const SLACK: Duration = Duration::from_secs(5);
const AN_HOUR: Duration = Duration::from_secs(3600);

/// Runs `body` at every rank, each in a thread, and returns what they return in rank order.
fn together<T: Send + 'static, R: Send + 'static>(
    ranks: Vec<T>,
    body: impl Fn(T) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let spawn = |rank| {
        let body = body.clone();
        thread::spawn(move || body(rank))
    };
    let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn faulty(plan: FaultPlan) -> (FaultInjector<LocalTransport>, LocalTransport) {
    let [a, b] = local::world(2).try_into().unwrap();
    (FaultInjector::new(a, plan), b)
}

// ---- Meter ----

#[test]
fn a_meter_counts_every_byte_of_every_peer_and_agrees_with_the_transport_inside() {
    let metered = local::world(3).into_iter().map(Meter::new).collect();
    let meters = together(metered, |mut meter| {
        let payload = vec![0; 100 * (meter.rank().0 as usize + 1)];
        collective::all_gather(&mut meter, STEP, &payload, &mut Gathered::new(), NEVER).unwrap();
        collective::barrier(&mut meter, STEP, NEVER).unwrap();
        meter
    });
    for (me, meter) in meters.iter().enumerate() {
        for (peer, counters) in meter.peers() {
            // One payload each way, and for each direction of the barrier's two rounds one empty message.
            assert_eq!((counters.up.messages, counters.down.messages), (2, 2));
            assert_eq!(counters.up.payload_bytes, 100 * (me as u64 + 1));
            assert_eq!(counters.down.payload_bytes, 100 * (u64::from(peer.0) + 1));
            assert_eq!(counters.up.envelope_bytes, 2 * 24);
        }
        assert_eq!(meter.peers().len(), 2);
        assert_eq!(meter.counters(), meter.inner().counters());
    }
    assert_eq!(meters[0].with(Rank(9)), Counters::default());
}

#[test]
fn a_meter_outside_of_faults_counts_what_was_given_and_one_inside_what_was_left() {
    let [a, _b] = local::world(2).try_into().unwrap();
    let plan = FaultPlan { drop: 1.0, ..FaultPlan::default() };
    let mut outside = Meter::new(FaultInjector::new(Meter::new(a), plan));
    outside.send(Rank(1), STEP, &[0; 10], NEVER).unwrap();
    assert_eq!(outside.counters().up.payload_bytes, 10);
    assert_eq!(outside.inner().inner().counters(), Counters::default());
}

#[test]
fn a_meter_counts_no_message_that_was_not_sent_or_not_received() {
    let [a, b] = local::world(2).try_into().unwrap();
    let mut meter = Meter::new(a);
    drop(b);
    meter.send(Rank(1), STEP, &[0; 10], NEVER).unwrap_err();
    meter.recv(Rank(1), STEP, &mut Vec::new(), NEVER).unwrap_err();
    assert_eq!((meter.counters(), meter.peers().len()), (Counters::default(), 0));
}

// ---- Throttle ----

fn throttled(world: u32, speed: LinkSpeed) -> Vec<Throttle<LocalTransport>> {
    Throttle::network(local::world(world), speed)
}

/// No message is faster than its link; a busy machine may be slower, by less than [`SLACK`]. What a link
/// takes to the nanosecond is tested beside the throttle, with moments that are made up.
fn assert_takes(measured: Duration, ideal_s: f64) {
    let measured = measured.as_secs_f64();
    assert!(measured >= ideal_s * 0.99, "{measured} s is faster than the link allows: {ideal_s} s");
    assert!(
        measured <= ideal_s + SLACK.as_secs_f64(),
        "{measured} s is far slower than the link: {ideal_s} s"
    );
}

#[test]
fn a_throttled_message_takes_latency_and_length_over_rate() {
    let speed = LinkSpeed::new(8e6, Duration::from_millis(30));
    let [mut a, mut b] = throttled(2, speed).try_into().unwrap();
    let start = Instant::now();
    a.send(Rank(1), STEP, &[0; 400_000], NEVER).unwrap();
    b.recv(Rank(0), STEP, &mut Vec::new(), NEVER).unwrap();
    assert_takes(start.elapsed(), 0.430);
}

#[test]
fn a_throttled_ring_and_gather_take_what_the_cost_model_says() {
    let (speed, link) = (LinkSpeed::new(80e6, Duration::from_millis(5)), Link::from_gbps(0.08, 0.005));
    let start = Instant::now();
    together(throttled(4, speed), |mut rank| {
        let mut data = vec![1.0_f32; 500_000];
        let sum = Reduce::SumF32(&mut data, Wire::F32);
        collective::all_reduce(&mut rank, STEP, sum, &mut Buffers::new(), NEVER).unwrap();
    });
    assert_takes(start.elapsed(), link.ring_all_reduce_s(4, 2e6));
    let start = Instant::now();
    together(throttled(4, speed), |mut rank| {
        collective::all_gather(&mut rank, STEP, &[0; 500_000], &mut Gathered::new(), NEVER).unwrap();
    });
    assert_takes(start.elapsed(), link.all_gather_s(4, 500e3));
}

#[test]
fn a_server_is_as_slow_as_its_one_link() {
    let speed = LinkSpeed::new(80e6, Duration::from_millis(1));
    let start = Instant::now();
    let times = together(throttled(4, speed), move |mut rank| {
        collective::gather(&mut rank, Rank(0), STEP, &[0; 500_000], &mut Gathered::new(), NEVER).unwrap();
        start.elapsed()
    });
    assert_takes(times[0], 0.151);
}

#[test]
fn a_message_under_way_holds_nobody_up_beyond_a_deadline() {
    let [mut a, mut b] = throttled(2, LinkSpeed::new(1e9, AN_HOUR)).try_into().unwrap();
    let start = Instant::now();
    a.send(Rank(1), STEP, b"slow", NEVER).unwrap();
    let (mut payload, wait) = (b"before".to_vec(), Duration::from_millis(20));
    let late = b.recv(Rank(0), STEP, &mut payload, Deadline::after(wait));
    assert_eq!(late, Err(TransportError::Timeout { from: Rank(0), tag: STEP }));
    assert!(start.elapsed() >= wait && start.elapsed() < SLACK, "the deadline was not honoured");
    assert_eq!(payload, b"before");
}

#[test]
fn a_message_that_was_late_arrives_later() {
    let [mut a, mut b] = throttled(2, LinkSpeed::new(1e9, Duration::from_millis(400))).try_into().unwrap();
    let start = Instant::now();
    a.send(Rank(1), STEP, b"slow", NEVER).unwrap();
    let mut payload = b"before".to_vec();
    while b.recv(Rank(0), STEP, &mut payload, Deadline::after(Duration::from_millis(20))).is_err() {
        assert_eq!(payload, b"before");
    }
    assert_eq!(payload, b"slow");
    assert_takes(start.elapsed(), 0.400);
}

#[test]
fn an_idle_link_lets_a_burst_through_at_once() {
    // A kilobyte takes a second, but for those of the burst.
    let speed = LinkSpeed { burst_bytes: 500_000, ..LinkSpeed::new(8e3, Duration::ZERO) };
    let [mut a, mut b] = throttled(2, speed).try_into().unwrap();
    let mut payload = Vec::new();
    a.send(Rank(1), STEP, &[1; 400_000], NEVER).unwrap();
    b.recv(Rank(0), STEP, &mut payload, Deadline::after(SLACK)).unwrap();
    assert_eq!(payload, [1; 400_000]);
    a.send(Rank(1), STEP.chunk(1), &[2; 350_000], NEVER).unwrap();
    let late = b.recv(Rank(0), STEP.chunk(1), &mut payload, Deadline::after(Duration::from_millis(20)));
    assert!(matches!(late, Err(TransportError::Timeout { .. })), "the burst was let through twice");
}

// ---- FaultInjector ----

/// Sends `count` messages of four bytes through faults; returns what arrived, by message, and the tally.
fn through(plan: FaultPlan, count: u64) -> (Vec<Option<Vec<u8>>>, FaultTally) {
    let (mut a, mut b) = faulty(plan);
    for step in 0..count {
        a.send(Rank(1), Tag::new(0, step), &[step as u8; 4], NEVER).unwrap();
    }
    a.try_progress().unwrap();
    let arrived = (0..count).map(|step| {
        let mut payload = Vec::new();
        b.recv(Rank(0), Tag::new(0, step), &mut payload, Deadline::now()).ok().map(|()| payload)
    });
    (arrived.collect(), a.tally())
}

#[test]
fn a_tenth_of_the_messages_is_dropped_the_same_ones_by_seed_and_recv_times_out_in_time() {
    let plan = FaultPlan { seed: 7, drop: 0.1, ..FaultPlan::default() };
    let (first, tally) = through(plan, 1000);
    let lost = first.iter().filter(|payload| payload.is_none()).count() as u64;
    assert_eq!(lost, tally.dropped);
    // Binomial with mean 100 and a standard deviation of 9.5: five of them either way.
    assert!((53..=147).contains(&lost), "{lost} of 1000 were dropped");
    assert_eq!(through(plan, 1000), (first.clone(), tally));
    assert_ne!(through(FaultPlan { seed: 8, ..plan }, 1000).0, first);

    let (mut a, mut b) = faulty(FaultPlan { drop: 1.0, ..plan });
    a.send(Rank(1), STEP, b"lost", NEVER).unwrap();
    let (start, wait) = (Instant::now(), Duration::from_millis(40));
    let timeout = b.recv(Rank(0), STEP, &mut Vec::new(), Deadline::after(wait));
    assert_eq!(timeout, Err(TransportError::Timeout { from: Rank(0), tag: STEP }));
    assert!(start.elapsed() >= wait && start.elapsed() < wait + SLACK);
}

#[test]
fn collectives_under_drops_end_with_the_right_result_or_a_timeout() {
    let plan = FaultPlan { seed: 3, drop: 0.1, ..FaultPlan::default() };
    let ranks = local::world(3).into_iter().map(|rank| FaultInjector::new(rank, plan)).collect();
    // No rank leaves while another still waits for it, or some errors would be departures.
    let end = Arc::new(Barrier::new(3));
    let outcomes = together(ranks, move |mut rank| {
        let (mut right, mut late) = (0, 0);
        for step in 0..40 {
            let mut data = [rank.rank().0 as f32 + 1.0; 5];
            let (tag, by) = (Tag::new(0, step), Deadline::after(Duration::from_millis(60)));
            let sum = Reduce::SumF32(&mut data, Wire::F32);
            match collective::all_reduce(&mut rank, tag, sum, &mut Buffers::new(), by) {
                Ok(_) => right += usize::from(data == [6.0; 5]),
                Err(TransportError::Timeout { .. }) => late += 1,
                Err(other) => panic!("{other}"),
            }
        }
        end.wait();
        (right, late)
    });
    for (right, late) in outcomes {
        assert_eq!(right + late, 40);
        assert!(right > 0 && late > 0, "{right} right, {late} late");
    }
}

#[test]
fn duplicates_are_harmless_to_collectives() {
    let plan = FaultPlan { seed: 1, duplicate: 0.5, ..FaultPlan::default() };
    let ranks = local::world(3).into_iter().map(|rank| FaultInjector::new(rank, plan)).collect();
    let tallies = together(ranks, |mut rank| {
        let mut out = Gathered::new();
        for step in 0..50 {
            let tag = Tag::new(0, step);
            collective::all_gather(&mut rank, tag, &[step as u8], &mut out, NEVER).unwrap();
            assert!(out.iter().all(|(_, payload)| payload == [step as u8]));
            let mut data = [1_i32; 7];
            collective::all_reduce(&mut rank, tag, Reduce::SumI32(&mut data), &mut Buffers::new(), NEVER)
                .unwrap();
            assert_eq!(data, [3; 7]);
            collective::barrier(&mut rank, tag, NEVER).unwrap();
        }
        rank.tally().duplicated
    });
    assert!(tallies.into_iter().all(|duplicated| duplicated > 50));
}

#[test]
fn a_held_message_that_finds_no_room_is_sent_later() {
    let limits = LocalLimits { inbox: InboxLimits { messages: 1, bytes: 9 }, max_message_bytes: 9 };
    let members = Membership { epoch: 0, ranks: RankSet::contiguous(2) };
    let [a, mut b] = local::with_limits(members, limits).try_into().unwrap();
    let mut a = FaultInjector::new(a, FaultPlan { reorder: 1.0, ..FaultPlan::default() });
    for chunk in [0, 1] {
        a.send(Rank(1), STEP.chunk(chunk), &[chunk as u8], NEVER).unwrap();
    }
    for chunk in [0, 1] {
        a.try_progress().unwrap();
        let mut payload = Vec::new();
        b.recv(Rank(0), STEP.chunk(chunk), &mut payload, Deadline::now()).unwrap();
        assert_eq!(payload, [chunk as u8]);
    }
}

#[test]
fn reordered_messages_all_arrive_under_their_own_tags() {
    let plan = FaultPlan { seed: 2, reorder: 0.4, ..FaultPlan::default() };
    let (arrived, tally) = through(plan, 200);
    assert!(tally.reordered > 40);
    for (step, payload) in arrived.into_iter().enumerate() {
        assert_eq!(payload, Some(vec![step as u8; 4]));
    }
}

#[test]
fn a_reordered_message_really_arrives_after_its_successor() {
    // With this seed the first of two messages is held back and the second is not.
    let plan = |seed| FaultPlan { seed, reorder: 0.5, ..FaultPlan::default() };
    let held_first = |seed: &u64| {
        let (mut a, mut b) = faulty(plan(*seed));
        a.send(Rank(1), STEP, b"1", NEVER).unwrap();
        b.recv(Rank(0), STEP, &mut Vec::new(), Deadline::now()).is_err()
    };
    let seed = (0..20).find(held_first).unwrap();
    let (mut a, mut b) = faulty(plan(seed));
    let (mut payload, later) = (Vec::new(), Tag::new(0, 2));
    a.send(Rank(1), STEP, b"1", NEVER).unwrap();
    b.recv(Rank(0), STEP, &mut payload, Deadline::now()).unwrap_err();
    a.send(Rank(1), later, b"2", NEVER).unwrap();
    a.try_progress().unwrap();
    b.recv(Rank(0), later, &mut payload, Deadline::now()).unwrap();
    b.recv(Rank(0), STEP, &mut payload, Deadline::now()).unwrap();
    assert_eq!(payload, b"1");
}

#[test]
fn a_rank_that_waits_first_sends_what_it_held_back() {
    let plan = FaultPlan { reorder: 1.0, ..FaultPlan::default() };
    let ranks = local::world(2).into_iter().map(|rank| FaultInjector::new(rank, plan)).collect();
    let held = together(ranks, |mut rank| {
        collective::barrier(&mut rank, STEP, Deadline::after(Duration::from_secs(20))).unwrap();
        rank.tally().reordered
    });
    assert_eq!(held, [1, 1]);
}

#[test]
fn truncated_messages_are_shorter_and_flipped_ones_differ_in_one_bit() {
    let (arrived, tally) = through(FaultPlan { seed: 5, truncate: 1.0, ..FaultPlan::default() }, 100);
    assert_eq!(tally.truncated, 100);
    assert!(arrived.iter().flatten().all(|payload| payload.len() < 4));
    let (arrived, tally) = through(FaultPlan { seed: 5, flip: 1.0, ..FaultPlan::default() }, 100);
    assert_eq!(tally.flipped, 100);
    for (step, payload) in arrived.into_iter().enumerate() {
        let bits: u32 = payload.unwrap().iter().map(|byte| (byte ^ step as u8).count_ones()).sum();
        assert_eq!(bits, 1);
    }
}

#[test]
fn a_truncated_message_of_a_ring_is_an_error_and_not_a_sum() {
    let plan = FaultPlan { truncate: 1.0, ..FaultPlan::default() };
    let ranks = local::world(2).into_iter().map(|rank| FaultInjector::new(rank, plan)).collect();
    let errors = together(ranks, |mut rank| {
        let mut data = [1.0_f32; 8];
        let sum = Reduce::SumF32(&mut data, Wire::F32);
        let error = collective::all_reduce(&mut rank, STEP, sum, &mut Buffers::new(), NEVER).unwrap_err();
        (error, rank)
    });
    for (error, _) in errors {
        assert!(matches!(error, TransportError::WrongLength { expected: 16, .. }), "{error:?}");
    }
}

#[test]
fn a_cut_swallows_what_is_sent_hides_what_comes_and_heals() {
    let (mut a, mut b) = faulty(FaultPlan::default());
    let partition = a.partition();
    partition.cut(Rank(1));
    a.send(Rank(1), STEP, b"swallowed", NEVER).unwrap();
    assert_eq!((a.tally().swallowed, a.counters().up.messages), (1, 0));
    b.send(Rank(0), STEP, b"hidden", NEVER).unwrap();
    let by = Deadline::after(Duration::from_millis(20));
    let hidden = a.recv(Rank(1), STEP, &mut Vec::new(), by);
    assert_eq!(hidden, Err(TransportError::Timeout { from: Rank(1), tag: STEP }));
    let healer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        partition.heal(Rank(1));
    });
    let mut payload = Vec::new();
    a.recv(Rank(1), STEP, &mut payload, NEVER).unwrap();
    assert_eq!(payload, b"hidden");
    assert_eq!(b.recv(Rank(0), STEP, &mut payload, Deadline::now()).ok(), None);
    a.send(Rank(1), STEP.chunk(1), b"healed", NEVER).unwrap();
    b.recv(Rank(0), STEP.chunk(1), &mut payload, Deadline::now()).unwrap();
    healer.join().unwrap();
}

#[test]
#[should_panic(expected = "between 0 and 1")]
fn a_probability_above_one_is_refused() {
    faulty(FaultPlan { drop: 1.5, ..FaultPlan::default() });
}
