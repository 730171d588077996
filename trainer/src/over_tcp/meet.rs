//! How the ranks of a run come together.

use std::fmt::Write;

use gradwire_transports::tcp::{Bound, Meeting, Met, TcpOptions, TcpTransport, Terms};
use gradwire_transports::{Deadline, Rank, Transport};
use tracing::info;

use super::args::Place;
use crate::command::Failure;
use crate::job::Job;
use crate::network::{LOOK_UP, Saying, is_end_wanted, with_settings};
use crate::process::interrupt;

/// Listens. Whoever has another job is refused, with every setting that differs.
pub(super) fn bind(place: &Place, job: &Job) -> Result<Bound, Failure> {
    let terms = Terms::new(&job.layout.as_ref(), &job.spec).with("gradwire", env!("CARGO_PKG_VERSION"));
    let options = TcpOptions::new(place.rank, with_settings(terms, job), place.security.clone());
    Ok(Bound::new(options, &place.listen)?)
}

/// Waits until all ranks are there, and says now and then who is missing.
pub(super) fn meet(bound: Bound, place: &Place) -> Result<TcpTransport, Failure> {
    interrupt::listen()?;
    info!("rank {} listens at {}", place.rank.0, bound.address());
    let (mut saying, by) = (Saying::new(), Deadline::after(place.wait));
    let mut joining = bound.begin(&place.meeting)?;
    loop {
        joining = match joining.wait(Deadline::after(LOOK_UP).earlier(by))? {
            Met::All(transport) => {
                info!("all {} ranks are there", transport.membership().world());
                return Ok(transport);
            }
            Met::Some(joining) if by.has_passed() => return Err(joining.give_up().into()),
            Met::Some(joining) => joining,
        };
        if is_end_wanted() {
            return Err(Failure::NotBegun { waited_for: names(&joining.missing(), &place.meeting) });
        }
        saying.waits(|| format!("waiting for {}", names(&joining.missing(), &place.meeting)));
    }
}

/// The ranks that are missing, with their addresses and what is known of each.
fn names(missing: &[(Rank, String)], meeting: &Meeting) -> String {
    let name = |(rank, known): &(Rank, String)| {
        let mut text = rank.to_string();
        if let Meeting::Hosts(hosts) = meeting
            && let Some(host) = hosts.get(rank.0 as usize)
        {
            let _ = write!(text, " at {host}");
        }
        text + &format!(" ({known})")
    };
    missing.iter().map(name).collect::<Vec<_>>().join(", ")
}
