//! What mounts the directories of other hosts.

use super::row::{Place, Row};
use super::{HOSTS, ground};
use ground::{HERE, POINT};
use perigee_testbed::Checked;
use perigee_testbed::ssh_hosts::SshHosts;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// `perigee union` of all hosts.
    Union,
    /// `sshfs` of the first host alone.
    Sshfs,
    /// `mergerfs` over `sshfs` of each.
    Mergerfs,
}

impl System {
    /// In the order of the table.
    pub const ALL: [Self; 3] = [Self::Union, Self::Sshfs, Self::Mergerfs];

    /// Its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Union => "union",
            Self::Sshfs => "sshfs",
            Self::Mergerfs => "mergerfs",
        }
    }

    /// Whether a row can be measured: one host alone has not what others have.
    #[must_use]
    pub const fn has(self, row: Row) -> bool {
        match row {
            Row::Write | Row::Read | Row::Small(Place::Home, _) => true,
            Row::Small(Place::Shared, _) | Row::List(_) => !matches!(self, Self::Sshfs),
        }
    }

    /// Mounts it.
    ///
    /// Errors: those of its commands.
    pub(super) fn mount(self, hosts: &SshHosts) -> Checked {
        match self {
            Self::Union => ground::mount_union(hosts, &["--create", "path"]),
            Self::Sshfs => sshfs(hosts, 1, POINT),
            Self::Mergerfs => {
                for host in 1..=HOSTS {
                    sshfs(hosts, host, &branch(host))?;
                }
                ground::make_point(hosts, POINT)?;
                let branches: Vec<String> = (1..=HOSTS).map(branch).collect();
                let branches = branches.join(":");
                let options = "cache.files=off,category.create=epmfs";
                let words = ["mergerfs", "-o", options, &branches, POINT];
                ground::run(hosts, HERE, &words).map(drop)
            }
        }
    }

    /// Takes it away, and waits until nothing of it runs on any host.
    ///
    /// Errors: those of its commands, or something goes on.
    pub(super) fn unmount(self, hosts: &SshHosts) -> Checked {
        match self {
            Self::Union => return ground::unmount_union(hosts),
            Self::Sshfs => unmount(hosts, POINT)?,
            Self::Mergerfs => {
                unmount(hosts, POINT)?;
                for host in 1..=HOSTS {
                    unmount(hosts, &branch(host))?;
                }
            }
        }
        ground::quiet(hosts)
    }
}

fn branch(host: u32) -> String {
    format!("/tmp/branch{host}")
}

fn sshfs(hosts: &SshHosts, host: u32, point: &str) -> Checked {
    ground::make_point(hosts, point)?;
    let target = ground::target(hosts, host)?;
    let words = ["sshfs", &target, point, "-o", "reconnect,dir_cache=yes"];
    ground::run(hosts, HERE, &words).map(drop)
}

fn unmount(hosts: &SshHosts, point: &str) -> Checked {
    ground::run(hosts, HERE, &["umount", point]).map(drop)
}
