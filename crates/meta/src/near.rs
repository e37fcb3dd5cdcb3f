//! What a host keeps of what another host owns, under the leases of its mounts and beside their kernels.
//!
//! A kernel forgets what a directory is like whenever a program of its own changes a name in it, and asks before the next
//! step into it. So owners tell with such a change what the directory is like after it, and the host answers the kernel.
//!
//! A program that reads small files looks each up, opens it and reads it, one after the other. Where that is what a session
//! does, it asks for the content beside the look-up, and the host answers the other two. And of a file that a session has
//! made its host knows that it has no privileges, which the kernel asks for before the first write.
//!
//! A program that opens a file by its path has the kernel ask for each directory on the way, one after the other, once what it
//! keeps of them has ended. So a host remembers which directory was gone on to from each ([`way`]), and asks for both at once.
//!
//! Before a program makes a file its kernel asks whether the name is there. Of a directory that a session has made, or in which
//! it makes several and few others are, its host knows every name that may be there ([`names`]), and says itself that there is none.
//!
//! Invariant: what [`Near::attr`] gives was so at the owner at some moment after the last of the session's own changes that
//! the session was told of, and is so until another session's change is ordered (see [`crate::lease`]). Answers come in any
//! order: of two the one of the later state counts, and one that was asked for before something was taken back never does.
//! What [`Near::absent`] says is not there is not there at the owner at that moment.

use crate::attr::{Attr, Kind};
use crate::op::{NewNode, Op, RenameMode, Reply, Touched};
use crate::xattr::CAPABILITY;
use bytes::Bytes;
use perigee_types::{ByteRange, ContainerId, InodeId, SessionId, Span, Tick, Version};
use std::collections::BTreeMap;

pub mod names;
mod way;

use names::{Asking, NameHash, Names};
pub use way::Step;
use way::Ways;

/// Inodes that a host remembers something of; with one more it forgets all of them.
const KNOWN_MAX: usize = 65_536;
/// Bytes of content that a host keeps; with more it forgets all content.
const CONTENT_BYTES_MAX: usize = 32 << 20;
/// Names that a host knows of; with one more it forgets all of them.
const NAMES_MAX: usize = 1 << 20;
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
    /// The session has made a name in it.
    makes: bool,
}

/// What is known of an inode beside its attributes, for as long.
#[derive(Debug, Clone, Default)]
enum Beside {
    #[default]
    Nothing,
    /// All of its bytes.
    Content(Bytes),
    /// It was made by this session, and has no attributes of the namespace `security`.
    New,
    /// All names that a directory may have.
    Names(Names),
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
    /// How many names are known.
    names: usize,
    asking: Asking,
    /// How many look-ups are to bring content.
    credit: BTreeMap<SessionId, u32>,
    ways: Ways,
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

    /// An owner has answered a session's operation as of a state of its container, and the answer is here `now`. `words`:
    /// what it says of inodes, also of those that the session may not keep.
    pub fn told(
        &mut self,
        now: Tick,
        session: SessionId,
        op: &Op,
        reply: &Reply,
        (asked, as_of): (Asked, Version),
        words: &[Word],
    ) {
        self.ways.changed(session, op, self.asked);
        if let Op::Rename {
            mode: RenameMode::Exchange,
            ..
        } = op
        {
            // Which inode was the other one the answer does not say.
            self.keep(|(of, _)| *of != session);
            self.barred = self.asked;
        }
        for inode in changed_by(op, reply) {
            // A directory's word takes the place of what is kept of it.
            let noted = |word: &Word| word.attr.inode == inode && word.attr.kind == Kind::Directory;
            if !words.iter().any(noted) {
                self.forget(session, inode);
            }
        }
        let made = match (op, reply) {
            (
                Op::Make { .. },
                Reply::Created {
                    attr,
                    existed: false,
                },
            ) => Some(attr.inode),
            _ => None,
        };
        let directories = words
            .iter()
            .filter(|word| word.attr.kind == Kind::Directory);
        for word in directories {
            self.note(now, session, (asked, as_of), *word, Beside::Nothing);
            if made == Some(word.attr.inode) {
                self.told_names(now, session, as_of, word.attr.inode, &[]);
            }
        }
        if let Op::Make { parent, .. } = op {
            self.at(session, *parent).makes = true;
        }
        if let Op::Make {
            node: NewNode::File,
            ..
        } = op
            && let Some(word) = words.iter().find(|word| Some(word.attr.inode) == made)
        {
            self.note(now, session, (asked, as_of), *word, Beside::New);
        }
        if let (Op::Lookup { .. } | Op::GetAttr { .. }, Reply::Entry(attr) | Reply::Attr(attr)) =
            (op, reply)
            && attr.kind == Kind::File
            && let Some(word) = words.iter().find(|word| word.attr.inode == attr.inode)
            && !self.has_beside(now, session, attr.inode)
        {
            // The program opens it next.
            self.note(now, session, (asked, as_of), *word, Beside::Nothing);
        }
    }

    /// What is known beside a file's attributes goes when they do, and not for others that are as right.
    fn has_beside(&self, now: Tick, session: SessionId, inode: InodeId) -> bool {
        let known = self.known.get(&(session, inode));
        let counts = known.filter(|known| known.word.is_some_and(|word| word.until > now));
        counts.is_some_and(|known| !matches!(known.beside, Beside::Nothing))
    }

    /// With an answer came where a name leads: to a directory.
    pub fn told_step(&mut self, session: SessionId, asked: Asked, step: Step, until: Tick) {
        let parent = self.known.get(&(session, step.parent));
        let barred = parent.map_or(self.barred, |known| known.barred.max(self.barred));
        let counts = asked > barred;
        self.ways
            .told(session, (asked, self.asked), step, counts.then_some(until));
    }

    /// Where a name leads, and for how long that may be kept, as far as it was the last that was gone on to from its directory.
    #[must_use]
    pub fn leads(
        &self,
        now: Tick,
        session: SessionId,
        parent: InodeId,
        name: &[u8],
    ) -> Option<(InodeId, Span)> {
        self.ways.leads(now, session, parent, name)
    }

    /// The steps that programs took last from a directory on, one from each, and not long ago: none of them need be right any more.
    #[must_use]
    pub fn way(&self, now: Tick, session: SessionId, from: InodeId) -> Vec<Step> {
        self.ways.from(now, session, from)
    }

    /// A program has looked a name up at that time.
    pub fn takes(&mut self, now: Tick, session: SessionId, parent: InodeId, name: &[u8]) {
        self.ways.taken(now, session, parent, name);
    }

    /// With an answer came that a name leads to no directory.
    pub fn leads_nowhere(&mut self, session: SessionId, parent: InodeId, name: &[u8]) {
        self.ways.lost(session, parent, name, self.asked);
    }

    /// A name has turned out to lead elsewhere.
    pub fn leads_elsewhere(&mut self, session: SessionId, parent: InodeId) {
        self.ways.end(session, parent, self.asked);
    }

    /// With an answer that [`Self::told`] knows came all of a file.
    pub fn told_content(
        &mut self,
        now: Tick,
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
                if let Beside::Content(_) = known.beside {
                    known.beside = Beside::Nothing;
                }
            }
            self.bytes = 0;
        }
        if word.attr.kind == Kind::File && content.len() as u64 == word.attr.size {
            self.note(now, session, (asked, as_of), word, Beside::Content(content));
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

    /// A session is about to ask another host for something that may make names.
    pub fn asks_names(&mut self, session: SessionId, op: &Op) {
        self.asking.begin(session, op);
        for (directory, name) in names::made_by(op) {
            let Some(known) = self.known.get_mut(&(session, directory)) else {
                continue;
            };
            if let Beside::Names(names) = &mut known.beside
                && names.add(name)
            {
                self.names += 1;
            }
        }
        self.bound_names();
    }

    /// What became of it is known. Never called where nobody can say that: it may be done later.
    pub fn names_settled(&mut self, session: SessionId, op: &Op) {
        self.asking.end(session, op);
    }

    /// Whether the answer to an operation is to bring all names of the directory.
    #[must_use]
    pub fn wants_names(&self, now: Tick, session: SessionId, op: &Op) -> bool {
        let Op::Make { parent, .. } = op else {
            return false;
        };
        let known = self.known.get(&(session, *parent));
        known.is_some_and(|known| {
            let stands = known.word.is_some_and(|word| word.until > now);
            known.makes && stands && !matches!(known.beside, Beside::Names(_))
        })
    }

    /// With an answer that [`Self::told`] knows came all names of a directory, as of the same state.
    pub fn told_names(
        &mut self,
        now: Tick,
        session: SessionId,
        as_of: Version,
        directory: InodeId,
        names: &[NameHash],
    ) {
        let Some(known) = self.known.get_mut(&(session, directory)) else {
            return;
        };
        // What is kept is of that state, and may be: so nobody else has made a name since then.
        let stands = known.word.is_some_and(|word| word.until > now);
        let counts = known.as_of == as_of && stands && self.asking.is_known(session);
        if !counts || !matches!(known.beside, Beside::Nothing) {
            return;
        }
        // What is answered later may have been done after that state.
        let asking = self.asking.of(session, directory);
        let names = Names::of(names.iter().copied().chain(asking));
        self.names += names.len();
        known.beside = Beside::Names(names);
        self.bound_names();
    }

    fn bound_names(&mut self) {
        if self.names > NAMES_MAX {
            for known in self.known.values_mut() {
                if let Beside::Names(_) = known.beside {
                    known.beside = Beside::Nothing;
                }
            }
            self.names = 0;
        }
    }

    /// For how long a session may keep that a directory has no such name, where that is known.
    #[must_use]
    pub fn absent(
        &self,
        now: Tick,
        session: SessionId,
        directory: InodeId,
        name: &[u8],
    ) -> Option<Span> {
        let known = self.known.get(&(session, directory))?;
        let word = known.word.filter(|word| word.until > now)?;
        let Beside::Names(names) = &known.beside else {
            return None;
        };
        names.lack(name).then(|| word.until.since(now))
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
            self.forget_all(session);
            self.barred = self.asked;
        }
    }

    fn note(
        &mut self,
        now: Tick,
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
            // Nobody else has made names while the lease stood, and it has until this answer came.
            let stands = known.word.is_some_and(|before| before.until > now);
            // Of a later state than what is kept: that does not count any more, either.
            known.word = counts.then_some(word);
            known.as_of = as_of;
            if counts && stands && matches!(known.beside, Beside::Names(_)) {
                return;
            }
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
        let Some(known) = self.known.get_mut(&(session, inode)) else {
            return;
        };
        match std::mem::take(&mut known.beside) {
            Beside::Content(content) => self.bytes -= content.len(),
            Beside::Names(names) => self.names -= names.len(),
            Beside::New | Beside::Nothing => {}
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
        self.ways.end_all();
        self.keep(|(_, inode)| inode.container() != container);
    }

    /// A mount is gone.
    pub fn session_ended(&mut self, session: SessionId) {
        self.forget_all(session);
        self.asking.forget(session);
    }

    fn forget_all(&mut self, session: SessionId) {
        self.keep(|(of, _)| *of != session);
        self.ways.forget(session);
        self.credit.remove(&session);
    }

    fn keep(&mut self, keeps: impl Fn(&(SessionId, InodeId)) -> bool) {
        self.known.retain(|key, _| keeps(key));
        (self.bytes, self.names) = (0, 0);
        for known in self.known.values() {
            match &known.beside {
                Beside::Content(content) => self.bytes += content.len(),
                Beside::Names(names) => self.names += names.len(),
                Beside::Nothing | Beside::New => {}
            }
        }
    }

    fn forget(&mut self, session: SessionId, inode: InodeId) {
        let asked = self.asked;
        self.drop_beside(session, inode);
        let known = self.at(session, inode);
        known.word = None;
        known.barred = asked;
        self.ways.end(session, inode, asked);
    }

    fn at(&mut self, session: SessionId, inode: InodeId) -> &mut Known {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&(session, inode)) {
            self.known.clear();
            (self.bytes, self.names) = (0, 0);
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
mod tests;
