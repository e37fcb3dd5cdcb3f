//! Who does what where: the same in all processes, and each time.

use super::kind::Kind;
use super::sites;
use perigee_types::Rng;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How much clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) clients: u32,
    /// So many hundredths of the operations are at a client's own site.
    pub(super) near: u32,
    /// Of each kind, by each client.
    pub(super) operations: u32,
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} clients, {} operations of each kind, {} % at their own sites",
            self.clients, self.operations, self.near
        )
    }
}

/// A share with names of its own.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Work {
    /// By which its names differ from all others.
    pub(super) number: u32,
    pub(super) share: Share,
}

/// A client's directory on a host, within a folder that all hosts have.
pub(super) fn directory(host: u32, client: u32) -> String {
    format!("h{host}-c{client}")
}

impl Work {
    /// The folder of a kind's names, below the root.
    pub(super) fn folder(&self, kind: Kind) -> String {
        format!("{}-{}", kind.names().key(), self.number)
    }

    /// Where an operation's name is, below the root.
    pub(super) fn path(&self, kind: Kind, client: u32, host: u32, number: u32) -> String {
        format!("{}/{}/{number}", self.folder(kind), directory(host, client))
    }

    /// All names of a client, below the root, in the order in which it takes them.
    pub(super) fn paths(&self, kind: Kind, client: u32) -> Vec<String> {
        let hosts = (0..).zip(self.hosts(kind, client));
        hosts
            .map(|(number, host)| self.path(kind, client, host, number))
            .collect()
    }

    /// Where a client's operations go, one after the other: exactly as many to its own site as wanted, in random order.
    pub(super) fn hosts(&self, kind: Kind, client: u32) -> Vec<u32> {
        let seed = u64::from(client) << 32 | u64::from(self.number) << 8 | kind.names() as u64;
        let mut random = Rng::new(seed);
        let (near, far) = sites::near_and_far(sites::host_of(client));
        let Share {
            near: hundredths,
            operations,
            ..
        } = self.share;
        let at_home = (u64::from(operations) * u64::from(hundredths) + 50) / 100;
        let mut pick = |number: u32| {
            let among = if u64::from(number) < at_home {
                &near
            } else {
                &far
            };
            among[random.below(among.len() as u64) as usize]
        };
        let mut hosts: Vec<u32> = (0..operations).map(&mut pick).collect();
        for last in (1..hosts.len()).rev() {
            hosts.swap(last, random.below(last as u64 + 1) as usize);
        }
        hosts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn round(near: u32) -> Work {
        let share = Share {
            clients: 64,
            near,
            operations: 1_000,
        };
        Work { number: 1, share }
    }

    #[test]
    fn the_wanted_part_of_operations_is_at_the_own_site() {
        for near in [0, 20, 40, 60, 80, 100] {
            for client in 0..16 {
                let own = sites::near_and_far(sites::host_of(client)).0;
                let hosts = round(near).hosts(Kind::Stat, client);
                let at_home = hosts.iter().filter(|host| own.contains(host)).count();
                assert_eq!((hosts.len(), at_home as u32), (1_000, near * 10));
            }
        }
    }

    #[test]
    fn they_are_spread_over_all_hosts_and_all_of_the_time() {
        let hosts = round(40).hosts(Kind::Create, 5);
        let own = sites::near_and_far(sites::host_of(5)).0;
        for host in 1..=sites::HOSTS {
            let count = hosts.iter().filter(|other| **other == host).count();
            let expected = if own.contains(&host) { 200 } else { 100 };
            assert!(count.abs_diff(expected) < expected / 2, "{host}: {count}");
        }
        let early = hosts[..500].iter().filter(|host| own.contains(host));
        assert!(early.count().abs_diff(200) < 60);
    }

    #[test]
    fn what_is_removed_is_what_was_made_and_clients_differ() {
        let round = round(60);
        assert_eq!(round.paths(Kind::Create, 3), round.paths(Kind::Unlink, 3));
        assert_eq!(round.paths(Kind::Mkdir, 3), round.paths(Kind::Rmdir, 3));
        assert_ne!(round.hosts(Kind::Stat, 3), round.hosts(Kind::Stat, 11));
        let names: BTreeSet<String> = (0..64)
            .flat_map(|client| round.paths(Kind::Stat, client))
            .collect();
        assert_eq!(names.len(), 64_000);
    }
}
