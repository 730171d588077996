//! The one suite that every transport runs.

use std::env;
use std::process::{Child, Command, Stdio};

use gradwire_transports::layer::{FaultInjector, FaultPlan, Meter};
use gradwire_transports::zmq::{Bound, KeyPair, Roster, Security, Topology, ZmqOptions};
use gradwire_transports::{Rank, conformance};

use crate::support::{World, boxed, join_ranks, limits, long, terms};

#[test]
fn two_and_three_ranks_with_curve_keep_the_contract() {
    conformance::run(&|world| boxed(World::new(world).join()), &[1, 2, 3]);
}

#[test]
fn ranks_without_keys_and_with_gaps_between_them_keep_the_contract() {
    let make = |world: usize| {
        let ranks: Vec<Rank> = (0..world as u32).map(|at| Rank(3 + 70 * at)).collect();
        let world = World { ranks: ranks.clone(), is_secure: false, ..World::new(world) };
        boxed(join_ranks(world.bind(), &ranks))
    };
    conformance::run(&make, &[2, 3]);
}

#[test]
fn chunks_of_a_few_bytes_and_a_window_of_one_keep_the_contract() {
    let make = |world: usize| {
        let world = World::new(world);
        let tiny = |at| {
            let mut options = world.options(at);
            (options.limits.chunk_bytes, options.limits.window) = (4099, 1);
            Bound::new(options).unwrap()
        };
        boxed(join_ranks((0..world.ranks.len()).map(tiny).collect(), &world.ranks))
    };
    conformance::run(&make, &[2]);
}

#[test]
fn layers_around_it_keep_the_contract() {
    let wrap = |transport| Meter::new(FaultInjector::new(transport, FaultPlan::default()));
    let make = |world| World::new(world).join().into_iter().map(|end| Box::new(wrap(end)) as _).collect();
    conformance::run(&make, &[2]);
}

/// What a rank in a process of its own reads: the folder with its keys and its list of peers, and its rank.
const FOLDER: &str = "GRADWIRE_TEST_ZMQ_FOLDER";
const RANK: &str = "GRADWIRE_TEST_ZMQ_RANK";

/// Not a test of its own: one rank of the test below, in a process of its own.
#[test]
fn rank_in_a_process_of_its_own() {
    let (Ok(folder), Ok(rank)) = (env::var(FOLDER), env::var(RANK)) else { return };
    let folder = std::path::PathBuf::from(folder);
    let roster = Roster::read(&folder.join("peers")).unwrap();
    let keys = KeyPair::read(&folder.join(&rank)).unwrap();
    let rank = Rank(rank.parse().unwrap());
    let options = ZmqOptions::new(rank, roster, Topology::AllToAll, Security::Curve(keys), terms());
    let mut transport = Bound::new(ZmqOptions { limits: limits(), ..options }).unwrap().join(long()).unwrap();
    conformance::run_rank(&mut transport);
}

/// Ports that were free a moment ago.
fn ports(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

#[test]
fn three_processes_keep_the_contract() {
    let folder = env::temp_dir().join(format!("gradwire-zmq-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut peers = String::from("# rank, key, endpoint\n");
    for (rank, port) in ports(3).into_iter().enumerate() {
        let pair = KeyPair::generate().unwrap();
        pair.write(&folder.join(rank.to_string())).unwrap();
        peers += &format!("{rank} {} tcp://127.0.0.1:{port}\n", pair.public());
    }
    std::fs::write(folder.join("peers"), peers).unwrap();
    let spawn = |rank: u32| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "conformance::rank_in_a_process_of_its_own"]);
        command.env(FOLDER, &folder).env(RANK, rank.to_string()).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let children: Vec<Child> = (0..3).map(spawn).collect();
    let ends: Vec<bool> = children.into_iter().map(|mut child| child.wait().unwrap().success()).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(ends, [true; 3]);
}
