//! Packets over connections that break: late ones are not sent again, and what they held goes back to its
//! sender.

use std::thread;
use std::time::Duration;

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::exchange::{Exchange, Report, Route, ServerOptions};
use gradwire_transports::zmq::{Bound, ZmqTransport};
use gradwire_transports::{Deadline, Rank, Tag, Transport, TransportError};

use crate::proxy::Proxy;
use crate::support::{World, long};

const COUNT: u32 = 20;

/// A server and a worker behind a proxy.
fn pair() -> (ZmqTransport, ZmqTransport, Proxy) {
    let world = World::star(2);
    let [server, mut worker] = [0, 1].map(|at| Bound::new(world.options(at)).unwrap());
    let proxy = Proxy::to(server.endpoint().unwrap());
    worker.locate(Rank(0), &proxy.endpoint());
    let worker = thread::spawn(move || worker.join(long()).unwrap());
    (server.join(long()).unwrap(), worker.join().unwrap(), proxy)
}

/// Sends packets into a connection that is held and then cut; returns how many the server gets in the end.
fn through_a_cut(until: Deadline, pause: Duration) -> usize {
    let (mut server, mut worker, proxy) = pair();
    let tag = Tag::new(0, 1);
    proxy.hold(true);
    for chunk in 0..COUNT {
        worker.send_packet(Rank(0), tag.unit(1).chunk(chunk), &[chunk as u8; 900], until).unwrap();
    }
    worker.send(Rank(0), tag, b"the last word", long()).unwrap();
    thread::sleep(pause);
    proxy.cut();
    proxy.hold(false);
    let mut got = Vec::new();
    server.recv(Rank(1), tag, &mut got, long()).unwrap();
    assert_eq!(got, b"the last word");
    let arrived =
        |chunk: &u32| match server.recv(Rank(1), tag.unit(1).chunk(*chunk), &mut got, Deadline::now()) {
            Ok(()) => got == [*chunk as u8; 900],
            Err(TransportError::Timeout { .. }) => false,
            Err(other) => panic!("{other}"),
        };
    (0..COUNT).filter(arrived).count()
}

#[test]
fn packets_whose_time_is_over_are_not_sent_again_and_others_are() {
    let pause = Duration::from_millis(50);
    assert_eq!(through_a_cut(Deadline::after(pause), pause), 0);
    assert_eq!(through_a_cut(Deadline::NEVER, pause), COUNT as usize);
}

const LEN: usize = 3000;

/// Small whole numbers, so that sums are exact.
fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 5, step, source: Source::Rank(rank) }.stream(0);
    (0..LEN as u64).map(|at| (stream.u64_at(at) % 17) as f32 - 8.0).collect()
}

/// One rank's steps.
struct Replica {
    transport: ZmqTransport,
    exchange: Exchange,
    residual: Vec<f32>,
}

impl Replica {
    fn new(transport: ZmqTransport, patience: Duration) -> Self {
        let spec = Spec::parse("topk:density=0.3,max_packet_bytes=200").unwrap();
        let options = ServerOptions { quorum: 1, patience: Some(patience), ..ServerOptions::default() };
        let layout = Layout::packed([("w", vec![LEN])]).unwrap();
        let exchange = Exchange::new(spec, layout, Route::Server(options)).unwrap();
        Self { transport, exchange, residual: vec![0.0; LEN] }
    }

    /// Returns the mean, what of this rank went into it, and the report.
    fn step(&mut self, step: u64) -> (Vec<f32>, Vec<f32>, Report) {
        let rank = self.transport.rank().0;
        let grad = gradient(rank, step);
        let before: Vec<f32> = self.residual.iter().zip(&grad).map(|(a, b)| a + b).collect();
        let (mut memory, mut mean) = (Memory::new(&mut self.residual[..]), vec![0.0; LEN]);
        let key = StepKey { seed: 1, step, source: Source::Rank(rank) };
        let (exchange, end) = (&mut self.exchange, &mut self.transport);
        exchange.start(end, key, Grad::F32(&grad), Some(&mut memory), long()).unwrap();
        let report = exchange.finish(end, &mut mean, Some(&mut memory), long()).unwrap();
        let gone = before.iter().zip(&self.residual).map(|(before, after)| before - after).collect();
        (mean, gone, report)
    }
}

#[test]
fn over_a_link_that_is_held_and_cut_every_packet_is_in_the_mean_or_given_back() {
    const STEPS: u64 = 12;
    let (server, worker, proxy) = pair();
    let patience = Duration::from_millis(200);
    let [mut server, mut worker] = [server, worker].map(|end| Replica::new(end, patience));
    let working = thread::spawn(move || (0..STEPS).map(|step| worker.step(step)).collect::<Vec<_>>());
    let served: Vec<_> = (0..STEPS)
        .map(|step| {
            // A third of the steps closes without the worker, or with what of it came before.
            proxy.hold(step % 3 == 1);
            let done = server.step(step);
            if step % 3 == 1 {
                proxy.cut();
            }
            proxy.hold(false);
            done
        })
        .collect();
    let worked = working.join().unwrap();
    let mut lost = 0;
    for (step, (ours, theirs)) in served.iter().zip(&worked).enumerate() {
        assert_eq!(ours.0, theirs.0, "replicas differ after step {step}");
        for at in 0..LEN {
            let (mean, ours, theirs) = (ours.0[at], ours.1[at], theirs.1[at]);
            let fits = mean == ours + theirs || mean == (ours + theirs) / 2.0;
            assert!(fits, "step {step}, coordinate {at}: {ours} and {theirs} went in, the mean is {mean}");
        }
        lost += theirs.2.packets.lost;
    }
    assert!(lost > 0 && lost < worked.iter().map(|done| done.2.packets.sent).sum(), "{lost} packets lost");
}
