//! Sockets, with every option that matters set explicitly.

use std::time::Duration;

use zmq::{Context, Socket, SocketEvent, SocketType};

use super::endpoint::Endpoint;
use super::error::ZmqError;
use super::options::{Security, ZmqOptions};
use crate::rank::Rank;

/// How long a closed socket continues to send its queue of acknowledgements and refusals, in milliseconds.
/// This matters only for a peer that receives nothing.
const LINGER: i32 = 2000;
const RECONNECT: i32 = 50;
const RECONNECT_AT_MOST: i32 = 500;
/// The longest time until a connection is made, or a new attempt begins, in milliseconds: several round trips
/// by satellite. The kernel's own limit is minutes, in which it asks ever more rarely.
const CONNECT: i32 = 10_000;
/// libzmq's own signs of life. The engine has others, and a limit for their absence that follows from the
/// link. These only take away connections that no end uses any more.
const HEARTBEAT: i32 = 10_000;
const DEAD: i32 = 60_000;
const ZAP_DOMAIN: &str = "gradwire";
const ZAP_ENDPOINT: &str = "inproc://zeromq.zap.01";
const WAKE_ENDPOINT: &str = "inproc://gradwire-wake";

const FAILURES: i32 = SocketEvent::HANDSHAKE_FAILED_NO_DETAIL as i32
    | SocketEvent::HANDSHAKE_FAILED_PROTOCOL as i32
    | SocketEvent::HANDSHAKE_FAILED_AUTH as i32;
const CONNECTIONS: i32 = SocketEvent::CONNECTED as i32
    | SocketEvent::CLOSED as i32
    | SocketEvent::HANDSHAKE_SUCCEEDED as i32
    | SocketEvent::DISCONNECTED as i32
    | SocketEvent::MONITOR_STOPPED as i32;
/// Values of events of failed handshakes.
const CRYPTOGRAPHIC: u32 = 0x1100_0001;
const MECHANISM_MISMATCH: u32 = 0x1100_0002;

/// Converts a failed call of libzmq into a `ZmqError`.
fn failed(what: &str) -> impl FnOnce(zmq::Error) -> ZmqError {
    move |error| ZmqError::Socket { what: what.to_owned(), error: error.to_string() }
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// Options of every socket that reaches the network.
fn bounded(
    context: &Context,
    kind: SocketType,
    options: &ZmqOptions,
    has_ipv6: bool,
) -> Result<Socket, zmq::Error> {
    let (limits, timing) = (&options.limits, &options.timing);
    let socket = context.socket(kind)?;
    let hwm = i32::try_from(limits.high_water_mark()).unwrap_or(i32::MAX);
    socket.set_sndhwm(hwm)?;
    socket.set_rcvhwm(hwm)?;
    socket.set_maxmsgsize(i64::try_from(limits.max_frame_bytes()).unwrap_or(i64::MAX))?;
    socket.set_linger(LINGER)?;
    socket.set_ipv6(has_ipv6)?;
    socket.set_handshake_ivl(millis(timing.handshake))?;
    socket.set_heartbeat_ivl(HEARTBEAT)?;
    socket.set_heartbeat_timeout(DEAD)?;
    socket.set_heartbeat_ttl(DEAD)?;
    Ok(socket)
}

/// A socket for all peers that connect, and the monitor that reports failed handshakes.
pub(super) fn router(
    context: &Context,
    options: &ZmqOptions,
    endpoint: &Endpoint,
) -> Result<(Socket, Socket), ZmqError> {
    let make = || {
        let socket = bounded(context, SocketType::ROUTER, options, endpoint.needs_ipv6())?;
        socket.set_router_mandatory(true)?;
        if let Security::Curve(pair) = &options.security {
            socket.set_curve_server(true)?;
            socket.set_curve_secretkey(pair.secret())?;
            socket.set_zap_domain(ZAP_DOMAIN)?;
        }
        let monitor = monitor(context, &socket, "inproc://gradwire-router", FAILURES)?;
        socket.bind(&endpoint.to_string())?;
        Ok((socket, monitor))
    };
    make().map_err(failed(&format!("listening at {endpoint}")))
}

/// A socket for one peer that listens, and its monitor. `times` is how many there were for this peer before.
pub(super) fn dealer(
    context: &Context,
    options: &ZmqOptions,
    (peer, times): (Rank, u64),
    endpoint: &Endpoint,
    has_ipv6: bool,
) -> Result<(Socket, Socket), ZmqError> {
    let make = || {
        let socket = bounded(context, SocketType::DEALER, options, has_ipv6)?;
        // Nothing is queued without a connection, because a queue is lost when the connection ends.
        socket.set_immediate(true)?;
        socket.set_reconnect_ivl(RECONNECT)?;
        socket.set_reconnect_ivl_max(RECONNECT_AT_MOST)?;
        socket.set_connect_timeout(CONNECT)?;
        if let (Security::Curve(pair), Some(key)) = (&options.security, options.key_of(peer)) {
            socket.set_curve_serverkey(&key.0)?;
            socket.set_curve_publickey(&pair.public().0)?;
            socket.set_curve_secretkey(pair.secret())?;
        }
        let name = format!("inproc://gradwire-dealer-{}-{times}", peer.0);
        let monitor = monitor(context, &socket, &name, FAILURES | CONNECTIONS)?;
        socket.connect(&endpoint.to_string())?;
        Ok((socket, monitor))
    };
    make().map_err(failed(&format!("connecting to {endpoint}")))
}

fn monitor(context: &Context, socket: &Socket, name: &str, events: i32) -> Result<Socket, zmq::Error> {
    socket.monitor(name, events)?;
    let monitor = context.socket(SocketType::PAIR)?;
    monitor.set_linger(0)?;
    monitor.connect(name)?;
    Ok(monitor)
}

/// The socket at which libzmq asks whether a key is admitted. It is bound before the first connection is
/// possible.
pub(super) fn zap(context: &Context) -> Result<Socket, ZmqError> {
    let make = || {
        let socket = context.socket(SocketType::REP)?;
        socket.set_linger(0)?;
        socket.bind(ZAP_ENDPOINT)?;
        Ok(socket)
    };
    make().map_err(failed("authentication socket"))
}

/// The two ends of the bell that wakes the transport's thread.
pub(super) fn bell(context: &Context) -> Result<(Socket, Socket), ZmqError> {
    let make = || {
        let [listens, rings] = [context.socket(SocketType::PAIR)?, context.socket(SocketType::PAIR)?];
        for end in [&listens, &rings] {
            end.set_linger(0)?;
        }
        listens.bind(WAKE_ENDPOINT)?;
        rings.connect(WAKE_ENDPOINT)?;
        Ok((listens, rings))
    };
    make().map_err(failed("bell"))
}

/// What a monitor reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noticed {
    /// There is a connection.
    Connected,
    /// No connection could be made.
    NotConnected,
    /// Both ends have proved who they are.
    Proved,
    Disconnected,
    /// The other end does not admit this key.
    Denied,
    /// The handshake failed.
    Failed(Cause),
}

/// Why a handshake failed, as far as libzmq says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// What the other end sent cannot be opened with this end's keys.
    Keys,
    /// One end uses keys and the other one does not.
    Mechanism,
    /// The other end does not follow the protocol.
    Protocol,
    /// The connection ended, or the time was over.
    Ended,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Keys => "the handshake failed: what the other end sent does not fit the keys",
            Self::Mechanism => "the handshake failed: one end uses keys and the other does not",
            Self::Protocol => "the handshake failed: the other end does not follow the protocol of ZeroMQ",
            Self::Ended => "the handshake failed: the other end hung up",
        })
    }
}

impl Cause {
    /// What is known at the end that connects; `took` is the time since there is a connection.
    pub(super) fn at_connecting_end(self, took: Duration, limit: Duration) -> String {
        match self {
            Self::Ended if took < limit.mul_f64(0.9) => {
                format!("{self}; it may have another key than this end was given")
            }
            Self::Ended => {
                format!("the handshake failed: connected, but no answer for {:.0} s", took.as_secs_f64())
            }
            _ => self.to_string(),
        }
    }

    /// What is known at the end that listens.
    pub(super) fn at_listening_end(self, limit: Duration) -> String {
        match self {
            Self::Keys => format!("{self}: it may have been given another key of this end"),
            Self::Mechanism => format!("{self}: give both ends keys, or neither"),
            Self::Protocol => {
                format!("{self}: it may be a browser or a scanner of ports; nothing else follows")
            }
            Self::Ended => format!(
                "{self}, or was not done after {:.0} s; a check of whether the port is open ends so too",
                limit.as_secs_f64()
            ),
        }
    }
}

/// Drops what a monitor has. Returns whether its socket is closed, so that nothing more comes.
pub(super) fn has_stopped(monitor: &Socket) -> bool {
    let is_last = |frames: &Vec<Vec<u8>>| {
        let event = frames.first().and_then(|frame| frame.first_chunk().copied());
        event.is_some_and(|event| i32::from(u16::from_ne_bytes(event)) == SocketEvent::MONITOR_STOPPED as i32)
    };
    std::iter::from_fn(|| monitor.recv_multipart(zmq::DONTWAIT).ok()).any(|frames| is_last(&frames))
}

/// The next report of a monitor, if there is one.
pub(super) fn notice(monitor: &Socket) -> Option<Noticed> {
    loop {
        let frames = monitor.recv_multipart(zmq::DONTWAIT).ok()?;
        let Some((event, value)) = frames.first().and_then(|frame| frame.split_first_chunk()) else {
            continue;
        };
        let raw = i32::from(u16::from_ne_bytes(*event));
        let is = |event: SocketEvent| raw == event as i32;
        let value = value.first_chunk().map_or(0, |value| u32::from_ne_bytes(*value));
        let noticed = if is(SocketEvent::CONNECTED) {
            Noticed::Connected
        } else if is(SocketEvent::CLOSED) {
            Noticed::NotConnected
        } else if is(SocketEvent::HANDSHAKE_SUCCEEDED) {
            Noticed::Proved
        } else if is(SocketEvent::DISCONNECTED) {
            Noticed::Disconnected
        } else if is(SocketEvent::HANDSHAKE_FAILED_AUTH) {
            Noticed::Denied
        } else if is(SocketEvent::HANDSHAKE_FAILED_NO_DETAIL) {
            Noticed::Failed(Cause::Ended)
        } else if is(SocketEvent::HANDSHAKE_FAILED_PROTOCOL) {
            Noticed::Failed(match value {
                CRYPTOGRAPHIC => Cause::Keys,
                MECHANISM_MISMATCH => Cause::Mechanism,
                _ => Cause::Protocol,
            })
        } else {
            continue;
        };
        return Some(noticed);
    }
}
