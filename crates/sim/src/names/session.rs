//! Sessions: each does one operation after the other, on names that all of them fight for, and repeats what was not
//! answered.

use super::Mark;
use super::calls::{Asked, For, Request};
use super::chaos::Taste;
use super::history::{Heard, Told};
use super::leases::{Asking, Cache, Name};
use super::world::{Event, Names};
use crate::law;
use crate::numbered::Kind;
use crate::world::host_of;
use perigee_meta::{Context, Credential, NewNode, Op, RenameMode, Reply};
use perigee_types::{ContainerId, Errno, InodeId, NodeId, OpId, Rng, SessionId, Span};

/// Names that the sessions fight for.
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
/// One in so many operations, while a session keeps names, moves one of those, as kernels do that look up what they move.
const MOVES: u64 = 6;
/// Inodes that sessions remember.
const REMEMBERED: usize = 6;

/// One session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    next: u64,
    waiting: Option<Request>,
    /// Its own: what others draw does not change what it does.
    rng: Rng,
    pub(crate) cache: Cache,
}

impl Session {
    /// A session of a node, of this number, with its randomness.
    #[must_use]
    pub fn new(node: NodeId, number: u32, rng: Rng) -> Self {
        Self {
            id: SessionId::new(node, number),
            next: 1,
            waiting: None,
            rng,
            cache: Cache::default(),
        }
    }
}

impl Session {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }
}

/// The host of a session.
#[must_use]
pub fn session_host(session: SessionId) -> usize {
    host_of(session.node())
}

/// Whether an operation can change anything.
#[must_use]
pub fn changes(op: &Op) -> bool {
    !matches!(
        op,
        Op::Lookup { .. } | Op::GetAttr { .. } | Op::Trash { .. }
    )
}

/// The names that an operation changes.
pub fn names_of(op: &Op) -> Vec<Name> {
    match op {
        Op::Make { parent, name, .. }
        | Op::Unlink { parent, name, .. }
        | Op::Rmdir { parent, name, .. } => vec![(*parent, name.clone())],
        Op::Link {
            new_parent,
            new_name,
            ..
        }
        | Op::Undelete {
            new_parent,
            new_name,
            ..
        } => vec![(*new_parent, new_name.clone())],
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        } => vec![(*parent, name.clone()), (*new_parent, new_name.clone())],
        _ => Vec::new(),
    }
}

/// The container whose owner runs an operation.
fn container_of(op: &Op) -> ContainerId {
    match op {
        Op::Lookup { parent, .. }
        | Op::Make { parent, .. }
        | Op::Unlink { parent, .. }
        | Op::Rmdir { parent, .. }
        | Op::Rename { parent, .. } => parent.container(),
        Op::Link { new_parent, .. } | Op::Undelete { new_parent, .. } => new_parent.container(),
        Op::Trash { container, .. } | Op::Purge { container, .. } => *container,
        Op::GetAttr { inode } => inode.container(),
        _ => ContainerId::ROOT,
    }
}

impl Names {
    /// A session's next operation, when it has the answer to the last.
    pub(super) fn session_turn(&mut self, host: usize, session: usize) {
        if self.calm {
            return;
        }
        let hosts = self.hosts.len() as u64;
        let turns = &mut self.hosts[host].turns;
        let number = *turns * hosts + host as u64 + 1;
        *turns += 1;
        let mut rng = self.process(host).sessions[session].rng.fork();
        let think = 5_000 + rng.below(self.chaos.think_us);
        let life = self.hosts[host].incarnation;
        let turn = Event::Session {
            host,
            life,
            session,
        };
        self.after(think, turn);
        let this = &self.process(host).sessions[session];
        if this.waiting.is_some() {
            return;
        }
        let id = this.id;
        let kept = this.cache.names.keys();
        let kept: Vec<Name> = kept.cloned().collect();
        let mut next = self.any_operation(&mut rng);
        if let Some(operation) = self.trash_operation(&mut rng) {
            next.0 = operation;
        } else if !kept.is_empty() && rng.chance(1, MOVES) {
            let from = kept[rng.below(kept.len() as u64) as usize].clone();
            next.0 = self.random_rename(from, &mut rng);
        }
        let what = || format!("{id}: {:?}", next.0);
        if self
            .numbered
            .takes_place((Kind::Operation, number), self.now, what)
        {
            self.begin(host, session, next);
        }
    }

    /// What a session may do next.
    pub(super) fn any_operation(&self, rng: &mut Rng) -> (Op, Context) {
        let operation = self.random_operation(rng);
        let elsewhere = rng.below(self.stores.len() as u64) as u32 + 1;
        let context = Context::new(self.wall(0), Some(ContainerId(elsewhere)));
        let context = context.keeping(self.kept_until());
        let context = Context {
            plant: self.plant,
            ..context
        };
        (operation, context)
    }

    /// A session begins an operation, unless it waits for one.
    pub(super) fn begin(
        &mut self,
        host: usize,
        session: usize,
        (operation, context): (Op, Context),
    ) {
        if self.process(host).sessions[session].waiting.is_some() {
            return;
        }
        let kept = self.kept_name(host, session, &operation);
        let this = &mut self.process(host).sessions[session];
        let op = OpId(this.next);
        this.next += 1;
        if let Some((result, home)) = kept {
            let call = (this.id, op);
            return self.found_here(call, operation, result, home);
        }
        let request = Request {
            session: this.id,
            op,
            answered_through: OpId(op.0 - 1),
            context,
            operation,
            sent: false,
        };
        this.waiting = Some(request.clone());
        let began = Heard::Began(request.session, op, request.operation.clone());
        self.history.heard.push(began);
        self.log(40, host, || {
            format!("{} {op}: {:?}", request.session, request.operation)
        });
        let container = container_of(&request.operation);
        let asked = Asked::Execute(request);
        self.ask(host, container, asked, For::Session(session));
    }

    /// A session finds a name that it keeps.
    fn found_here(
        &mut self,
        (session, op): (SessionId, OpId),
        operation: Op,
        result: Result<Reply, Errno>,
        home: bool,
    ) {
        self.note(Mark::Kept);
        self.probed.remove(&session);
        let began = Heard::Began(session, op, operation.clone());
        let told = Heard::Told(self.history.told.len());
        self.history.heard.extend([began, told]);
        self.history.told.push(Told {
            session,
            op,
            operation,
            result,
            home,
        });
    }

    /// A session has an answer, or gives up.
    pub(super) fn session_answered(
        &mut self,
        host: usize,
        session: usize,
        answer: Option<(Result<Reply, Errno>, Asking, Span)>,
    ) {
        let Some(request) = self.process(host).sessions[session].waiting.take() else {
            return;
        };
        self.log(41, host, || {
            format!("{} {}: {answer:?}", request.session, request.op)
        });
        let Some((result, asking, ttl)) = answer else {
            return self.note(Mark::Unknown);
        };
        self.own_change(host, session, &request, asking, (ttl, &result));
        self.keep_name(host, session, &request, asking, (ttl, &result));
        if let Ok(reply) = &result {
            self.remember(&request.operation, reply);
        }
        self.probed.remove(&request.session);
        let mut done = self.history.executed.iter().rev();
        let done = done.find(|done| (done.session, done.op) == (request.session, request.op));
        let done = done.filter(|done| done.record.is_some() && done.result == result);
        if let Some(done) = done.cloned() {
            law::cached::on_answered(self, &done);
        }
        let home = asking.owner == Some(host);
        self.history
            .heard
            .push(Heard::Told(self.history.told.len()));
        self.history.told.push(Told {
            session: request.session,
            op: request.op,
            operation: request.operation,
            result,
            home,
        });
    }

    /// Sessions use what any of them was shown.
    fn remember(&mut self, operation: &Op, reply: &Reply) {
        let place = match operation {
            Op::Make { parent, name, .. } => Some((*parent, name.clone())),
            Op::Rename {
                new_parent,
                new_name,
                ..
            } => Some((*new_parent, new_name.clone())),
            _ => None,
        };
        self.places.extend(place);
        if self.places.len() > REMEMBERED {
            self.places.remove(0);
        }
        self.remember_trash(reply);
        let attr = match reply {
            Reply::Created { attr, .. } | Reply::Entry(attr) => attr,
            _ => return,
        };
        let known = match attr.kind {
            perigee_meta::Kind::Directory => &mut self.directories,
            _ => &mut self.files,
        };
        known.retain(|inode| *inode != attr.inode);
        known.push(attr.inode);
        if known.len() > REMEMBERED {
            known.remove(0);
        }
    }

    pub(super) fn any_name(rng: &mut Rng) -> Vec<u8> {
        NAMES[rng.below(NAMES.len() as u64) as usize].to_vec()
    }

    pub(super) fn any_directory(&self, rng: &mut Rng) -> InodeId {
        let pick = rng.below(self.directories.len() as u64 + 1) as usize;
        self.directories.get(pick).copied().unwrap_or(InodeId::ROOT)
    }

    /// A name that may be there.
    fn any_place(&self, rng: &mut Rng) -> (InodeId, Vec<u8>) {
        let pick = rng.below(self.places.len() as u64 * 2 + 1) as usize;
        match self.places.get(pick) {
            Some(place) => place.clone(),
            None => (self.any_directory(rng), Self::any_name(rng)),
        }
    }

    fn random_operation(&self, rng: &mut Rng) -> Op {
        let cred = Credential::default();
        let parent = self.any_directory(rng);
        let name = Self::any_name(rng);
        let make = |node| Op::Make {
            parent,
            name: name.clone(),
            node,
            mode: 0o755,
            umask: 0,
            cred,
            open_existing: false,
        };
        // Deep trees of directories that move: where loops could come from.
        let roll = match self.chaos.taste {
            Taste::Even => rng.below(20),
            Taste::Directories => 3 + rng.below(10),
        };
        match roll {
            0..=2 => make(NewNode::File),
            3..=6 => make(NewNode::Directory),
            7..=12 => {
                let from = self.any_place(rng);
                self.random_rename(from, rng)
            }
            13 | 14 => Op::Link {
                inode: match self.files.len() as u64 {
                    0 => InodeId::ROOT,
                    count => self.files[rng.below(count) as usize],
                },
                new_parent: parent,
                new_name: name,
                cred,
            },
            15 | 16 => {
                let (parent, name) = self.any_place(rng);
                Op::Unlink { parent, name, cred }
            }
            17 => {
                let (parent, name) = self.any_place(rng);
                Op::Rmdir { parent, name, cred }
            }
            _ => Op::Lookup { parent, name },
        }
    }

    fn random_rename(&self, (parent, name): Name, rng: &mut Rng) -> Op {
        Op::Rename {
            parent,
            name,
            new_parent: self.any_directory(rng),
            new_name: Self::any_name(rng),
            mode: match rng.below(4) {
                0 => RenameMode::NoReplace,
                1 => RenameMode::Exchange,
                _ => RenameMode::Replace,
            },
            cred: Credential::default(),
        }
    }
}
