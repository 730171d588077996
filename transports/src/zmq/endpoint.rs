//! Addresses of sockets, checked before libzmq sees them: it takes a port of 99999 for 34463.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The longest name of the domain name system.
const LONGEST_NAME: usize = 253;

/// `tcp://HOST:PORT`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    host: Host,
    /// `None` for a port that the system chooses.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    /// All interfaces.
    Any,
    /// An address of version 6 may name an interface.
    Address(IpAddr, Option<String>),
    /// A name that is looked up, or an interface of this machine.
    Name(String),
}

/// What an end does at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Listen,
    Connect,
}

impl Endpoint {
    /// Reads an address.
    ///
    /// # Errors
    /// What is wrong with it, for the person who wrote it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fault = |what: String| format!("'{}' is not tcp://HOST:PORT{what}", text.escape_debug());
        let rest = text.strip_prefix("tcp://").ok_or_else(|| fault(String::new()))?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| fault(": it has no port".to_owned()))?;
        let (host, port) = (read_host(host), read_port(port));
        Ok(Self {
            host: host.map_err(|what| fault(format!(": {what}")))?,
            port: port.map_err(|what| fault(format!(": {what}")))?,
        })
    }

    /// Whether a socket can do that there.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn is_fit_to(&self, used: Use) -> Result<(), String> {
        match (used, self) {
            (Use::Connect, Self { host: Host::Any, .. }) => {
                Err(format!("{self} is a place to listen: name the machine that listens"))
            }
            (Use::Connect, Self { port: None, .. }) => {
                Err(format!("{self} is a place to listen: name the port on which the other end listens"))
            }
            _ => Ok(()),
        }
    }

    /// Whether it can only be the loopback interface.
    pub(super) fn is_loopback(&self) -> bool {
        match &self.host {
            Host::Any => false,
            Host::Address(address, _) => address.to_canonical().is_loopback(),
            Host::Name(name) => name == "localhost",
        }
    }

    /// Whether libzmq needs IPv6 for it. A name is looked up; while it has an address of version 4, or none,
    /// the answer is no.
    pub(super) fn needs_ipv6(&self) -> bool {
        match &self.host {
            Host::Any => false,
            Host::Address(address, _) => address.is_ipv6(),
            Host::Name(_) => self.look_up().is_ok_and(|found| found.iter().all(SocketAddr::is_ipv6)),
        }
    }

    /// Whether the host is a name, which is looked up.
    pub(super) fn is_name(&self) -> bool {
        matches!(self.host, Host::Name(_))
    }

    /// The addresses of the host, at least one. May take as long as the resolver does.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn look_up(&self) -> Result<Vec<SocketAddr>, String> {
        let port = self.port.unwrap_or(0);
        let name = match &self.host {
            Host::Any => return Ok(vec![(Ipv6Addr::UNSPECIFIED, port).into()]),
            Host::Address(address, _) => return Ok(vec![(*address, port).into()]),
            Host::Name(name) => name,
        };
        let found: Vec<_> =
            (name.as_str(), port).to_socket_addrs().map_err(|error| error.to_string())?.collect();
        if found.is_empty() { Err("it has no address".to_owned()) } else { Ok(found) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tcp://")?;
        match &self.host {
            Host::Any => f.write_str("*")?,
            Host::Address(IpAddr::V4(address), _) => write!(f, "{address}")?,
            Host::Address(IpAddr::V6(address), None) => write!(f, "[{address}]")?,
            Host::Address(IpAddr::V6(address), Some(zone)) => write!(f, "[{address}%{zone}]")?,
            Host::Name(name) => f.write_str(name)?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => f.write_str(":*"),
        }
    }
}

fn read_host(text: &str) -> Result<Host, String> {
    if text == "*" {
        return Ok(Host::Any);
    }
    if let Some(inside) = text.strip_prefix('[') {
        let inside = inside.strip_suffix(']').ok_or_else(|| "[ without ]".to_owned())?;
        let (address, zone) = match inside.split_once('%') {
            Some((address, zone)) if is_name(zone) => (address, Some(zone.to_owned())),
            Some((_, zone)) => return Err(format!("'{zone}' is no interface")),
            None => (inside, None),
        };
        let address: Ipv6Addr = address.parse().map_err(|_| format!("'{address}' is no IPv6 address"))?;
        return Ok(Host::Address(address.into(), zone));
    }
    if let Ok(address) = text.parse() {
        return match address {
            IpAddr::V4(_) => Ok(Host::Address(address, None)),
            IpAddr::V6(_) => Err(format!("write an IPv6 address in brackets: [{text}]")),
        };
    }
    // A name of digits and dots is an address with a mistake.
    if is_name(text) && text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        return Ok(Host::Name(text.to_owned()));
    }
    Err(if text.is_empty() { "it has no host".to_owned() } else { format!("'{text}' is no host") })
}

fn is_name(text: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(is_fit)
}

/// A port, or `None` for one of the system's choice.
fn read_port(text: &str) -> Result<Option<u16>, String> {
    if text == "*" {
        return Ok(None);
    }
    // A number as Rust reads it may begin with a plus.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|_| is_number);
    match port {
        Some(0) => Ok(None),
        Some(port) => Ok(Some(port)),
        None => Err(format!("'{text}' is no port: a port is 1 to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_as_libzmq_takes_them() {
        for text in [
            "tcp://127.0.0.1:5555",
            "tcp://[::1]:1",
            "tcp://[fe80::1%eth0]:65535",
            "tcp://host.example.org:80",
            "tcp://my-host_2:5555",
            "tcp://h:9",
        ] {
            let read = Endpoint::parse(text).unwrap();
            assert_eq!(read.to_string(), text);
            assert_eq!([Use::Listen, Use::Connect].map(|used| read.is_fit_to(used)), [Ok(()), Ok(())]);
        }
        for text in ["tcp://*:5555", "tcp://127.0.0.1:*", "tcp://[::]:*", "tcp://eth0:*", "tcp://*:*"] {
            let read = Endpoint::parse(text).unwrap();
            assert_eq!((read.to_string().as_str(), read.is_fit_to(Use::Listen)), (text, Ok(())));
            assert!(
                read.is_fit_to(Use::Connect).unwrap_err().contains("that listens") || text.contains(":*")
            );
        }
        assert_eq!(Endpoint::parse("tcp://0.0.0.0:0").unwrap().to_string(), "tcp://0.0.0.0:*");
        assert_eq!(Endpoint::parse("tcp://h:0080").unwrap().to_string(), "tcp://h:80");
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is_wrong_with_it() {
        for (text, what) in [
            ("tcp://127.0.0.1:99999", "a port is 1 to 65535"),
            ("tcp://127.0.0.1:65536", "a port is 1 to 65535"),
            ("tcp://127.0.0.1:131071", "a port is 1 to 65535"),
            ("tcp://127.0.0.1:4294967297", "a port is 1 to 65535"),
            ("tcp://127.0.0.1:-1", "'-1' is no port"),
            ("tcp://127.0.0.1:+1", "'+1' is no port"),
            ("tcp://127.0.0.1:5704x", "'5704x' is no port"),
            ("tcp://127.0.0.1: 80", "' 80' is no port"),
            ("tcp://127.0.0.1:80 ", "'80 ' is no port"),
            ("tcp://127.0.0.1:80/path", "is no port"),
            ("tcp://127.0.0.1:0x50", "is no port"),
            ("tcp://127.0.0.1:", "'' is no port"),
            ("tcp://127.0.0.1", "it has no port"),
            ("tcp://:80", "it has no host"),
            ("tcp://256.1.1.1:80", "'256.1.1.1' is no host"),
            ("tcp://10.0.0:80", "'10.0.0' is no host"),
            ("tcp://::1:80", "in brackets: [::1]"),
            ("tcp://fe80::1:80", "in brackets: [fe80::1]"),
            ("tcp://[::1:80", "[ without ]"),
            ("tcp://[::g]:80", "'::g' is no IPv6 address"),
            ("tcp://[fe80::1%]:80", "'' is no interface"),
            ("tcp://a b:80", "'a b' is no host"),
            ("tcp://user@host:80", "'user@host' is no host"),
            ("tcp://10.0.0.1;10.0.0.2:80", "is no host"),
            ("tcp://höst:80", "is no host"),
            ("127.0.0.1:80", "is not tcp://HOST:PORT"),
            ("host", "is not tcp://HOST:PORT"),
            ("", "is not tcp://HOST:PORT"),
            ("TCP://h:80", "is not tcp://HOST:PORT"),
            ("http://h:80", "is not tcp://HOST:PORT"),
            ("tcp://h\n:80", "'tcp://h\\n:80'"),
        ] {
            let said = Endpoint::parse(text).unwrap_err();
            assert!(said.contains(what), "{text}: {said}");
        }
        assert_eq!(Endpoint::parse("ipc://x").unwrap_err(), "'ipc://x' is not tcp://HOST:PORT");
        let long = format!("tcp://{}:80", "h".repeat(254));
        assert!(Endpoint::parse(&long).unwrap_err().contains("is no host"));
    }

    #[test]
    fn only_loopback_is_loopback() {
        let is_loopback = |text| Endpoint::parse(text).is_ok_and(|read| read.is_loopback());
        for yes in [
            "tcp://127.0.0.1:5",
            "tcp://127.9.9.9:*",
            "tcp://localhost:1",
            "tcp://[::1]:80",
            "tcp://[::ffff:127.0.0.1]:80",
        ] {
            assert!(is_loopback(yes), "{yes}");
        }
        for no in [
            "tcp://*:5",
            "tcp://0.0.0.0:5",
            "tcp://10.0.0.1:5",
            "tcp://127.0.0.1.example.org:5",
            "tcp://lo:1",
            "tcp://[::]:5",
            "tcp://",
        ] {
            assert!(!is_loopback(no), "{no}");
        }
    }

    #[test]
    fn only_addresses_of_version_6_need_it() {
        let needs = |text| Endpoint::parse(text).unwrap().needs_ipv6();
        assert!(needs("tcp://[::1]:80") && needs("tcp://[fe80::1%eth0]:80"));
        assert!(!needs("tcp://127.0.0.1:80") && !needs("tcp://nosuch.invalid:80"));
        assert!(Endpoint::parse("tcp://nosuch.invalid:80").unwrap().look_up().is_err());
    }
}
