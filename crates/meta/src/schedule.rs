//! When snapshots are made by themselves, and how long they stay: `1h:24,1d:7` is one each hour, of which there are 24, and
//! one each day, of which there are 7.

use crate::op::{Origin, Snapshot};
use perigee_types::{SnapshotId, WallTime};
use std::collections::BTreeSet;
use std::fmt;

/// Rules of one schedule, at most.
const RULES_MAX: usize = 8;
/// Units of time, in seconds, the longest first.
const UNITS: [(char, i64); 5] = [
    ('w', 604_800),
    ('d', 86_400),
    ('h', 3_600),
    ('m', 60),
    ('s', 1),
];
/// The shortest time between two, in seconds.
const EVERY_MIN: i64 = 10;

/// One snapshot in each period of a length, and how many of these periods have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    every: i64,
    keep: u32,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    rules: Vec<Rule>,
}

/// What a schedule asks for now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// A snapshot is to be made.
    pub take: bool,
    /// These are kept by no rule any more.
    pub delete: Vec<SnapshotId>,
}

/// Why a text is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected EVERY:KEEP, as in 1h:24 or 1h:24,1d:7, with EVERY from 10s on and KEEP from 1 on"
)]
pub struct NoSchedule;

impl Schedule {
    /// Reads one.
    ///
    /// Errors: see [`NoSchedule`].
    pub fn parse(text: &str) -> Result<Self, NoSchedule> {
        let rules: Option<Vec<Rule>> = text.split(',').map(rule).collect();
        match rules {
            Some(rules) if rules.len() <= RULES_MAX => Ok(Self { rules }),
            _ => Err(NoSchedule),
        }
    }

    /// What is to be done about the snapshots of a directory. Those that a person asked for count for nothing.
    #[must_use]
    pub fn due(&self, snapshots: &[&Snapshot], now: WallTime) -> Due {
        let mut scheduled: Vec<_> = snapshots
            .iter()
            .filter(|snapshot| snapshot.origin == Origin::Scheduled)
            .map(|snapshot| (snapshot.taken.secs, snapshot.id))
            .collect();
        scheduled.sort_unstable();
        let period = |secs: i64, rule: &Rule| secs.div_euclid(rule.every);
        let newest = scheduled.last().map(|(secs, _)| *secs);
        let begun = |rule: &Rule| newest.is_none_or(|at| period(at, rule) < period(now.secs, rule));
        let take = self.rules.iter().any(begun);
        let mut kept = BTreeSet::new();
        for rule in &self.rules {
            // The first of each period stays as long as any of it does.
            let mut firsts: Vec<(i64, SnapshotId)> = Vec::new();
            for (secs, id) in &scheduled {
                let at = period(*secs, rule);
                if firsts.last().is_none_or(|(last, _)| *last < at) {
                    firsts.push((at, *id));
                }
            }
            // The one that is about to be made is one of them.
            let room = rule.keep as usize - usize::from(begun(rule));
            kept.extend(firsts.iter().rev().take(room).map(|(_, id)| *id));
        }
        let delete = scheduled.iter().map(|(_, id)| *id);
        Due {
            take,
            delete: delete.filter(|id| !kept.contains(id)).collect(),
        }
    }
}

fn rule(text: &str) -> Option<Rule> {
    let (every, keep) = text.trim().split_once(':')?;
    let unit = every.chars().next_back()?;
    let (_, secs) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let count: i64 = every.strip_suffix(unit)?.parse().ok()?;
    let every = count.checked_mul(*secs)?;
    let keep = keep.parse().ok()?;
    (every >= EVERY_MIN && keep > 0).then_some(Rule { every, keep })
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rule) in self.rules.iter().enumerate() {
            let whole = UNITS.iter().find(|(_, secs)| rule.every % secs == 0);
            let (unit, secs) = whole.unwrap_or(&('s', 1));
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}{unit}:{}", rule.every / secs, rule.keep)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use super::*;
    use perigee_types::InodeId;

    fn taken(id: u64, secs: i64, origin: Origin) -> Snapshot {
        Snapshot {
            id: SnapshotId(id),
            name: id.to_string(),
            directory: InodeId::ROOT,
            path: String::new(),
            taken: WallTime { secs, nanos: 0 },
            origin,
            parts: Vec::new(),
        }
    }

    #[test]
    fn schedules_are_read_and_shown_alike() {
        for text in ["1h:24", "1h:24,1d:7", "10s:1", "90m:3,2w:8"] {
            assert_eq!(Schedule::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Schedule::parse("60m:3").unwrap().to_string(), "1h:3");
        for text in [
            "",
            "1h",
            "1h:0",
            "1x:3",
            "0h:3",
            "9s:3",
            "-1h:3",
            "1h:3,",
            "99999999999999999w:1",
        ] {
            assert_eq!(Schedule::parse(text), Err(NoSchedule), "{text}");
        }
    }

    /// A month of minutes: there are always as many as the rules say, at the right distances, and none that a person made
    /// goes.
    #[test]
    fn what_stays_is_what_the_rules_say() {
        let schedule = Schedule::parse("1h:24,1d:7").unwrap();
        let mut all = vec![taken(0, 5, Origin::Asked)];
        for minute in 0..31 * 24 * 60 {
            let now = WallTime {
                secs: minute * 60,
                nanos: 0,
            };
            let shown: Vec<&Snapshot> = all.iter().collect();
            let due = schedule.due(&shown, now);
            assert_eq!(due.take, minute % 60 == 0, "minute {minute}");
            all.retain(|snapshot| !due.delete.contains(&snapshot.id));
            if due.take {
                all.push(taken(1 + minute as u64, now.secs, Origin::Scheduled));
            }
        }
        assert_eq!(all[0].origin, Origin::Asked);
        let hours: Vec<i64> = all[1..]
            .iter()
            .map(|snapshot| snapshot.taken.secs / 3_600)
            .collect();
        let last = 31 * 24 - 1;
        let days = (0..7).map(|ago| (30 - ago) * 24);
        let mut expected: Vec<i64> = (last - 23..=last).chain(days).collect();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(hours, expected);
    }
}
