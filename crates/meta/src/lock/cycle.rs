//! Waits for locks that go in a circle over several containers, which no owner sees alone.
//!
//! Each owner knows who waits in its containers, and for whom. Put together they may be of different moments: a wait may
//! have ended before the one was noted that closes the circle. So they are gathered twice, and what counts is what both
//! have: a wait has a name that is never used twice, so one that is in both has lasted between, and all of these were
//! under way in the moment that lies between the two.

use super::{LockKind, LockOwner};
use crate::queue::Ticket;
use perigee_types::InodeId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Somebody waits for locks that others hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Wait {
    /// The kind of the lock. Owners of different kinds have nothing to do with each other, but [`LockKind::Cover`]
    /// is a wait for an `fcntl` lock that a session decides about: no owner can refuse it.
    pub kind: LockKind,
    /// The file.
    pub inode: InodeId,
    /// Names the wait.
    pub ticket: Ticket,
    /// The kernel's name of who waits, inside the session of the ticket.
    pub owner: u64,
    /// Who holds what is wanted.
    pub holders: BTreeSet<LockOwner>,
}

impl Wait {
    fn waiter(&self) -> (LockKind, LockOwner) {
        let owner = LockOwner {
            session: self.ticket.session,
            owner: self.owner,
        };
        (self.owners(), owner)
    }

    /// The kind of lock whose owners it waits for.
    const fn owners(&self) -> LockKind {
        match self.kind {
            LockKind::Posix | LockKind::Cover => LockKind::Posix,
            LockKind::Flock => LockKind::Flock,
            LockKind::Service => LockKind::Service,
        }
    }

    fn can_be_refused(&self) -> bool {
        self.kind != LockKind::Cover
    }
}

/// Waits that are to be refused, so that no circle is left of those that were under way at both times: of each the one
/// with the greatest ticket, with those of its holders who are in the circle. Whoever looks at the same waits chooses the
/// same.
#[must_use]
pub fn victims(earlier: &[Wait], later: &[Wait]) -> Vec<Wait> {
    let known: BTreeMap<Ticket, &Wait> = earlier.iter().map(|wait| (wait.ticket, wait)).collect();
    let mut lasting: Vec<Wait> = later
        .iter()
        .filter_map(|wait| {
            let before = known.get(&wait.ticket)?;
            let same = before.inode == wait.inode && before.waiter() == wait.waiter();
            let holders = before
                .holders
                .intersection(&wait.holders)
                .copied()
                .collect();
            same.then(|| Wait {
                holders,
                ..wait.clone()
            })
        })
        .collect();
    let mut found = Vec::new();
    loop {
        let circle = circle(&lasting);
        // Those that can be refused come first.
        let last = circle.iter().max_by_key(|w| (w.can_be_refused(), w.ticket));
        let Some(mut victim) = last.map(|w| (*w).clone()) else {
            return found;
        };
        let of_circle: BTreeSet<LockOwner> = circle.iter().map(|w| w.waiter().1).collect();
        victim.holders.retain(|holder| of_circle.contains(holder));
        lasting.retain(|wait| wait.ticket != victim.ticket);
        // A circle inside one session is that one's own affair.
        if victim.can_be_refused() {
            found.push(victim);
        }
    }
}

/// The waits of one circle, if there is one.
fn circle(waits: &[Wait]) -> Vec<&Wait> {
    let mut of: BTreeMap<(LockKind, LockOwner), Vec<usize>> = BTreeMap::new();
    for (index, wait) in waits.iter().enumerate() {
        of.entry(wait.waiter()).or_default().push(index);
    }
    // From these no circle is reached.
    let mut over = vec![false; waits.len()];
    for start in 0..waits.len() {
        let mut path: Vec<(usize, Vec<usize>)> = Vec::new();
        let next = |index: usize| -> Vec<usize> {
            let wait: &Wait = &waits[index];
            let holders = wait.holders.iter();
            let waits = holders.filter_map(|holder| of.get(&(wait.owners(), *holder)));
            waits.flatten().copied().collect()
        };
        if !over[start] {
            path.push((start, next(start)));
        }
        while let Some((at, rest)) = path.last_mut() {
            let Some(to) = rest.pop() else {
                over[*at] = true;
                path.pop();
                continue;
            };
            if let Some(first) = path.iter().position(|(on, _)| *on == to) {
                return path[first..].iter().map(|(on, _)| &waits[*on]).collect();
            }
            if !over[to] {
                path.push((to, next(to)));
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::WaitId;
    use perigee_types::{ContainerId, InodeIndex, NodeId, SessionId};
    use proptest::prelude::*;

    fn owner(number: u64) -> LockOwner {
        LockOwner {
            session: SessionId::new(NodeId(1 + number as u32 % 2), 7),
            owner: number,
        }
    }

    fn wait(number: u64, of: u64, holders: &[u64]) -> Wait {
        let LockOwner {
            session,
            owner: name,
        } = owner(of);
        Wait {
            kind: LockKind::Posix,
            inode: InodeId::new(ContainerId(of as u32), InodeIndex(9)),
            ticket: Ticket {
                session,
                wait: WaitId(number),
            },
            owner: name,
            holders: holders.iter().map(|holder| owner(*holder)).collect(),
        }
    }

    /// Whether each of these waits, over whatever others, for one of those.
    fn leads_to(waits: &[Wait], these: &BTreeSet<LockOwner>, those: &BTreeSet<LockOwner>) -> bool {
        !these.is_empty()
            && these.iter().all(|owner| {
                let mut reached = BTreeSet::from([*owner]);
                for _ in 0..waits.len() {
                    let from = waits.iter().filter(|w| reached.contains(&w.waiter().1));
                    let more: Vec<LockOwner> = from.flat_map(|w| w.holders.clone()).collect();
                    reached.extend(more);
                }
                !reached.is_disjoint(those)
            })
    }

    /// Whether somebody waits for himself: what is reached in as many steps as there are owners.
    fn has_circle(waits: &[Wait]) -> bool {
        let goes = |from: &LockOwner| -> BTreeSet<LockOwner> {
            let of = waits.iter().filter(|wait| wait.waiter().1 == *from);
            of.flat_map(|wait| wait.holders.iter().copied()).collect()
        };
        waits.iter().any(|wait| {
            let start = wait.waiter().1;
            let mut reached = goes(&start);
            for _ in 0..waits.len() {
                reached.extend(reached.clone().iter().flat_map(goes));
            }
            reached.contains(&start)
        })
    }

    fn some_waits() -> impl Strategy<Value = Vec<Wait>> {
        let one = (0..6_u64, prop::collection::vec(0..6_u64, 1..3));
        prop::collection::vec(one, 0..9).prop_map(|waits| {
            let numbered = waits.iter().enumerate();
            let waits = numbered.map(|(number, (of, holders))| {
                let others: Vec<u64> = holders.iter().copied().filter(|h| h != of).collect();
                wait(number as u64, *of, &others)
            });
            waits.collect()
        })
    }

    proptest! {
        #[test]
        fn no_circle_is_left_and_nobody_is_refused_without_one(waits in some_waits()) {
            let mut left = waits.clone();
            for victim in victims(&waits, &waits) {
                // Without the others whom it waits for, too.
                let own = left.iter().map(|wait| match wait.ticket == victim.ticket {
                    true => victim.clone(),
                    false => wait.clone(),
                });
                let goes = [victim.waiter().1].into_iter().collect();
                prop_assert!(leads_to(&own.collect::<Vec<_>>(), &victim.holders, &goes));
                left.retain(|wait| wait.ticket != victim.ticket);
            }
            prop_assert!(!has_circle(&left));
        }

        #[test]
        fn what_was_not_there_both_times_counts_for_nothing(
            waits in some_waits(),
            gone in prop::collection::vec(any::<bool>(), 9),
        ) {
            let numbered = waits.iter().zip(&gone);
            let earlier: Vec<Wait> = numbered.filter(|(_, gone)| !**gone).map(|(w, _)| w.clone()).collect();
            prop_assert_eq!(victims(&earlier, &waits), victims(&earlier, &earlier));
            prop_assert_eq!(victims(&waits, &earlier), victims(&earlier, &earlier));
        }
    }

    #[test]
    fn owners_of_different_kinds_have_nothing_to_do_with_each_other() {
        let one = wait(1, 1, &[2]);
        let two = Wait {
            kind: LockKind::Service,
            ..wait(2, 2, &[1])
        };
        assert!(victims(&[one.clone(), two.clone()], &[one, two]).is_empty());
    }
}
