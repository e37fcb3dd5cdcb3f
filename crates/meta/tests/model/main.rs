//! Random operations on a namespace spread over three containers, beside a plain tree in memory.
//!
//! After every step: the reply (or errno) is the model's, the batches stay inside the containers
//! that they name, and whatever changed was touched. At the end: every directory lists what the model holds,
//! every inode shows the model's links and size, and the batches replayed elsewhere give the same state.

mod tree;

use perigee_meta::memory::MemView;
use perigee_meta::near::names;
use perigee_meta::{
    Attr, Context, Credential, Key, Kind, NewNode, Op, Outcome, Refusal, RenameMode, Reply,
    SetAttr, Touched, TrashId, execute, format_container,
};
use perigee_types::{ByteRange, ContainerId, DataCommand, Errno, InodeId, WallTime};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tree::{Expected, Model};

const CONTAINERS: [ContainerId; 3] = [ContainerId(1), ContainerId(2), ContainerId(9)];
const NAMES: u8 = 5;

#[derive(Debug, Clone)]
enum Step {
    Make {
        dir: u8,
        name: u8,
        kind: u8,
        home: u8,
        open: bool,
    },
    Unlink {
        dir: u8,
        name: u8,
    },
    Rmdir {
        dir: u8,
        name: u8,
    },
    Rename {
        dir: u8,
        name: u8,
        to: u8,
        new: u8,
        mode: u8,
    },
    Link {
        node: u8,
        dir: u8,
        name: u8,
    },
    Truncate {
        node: u8,
        size: u16,
    },
    Write {
        node: u8,
        start: u16,
        len: u8,
    },
    Reap {
        node: u8,
    },
    /// From here on what is removed is kept, or is not.
    Keep {
        on: bool,
    },
    Undelete {
        node: u8,
        dir: u8,
        name: u8,
    },
    Purge {
        node: u8,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = || 0..NAMES;
    let any8 = any::<u8>;
    let step = prop_oneof![
        6 => (any8(), n(), any8(), any8(), any::<bool>())
            .prop_map(|(dir, name, kind, home, open)| Step::Make { dir, name, kind, home, open }),
        2 => (any8(), n()).prop_map(|(dir, name)| Step::Unlink { dir, name }),
        2 => (any8(), n()).prop_map(|(dir, name)| Step::Rmdir { dir, name }),
        5 => (any8(), n(), any8(), n(), any8())
            .prop_map(|(dir, name, to, new, mode)| Step::Rename { dir, name, to, new, mode }),
        2 => (any8(), any8(), n()).prop_map(|(node, dir, name)| Step::Link { node, dir, name }),
        1 => (any8(), any::<u16>()).prop_map(|(node, size)| Step::Truncate { node, size }),
        1 => (any8(), any::<u16>(), any8())
            .prop_map(|(node, start, len)| Step::Write { node, start, len }),
        1 => any8().prop_map(|node| Step::Reap { node }),
        1 => any::<bool>().prop_map(|on| Step::Keep { on }),
        3 => (any8(), any8(), n()).prop_map(|(node, dir, name)| Step::Undelete { node, dir, name }),
        1 => any8().prop_map(|node| Step::Purge { node }),
    ];
    prop::collection::vec(step, 1..120)
}

struct World {
    model: Model,
    view: MemView,
    replayed: MemView,
    /// Every inode that was ever made, so that the dead are asked for as well.
    all: Vec<InodeId>,
    clock: i64,
    keeps: bool,
    /// What was kept at any time.
    ever_kept: Vec<TrashId>,
}

impl World {
    fn new() -> Self {
        let mut view = MemView::new();
        for container in CONTAINERS {
            let root = (container == ContainerId::ROOT).then_some((0, 0, 0o755));
            view.apply(
                container,
                &format_container(container, WallTime::default(), root),
            );
        }
        Self {
            model: Model::new(),
            replayed: view.clone(),
            view,
            all: vec![InodeId::ROOT],
            clock: 0,
            keeps: false,
            ever_kept: Vec::new(),
        }
    }

    fn now(&self) -> WallTime {
        WallTime {
            secs: self.clock,
            nanos: 0,
        }
    }

    /// Until when what is removed now is kept.
    fn until(&self) -> WallTime {
        WallTime {
            secs: self.clock + 1_000,
            nanos: 0,
        }
    }

    /// An inode has just lost a name.
    fn note_kept(&mut self, inode: InodeId) {
        let until = self.until();
        let keeps = self.keeps;
        let node = self.model.change(inode);
        if keeps && node.nlink == 0 {
            let id = TrashId::new(until, inode);
            node.kept = Some(id);
            self.ever_kept.push(id);
        }
    }

    fn any(&self, pick: u8) -> InodeId {
        self.all[usize::from(pick) % self.all.len()]
    }

    /// Mostly a directory that is there.
    fn dir(&self, pick: u8) -> InodeId {
        if pick >= 240 {
            return self.any(pick);
        }
        let dirs: Vec<_> = self
            .model
            .nodes
            .iter()
            .filter(|(_, node)| node.is_dir() && node.nlink > 0)
            .map(|(inode, _)| *inode)
            .collect();
        dirs[usize::from(pick) % dirs.len()]
    }

    fn run(&mut self, op: &Op, home: Option<ContainerId>) -> Result<Outcome, Errno> {
        self.clock += 1;
        let now = self.now();
        let until = self.keeps.then(|| self.until());
        let context = Context::new(now, home).keeping(until);
        let result = execute(op, &context, &mut self.view);
        match result {
            Ok(outcome) => {
                self.check_names(op, &outcome);
                for (container, batch) in &outcome.batches {
                    assert!(!batch.is_empty() && CONTAINERS.contains(container));
                    self.replayed.apply(*container, batch);
                    self.replayed.apply(*container, batch);
                }
                self.view.apply_all(&outcome.batches);
                Ok(outcome)
            }
            Err(Refusal::Errno(errno)) => Err(errno),
            Err(other) => panic!("{op:?}: {other}"),
        }
    }

    /// Every name that is new is one that the operation is known to make.
    fn check_names(&self, op: &Op, outcome: &Outcome) {
        for (container, batch) in &outcome.batches {
            let puts = batch.mutations.iter().filter(|put| put.value.is_some());
            for put in puts {
                let Some(Key::Dentry(dir, cookie)) = Key::decode(&put.key) else {
                    continue;
                };
                let state = self.view.states.get(container);
                if state.is_some_and(|state| state.contains_key(&put.key)) {
                    continue;
                }
                let dir = InodeId::new(*container, dir);
                let made = names::made_by(op).map(|(dir, name)| (dir, names::hash(name)));
                let found = made
                    .into_iter()
                    .any(|made| made == (dir, names::hash_at(cookie)));
                assert!(found, "{op:?} made another name in {dir}");
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let cred = Credential { uid: 7, gid: 8 };
        match *step {
            Step::Make {
                dir,
                name,
                kind,
                home,
                open,
            } => {
                let home = CONTAINERS.get(usize::from(home % 4)).copied();
                self.make(self.dir(dir), name, kind, home, open);
            }
            Step::Unlink { dir, name } => {
                let (parent, name) = (self.dir(dir), vec![b'a' + name]);
                let expected = self.model.unlink(parent, &name);
                let got = self.run(&Op::Unlink { parent, name, cred }, None);
                self.check_removed(expected, got);
            }
            Step::Rmdir { dir, name } => {
                let (parent, name) = (self.dir(dir), vec![b'a' + name]);
                let expected = self.model.rmdir(parent, &name);
                let got = self.run(&Op::Rmdir { parent, name, cred }, None);
                self.check_removed(expected, got);
            }
            Step::Rename {
                dir,
                name,
                to,
                new,
                mode,
            } => {
                let mode = [
                    RenameMode::Replace,
                    RenameMode::Exchange,
                    RenameMode::NoReplace,
                ][usize::from(mode % 3)];
                self.rename((self.dir(dir), name), (self.dir(to), new), mode);
            }
            Step::Link { node, dir, name } => {
                let (inode, new_parent, new_name) =
                    (self.any(node), self.dir(dir), vec![b'a' + name]);
                let expected = self.model.link(inode, new_parent, &new_name);
                let got = self.run(
                    &Op::Link {
                        inode,
                        new_parent,
                        new_name,
                        cred,
                    },
                    None,
                );
                assert_eq!(got.map(|_| ()), expected);
            }
            Step::Truncate { node, size } => self.truncate(self.any(node), u64::from(size)),
            Step::Write { node, start, len } => {
                self.write(
                    self.any(node),
                    ByteRange::with_len(start.into(), len.into()),
                );
            }
            Step::Keep { on } => self.keeps = on,
            Step::Undelete { node, dir, name } => {
                self.undelete(node, self.dir(dir), vec![b'a' + name]);
            }
            Step::Purge { node } => self.purge(node),
            Step::Reap { node } => {
                let inode = self.any(node);
                let outcome = self.run(&Op::Reap { inode }, None).expect("never refused");
                let gone = self
                    .model
                    .nodes
                    .get(&inode)
                    .is_some_and(|node| node.nlink == 0 && !node.is_kept());
                assert_eq!(!outcome.batches.is_empty(), gone);
                if gone {
                    self.model.reap(inode);
                }
            }
        }
    }

    fn make(&mut self, parent: InodeId, name: u8, kind: u8, home: Option<ContainerId>, open: bool) {
        let name = vec![b'a' + name];
        let node = match kind % 5 {
            0 => NewNode::File,
            1..=2 => NewNode::Directory,
            3 => NewNode::Symlink(b"target".to_vec()),
            _ => NewNode::Fifo,
        };
        let kind = node.kind();
        let expected = self.model.make(parent, &name, kind, open);
        let op = Op::Make {
            parent,
            name: name.clone(),
            node,
            mode: 0o666,
            umask: 0o022,
            cred: Credential { uid: 7, gid: 8 },
            open_existing: open,
        };
        match (self.run(&op, home), expected) {
            (Ok(outcome), Ok(old)) => {
                let Reply::Created { attr, existed } = outcome.reply else {
                    panic!("{:?}", outcome.reply)
                };
                assert_eq!(existed, old.is_some());
                assert_eq!(attr.kind, kind);
                if existed {
                    assert_eq!(Some(attr.inode), old);
                    return;
                }
                let container = match home {
                    Some(home) if kind == Kind::Directory => home,
                    _ => parent.container(),
                };
                assert_eq!(attr.inode.container(), container);
                assert!(outcome.touched.contains(&Touched::Listing(parent)));
                self.model.insert(attr.inode, kind, attr.size, parent);
                self.model.put_name(parent, &name, attr.inode);
                self.all.push(attr.inode);
            }
            (got, expected) => assert_eq!(got.map(|_| ()), expected.map(|_| ())),
        }
    }

    fn check_removed(&mut self, expected: Expected<InodeId>, got: Result<Outcome, Errno>) {
        match (got, expected) {
            (Ok(outcome), Ok(gone)) => {
                let Reply::Removed { inode, nlink, kind } = outcome.reply else {
                    panic!("{:?}", outcome.reply)
                };
                let node = &self.model.nodes[&gone];
                assert_eq!((inode, nlink, kind), (gone, node.nlink, node.kind));
                assert!(outcome.touched.contains(&Touched::Attr(gone)));
                self.note_kept(gone);
            }
            (got, expected) => assert_eq!(got.map(|_| ()), expected.map(|_| ())),
        }
    }

    fn rename(&mut self, from: (InodeId, u8), to: (InodeId, u8), mode: RenameMode) {
        let (name, new_name) = (vec![b'a' + from.1], vec![b'a' + to.1]);
        let expected = self.model.rename((from.0, &name), (to.0, &new_name), mode);
        let op = Op::Rename {
            parent: from.0,
            name,
            new_parent: to.0,
            new_name,
            mode,
            cred: Credential::default(),
        };
        let got = self.run(&op, None).map(|outcome| outcome.reply);
        if let Ok((_, Some(replaced))) = expected {
            self.note_kept(replaced);
        }
        let expected = expected.map(|(moved, replaced)| Reply::Renamed { moved, replaced });
        assert_eq!(got, expected, "{op:?}");
    }

    fn undelete(&mut self, pick: u8, new_parent: InodeId, new_name: Vec<u8>) {
        let Some(&id) = self
            .ever_kept
            .get(usize::from(pick) % self.ever_kept.len().max(1))
        else {
            return;
        };
        let before = self.model.node(id.inode).cloned();
        let expected = self.model.undelete(id, new_parent, &new_name);
        let cred = Credential::default();
        let op = Op::Undelete {
            id,
            new_parent,
            new_name,
            cred,
        };
        match (self.run(&op, None), expected) {
            (Ok(outcome), Ok(())) => {
                let Reply::Entry(attr) = outcome.reply else {
                    panic!("{:?}", outcome.reply)
                };
                let before = before.expect("it was kept");
                assert_eq!((attr.inode, attr.nlink), (id.inode, 1));
                assert_eq!((attr.kind, attr.size), (before.kind, before.size));
                assert!(outcome.touched.contains(&Touched::Attr(id.inode)));
                assert!(outcome.touched.contains(&Touched::Listing(new_parent)));
            }
            (got, expected) => assert_eq!(got.map(|_| ()), expected),
        }
    }

    fn purge(&mut self, pick: u8) {
        let Some(&id) = self
            .ever_kept
            .get(usize::from(pick) % self.ever_kept.len().max(1))
        else {
            return;
        };
        let op = Op::Purge {
            container: id.inode.container(),
            entries: vec![id, id],
            cred: Credential::default(),
        };
        let expected = self.model.purge(id);
        let reply = self.run(&op, None).expect("never refused").reply;
        assert_eq!(reply, Reply::Inodes(expected));
    }

    fn truncate(&mut self, inode: InodeId, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let cred = Credential::default();
        let got = self.run(&Op::SetAttr { inode, set, cred }, None);
        let expected = self.model.node(inode).map(|node| (node.kind, node.size));
        match expected {
            Ok((Kind::File, before)) => {
                let outcome = got.expect("a file takes a size");
                let data: Vec<_> = outcome.batches.values().flat_map(|b| &b.data).collect();
                let resized = DataCommand::Resized { inode, size };
                assert_eq!(
                    data,
                    if before == size {
                        vec![]
                    } else {
                        vec![&resized]
                    }
                );
                self.model.change(inode).size = size;
            }
            Ok((Kind::Directory, _)) => assert_eq!(got.map(|_| ()), Err(Errno::EISDIR)),
            Ok(_) => assert_eq!(got.map(|_| ()), Err(Errno::EINVAL)),
            Err(errno) => assert_eq!(got.map(|_| ()), Err(errno)),
        }
    }

    fn write(&mut self, inode: InodeId, range: ByteRange) {
        let op = Op::Wrote {
            inode,
            ranges: vec![range],
            size_at_least: None,
            mtime: WallTime {
                secs: self.clock,
                nanos: 5,
            },
            kill_privileges: false,
        };
        let got = self.run(&op, None).map(|outcome| outcome.reply);
        match self.model.node(inode).map(|node| node.kind) {
            Ok(Kind::File) => {
                let node = self.model.change(inode);
                if !range.is_empty() {
                    node.size = node.size.max(range.end);
                }
                let size = node.size;
                assert!(matches!(got, Ok(Reply::Attr(attr)) if attr.size == size));
            }
            Ok(Kind::Directory) => assert_eq!(got, Err(Errno::EISDIR)),
            Ok(_) => assert_eq!(got, Err(Errno::ENODEV)),
            Err(errno) => assert_eq!(got, Err(errno)),
        }
    }

    fn attr(&mut self, inode: InodeId) -> Result<Attr, Errno> {
        match self.run(&Op::GetAttr { inode }, None)?.reply {
            Reply::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    fn trash(&mut self) -> BTreeSet<TrashId> {
        let mut found = BTreeSet::new();
        for container in CONTAINERS {
            let mut after = None;
            loop {
                let limit = 2;
                let op = Op::Trash {
                    container,
                    after,
                    limit,
                };
                let rows = match self.run(&op, None).expect("listed").reply {
                    Reply::Trash(rows) => rows,
                    other => panic!("{other:?}"),
                };
                let Some(last) = rows.last() else { break };
                after = Some(last.id);
                for row in rows {
                    assert!(found.insert(row.id), "listed twice");
                }
            }
        }
        found
    }

    fn check_all(&mut self) {
        let kept = self.model.nodes.values().filter_map(|node| node.kept);
        let kept: BTreeSet<TrashId> = kept.chain(self.model.gone_directories.clone()).collect();
        assert_eq!(self.trash(), kept);
        let orphans: BTreeSet<InodeId> = CONTAINERS
            .into_iter()
            .flat_map(|container| {
                let op = Op::Orphans {
                    container,
                    after: None,
                    limit: 1000,
                };
                match self.run(&op, None).expect("listed").reply {
                    Reply::Inodes(inodes) => inodes,
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        for inode in self.all.clone() {
            let node = self.model.node(inode).cloned();
            let attr = self.attr(inode);
            let Ok(node) = node else {
                assert_eq!(attr, Err(Errno::ESTALE));
                continue;
            };
            let attr = attr.expect("the model has it");
            assert_eq!((attr.kind, attr.nlink), (node.kind, node.nlink), "{inode}");
            assert_eq!(orphans.contains(&inode), node.nlink == 0 && !node.is_kept());
            if !node.is_dir() {
                assert_eq!(attr.size, node.size);
                continue;
            }
            assert_eq!(self.list(inode), node.entries);
            let hashes: BTreeSet<u64> = node.entries.keys().map(|name| names::hash(name)).collect();
            let all = node.entries.len();
            let told = names::names_in(&mut self.view, inode, all).expect("a directory");
            assert_eq!(told.map(BTreeSet::from_iter), Some(hashes));
            if let Some(fewer) = all.checked_sub(1) {
                let told = names::names_in(&mut self.view, inode, fewer);
                assert_eq!(told.expect("a directory"), None);
            }
            if node.nlink > 0 {
                let op = Op::Lookup {
                    parent: inode,
                    name: b"..".to_vec(),
                };
                let reply = self.run(&op, None).expect("has a parent").reply;
                assert!(leads_to(&reply, inode, node.parent));
            }
        }
        assert_eq!(self.view, self.replayed);
    }

    fn list(&mut self, inode: InodeId) -> BTreeMap<Vec<u8>, InodeId> {
        let mut found = BTreeMap::new();
        let mut cookie = 0;
        loop {
            let op = Op::ReadDir {
                inode,
                cookie,
                limit: 2,
            };
            let entries = match self.run(&op, None).expect("a directory").reply {
                Reply::Listing(entries) => entries,
                other => panic!("{op:?} gave {other:?}"),
            };
            let Some(last) = entries.last() else {
                return found;
            };
            assert!(last.cookie > cookie.max(2) && last.cookie < 1 << 63);
            cookie = last.cookie;
            for entry in entries {
                assert_eq!(entry.attr.map(|attr| attr.inode), Some(entry.inode));
                let lookup = Op::Lookup {
                    parent: inode,
                    name: entry.name.clone(),
                };
                let reply = self.run(&lookup, None).expect("listed").reply;
                assert!(leads_to(&reply, inode, entry.inode));
                assert_eq!(found.insert(entry.name, entry.inode), None, "listed twice");
            }
        }
    }
}

/// Of an inode of another container a lookup gives the number alone.
fn leads_to(reply: &Reply, dir: InodeId, inode: InodeId) -> bool {
    match reply {
        Reply::Entry(attr) => attr.inode == inode && inode.container() == dir.container(),
        Reply::Leads(found) => *found == inode && inode.container() != dir.container(),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_do_what_a_plain_tree_does(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.check_all();
    }
}
