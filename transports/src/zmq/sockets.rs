//! Sockets, with every option that matters set explicitly.

use std::time::Duration;

use zmq::{Context, Socket, SocketEvent, SocketType};

use super::error::ZmqError;
use super::options::{Security, ZmqOptions};
use crate::rank::Rank;

/// How long a closed socket continues to send its queue of acknowledgements and refusals, in milliseconds.
/// This matters only for a peer that receives nothing.
const LINGER: i32 = 2000;
const RECONNECT: i32 = 50;
const RECONNECT_AT_MOST: i32 = 500;
const ZAP_DOMAIN: &str = "gradwire";
const ZAP_ENDPOINT: &str = "inproc://zeromq.zap.01";
const WAKE_ENDPOINT: &str = "inproc://gradwire-wake";

const FAILURES: i32 = SocketEvent::HANDSHAKE_FAILED_NO_DETAIL as i32
    | SocketEvent::HANDSHAKE_FAILED_PROTOCOL as i32
    | SocketEvent::HANDSHAKE_FAILED_AUTH as i32;
const CONNECTIONS: i32 = SocketEvent::HANDSHAKE_SUCCEEDED as i32 | SocketEvent::DISCONNECTED as i32;

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
    endpoint: &str,
) -> Result<Socket, zmq::Error> {
    let (limits, timing) = (&options.limits, &options.timing);
    let socket = context.socket(kind)?;
    let hwm = i32::try_from(limits.high_water_mark()).unwrap_or(i32::MAX);
    socket.set_sndhwm(hwm)?;
    socket.set_rcvhwm(hwm)?;
    socket.set_maxmsgsize(i64::try_from(limits.max_frame_bytes()).unwrap_or(i64::MAX))?;
    socket.set_linger(LINGER)?;
    socket.set_ipv6(endpoint.contains('['))?;
    socket.set_handshake_ivl(millis(timing.handshake))?;
    socket.set_heartbeat_ivl(millis(timing.heartbeat))?;
    socket.set_heartbeat_timeout(millis(timing.silence))?;
    socket.set_heartbeat_ttl(millis(timing.silence))?;
    Ok(socket)
}

/// A socket for all peers that connect, and the monitor that reports failed handshakes.
pub(super) fn router(
    context: &Context,
    options: &ZmqOptions,
    endpoint: &str,
) -> Result<(Socket, Socket), ZmqError> {
    let make = || {
        let socket = bounded(context, SocketType::ROUTER, options, endpoint)?;
        socket.set_router_mandatory(true)?;
        if let Security::Curve(pair) = &options.security {
            socket.set_curve_server(true)?;
            socket.set_curve_secretkey(pair.secret())?;
            socket.set_zap_domain(ZAP_DOMAIN)?;
        }
        let monitor = monitor(context, &socket, "inproc://gradwire-router", FAILURES)?;
        socket.bind(endpoint)?;
        Ok((socket, monitor))
    };
    make().map_err(failed(&format!("listening at {endpoint}")))
}

/// A socket for one peer that listens, and its monitor.
pub(super) fn dealer(
    context: &Context,
    options: &ZmqOptions,
    peer: Rank,
    endpoint: &str,
) -> Result<(Socket, Socket), ZmqError> {
    let make = || {
        let socket = bounded(context, SocketType::DEALER, options, endpoint)?;
        // Nothing is queued without a connection, because a queue is lost when the connection ends.
        socket.set_immediate(true)?;
        socket.set_reconnect_ivl(RECONNECT)?;
        socket.set_reconnect_ivl_max(RECONNECT_AT_MOST)?;
        if let (Security::Curve(pair), Some(key)) = (&options.security, options.key_of(peer)) {
            socket.set_curve_serverkey(&key.0)?;
            socket.set_curve_publickey(&pair.public().0)?;
            socket.set_curve_secretkey(pair.secret())?;
        }
        let name = format!("inproc://gradwire-dealer-{}", peer.0);
        let monitor = monitor(context, &socket, &name, FAILURES | CONNECTIONS)?;
        socket.connect(endpoint)?;
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
    Connected,
    Disconnected,
    /// The other end does not admit this key.
    Denied,
    /// The other end has another key, or no key, or does not use this protocol.
    HandshakeFailed,
}

/// The next report of a monitor, if there is one.
pub(super) fn notice(monitor: &Socket) -> Option<Noticed> {
    loop {
        let frames = monitor.recv_multipart(zmq::DONTWAIT).ok()?;
        let raw = frames.first().and_then(|frame| frame.first_chunk().copied()).map_or(0, u16::from_ne_bytes);
        let is = |event: SocketEvent| i32::from(raw) == event as i32;
        if is(SocketEvent::HANDSHAKE_SUCCEEDED) {
            return Some(Noticed::Connected);
        } else if is(SocketEvent::DISCONNECTED) {
            return Some(Noticed::Disconnected);
        } else if is(SocketEvent::HANDSHAKE_FAILED_AUTH) {
            return Some(Noticed::Denied);
        } else if i32::from(raw) & FAILURES != 0 {
            return Some(Noticed::HandshakeFailed);
        }
    }
}
