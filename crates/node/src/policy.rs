//! Policies: how many copies there are of what, whether its ownership moves, how long what was removed is kept, and over how
//! many containers files are spread.
//!
//! Copies belong to containers, and a file lies in the container in which it was made. So a directory
//! with a number of copies of its own is the root of a container of its own, in which all that is made
//! below it lies as well; everything else follows the policy of the file system's root. Whether ownership
//! moves, and how long what was removed is kept, are settings alone: who owns looks them up when it would.

use crate::env::Env;
use crate::in_force::InForce;
use crate::node::Node;
use crate::snapshot::SNAPSHOTS;
use perigee_cluster::nearness::are_at_one_site;
use perigee_cluster::{Policy, Purpose, change, choose_first, choose_member, key, transition};
use perigee_meta::key::Lane;
use perigee_meta::{Attr, Kind, Op, Reply, Setting};
use perigee_proto::admin::AdminPath;
use perigee_types::{
    ContainerId, ContainerSize, Errno, InodeId, Migration, NodeId, Retention, StripeWidth,
};
use std::path::Path;
use std::time::Duration;
use tracing::info;

/// How long the container of a directory may take to get its copies before it is used.
const COPIES_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// The name of the number of copies in the settings of a directory.
pub const COPIES: &str = "copies";
/// The name of whether ownership moves.
pub const MIGRATION: &str = "migration";
/// The name of how long what was removed is kept.
pub const TRASH: &str = "trash";

/// The name of over how many containers a file is spread.
pub const STRIPES: &str = "stripes";

/// The name of how large a container may become.
pub const CONTAINER_SIZE: &str = "container-size";

/// What is to change about the policies of a directory; the inner `None`: back to what is inherited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// How many copies there are of it and all that is made below it.
    pub copies: Option<Option<u8>>,
    /// Whether the ownership of it and all that is below it moves to who writes.
    pub migration: Option<Option<Migration>>,
    /// When snapshots of it are made, and how long they stay.
    pub snapshots: Option<Option<String>>,
    /// How long what is removed from it and below it is kept.
    pub trash: Option<Option<Retention>>,
    /// How large the containers of the file system may become, or those of the directory.
    pub container_size: Option<Option<ContainerSize>>,
    /// Over how many containers a file is spread that is made there.
    pub stripes: Option<Option<StripeWidth>>,
}

/// Why a policy was not set.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file system's answer about the path.
    #[error(transparent)]
    Path(#[from] Errno),
    /// The control store's reason.
    #[error("{0}")]
    Control(String),
    /// What is there has its place already.
    #[error("the directory is not empty, and what is in it keeps the copies that it has")]
    HasContent,
    /// What is in it lies with what is elsewhere.
    #[error("the directory has no container of its own")]
    NoOwnContainer,
    /// No node can hold a container.
    #[error("no node that stores data is there")]
    NoNode,
}

impl From<perigee_cluster::ChangeError> for PolicyError {
    fn from(error: perigee_cluster::ChangeError) -> Self {
        Self::Control(error.to_string())
    }
}

fn with(
    mut settings: Vec<(String, String)>,
    name: &str,
    value: Option<String>,
) -> Vec<(String, String)> {
    settings.retain(|(known, _)| known != name);
    settings.extend(value.map(|value| (name.to_owned(), value)));
    settings
}

fn with_copies(settings: Vec<(String, String)>, copies: Option<u8>) -> Vec<(String, String)> {
    with(settings, COPIES, copies.map(|copies| copies.to_string()))
}

/// What owners heed of these settings where they make and remove names.
pub(crate) fn in_force(settings: &[Setting]) -> InForce {
    let value = |name| {
        let mut settings = settings.iter();
        let set = settings.find(|setting| setting.name == name);
        set.map(|setting| setting.value.as_str())
    };
    InForce {
        retention: value(TRASH).and_then(Retention::named).unwrap_or_default(),
        width: value(STRIPES)
            .and_then(StripeWidth::named)
            .unwrap_or_default(),
    }
}

/// What is wanted of the ownership where these settings are in force.
pub(crate) fn migration(settings: &[Setting]) -> Migration {
    let set = settings.iter().find(|setting| setting.name == MIGRATION);
    let named = set.and_then(|setting| Migration::named(&setting.value));
    named.unwrap_or_default()
}

/// How large a container may become where these settings are in force.
pub(crate) fn container_size(settings: &[Setting]) -> ContainerSize {
    let mut settings = settings.iter();
    let set = settings.find(|setting| setting.name == CONTAINER_SIZE);
    let named = set.and_then(|setting| ContainerSize::named(&setting.value));
    named.unwrap_or_default()
}

/// The directory whose settings hold for a container and those that go on for it.
pub(crate) fn governs(directory: &perigee_cluster::Directory, id: ContainerId) -> InodeId {
    match directory.is_of_directory(id) {
        true => InodeId::new(directory.root_of(id), Lane::Away.first()),
        false => InodeId::ROOT,
    }
}

impl Node {
    /// The policies in force at a path.
    ///
    /// # Errors
    /// As [`Node::find`].
    pub async fn policy(&self, path: &AdminPath) -> Result<Vec<Setting>, Errno> {
        let attr = self.find(path).await?;
        self.policy_of(attr.inode).await
    }

    pub(crate) async fn policy_of(&self, inode: InodeId) -> Result<Vec<Setting>, Errno> {
        match self.ask(Op::GetPolicy { inode }).await? {
            Reply::Policy(settings) => Ok(settings),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Sets policies of a directory and all that is below it.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub async fn set_policy(&self, path: &AdminPath, wanted: Wanted) -> Result<(), PolicyError> {
        let attr = self.find(path).await?;
        if attr.kind != Kind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        // This may be refused, and the directory may have another inode afterwards.
        if let Some(copies) = wanted.copies {
            self.set_copies(path, &attr, copies).await?;
        }
        if let Some(migration) = wanted.migration {
            let inode = self.find(path).await?.inode;
            let value = migration.map(|migration| migration.to_string());
            self.set_setting(inode, MIGRATION, value).await?;
        }
        if let Some(size) = wanted.container_size {
            let inode = self.find(path).await?.inode;
            if inode != InodeId::ROOT && !self.is_first_of_its_container(inode) {
                return Err(PolicyError::NoOwnContainer);
            }
            let value = size.map(|size| size.to_string());
            self.set_setting(inode, CONTAINER_SIZE, value).await?;
        }
        if let Some(schedule) = wanted.snapshots {
            let inode = self.find(path).await?.inode;
            self.set_setting(inode, SNAPSHOTS, schedule).await?;
        }
        if let Some(trash) = wanted.trash {
            let inode = self.find(path).await?.inode;
            let value = trash.map(|trash| trash.to_string());
            let in_use = self.env.directory.read().keeps_trash();
            self.note_in_use(key::TRASH_IN_USE, in_use).await?;
            self.set_setting(inode, TRASH, value).await?;
        }
        if let Some(stripes) = wanted.stripes {
            let inode = self.find(path).await?.inode;
            let value = stripes.map(|stripes| stripes.to_string());
            let in_use = self.env.directory.read().stripes_files();
            self.note_in_use(key::STRIPES_IN_USE, in_use).await?;
            self.set_setting(inode, STRIPES, value).await?;
        }
        if wanted.stripes.is_some() || wanted.copies.is_some() {
            let inode = self.find(path).await?.inode;
            self.make_room_for_columns(inode).await?;
        }
        if wanted.trash.is_some() || wanted.stripes.is_some() {
            // When this has returned, every owner goes by it.
            self.env.lately.forget();
            tokio::time::sleep(crate::in_force::KEPT.as_duration()).await;
        }
        Ok(())
    }

    /// Owners look from here on what is in force: where such a policy is nowhere set, they have no need to.
    async fn note_in_use(&self, what: &str, known: bool) -> Result<(), PolicyError> {
        if !known {
            change(self.env.control.as_ref(), |directory| {
                transition::set_policy(directory, what, Policy::default())
            })
            .await?;
        }
        Ok(())
    }

    /// Makes the containers in which columns of the files of a directory with a container of its own lie, so that they have
    /// as many copies as its files; other files have theirs in the homes of the nodes.
    async fn make_room_for_columns(&self, inode: InodeId) -> Result<(), PolicyError> {
        if !self.is_first_of_its_container(inode) {
            return Ok(());
        }
        let width = in_force(&self.policy_of(inode).await?).width;
        let root = inode.container();
        loop {
            let first = {
                let directory = self.env.directory.read();
                let columns = directory.made_for(root, Purpose::Columns);
                let family: Vec<ContainerId> = std::iter::once(root).chain(columns).collect();
                if family.len() >= usize::from(width.get()) {
                    return Ok(());
                }
                let owners: Vec<&perigee_cluster::Node> = family
                    .iter()
                    .filter_map(|id| directory.node(*directory.container(*id)?.chain.first()?))
                    .collect();
                let all = perigee_cluster::placement::candidates(&directory);
                let at_site = |c: &&perigee_cluster::Candidate<'_>| {
                    let first = owners.first();
                    first.is_some_and(|owner| are_at_one_site(&directory, owner, c.node))
                };
                let near: Vec<_> = all.iter().filter(at_site).copied().collect();
                choose_member(&owners, &near).or_else(|| choose_member(&owners, &all))
            };
            // As many as there are nodes: two columns on one disk are worth nothing.
            let Some(first) = first else { return Ok(()) };
            let made = change(self.env.control.as_ref(), |directory| {
                let policy = directory.own_policy(root).cloned().unwrap_or_default();
                transition::create_own_container(directory, vec![first], &policy)
            })
            .await?;
            await_copies(&self.env, made.id).await;
            change(self.env.control.as_ref(), |directory| {
                transition::grow(directory, made.id, root, Purpose::Columns)
            })
            .await?;
            info!(container = %made.id, for_files_of = %root, "made for columns of striped files");
            self.await_in_family(made.id, root).await;
        }
    }

    /// Until this node knows of it.
    async fn await_in_family(&self, container: ContainerId, root: ContainerId) {
        let known = || self.env.directory.read().root_of(container) == root;
        let wait = async {
            while !known() {
                tokio::time::sleep(PAUSE).await;
            }
        };
        if tokio::time::timeout(COPIES_WAIT, wait).await.is_err() {
            info!(%container, "not heard of in time");
        }
    }

    /// Sets how many copies there are of a directory; `None`: as many as are inherited.
    async fn set_copies(
        &self,
        path: &AdminPath,
        attr: &Attr,
        copies: Option<u8>,
    ) -> Result<(), PolicyError> {
        let inode = attr.inode;
        let value = copies.map(|copies| copies.to_string());
        if inode == InodeId::ROOT {
            self.set_default(copies.map_or_else(Policy::default, |copies| Policy { copies }))
                .await?;
            return self.set_setting(inode, COPIES, value).await;
        }
        if self.is_first_of_its_container(inode) {
            self.set_setting(inode, COPIES, value).await?;
            return self.change_own(inode.container(), inode, copies).await;
        }
        match copies {
            Some(copies) => self.begin_own(path, attr, copies).await,
            None => Ok(()),
        }
    }

    /// Whether a directory is the one that its container was made for: the first that came there
    /// from elsewhere.
    fn is_first_of_its_container(&self, inode: InodeId) -> bool {
        let directory = self.env.directory.read();
        let id = inode.container();
        let first = inode.index() == Lane::Away.first();
        first && directory.is_of_directory(id) && directory.root_of(id) == id
    }

    /// The settings of the directory itself.
    async fn own_settings(&self, inode: InodeId) -> Result<Vec<(String, String)>, Errno> {
        let in_force = self.policy_of(inode).await?.into_iter();
        let own = in_force.filter(|setting| setting.from == inode);
        Ok(own.map(|setting| (setting.name, setting.value)).collect())
    }

    async fn set_setting(
        &self,
        inode: InodeId,
        name: &str,
        value: Option<String>,
    ) -> Result<(), PolicyError> {
        let policy = with(self.own_settings(inode).await?, name, value);
        self.ask(Op::SetPolicy { inode, policy }).await?;
        Ok(())
    }

    /// Every container but those that belong to one directory; owners bring in or dismiss members
    /// until it is so.
    async fn set_default(&self, policy: Policy) -> Result<(), PolicyError> {
        let control = self.env.control.as_ref();
        change(control, |directory| {
            transition::set_policy(directory, key::DEFAULT_POLICY, policy.clone())
        })
        .await?;
        let ids: Vec<ContainerId> = {
            let directory = self.env.directory.read();
            let all = directory.containers.keys().copied();
            all.filter(|id| directory.own_policy(*id).is_none())
                .collect()
        };
        for id in ids {
            change(control, |directory| {
                transition::set_copies(directory, id, policy.copies)
            })
            .await?;
        }
        Ok(())
    }

    /// The container of a directory that has one gets another number of copies. What is inherited
    /// from the root is followed from then on; what another directory says is taken over once.
    async fn change_own(
        &self,
        id: ContainerId,
        inode: InodeId,
        copies: Option<u8>,
    ) -> Result<(), PolicyError> {
        let inherited = match copies {
            Some(copies) => Some(copies),
            None => {
                let above = self.policy_of(inode).await?;
                let set = above.iter().find(|setting| setting.name == COPIES);
                let elsewhere = set.filter(|setting| setting.from != InodeId::ROOT);
                elsewhere.and_then(|setting| setting.value.parse().ok())
            }
        };
        let policy = inherited.map(|copies| Policy { copies });
        // One that goes on for it from now on asks for its policy, and sees this one.
        let family: Vec<ContainerId> = self.env.directory.read().family(id).collect();
        for id in family {
            change(self.env.control.as_ref(), |directory| {
                transition::set_own_policy(directory, id, policy.as_ref())
            })
            .await?;
        }
        Ok(())
    }

    /// A directory that is empty becomes the root of a new container.
    async fn begin_own(
        &self,
        path: &AdminPath,
        attr: &Attr,
        copies: u8,
    ) -> Result<(), PolicyError> {
        let first = Op::ReadDir {
            inode: attr.inode,
            cookie: 0,
            limit: 1,
        };
        match self.ask(first).await? {
            Reply::Listing(rows) if rows.is_empty() => {}
            Reply::Listing(_) => return Err(PolicyError::HasContent),
            _ => return Err(Errno::EPROTO.into()),
        }
        let full: &Path = path.as_path();
        let (Some(above), Some(name)) = (full.parent(), full.file_name()) else {
            return Err(Errno::EINVAL.into());
        };
        let parent = self.find(&AdminPath::from(above)).await?.inode;
        let owner = self.holder()?;
        let policy = Policy { copies };
        let made = change(self.env.control.as_ref(), |directory| {
            transition::create_own_container(directory, vec![owner], &policy)
        })
        .await?;
        info!(container = %made.id, %path, copies, "a directory has its own container");
        await_copies(&self.env, made.id).await;
        let settings = self.own_settings(attr.inode).await?;
        let rehome = Op::Rehome {
            parent,
            name: name.as_encoded_bytes().to_vec(),
            container: made.id,
            policy: with_copies(settings, Some(copies)),
        };
        match self.ask(rehome).await {
            Ok(_) => Ok(()),
            // Somebody was faster. The new container stays, and holds nothing.
            Err(Errno::ENOTEMPTY) => Err(PolicyError::HasContent),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The node that holds a new container first: this one, or one that is near.
    fn holder(&self) -> Result<NodeId, PolicyError> {
        let directory = self.env.directory.read();
        let me = directory.node(self.env.me);
        if me.is_some_and(perigee_cluster::Node::takes_containers) {
            return Ok(self.env.me);
        }
        let candidates = perigee_cluster::placement::candidates(&directory);
        let chosen = match me {
            Some(me) => choose_first(&directory, me, &candidates),
            None => choose_member(&[], &candidates),
        };
        chosen.ok_or(PolicyError::NoNode)
    }
}

/// Waits until a new container has the copies that it can have, so that nothing is written to
/// fewer; a node that does not join in time is `status`'s to tell of.
pub(crate) async fn await_copies(env: &Env, id: ContainerId) {
    let complete = || {
        let directory = env.directory.read();
        let live = directory.live_storage().count();
        directory
            .container(id)
            .is_some_and(|record| record.chain.len() >= usize::from(record.copies).min(live.max(1)))
    };
    let wait = async {
        while !complete() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    if tokio::time::timeout(COPIES_WAIT, wait).await.is_err() {
        info!(container = %id, "used before it has all its copies");
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_settings_stay_when_copies_change() {
        let set = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let pairs = pairs.iter();
            pairs
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let before = set(&[("other", "x"), ("copies", "3")]);
        let after = with_copies(before.clone(), Some(1));
        assert_eq!(after, set(&[("other", "x"), ("copies", "1")]));
        assert_eq!(with_copies(before, None), set(&[("other", "x")]));
    }
}
