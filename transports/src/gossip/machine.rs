//! A step of gossip as a machine without I/O.
//!
//! | message | tag: unit 0, and of gossip | holds |
//! | --- | --- | --- |
//! | first | 0 | the fingerprint of what this end keeps, if the codec keeps anything; the payloads of round 0 |
//! | again | 1 | the same, from zeros, if the fingerprints differed |
//! | of round i | i + 1 | the payloads of round i |
//! | note | that of an exchange | the step failed at this rank: a void frame, or a no |

use std::time::Duration;

use gradwire::format::VoidFrame;
use gradwire::rounds::Gossip;
use gradwire::{Codec, LayoutRef, Source, StepKey, Unit};

use super::end::Round;
use super::{Mixed, Mixer};
use crate::derived::Kind;
use crate::exchange::driven::HasPort;
use crate::exchange::port::{Body, Port};
use crate::exchange::void::{VoidMessage, note_tag};
use crate::exchange::{Care, Drive, ExchangeError, Machine, Next, Progress, Setting, Work};
use crate::tag::{Tag, Wanted};

/// A note that says no more than that the step failed. It is no void frame.
const NO: [u8; 1] = [0x5a];

/// Numbers of messages between two neighbours in a step. That of round i, from 1 on, is `AGAIN` + i.
const FIRST: u32 = 0;
const AGAIN: u32 = 1;

/// Where a step is.
#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Over,
    /// Payloads of the round are to be made.
    Speaking,
    /// Messages of the round are awaited.
    Listening,
    /// Undone. The notes to the neighbours are to leave.
    Failed(ExchangeError),
}

/// The step in progress.
#[derive(Debug, Default)]
pub(super) struct Step {
    stage: Stage,
    key: Option<StepKey>,
    tag: Tag,
    round: u32,
    /// The model before the step, once a round has moved it.
    before: Vec<f32>,
    sent_bytes: usize,
    codec: Duration,
    exchange: Duration,
}

impl Step {
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }
}

impl Mixer {
    /// Begins a step, which must end at `by`. Time is in nanoseconds from any moment that stays the same;
    /// [`u64::MAX`] is never. Edges to ranks that are neighbours no more are forgotten.
    ///
    /// # Errors
    /// `Busy`; `NotAPeer` for a rank that is no member.
    pub fn begin(&mut self, setting: Setting, key: StepKey, now: u64, by: u64) -> Result<(), ExchangeError> {
        if !self.step.is_over() {
            return Err(ExchangeError::Busy);
        }
        let Setting { rank, membership, is_fail_stop } = setting;
        self.look_around(rank, &membership)?;
        let tag = Tag::new(membership.epoch, key.step);
        self.port.begin(rank, membership, is_fail_stop, tag);
        (self.port.now, self.port.deadline, self.port.has_notes) = (now, by, true);
        for end in &mut self.ends {
            end.begin_step();
            self.port.ask(Wanted::one(end.neighbour, note_tag(tag)));
        }
        let before = std::mem::take(&mut self.step.before);
        self.step = Step { stage: Stage::Speaking, key: Some(key), tag, before, ..Step::default() };
        self.step.before.clear();
        Ok(())
    }

    /// The same as a step that borrows mixer and model, so that misuse does not compile.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    pub fn step<'s>(
        &'s mut self,
        setting: Setting,
        key: StepKey,
        model: &'s mut [f32],
        now: u64,
        by: u64,
    ) -> Result<Mixing<'s>, ExchangeError> {
        self.begin(setting, key, now, by)?;
        Ok(Mixing { mixer: self, model })
    }

    /// Does one piece of the work until the model has moved. `model` is the same in every call of a step.
    ///
    /// # Errors
    /// Those of [`mix`](Self::mix). The step is over then.
    ///
    /// # Panics
    /// When `model` has another length than the layout.
    ///
    /// # Determinism
    /// In each round a model moves along its edges in the order of the neighbours' ranks, unit by unit,
    /// whatever arrived first.
    pub fn work(&mut self, model: &mut [f32], now: u64) -> Result<Progress<Mixed>, ExchangeError> {
        assert_eq!(model.len(), self.layout.len(), "model and layout differ in length");
        self.port.now = now;
        let done = match &self.step.stage {
            Stage::Over => return Err(ExchangeError::NotStarted),
            Stage::Speaking => self.speak(model),
            Stage::Listening => self.listen(model),
            Stage::Failed(_) => return self.end_failed(),
        };
        match done {
            Ok(Progress::Waiting) if self.port.outgoing().is_some() => Ok(Progress::Worked(Work::Exchange)),
            Err(error) => {
                self.refuse(error, model);
                Ok(Progress::Worked(Work::Exchange))
            }
            done => done,
        }
    }

    /// Makes and queues the messages of a round, all from the same model.
    fn speak(&mut self, model: &[f32]) -> Result<Progress<Mixed>, ExchangeError> {
        let number = if self.step.round == 0 { FIRST } else { AGAIN + self.step.round };
        for at in 0..self.ends.len() {
            self.speak_to(at, model, number)?;
        }
        self.step.stage = Stage::Listening;
        Ok(Progress::Worked(Work::Encode))
    }

    /// Sends the message with that number to a neighbour, who sends one too.
    fn speak_to(&mut self, at: usize, model: &[f32], number: u32) -> Result<(), ExchangeError> {
        let (end, tag) = (&mut self.ends[at], self.step.tag.derive(Kind::Gossip, number as usize)?);
        let (layout, mut message) = (self.layout.as_ref(), self.port.lend_for(0));
        message.clear();
        let round = round_of(self.codec.codec(), &layout, &self.units, &self.step);
        end.speak(&round, model, &mut message)?;
        self.step.sent_bytes += message.len();
        self.port.queue(end.neighbour, tag, Body::Own(message), Care::Must);
        self.port.expect(end.neighbour, tag);
        (end.awaited, end.is_afresh) = (tag, number == AGAIN);
        Ok(())
    }

    /// Reads one message, or moves the model if all are read.
    fn listen(&mut self, model: &mut [f32]) -> Result<Progress<Mixed>, ExchangeError> {
        let Some(at) = self.ends.iter().position(|end| !end.has_heard) else {
            return self.advance(model);
        };
        let end = &mut self.ends[at];
        let name = (end.neighbour, end.awaited);
        if !self.port.take_named(name, &mut end.message, &self.layout)? {
            return Ok(Progress::Waiting);
        }
        let layout = self.layout.as_ref();
        let round = round_of(self.codec.codec(), &layout, &self.units, &self.step);
        if !end.hear(&round)? {
            if end.is_afresh {
                return Err(ExchangeError::NotAgreed { rank: end.neighbour });
            }
            end.start_afresh();
            self.speak_to(at, model, AGAIN)?;
        }
        Ok(Progress::Worked(Work::Decode))
    }

    /// Moves the model along all edges. Nothing can fail any more in the last round.
    fn advance(&mut self, model: &mut [f32]) -> Result<Progress<Mixed>, ExchangeError> {
        let is_last = self.step.round + 1 >= self.codec.codec().rounds();
        if is_last && !self.port.has_sent()? {
            return Ok(Progress::Waiting);
        }
        if !is_last && self.step.round == 0 {
            self.step.before.extend_from_slice(model);
        }
        let layout = self.layout.as_ref();
        let round = round_of(self.codec.codec(), &layout, &self.units, &self.step);
        self.ends.iter_mut().for_each(|end| end.advance(&round, self.weight, model));
        if is_last {
            return Ok(Progress::Done(self.end()));
        }
        (self.step.round, self.step.stage) = (self.step.round + 1, Stage::Speaking);
        Ok(Progress::Worked(Work::Decode))
    }

    fn end(&mut self) -> Mixed {
        self.port.end();
        self.step.stage = Stage::Over;
        let Step { sent_bytes, codec, exchange, .. } = self.step;
        Mixed { neighbours: self.neighbours.clone(), sent_bytes, codec, exchange }
    }

    /// Undoes the step, and tells the neighbours, who may wait for messages that do not come.
    fn refuse(&mut self, error: ExchangeError, model: &mut [f32]) {
        if !self.step.before.is_empty() {
            model.copy_from_slice(&self.step.before);
        }
        self.port.drop_musts();
        let void = match &error {
            ExchangeError::Encode(error) => {
                VoidFrame::of(Codec::NONE.capabilities().id, self.step.tag.step, error)
            }
            _ => None,
        };
        let void = void.map(|void| VoidMessage::new(&void, &self.layout.as_ref()));
        let note = void.as_ref().map_or(&NO[..], VoidMessage::bytes);
        for end in &mut self.ends {
            end.undo();
            let care = Care::Until(self.port.deadline);
            self.port.queue_copy(end.neighbour, note_tag(self.step.tag), note, care);
        }
        self.step.stage = Stage::Failed(error);
    }

    /// The step is over once the notes have left, or it is too late for them.
    fn end_failed(&mut self) -> Result<Progress<Mixed>, ExchangeError> {
        if !self.port.is_empty() && self.port.now < self.port.deadline {
            return Ok(Progress::Waiting);
        }
        self.port.end();
        match std::mem::take(&mut self.step.stage) {
            Stage::Failed(error) => Err(error),
            _ => Err(ExchangeError::NotStarted),
        }
    }
}

fn round_of<'a>(
    codec: &'a dyn Gossip,
    layout: &'a LayoutRef<'a>,
    units: &'a [Unit],
    step: &Step,
) -> Round<'a> {
    let key = step.key.expect("a step in progress has a key");
    Round { codec, key: StepKey { source: Source::Shared, ..key }, layout, units, number: step.round }
}

/// A step of gossip: see [`Mixer::step`].
#[derive(Debug)]
#[must_use = "a step does nothing unless it is driven to its end"]
pub struct Mixing<'s> {
    mixer: &'s mut Mixer,
    model: &'s mut [f32],
}

impl Drive for Mixing<'_> {
    type Done = Mixed;

    fn machine(&mut self) -> &mut dyn Machine {
        self.mixer
    }

    /// # Errors
    /// Those of [`Mixer::mix`].
    fn work(self, now: u64) -> Result<Next<Self, Mixed>, ExchangeError> {
        let progress = self.mixer.work(self.model, now)?;
        Ok(progress.of(self, |_, mixed| mixed))
    }
}

impl HasPort for Mixer {
    fn port(&self) -> &Port {
        &self.port
    }

    fn port_mut(&mut self) -> &mut Port {
        &mut self.port
    }

    /// All messages have buffers of their own.
    fn frame(&self, _: usize, _: usize) -> &[u8] {
        &[]
    }

    fn spend(&mut self, work: Work, time: Duration) {
        *match work {
            Work::Exchange => &mut self.step.exchange,
            Work::Encode | Work::Decode => &mut self.step.codec,
        } += time;
    }
}
