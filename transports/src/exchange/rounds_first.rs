//! Rounds before a frame: every rank sends its numbers to all, and all reduce them in rank order.
//!
//! A message is one byte that names the reduction, and the numbers as f32 LE. Its tag is that of the first
//! frame of a codec without rounds. So a rank that runs another codec is recognised at once. So is a rank
//! whose gradient cannot be encoded, because its void frame has that tag too.

use gradwire::arithmetic::first_non_finite;
use gradwire::rounds::{Reduction, RoundsFirst};
use gradwire::{Encoder, Grad, Memory, StepInput, Unit};

use super::error::ExchangeError;
use super::parts::Part;
use super::port::Care;
use super::step::Step;
use super::void::refusal;
use crate::collective::max_f32;
use crate::error::TransportError;
use crate::rank::Rank;

/// What all ranks agreed on in this step.
#[derive(Debug, Default)]
pub(super) struct FirstRounds {
    encoder: Encoder,
    /// The numbers of all units of the step: first this rank's own, then the reduced ones.
    numbers: Vec<f32>,
    theirs: Vec<f32>,
    sum: Vec<f32>,
    message: Vec<u8>,
    rounds: u32,
    /// The reduction that waits for the numbers of others, and the position of the member that comes next.
    reducing: Option<Reduce>,
    next: usize,
}

impl FirstRounds {
    /// The number of rounds so far, each of which used one chunk of the tag.
    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The numbers of the units of a part.
    pub(super) fn numbers(&self, step: &Step<'_>, codec: &dyn RoundsFirst, part: Part<'_>) -> &[f32] {
        let len = |units: &[Unit]| units.iter().map(|unit| codec.number_count(unit)).sum::<usize>();
        &self.numbers[len(&step.units()[..part.first])..][..len(part.units)]
    }

    pub(super) fn begin_step(&mut self) {
        (self.rounds, self.reducing) = (0, None);
    }

    /// Runs all rounds of the step, as far as the messages of the others are here. Returns whether the rounds
    /// are over. The memory is only read.
    pub(super) fn agree(
        &mut self,
        step: &mut Step<'_>,
        codec: &dyn RoundsFirst,
        grad: Grad<'_>,
        memory: Option<&Memory<'_>>,
    ) -> Result<bool, ExchangeError> {
        loop {
            if let Some(reduce) = self.reducing {
                if !self.reduce(step, reduce)? {
                    return Ok(false);
                }
                (self.reducing, self.rounds) = (None, self.rounds + 1);
            }
            let (layout, key, units) = (step.layout.as_ref(), step.key, step.units());
            let input = StepInput { key, layout: &layout, units, grad };
            let round = self.encoder.round(codec, self.rounds, &input, memory, &mut self.numbers)?;
            let Some(reduction) = round else { return Ok(true) };
            self.begin_round(step, Reduce::of(reduction)?);
        }
    }

    /// Sends this rank's numbers to all.
    fn begin_round(&mut self, step: &mut Step<'_>, reduce: Reduce) {
        self.message.clear();
        self.message.push(reduce as u8);
        self.message.extend(self.numbers.iter().flat_map(|number| number.to_le_bytes()));
        let tag = step.tag.chunk(self.rounds);
        step.send_to_all(tag, &self.message, Care::Must);
        step.expect_from_all(tag);
        (self.reducing, self.next) = (Some(reduce), 0);
    }

    /// Replaces the numbers by their reduction over all ranks. Returns whether those of all ranks are here.
    fn reduce(&mut self, step: &mut Step<'_>, reduce: Reduce) -> Result<bool, ExchangeError> {
        let (members, me) = (step.members(), step.rank());
        while let Some(&rank) = members.as_slice().get(self.next) {
            if rank != me {
                if !step.take(&mut self.message)? {
                    return Ok(false);
                }
                self.read(step, rank, reduce)?;
            }
            let next = if rank == me { &self.numbers } else { &self.theirs };
            if self.next == 0 {
                self.sum.clone_from(next);
            } else {
                self.sum.iter_mut().zip(next).for_each(|(sum, next)| *sum = reduce.fold(*sum, *next));
            }
            if let Some(index) = first_non_finite(&self.sum) {
                return Err(ExchangeError::NonFinitePayload { rank, index });
            }
            self.next += 1;
        }
        self.numbers.copy_from_slice(&self.sum);
        Ok(true)
    }

    /// Reads the message of another rank.
    fn read(&mut self, step: &Step<'_>, rank: Rank, reduce: Reduce) -> Result<(), ExchangeError> {
        if let Some(refusal) = refusal(rank, &self.message, &step.layout.as_ref(), step.key.step) {
            return Err(refusal);
        }
        match self.message.split_first() {
            Some((&kind, numbers)) if kind == reduce as u8 && numbers.len() == 4 * self.numbers.len() => {
                self.theirs.clear();
                self.theirs.extend(numbers.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
                Ok(())
            }
            _ => Err(ExchangeError::WrongUnits { rank }),
        }
    }
}

/// The first byte of a message for each reduction. A frame begins with another byte.
#[derive(Clone, Copy, Debug)]
enum Reduce {
    Sum = 0,
    Max = 1,
}

impl Reduce {
    fn of(reduction: Reduction) -> Result<Self, TransportError> {
        match reduction {
            Reduction::SumF32 => Ok(Self::Sum),
            Reduction::MaxF32 => Ok(Self::Max),
            _ => Err(TransportError::Unsupported { operation: "reduction of this kind before a frame" }),
        }
    }

    fn fold(self, sum: f32, next: f32) -> f32 {
        match self {
            Self::Sum => sum + next,
            Self::Max => max_f32(sum, next),
        }
    }
}
