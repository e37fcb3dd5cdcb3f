//! What is measured.

/// A value of each system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// A new file, from its first byte until `close` has returned.
    Write,
    /// A file that no cache has.
    Read,
    /// An operation on many small files.
    Small(Place, Act),
    /// A listing of a tree with the attributes of each entry, none of which any cache has.
    List(Place),
}

/// Which hosts have the directories that files are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// One host each.
    Home,
    /// All of them.
    Shared,
}

/// What is done with each small file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// Open as a new one, write, close.
    Create,
    /// Ask for the attributes, which no cache has.
    Stat,
    /// Open, read, close; no cache has it.
    Read,
    /// Remove.
    Unlink,
}

impl Place {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Home, Self::Shared];

    /// Its name in files, and of its directory.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Shared => "shared",
        }
    }
}

impl Row {
    /// In the order of the table.
    pub const ALL: [Self; 12] = [
        Self::Write,
        Self::Read,
        Self::Small(Place::Home, Act::Create),
        Self::Small(Place::Home, Act::Stat),
        Self::Small(Place::Home, Act::Read),
        Self::Small(Place::Home, Act::Unlink),
        Self::Small(Place::Shared, Act::Create),
        Self::Small(Place::Shared, Act::Stat),
        Self::Small(Place::Shared, Act::Read),
        Self::Small(Place::Shared, Act::Unlink),
        Self::List(Place::Home),
        Self::List(Place::Shared),
    ];

    /// Its name for people.
    #[must_use]
    pub fn title(self) -> String {
        match self {
            Self::Write => "seq write 1 MiB, until closed".to_owned(),
            Self::Read => "seq read 1 MiB, cold".to_owned(),
            Self::Small(place, act) => format!("{}, {}", act.title(), place.key()),
            Self::List(Place::Home) => "list a tree, each part on one host".to_owned(),
            Self::List(Place::Shared) => "list a tree that all hosts share".to_owned(),
        }
    }

    /// Its name in files.
    #[must_use]
    pub fn key(self) -> String {
        match self {
            Self::Write => "seq_write".to_owned(),
            Self::Read => "seq_read".to_owned(),
            Self::Small(place, act) => format!("{}_{}", act.key(), place.key()),
            Self::List(place) => format!("list_{}", place.key()),
        }
    }

    /// What its values are.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Write | Self::Read => "MiB/s",
            Self::Small(..) => "op/s",
            Self::List(_) => "ms",
        }
    }

    /// How many times as fast a value is as another one.
    #[must_use]
    pub fn speed(self, own: f64, other: f64) -> f64 {
        match self {
            Self::List(_) => other / own,
            _ => own / other,
        }
    }
}

impl Act {
    const fn title(self) -> &'static str {
        match self {
            Self::Create => "create 4 KiB files",
            Self::Stat => "stat, cold",
            Self::Read => "read 4 KiB files, cold",
            Self::Unlink => "unlink",
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Unlink => "unlink",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_file_of_its_own() {
        let keys: BTreeSet<String> = Row::ALL.into_iter().map(Row::key).collect();
        assert_eq!(keys.len(), Row::ALL.len());
    }

    #[test]
    fn twice_as_fast_is_twice_the_rate_or_half_the_time() {
        assert!((Row::Write.speed(200.0, 100.0) - 2.0).abs() < 1e-9);
        assert!((Row::List(Place::Home).speed(100.0, 200.0) - 2.0).abs() < 1e-9);
    }
}
