//! Keeps the log readable: an event that strangers cause is reported at once, then at growing intervals, with
//! a count.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::event::Event;

/// The shortest and the longest time between two reports. The time doubles while the event goes on.
const TOLD_AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];
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
    /// When it was told, and how long it is not told again.
    told: Option<(Instant, Duration)>,
}

impl Story {
    /// Whether the time is over for which it is not told again.
    fn is_due(&self, now: Instant) -> bool {
        self.told.is_none_or(|(at, pause)| now.saturating_duration_since(at) >= pause)
    }
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
            if story.times == 0 || !story.is_due(now) {
                continue;
            }
            let (who, what, times) = (who.clone(), what.clone(), story.times);
            events.push(match kind {
                Kind::Refused => Event::Refused { who, why: what, times },
                Kind::Garbage => Event::Garbage { who, what, times },
            });
            let [first, most] = TOLD_AGAIN_AFTER;
            let pause = story.told.map_or(first, |(_, pause)| most.min(2 * pause));
            *story = Story { times: 0, told: Some((now, pause)) };
        }
        self.0.retain(|_, story| story.times > 0 || !story.is_due(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_at_once_and_then_at_growing_intervals_with_its_number() {
        let (mut strangers, mut events, start) = (Strangers::default(), Vec::new(), Instant::now());
        for millis in 0..7500 {
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
        assert_eq!(times, [1, 1000, 2000, 4000]);
        strangers.report(start + Duration::from_secs(15), &mut events);
        assert_eq!(events.len(), 5);
        strangers.report(start + Duration::from_secs(32), &mut events);
        assert!(events.len() == 5 && strangers.0.is_empty());
        // After a pause it is told at once again.
        strangers.refused("x".into(), "y".into());
        strangers.report(start + Duration::from_secs(33), &mut events);
        assert_eq!(events.len(), 6);
    }

    #[test]
    fn the_number_of_stories_is_bounded() {
        let mut strangers = Strangers::default();
        (0..1000).for_each(|at| strangers.garbage(at.to_string(), String::new()));
        assert_eq!(strangers.0.len(), MOST);
    }
}
