//! The conformance suite on the in-process transport, plain and in every wrapper.

use std::time::Duration;

use gradwire_transports::inbox::InboxLimits;
use gradwire_transports::layer::{FaultInjector, FaultPlan, LinkSpeed, Meter, Throttle};
use gradwire_transports::local::{self, LocalLimits};
use gradwire_transports::{Membership, Rank, Transport, conformance};

const WORLDS: [usize; 5] = [1, 2, 3, 4, 5];

fn boxed<T: Transport + 'static>(transports: impl IntoIterator<Item = T>) -> Vec<Box<dyn Transport>> {
    transports.into_iter().map(|transport| Box::new(transport) as Box<dyn Transport>).collect()
}

fn local(world: usize) -> Vec<Box<dyn Transport>> {
    boxed(local::world(world as u32))
}

#[test]
fn local_keeps_the_contract() {
    conformance::run(&local, &WORLDS);
}

#[test]
fn local_keeps_the_contract_with_scattered_ranks_a_later_epoch_and_tight_limits() {
    let limits =
        LocalLimits { inbox: InboxLimits { messages: 16, bytes: 1 << 10 }, max_message_bytes: 4 << 20 };
    let members = |world| Membership { epoch: 9, ranks: (0..world).map(|at| Rank(3 + 70 * at)).collect() };
    conformance::run(&|world| boxed(local::with_limits(members(world as u32), limits)), &WORLDS);
}

#[test]
fn a_meter_keeps_the_contract_also_around_a_box() {
    conformance::run(&|world| boxed(local(world).into_iter().map(Meter::new)), &WORLDS);
}

#[test]
fn a_throttle_keeps_the_contract() {
    let speed = LinkSpeed::new(20e9, Duration::from_micros(200));
    conformance::run(&|world| boxed(Throttle::network(local(world), speed)), &WORLDS);
}

#[test]
fn a_fault_injector_without_faults_keeps_the_contract() {
    let wrap = |transport| FaultInjector::new(transport, FaultPlan::default());
    conformance::run(&|world| boxed(local(world).into_iter().map(wrap)), &WORLDS);
}

#[test]
fn layers_on_layers_keep_the_contract() {
    let speed = LinkSpeed::new(20e9, Duration::from_micros(50));
    let wrap = |transport| Meter::new(FaultInjector::new(transport, FaultPlan::default()));
    conformance::run(&|world| boxed(Throttle::network(local(world), speed).into_iter().map(wrap)), &[1, 3]);
}

#[test]
fn one_long_lived_world_passes_every_check_in_a_row() {
    std::thread::scope(|scope| {
        for mut transport in local(3) {
            scope.spawn(move || conformance::run_rank(&mut *transport));
        }
    });
}
