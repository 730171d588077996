//! Payloads of a linear codec in place of frames: in each round every worker sends those of all units in one
//! message, and the server answers with their reductions.

use gradwire::{Grad, Memory};

use super::error::ExchangeError;
use super::means::Means;
use super::payload::{UnitRounds, require_workers};
use super::step::Step;
use super::void::refusal;
use crate::collective::{Reduce, Star, Wire};
use crate::error::TransportError;
use crate::rank::Rank;

const WIRE: Wire = Wire::F32;
/// The first byte of a worker's payloads. A void frame and a failure, which may take their place, begin with
/// other bytes.
const PAYLOADS: u8 = 0x01;

/// The units of one rank on their way through their rounds.
#[derive(Debug)]
pub(super) struct Served {
    units: Vec<UnitRounds>,
    round: u32,
    bytes: usize,
    held: usize,
}

impl Served {
    pub(super) fn new(units: usize) -> Self {
        let units = (0..units).map(|_| UnitRounds::default()).collect();
        Self { units, round: 0, bytes: 0, held: 0 }
    }

    /// The number of the round, from 0.
    pub(super) fn round(&self) -> u32 {
        self.round
    }

    /// Bytes of this rank's own payloads so far.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Coordinates that the mean covers.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Begins a step.
    pub(super) fn begin_step(&mut self) {
        (self.round, self.bytes, self.held) = (0, 0, 0);
    }

    /// Begins all units. Only reads the memory: it changes when the means are complete.
    pub(super) fn begin(
        &mut self,
        step: &Step<'_>,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<(), ExchangeError> {
        assert_eq!(grad.len(), step.layout.len(), "gradient and layout differ in length");
        require_workers(step, step.units())?;
        for (rounds, unit) in self.units.iter_mut().zip(step.units()) {
            let grad = step.selected.map_or_else(|| grad.slice(unit.start, unit.len), |_| grad);
            self.held += rounds.begin(step, unit, grad, memory)?;
        }
        Ok(())
    }

    /// Lends the payloads of all units whose rounds are not over, one after the other.
    fn for_each(&mut self, step: &Step<'_>, mut work: impl FnMut(Reduce<'_>)) -> Result<(), TransportError> {
        let units = self.units.iter_mut().zip(step.units());
        units.filter(|(rounds, _)| rounds.round.is_some()).try_for_each(|(rounds, unit)| {
            rounds.with_payload(step.plan, unit, WIRE, |data| {
                work(data);
                Ok(())
            })
        })
    }

    /// Appends what this rank sends in the round.
    pub(super) fn write_share(&mut self, step: &Step<'_>, out: &mut Vec<u8>) -> Result<(), TransportError> {
        let (star, me) = (star(step), step.place_in(&step.members()));
        out.push(PAYLOADS);
        self.for_each(step, |data| star.write_share(me, &data, out))
    }

    /// Adds what the member at that position has sent; after an error, nothing was added.
    pub(super) fn add(
        &mut self,
        step: &Step<'_>,
        (rank, position): (Rank, usize),
        message: &[u8],
    ) -> Result<(), ExchangeError> {
        // One of another version may have anything in its messages.
        step.port.require_version()?;
        let Some((&PAYLOADS, mut rest)) = message.split_first() else {
            let refusal = refusal(rank, message, &step.layout.as_ref(), step.key.step);
            return Err(refusal.unwrap_or(ExchangeError::WrongUnits { rank }));
        };
        let (star, mut bytes) = (star(step), 0);
        self.for_each(step, |data| bytes += star.share_bytes(position, &data))?;
        if bytes != rest.len() {
            return Err(ExchangeError::WrongUnits { rank });
        }
        self.for_each(step, |mut data| {
            let (own, behind) = rest.split_at(star.share_bytes(position, &data));
            star.land_share(position, &mut data, own);
            rest = behind;
        })?;
        Ok(())
    }

    /// Appends the reductions of the round.
    pub(super) fn write(&mut self, step: &Step<'_>, out: &mut Vec<u8>) -> Result<(), TransportError> {
        self.for_each(step, |data| Star::write(&data, out))
    }

    /// Takes the reductions of the round, and turns them into the next round, or into means. Returns whether
    /// they have the right length; if not, nothing has changed.
    pub(super) fn advance(
        &mut self,
        step: &Step<'_>,
        reduced: &[u8],
        mean: &mut dyn Means,
        memory: &mut Option<&mut Memory<'_>>,
    ) -> Result<bool, TransportError> {
        let mut bytes = 0;
        self.for_each(step, |data| bytes += data.len() * data.element_bytes())?;
        if bytes != reduced.len() {
            return Ok(false);
        }
        let mut rest = reduced;
        self.for_each(step, |mut data| {
            let (own, behind) = rest.split_at(data.len() * data.element_bytes());
            Star::land(&mut data, own);
            rest = behind;
        })?;
        for (rounds, unit) in self.units.iter_mut().zip(step.units()) {
            self.bytes += rounds.advance(step, unit, WIRE, mean, memory);
        }
        self.round += 1;
        Ok(true)
    }

    /// Whether all units have their means.
    pub(super) fn is_over(&self) -> bool {
        self.units.iter().all(|rounds| rounds.round.is_none())
    }

    /// Every unit keeps all of residual + gradient, also those whose mean was complete.
    pub(super) fn give_back(&mut self, step: &Step<'_>, memory: &mut Option<&mut Memory<'_>>) {
        let units = self.units.iter_mut().zip(step.units());
        units.for_each(|(rounds, unit)| rounds.abandon(step, unit, memory));
    }
}

fn star(step: &Step<'_>) -> Star {
    Star { world: step.port.members().world() }
}
