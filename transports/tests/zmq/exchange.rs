//! The same frames make the same mean, bit for bit, as in one process.

use gradwire_transports::collective::Wire;
use gradwire_transports::exchange::{Route, ServerOptions};
use gradwire_transports::local;

use crate::same_mean::run;
use crate::support::{World, boxed};

#[test]
fn the_same_frames_make_the_same_mean_as_in_one_process_on_every_route() {
    let server = || Route::Server(ServerOptions::default());
    let ring = Route::AllReduce { wire: Wire::F32 };
    for (spec, route) in [
        ("topk:density=0.05,values=q8", Route::AllGather),
        ("qsgd:bits=4,bucket=64", Route::AllGather),
        ("topk:density=0.05", server()),
        ("randomk:density=0.1", ring),
    ] {
        let inside = run(local::world(3).into_iter().map(|end| Box::new(end) as _).collect(), spec, &route);
        let world = match route {
            Route::Server(_) => World::star(3),
            _ => World::new(3),
        };
        assert_eq!(run(boxed(world.join()), spec, &route), inside, "{spec}");
    }
}
