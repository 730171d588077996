//! Keeps the log readable: an event that strangers cause is reported at once, then at most once a second,
//! with a count.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::event::Event;

const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Different events that are counted separately. Further ones are dropped until some were reported.
const MOST: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Refused,
    Garbage,
}

#[derive(Debug, Default)]
struct Story {
    times: u64,
    told: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Strangers(BTreeMap<(Kind, String, String), Story>);

impl Strangers {
    /// A peer was turned away.
    pub(super) fn refused(&mut self, who: String, why: String) {
        self.count((Kind::Refused, who, why));
    }

    /// An invalid message was dropped.
    pub(super) fn garbage(&mut self, who: String, what: String) {
        self.count((Kind::Garbage, who, what));
    }

    fn count(&mut self, story: (Kind, String, String)) {
        if self.0.len() < MOST || self.0.contains_key(&story) {
            self.0.entry(story).or_default().times += 1;
        }
    }

    /// Reports the events that are due.
    pub(super) fn report(&mut self, now: Instant, events: &mut Vec<Event>) {
        for ((kind, who, what), story) in &mut self.0 {
            let is_due =
                story.told.is_none_or(|told| now.saturating_duration_since(told) >= TOLD_AGAIN_AFTER);
            if story.times == 0 || !is_due {
                continue;
            }
            let (who, what, times) = (who.clone(), what.clone(), story.times);
            events.push(match kind {
                Kind::Refused => Event::Refused { who, why: what, times },
                Kind::Garbage => Event::Garbage { who, what, times },
            });
            *story = Story { times: 0, told: Some(now) };
        }
        let is_quiet = |story: &Story| {
            story.times == 0
                && story.told.is_some_and(|told| now.saturating_duration_since(told) >= TOLD_AGAIN_AFTER)
        };
        self.0.retain(|_, story| !is_quiet(story));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_at_once_and_then_once_a_second_with_its_number() {
        let (mut strangers, mut events, start) = (Strangers::default(), Vec::new(), Instant::now());
        for millis in 0..2500 {
            strangers.refused("x".into(), "y".into());
            strangers.report(start + Duration::from_millis(millis), &mut events);
        }
        let times: Vec<u64> = events
            .iter()
            .map(|event| match event {
                Event::Refused { times, .. } => *times,
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(times, [1, 1000, 1000]);
        strangers.report(start + Duration::from_secs(4), &mut events);
        strangers.report(start + Duration::from_secs(6), &mut events);
        assert!(events.len() == 4 && strangers.0.is_empty());
    }

    #[test]
    fn the_number_of_stories_is_bounded() {
        let mut strangers = Strangers::default();
        (0..1000).for_each(|at| strangers.garbage(at.to_string(), String::new()));
        assert_eq!(strangers.0.len(), MOST);
    }
}
