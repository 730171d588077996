//! A codec of another crate whose payloads are votes, and which keeps a momentum of its own and no residual:
//! the sign of what most workers' momenta point to.

use std::sync::Once;
use std::thread;
use std::time::Duration;

use gradwire::experiments::{Keys, OwnCodec};
use gradwire::registry::Law;
use gradwire::rounds::{
    LinearScratch, LinearScratchLen, MemoryView, Payload, Reduction, Round, UnitStep, bytes_of,
};
use gradwire::state::{MemoryChoice, StateLen};
use gradwire::{
    EncodeError, Grad, Layout, LayoutRef, Linear, Memory, Source, Spec, SpecError, StepKey, Unit,
};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, ExchangeError, Route};
use gradwire_transports::local::LocalTransport;
use gradwire_transports::{Deadline, Transport, local};

/// Signum with a majority vote (Bernstein et al., arXiv 1810.05291): each worker votes by the sign of its
/// momentum m ← beta·m + (1 − beta)·g, and a coordinate goes where most votes go, by 1. A tie is 0.
struct Signum {
    beta: f32,
}

impl Signum {
    fn read<'k>(keys: &Keys<'k>) -> Result<Self, SpecError<'k>> {
        let beta = keys.number("beta", "at least 0, below 1", |beta| (0.0..1.0).contains(beta))?;
        Ok(Self { beta: beta.ok_or(SpecError::MissingKey("beta"))? })
    }
}

const MOMENTUM: &str = "momentum";

impl Linear for Signum {
    /// The new momentum as floats, and a byte for each vote.
    fn round_scratch_len(&self, _: &LayoutRef<'_>, unit: &Unit, _: u32) -> LinearScratchLen {
        LinearScratchLen { words: unit.len.div_ceil(4), floats: unit.len, ints: 0 }
    }

    fn held(&self, len: usize) -> usize {
        len
    }

    fn most_contributors(&self) -> u32 {
        u8::MAX.into()
    }

    fn kept_len(&self, layout: &LayoutRef<'_>, _units: usize) -> StateLen {
        StateLen::default().with_array_by_coordinate(MOMENTUM, layout.len())
    }

    fn begin(
        &self,
        step: &UnitStep<'_>,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        let kept = memory.and_then(|memory| memory.array(MOMENTUM));
        let kept = &kept.ok_or(EncodeError::MemoryIncomplete)?[step.unit.range()];
        let Grad::F32(grad) = grad else { panic!("a gradient of f32") };
        if let Some(at) = grad.iter().position(|value| !value.is_finite()) {
            return Err(EncodeError::NonFiniteInput { index: step.unit.start + at });
        }
        let momenta = &mut scratch.floats[..step.unit.len];
        let moved = kept.iter().zip(grad).map(|(kept, grad)| self.beta * kept + (1.0 - self.beta) * grad);
        momenta.iter_mut().zip(moved).for_each(|(momentum, moved)| *momentum = moved);
        let votes = bytes_of(scratch.words);
        votes.iter_mut().zip(&*momenta).for_each(|(vote, momentum)| *vote = (*momentum > 0.0).into());
        Ok(Round { index: 0, reduction: Reduction::SumU8, unit: *step.unit, payload_len: step.unit.len })
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        Payload::Bytes(&mut bytes_of(scratch.words)[..round.payload_len])
    }

    fn advance(
        &self,
        step: &UnitStep<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        for (mean, votes) in mean.iter_mut().zip(&*bytes_of(scratch.words)) {
            *mean = (2 * u32::from(*votes)).cmp(&step.workers) as i8 as f32;
        }
        let kept = memory.and_then(|memory| memory.array_mut(MOMENTUM)).expect("it was there before");
        kept[round.unit.range()].copy_from_slice(&scratch.floats[..round.unit.len]);
        None
    }

    /// There is no residual, and the exchange restores the momentum.
    fn abandon(&self, _: Round, _: &mut LinearScratch<'_>, _: Option<&mut Memory<'_>>) {}
}

fn spec(spelling: &str) -> Spec {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let codec = OwnCodec::linear("signum", "the sign of most momenta", Law::State, Signum::read);
        codec.keys("beta=0.9").examples(&["x:signum", "x:signum:beta=0.5,unit=tensor"]).register().unwrap();
    });
    Spec::parse(spelling).unwrap_or_else(|error| panic!("{error}"))
}

fn layout() -> Layout {
    Layout::packed([("w", vec![9, 7]), ("b", vec![5])]).unwrap()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let stream = StepKey { seed: 5, step, source: Source::Rank(rank) }.stream(0);
    (0..layout().len() as u64).map(|at| stream.u64_at(at) as i32 as f32 / 1e9).collect()
}

const STEPS: u64 = 6;
/// In this step one rank has no gradient.
const BAD: u64 = 3;

/// Means and momenta after each step, as one rank sees them.
fn run(mut transport: LocalTransport, spelling: &str, route: Route) -> Vec<(Vec<f32>, Vec<f32>)> {
    let (spec, layout, rank) = (spec(spelling), layout(), transport.rank().0);
    let mut memory = Memory::for_spec(&spec, &layout.as_ref()).unwrap();
    let mut exchange = Exchange::new(spec, layout.clone(), route).unwrap();
    let by = Deadline::after(Duration::from_secs(20));
    let mut step = |step: u64| {
        let (mut grad, mut mean) = (gradient(rank, step), vec![0.0; layout.len()]);
        if (rank, step) == (1, BAD) {
            // In the last unit, when others have begun.
            grad[layout.len() - 1] = f32::NAN;
        }
        let key = StepKey { seed: 7, step, source: Source::Rank(rank) };
        let done = exchange.start(&mut transport, key, Grad::F32(&grad), Some(&mut memory), by);
        let done = done.and_then(|()| exchange.finish(&mut transport, &mut mean, Some(&mut memory), by));
        assert_eq!(done.is_err(), step == BAD, "rank {rank}, step {step}: {done:?}");
        assert!(memory.residual().iter().all(|kept| *kept == 0.0));
        (mean, memory.array(MOMENTUM).unwrap().to_vec())
    };
    (0..STEPS).map(&mut step).collect()
}

#[test]
fn a_coordinate_goes_where_most_momenta_point_and_a_failed_step_leaves_them_as_they_were() {
    let wire = Wire::F32;
    for (spelling, beta) in [("x:signum", 0.9), ("x:signum:beta=0.5,unit=tensor", 0.5f32)] {
        for route in [Route::AllReduce { wire }, Route::Tree { wire }, Route::Owners { wire }] {
            let ends: Vec<_> = local::world(3).into_iter().collect();
            let spawn = |end| {
                let route = route.clone();
                thread::spawn(move || run(end, spelling, route))
            };
            let threads: Vec<_> = ends.into_iter().map(spawn).collect();
            let seen: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let mut momenta = vec![vec![0.0; layout().len()]; 3];
            for step in 0..STEPS {
                if step != BAD {
                    for (rank, momenta) in (0..).zip(&mut momenta) {
                        let grad = gradient(rank, step);
                        momenta.iter_mut().zip(grad).for_each(|(m, g)| *m = beta * *m + (1.0 - beta) * g);
                    }
                }
                for (rank, seen) in seen.iter().enumerate() {
                    let (mean, kept) = &seen[step as usize];
                    assert_eq!(*kept, momenta[rank], "{spelling}, {route:?}: rank {rank} after step {step}");
                    if step == BAD {
                        continue;
                    }
                    for (at, mean) in mean.iter().enumerate() {
                        let votes = momenta.iter().filter(|momenta| momenta[at] > 0.0).count();
                        assert_eq!(*mean, if votes >= 2 { 1.0 } else { -1.0 }, "{spelling}: {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn its_memory_is_what_it_says_is_saved_and_needs_no_other() {
    let (spec, layout) = (spec("x:signum"), layout());
    assert_eq!(spec.memory, MemoryChoice::State);
    assert_eq!(spec.to_string(), "x:signum");
    let layout = layout.as_ref();
    let mut memory = Memory::for_spec(&spec, &layout).unwrap();
    memory.array_mut(MOMENTUM).unwrap().fill(0.25);
    let mut saved = vec![0; memory.saved_bytes().unwrap()];
    memory.save(&layout, &mut saved).unwrap();
    let mut resumed = Memory::for_spec(&spec, &layout).unwrap();
    resumed.load(&layout, &saved).unwrap();
    assert_eq!(resumed.array(MOMENTUM), memory.array(MOMENTUM));
    for (spelling, told) in [
        ("x:signum:memory=none", "memory: the codec keeps a state of its own there"),
        ("x:signum:memory=ef", "memory: the codec keeps a state of its own there"),
        ("x:signum:decay=0.5", "decay: nothing that is not sent is kept"),
        ("topk:memory=state", "memory=state: this codec keeps no state of its own"),
    ] {
        let error = Spec::parse(spelling).unwrap_err().to_string();
        assert!(error.starts_with(told), "{spelling}: {error}");
    }
}

#[test]
fn without_its_memory_it_is_refused() {
    let mut end = local::world(1).remove(0);
    let route = Route::AllReduce { wire: Wire::F32 };
    let mut exchange = Exchange::new(spec("x:signum"), layout(), route).unwrap();
    let key = StepKey { seed: 7, step: 0, source: Source::Rank(0) };
    let grad = gradient(0, 0);
    let refused = exchange.start(&mut end, key, Grad::F32(&grad), None, Deadline::NEVER);
    assert!(matches!(refused, Err(ExchangeError::Encode(EncodeError::MemoryIncomplete))), "{refused:?}");
}
