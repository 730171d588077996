//! The same frames make the same mean, bit for bit, as in one process.

use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Route, ServerOptions};
use gradwire_transports::local;

use crate::led;
use crate::same_mean::run;
use crate::support::{World, boxed};

#[test]
fn the_same_frames_make_the_same_mean_as_in_one_process_on_every_route() {
    led::spec("x:led");
    let ring = |wire| Route::AllReduce { wire };
    for (spec, route) in [
        ("topk:density=0.05,values=q8", Route::AllGather),
        ("qsgd:bits=4,bucket=64", Route::AllGather),
        ("topk:density=0.05", Route::Server(ServerOptions::default())),
        ("randomk:density=0.1", ring(Wire::F32)),
        ("none", ring(Wire::Bf16)),
        ("x:led", ring(Wire::F32)),
    ] {
        let inside = run(local::world(3).into_iter().map(|end| Box::new(end) as _).collect(), spec, &route);
        for world in [World::new(3), World::sealed(3)] {
            assert_eq!(run(boxed(world.join()), spec, &route), inside, "{spec}");
        }
    }
}
