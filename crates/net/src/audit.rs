//! Lines that say who was let in, who was refused, and who changed what.
//!
//! They have the target [`AUDIT`], and one event each: `event`, `outcome`, who, what and from where. Never a secret. What
//! strangers cause is bounded by [`Refusals`]: a log is on a disk, and a disk has an end.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The target of these lines in the log.
pub const AUDIT: &str = "audit";

/// Lines about refusals in one window; about 7 MiB a day at most.
const LINES_MAX: u32 = 32;
/// How long a window is.
const WINDOW: Duration = Duration::from_secs(60);

/// Decides which refusals have a line of their own.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Refusals {
    /// Whether a refusal has a line of its own, which then says how many before it had none. None: it has none.
    pub fn line(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock();
        let over = |began: Instant| now.saturating_duration_since(began) >= WINDOW;
        if window.began.is_none_or(over) {
            window.began = Some(now);
            window.lines = 0;
        }
        if window.lines == LINES_MAX {
            window.left_out = window.left_out.saturating_add(1);
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_do_not_fill_the_log_and_none_of_them_is_lost() {
        let refusals = Refusals::default();
        let begin = Instant::now();
        let told: Vec<_> = (0..1_000).filter_map(|_| refusals.line(begin)).collect();
        assert_eq!(told, vec![0; LINES_MAX as usize]);
        let soon = begin + WINDOW - Duration::from_millis(1);
        assert_eq!(refusals.line(soon), None);
        let unsaid = 1_001 - u64::from(LINES_MAX);
        assert_eq!(refusals.line(begin + WINDOW), Some(unsaid));
        assert_eq!(refusals.line(begin + WINDOW), Some(0));
    }
}
