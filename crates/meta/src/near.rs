//! What a host keeps of what another host owns, under the leases of its mounts and beside their kernels.
//!
//! A kernel forgets what a directory is like whenever a program of its own changes a name in it, and asks before the next
//! step into it. So owners tell with such a change what the directory is like after it, and the host answers the kernel.
//!
//! A program that reads small files looks each up, opens it and reads it, one after the other. Where that is what a session
//! does, it asks for the content beside the look-up, and the host answers the other two. And of a file that a session has
//! made its host knows that it has no privileges, which the kernel asks for before the first write.
//!
//! Invariant: what [`Near::attr`] gives was so at the owner at some moment after the last of the session's own changes that
//! the session was told of, and is so until another session's change is ordered (see [`crate::lease`]). Answers come in any
//! order: of two the one of the later state counts, and one that was asked for before something was taken back never does.

use crate::attr::{Attr, Kind};
use crate::op::{NewNode, Op, Reply, Touched};
use crate::xattr::CAPABILITY;
use bytes::Bytes;
use perigee_types::{ByteRange, ContainerId, InodeId, SessionId, Span, Tick, Version};
use std::collections::BTreeMap;

/// Inodes that a host remembers something of; with one more it forgets all of them.
const KNOWN_MAX: usize = 65_536;
/// Bytes of content that a host keeps; with more it forgets all content.
const CONTENT_BYTES_MAX: usize = 32 << 20;
/// What a small read of a session is worth: so many look-ups with content, of which one is for its own file.
const CREDIT: u32 = 2;
/// So many look-ups bring content that nobody reads, at most, when a session goes over to something else.
const CREDIT_MAX: u32 = 64;

/// When an operation was asked for, among all questions and all that was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Asked(u64);

/// What an owner's answer says of one inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// What it is like.
    pub attr: Attr,
    /// Until when the session may keep that, on this host's clock.
    pub until: Tick,
}

#[derive(Debug, Clone, Default)]
struct Known {
    /// What was asked for up to then does not count.
    barred: Asked,
    /// The state of the last answer that counted.
    as_of: Version,
    word: Option<Word>,
    beside: Beside,
}

/// What is known of a file beside its attributes, for as long.
#[derive(Debug, Clone, Default)]
enum Beside {
    #[default]
    Nothing,
    /// All of its bytes.
    Content(Bytes),
    /// It was made by this session, and has no attributes of the namespace `security`.
    New,
}

/// All that one host keeps. No I/O.
#[derive(Debug, Default)]
pub struct Near {
    known: BTreeMap<(SessionId, InodeId), Known>,
    /// The last question.
    asked: Asked,
    /// What was asked for up to then does not count, whatever it is about.
    barred: Asked,
    /// Bytes of content that is kept.
    bytes: usize,
    /// How many look-ups are to bring content.
    credit: BTreeMap<SessionId, u32>,
}

impl Near {
    /// A session is about to ask an owner for something.
    pub fn ask(&mut self) -> Asked {
        self.asked.0 += 1;
        self.asked
    }

    /// What an inode is like, and for how long the session's kernel may keep that.
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
            // A directory's word takes the place of what is kept of it.
            let noted = |word: &Word| word.attr.inode == inode && word.attr.kind == Kind::Directory;
            if !words.iter().any(noted) {
                self.forget(session, inode);
            }
        }
        let directories = words
            .iter()
            .filter(|word| word.attr.kind == Kind::Directory);
        for word in directories {
            self.note(session, (asked, as_of), *word, Beside::Nothing);
        }
        if let (Op::Make { node, .. }, Reply::Created { attr, existed }) = (op, reply)
            && matches!(node, NewNode::File)
            && !existed
            && let Some(word) = words.iter().find(|word| word.attr.inode == attr.inode)
        {
            self.note(session, (asked, as_of), *word, Beside::New);
        }
    }

    /// With an answer that [`Self::told`] knows came all of a file.
    pub fn told_content(
        &mut self,
        session: SessionId,
        (asked, as_of): (Asked, Version),
        word: Word,
        content: Bytes,
    ) {
        if let Some(credit) = self.credit.get_mut(&session) {
            *credit = credit.saturating_sub(1);
        }
        if self.bytes + content.len() > CONTENT_BYTES_MAX {
            for known in self.known.values_mut() {
                known.beside = Beside::Nothing;
            }
            self.bytes = 0;
        }
        if word.attr.kind == Kind::File && content.len() as u64 == word.attr.size {
            self.note(session, (asked, as_of), word, Beside::Content(content));
        }
    }

    /// Whether a session's next look-up is to bring content.
    #[must_use]
    pub fn wants_content(&self, session: SessionId) -> bool {
        self.credit.get(&session).is_some_and(|credit| *credit > 0)
    }

    /// A session has read a small file at its owner: the next ones had better come with their look-ups.
    pub fn read_small(&mut self, session: SessionId) {
        let credit = self.credit.entry(session).or_default();
        *credit = (*credit + CREDIT).min(CREDIT_MAX);
    }

    /// What a session reads of a file whose content it keeps; the kernel keeps what is read to the end.
    pub fn read(
        &mut self,
        now: Tick,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
    ) -> Option<Bytes> {
        let known = self.known.get_mut(&(session, inode))?;
        known.word.filter(|word| word.until > now)?;
        let Beside::Content(content) = &known.beside else {
            return None;
        };
        let len = content.len() as u64;
        // Both are at most the length.
        let (start, end) = (range.start.min(len) as usize, range.end.min(len) as usize);
        let read = content.slice(start..end);
        if range.end >= len {
            self.drop_beside(session, inode);
            self.read_small(session);
        }
        Some(read)
    }

    /// Whether a file is known not to have an extended attribute.
    #[must_use]
    pub fn lacks(&self, now: Tick, session: SessionId, inode: InodeId, name: &[u8]) -> bool {
        let known = self.known.get(&(session, inode));
        known.is_some_and(|known| {
            let counts = known.word.is_some_and(|word| word.until > now);
            counts && matches!(known.beside, Beside::New) && name == CAPABILITY
        })
    }

    /// A session changes a file, or has just been told that it did.
    pub fn changed(&mut self, session: SessionId, inode: InodeId) {
        self.forget(session, inode);
    }

    /// Nobody can say what became of a session's operation.
    pub fn unknown(&mut self, session: SessionId, op: &Op) {
        for inode in changed_by(op, &Reply::Done) {
            self.forget(session, inode);
        }
        // Which file it was about only the answer says.
        if let Op::Unlink { .. } | Op::Rename { .. } = op {
            self.session_ended(session);
            self.barred = self.asked;
        }
    }

    fn note(
        &mut self,
        session: SessionId,
        (asked, as_of): (Asked, Version),
        word: Word,
        beside: Beside,
    ) {
        let barred = self.barred;
        let inode = word.attr.inode;
        let known = self.at(session, inode);
        if as_of < known.as_of {
            return;
        }
        let counts = asked > barred.max(known.barred);
        if counts || as_of > known.as_of {
            // Of a later state than what is kept: that does not count any more, either.
            known.word = counts.then_some(word);
            known.as_of = as_of;
            self.drop_beside(session, inode);
            if counts {
                if let Beside::Content(content) = &beside {
                    self.bytes += content.len();
                }
                self.at(session, inode).beside = beside;
            }
        }
    }

    fn drop_beside(&mut self, session: SessionId, inode: InodeId) {
        if let Some(known) = self.known.get_mut(&(session, inode))
            && let Beside::Content(content) = std::mem::take(&mut known.beside)
        {
            self.bytes -= content.len();
        }
    }

    /// An owner takes back what a session keeps.
    pub fn revoked(&mut self, session: SessionId, touched: &[Touched]) {
        for change in touched {
            match change {
                Touched::Attr(inode)
                | Touched::Data(inode)
                | Touched::Listing(inode)
                | Touched::Name { dir: inode, .. } => {
                    self.forget(session, *inode);
                }
            }
        }
    }

    /// A container has another owner, who has its own leases.
    pub fn owner_changed(&mut self, container: ContainerId) {
        self.barred = self.asked;
        self.keep(|(_, inode)| inode.container() != container);
    }

    /// A mount is gone.
    pub fn session_ended(&mut self, session: SessionId) {
        self.keep(|(of, _)| *of != session);
        self.credit.remove(&session);
    }

    fn keep(&mut self, keeps: impl Fn(&(SessionId, InodeId)) -> bool) {
        self.known.retain(|key, _| keeps(key));
        let contents = self.known.values().map(|known| match &known.beside {
            Beside::Content(content) => content.len(),
            Beside::Nothing | Beside::New => 0,
        });
        self.bytes = contents.sum();
    }

    fn forget(&mut self, session: SessionId, inode: InodeId) {
        let asked = self.asked;
        self.drop_beside(session, inode);
        let known = self.at(session, inode);
        known.word = None;
        known.barred = asked;
    }

    fn at(&mut self, session: SessionId, inode: InodeId) -> &mut Known {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&(session, inode)) {
            self.known.clear();
            self.bytes = 0;
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
        | Op::Allocate { inode, .. }
        | Op::MakeColumns { inode, .. }
        | Op::Claim { inode, .. }
        | Op::CutColumn { inode, .. }
        | Op::PunchColumn { inode, .. }
        | Op::DropColumns { inode }
        | Op::EndCut { inode, .. }
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
            layout: crate::stripe::Layout::Whole,
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

    fn file() -> InodeId {
        InodeId::new(ContainerId(2), InodeIndex(10))
    }

    /// A file whose length counts its changes.
    fn file_attr(size: u64) -> Attr {
        Attr {
            inode: file(),
            kind: Kind::File,
            ..attr(size)
        }
    }

    /// On its way about the file.
    enum Note {
        LookUp(Asked, Tick),
        Found(Asked, u64, Tick),
        Write,
        Wrote(u64),
        SetAttr(Asked, Tick),
        Set(Asked, u64, Tick),
        Revoke(u64),
        Revoked(u64),
    }

    /// Look-ups that bring content, writes of the session, and changes by another one, in any order on their way.
    fn run_with_content(seed: u64) -> u64 {
        let look = Op::Lookup {
            parent: directory(),
            name: b"f".to_vec(),
        };
        let mut rng = Rng::new(seed);
        let mut near = Near::default();
        let mut owner = Owner {
            changes: 1,
            ..Owner::default()
        };
        let mut notes: Vec<Note> = Vec::new();
        let (mut told, mut kept, mut now) = (0, 0, Tick(1));
        for _ in 0..400 {
            now = now + Span(rng.below(40));
            // A part of it, so that it stays.
            if let Some(part) = near.read(now, ME, file(), ByteRange::new(0, 0)) {
                assert!(part.is_empty());
                let len = near.attr(now, ME, file()).map(|(attr, _)| attr.size);
                let len = len.expect("content without attributes");
                assert!(len >= told, "{seed}: older than what a program was told");
                assert!(len >= owner.others, "{seed}: as before another's change");
                kept += 1;
            }
            let stands = owner.lease.is_some_and(|until| until > now);
            match rng.below(10) {
                0..=2 => notes.push(Note::LookUp(near.ask(), now)),
                3 => {
                    near.changed(ME, file());
                    notes.push(Note::Write);
                }
                5 => notes.push(Note::SetAttr(near.ask(), now)),
                4 if !stands => owner.others_change(),
                4 if owner.recall.is_none() => {
                    owner.recalls += 1;
                    owner.recall = Some(owner.recalls);
                    notes.push(Note::Revoke(owner.recalls));
                }
                _ if notes.is_empty() => {}
                _ => match notes.swap_remove(rng.below(notes.len() as u64) as usize) {
                    Note::LookUp(asked, sent) => {
                        let until = match owner.recall {
                            None => {
                                owner.lease = Some(now + TERM);
                                sent + TERM
                            }
                            Some(_) => sent,
                        };
                        notes.push(Note::Found(asked, owner.changes, until));
                    }
                    Note::Found(asked, size, until) => {
                        let attr = file_attr(size);
                        let word = Word { attr, until };
                        let as_of = Version {
                            epoch: Epoch(1),
                            seq: Seq(size),
                        };
                        near.told(ME, &look, &Reply::Entry(attr), (asked, as_of), &[word]);
                        let content = Bytes::from(vec![0; size as usize]);
                        near.told_content(ME, (asked, as_of), word, content);
                    }
                    Note::Write => {
                        owner.changes += 1;
                        notes.push(Note::Wrote(owner.changes));
                    }
                    Note::Wrote(size) => {
                        near.changed(ME, file());
                        told = told.max(size);
                    }
                    Note::SetAttr(asked, sent) => {
                        owner.changes += 1;
                        notes.push(Note::Set(asked, owner.changes, sent));
                    }
                    Note::Set(asked, size, until) => {
                        let set = Op::SetAttr {
                            inode: file(),
                            set: crate::SetAttr::default(),
                            cred: crate::op::Credential::default(),
                        };
                        let attr = file_attr(size);
                        let word = Word { attr, until };
                        let as_of = Version {
                            epoch: Epoch(1),
                            seq: Seq(size),
                        };
                        near.told(ME, &set, &Reply::Attr(attr), (asked, as_of), &[word]);
                        told = told.max(size);
                    }
                    Note::Revoke(recall) => {
                        near.revoked(ME, &[Touched::Attr(file()), Touched::Data(file())]);
                        notes.push(Note::Revoked(recall));
                    }
                    Note::Revoked(recall) if owner.recall == Some(recall) => owner.others_change(),
                    Note::Revoked(_) => {}
                },
            }
        }
        let contents = near.known.values().map(|known| match &known.beside {
            Beside::Content(content) => content.len(),
            Beside::Nothing | Beside::New => 0,
        });
        assert_eq!(near.bytes, contents.sum::<usize>());
        kept
    }

    #[test]
    fn content_that_is_kept_is_never_older_than_what_anybody_was_told() {
        let kept: u64 = (0..2_000).map(run_with_content).sum();
        assert!(kept > 2_000, "{kept}");
    }

    #[test]
    fn who_reads_what_he_looks_up_gets_content_and_who_does_not_soon_gets_none() {
        let mut near = Near::default();
        let word = Word {
            attr: file_attr(4),
            until: Tick(500),
        };
        let look_up = |near: &mut Near| {
            let came = near.wants_content(ME);
            if came {
                let asked = near.ask();
                near.told_content(ME, (asked, Version::default()), word, Bytes::from("text"));
            }
            came
        };
        assert!(!look_up(&mut near));
        near.read_small(ME);
        for _ in 0..1_000 {
            assert!(look_up(&mut near));
            let all = near.read(Tick(1), ME, file(), ByteRange::new(0, 4_096));
            assert_eq!(all.as_deref(), Some(&b"text"[..]));
            assert_eq!(near.read(Tick(1), ME, file(), ByteRange::new(0, 4)), None);
        }
        let unread = (0..1_000).filter(|_| look_up(&mut near)).count();
        assert_eq!(unread, CREDIT_MAX as usize);
        assert_eq!(near.read(Tick(500), ME, file(), ByteRange::new(0, 4)), None);
    }

    #[test]
    fn a_file_that_was_just_made_has_no_privileges() {
        let mut near = Near::default();
        let reply = |existed| Reply::Created {
            attr: file_attr(0),
            existed,
        };
        let word = Word {
            attr: file_attr(0),
            until: Tick(500),
        };
        for existed in [true, false] {
            let asked = near.ask();
            near.told(
                ME,
                &make(),
                &reply(existed),
                (asked, Version::default()),
                &[word],
            );
            let lacks = |name| near.lacks(Tick(1), ME, file(), name);
            assert_eq!(lacks(CAPABILITY), !existed);
            assert!(!lacks(b"user.any"));
        }
        assert!(!near.lacks(Tick(500), ME, file(), CAPABILITY));
        near.changed(ME, file());
        assert!(!near.lacks(Tick(1), ME, file(), CAPABILITY));
    }
}
