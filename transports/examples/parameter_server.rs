//! A parameter server and three workers over ZeroMQ, each with a key of its own: who has none on the list is
//! not let in.
//!
//! Here all are threads of one process, on the loopback interface. On machines of their own each reads its
//! key and the list of peers from files ([`KeyPair::read`], [`Roster::read`]), and the rest is the same.

use std::error::Error;
use std::thread;
use std::time::Duration;

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::exchange::{Exchange, Route, ServerOptions};
use gradwire_transports::zmq::{Bound, Entry, KeyPair, Roster, Security, Terms, Topology, ZmqOptions};
use gradwire_transports::{Deadline, Rank, Transport};

const WORLD: u32 = 4;
const LEN: usize = 1000;
const STEPS: u64 = 300;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Listens at the server; a worker connects when it joins.
fn bind(rank: u32, keys: &KeyPair, roster: &Roster, spec: &Spec, layout: &Layout) -> Outcome<Bound> {
    let (topology, terms) = (Topology::Star { server: Rank(0) }, Terms::new(&layout.as_ref(), spec));
    let security = Security::Curve(keys.clone());
    Ok(Bound::new(ZmqOptions::new(Rank(rank), roster.clone(), topology, security, terms))?)
}

/// The server contributes a gradient of its own, and does what the workers do.
fn train(bound: Bound, spec: Spec, layout: Layout) -> Outcome<Vec<f32>> {
    let mut transport = bound.join(soon())?;
    let rank = transport.rank().0;
    let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    let mut exchange = Exchange::new(spec, layout, Route::Server(ServerOptions::default()))?;
    let (mut params, mut mean) = (vec![0.0; LEN], vec![0.0; LEN]);
    for step in 0..STEPS {
        let grad: Vec<f32> = params.iter().map(|param| param - rank as f32).collect();
        let key = StepKey { seed: 42, step, source: Source::Rank(rank) };
        exchange.start(&mut transport, key, Grad::F32(&grad), memory.as_mut(), soon())?;
        exchange.finish(&mut transport, &mut mean, memory.as_mut(), soon())?;
        let rate = 0.1 * 0.985_f32.powi(step as i32);
        params.iter_mut().zip(&mean).for_each(|(param, mean)| *param -= rate * mean);
    }
    transport.close(soon())?;
    Ok(params)
}

fn main() -> Outcome<()> {
    let (spec, layout) =
        (Spec::parse("topk:density=0.2,values=f16")?, Layout::packed([("weights", vec![LEN])])?);
    let keys = (0..WORLD).map(|_| KeyPair::generate()).collect::<Result<Vec<_>, _>>()?;
    let roster = (0..WORLD).zip(&keys).fold(Roster::new(), |roster, (rank, pair)| {
        let endpoint = (rank == 0).then(|| "tcp://127.0.0.1:*".to_owned());
        roster.with(Rank(rank), Entry { key: Some(pair.public()), endpoint })
    });
    let mut bound = (0..WORLD)
        .zip(&keys)
        .map(|(rank, pair)| bind(rank, pair, &roster, &spec, &layout))
        .collect::<Outcome<Vec<_>>>()?;
    // The system has chosen the port.
    let endpoint = bound[0].endpoint().ok_or("the server listens")?.to_owned();
    bound[1..].iter_mut().for_each(|worker| worker.locate(Rank(0), &endpoint));
    let start = |bound| {
        thread::spawn({
            let layout = layout.clone();
            move || train(bound, spec, layout)
        })
    };
    let ranks: Vec<_> = bound.into_iter().map(start).collect();
    let results =
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect::<Outcome<Vec<_>>>()?;
    assert!(results.iter().all(|params| params == &results[0]), "all ranks have the same bits");
    let error = results[0].iter().map(|param| (param - 1.5).abs()).fold(0.0, f32::max);
    println!("{STEPS} steps of {WORLD} ranks; furthest from the best parameters: {error:.4}");
    assert!(error < 0.05);
    Ok(())
}
