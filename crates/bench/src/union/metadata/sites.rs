//! Four sites of two hosts each, as far apart as those of [`perigee_testbed::sites`]. Host 0, where the union is started, is
//! at the first one.

pub(super) use perigee_testbed::sites::HOSTS;
use perigee_testbed::sites::{Sites, site};
use std::time::Duration;

/// The host of a client.
pub(super) fn host_of(client: u32) -> u32 {
    1 + client % HOSTS
}

/// The hosts of a host's site, and all others.
pub(super) fn near_and_far(host: u32) -> (Vec<u32>, Vec<u32>) {
    (1..=HOSTS).partition(|other| site(*other) == site(host))
}

/// How long a packet takes.
pub(super) fn one_way(from: u32, to: u32) -> Duration {
    Duration::from_secs_f64(Sites::FOUR.between(from, to) / 2e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_are_at_each_site_and_host_0_at_the_first() {
        assert_eq!(near_and_far(4), (vec![3, 4], vec![1, 2, 5, 6, 7, 8]));
        assert_eq!(one_way(0, 2), Duration::from_micros(75));
        assert_eq!(one_way(0, 8), Duration::from_millis(15));
        assert_eq!((host_of(0), host_of(7), host_of(8)), (1, 8, 1));
    }
}
