//! What a rank is told of itself and of the others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gradwire_transports::Rank;
use gradwire_transports::tcp::{Key, Meeting, Security};

use crate::command::Failure;
use crate::config::{Settings, TransportKind};
use crate::network::seconds;
use crate::range::{RangeError, require};

/// Heading of these options in the help.
const SEVERAL: &str = "Several machines (--transport tcp)";

/// This process, as one rank of a run over TCP.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TcpArgs {
    /// Rank of this process, from 0. Rank 0 writes the results; the others write nothing
    #[arg(long, value_name = "N", help_heading = SEVERAL)]
    rank: Option<u32>,
    /// Addresses of all ranks, in their order. A rank listens at its own
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', help_heading = SEVERAL)]
    hosts: Vec<String>,
    /// Address of rank 0, where the others learn each other's addresses; instead of --hosts. Needs --workers
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "hosts", help_heading = SEVERAL)]
    rendezvous: Option<String>,
    /// Address at which this rank listens [default: its own in --hosts, or that of --rendezvous; for other
    /// ranks, any port of the interface that leads there]
    #[arg(long, value_name = "HOST:PORT", help_heading = SEVERAL)]
    listen: Option<String>,
    /// File with the key that all ranks share: 64 hexadecimal characters, as `openssl rand -hex 32` writes.
    /// Needed off the loopback interface
    #[arg(long, value_name = "FILE", help_heading = SEVERAL)]
    key: Option<PathBuf>,
    /// Use no key on any interface. Whoever reaches the port can then read and change everything
    #[arg(long, conflicts_with = "key", help_heading = SEVERAL)]
    insecure: bool,
    /// Seconds to wait until all ranks are there [default: 3600]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = SEVERAL)]
    wait: Option<Duration>,
}

/// A rank, and where it meets the others.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) rank: Rank,
    pub(super) meeting: Meeting,
    pub(super) listen: String,
    pub(super) security: Security,
    pub(super) wait: Duration,
}

impl TcpArgs {
    /// Whether this process is one that only works, and writes nothing.
    pub(crate) fn follows(&self) -> bool {
        self.rank.is_some_and(|rank| rank > 0)
    }

    /// The file with the key, if there is one.
    pub(crate) fn key_file(&self) -> Option<&Path> {
        self.key.as_deref()
    }

    /// The settings with as many workers as there are addresses, unless they say a number.
    pub(crate) fn settings(&self, mut settings: Settings) -> Settings {
        if !self.hosts.is_empty() {
            settings.workers.get_or_insert(self.hosts.len());
        }
        settings
    }

    /// Refuses these options where nothing is sent over TCP.
    pub(crate) fn ensure_for(&self, transport: TransportKind) -> Result<(), Failure> {
        let given = [
            ("rank", self.rank.is_some()),
            ("hosts", !self.hosts.is_empty()),
            ("rendezvous", self.rendezvous.is_some()),
            ("listen", self.listen.is_some()),
            ("key", self.key.is_some()),
            ("insecure", self.insecure),
            ("wait", self.wait.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given && transport != TransportKind::Tcp) {
            Some((name, _)) => {
                Err(Failure::Usage(format!("--{name} with transport = {transport}: it belongs to tcp")))
            }
            None => Ok(()),
        }
    }

    /// The place of this process among `workers` ranks.
    pub(super) fn place(&self, workers: usize) -> Result<Place, Failure> {
        let meeting = self.meeting(workers)?;
        let all = format!("0 to {}: this process is one of {workers} ranks", workers - 1);
        let rank = self.rank.ok_or_else(|| RangeError::new("rank", "nothing", &all))?;
        require((rank as usize) < workers, "rank", rank, all)?;
        let security = match &self.key {
            Some(path) => Security::Key(Key::read(path)?),
            None if self.insecure => Security::Insecure,
            None => Security::Loopback,
        };
        let listen = match &self.listen {
            Some(listen) => listen.clone(),
            None => own_address(&meeting, rank as usize)?,
        };
        let wait = self.wait.unwrap_or(Duration::from_secs(3600));
        Ok(Place { rank: Rank(rank), meeting, listen, security, wait })
    }

    fn meeting(&self, workers: usize) -> Result<Meeting, Failure> {
        if let Some(root) = &self.rendezvous {
            return Ok(Meeting::Rendezvous { root: root.clone(), world: workers as u32 });
        }
        if self.hosts.is_empty() {
            let what = "transport = tcp: give --rank, and --hosts with the address of every rank, or --rendezvous with that of rank 0";
            return Err(Failure::Usage(what.to_owned()));
        }
        let count = self.hosts.len();
        require(workers == count, "workers", workers, format!("{count}, the addresses in --hosts"))?;
        Ok(Meeting::Hosts(self.hosts.clone()))
    }
}

/// Where a rank listens that was not told.
fn own_address(meeting: &Meeting, rank: usize) -> Result<String, Failure> {
    match meeting {
        Meeting::Hosts(hosts) => Ok(hosts[rank].clone()),
        Meeting::Rendezvous { root, .. } if rank == 0 => Ok(root.clone()),
        Meeting::Rendezvous { root, .. } => {
            let way = way_to(root);
            let way = way.map_err(|error| Failure::Usage(format!("rendezvous = {root}: {error}")))?;
            Ok(SocketAddr::new(way, 0).to_string())
        }
    }
}

/// The address of this host on the way to another one. Nothing is sent.
fn way_to(other: &str) -> std::io::Result<IpAddr> {
    let mut last = std::io::Error::other("the name has no address");
    for address in other.to_socket_addrs()? {
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        match UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        }) {
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_loopback_interface_is_on_it() {
        for (other, own) in [("127.0.0.1:1", "127.0.0.1"), ("[::1]:1", "::1")] {
            // A machine may have no IPv6.
            if let Ok(found) = way_to(other) {
                assert_eq!(found.to_string(), own);
            }
        }
        assert!(way_to("no-such-host.invalid:1").is_err());
    }
}
