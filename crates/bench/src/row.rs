//! The rows of the table.

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    /// A new file in 1 MiB writes, with the fsync at its end.
    SeqWrite,
    /// As [`Row::SeqWrite`], where one copy is asked for.
    SeqWriteOneCopy,
    /// The file in 1 MiB reads, caches dropped before.
    SeqReadCold,
    /// 4 KiB writes at random places, with an fsync at the end.
    RandWrite4k,
    /// 128 KiB writes at random places, with an fsync at the end.
    RandWrite128k,
    /// 4 KiB reads at random places, caches dropped before.
    RandRead4k,
    /// 128 KiB reads at random places, caches dropped before.
    RandRead128k,
    /// 128 KiB reads and writes by equal chance, caches dropped before, an fsync at the end.
    Mixed128k,
    /// Files of 4 KiB: open, write, close, by one thread.
    Create1,
    /// stat of each, right after their creation.
    Stat,
    /// Open, read, close of each, caches dropped before.
    ReadCold,
    /// What `ls -l` does in that directory, caches dropped before.
    LsCold,
    /// rename of each.
    Rename,
    /// unlink of each.
    Unlink,
    /// As [`Row::Create1`], by four threads in one directory.
    Create4,
    /// What `tar x` does with 3,000 small files.
    Untar,
    /// What `rm -r` does with them.
    RmRf,
    /// `git clone` of a repository of some 1,600 files on the local disk.
    GitClone,
    /// `git status` in it.
    GitStatus,
    /// `make` of the 60 C files in it, two at once.
    Build,
}

/// Which way a row's value is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// A rate.
    More,
    /// A time.
    Less,
}

/// Rows that one run of a job measures together, since each needs what the one before has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// One large file.
    File,
    /// One large file of one copy.
    OneCopy,
    /// Many small files, one thread.
    Small,
    /// Many small files, four threads.
    SmallFour,
    /// A tree.
    Tree,
    /// A developer's tools. No peer's figures are published for them.
    Work,
}

impl Group {
    /// In the order of the table.
    pub const ALL: [Self; 6] = [
        Self::File,
        Self::OneCopy,
        Self::Small,
        Self::SmallFour,
        Self::Tree,
        Self::Work,
    ];

    /// Whether figures of peers are in `bench/peers.json`.
    #[must_use]
    pub fn is_published(self) -> bool {
        self != Self::Work
    }
}

impl Row {
    /// In the order of the table.
    pub const ALL: [Self; 20] = [
        Self::SeqWrite,
        Self::SeqWriteOneCopy,
        Self::SeqReadCold,
        Self::RandWrite4k,
        Self::RandWrite128k,
        Self::RandRead4k,
        Self::RandRead128k,
        Self::Mixed128k,
        Self::Create1,
        Self::Create4,
        Self::Stat,
        Self::ReadCold,
        Self::Rename,
        Self::Unlink,
        Self::Untar,
        Self::RmRf,
        Self::LsCold,
        Self::GitClone,
        Self::GitStatus,
        Self::Build,
    ];

    /// Its name in files.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::SeqWrite => "seq_write_1m",
            Self::SeqWriteOneCopy => "seq_write_1m_one_copy",
            Self::SeqReadCold => "seq_read_1m_cold",
            Self::RandWrite4k => "rand_write_4k",
            Self::RandWrite128k => "rand_write_128k",
            Self::RandRead4k => "rand_read_4k",
            Self::RandRead128k => "rand_read_128k",
            Self::Mixed128k => "mixed_128k",
            Self::Create1 => "create_1t",
            Self::Create4 => "create_4t",
            Self::Stat => "stat",
            Self::ReadCold => "read_cold",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Untar => "untar",
            Self::RmRf => "rm_rf",
            Self::LsCold => "ls_l_cold",
            Self::GitClone => "git_clone",
            Self::GitStatus => "git_status",
            Self::Build => "build",
        }
    }

    /// Its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::SeqWrite => "seq write 1 MiB + fsync",
            Self::SeqWriteOneCopy => "the same, one copy each",
            Self::SeqReadCold => "seq read 1 MiB, cold",
            Self::RandWrite4k => "random write 4 KiB",
            Self::RandWrite128k => "random write 128 KiB",
            Self::RandRead4k => "random read 4 KiB",
            Self::RandRead128k => "random read 128 KiB",
            Self::Mixed128k => "mixed 128 KiB",
            Self::Create1 => "create + write 4 KiB, 1 thread",
            Self::Create4 => "create + write 4 KiB, 4 threads",
            Self::Stat => "stat",
            Self::ReadCold => "read 4 KiB files, cold",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Untar => "untar small files",
            Self::RmRf => "rm -rf of them",
            Self::LsCold => "ls -l, cold",
            Self::GitClone => "git clone, 1,600 files",
            Self::GitStatus => "git status",
            Self::Build => "make, 60 C files",
        }
    }

    /// The unit of its value.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::SeqWrite
            | Self::SeqWriteOneCopy
            | Self::SeqReadCold
            | Self::RandWrite128k
            | Self::RandRead128k
            | Self::Mixed128k => "MiB/s",
            Self::RandWrite4k | Self::RandRead4k => "IOPS",
            Self::Create1 | Self::Create4 => "files/s",
            Self::Stat | Self::ReadCold | Self::Rename | Self::Unlink => "/s",
            Self::Untar
            | Self::RmRf
            | Self::LsCold
            | Self::GitClone
            | Self::GitStatus
            | Self::Build => "s",
        }
    }

    /// Which way its value is better.
    #[must_use]
    pub const fn better(self) -> Better {
        match self {
            Self::Untar
            | Self::RmRf
            | Self::LsCold
            | Self::GitClone
            | Self::GitStatus
            | Self::Build => Better::Less,
            _ => Better::More,
        }
    }

    /// The job that measures it.
    #[must_use]
    pub const fn group(self) -> Group {
        match self {
            Self::SeqWrite
            | Self::SeqReadCold
            | Self::RandWrite4k
            | Self::RandWrite128k
            | Self::RandRead4k
            | Self::RandRead128k
            | Self::Mixed128k => Group::File,
            Self::SeqWriteOneCopy => Group::OneCopy,
            Self::Create1
            | Self::Stat
            | Self::ReadCold
            | Self::LsCold
            | Self::Rename
            | Self::Unlink => Group::Small,
            Self::Create4 => Group::SmallFour,
            Self::Untar | Self::RmRf => Group::Tree,
            Self::GitClone | Self::GitStatus | Self::Build => Group::Work,
        }
    }

    /// How many times as fast as native a value is: above 1 is faster, whatever the unit.
    #[must_use]
    pub fn speed(self, value: f64, native: f64) -> f64 {
        match self.better() {
            Better::More => value / native,
            Better::Less => native / value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_its_own_key_and_a_group() {
        let keys: BTreeSet<_> = Row::ALL.iter().map(|row| row.key()).collect();
        assert_eq!(keys.len(), Row::ALL.len());
        for group in Group::ALL {
            assert!(Row::ALL.iter().any(|row| row.group() == group));
        }
    }

    #[test]
    fn speed_is_above_one_when_faster_in_either_direction() {
        assert!(Row::Stat.speed(200.0, 100.0) > 1.0);
        assert!(Row::Untar.speed(1.0, 2.0) > 1.0);
    }
}
