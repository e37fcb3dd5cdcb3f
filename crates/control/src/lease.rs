//! When each lease ends.

use perigee_cluster::LeaseNumber;
use perigee_types::{Span, Tick};
use std::collections::BTreeMap;

/// How often the engine looks for leases that have ended: the most by which an end is late.
pub(crate) const LOOK_EVERY: Span = Span::from_millis(50);
/// A look that comes later than this after the one before means that this process stood still. Its
/// holders could not renew meanwhile, so the time does not count.
const PAUSE: Span = Span::from_millis(500);

#[derive(Debug, Clone, Copy)]
struct Term {
    ttl: Span,
    ends: Tick,
}

/// The ends of all leases. In memory only: after a restart each begins a whole term.
#[derive(Debug, Default)]
pub(crate) struct LeaseClock {
    terms: BTreeMap<LeaseNumber, Term>,
    looked: Tick,
}

impl LeaseClock {
    pub(crate) fn start(&mut self, now: Tick, lease: LeaseNumber, ttl: Span) {
        if self.terms.is_empty() {
            // Nobody looks while there is no lease, which is no standstill.
            self.looked = now;
        }
        let ends = now + ttl;
        self.terms.insert(lease, Term { ttl, ends });
    }

    pub(crate) fn remove(&mut self, lease: LeaseNumber) {
        self.terms.remove(&lease);
    }

    /// Begins a whole term anew, and says how long it is.
    pub(crate) fn renew(&mut self, now: Tick, lease: LeaseNumber) -> Option<Span> {
        let term = self.terms.get_mut(&lease)?;
        term.ends = now + term.ttl;
        Some(term.ttl)
    }

    /// Takes out the leases that have ended.
    pub(crate) fn take_ended(&mut self, now: Tick) -> Vec<LeaseNumber> {
        let since = now.since(self.looked);
        self.looked = now;
        if since > PAUSE {
            for term in self.terms.values_mut() {
                term.ends = term.ends + since;
            }
            return Vec::new();
        }
        let ended = self.terms.iter().filter(|(_, term)| term.ends <= now);
        let ended: Vec<_> = ended.map(|(lease, _)| *lease).collect();
        for lease in &ended {
            self.terms.remove(lease);
        }
        ended
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const L: LeaseNumber = LeaseNumber(1);

    fn ms(n: u64) -> Tick {
        Tick(n * 1000)
    }

    #[test]
    fn a_lease_ends_at_its_term_and_not_before() {
        let mut clock = LeaseClock::default();
        clock.start(ms(0), L, Span::from_millis(400));
        assert!(clock.take_ended(ms(399)).is_empty());
        assert_eq!(clock.renew(ms(399), L), Some(Span::from_millis(400)));
        assert!(clock.take_ended(ms(798)).is_empty());
        assert_eq!(clock.take_ended(ms(799)), [L]);
        assert_eq!(clock.renew(ms(800), L), None);
    }

    #[test]
    fn time_in_which_the_store_stood_still_does_not_count() {
        let mut clock = LeaseClock::default();
        clock.start(ms(0), L, Span::from_millis(400));
        assert!(clock.take_ended(ms(50)).is_empty());
        assert!(clock.take_ended(ms(10_050)).is_empty());
        assert!(clock.take_ended(ms(10_399)).is_empty());
        assert_eq!(clock.take_ended(ms(10_400)), [L]);
    }
}
