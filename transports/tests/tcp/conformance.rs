//! The conformance suite: plain and encrypted, over IPv4 and IPv6, in one process and in several.

use std::env;
use std::process::{Child, Command, Stdio};

use gradwire_transports::conformance;
use gradwire_transports::tcp::{Bound, Key, Meeting, Security, TcpOptions};

use crate::support::{World, boxed, long};

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

/// What a rank in a process of its own reads: the addresses of all ranks, its own rank, and the key file.
const HOSTS: &str = "GRADWIRE_TEST_TCP_HOSTS";
const RANK: &str = "GRADWIRE_TEST_TCP_RANK";
const KEY: &str = "GRADWIRE_TEST_TCP_KEY";

/// Not a test of its own: one rank of the test below, in a process of its own.
#[test]
fn rank_in_a_process_of_its_own() {
    let (Ok(hosts), Ok(rank), Ok(key)) = (env::var(HOSTS), env::var(RANK), env::var(KEY)) else { return };
    let hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
    let rank: usize = rank.parse().unwrap();
    let security = Security::Key(Key::read(key.as_ref()).unwrap());
    let options = TcpOptions { security, ..World::new(hosts.len()).options(rank) };
    let bound = Bound::new(options, &hosts[rank]).unwrap();
    let mut transport = bound.join(&Meeting::Hosts(hosts), long()).unwrap();
    conformance::run_rank(&mut transport);
}

#[test]
fn three_processes_keep_the_contract() {
    let key = env::temp_dir().join(format!("gradwire-tcp-ranks-{}", std::process::id()));
    Key::generate().unwrap().write(&key).unwrap();
    // Free a moment ago.
    let hosts: Vec<String> = World::new(3).bind().iter().map(|end| end.address().to_string()).collect();
    let spawn = |rank: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "conformance::rank_in_a_process_of_its_own"]);
        command.env(HOSTS, hosts.join(",")).env(RANK, rank.to_string()).env(KEY, &key);
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..3).map(spawn).collect();
    let ends: Vec<bool> = children.into_iter().map(|mut child| child.wait().unwrap().success()).collect();
    std::fs::remove_file(&key).unwrap();
    assert_eq!(ends, [true; 3]);
}
