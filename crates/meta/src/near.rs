//! What a host keeps of directories that another host owns, under the leases of its mounts and beside their kernels.
//!
//! A kernel forgets what a directory is like whenever a program of its own changes a name in it, and asks before the next
//! step into it. So owners tell with such a change what the directory is like after it, and the host answers the kernel.
//!
//! Invariant: what [`Near::attr`] gives was so at the owner at some moment after the last of the session's own changes that
//! the session was told of, and is so until another session's change is ordered (see [`crate::lease`]). Answers come in any
//! order: of two the one of the later state counts, and one that was asked for before something was taken back never does.

use crate::attr::{Attr, Kind};
use crate::op::{Op, Reply, Touched};
use perigee_types::{ContainerId, InodeId, SessionId, Span, Tick, Version};
use std::collections::BTreeMap;

/// Directories that a host remembers something of; with one more it forgets all of them.
const KNOWN_MAX: usize = 65_536;

/// When an operation was asked for, among all questions and all that was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Asked(u64);

/// What an owner's answer says of one directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// What it is like.
    pub attr: Attr,
    /// Until when the session may keep that, on this host's clock.
    pub until: Tick,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// What was asked for up to then does not count.
    barred: Asked,
    /// The state of the last answer that counted.
    as_of: Version,
    word: Option<Word>,
}

/// All that one host keeps. No I/O.
#[derive(Debug, Default)]
pub struct Near {
    known: BTreeMap<(SessionId, InodeId), Known>,
    /// The last question.
    asked: Asked,
    /// What was asked for up to then does not count, whatever it is about.
    barred: Asked,
}

impl Near {
    /// A session is about to ask an owner for something.
    pub fn ask(&mut self) -> Asked {
        self.asked.0 += 1;
        self.asked
    }

    /// What a directory is like, and for how long the session's kernel may keep that.
    #[must_use]
    pub fn attr(&self, now: Tick, session: SessionId, inode: InodeId) -> Option<(Attr, Span)> {
        let word = self.known.get(&(session, inode))?.word?;
        (word.until > now).then(|| (word.attr, word.until.since(now)))
    }

    /// An owner has answered a session's operation as of a state of its container. `words`: what the answer says of
    /// inodes, also of those that the session may not keep.
    pub fn told(
        &mut self,
        session: SessionId,
        op: &Op,
        reply: &Reply,
        (asked, as_of): (Asked, Version),
        words: &[Word],
    ) {
        for inode in changed_by(op, reply) {
            if !words.iter().any(|word| word.attr.inode == inode) {
                self.forget(session, inode);
            }
        }
        let directories = words
            .iter()
            .filter(|word| word.attr.kind == Kind::Directory);
        for word in directories {
            self.note(session, (asked, as_of), *word);
        }
    }

    /// Nobody can say what became of a session's operation.
    pub fn unknown(&mut self, session: SessionId, op: &Op) {
        for inode in changed_by(op, &Reply::Done) {
            self.forget(session, inode);
        }
    }

    fn note(&mut self, session: SessionId, (asked, as_of): (Asked, Version), word: Word) {
        let barred = self.barred;
        let known = self.at(session, word.attr.inode);
        if as_of < known.as_of {
            return;
        }
        let counts = asked > barred.max(known.barred);
        if counts || as_of > known.as_of {
            // Of a later state than what is kept: that does not count any more, either.
            known.word = counts.then_some(word);
            known.as_of = as_of;
        }
    }

    /// An owner takes back what a session keeps.
    pub fn revoked(&mut self, session: SessionId, touched: &[Touched]) {
        for change in touched {
            match change {
                Touched::Attr(inode)
                | Touched::Listing(inode)
                | Touched::Name { dir: inode, .. } => {
                    self.forget(session, *inode);
                }
                Touched::Data(_) => {}
            }
        }
    }

    /// A container has another owner, who has its own leases.
    pub fn owner_changed(&mut self, container: ContainerId) {
        self.barred = self.asked;
        self.known
            .retain(|(_, inode), _| inode.container() != container);
    }

    /// A mount is gone.
    pub fn session_ended(&mut self, session: SessionId) {
        self.known.retain(|(of, _), _| *of != session);
    }

    fn forget(&mut self, session: SessionId, inode: InodeId) {
        let asked = self.asked;
        let known = self.at(session, inode);
        known.word = None;
        known.barred = asked;
    }

    fn at(&mut self, session: SessionId, inode: InodeId) -> &mut Known {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&(session, inode)) {
            self.known.clear();
            self.barred = self.asked;
        }
        self.known.entry((session, inode)).or_default()
    }
}

/// The directory in which an operation changes a name, and no other.
#[must_use]
pub fn directory_of(op: &Op) -> Option<InodeId> {
    match op {
        Op::Make { parent, .. } | Op::Unlink { parent, .. } | Op::Rmdir { parent, .. } => {
            Some(*parent)
        }
        Op::Link { new_parent, .. } => Some(*new_parent),
        Op::Rename {
            parent, new_parent, ..
        } if parent == new_parent => Some(*parent),
        _ => None,
    }
}

/// Every inode that an operation may have changed the attributes of.
fn changed_by(op: &Op, reply: &Reply) -> Vec<InodeId> {
    let mut inodes = match op {
        Op::Make { parent, .. }
        | Op::Unlink { parent, .. }
        | Op::Rmdir { parent, .. }
        | Op::Rehome { parent, .. } => vec![*parent],
        Op::Rename {
            parent, new_parent, ..
        } => vec![*parent, *new_parent],
        Op::Link {
            inode, new_parent, ..
        } => vec![*inode, *new_parent],
        Op::Undelete { new_parent, .. } => vec![*new_parent],
        Op::SetAttr { inode, .. }
        | Op::SetXattr { inode, .. }
        | Op::RemoveXattr { inode, .. }
        | Op::SetPolicy { inode, .. } => vec![*inode],
        _ => Vec::new(),
    };
    match reply {
        Reply::Removed { inode, .. } => inodes.push(*inode),
        Reply::Renamed { moved, replaced } => {
            inodes.push(*moved);
            inodes.extend(*replaced);
        }
        _ => {}
    }
    inodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{Epoch, InodeIndex, NodeId, Rng, Seq, WallTime};

    const TERM: Span = Span(1_000);
    const ME: SessionId = SessionId::new(NodeId(1), 1);

    fn directory() -> InodeId {
        InodeId::new(ContainerId(2), InodeIndex(9))
    }

    /// A directory whose size counts its changes.
    fn attr(size: u64) -> Attr {
        let zero = WallTime::default();
        Attr {
            inode: directory(),
            kind: Kind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            size,
            rdev: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            blocks: 0,
        }
    }

    fn make() -> Op {
        Op::Make {
            parent: directory(),
            name: b"f".to_vec(),
            node: crate::op::NewNode::File,
            mode: 0o644,
            umask: 0,
            cred: crate::op::Credential::default(),
            open_existing: false,
        }
    }

    /// On its way between the session and the owner.
    enum Letter {
        Question(Asked, Tick, Op),
        Answer(Asked, Op, u64, Tick),
        Revoke(u64),
        Revoked(u64),
    }

    /// The owner: a count of changes, until when the session has a lease, and the number of the recall that waits for it.
    #[derive(Default)]
    struct Owner {
        changes: u64,
        others: u64,
        lease: Option<Tick>,
        recall: Option<u64>,
        recalls: u64,
    }

    impl Owner {
        /// Runs an operation of the session; a lease is given unless one is being taken back.
        fn run(&mut self, (asked, sent): (Asked, Tick), op: Op, now: Tick) -> Letter {
            self.changes += u64::from(matches!(op, Op::Make { .. }));
            let until = match self.recall {
                None => {
                    self.lease = Some(now + TERM);
                    sent + TERM
                }
                Some(_) => sent,
            };
            Letter::Answer(asked, op, self.changes, until)
        }

        /// Another session's change is ordered: nobody has a lease.
        fn others_change(&mut self) {
            (self.lease, self.recall) = (None, None);
            self.changes += 1;
            self.others = self.changes;
        }
    }

    /// Operations of several programs of one session, and changes by another one, in any order on their way: whatever is
    /// kept is not older than what any program was told, and never as it was before another's change that was ordered.
    fn run(seed: u64) {
        let mut rng = Rng::new(seed);
        let (mut near, mut owner) = (Near::default(), Owner::default());
        let mut letters: Vec<Letter> = Vec::new();
        let mut told = 0;
        let mut now = Tick(1);
        for _ in 0..400 {
            now = now + Span(rng.below(40));
            if let Some((attr, left)) = near.attr(now, ME, directory()) {
                assert!(
                    attr.size >= told,
                    "{seed}: older than what a program was told"
                );
                assert!(
                    attr.size >= owner.others,
                    "{seed}: as before another's change"
                );
                assert!(left <= TERM);
            }
            let stands = owner.lease.is_some_and(|until| until > now);
            match rng.below(8) {
                0 | 1 => letters.push(Letter::Question(near.ask(), now, make())),
                2 => {
                    let look = Op::GetAttr { inode: directory() };
                    letters.push(Letter::Question(near.ask(), now, look));
                }
                // Another session's change waits for the lease's end or for the session's word.
                3 if !stands => owner.others_change(),
                3 if owner.recall.is_none() => {
                    owner.recalls += 1;
                    owner.recall = Some(owner.recalls);
                    letters.push(Letter::Revoke(owner.recalls));
                }
                _ if letters.is_empty() => {}
                _ => {
                    let at = rng.below(letters.len() as u64) as usize;
                    match letters.swap_remove(at) {
                        Letter::Question(asked, sent, op) => {
                            letters.push(owner.run((asked, sent), op, now));
                        }
                        Letter::Answer(asked, op, size, until) => {
                            let attr = attr(size);
                            let words = [Word { attr, until }];
                            let as_of = Version {
                                epoch: Epoch(1),
                                seq: Seq(size),
                            };
                            near.told(ME, &op, &Reply::Done, (asked, as_of), &words);
                            told = told.max(size);
                        }
                        Letter::Revoke(recall) => {
                            near.revoked(ME, &[Touched::Attr(directory())]);
                            letters.push(Letter::Revoked(recall));
                        }
                        Letter::Revoked(recall) if owner.recall == Some(recall) => {
                            owner.others_change();
                        }
                        Letter::Revoked(_) => {}
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_kept_is_never_older_than_what_anybody_was_told() {
        (0..2_000).for_each(run);
    }

    #[test]
    fn a_change_is_kept_with_what_it_made_of_its_directory_until_the_lease_ends() {
        let mut near = Near::default();
        let asked = near.ask();
        let as_of = Version {
            epoch: Epoch(1),
            seq: Seq(4),
        };
        let word = Word {
            attr: attr(4),
            until: Tick(500),
        };
        near.told(ME, &make(), &Reply::Done, (asked, as_of), &[word]);
        let kept = near.attr(Tick(200), ME, directory());
        assert_eq!(kept, Some((attr(4), Span(300))));
        assert_eq!(near.attr(Tick(500), ME, directory()), None);
        near.unknown(ME, &make());
        assert_eq!(near.attr(Tick(200), ME, directory()), None);
    }
}
