//! What the processes of a job do.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::{self, Buffers, Gathered, Reduce, Wire};
use gradwire_transports::conformance::{self, Peer};
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::mpi::{self, MpiError, MpiOptions, MpiTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError, local};

use crate::launch::{CASE, FOLDER};

/// Any code that is nobody else's.
pub(crate) const ERROR_CODE: u8 = 42;
/// The rank that fails, where only one does.
const FAULTY: Rank = Rank(2);
/// Steps before it fails.
const STEPS: u64 = 20;
/// Short, so that tests of the watchdog do not take minutes; long against a busy machine.
const PATIENCE: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(30);
/// How long a sender without room waits before it counts what it could send.
const HELD_BACK: Duration = Duration::from_millis(250);
/// The file in which it says how much that was: by the wire there is no room to.
const SENT: &str = "sent";

pub(crate) fn run_if_started() {
    let Ok(case) = env::var(CASE) else { return };
    let (name, number) = case.split_once(':').unwrap_or((&case, "0"));
    match name {
        "conformance" => conform(MpiOptions::default()),
        "pieces" => conform(tight()),
        "departure" => depart(number.parse().unwrap()),
        "exchange" => exchange(),
        "native" => native(),
        "outside" => outside(),
        "background" => background(),
        "full" => full(),
        "big" => big(),
        "native-loop" => steps(u64::MAX, native_step),
        "loop" => steps(u64::MAX, ring_step),
        "stopped-at-the-end" => stopped_at_the_end(),
        fault => fail(fault),
    }
    // In one write, which the launcher does not mix with what other ranks say: the lab counts these.
    println!("a rank passed {case}");
}

fn start(options: &MpiOptions) -> MpiTransport {
    let transport = MpiTransport::start(options).unwrap();
    leave_note(transport.rank());
    transport
}

fn folder() -> String {
    env::var(FOLDER).unwrap()
}

/// The number of this process, for the launcher.
fn leave_note(rank: Rank) {
    leave(&rank.0.to_string(), &process::id().to_string());
}

/// A note that appears whole.
fn leave(name: &str, content: &str) {
    let path = Path::new(&folder()).join(name);
    let draft = path.with_extension("draft");
    fs::write(&draft, content).unwrap();
    fs::rename(&draft, &path).unwrap();
}

fn wait_for(name: &str) -> String {
    let (path, asked) = (Path::new(&folder()).join(name), Instant::now());
    while !path.exists() {
        assert!(asked.elapsed() < SOON, "no note {name}");
        thread::sleep(Duration::from_millis(5));
    }
    fs::read_to_string(path).unwrap()
}

fn tight() -> MpiOptions {
    let limits = InboxLimits { messages: 16, bytes: 1 << 10 };
    MpiOptions { limits, max_message_bytes: 4 << 20, piece_bytes: 1000, ..MpiOptions::default() }
}

fn impatient() -> MpiOptions {
    MpiOptions { patience: PATIENCE, ..MpiOptions::default() }
}

fn conform(options: MpiOptions) {
    let mut transport = start(&options);
    conformance::run_rank(&mut transport);
    assert_eq!(MpiTransport::start(&options).unwrap_err(), MpiError::StartedBefore);
    transport.close(Deadline::after(SOON)).unwrap();
}

fn depart(number: usize) {
    let mut transport = start(&MpiOptions::default());
    (conformance::departures()[number].run)(&mut Peer::new(&mut transport, 0));
    match transport.close(Deadline::after(SOON)) {
        Ok(()) | Err(TransportError::Closed) => {}
        Err(other) => panic!("{other}"),
    }
}

/// Means of some steps, as bits.
fn means(transport: &mut dyn Transport, spelling: &str, route: &Route, first_step: u64) -> Vec<u32> {
    let layout = Layout::packed([("a", vec![100, 30]), ("b", vec![77])]).unwrap();
    let len = layout.len();
    let spec = Spec::parse(spelling).unwrap();
    let keeps = spec.memory == MemoryChoice::ErrorFeedback;
    let mut exchange = Exchange::new(spec, layout, route.clone()).unwrap();
    let (mut residual, mut mean, mut all) = (vec![0.0; len], vec![0.0; len], Vec::new());
    for step in first_step..first_step + 5 {
        let position = transport.rank().0 as usize;
        let grad = conformance::Inputs { seed: 9 + step % 10, len }.f32(position);
        let key = StepKey { seed: 3, step, source: Source::Rank(transport.rank().0) };
        let mut memory = Memory::new(&mut residual);
        let by = Deadline::after(SOON);
        exchange.start(transport, key, Grad::F32(&grad), keeps.then_some(&mut memory), by).unwrap();
        exchange.finish(transport, &mut mean, keeps.then_some(&mut memory), by).unwrap();
        all.extend(mean.iter().map(|x| x.to_bits()));
    }
    all
}

fn exchange() {
    let mut transport = start(&MpiOptions::default());
    let world = transport.membership().world() as u32;
    let ring = |wire| Route::AllReduce { wire };
    let exchanges = [
        ("topk:density=0.05,values=q8", Route::AllGather),
        ("qsgd:bits=4", Route::AllGather),
        ("randomk:density=0.1", ring(Wire::F32)),
        ("none", ring(Wire::F32)),
        ("none", ring(Wire::Bf16)),
        ("topk:density=0.05", Route::Server(ServerOptions::default())),
    ];
    for (number, (spelling, route)) in exchanges.into_iter().enumerate() {
        let first_step = 10 * number as u64;
        let threads: Vec<_> = local::world(world)
            .into_iter()
            .map(|mut rank| {
                let route = route.clone();
                thread::spawn(move || means(&mut rank, spelling, &route, first_step))
            })
            .collect();
        let expected: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let own = means(&mut transport, spelling, &route, first_step);
        assert!(
            own == expected[transport.rank().0 as usize],
            "{spelling} over {route:?} differs from threads"
        );
    }
    transport.close(Deadline::after(SOON)).unwrap();
}

fn native() {
    let mut transport = start(&MpiOptions { prefer_ring: true, ..MpiOptions::default() });
    let native = transport.native().clone();
    let expected = if native.library.starts_with("Open MPI") { "ring" } else { "reduce_scatter_allgather" };
    assert_eq!(native.algorithm.as_deref(), Some(expected), "{native}");
    let world = transport.membership().world();
    let before = transport.counters();
    // More than one piece, and no multiple of one.
    let mut data = vec![transport.rank().0 as f32; 1_000_003];
    let sum = Reduce::SumF32(&mut data, Wire::F32);
    transport.native_all_reduce(Tag::new(0, 1), sum, Deadline::after(SOON)).unwrap();
    assert!(data.iter().all(|sum| *sum == (world * (world - 1) / 2) as f32));
    let moved = (transport.counters() - before).up;
    let bound = 2.0 * (world as f64 - 1.0) / world as f64 * 4e6;
    assert!((moved.payload_bytes as f64 - bound).abs() < 100.0, "{moved:?}");
    for (number, (wire, error)) in [(Wire::F32, 1e-5), (Wire::Bf16, 0.05)].into_iter().enumerate() {
        let first_step = 10 + 20 * number as u64;
        let native = means(&mut transport, "none", &Route::Native { wire }, first_step);
        let ring = means(&mut transport, "none", &Route::AllReduce { wire: Wire::F32 }, first_step + 10);
        let values =
            |bits: &[u32]| bits.iter().map(|bits| f64::from(f32::from_bits(*bits))).collect::<Vec<_>>();
        let largest = values(&ring).into_iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        let pairs = values(&native).into_iter().zip(values(&ring));
        assert!(pairs.map(|(a, b)| (a - b).abs()).all(|off| off <= error * largest), "{wire:?}");
        let own: Vec<u8> = native.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let mut all = Gathered::new();
        collective::all_gather(
            &mut transport,
            Tag::new(0, first_step + 19),
            &own,
            &mut all,
            Deadline::after(SOON),
        )
        .unwrap();
        assert!(all.iter().all(|(_, theirs)| theirs == own), "replicas differ with {wire:?}");
    }
    transport.close(Deadline::after(SOON)).unwrap();
}

/// One rank's gradient is refused, or its caller fails, where the library sums: all others are told in the
/// same step, and the next step is as any other.
fn outside() {
    let mut transport = start(&impatient());
    let me = transport.rank();
    let layout = Layout::packed([("a", vec![100, 30]), ("b", vec![77])]).unwrap();
    let mut mean = vec![0.0; layout.len()];
    for (spelling, votes) in [("none", false), ("maxnorm:bits=6", false), ("none", true)] {
        let route = Route::Native { wire: Wire::F32 };
        let mut exchange = Exchange::new(Spec::parse(spelling).unwrap(), layout.clone(), route).unwrap();
        exchange = if votes { exchange.voting() } else { exchange };
        for step in 0..6 {
            let mut grad = vec![1.0; layout.len()];
            if step == 2 && me == FAULTY {
                grad[150] = f32::NAN;
            }
            let key = StepKey { seed: 3, step, source: Source::Rank(me.0) };
            let by = Deadline::after(SOON);
            let started = exchange.start(&mut transport, key, Grad::F32(&grad), None, by);
            if step == 4 && me == FAULTY {
                exchange.fail("no batch is left");
            }
            let ended = started.and_then(|()| exchange.finish(&mut transport, &mut mean, None, by));
            match (step, ended) {
                (2, Err(ExchangeError::Encode(_))) => assert_eq!(me, FAULTY),
                (2, Err(ExchangeError::Void { rank, index })) => assert_eq!((rank, index), (FAULTY, 150)),
                (4, Err(ExchangeError::Failed { rank, text })) => {
                    assert_eq!((rank, &text[..]), (FAULTY, "no batch is left"));
                }
                (0 | 1 | 3 | 5, Ok(_)) => assert!(mean.iter().all(|value| (value - 1.0).abs() < 0.1)),
                (step, ended) => panic!("step {step} of {spelling} at {me}: {ended:?}"),
            }
        }
        transport.begin_epoch();
    }
    transport.close(Deadline::after(SOON)).unwrap();
}

/// The sender does nothing after it has sent, and the receiver nothing before it asks.
fn background() {
    let mut transport = start(&MpiOptions::default());
    let (tag, pause) = (Tag::new(0, 1), Duration::from_secs(2));
    let long = vec![5; 16 << 20];
    if transport.rank() == Rank(0) {
        transport.send(Rank(1), tag, &long, Deadline::after(SOON)).unwrap();
        thread::sleep(2 * pause);
    } else {
        thread::sleep(pause);
        let (mut payload, asked) = (Vec::new(), Instant::now());
        transport.recv(Rank(0), tag, &mut payload, Deadline::after(SOON)).unwrap();
        assert!(payload == long && asked.elapsed() < pause / 2, "came after {:?}", asked.elapsed());
    }
    transport.close(Deadline::after(SOON)).unwrap();
}

/// The receiver takes nothing until the sender was held back: what may be sent before is bounded, and nothing
/// of it is lost.
fn full() {
    let options = tight();
    let mut transport = start(&options);
    let (payload, last) = ([7; 100], b"last");
    let tag = |chunk| Tag::new(0, 1).chunk(chunk);
    if transport.rank() == Rank(0) {
        let sent = (0..1000)
            .take_while(|chunk| {
                let sent = transport.send(Rank(1), tag(*chunk), &payload, Deadline::after(HELD_BACK));
                let no_room = TransportError::NoRoom { to: Rank(1), tag: tag(*chunk) };
                sent.inspect_err(|error| assert_eq!(*error, no_room)).is_ok()
            })
            .count() as u32;
        // What both ends keep, and one message more.
        let most = 2 * (options.limits.bytes / payload.len()) as u32 + 1;
        assert!((2..=most).contains(&sent), "{sent} messages were taken in, {most} are allowed");
        leave(SENT, &sent.to_string());
        // Has to wait until there is room again.
        transport.send(Rank(1), tag(1000), last, Deadline::after(SOON)).unwrap();
    } else {
        let sent: u32 = wait_for(SENT).parse().unwrap();
        let mut taken = Vec::new();
        for chunk in 0..sent {
            transport.recv(Rank(0), tag(chunk), &mut taken, Deadline::after(SOON)).unwrap();
            assert_eq!(taken, payload);
        }
        transport.recv(Rank(0), tag(1000), &mut taken, Deadline::after(SOON)).unwrap();
        assert_eq!(taken, last);
    }
    transport.close(Deadline::after(SOON)).unwrap();
}

fn big() {
    let mut transport = start(&MpiOptions::default());
    let (tag, len) = (Tag::new(0, 1), (2 << 30) + 12_345);
    let byte = |at: usize| (at ^ at >> 13) as u8;
    if transport.rank() == Rank(0) {
        let payload: Vec<u8> = (0..len).map(byte).collect();
        transport.send(Rank(1), tag, &payload, Deadline::NEVER).unwrap();
    } else {
        let mut payload = Vec::new();
        transport.recv(Rank(0), tag, &mut payload, Deadline::NEVER).unwrap();
        assert!(payload.len() == len && payload.iter().enumerate().all(|(at, found)| *found == byte(at)));
    }
    transport.close(Deadline::NEVER).unwrap();
}

fn ring_step(transport: &mut MpiTransport, step: u64) {
    let mut data = [1.0; 1000];
    let sum = Reduce::SumF32(&mut data, Wire::F32);
    collective::all_reduce(transport, Tag::new(0, step), sum, &mut Buffers::new(), Deadline::NEVER).unwrap();
}

fn native_step(transport: &mut MpiTransport, step: u64) {
    let mut data = vec![1.0; 100_000];
    let sum = Reduce::SumF32(&mut data, Wire::F32);
    transport.native_all_reduce(Tag::new(0, step), sum, Deadline::NEVER).unwrap();
}

/// Steps until the launcher's signal ends them.
fn steps(count: u64, step: fn(&mut MpiTransport, u64)) {
    let mut transport = start(&impatient());
    for number in 0..count {
        step(&mut transport, number);
        thread::sleep(Duration::from_millis(2));
    }
    transport.close(Deadline::NEVER).unwrap();
}

/// Every rank goes on for ever, but for one.
fn fail(fault: &str) {
    let mut transport = start(&impatient());
    for step in 0.. {
        ring_step(&mut transport, step);
        if step == STEPS && transport.rank() == FAULTY {
            fs::write(Path::new(&folder()).join("fault"), fault).unwrap();
            match fault {
                "panic" => panic!("on purpose"),
                "error" => mpi::abort(ERROR_CODE, &"on purpose"),
                "dropped" => return drop(transport),
                "exit" => process::exit(3),
                "exit-0" => process::exit(0),
                "hang" => thread::sleep(Duration::from_secs(3600)),
                other => panic!("no such case: {other}"),
            }
        }
    }
}

/// One rank stops while the others say farewell.
fn stopped_at_the_end() {
    let mut transport = start(&impatient());
    (0..STEPS).for_each(|step| ring_step(&mut transport, step));
    if transport.rank() == FAULTY {
        fs::write(Path::new(&folder()).join("fault"), "").unwrap();
        let own = process::id().to_string();
        process::Command::new("kill").args(["-s", "STOP", &own]).status().unwrap();
    }
    transport.close(Deadline::NEVER).unwrap();
}
