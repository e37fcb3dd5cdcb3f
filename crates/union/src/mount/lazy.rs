//! Files that are open by their content alone, since that was here before ([`super::early`]).
//!
//! Their host hears of them where more is needed than what was read ahead: before their name goes by this mount, before others
//! may not open them any more, and when they are open for longer than that content may be used.

use super::Mount;
use super::data::Handle;
use super::early;
use super::nodes::Node;
use crate::path::RelPath;
use crate::wire::{Done as Told, FileId, How, Op, Stat};
use perigee_client::fs::{OpenFlags, Opened};
use perigee_types::{Errno, InodeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::debug;

impl Mount {
    /// Opens a small file of another host whose content is here, or on its way, since its neighbours were read.
    pub(super) async fn open_early(
        &self,
        (inode, before): (InodeId, &Node),
        flags: OpenFlags,
        content: u64,
    ) -> Option<Opened> {
        // Nothing is to be older than it may be.
        if self.fresh < early::TERM || self.union.own(before.branch).is_some() {
            return None;
        }
        let key = (before.branch, before.identity()?);
        let (directory, name) = before.path().ok()?.split()?;
        self.look_ahead(&directory, name);
        let early = self.early.content(&key).await?;
        let node = self.node(inode).ok()?;
        let told = |stat: &Stat| (stat.size, stat.mtime, stat.ctime);
        let same = node.branch == before.branch
            && node.identity() == before.identity()
            && told(&node.stat) == told(&early.stat)
            && !node.changed
            && self.nodes.content(inode) == content;
        let head = Some((early.bytes, content));
        same.then(|| {
            let opened = self.opened((inode, node.branch), flags, None, &early.stat, head);
            self.watch_early();
            opened
        })
    }

    /// What stays open for longer than its content may be used is opened on its host, whatever becomes of its name there.
    fn watch_early(&self) {
        let Some(me) = self.me.upgrade() else { return };
        if self.watches_early.swap(true, Ordering::SeqCst) {
            return;
        }
        self.union.runtime.spawn(async move {
            loop {
                tokio::time::sleep(early::TERM).await;
                let early: Vec<Arc<Handle>> = {
                    let handles = me.handles.lock();
                    let early: Vec<_> = handles.values().filter(|open| open.is_early()).collect();
                    if early.is_empty() {
                        // Under the lock under which the next one comes, before it is looked for who sees to it.
                        return me.watches_early.store(false, Ordering::SeqCst);
                    }
                    let late = early
                        .into_iter()
                        .filter(|open| open.opened.elapsed() >= early::TERM);
                    late.cloned().collect()
                };
                me.open_now(early).await;
            }
        });
    }

    async fn open_now(&self, early: Vec<Arc<Handle>>) {
        for open in early {
            if let Err(errno) = self.file_of(&open).await {
                debug!(inode = %open.inode, %errno, "what is open of it is its content alone");
            }
        }
    }

    /// Whether nothing of an inode is open but its content, which outlives its name.
    pub(super) fn is_open_early(&self, inode: InodeId) -> bool {
        let handles = self.handles.lock();
        handles
            .values()
            .any(|open| open.inode == inode && open.is_early())
    }

    /// An open file on its host: opened now, if nothing but its content was needed so far.
    pub(super) async fn file_of(&self, open: &Handle) -> Result<FileId, Errno> {
        let opening = || async {
            let op = Op::Open {
                how: How {
                    read: true,
                    expected: self.node(open.inode)?.identity(),
                    ..How::default()
                },
                parents: Vec::new(),
                head: 0,
            };
            match self.by_any_name(open.inode, op).await? {
                (node, Told::Opened { file, .. }, _) if node.branch == open.branch => Ok(file),
                (node, Told::Opened { file, .. }, _) => {
                    self.union.close(node.branch, file);
                    Err(Errno::ESTALE)
                }
                _ => Err(Errno::EPROTO),
            }
        };
        let file = *open.file.get_or_try_init(opening).await?;
        if open.closed.load(Ordering::SeqCst) {
            // Who closed it did not know of this.
            self.union.close(open.branch, file);
        }
        Ok(file)
    }

    /// A name is about to go: what is open under it, and not on its host, is opened there.
    pub(super) async fn hold(&self, path: &RelPath) {
        if let Some(inode) = self.nodes.id(path) {
            self.hold_inode(inode).await;
        }
    }

    /// The same before others may not open it any more.
    pub(super) async fn hold_inode(&self, inode: InodeId) {
        if let Ok(node) = self.node(inode) {
            self.early_is_old(&node);
        }
        let early: Vec<Arc<Handle>> = {
            let handles = self.handles.lock();
            let of_inode = |open: &&Arc<Handle>| open.inode == inode && open.is_early();
            handles.values().filter(of_inode).cloned().collect()
        };
        self.open_now(early).await;
    }
}
