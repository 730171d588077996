//! What may change between two steps of an exchange: codecs, densities, ranks, and the server's settings.

use std::any::type_name;
use std::time::Duration;

use gradwire::{Codec, Density, Gather, Memory};

use super::error::ExchangeError;
use super::fit::{Traits, require};
use super::{Exchange, State};

impl Exchange {
    /// Sets the codec of the steps from here on. Schedules and controllers call this between steps, with
    /// [`Spec::codec_in`](gradwire::Spec::codec_in) or their own choice. Every member must set the same codec
    /// for the same steps: frames of another codec are refused.
    ///
    /// The units stay, including those that are sent dense, and so do the spelling's memory and packets. The
    /// memory must suit both codecs: both or neither keep a [state](gradwire::state::UnitState) of each unit,
    /// and both keep the same number of factors. A step then gives and keeps what a new exchange with that
    /// codec would have given and kept, from the same memory.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish; `OtherMemory` for a codec that keeps other parts;
    /// `Conflict` if the spelling's memory or packets do not work with it; those of [`new`](Self::new) for a
    /// codec that does not fit the route. Nothing has changed then.
    pub fn set_codec(&mut self, codec: Codec) -> Result<(), ExchangeError> {
        self.require_idle()?;
        let traits = [Traits::of_codec(&codec)];
        if self.plan.only().is_some_and(|group| group.listed().is_some()) {
            require(&traits, self.route.kind())?;
            self.require_senders(&traits, self.divisor)?;
        }
        Ok(self.plan.set_codec(codec, &self.layout.as_ref())?)
    }

    pub(super) fn require_idle(&self) -> Result<(), ExchangeError> {
        if self.started.is_some() { Err(ExchangeError::Busy) } else { Ok(()) }
    }

    /// Gives each unit a density of its own for the steps from here on, until [`set_codec`](Self::set_codec)
    /// or [`set_density`](Self::set_density) is called, as a plan
    /// [sets densities](gradwire::plan::Plan::set_densities). Frames are ordinary frames of the codec. Every
    /// member must set the same densities for the same steps.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish; `Conflict` for a codec without a density, and with
    /// packets. Nothing has changed then.
    ///
    /// # Panics
    /// When there are more or fewer densities than units.
    pub fn set_densities(&mut self, densities: &[Density]) -> Result<(), ExchangeError> {
        self.require_idle()?;
        Ok(self.plan.set_densities(densities)?)
    }

    /// Sets the rank for the steps from here on, of a codec that has one, and turns the factors in `memory`
    /// into those of that rank, as a plan [sets ranks](gradwire::plan::Plan::set_ranks). The residual stays
    /// as it is, bit for bit. Every member must set the same rank for the same steps.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish; `Conflict` for a codec without a rank, and for a
    /// rank that it does not have; `Encode` for a memory of another rank. Nothing has changed then.
    pub fn set_rank(&mut self, rank: u16, memory: &mut Memory<'_>) -> Result<(), ExchangeError> {
        self.set_ranks(&vec![rank; self.units().len()], memory)
    }

    /// The same with a rank for each unit: `ranks` has one for each of the [`units`](Self::units), in order.
    ///
    /// # Errors
    /// As [`set_rank`](Self::set_rank).
    ///
    /// # Panics
    /// When there are more or fewer ranks than units.
    pub fn set_ranks(&mut self, ranks: &[u16], memory: &mut Memory<'_>) -> Result<(), ExchangeError> {
        self.require_idle()?;
        Ok(self.plan.set_ranks(ranks, &self.layout.as_ref(), memory)?)
    }

    /// Sets the density of every codec that has one to that of its warm-up in an epoch, as a plan
    /// [sets the epoch](gradwire::plan::Plan::set_epoch).
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<(), ExchangeError> {
        self.require_idle()?;
        self.plan.set_epoch(epoch);
        Ok(())
    }

    /// Sets the density of every codec that has one.
    ///
    /// # Errors
    /// `Busy` between the start of a step and its finish.
    pub fn set_density(&mut self, density: Density) -> Result<(), ExchangeError> {
        self.require_idle()?;
        self.plan.set_density(density);
        Ok(())
    }

    /// Sets the [quorum](super::ServerOptions::quorum) for the steps from here on. Only the server's matters.
    pub fn set_quorum(&mut self, quorum: usize) {
        if let State::Server(server) = &mut self.route {
            server.set_quorum(quorum);
        }
    }

    /// Sets the [patience](super::ServerOptions::patience) for the steps from here on.
    pub fn set_patience(&mut self, patience: Duration) {
        if let State::Server(server) = &mut self.route {
            server.set_patience(patience);
        }
    }

    /// The same, with any gather codec for the means that the server sends back, also one of another crate,
    /// in place of a spelling for the [downlink](super::ServerOptions::downlink). `memory` is what that codec
    /// keeps at the server. Every member must do the same with the same codec. Only the server's memory is
    /// used, so the others pass `None`.
    ///
    /// The codec encodes the mean as it encodes a gradient, with the same units and the key of the server's
    /// step. All ranks, the server too, apply what the frame decodes to. Sent + kept = residual + mean, by
    /// the codec's [law](gradwire::registry::Law). A step that fails does not change what is kept. Make the
    /// memory for the keeper [`Server`](gradwire::state::Keeper::Server); it may have arrays of the codec's
    /// own. It is part of a checkpoint, see [`downlink_memory`](Self::downlink_memory).
    ///
    /// # Errors
    /// `NoDownlink` by a route without a server, and where a server reduces payloads; `RoundsFirst` for a
    /// codec with rounds before its frame.
    ///
    /// # Panics
    /// When the memory has another length than the layout.
    pub fn with_downlink<C: Gather + 'static>(
        mut self,
        codec: C,
        memory: Option<Memory<'static>>,
    ) -> Result<Self, ExchangeError> {
        let State::Server(server) = &mut self.route else {
            return Err(ExchangeError::NoDownlink { codec: type_name::<C>() });
        };
        if server.kind().is_summed() {
            return Err(ExchangeError::NoDownlink { codec: type_name::<C>() });
        }
        if codec.rounds_first().is_some() {
            return Err(ExchangeError::RoundsFirst { codec: type_name::<C>() });
        }
        let is_long = memory.as_ref().is_none_or(|memory| memory.len() == self.layout.len());
        assert!(is_long, "memory and layout differ in length");
        server.set_downlink(Box::new(codec), memory);
        Ok(self)
    }

    /// The memory of the downlink: what the server has not sent yet, if the downlink has error feedback, and
    /// everything else that its codec keeps. Only the memory of the server is used. To continue a run
    /// elsewhere, [save](Memory::save) and [load](Memory::load) it.
    pub fn downlink_memory(&mut self) -> Option<&mut Memory<'static>> {
        match &mut self.route {
            State::Server(server) => server.downlink_memory(),
            _ => None,
        }
    }

    /// The norms of frames over which the median of the [norm cap](super::ServerOptions::norm_cap) is taken,
    /// oldest first, at most 64; empty without a cap, and at workers. A server that continues elsewhere saves
    /// them and passes them to [`restore_norms`](Self::restore_norms).
    pub fn norms(&self) -> Vec<f64> {
        match &self.route {
            State::Server(server) => server.norms(),
            _ => Vec::new(),
        }
    }

    /// Continues from the result of [`norms`](Self::norms); without a cap, nothing changes. Norms that are
    /// not finite and positive are left out.
    pub fn restore_norms(&mut self, norms: &[f64]) {
        if let State::Server(server) = &mut self.route {
            server.restore_norms(norms);
        }
    }
}
