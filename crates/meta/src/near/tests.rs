//! What a host keeps is never older than what anybody was told.

use super::*;
use perigee_types::{Epoch, InodeIndex, NodeId, Rng, Seq, WallTime};
use std::collections::BTreeSet;

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

fn make_in(parent: InodeId, name: &[u8], node: NewNode) -> Op {
    Op::Make {
        parent,
        name: name.to_vec(),
        node,
        mode: 0o755,
        umask: 0,
        cred: crate::op::Credential::default(),
        open_existing: false,
    }
}

fn make_named(name: &[u8]) -> Op {
    make_in(directory(), name, NewNode::File)
}

fn make() -> Op {
    make_named(b"f")
}

fn as_of(seq: u64) -> Version {
    Version {
        epoch: Epoch(1),
        seq: Seq(seq),
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
        let until = self.lend(now, sent);
        Letter::Answer(asked, op, self.changes, until)
    }

    /// Until when what is answered now to a question that was sent then may be kept.
    fn lend(&mut self, now: Tick, sent: Tick) -> Tick {
        match self.recall {
            None => {
                self.lease = Some(now + TERM);
                sent + TERM
            }
            Some(_) => sent,
        }
    }

    /// The number of a recall that begins.
    fn take_back(&mut self) -> u64 {
        self.recalls += 1;
        self.recall = Some(self.recalls);
        self.recalls
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
                letters.push(Letter::Revoke(owner.take_back()));
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
                        let as_of = as_of(size);
                        near.told(now, ME, &op, &Reply::Done, (asked, as_of), &words);
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
    let as_of = as_of(4);
    let word = Word {
        attr: attr(4),
        until: Tick(500),
    };
    near.told(Tick(1), ME, &make(), &Reply::Done, (asked, as_of), &[word]);
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
    let (mut told, mut kept, mut attrs, mut now) = (0, 0, 0, Tick(1));
    for _ in 0..400 {
        now = now + Span(rng.below(40));
        if let Some((attr, left)) = near.attr(now, ME, file()) {
            let size = attr.size;
            assert!(size >= told, "{seed}: older than what a program was told");
            assert!(size >= owner.others, "{seed}: as before another's change");
            assert!(left <= TERM);
            attrs += 1;
        }
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
                notes.push(Note::Revoke(owner.take_back()));
            }
            _ if notes.is_empty() => {}
            _ => match notes.swap_remove(rng.below(notes.len() as u64) as usize) {
                Note::LookUp(asked, sent) => {
                    let until = owner.lend(now, sent);
                    notes.push(Note::Found(asked, owner.changes, until));
                }
                Note::Found(asked, size, until) => {
                    let attr = file_attr(size);
                    let word = Word { attr, until };
                    let as_of = as_of(size);
                    near.told(now, ME, &look, &Reply::Entry(attr), (asked, as_of), &[word]);
                    if rng.chance(1, 2) {
                        let content = Bytes::from(vec![0; size as usize]);
                        near.told_content(now, ME, (asked, as_of), word, content);
                    }
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
                    let as_of = as_of(size);
                    near.told(now, ME, &set, &Reply::Attr(attr), (asked, as_of), &[word]);
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
        Beside::Nothing | Beside::New | Beside::Names(_) => 0,
    });
    assert_eq!(near.bytes, contents.sum::<usize>());
    assert!(attrs >= kept);
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
            near.told_content(
                Tick(1),
                ME,
                (asked, Version::default()),
                word,
                Bytes::from("text"),
            );
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
            Tick(1),
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

/// On its way about a name in the directory.
enum Turn {
    LookUp(Asked, Tick),
    Found(Asked, u64, Tick),
    Rename,
    Renamed(u64),
    Revoke(u64),
    Revoked(u64),
}

fn child(number: u64) -> InodeId {
    InodeId::new(ContainerId(3), InodeIndex(number + 1))
}

fn step(number: u64) -> Step {
    Step {
        parent: directory(),
        name: b"next".to_vec(),
        inode: child(number),
    }
}

/// Look-ups of a name that leads to a directory, which the session and another one replace, in any order on their way.
fn run_with_steps(seed: u64) -> u64 {
    let rename = Op::Rename {
        parent: directory(),
        name: b"other".to_vec(),
        new_parent: directory(),
        new_name: b"next".to_vec(),
        mode: crate::op::RenameMode::Replace,
        cred: crate::op::Credential::default(),
    };
    let mut rng = Rng::new(seed);
    let (mut near, mut owner) = (Near::default(), Owner::default());
    let mut turns: Vec<Turn> = Vec::new();
    let (mut told, mut kept, mut now) = (0, 0, Tick(1));
    for _ in 0..400 {
        now = now + Span(rng.below(40));
        if let Some((inode, left)) = near.leads(now, ME, directory(), b"next") {
            let at_least =
                |least: u64| (least..=owner.changes).any(|number| inode == child(number));
            assert!(at_least(told), "{seed}: older than what a program was told");
            assert!(at_least(owner.others), "{seed}: as before another's change");
            assert!(left <= TERM);
            kept += 1;
        }
        let stands = owner.lease.is_some_and(|until| until > now);
        match rng.below(8) {
            0..=2 => turns.push(Turn::LookUp(near.ask(), now)),
            3 => turns.push(Turn::Rename),
            4 if !stands => owner.others_change(),
            4 if owner.recall.is_none() => {
                turns.push(Turn::Revoke(owner.take_back()));
            }
            _ if turns.is_empty() => {}
            _ => match turns.swap_remove(rng.below(turns.len() as u64) as usize) {
                Turn::LookUp(asked, sent) => {
                    let until = owner.lend(now, sent);
                    turns.push(Turn::Found(asked, owner.changes, until));
                }
                Turn::Found(asked, number, until) => {
                    near.told_step(ME, asked, step(number), until);
                }
                Turn::Rename => {
                    owner.changes += 1;
                    turns.push(Turn::Renamed(owner.changes));
                }
                Turn::Renamed(number) => {
                    let asked = near.ask();
                    let reply = Reply::Renamed {
                        moved: child(number),
                        replaced: None,
                    };
                    let as_of = as_of(number);
                    // What the directory is like after it comes, too.
                    let word = Word {
                        attr: attr(number),
                        until: now + TERM,
                    };
                    near.told(now, ME, &rename, &reply, (asked, as_of), &[word]);
                    told = told.max(number);
                }
                Turn::Revoke(recall) => {
                    near.revoked(ME, &[Touched::Listing(directory())]);
                    turns.push(Turn::Revoked(recall));
                }
                Turn::Revoked(recall) if owner.recall == Some(recall) => owner.others_change(),
                Turn::Revoked(_) => {}
            },
        }
    }
    kept
}

#[test]
fn a_name_that_is_kept_never_leads_where_it_led_before_what_anybody_was_told() {
    let kept: u64 = (0..2_000).map(run_with_steps).sum();
    assert!(kept > 2_000, "{kept}");
}

#[test]
fn a_way_is_remembered_when_nothing_of_it_is_kept_any_more() {
    let mut near = Near::default();
    let deeper = InodeId::new(ContainerId(3), InodeIndex(77));
    let asked = near.ask();
    near.told_step(ME, asked, step(1), Tick(100));
    let on = Step {
        parent: child(1),
        name: b"on".to_vec(),
        inode: deeper,
    };
    near.told_step(ME, asked, on.clone(), Tick(100));
    near.revoked(ME, &[Touched::Attr(directory())]);
    near.takes(Tick(1), ME, directory(), b"next");
    near.takes(Tick(1), ME, child(1), b"on");
    assert_eq!(near.leads(Tick(1), ME, directory(), b"next"), None);
    assert_eq!(near.way(Tick(2), ME, directory()), [step(1), on]);
    let later = Tick(1) + Span::from_millis(60_000);
    assert_eq!(near.way(later, ME, directory()), []);
    near.leads_nowhere(ME, child(1), b"on");
    assert_eq!(near.way(Tick(2), ME, directory()), [step(1)]);
    near.session_ended(ME);
    assert_eq!(near.way(Tick(2), ME, directory()), []);
}

/// On its way about the names of a directory that the session makes.
enum Slip {
    /// With its number among the operations, and whether all names are to come.
    Ask(Asked, Tick, u64, bool),
    Told(Asked, u64, Option<Vec<NameHash>>, Said),
    Revoke(u64),
    Revoked(u64),
}

/// When an owner's answer was given: as of which change, and until when it may be kept.
type Said = (u64, Tick);

/// The operation that makes the directory, in one that is not looked at.
fn make_directory() -> Op {
    let root = InodeId::new(ContainerId(2), InodeIndex(1));
    make_in(root, b"d", NewNode::Directory)
}

/// A session, an owner, and what is on its way between them.
struct Scene {
    rng: Rng,
    near: Near,
    owner: Owner,
    there: BTreeSet<Vec<u8>>,
    exists: bool,
    now: Tick,
    ops: Vec<Op>,
    slips: Vec<Slip>,
    /// Operations whose answers nobody hears.
    lost: BTreeSet<u64>,
    /// Names came with an answer.
    brought: u64,
}

impl Scene {
    fn a_name(&mut self) -> Vec<u8> {
        vec![b'a' + self.rng.below(8) as u8]
    }

    fn ask(&mut self, op: Op) {
        self.near.asks_names(ME, &op);
        let wants = self.near.wants_names(self.now, ME, &op);
        let asked = self.near.ask();
        self.slips
            .push(Slip::Ask(asked, self.now, self.ops.len() as u64, wants));
        self.ops.push(op);
    }

    fn others_make(&mut self) {
        self.owner.others_change();
        let name = self.a_name();
        self.there.insert(name);
    }

    /// Something arrives.
    fn go_on(&mut self) {
        let at = self.rng.below(self.slips.len() as u64) as usize;
        match self.slips.swap_remove(at) {
            Slip::Ask(asked, sent, number, wants) => {
                if self.rng.chance(1, 20) {
                    // Nobody waits for it any more, and it is done all the same.
                    self.lost.insert(number);
                    self.near.unknown(ME, &self.ops[number as usize]);
                    return self.slips.push(Slip::Ask(asked, sent, number, wants));
                }
                let mut names = None;
                if let Op::Make { node, name, .. } = &self.ops[number as usize] {
                    match node {
                        NewNode::Directory => self.exists = true,
                        _ => _ = self.there.insert(name.clone()),
                    }
                    self.owner.changes += 1;
                    let all = self.there.iter().map(|name| crate::dentry::bucket(name));
                    names = wants.then(|| all.collect());
                }
                let until = self.owner.lend(self.now, sent);
                let said = (self.owner.changes, until);
                self.slips.push(Slip::Told(asked, number, names, said));
            }
            Slip::Told(asked, number, names, (changes, until)) => {
                let op = &self.ops[number as usize];
                if self.lost.contains(&number) {
                    return;
                }
                let attr = attr(changes);
                let reply = match op {
                    Op::Make {
                        node: NewNode::Directory,
                        ..
                    } => Reply::Created {
                        attr,
                        existed: false,
                    },
                    Op::GetAttr { .. } => Reply::Attr(attr),
                    // What is made there is of no interest here.
                    _ => Reply::Done,
                };
                let (when, words) = ((asked, as_of(changes)), [Word { attr, until }]);
                self.near.told(self.now, ME, op, &reply, when, &words);
                if let Some(names) = names {
                    self.near
                        .told_names(self.now, ME, when.1, directory(), &names);
                    self.brought += 1;
                }
                self.near.names_settled(ME, op);
            }
            Slip::Revoke(recall) => {
                let touched = Touched::Name {
                    dir: directory(),
                    name: self.a_name(),
                };
                self.near.revoked(ME, &[touched]);
                self.slips.push(Slip::Revoked(recall));
            }
            Slip::Revoked(recall) if self.owner.recall == Some(recall) => self.others_make(),
            Slip::Revoked(_) => {}
        }
    }
}

/// Names that a session makes in a directory of its own, from before it is told of that on, and names that another one makes
/// there, in any order on their way: no host says of a name that it is not there while it is. How often it said so, and
/// how often it was told all names.
fn run_with_names(seed: u64) -> (u64, u64) {
    let mut scene = Scene {
        rng: Rng::new(seed),
        near: Near::default(),
        owner: Owner::default(),
        there: BTreeSet::new(),
        exists: false,
        now: Tick(1),
        ops: Vec::new(),
        slips: Vec::new(),
        lost: BTreeSet::new(),
        brought: 0,
    };
    scene.ask(make_directory());
    // Where the session is at it alone for long stretches, and where it pauses.
    let (others, pause) = (scene.rng.below(10), scene.rng.below(400) + 1);
    let mut said = 0;
    for _ in 0..400 {
        scene.now = scene.now + Span(scene.rng.below(pause));
        let name = scene.a_name();
        if let Some(left) = scene.near.absent(scene.now, ME, directory(), &name) {
            assert!(
                scene.exists && !scene.there.contains(&name),
                "{seed}: {name:?} is there"
            );
            assert!(left <= TERM);
            said += 1;
        }
        let stands = scene.owner.lease.is_some_and(|until| until > scene.now);
        match scene.rng.below(20) {
            0..=5 if scene.exists => {
                let name = scene.a_name();
                scene.ask(make_named(&name));
            }
            6 if scene.exists => scene.ask(Op::GetAttr { inode: directory() }),
            7 if scene.exists && scene.rng.below(10) < others => {
                if !stands {
                    scene.others_make();
                } else if scene.owner.recall.is_none() {
                    let recall = scene.owner.take_back();
                    scene.slips.push(Slip::Revoke(recall));
                }
            }
            8 => {
                // Names are removed, by whomever: that is not told.
                let name = scene.a_name();
                scene.there.remove(&name);
            }
            _ if scene.slips.is_empty() => {}
            _ => scene.go_on(),
        }
    }
    (said, scene.brought)
}

#[test]
fn a_name_that_is_there_is_never_said_to_be_absent() {
    let (mut said, mut brought) = (0, 0);
    for seed in 0..6_000 {
        let (of_run, brought_in_run) = run_with_names(seed);
        said += of_run;
        brought += brought_in_run;
    }
    assert!(said > 20_000, "said {said} times only");
    assert!(brought > 6_000, "brought {brought} times only");
}

#[test]
fn names_of_a_directory_count_by_the_thousand_and_no_further() {
    let mut near = Near::default();
    let asked = near.ask();
    let word = Word {
        attr: attr(1),
        until: Tick(1_000),
    };
    let created = Reply::Created {
        attr: attr(1),
        existed: false,
    };
    let words = [word];
    near.told(
        Tick(1),
        ME,
        &make_directory(),
        &created,
        (asked, as_of(1)),
        &words,
    );
    let absent = |near: &Near, name: &[u8]| near.absent(Tick(2), ME, directory(), name).is_some();
    assert!(absent(&near, b"f"));
    // What the owner refuses, it alone can say why.
    for name in [&b""[..], b".", b"..", b"a/b", &[b'x'; 256]] {
        assert!(!absent(&near, name), "{name:?}");
    }
    for at in 0..=NAMES_MAX {
        assert!(absent(&near, b"f"), "forgotten at {at}");
        near.asks_names(ME, &make_named(format!("n{at}").as_bytes()));
    }
    assert!(!absent(&near, b"f"), "kept without a bound");
    assert_eq!(near.names, 0);
}
