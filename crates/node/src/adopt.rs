//! Directories of this machine that become directories of the file system: the node's part, which is their large files.

use crate::container::{Container, NotTaken, Taken};
use crate::node::Node;
use futures_util::{StreamExt, stream};
use perigee_proto::admin::{AdoptFile, AdoptStep, Adopted};
use perigee_types::{ContainerId, InodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tracing::debug;

/// Files that are brought to their copies at once: most of the time they wait for members.
const AT_ONCE: usize = 64;

/// Files that are taken at once: one disk reads them, and kernels are asked to forget that they were empty.
const TAKEN_AT_ONCE: usize = 8;

impl Node {
    /// Does one step for each file, and says of each how it ended, in their order.
    pub async fn adopt(&self, step: AdoptStep, files: Vec<AdoptFile>) -> Vec<Adopted> {
        let takes = files.into_iter().map(|file| async move {
            let done = match step {
                AdoptStep::Take => self.take(&file).await,
                AdoptStep::Check | AdoptStep::Settle => Ok(()),
            };
            (file, done)
        });
        let begun: Vec<_> = stream::iter(takes).buffered(TAKEN_AT_ONCE).collect().await;
        let kept = match step {
            AdoptStep::Take | AdoptStep::Check => {
                let good = begun.iter().filter(|(_, done)| done.is_ok());
                self.keep(good.map(|(file, _)| file.inode)).await
            }
            AdoptStep::Settle => BTreeSet::new(),
        };
        let kept = &kept;
        let work = begun.into_iter().map(|(file, done)| async move {
            match done {
                Ok(()) => self.finish(step, file, kept).await,
                Err(failed) => Err(failed),
            }
        });
        let ended = stream::iter(work)
            .buffered(AT_ONCE)
            .map(|ended| match ended {
                Ok(Taken::Same) => Adopted::Done,
                Ok(Taken::Own) => Adopted::Own,
                Err(NotTaken::InUse) => Adopted::InUse,
                Err(NotTaken::Changed) => Adopted::Changed,
                Err(why) => Adopted::Failed {
                    why: why.to_string(),
                },
            });
        ended.collect().await
    }

    /// Brings files to all of their copies, those of a container together; gives those for which that went well.
    async fn keep(&self, inodes: impl Iterator<Item = InodeId>) -> BTreeSet<InodeId> {
        let mut by_container: BTreeMap<ContainerId, BTreeSet<InodeId>> = BTreeMap::new();
        for inode in inodes {
            by_container
                .entry(inode.container())
                .or_default()
                .insert(inode);
        }
        let mut kept = BTreeSet::new();
        for (id, inodes) in by_container {
            let Some(container) = self.env.container(id) else {
                continue;
            };
            match container.sync_together(&inodes).await {
                Ok(()) => kept.extend(inodes),
                Err(failed) => debug!(container = %id, ?failed, "files are asked for one by one"),
            }
        }
        kept
    }

    async fn take(&self, file: &AdoptFile) -> Result<(), NotTaken> {
        match &file.source {
            Some(source) => {
                let container = self.container_of(file.inode)?;
                container.take_file(file.inode, source.clone()).await
            }
            None => Ok(()),
        }
    }

    /// `kept`: files that are on all of their copies.
    async fn finish(
        &self,
        step: AdoptStep,
        file: AdoptFile,
        kept: &BTreeSet<InodeId>,
    ) -> Result<Taken, NotTaken> {
        let container = self.container_of(file.inode)?;
        if step == AdoptStep::Settle {
            return container.settle_taken(file.inode).await;
        }
        if !kept.contains(&file.inode) {
            container.sync(file.inode).await?;
        }
        match (step, file.source) {
            (AdoptStep::Check, Some(source)) => container.is_as_taken(file.inode, source).await,
            (AdoptStep::Check, None) => Ok(Taken::Own),
            (AdoptStep::Take | AdoptStep::Settle, _) => Ok(Taken::Same),
        }
    }

    fn container_of(&self, inode: InodeId) -> Result<Arc<Container>, NotTaken> {
        let container = self.env.container(inode.container());
        container.ok_or(NotTaken::NotOwned)
    }
}
