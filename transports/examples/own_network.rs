//! An exchange over a network that this crate does not know: pipes between three threads. `drive` is the
//! whole driver; docs/own-network.md explains it.

use std::error::Error;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::exchange::{Drive, Exchange, ExchangeError, Machine, Next, Refusal, Route, Setting};
use gradwire_transports::{Membership, Rank, RankSet, Tag, TransportError};

type Arrival = (Rank, Tag, Vec<u8>);

/// One rank's end: a pipe to every other rank, and what comes out of the pipes from them.
struct Pipes {
    to: Vec<Option<PipeWriter>>,
    arrived: Receiver<Arrival>,
}

impl Pipes {
    /// The tag, the length and the bytes.
    fn send(&mut self, to: Rank, tag: Tag, bytes: &[u8]) -> std::io::Result<()> {
        let Some(pipe) = &mut self.to[to.0 as usize] else { return Ok(()) };
        let numbers = [u64::from(tag.epoch), tag.step, tag.unit.into(), tag.chunk.into(), bytes.len() as u64];
        numbers.iter().try_for_each(|number| pipe.write_all(&number.to_le_bytes()))?;
        pipe.write_all(bytes)
    }
}

/// Reads messages until the pipe is closed.
fn read(mut pipe: PipeReader, from: Rank, arrived: &Sender<Arrival>) -> std::io::Result<()> {
    loop {
        let mut head = [0; 40];
        pipe.read_exact(&mut head)?;
        let number =
            |at: usize| u64::from_le_bytes(head[8 * at..8 * at + 8].try_into().expect("eight bytes"));
        let [epoch, unit, chunk] = [0, 2, 3].map(|at| number(at) as u32);
        let mut bytes = vec![0; number(4) as usize];
        pipe.read_exact(&mut bytes)?;
        if arrived.send((from, Tag { epoch, step: number(1), unit, chunk }, bytes)).is_err() {
            return Ok(());
        }
    }
}

/// Drives a step to its end: sends what is queued, and sleeps while a message is missing.
fn drive<S: Drive>(mut step: S, pipes: &mut Pipes, origin: Instant) -> Result<S::Done, ExchangeError> {
    loop {
        let machine = step.machine();
        while let Some(next) = machine.outgoing() {
            let (id, to) = (next.id, next.to);
            match pipes.send(to, next.tag, next.bytes) {
                Ok(()) => machine.sent(id),
                Err(_) => machine.not_sent(id, TransportError::Disconnected { rank: to }),
            }
        }
        let now = origin.elapsed().as_nanos() as u64;
        step = match step.work(now)? {
            Next::Done(done) => return Ok(done),
            Next::Worked(step, _) => step,
            Next::Lent(_) => unreachable!("these pipes have no sums of their own"),
            Next::Waiting(mut step) => {
                wait(step.machine(), pipes, now);
                step
            }
        };
    }
}

/// Sleeps until a message comes, or until the deadline.
fn wait(machine: &mut dyn Machine, pipes: &mut Pipes, now: u64) {
    let left = Duration::from_nanos(machine.deadline().saturating_sub(now));
    match pipes.arrived.recv_timeout(left) {
        // A second copy, or a message of a step that is over, is not needed.
        Ok((from, tag, bytes)) => match machine.receive(from, tag, bytes) {
            Ok(()) | Err(Refusal::Duplicate { .. } | Refusal::Stale { .. }) => {}
            Err(refused) => panic!("{refused}"),
        },
        Err(RecvTimeoutError::Timeout) => {}
        Err(RecvTimeoutError::Disconnected) => machine.network_failed(TransportError::Closed),
    }
}

const WORLD: u32 = 3;

fn worker(rank: Rank, mut pipes: Pipes) -> Result<Vec<f32>, ExchangeError> {
    let spec = Spec::parse("topk:density=0.5").expect("a codec");
    let layout = Layout::packed([("w", vec![4])]).expect("a layout");
    let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    let mut exchange = Exchange::new(spec, layout, Route::AllGather)?;
    let (mut mean, origin) = (vec![0.0; 4], Instant::now());
    for step in 0..3 {
        let grad = [1.0, 8.0, 0.5, -6.0].map(|value| value * (rank.0 + 1) as f32);
        let key = StepKey { seed: 1, step, source: Source::Rank(rank.0) };
        let membership = Membership { epoch: 0, ranks: RankSet::contiguous(WORLD) };
        let setting = Setting { rank, membership, is_fail_stop: true };
        let now = origin.elapsed().as_nanos() as u64;
        let by = now + 60_000_000_000;
        let step = exchange.step(setting, key, Grad::F32(&grad), memory.as_mut(), now, by)?;
        let encoded = drive(step, &mut pipes, origin)?;
        drive(encoded.complete(&mut mean, by), &mut pipes, origin)?;
    }
    Ok(mean)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..WORLD).map(|_| channel()).unzip();
    let mut ends: Vec<Pipes> = receivers
        .into_iter()
        .map(|arrived| Pipes { to: (0..WORLD).map(|_| None).collect(), arrived })
        .collect();
    for (from, end) in ends.iter_mut().enumerate() {
        for to in (0..WORLD as usize).filter(|to| *to != from) {
            let (reader, writer) = pipe()?;
            let arrived = senders[to].clone();
            end.to[to] = Some(writer);
            thread::spawn(move || read(reader, Rank(from as u32), &arrived));
        }
    }
    drop(senders);
    let ranks = ends.into_iter().zip(0..).map(|(end, rank)| thread::spawn(move || worker(Rank(rank), end)));
    let ranks: Vec<_> = ranks.collect();
    let means: Result<Vec<_>, _> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
    let means = means?;
    println!("every rank has the mean {:?}", means[0]);
    assert!(means.iter().all(|mean| *mean == means[0]));
    Ok(())
}
