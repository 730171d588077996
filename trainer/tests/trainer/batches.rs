//! Batches: disjoint, complete, the same for every world, resumable.

use std::collections::BTreeSet;

use gradwire_trainer::data::{Batch, Batches, Dataset, Level, Part, Plan, Text, optdigits};

fn corpus(tokens: usize) -> Dataset {
    let text: String = (0..tokens).map(|n| char::from(b'a' + (n * n % 23) as u8)).collect();
    Dataset::Text(Text::from_one("t", Level::Characters, &text).unwrap())
}

#[test]
fn shards_are_disjoint_and_cover_whole_global_batches() {
    for (items, batch, world) in [(96, 4, 3), (100, 4, 3), (7, 1, 7), (1198, 32, 4), (5, 5, 1)] {
        let plans: Vec<Plan> =
            (0..world).map(|rank| Plan::new(1, items, batch, rank, world).unwrap()).collect();
        let order = plans[0].order(3);
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..items).collect());
        let mut seen = BTreeSet::new();
        for step in 0..plans[0].steps_per_epoch() {
            for plan in &plans {
                assert!(order[plan.range(step)].iter().all(|&item| seen.insert(item)));
            }
        }
        assert_eq!(seen.len(), items / (batch * world) * batch * world);
    }
}

#[test]
fn the_global_batch_is_the_same_for_every_world() {
    for dataset in [optdigits::load().unwrap(), corpus(5_000)] {
        let global = |world: usize, epoch, step| -> Vec<Vec<u32>> {
            let shards =
                (0..world).map(|rank| Batches::new(&dataset, 9, 24 / world, rank, world, 8).unwrap());
            let targets: Vec<u32> =
                shards.flat_map(|mut shard| shard.batch(epoch, step).targets().to_vec()).collect();
            targets.chunks(4).map(<[u32]>::to_vec).collect()
        };
        for (epoch, step) in [(0, 0), (0, 3), (2, 1)] {
            let alone = global(1, epoch, step);
            for world in [2, 3, 4, 6, 24] {
                assert_eq!(global(world, epoch, step), alone, "{} {world}", dataset.name());
            }
        }
        assert_ne!(global(1, 0, 0), global(1, 1, 0));
    }
}

#[test]
fn a_batch_depends_on_epoch_and_step_alone() {
    let dataset = optdigits::load().unwrap();
    let fresh = || Batches::new(&dataset, 5, 16, 1, 2, 0).unwrap();
    let mut running = fresh();
    for (epoch, step) in [(0, 0), (0, 1), (1, 4), (0, 1), (7, 36)] {
        assert_eq!(running.batch(epoch, step), fresh().batch(epoch, step));
    }
}

#[test]
fn windows_are_followed_by_their_targets() {
    let dataset = corpus(2_000);
    let Dataset::Text(text) = &dataset else { unreachable!() };
    let train = text.part(Part::Train);
    let mut batches = Batches::new(&dataset, 1, 3, 0, 1, 7).unwrap();
    for epoch in 0..20 {
        for step in 0..batches.steps_per_epoch() {
            let Batch::Tokens { shape, inputs, targets } = batches.batch(epoch, step) else { unreachable!() };
            assert_eq!(shape, [3, 7]);
            for (input, target) in inputs.chunks(7).zip(targets.chunks(7)) {
                assert_eq!(input[1..], target[..6]);
                let pair = [input, &target[6..]].concat();
                assert!(train.windows(8).any(|window| window == pair));
            }
        }
    }
}

#[test]
fn a_part_in_order_predicts_everything_once() {
    for (tokens, context) in [(1_000, 7), (1_000, 33), (1_000, 200)] {
        let dataset = corpus(tokens);
        let Dataset::Text(text) = &dataset else { unreachable!() };
        let targets: Vec<u32> =
            dataset.in_order(Part::Test, 4, context).flat_map(|batch| batch.targets().to_vec()).collect();
        assert_eq!(targets, text.part(Part::Test)[1..]);
    }
    let digits = optdigits::load().unwrap();
    let count: usize = digits.in_order(Part::Test, 100, 0).map(|batch| batch.predictions()).sum();
    assert_eq!((count, digits.examples(Part::Test)), (599, 599));
}

#[test]
fn impossible_plans_say_what_is_allowed() {
    let message = |batch, rank, world| Plan::new(1, 10, batch, rank, world).unwrap_err().to_string();
    assert_eq!(message(6, 0, 2), "batch = 6: expected 1 to 5, so at most 10 for all: there are 10 examples");
    assert_eq!(message(0, 0, 2), "batch = 0: expected 1 to 5, so at most 10 for all: there are 10 examples");
    assert_eq!(message(1, 2, 2), "rank = 2: expected below 2");
    assert_eq!(message(1, 0, 0), "workers = 0: expected at least 1");
    let error = Batches::new(&corpus(100), 1, 1, 0, 1, 0).unwrap_err();
    assert_eq!(error.key, "context");
}
