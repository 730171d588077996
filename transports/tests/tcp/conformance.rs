//! The conformance suite: plain and encrypted, over IPv4 and IPv6.

use gradwire_transports::conformance;

use crate::support::{World, boxed};

#[test]
fn ranks_keep_the_contract_over_ipv4() {
    conformance::run(&|world| boxed(World::new(world).join()), &[1, 2, 3, 4]);
}

#[test]
fn ranks_keep_the_contract_over_ipv6_with_a_key() {
    let world = |world| World { host: "[::1]", ..World::sealed(world) };
    conformance::run(&|size| boxed(world(size).join()), &[2, 3, 4]);
}

#[test]
fn one_long_lived_world_passes_every_check_in_a_row() {
    std::thread::scope(|scope| {
        for mut transport in World::sealed(3).join() {
            scope.spawn(move || conformance::run_rank(&mut transport));
        }
    });
}
