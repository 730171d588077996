//! CPU time of a step of the exchange at one rank, over TCP without a key: what a program pays that exchanges
//! gradients with this project's own transport. `tests/lab/torch_rank.py` compares the hook for PyTorch with
//! it.
//!
//! usage: `exchange_cpu RANK STEPS CODEC LAYOUT GRADIENT ADDRESS…`
//!
//! LAYOUT has a line for each tensor, its name and its shape; GRADIENT holds all elements as little-endian
//! f32. There is an ADDRESS for each rank, `host:port`. Prints seconds of a step, all threads together.

use std::error::Error;
use std::time::Duration;
use std::{env, fs};

use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::exchange::{Exchange, Route};
use gradwire_transports::tcp::{Bound, Meeting, Security, TcpOptions, TcpTransport, Terms};
use gradwire_transports::{Deadline, Rank, Transport};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Steps before the clock starts.
const WARM_UP_STEPS: u64 = 10;

fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [rank, steps, codec, layout, gradient, addresses @ ..] = arguments.as_slice() else {
        return Err("usage: exchange_cpu RANK STEPS CODEC LAYOUT GRADIENT ADDRESS…".into());
    };
    let (rank, steps) = (Rank(rank.parse()?), steps.parse::<u64>()?);
    let layout = layout_of(&fs::read_to_string(layout)?)?;
    let bytes = fs::read(gradient)?;
    let gradient: Vec<f32> =
        bytes.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
    let spec = Spec::parse(codec).map_err(|error| format!("{codec}: {error}"))?;
    let mut transport = connect(rank, addresses, Terms::new(&layout.as_ref(), &spec))?;
    let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    let mut exchange = Exchange::new(spec, layout, Route::AllGather)?;
    let mut mean = vec![0.0; gradient.len()];
    let mut before = 0.0;
    for step in 0..WARM_UP_STEPS + steps {
        if step == WARM_UP_STEPS {
            before = cpu_seconds()?;
        }
        let key = StepKey { seed: 0, step, source: Source::Rank(rank.0) };
        exchange.start(&mut transport, key, Grad::F32(&gradient), memory.as_mut(), deadline())?;
        exchange.finish(&mut transport, &mut mean, memory.as_mut(), deadline())?;
    }
    println!("{}", (cpu_seconds()? - before) / steps as f64);
    transport.close(deadline())?;
    Ok(())
}

/// Of lines like `name 10 64`.
fn layout_of(text: &str) -> Outcome<Layout> {
    let tensor = |line: &str| -> Outcome<(String, Vec<usize>)> {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        Ok((name, words.map(str::parse).collect::<Result<_, _>>()?))
    };
    Ok(Layout::packed(text.lines().map(tensor).collect::<Outcome<Vec<_>>>()?)?)
}

fn connect(rank: Rank, addresses: &[String], terms: Terms) -> Outcome<TcpTransport> {
    let own = addresses.get(rank.0 as usize).ok_or("there is no address for this rank")?;
    let bound = Bound::new(TcpOptions::new(rank, terms, Security::Insecure), own)?;
    Ok(bound.join(&Meeting::Hosts(addresses.to_vec()), deadline())?)
}

/// Of all threads of this process.
fn cpu_seconds() -> Outcome<f64> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        let times = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += times.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(nanoseconds as f64 * 1e-9)
}
