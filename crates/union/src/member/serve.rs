//! What others ask of this host, and how it is carried out.

use super::{Performed, Question, Union, bounded};
use crate::branch::Branch;
use crate::files::Files;
use crate::path::RelPath;
use crate::wire::{Above, Ask, Done, FileId, FileOp, Op, Outcome, Request, decode, encode};
use bytes::Bytes;
use futures_util::FutureExt;
use perigee_cluster::Coordinate;
use perigee_net::{Answer, Call, PeerName, Refusal, Service};
use perigee_types::{Errno, NodeId, Span, Tick};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// More bytes than that are better written, or read, by a thread that does nothing else.
const SHORT_MAX: usize = 64 << 10;
/// How long the files that a member has open here outlive its last connection.
const FORGIVES: Duration = Duration::from_secs(20);
/// The longest that content which was read ahead may be used.
const TERM_MAX: Duration = Duration::from_secs(1);

/// Answers what the network brings.
pub(super) struct Served(pub(super) Weak<Union>);

fn refusal(errno: Errno) -> Refusal {
    Refusal {
        code: errno.code() as u16,
        detail: Bytes::new(),
    }
}

impl Service for Served {
    fn call(
        &self,
        from: PeerName,
        call: Call,
        _deadline: Instant,
    ) -> perigee_net::BoxFuture<'static, Result<Answer, Refusal>> {
        let union = self.0.upgrade();
        async move {
            let union = union.ok_or_else(|| refusal(Errno::EIO))?;
            let PeerName::Node(from) = from else {
                return Err(refusal(Errno::EPERM));
            };
            let request: Request = decode(&call.body).map_err(|_| refusal(Errno::EPROTO))?;
            Ok(union.answer(from, request, call.payload).await)
        }
        .boxed()
    }

    fn cast(&self, _from: PeerName, _call: Call) {}

    fn link(&self, peer: PeerName, up: bool) {
        let (Some(union), PeerName::Node(id)) = (self.0.upgrade(), peer) else {
            return;
        };
        let peer = union.peer(id);
        peer.down.send_if_modified(|down| {
            let before = down.is_some();
            *down = match up {
                true => None,
                false => Some(down.unwrap_or_else(Instant::now)),
            };
            before == up
        });
        if !up {
            let union = Arc::downgrade(&union);
            tokio::spawn(async move {
                tokio::time::sleep(FORGIVES).await;
                let gone = peer
                    .down
                    .borrow()
                    .is_some_and(|since| since.elapsed() >= FORGIVES);
                if let Some(union) = union.upgrade().filter(|_| gone) {
                    union.files.close_all(id);
                }
            });
        }
    }

    fn round_trip(&self, peer: PeerName, took: Duration, note: &[u8]) {
        let (Some(union), PeerName::Node(id)) = (self.0.upgrade(), peer) else {
            return;
        };
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let Some(told) = Coordinate::from_note(note) else {
            return;
        };
        let now = Tick(micros(union.began.elapsed()));
        let (vivaldi, rng) = &mut *union.place.lock();
        vivaldi.on_round_trip(now, (id, told), Span(micros(took)), rng);
    }
}

impl Union {
    async fn answer(self: Arc<Self>, from: NodeId, request: Request, data: Bytes) -> Answer {
        if !request.closing.is_empty() {
            tokio::task::block_in_place(|| {
                for file in request.closing {
                    self.files.close(from, file);
                }
            });
        }
        match request.ask {
            None => Answer {
                body: encode::<Outcome>(&Ok((Done::Nothing, Above::default()))).into(),
                payload: Bytes::new(),
            },
            Some(Ask::Search {
                directory,
                query,
                branches,
                cover,
            }) => {
                let question = Question {
                    directory,
                    query,
                    branches,
                };
                let (me, asked) = (Arc::clone(&self), question.clone());
                let look = tokio::task::spawn_blocking(move || me.look_here(&asked));
                let (mut answers, here) = tokio::join!(self.search(&question, &cover), look);
                answers.found.extend(here.unwrap_or_default());
                Answer {
                    body: Bytes::new(),
                    payload: encode(&bounded(answers)).into(),
                }
            }
            Some(Ask::On { branch, path, op }) => {
                let (takes, term) = match op {
                    Op::ReadAhead { term_ms, .. } => (Takes::Long, Some(term_of(term_ms))),
                    _ => (Takes::Moments, None),
                };
                let work = move |union: &Self| match union.own(branch) {
                    Some(own) => on_branch(&union.files, from, own, &path, &op),
                    None => Err(Errno::ENODEV),
                };
                let end = |term: Duration, me: Weak<Self>| async move {
                    tokio::time::sleep(term).await;
                    if let Some(me) = me.upgrade() {
                        me.files.end_leases();
                    }
                };
                let me = Arc::downgrade(&self);
                // The first ones end in time also where it takes long to read the last ones.
                if let Some(term) = term {
                    tokio::spawn(end(term, Weak::clone(&me)));
                }
                let answer = self.work(takes, work).await;
                if let Some(term) = term {
                    tokio::spawn(end(term, me));
                }
                answer
            }
            Some(Ask::In { file, op }) => {
                let takes = takes(&op, data.len());
                self.work(takes, move |union| {
                    in_file(&union.files, from, file, &op, &data)
                })
                .await
            }
        }
    }

    async fn work(
        self: Arc<Self>,
        takes: Takes,
        work: impl FnOnce(&Self) -> Result<Performed, Errno> + Send + 'static,
    ) -> Answer {
        // The caller of what takes a moment alone need not wait for another thread to wake. Where many do not come back, a disk
        // hangs: threads that serve connections stay free of it.
        let in_place = match takes {
            Takes::Moments => self.in_place.try_acquire().ok(),
            Takes::Long => None,
        };
        let done = match in_place {
            Some(_one) => Ok(tokio::task::block_in_place(|| work(&self))),
            None => {
                let me = Arc::clone(&self);
                tokio::task::spawn_blocking(move || work(&me)).await
            }
        };
        let (outcome, payload): (Outcome, Bytes) = match done {
            Ok(Ok((done, bytes, above))) => (Ok((done, above)), bytes),
            Ok(Err(errno)) => (Err(errno), Bytes::new()),
            // It has panicked, and that is logged.
            Err(_) => (Err(Errno::EIO), Bytes::new()),
        };
        Answer {
            body: encode(&outcome).into(),
            payload,
        }
    }
}

/// How long an operation takes on a disk that is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Moments,
    Long,
}

/// How long an operation on an open file takes, that comes with so many bytes.
fn takes(op: &FileOp, len: usize) -> Takes {
    match op {
        FileOp::Stat | FileOp::SetAttr(_) | FileOp::Seek { .. } => Takes::Moments,
        FileOp::Write { .. } if len <= SHORT_MAX => Takes::Moments,
        FileOp::Read { len, .. } if *len as usize <= SHORT_MAX => Takes::Moments,
        FileOp::Write { .. } | FileOp::Read { .. } | FileOp::Sync | FileOp::Allocate(..) => {
            Takes::Long
        }
    }
}

/// For how long a member may have nobody write what it has read ahead.
fn term_of(ms: u32) -> Duration {
    Duration::from_millis(u64::from(ms)).min(TERM_MAX)
}

/// Carries out an operation on a branch of this host, for a member: also for this one.
pub(super) fn on_branch(
    files: &Files,
    by: NodeId,
    branch: &Arc<Branch>,
    path: &RelPath,
    op: &Op,
) -> Result<Performed, Errno> {
    let above = |path: &RelPath| branch.stat(&path.split()?.0).ok();
    match op {
        Op::ReadAhead {
            files: wanted,
            bytes,
            term_ms,
        } => {
            let until = Instant::now() + term_of(*term_ms);
            let ahead = (&wanted[..], *bytes, until);
            let (told, bytes) = files.read_ahead(by, branch, path, ahead)?;
            return Ok((Done::Ahead(told), bytes, Above::default()));
        }
        Op::Open { how, .. } if how.write => files.give_back(by, how.expected),
        Op::SetAttr { set, expected } if set.size.is_some() => files.give_back(by, *expected),
        _ => {}
    }
    if let Op::Open { how, parents, head } = op {
        let opened = files.open(by, branch, path, (*how, parents, *head))?;
        let around = Above {
            of: if opened.made { above(path) } else { None },
            to: None,
        };
        let done = Done::Opened {
            file: opened.file,
            all: opened.head.len() as u64 == opened.stat.size,
            stat: opened.stat,
            made: opened.made,
        };
        return Ok((done, opened.head, around));
    }
    let (done, bytes) = branch.perform(path, op)?;
    let around = match op {
        Op::Make { .. } | Op::Unlink | Op::Rmdir => Above {
            of: above(path),
            to: None,
        },
        Op::Rename { to, .. } | Op::Link { to, .. } => Above {
            of: above(path),
            to: above(to),
        },
        _ => Above::default(),
    };
    Ok((done, bytes.into(), around))
}

/// The same on a file that it has open.
pub(super) fn in_file(
    files: &Files,
    by: NodeId,
    file: FileId,
    op: &FileOp,
    data: &[u8],
) -> Result<Performed, Errno> {
    let done = |done: Done, bytes: Bytes| Ok((done, bytes, Above::default()));
    let open = files.get(by, file)?;
    match op {
        FileOp::Read { offset, len } => done(Done::Bytes, open.read(*offset, *len)?),
        FileOp::Write { offset } => {
            open.write(*offset, data)?;
            done(Done::Written { stat: open.stat()? }, Bytes::new())
        }
        _ => done(open.perform(op)?, Bytes::new()),
    }
}
