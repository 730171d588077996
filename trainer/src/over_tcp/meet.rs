//! How the ranks of a run come together.

use std::fmt::Write;
use std::time::Duration;

use gradwire_transports::tcp::{Bound, Joining, Meeting, Met, TcpOptions, TcpTransport, Terms};
use gradwire_transports::{Deadline, Rank, Transport};
use tracing::info;

use super::args::Place;
use crate::command::Failure;
use crate::job::Job;
use crate::network::{LOOK_UP, Saying, is_end_wanted, with_settings};
use crate::process::interrupt;

/// How long the first rank of a run that is over stays for the others, which a service manager starts about
/// when it starts this one.
const TELL_OVER: Duration = Duration::from_secs(60);

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
    match wait_for_all(bound.begin(&place.meeting)?, place, place.wait, "waiting for")? {
        Met::All(transport) => {
            info!("all {} ranks are there", transport.membership().world());
            Ok(transport)
        }
        Met::Some(joining) if is_end_wanted() => {
            Err(Failure::NotBegun { waited_for: names(&joining.missing(), &place.meeting) })
        }
        Met::Some(joining) => Err(joining.give_up().into()),
    }
}

/// Tells all ranks that the run is over, so that they do not wait for this one.
pub(super) fn tell_over(bound: Bound, place: &Place) -> Result<(), Failure> {
    interrupt::listen()?;
    let joining = bound.dismiss(&place.meeting)?;
    let what = "telling the others that the run is over: waiting for";
    match wait_for_all(joining, place, place.wait.min(TELL_OVER), what)? {
        Met::All(_) => info!("all other ranks were told that the run is over"),
        Met::Some(joining) => {
            let missing = names(&joining.missing(), &place.meeting);
            info!("not told that the run is over: {missing}; end them if they wait");
        }
    }
    Ok(())
}

/// Waits, and says now and then who is missing, until all ranks were there, time is up, or the user ends it.
fn wait_for_all(mut joining: Joining, place: &Place, wait: Duration, what: &str) -> Result<Met, Failure> {
    let (mut saying, by) = (Saying::new(), Deadline::after(wait));
    loop {
        joining = match joining.wait(Deadline::after(LOOK_UP).earlier(by))? {
            Met::Some(joining) if !by.has_passed() && !is_end_wanted() => joining,
            met => return Ok(met),
        };
        saying.waits(|| format!("{what} {}", names(&joining.missing(), &place.meeting)));
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
