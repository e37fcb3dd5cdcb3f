//! Round trips of one peer, without those in which something else stood in the way.

use std::collections::VecDeque;

/// So many of the last round trips are looked at.
const WINDOW: usize = 8;

/// A moving percentile (Ledlie, Gardner and Seltzer, "Network coordinates in the wild", NSDI 2007): of the last
/// round trips the quarter that is longest says what queues and schedulers do, the shortest quarter how far it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    last: VecDeque<f64>,
}

impl Filter {
    /// Takes one more, in microseconds, and says how long a round trip is.
    pub(super) fn push(&mut self, sample: f64) -> f64 {
        if self.last.len() == WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(sample);
        self.value().unwrap_or(sample)
    }

    /// How long a round trip is; `None` before the first.
    pub(super) fn value(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.last.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) / 4).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_long_ones_are_passed_over_and_a_new_route_is_not() {
        let mut filter = Filter::default();
        for sample in [5.0, 5.2, 400.0, 5.1, 90.0, 5.0, 70.0, 5.3] {
            assert!(filter.push(sample) < 6.0);
        }
        let settled = (0..WINDOW).map(|_| filter.push(20.0)).last();
        assert_eq!(settled, Some(20.0));
        assert_eq!(filter.push(3.0), 20.0, "one alone may be a mistake");
        assert_eq!(filter.push(3.0), 3.0, "a shorter route shows at once");
    }
}
