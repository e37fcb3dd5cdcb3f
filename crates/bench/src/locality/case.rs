//! What is measured, and what is compared with what.

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Job {
    /// Files that one node made are rewritten by all nodes, one each.
    Rewrite,
    /// Random writes into a file that another node made.
    Random4k,
    /// The same with larger blocks.
    Random128k,
    /// The same with larger blocks.
    Random1m,
    /// The owner and another host write 4 KiB each by turns.
    Alternate,
    /// The same by two hosts, neither of which is the owner.
    AlternateStrangers,
    /// The owner and another host make files in one directory.
    Create,
    /// Another host than the owner makes files in a directory.
    CreateFar,
    /// Writes at home, with the links as they are and cut.
    Home,
    /// The same where ownership has moved to.
    HomeMoved,
}

/// Under which circumstances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// All by the node that made and owns the files.
    Concentrated,
    /// Nothing moves: the owner is elsewhere.
    Off,
    /// What others are compared with, once more: what a difference of nothing looks like.
    Control,
    /// What is owned elsewhere may move while it is measured.
    First,
    /// The same once more.
    Again,
    /// By the node that made the file, each in a directory of its own.
    Own,
    /// Ownership moves when it pays.
    Adaptive,
    /// With links.
    Linked,
    /// Without.
    Cut,
}

/// A kind of work under some circumstances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Which.
    pub job: Job,
    /// Under which.
    pub side: Side,
}

/// What a comparison should show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Aim {
    /// So many times as fast.
    AtLeast(f64),
    /// As fast, or slower by no more than the control was in one of its rounds.
    NotSlower,
    /// It works without a byte from the network.
    NoBytes,
    /// It is shown for its own sake.
    Nothing,
}

/// Two cases, of which the first is measured in the second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comparison {
    /// Its name in files.
    pub(super) key: &'static str,
    pub(super) job: Job,
    pub(super) of: Side,
    pub(super) over: Side,
    pub(super) aim: Aim,
    /// The ratio of the paper's own figures; its remote-write is another file system's.
    pub(super) paper: Option<f64>,
}

impl Comparison {
    pub(super) const fn case(self, side: Side) -> Case {
        Case {
            job: self.job,
            side,
        }
    }
}

const fn compare(
    key: &'static str,
    job: Job,
    (of, over): (Side, Side),
    aim: Aim,
    paper: Option<f64>,
) -> Comparison {
    Comparison {
        key,
        job,
        of,
        over,
        aim,
        paper,
    }
}

const FASTER: Aim = Aim::AtLeast(1.0);

/// In the order of the table.
pub(super) const COMPARISONS: [Comparison; 25] = {
    use Aim::{AtLeast, NoBytes, NotSlower, Nothing};
    use Side::{Adaptive, Again, Concentrated, Control, Cut, First, Linked, Off, Own};
    [
        compare(
            "rewrite_off",
            Job::Rewrite,
            (Off, Concentrated),
            Nothing,
            Some(0.818),
        ),
        compare(
            "rewrite_first",
            Job::Rewrite,
            (First, Concentrated),
            Nothing,
            Some(1.077),
        ),
        compare(
            "rewrite_again",
            Job::Rewrite,
            (Again, Concentrated),
            FASTER,
            None,
        ),
        compare(
            "rewrite_own",
            Job::Rewrite,
            (Own, Concentrated),
            FASTER,
            None,
        ),
        compare(
            "rewrite_control",
            Job::Rewrite,
            (Control, Concentrated),
            Nothing,
            None,
        ),
        compare(
            "random_4k_first",
            Job::Random4k,
            (First, Off),
            FASTER,
            Some(1.040),
        ),
        compare(
            "random_4k_again",
            Job::Random4k,
            (Again, Off),
            AtLeast(5.0),
            Some(1.432),
        ),
        compare("random_4k_own", Job::Random4k, (Own, Off), Nothing, None),
        compare(
            "random_128k_first",
            Job::Random128k,
            (First, Off),
            FASTER,
            Some(1.091),
        ),
        compare(
            "random_128k_again",
            Job::Random128k,
            (Again, Off),
            FASTER,
            Some(1.127),
        ),
        compare(
            "random_128k_own",
            Job::Random128k,
            (Own, Off),
            Nothing,
            None,
        ),
        compare(
            "random_1m_first",
            Job::Random1m,
            (First, Off),
            FASTER,
            Some(1.139),
        ),
        compare(
            "random_1m_again",
            Job::Random1m,
            (Again, Off),
            FASTER,
            Some(1.175),
        ),
        compare("random_1m_own", Job::Random1m, (Own, Off), Nothing, None),
        compare(
            "alternate",
            Job::Alternate,
            (Adaptive, Off),
            NotSlower,
            None,
        ),
        compare(
            "alternate_control",
            Job::Alternate,
            (Control, Off),
            Nothing,
            None,
        ),
        compare(
            "alternate_strangers",
            Job::AlternateStrangers,
            (Adaptive, Off),
            NotSlower,
            None,
        ),
        compare(
            "alternate_strangers_control",
            Job::AlternateStrangers,
            (Control, Off),
            Nothing,
            None,
        ),
        compare("create", Job::Create, (Adaptive, Off), NotSlower, None),
        compare("create_control", Job::Create, (Control, Off), Nothing, None),
        compare(
            "create_far_first",
            Job::CreateFar,
            (First, Off),
            FASTER,
            None,
        ),
        compare(
            "create_far_again",
            Job::CreateFar,
            (Again, Off),
            FASTER,
            None,
        ),
        compare("create_far_own", Job::CreateFar, (Own, Off), Nothing, None),
        compare("home", Job::Home, (Cut, Linked), NoBytes, None),
        compare("home_moved", Job::HomeMoved, (Cut, Linked), NoBytes, None),
    ]
};

impl Job {
    /// In the order of the table.
    pub const ALL: [Self; 10] = [
        Self::Rewrite,
        Self::Random4k,
        Self::Random128k,
        Self::Random1m,
        Self::Alternate,
        Self::AlternateStrangers,
        Self::Create,
        Self::CreateFar,
        Self::Home,
        Self::HomeMoved,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Rewrite => "rewrite",
            Self::Random4k => "random-4k",
            Self::Random128k => "random-128k",
            Self::Random1m => "random-1m",
            Self::Alternate => "alternate",
            Self::AlternateStrangers => "alternate-strangers",
            Self::Create => "create",
            Self::CreateFar => "create-far",
            Self::Home => "home",
            Self::HomeMoved => "home-moved",
        }
    }

    /// Its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Rewrite => "rewrite, 128 KiB + fsync, each writer",
            Self::Random4k => "random write 4 KiB",
            Self::Random128k => "random write 128 KiB",
            Self::Random1m => "random write 1 MiB",
            Self::Alternate => "4 KiB by turns, owner and another",
            Self::AlternateStrangers => "4 KiB by turns, two others",
            Self::Create => "create by two, owner and another",
            Self::CreateFar => "create by another than the owner",
            Self::Home => "random write 4 KiB at home",
            Self::HomeMoved => "the same, where it has moved to",
        }
    }

    /// The unit of its values.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Rewrite | Self::Random128k | Self::Random1m => "MiB/s",
            Self::Random4k
            | Self::Alternate
            | Self::AlternateStrangers
            | Self::Create
            | Self::CreateFar
            | Self::Home
            | Self::HomeMoved => "1/s",
        }
    }

    /// Whether it is one of those where moving could do harm.
    pub(super) const fn is_of_turns(self) -> bool {
        matches!(
            self,
            Self::Alternate | Self::AlternateStrangers | Self::Create
        )
    }
}

impl Side {
    /// Its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Concentrated => "concentrated",
            Self::Off => "migration=off",
            Self::Control => "control",
            Self::First => "adaptive, first",
            Self::Again => "adaptive, again",
            Self::Own => "made there",
            Self::Adaptive => "adaptive",
            Self::Linked => "linked",
            Self::Cut => "links cut",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_compared_under_names_of_their_own() {
        for job in Job::ALL {
            assert!(COMPARISONS.iter().any(|one| one.job == job), "{job:?}");
        }
        let mut keys: Vec<&str> = COMPARISONS.iter().map(|one| one.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), COMPARISONS.len());
    }
}
