//! The connection to a peer that listens: how far it has come, when it is greeted, and what is known of why
//! it does not come about.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use zmq::{Context, Socket};

use super::endpoint::Endpoint;
use super::error::ZmqError;
use super::options::ZmqOptions;
use super::sockets::{Cause, Noticed, dealer, has_stopped, notice};
use crate::growing::Growing;
use crate::rank::Rank;

/// The time until the first line says what is waited for.
const SAID_AFTER: Duration = Duration::from_secs(2);
/// The time between two attempts to send a greeting that found no connection.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// The first time between two greetings that were sent. A connection loses none of them, so this should not
/// be needed.
const GREET_AGAIN: Duration = Duration::from_secs(4);
/// The first and the longest time after which a peer is greeted again that found this end's rank taken.
const ASK_AGAIN: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];
/// The time between two looks whether a name has addresses now.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(10);

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing answers yet.
    Dialing,
    /// There is a connection, whose ends have not proved who they are.
    Connected,
    /// The peer is what it claims to be; this end's greeting is not answered.
    Proved,
    /// Both ends have greeted.
    Greeted,
}

/// What the resolver says of a name: whether it has only addresses of version 6.
type LookedUp = Option<Result<bool, String>>;

/// A socket that connects to one peer, and what is known of its connection.
pub(super) struct Dial {
    pub(super) socket: Socket,
    pub(super) monitor: Socket,
    /// Monitors of earlier sockets that are not closed yet. libzmq closes a socket later than it is told to,
    /// and its thread waits for ever to report to a monitor that is gone.
    retired: Vec<Socket>,
    endpoint: Endpoint,
    has_ipv6: bool,
    stage: Stage,
    /// When it got there.
    since: Instant,
    /// When the socket was made.
    dialed: Instant,
    greet_at: Instant,
    asked_in_vain: u32,
    /// The last greeting that was sent: when, and its length.
    hello: Option<(Instant, usize)>,
    /// Whether the last attempt made no connection.
    is_refused: bool,
    /// Why the last handshake failed, or the peer turns this end away.
    trouble: Option<String>,
    looked_up: Arc<Mutex<LookedUp>>,
    look_up_at: Instant,
    /// When the peer was missed.
    missed: Instant,
    growing: Growing,
}

/// What a dial's monitor reported that the transport must act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The peer does not admit this end's key.
    Denied,
    /// The handshake failed, for the stated reason.
    Failed(String),
}

impl Dial {
    /// Connects.
    pub(super) fn new(
        context: &Context,
        options: &ZmqOptions,
        (peer, times): (Rank, u64),
        endpoint: Endpoint,
        has_ipv6: bool,
    ) -> Result<Self, ZmqError> {
        let (socket, monitor) = dealer(context, options, (peer, times), &endpoint, has_ipv6)?;
        let now = Instant::now();
        Ok(Self {
            socket,
            monitor,
            retired: Vec::new(),
            endpoint,
            has_ipv6,
            stage: Stage::Dialing,
            since: now,
            dialed: now,
            greet_at: now,
            asked_in_vain: 0,
            hello: None,
            is_refused: false,
            trouble: None,
            looked_up: Arc::default(),
            look_up_at: now + SAID_AFTER / 2,
            missed: now,
            growing: Growing::new(SAID_AFTER, now),
        })
    }

    /// Replaces the socket by a new one: the old connection says nothing any more.
    pub(super) fn again(
        &mut self,
        context: &Context,
        options: &ZmqOptions,
        (peer, times): (Rank, u64),
    ) -> Result<(), ZmqError> {
        let has_ipv6 = self.looked_up().and_then(Result::ok).unwrap_or(self.has_ipv6);
        let (growing, missed, is_refused) = (self.growing, self.missed, self.is_refused);
        let trouble = self.trouble.take();
        let looked_up = Arc::clone(&self.looked_up);
        let new = Self::new(context, options, (peer, times), self.endpoint.clone(), has_ipv6)?;
        // What it holds is sent again.
        let _ = self.socket.set_linger(0);
        let old = std::mem::replace(self, Self { growing, missed, is_refused, trouble, looked_up, ..new });
        self.retired = old.retired;
        self.retired.push(old.monitor);
        Ok(())
    }

    fn reach(&mut self, stage: Stage, now: Instant) {
        if self.stage != stage {
            (self.stage, self.since) = (stage, now);
        }
    }

    /// Whether both ends have greeted over this connection.
    pub(super) fn is_greeted(&self) -> bool {
        self.stage == Stage::Greeted
    }

    /// Both ends have greeted. Returns how many bytes that took, and how long; `None` if it is not known.
    pub(super) fn greeted(&mut self, answer_bytes: usize, now: Instant) -> Option<(usize, Duration)> {
        self.reach(Stage::Greeted, now);
        (self.trouble, self.asked_in_vain) = (None, 0);
        let (sent, bytes) = self.hello.take()?;
        Some((bytes + answer_bytes, now.saturating_duration_since(sent)))
    }

    /// The connection does not count as greeted any more.
    pub(super) fn lost(&mut self, now: Instant) {
        if self.is_greeted() {
            self.reach(Stage::Proved, now);
            self.miss(now);
        }
    }

    /// From now on the peer is missed.
    fn miss(&mut self, now: Instant) {
        (self.missed, self.growing) = (now, Growing::new(SAID_AFTER, now));
    }

    /// Reads what the monitor has.
    pub(super) fn read_monitor(&mut self, handshake: Duration, now: Instant) -> Vec<Told> {
        self.retired.retain(|monitor| !has_stopped(monitor));
        let mut told = Vec::new();
        while let Some(noticed) = notice(&self.monitor) {
            told.extend(self.on_notice(noticed, handshake, now));
        }
        told
    }

    fn on_notice(&mut self, noticed: Noticed, handshake: Duration, now: Instant) -> Option<Told> {
        match noticed {
            Noticed::Connected => self.reach(Stage::Connected, now),
            Noticed::Proved => {
                self.lost(now);
                self.reach(Stage::Proved, now);
                (self.greet_at, self.hello) = (now, None);
            }
            Noticed::Disconnected => {
                // libzmq says nothing more of an end that does not even begin as it should.
                if self.stage == Stage::Connected {
                    self.trouble = Some(Cause::Protocol.to_string());
                }
                self.lost(now);
                self.reach(Stage::Dialing, now);
            }
            Noticed::NotConnected => {
                self.reach(Stage::Dialing, now);
                (self.is_refused, self.trouble) = (true, None);
            }
            Noticed::Denied => return Some(Told::Denied),
            Noticed::Failed(cause) => {
                let why = cause.at_connecting_end(now.saturating_duration_since(self.since), handshake);
                (self.is_refused, self.trouble) = (false, Some(why.clone()));
                self.reach(Stage::Dialing, now);
                return Some(Told::Failed(why));
            }
        }
        None
    }

    /// Whether this end must greet now.
    pub(super) fn is_to_greet(&self, now: Instant) -> bool {
        self.stage == Stage::Proved && now >= self.greet_at
    }

    /// Sends a greeting, if there is a connection.
    pub(super) fn greet(&mut self, hello: Vec<u8>, now: Instant) {
        let bytes = hello.len();
        if self.socket.send(hello, zmq::DONTWAIT).is_err() {
            self.greet_at = now + TRY_AGAIN;
            return;
        }
        // With two on their way, it would not be known which one is answered.
        let times = if self.hello.is_some() { 2 } else { 1 };
        self.hello = (times == 1).then_some((now, bytes));
        self.greet_at = now + GREET_AGAIN.max(2 * now.saturating_duration_since(self.since));
    }

    /// The peer has another one of this rank. It is asked again, more and more rarely.
    pub(super) fn taken(&mut self, now: Instant) {
        let [first, most] = ASK_AGAIN;
        self.greet_at = now + most.min(first * 2_u32.pow(self.asked_in_vain.min(8)));
        self.asked_in_vain += 1;
        self.hello = None;
        self.trouble = Some("it has another worker of this rank, which must leave first".to_owned());
    }

    /// Whether there was the time for the next stage, and it was not reached: another socket may help. libzmq
    /// gives a connection up for good after some errors. One that was greeted is judged by its silence.
    pub(super) fn is_stuck(&self, limit: Duration, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.since.max(self.dialed));
        !self.is_greeted() && self.asked_in_vain == 0 && since > limit
    }

    /// Whether the name has other addresses than the socket can use.
    pub(super) fn is_of_other_version(&mut self, now: Instant) -> bool {
        if self.stage != Stage::Dialing || !self.endpoint.is_name() || now < self.look_up_at {
            return false;
        }
        self.look_up_at = now + LOOK_UP_AGAIN;
        let (endpoint, looked_up) = (self.endpoint.clone(), Arc::clone(&self.looked_up));
        let look_up = move || {
            let found = endpoint.look_up().map(|found| found.iter().all(std::net::SocketAddr::is_ipv6));
            *looked_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        };
        // Without a thread, nothing is learnt this time.
        let _ = thread::Builder::new().name("zmq-look-up".to_owned()).spawn(look_up);
        matches!(self.looked_up(), Some(Ok(needs_ipv6)) if needs_ipv6 != self.has_ipv6)
    }

    fn looked_up(&self) -> LookedUp {
        self.looked_up.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For how long the peer is missed, if it is time to say so.
    pub(super) fn is_missed(&mut self, now: Instant) -> Option<Duration> {
        let is_told = !self.is_greeted() && self.growing.is_due(now);
        is_told.then(|| now.saturating_duration_since(self.missed))
    }

    /// What is known of why the peer is not there, and where it is looked for.
    pub(super) fn absence(&self, now: Instant) -> String {
        let so_far = now.saturating_duration_since(self.since).as_secs();
        let known = match (self.stage, self.looked_up(), &self.trouble) {
            (Stage::Dialing, Some(Err(why)), _) => format!("its name has no address ({why})"),
            (_, _, Some(trouble)) => trouble.clone(),
            (Stage::Dialing, ..) if self.is_refused => {
                "nothing listens there, or it cannot be reached".to_owned()
            }
            (Stage::Dialing, ..) => "no answer comes from there".to_owned(),
            (Stage::Connected, ..) => format!("connected, but no answer to the handshake for {so_far} s"),
            (Stage::Proved | Stage::Greeted, ..) => {
                format!("connected, but no answer to the greeting for {so_far} s")
            }
        };
        format!("{}: {known}", self.endpoint)
    }
}
