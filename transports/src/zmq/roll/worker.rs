//! A worker's part of the roll.

use super::message::{Notice, Report};
use super::tags::{NOTICE, REPORT, contains, request};
use crate::error::TransportError;
use crate::rank::{Membership, Rank};
use crate::tag::{Deadline, Tag};
use crate::transport::Transport;
use crate::zmq::transport::ZmqTransport;

/// Keeps a worker's place in the run of one server.
#[derive(Debug)]
pub struct Worker {
    server: Rank,
    /// The session of the last request, and how many requests were made in it.
    asked: (u64, u32),
    buffer: Vec<u8>,
}

impl Worker {
    /// A worker of the server `server`.
    pub fn new(server: Rank) -> Self {
        Self { server, asked: (0, 0), buffer: Vec::new() }
    }

    /// Asks to join when a step closes.
    ///
    /// # Errors
    /// The errors of `send`.
    pub fn ask(&mut self, transport: &mut ZmqTransport, deadline: Deadline) -> Result<(), TransportError> {
        let session = transport.session(self.server).ok_or_else(|| self.gone())?;
        if self.asked.0 != session {
            self.asked = (session, 0);
        }
        let tag = request(session, self.asked.1);
        self.asked.1 += 1;
        transport.send(self.server, tag, b"", deadline)
    }

    /// Waits for a step to close. Returns what comes next and the server's state, as it was passed to
    /// [`Server::close`](super::Server::close). The transport then has the new membership. After a `Timeout`
    /// it can be called again.
    ///
    /// # Errors
    /// The errors of `recv`; `Disconnected` also if nothing was asked, or if the answer is not valid.
    pub fn answer(
        &mut self,
        transport: &mut ZmqTransport,
        deadline: Deadline,
    ) -> Result<(Notice, &[u8]), TransportError> {
        let gone = self.gone();
        let (session, asked) = self.asked;
        let tag = request(session, asked.checked_sub(1).ok_or_else(|| gone.clone())?);
        transport.recv(self.server, tag.chunk(1), &mut self.buffer, deadline)?;
        let (notice, state) = Notice::read(&self.buffer).ok_or(gone)?;
        adopt(transport, &notice)?;
        Ok((notice, state))
    }

    fn gone(&self) -> TransportError {
        TransportError::Disconnected { rank: self.server }
    }

    /// Reports this worker's state, in the step of `tag`.
    ///
    /// # Errors
    /// The errors of `send`.
    pub fn report(
        &mut self,
        transport: &mut ZmqTransport,
        tag: Tag,
        report: Report,
        deadline: Deadline,
    ) -> Result<(), TransportError> {
        transport.send(self.server, tag.chunk(REPORT), &report.write(), deadline)
    }

    /// Waits for the notice of what comes after the step of `tag`. If this worker takes part, the transport
    /// then has the new membership. Otherwise it must ask again.
    ///
    /// # Errors
    /// The errors of `recv`; `Disconnected` also if the notice is not valid.
    pub fn next(
        &mut self,
        transport: &mut ZmqTransport,
        tag: Tag,
        deadline: Deadline,
    ) -> Result<Notice, TransportError> {
        transport.recv(self.server, tag.chunk(NOTICE), &mut self.buffer, deadline)?;
        let notice = Notice::read(&self.buffer).filter(|(_, rest)| rest.is_empty());
        let (notice, _) = notice.ok_or(TransportError::Disconnected { rank: self.server })?;
        if contains(&notice.ranks, transport.rank()) {
            adopt(transport, &notice)?;
        }
        Ok(notice)
    }
}

/// Continues in the epoch of the notice. If that is the current epoch, nothing has changed.
fn adopt(transport: &mut ZmqTransport, notice: &Notice) -> Result<(), TransportError> {
    if notice.epoch <= transport.membership().epoch {
        return Ok(());
    }
    let ranks = notice.ranks.iter().copied().collect();
    transport.adopt(Membership { epoch: notice.epoch, ranks })
}
