//! What peers that are here send each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Engine, Over, TURN};
use crate::error::TransportError;
use crate::rank::Rank;
use crate::tcp::error::TcpError;
use crate::tcp::frame::Control;
use crate::tcp::inlet::Arrived;
use crate::tcp::link::{Connection, Link, Stage};
use crate::tcp::reader::{AHEAD, Entry, Item};
use crate::tcp::wire::Frame;

impl Engine {
    /// Reads what a peer sent, up to a bound.
    pub(super) fn read_frames(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Over> {
        let garbage = |_| Over("it sent what is no frame".to_owned());
        let (me, shared) = (self.options.rank, Arc::clone(&self.shared));
        let mut moved = 0;
        loop {
            let Some((wire, link)) = connection.link() else { return Ok(()) };
            let from = Rank(link.rank as u32);
            let enter = |tag, len: usize| {
                let lengths = (len, len.min(AHEAD));
                match shared.mailbox.reserve_next((me, from), tag, lengths) {
                    Ok(Some(buffer)) => Entry::Into(buffer),
                    Err(TransportError::NoRoom { .. }) => Entry::Full,
                    Ok(None) | Err(_) => Entry::Drop,
                }
            };
            let mut input = wire.inlet.plain().map_err(garbage)?;
            let before = input.len();
            let item = link.reader.next(&mut input, enter).map_err(garbage)?;
            let used = before - input.len();
            wire.inlet.take_plain(used);
            let is_message = matches!(item, Some(Item::Message(..))) || link.reader.left() > 0;
            self.has_moved |= used > 0 && is_message;
            let was_blocked = std::mem::replace(&mut link.is_blocked, false);
            if let Some(Item::Message(..) | Item::Control(_)) = item {
                link.heard(now);
            }
            match item {
                Some(Item::Message(tag, bytes)) => shared.mailbox.fill(from, tag, bytes),
                Some(Item::Control(control)) => {
                    if let Some(answer) = self.hear(link, control, now)? {
                        wire.push_control(answer);
                    }
                }
                Some(Item::Blocked) => {
                    link.is_blocked = true;
                    link.did_not_listen(now);
                    // The caller may have made room before it could know that this matters.
                    let is_known = shared.is_held_back.swap(true, Ordering::SeqCst);
                    if was_blocked && is_known {
                        return Ok(());
                    }
                }
                None if used > 0 => {}
                None if !wire.is_readable || moved >= TURN => return Ok(()),
                None => match wire.read()? {
                    Arrived::Nothing => return Ok(()),
                    Arrived::End => return Err(Over("it closed the connection".to_owned())),
                    Arrived::Some(count) => {
                        link.came(count, now);
                        moved += count;
                        self.came += count;
                        self.is_busy = true;
                    }
                },
            }
        }
    }

    /// Does what a frame says; returns the answer.
    fn hear(&mut self, link: &mut Link, control: Control, now: Instant) -> Result<Option<Vec<u8>>, Over> {
        match control {
            Control::Heartbeat => {}
            Control::Moving => self.shared.lock().moved = now,
            Control::Bye => {
                link.has_left = true;
                self.bury(link.rank, false);
                return Ok(Some(Control::Farewell.to_bytes()));
            }
            Control::Farewell if link.said_bye => {
                self.shared.lock().peers[link.rank].is_settled = true;
            }
            Control::Lost(rank) => {
                let rank_at = rank.0 as usize;
                if !self.has_begun {
                    self.shared.fail(TcpError::Lost { rank });
                } else if rank_at < self.world && rank_at != self.me() {
                    self.connections.drop_peer(rank_at);
                    self.bury(rank_at, true);
                }
            }
            Control::Roster(addresses) if link.rank == 0 && addresses.len() == self.world => {
                for (dial, address) in self.dials.iter_mut().zip(addresses) {
                    dial.address.get_or_insert(address);
                }
            }
            _ => return Err(Over("it sent a frame that is out of place".to_owned())),
        }
        Ok(None)
    }

    pub(super) fn send(&mut self, now: Instant) {
        self.collect();
        let mut written: Vec<(usize, Frame)> = Vec::new();
        let mut over = Vec::new();
        for (&token, connection) in &mut self.connections.by_token {
            let rank = if let Stage::Peer(link) = &connection.stage { Some(link.rank) } else { None };
            let has_messages = connection.wire.has_messages();
            let flushed = connection.wire.flush(TURN, |frame| {
                written.extend(rank.filter(|_| frame.is_message).map(|rank| (rank, frame)));
            });
            match flushed {
                Ok(0) => {}
                Ok(_) => {
                    self.is_busy = true;
                    self.has_moved |= has_messages;
                    connection.link().into_iter().for_each(|(_, link)| link.last_sent = now);
                }
                Err(error) => over.push((token, error)),
            }
        }
        if !written.is_empty() {
            let mut state = self.shared.lock();
            for (rank, frame) in written {
                state.peers[rank].outbox.written(&frame);
                state.spares.put(frame.bytes);
            }
            drop(state);
            self.shared.notify();
        }
        for (token, error) in over {
            let Some(mut connection) = self.connections.by_token.remove(&token) else { continue };
            // What came before the connection broke still counts.
            let read = self.advance(&mut connection, now);
            let why = read.err().map_or_else(|| error.to_string(), |Over(why)| why);
            self.end(connection, &why, now);
        }
    }

    /// Moves messages from the queues to sockets that have nothing to write.
    fn collect(&mut self) {
        let mut state = self.shared.lock();
        state.look();
        let is_closing = state.closing.is_some() && self.has_begun;
        for (wire, link) in self.connections.peers() {
            if !wire.is_idle() || link.has_left {
                continue;
            }
            let outbox = &mut state.peers[link.rank].outbox;
            let mut bytes = 0;
            while bytes < TURN
                && let Some(frame) = outbox.pop()
            {
                bytes += frame.len();
                wire.push(Frame { bytes: frame, is_message: true });
            }
            if is_closing && outbox.is_empty() && !link.said_bye {
                wire.push_control(Control::Bye.to_bytes());
                link.said_bye = true;
            }
        }
    }
}
