//! Waiting for a state instead of for a time.

use crate::error::{CheckError, Checked};
use std::time::{Duration, Instant};

/// Between two looks at a condition: short beside every pause measured here, long beside one look.
const POLL: Duration = Duration::from_millis(20);

/// Polls `look` until it gives a value, and gives it back. The last look begins after `limit`: one that took long says nothing
/// of the end.
///
/// Errors: `Deadline` after `limit`; an error of `look` ends the wait at once.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Checked<Option<T>>,
) -> Checked<T> {
    let start = Instant::now();
    loop {
        let is_last = start.elapsed() >= limit;
        if let Some(value) = look()? {
            return Ok(value);
        }
        if is_last {
            return Err(CheckError::Deadline {
                what: what.to_owned(),
                waited: limit,
            });
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_holds_ends_at_the_deadline() {
        let limit = Duration::from_millis(60);
        let outcome: Checked<()> = until("never", limit, || Ok(None));
        assert!(matches!(outcome, Err(CheckError::Deadline { .. })));
    }

    #[test]
    fn a_look_that_took_longer_than_the_limit_is_not_the_last() {
        let mut looks = 0;
        let value = until("second look", Duration::from_millis(10), || {
            looks += 1;
            std::thread::sleep(Duration::from_millis(20));
            Ok((looks == 2).then_some(looks))
        });
        assert_eq!(value.unwrap(), 2);
    }

    #[test]
    fn a_condition_that_comes_true_is_given_back() {
        let mut looks = 0;
        let value = until("third look", Duration::from_secs(5), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(value.unwrap(), 3);
    }
}
