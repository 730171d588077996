//! A server with a codec and a state of its own: what it kept and the mean are what it sent and keeps.

use std::thread;
use std::time::Duration;

use gradwire::codecs::{IndexChoice, TopK, ValueChoice};
use gradwire::experiments::ParseBody;
use gradwire::format::CodecId;
use gradwire::state::StateLen;
use gradwire::{
    Codec, DecodeError, Density, EncodeError, Gather, Grad, Layout, Memory, Scratch, ScratchLen, Source,
    Spec, StepInput, StepKey, Unit,
};
use gradwire_transports::exchange::{Exchange, ExchangeError, Route, ServerOptions};
use gradwire_transports::{Deadline, Rank, Transport, local};

/// The server's momentum: velocity = velocity / 2 + mean, of which the largest coordinates are sent.
#[derive(Clone, Copy, Debug)]
struct Heavy {
    largest: TopK,
    /// The step in which it refuses to encode.
    refuses: u64,
    /// The step in which it breaks its frame.
    breaks: u64,
}

fn heavy() -> Heavy {
    let largest = TopK::new(Density::new(0.1).unwrap(), IndexChoice::Auto, ValueChoice::F32);
    Heavy { largest, refuses: u64::MAX, breaks: u64::MAX }
}

impl Gather for Heavy {
    fn id(&self) -> CodecId {
        self.largest.id()
    }

    fn parser(&self) -> Option<&dyn ParseBody> {
        None
    }

    fn max_frame_bytes(&self, units: &[Unit]) -> Option<usize> {
        self.largest.max_frame_bytes(units)
    }

    fn scratch_len(&self, units: &[Unit]) -> ScratchLen {
        self.largest.scratch_len(units)
    }

    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let (Grad::F32(mean), Some(memory)) = (step.grad, memory) else {
            return Err(EncodeError::MemoryIncomplete);
        };
        if step.key.step == self.refuses {
            return Err(EncodeError::Experiment { unit: 0, index: 0, why: "not in this step" });
        }
        let velocity = memory.array("velocity").ok_or(EncodeError::MemoryIncomplete)?;
        let velocity: Vec<f32> =
            velocity.iter().zip(mean).map(|(velocity, mean)| velocity / 2.0 + mean).collect();
        let step = StepInput { grad: Grad::F32(&velocity), ..*step };
        let bytes = self.largest.encode(&step, Some(memory), scratch, out)?;
        memory.array_mut("velocity").unwrap().copy_from_slice(&velocity);
        if step.key.step == self.breaks {
            out[bytes - 1] ^= 1;
        }
        Ok(bytes)
    }
}

fn layout() -> Layout {
    Layout::packed([("w", vec![20, 33]), ("b", vec![33])]).unwrap()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 9, step, source: Source::Rank(rank) }.stream(0);
    (0..layout().len() as u64).map(|at| (stream.u64_at(at) as u32 % 4001) as f32 / 256.0 - 7.8).collect()
}

/// What the server keeps, as before the first step.
fn state() -> Memory<'static> {
    let arrays = StateLen::default().with_array_by_coordinate("velocity", layout().len());
    Memory::new(vec![0.0; layout().len()]).with_arrays(arrays.arrays().to_vec(), vec![0.0; layout().len()])
}

/// Rank 1 serves.
fn exchange(rank: u32, codec: Heavy) -> Exchange {
    let route = Route::Server(ServerOptions { server: Rank(1), ..ServerOptions::default() });
    let spec = Spec::parse("topk:density=0.2,unit=tensor").unwrap();
    let memory = (rank == 1).then(state);
    Exchange::new(spec, layout(), route).unwrap().with_downlink(codec, memory).unwrap()
}

struct Worker {
    transport: Box<dyn Transport>,
    exchange: Exchange,
    residual: Vec<f32>,
}

impl Worker {
    fn rank(&self) -> u32 {
        self.transport.rank().0
    }

    fn step(&mut self, step: u64) -> Result<Vec<f32>, ExchangeError> {
        let (rank, grad) = (self.rank(), gradient(self.rank(), step));
        let key = StepKey { seed: 7, step, source: Source::Rank(rank) };
        let (deadline, mut mean) = (Deadline::after(Duration::from_secs(60)), vec![f32::NAN; grad.len()]);
        let (transport, mut memory) = (self.transport.as_mut(), Memory::new(&mut self.residual));
        self.exchange.start(transport, key, Grad::F32(&grad), Some(&mut memory), deadline)?;
        self.exchange.finish(transport, &mut mean, Some(&mut memory), deadline)?;
        Ok(mean)
    }

    /// All that the server keeps for its means; nothing at the others.
    fn kept(&mut self) -> Option<Vec<u8>> {
        let memory = self.exchange.downlink_memory()?;
        let mut bytes = vec![0; memory.saved_bytes().unwrap()];
        memory.save(&layout().as_ref(), &mut bytes).unwrap();
        Some(bytes)
    }
}

fn on_ranks<T: Send>(world: u32, codec: Heavy, run: impl Fn(&mut Worker) -> T + Sync) -> Vec<T> {
    let workers = local::world(world).into_iter().map(|transport| {
        let exchange = exchange(transport.rank().0, codec);
        Worker { transport: Box::new(transport), exchange, residual: vec![0.0; layout().len()] }
    });
    let workers: Vec<Worker> = workers.collect();
    thread::scope(|scope| {
        let run = &run;
        // The worker as well: nobody leaves while another still sends to it.
        let start = |mut worker| scope.spawn(move || (run(&mut worker), worker));
        let threads: Vec<_> = workers.into_iter().map(start).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        ended.into_iter().map(|(result, _)| result).collect()
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn added(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

#[test]
fn what_the_server_keeps_and_sends_is_what_it_had_to_send() {
    for world in [2, 3, 4] {
        let ranks = on_ranks(world, heavy(), |worker| {
            let step = |step| {
                let p = added(&worker.residual, &gradient(worker.rank(), step));
                let mean = worker.step(step).unwrap();
                let up: Vec<f32> = p.iter().zip(&worker.residual).map(|(p, kept)| p - kept).collect();
                let memory = worker.exchange.downlink_memory();
                assert_eq!(memory.is_some(), worker.transport.rank() == Rank(1));
                let kept = memory
                    .map(|memory| (memory.residual().to_vec(), memory.array("velocity").unwrap().to_vec()));
                (mean, up, kept)
            };
            (0..8).map(step).collect::<Vec<_>>()
        });
        let (mut residual, mut velocity) = (vec![0.0; layout().len()], vec![0.0; layout().len()]);
        for step in 0..8 {
            let sums = ranks.iter().fold(vec![0.0; layout().len()], |sum, rank| added(&sum, &rank[step].1));
            velocity
                .iter_mut()
                .zip(&sums)
                .for_each(|(velocity, sum)| *velocity = *velocity / 2.0 + sum / world as f32);
            let to_send = added(&residual, &velocity);
            let sent = &ranks[1][step].0;
            assert!(ranks.iter().all(|rank| bits(&rank[step].0) == bits(sent)));
            // A tenth of each of two tensors.
            assert_eq!(sent.iter().filter(|value| **value != 0.0).count(), 66 + 3);
            let (kept, kept_velocity) = ranks[1][step].2.as_ref().unwrap();
            assert_eq!(bits(&added(sent, kept)), bits(&to_send), "{world} ranks, step {step}");
            assert_eq!(bits(kept_velocity), bits(&velocity));
            residual.clone_from(kept);
        }
    }
}

#[test]
fn a_server_goes_on_bit_for_bit_from_what_it_saved() {
    let run = |cut: bool| {
        on_ranks(3, heavy(), |worker| {
            let mut means: Vec<_> = (0..3).map(|step| bits(&worker.step(step).unwrap())).collect();
            if cut {
                let saved = worker.kept();
                worker.exchange = exchange(worker.rank(), heavy());
                if let Some(saved) = saved {
                    worker.exchange.downlink_memory().unwrap().load(&layout().as_ref(), &saved).unwrap();
                }
            }
            means.extend((3..6).map(|step| bits(&worker.step(step).unwrap())));
            (means, worker.kept(), bits(&worker.residual))
        })
    };
    assert!(run(true) == run(false));
}

/// The mean cannot be encoded, or what was encoded cannot be read: nothing of the step is anywhere.
#[test]
fn a_step_that_fails_on_its_way_back_leaves_the_server_as_it_was() {
    let none = u64::MAX;
    for (refuses, breaks) in [(1, none), (none, 1)] {
        let ends = on_ranks(3, Heavy { refuses, breaks, ..heavy() }, |worker| {
            worker.step(0).unwrap();
            let (kept, residual, rank) = (worker.kept(), worker.residual.clone(), worker.rank());
            let error = worker.step(1).unwrap_err();
            let is_refused = refuses == 1;
            match &error {
                ExchangeError::Downlink(error) => {
                    let why = "not in this step";
                    assert_eq!(*error, EncodeError::Experiment { unit: 0, index: 0, why });
                    assert!(is_refused && rank == 1);
                }
                ExchangeError::NoQuorum { arrived: 0, void: None, .. } => assert!(is_refused && rank != 1),
                ExchangeError::Frame { rank: Rank(1), error: DecodeError::ChecksumMismatch { .. } } => {
                    assert!(!is_refused);
                }
                other => panic!("{other}"),
            }
            assert!(!error.is_void(), "{error}");
            assert_eq!(worker.kept(), kept);
            assert_eq!(bits(&worker.residual), bits(&added(&residual, &gradient(rank, 1))));
            bits(&worker.step(2).unwrap())
        });
        assert!(ends.iter().all(|mean| *mean == ends[0]));
    }
}

#[test]
fn a_way_back_that_does_not_exist_is_refused_by_name() {
    let spec = Spec::parse("topk:density=0.2").unwrap();
    let refused =
        Exchange::new(spec, layout(), Route::AllGather).unwrap().with_downlink(heavy(), None).unwrap_err();
    assert!(matches!(refused, ExchangeError::NoDownlink { codec } if codec.contains("Heavy")), "{refused}");
    let with = |downlink: &str| {
        let downlink = Spec::parse(downlink).unwrap();
        let route = Route::Server(ServerOptions { downlink, ..ServerOptions::default() });
        Exchange::new(Spec::new(Codec::NONE), layout(), route).map(|_| ())
    };
    assert_eq!(with("powersgd:rank=2"), Err(ExchangeError::NoFrames { codec: "powersgd" }));
    assert_eq!(with("dpsgd"), Err(ExchangeError::Gossip { codec: "dpsgd" }));
    assert_eq!(with("efsign"), Ok(()));
}
