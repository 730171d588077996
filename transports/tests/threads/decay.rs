//! What is kept decays after every step that holds, and only then.

use std::thread;
use std::time::Duration;

use gradwire::plan::Plan;
use gradwire::rules::Rules;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Exchange, NewPart, Route, ServerOptions};
use gradwire_transports::local::LocalTransport;
use gradwire_transports::{Deadline, Transport, local};

const STEPS: u64 = 5;
/// A step in which one rank has no gradient that can be sent.
const BAD: u64 = 2;

fn layout() -> Layout {
    Layout::packed([("w", vec![8, 9]), ("v", vec![30])]).unwrap()
}

fn gradient(rank: u32, step: u64, len: usize) -> Vec<f32> {
    let stream = StepKey { seed: 99, step, source: Source::Rank(rank) }.stream(0);
    let mut values: Vec<f32> = (0..len as u64).map(|i| stream.u64_at(i) as i32 as f32 / 1e9).collect();
    if (rank, step) == (1, BAD) {
        values[3] = f32::NAN;
    }
    values
}

/// What one rank has after each step: whether the step held, its mean and the residual, as bits.
type Seen = Vec<(bool, Vec<u32>, Vec<u32>)>;

/// `by_hand` multiplies these shares of the residual after each step that holds.
fn run(mut transport: LocalTransport, rules: &str, route: Route, by_hand: &[(&str, f32)]) -> Seen {
    let (rules, layout, rank) = (Rules::parse(rules).unwrap(), layout(), transport.rank().0);
    let mut memory = Memory::for_plan(&Plan::of_rules(&rules, &layout.as_ref()), &layout.as_ref()).unwrap();
    let mut exchange = Exchange::new(&rules, layout.clone(), route).unwrap();
    let deadline = Deadline::after(Duration::from_secs(20));
    let mut step = |step| {
        let (grad, mut mean) = (gradient(rank, step, layout.len()), vec![0.0; layout.len()]);
        let key = StepKey { seed: 7, step, source: Source::Rank(rank) };
        let begun =
            exchange.start(&mut transport, key, Grad::F32(&grad), Some(&mut memory), deadline).is_ok();
        let holds = begun && exchange.finish(&mut transport, &mut mean, Some(&mut memory), deadline).is_ok();
        for (name, decay) in by_hand.iter().filter(|_| holds) {
            let tensor = layout.tensors().iter().find(|tensor| tensor.name == *name).unwrap();
            let end = tensor.offset + tensor.as_ref().checked_len().unwrap();
            memory.slice(tensor.offset..end).rescale(*decay);
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        (holds, bits(&mean), bits(memory.residual()))
    };
    (0..STEPS).map(&mut step).collect()
}

fn on_two_ranks(rules: &str, route: &Route, by_hand: &[(&str, f32)]) -> Vec<Seen> {
    thread::scope(|scope| {
        let begin = |end| scope.spawn(|| run(end, rules, route.clone(), by_hand));
        let threads: Vec<_> = local::world(2).into_iter().map(begin).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn an_exchange_multiplies_what_is_kept_after_each_step_that_holds() {
    let server = || Route::Server(ServerOptions::default());
    let sum = || Route::AllReduce { wire: Wire::F32 };
    let both = [("w", 0.5), ("v", 0.5)];
    for (decaying, plain, route, by_hand) in [
        ("topk:density=0.1,decay=0.5", "topk:density=0.1", Route::AllGather, &both[..]),
        ("topk:density=0.1,decay=0.5", "topk:density=0.1", server(), &both),
        ("efsign:decay=0.5", "efsign", Route::AllGather, &both),
        ("randomk:density=0.1,decay=0.5", "randomk:density=0.1", sum(), &both),
        (
            "w=topk:density=0.1,decay=0.25;redsync:density=0.1",
            "w=topk:density=0.1;redsync:density=0.1",
            Route::AllGather,
            &[("w", 0.25)],
        ),
    ] {
        let (seen, expected) = (on_two_ranks(decaying, &route, &[]), on_two_ranks(plain, &route, by_hand));
        assert!(seen[0].iter().filter(|(holds, ..)| *holds).count() >= 3, "{decaying}");
        assert!(!seen[1][BAD as usize].0, "{decaying}: a gradient without a number was sent");
        assert!(seen == expected, "{decaying} by {route:?}");
        assert!(seen != on_two_ranks(plain, &route, &[]), "{decaying} decays nothing");
    }
}

/// Of one rank alone: the residual after steps that have these units each.
fn kept_after(codec: &str, route: &Route, steps: &[&[u32]]) -> Vec<f32> {
    let (spec, layout) = (Spec::parse(codec).unwrap(), layout());
    let mut end = local::world(1).remove(0);
    let mut memory = Memory::for_spec(&spec, &layout.as_ref());
    let mut exchange = Exchange::new(spec, layout.clone(), route.clone()).unwrap();
    let (mut mean, deadline) = (vec![0.0; layout.len()], Deadline::after(Duration::from_secs(20)));
    for (step, units) in steps.iter().enumerate() {
        let grad = gradient(0, step as u64, layout.len());
        let key = StepKey { seed: 7, step: step as u64, source: Source::Rank(0) };
        exchange.start_in_parts(&mut end, key, memory.as_ref(), deadline).unwrap();
        for unit in *units {
            let part = NewPart { units: &[*unit], ..NewPart::default() };
            exchange.add_part(&mut end, &part, Grad::F32(&grad), memory.as_mut()).unwrap();
        }
        exchange.finish(&mut end, &mut mean, memory.as_mut(), deadline).unwrap();
    }
    memory.unwrap().residual().to_vec()
}

#[test]
fn what_is_kept_of_units_that_a_step_does_not_have_stays() {
    for (codec, route) in [
        ("topk:density=0.1,unit=tensor", Route::AllGather),
        ("efsign:unit=tensor", Route::AllGather),
        ("topk:density=0.1,unit=tensor", Route::SparseAllReduce),
        ("randomk:density=0.1,unit=tensor", Route::Owners { wire: Wire::F32 }),
    ] {
        let after = |decay: &str, steps: &[&[u32]]| kept_after(&format!("{codec}{decay}"), &route, steps);
        let (plain, once) = (after("", &[&[1, 0]]), after(",decay=0.5", &[&[1, 0]]));
        assert!(plain.iter().zip(&once).all(|(plain, once)| *once == 0.5 * plain), "{codec}");
        for (own, (there, elsewhere)) in [(0, (0..72, 72..102)), (1, (72..102, 0..72))] {
            let twice = after(",decay=0.5", &[&[1, 0], &[own]]);
            assert_eq!(twice[elsewhere.clone()], once[elsewhere], "{codec}: unit {own}");
            assert_ne!(twice[there.clone()], once[there], "{codec}: unit {own}");
        }
    }
}
