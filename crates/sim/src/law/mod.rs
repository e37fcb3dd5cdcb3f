//! The laws, one file each; checked while a history runs, or at its end. The first ones are those of one replicated
//! container, then come those of locks, and of a namespace over several containers.

pub mod checkpoint;
pub mod coherent;
pub mod control_store;
pub mod explained;
pub mod handed_over;
pub mod held;
pub mod home;
pub mod no_wrong_bytes;
pub mod one_owner;
pub mod replicated;
pub mod sound_again;
pub mod well_again;

pub mod locks;

pub mod as_if_alone;
pub mod at_most_once;
pub mod cached;
pub mod explained_names;
pub mod history;
pub mod kept;
pub mod namespace;
pub mod past;
pub mod settled;

/// The end of a history of names: everything was healed, and time has passed.
pub(crate) fn check_names(world: &mut crate::names::world::Names) {
    settled::check(world);
    namespace::check(world);
    at_most_once::check(world);
    as_if_alone::check(world);
    past::check(world);
    kept::check(world);
}

/// The laws that a history is looked at under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Laws {
    /// All.
    #[default]
    All,
    /// Those alone that know no more than the answers that sessions got: what they find counts without the others.
    OfAnswers,
}

impl Laws {
    pub(crate) fn include(self, law: &str) -> bool {
        self == Self::All || law == explained::LAW
    }
}
