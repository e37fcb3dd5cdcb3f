//! A node and its mounts.

use super::failure;
use super::join::identity_dir;
use super::{findings, membership, rebalance, snapshots, trash};
use crate::admin_server::{AdminBackend, Asker};
use crate::config::NodeConfig;
use crate::mount_options::Options;
use crate::mounts::SOURCE_PREFIX;
use perigee_client::WithPast;
use perigee_cluster::{Admits, BoxFuture};
use perigee_gateway::fuse::{
    self, Busy, Hooks, MountOptions, Mounted, UnmountError, WatchdogCommand,
};
use perigee_net::identity::Identity;
use perigee_node::policy::{
    CONTAINER_SIZE, COPIES, MIGRATION, PolicyError, STRIPES, TRASH, Wanted,
};
use perigee_node::schedule::Schedule;
use perigee_node::snapshot::SNAPSHOTS;
use perigee_node::{Node, StartError};
use perigee_proto::admin::{
    ADOPTED_MAX, AdminPath, Answer, Failure, LOCATED_MAX, PolicyValue, Request, Status, Token,
};
use perigee_types::{
    ContainerSize, Errno, InodeId, Migration, Retention, SessionId, Span, StripeWidth,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::RwLock;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

/// The policies that there are, with their defaults.
const POLICIES: [(&str, &str); 6] = [
    (COPIES, "3"),
    (MIGRATION, Migration::Adaptive.as_str()),
    (SNAPSHOTS, "none"),
    (TRASH, "off"),
    (CONTAINER_SIZE, ContainerSize::DEFAULT),
    (STRIPES, "1"),
];

/// Starts the node of a data directory. It serves its peers when this returns.
pub async fn start_node(dir: &Path, config: &NodeConfig) -> Result<RunningNode, Failure> {
    let what = || format!("cannot start `{}` on {}", config.name, config.listen);
    let identity = Identity::load(&identity_dir(dir)).map_err(|error| failure(what(), &error))?;
    let started = Node::start(perigee_node::NodeConfig {
        data_dir: dir.to_path_buf(),
        identity,
        listen: config.listen,
        control: vec![config.control],
        merging: config.merging,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let node = started.await.map_err(|error| {
        let failure = failure(what(), &error);
        match error {
            StartError::Control { .. } => failure.hint(
                "`perigee up` on its machine starts it; if it is lost for good, `perigee rebuild --help`",
            ),
            StartError::ControlWentBack { .. } => failure.hint(
                "bring back its newest state; if that is lost for good, `perigee rebuild --help`",
            ),
            StartError::GivenAway => failure.hint(
                "`perigee join --again TOKEN` lets it in again, with the token that `perigee rebuild` prints; where no \
                 control store was made anew, `perigee inventory --undo` lets it start as it was",
            ),
            _ => failure,
        }
    })?;
    Ok(RunningNode {
        inner: Arc::new(Inner {
            node: RwLock::new(Some(node)),
            mounts: Mutex::default(),
            source: format!("{SOURCE_PREFIX}{}", dir.display()),
        }),
    })
}

/// A node and its mounts.
pub struct RunningNode {
    inner: Arc<Inner>,
}

struct Inner {
    /// None once it stops.
    node: RwLock<Option<Node>>,
    mounts: Mutex<BTreeMap<PathBuf, Arc<Mounted>>>,
    /// What the mount table shows as the source, by which the command line finds the node.
    source: String,
}

impl RunningNode {
    /// Unmounts everything, makes all data durable, and ends the node's tasks.
    pub async fn stop(&self) -> Result<(), Failure> {
        self.inner.unmount_all().await;
        if let Some(node) = self.inner.node.write().await.take() {
            node.stop().await;
        }
        Ok(())
    }
}

impl AdminBackend for RunningNode {
    fn admin(&self, who: Asker, request: Request) -> BoxFuture<'static, Result<Answer, Failure>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.answer(who, request).await })
    }
}

impl Inner {
    /// The map is whole even when a thread that held it has panicked: each change is one call.
    fn mounts(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Mounted>>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn unmount_all(&self) {
        let mounts = std::mem::take(&mut *self.mounts());
        for (path, mounted) in mounts {
            // files that are open there fail from now on: the node was told to stop
            let unmounted = spawn_blocking(move || mounted.unmount(Busy::Detach)).await;
            if let Ok(Err(error)) = unmounted {
                warn!(path = %path.display(), %error, "mount is left behind");
            }
        }
    }

    async fn answer(self: Arc<Self>, who: Asker, request: Request) -> Result<Answer, Failure> {
        if let Request::Umount { mountpoint, lazy } = request {
            return self.umount(mountpoint.into(), lazy).await;
        }
        let guard = self.node.read().await;
        let Some(node) = guard.as_ref() else {
            return Err(Failure::new("cannot ask the node", "it is stopping"));
        };
        match request {
            Request::Status => Ok(Answer::Status(self.status(node).await)),
            Request::Mount {
                mountpoint,
                options,
            } => self.mount(node, mountpoint.into(), &options).await,
            Request::Topology => Ok(Answer::Topology(node.topology().await)),
            Request::Union => Err(Failure::new(
                "cannot show the hosts of a union",
                "this is a node of a cluster",
            )
            .hint("`perigee status` shows its nodes")),
            Request::Where { path } => {
                let placement = node.placement(&path).await;
                placement
                    .map(|placement| Answer::Where(Box::new(placement)))
                    .map_err(|errno| about(&path, errno))
            }
            Request::Locate { paths } if paths.len() > LOCATED_MAX => Err(Failure::new(
                "cannot locate files",
                format!("{} are more than {LOCATED_MAX} at once", paths.len()),
            )),
            Request::Locate { paths } => Ok(Answer::Located(node.locate(paths).await)),
            Request::Adopt { files, .. } if files.len() > ADOPTED_MAX => Err(Failure::new(
                "cannot adopt files",
                format!("{} are more than {ADOPTED_MAX} at once", files.len()),
            )),
            Request::Adopt { step, files } => Ok(Answer::Adopted(node.adopt(step, files).await)),
            Request::PolicyGet { path } => policy(node, &path).await,
            Request::PolicySet { path, pairs } => {
                set_policy(node, &path, pairs).await?;
                policy(node, &path).await
            }
            Request::SnapshotCreate { path, name } => snapshots::create(node, &path, name).await,
            Request::SnapshotList => snapshots::list(node).await,
            Request::SnapshotDelete { path, name } => snapshots::delete(node, &path, &name).await,
            Request::TrashList { path } => trash::list(node, &path, who).await,
            Request::TrashBring { entries } => Ok(trash::bring(node, entries, who).await),
            Request::TrashPurge { entries } => trash::purge(node, &entries, who).await,
            Request::Token { ttl_secs, admits } => token(node, ttl_secs, admits).await,
            Request::TokenAgain {
                node: name,
                ttl_secs,
            } => membership::token_again(node, &name, ttl_secs).await,
            Request::Drain {
                node: name,
                undo,
                fewer_copies,
            } => membership::drain(node, &name, undo, fewer_copies).await,
            Request::RebalancePlan { margin_percent } => {
                rebalance::plan(node, margin_percent).await
            }
            Request::MoveCopy {
                container,
                from,
                to,
            } => rebalance::move_copy(node, container, from, to).await,
            Request::StopMoves => rebalance::stop(node).await,
            Request::Remove { node: name } => membership::remove(node, &name).await,
            Request::Doctor => Ok(Answer::Doctor(findings::of(&self.status(node).await))),
            Request::Scrub { wish } => Ok(Answer::Scrub(node.scrub(wish).await)),
            Request::Quiesce => {
                self.unmount_all().await;
                node.quiesce().await;
                Ok(Answer::Done)
            }
            Request::Umount { .. } | Request::Stop => Ok(Answer::Done),
        }
    }

    async fn status(&self, node: &Node) -> Status {
        let mut status = node.status().await;
        status.version = env!("CARGO_PKG_VERSION").to_owned();
        let own = status.nodes.iter_mut().find(|known| known.id == node.id());
        if let Some(own) = own {
            let mut mounts = self.mounts();
            mounts.retain(|_, mounted| !mounted.is_over());
            own.mounts = mounts.keys().map(AdminPath::from).collect();
        }
        status
    }

    async fn mount(
        self: &Arc<Self>,
        node: &Node,
        mountpoint: PathBuf,
        options: &[String],
    ) -> Result<Answer, Failure> {
        let what = format!("cannot mount on `{}`", mountpoint.display());
        let asked = Options::parse(options)?.mount;
        let options = MountOptions {
            // The owners refuse its changes anyway: here the kernel says so, and programs know before they try.
            read_only: asked.read_only || !node.role().may_change_files(),
            source: self.source.clone(),
            watchdog: Some(watchdog()),
            ..asked
        };
        let Some(session) = node.open_session() else {
            return Err(Failure::new(what, "the node is stopping"));
        };
        let hooks = self.hooks(session.id(), &session);
        let made = spawn_blocking(move || {
            fuse::mount(WithPast::new(session), &mountpoint, &options, hooks)
        })
        .await;
        match made {
            Ok(Ok(mounted)) => {
                self.mounts()
                    .insert(mounted.path().to_path_buf(), Arc::new(mounted));
                Ok(Answer::Done)
            }
            // it names the mount point itself
            Ok(Err(error)) => Err(failure(what, &error)),
            Err(error) => Err(Failure::new(what, error)),
        }
    }

    /// The kernel's caches are told what others change; a mount that has ended gives up its leases.
    fn hooks(self: &Arc<Self>, id: SessionId, session: &Arc<perigee_client::Session>) -> Hooks {
        let session = Arc::downgrade(session);
        let inner = Arc::downgrade(self);
        let runtime = tokio::runtime::Handle::current();
        Hooks {
            attached: Box::new(move |attached| {
                if let Some(session) = session.upgrade() {
                    session.attach(attached.cache, attached.facts.names_can_be_forgotten);
                }
            }),
            ended: Box::new(move |end| {
                info!(?end, session = %id, "mount ended");
                let handle = runtime.clone();
                // a thread of its own: nobody waits for it, and it may wait for other nodes
                runtime.spawn_blocking(move || handle.block_on(end_session(&inner, id)));
            }),
        }
    }

    async fn umount(&self, mountpoint: PathBuf, lazy: bool) -> Result<Answer, Failure> {
        let what = format!("cannot unmount `{}`", mountpoint.display());
        let Some(mounted) = self.mounts().get(&mountpoint).cloned() else {
            return Err(Failure::new(what, "this node has no mount there")
                .hint("`perigee status` lists the mounts"));
        };
        unmount(mounted, lazy).await?;
        self.mounts().remove(&mountpoint);
        Ok(Answer::Done)
    }
}

/// Unmounts for a person, who is told what stands in the way.
pub(super) async fn unmount(mounted: Arc<Mounted>, lazy: bool) -> Result<(), Failure> {
    let what = format!("cannot unmount `{}`", mounted.path().display());
    let busy = if lazy { Busy::Detach } else { Busy::Refuse };
    let asked = Arc::clone(&mounted);
    match spawn_blocking(move || asked.unmount(busy)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(UnmountError::InUse { .. })) => {
            let shown = mounted.path().display();
            Err(Failure::new(what, "files are open there, or a program works in it").hint(
                format!("`fuser -vm '{shown}'` shows which; `perigee umount --lazy '{shown}'` does not wait"),
            ))
        }
        Ok(Err(error)) => Err(failure(what, &error)),
        Err(error) => Err(Failure::new(what, error)),
    }
}

/// This program, though its file may have been replaced since it started.
pub(super) fn watchdog() -> WatchdogCommand {
    WatchdogCommand {
        program: "/proc/self/exe".into(),
        arguments: vec!["mount-watchdog".into()],
    }
}

async fn end_session(inner: &Weak<Inner>, id: SessionId) {
    let Some(inner) = inner.upgrade() else {
        return;
    };
    if let Some(node) = inner.node.read().await.as_ref() {
        node.end_session(id).await;
    }
}

fn about(path: &AdminPath, errno: Errno) -> Failure {
    Failure::new(format!("cannot look at `{path}` in the file system"), errno)
}

async fn token(node: &Node, ttl_secs: u64, admits: Admits) -> Result<Answer, Failure> {
    let ttl = Span::from_millis(ttl_secs.saturating_mul(1000));
    match node.token(ttl, admits).await {
        Ok(token) => Ok(Answer::Token(Token { token, ttl_secs })),
        Err(why) => Err(Failure::new("cannot make a token", why)),
    }
}

async fn policy(node: &Node, path: &AdminPath) -> Result<Answer, Failure> {
    let in_force = node.policy(path).await;
    let in_force = in_force.map_err(|errno| about(path, errno))?;
    let mut values = Vec::new();
    for (key, default) in POLICIES {
        let set = in_force.iter().find(|setting| setting.name == key);
        values.push(PolicyValue {
            key: key.to_owned(),
            value: set.map_or(default, |setting| &setting.value).to_owned(),
            from: match set {
                Some(setting) => Some(set_at(node, path, setting.from).await?),
                None => None,
            },
        });
    }
    Ok(Answer::Policy(values))
}

/// The path, at or above `path`, of the directory `inode`.
async fn set_at(node: &Node, path: &AdminPath, inode: InodeId) -> Result<AdminPath, Failure> {
    let mut at = path.as_path();
    loop {
        let here = AdminPath::from(at);
        let found = node
            .find(&here)
            .await
            .map_err(|errno| about(&here, errno))?;
        match at.parent() {
            Some(parent) if found.inode != inode => at = parent,
            Some(_) | None => return Ok(here),
        }
    }
}

async fn set_policy(
    node: &Node,
    path: &AdminPath,
    pairs: Vec<(String, String)>,
) -> Result<(), Failure> {
    let what = || format!("cannot set a policy of `{path}`");
    let mut wanted = Wanted::default();
    for (key, value) in &pairs {
        add_policy(&mut wanted, key, value).map_err(|why| {
            Failure::new(what(), why).hint("`perigee policy get PATH` lists the policies")
        })?;
    }
    node.set_policy(path, wanted).await.map_err(|error| {
        let failure = Failure::new(what(), &error);
        match error {
            PolicyError::HasContent => failure.hint(
                "set it on a new directory, and copy there: a moved file keeps its copies too",
            ),
            PolicyError::Path(Errno::ENOTDIR) => {
                Failure::new(what(), "only directories have policies")
            }
            PolicyError::NoOwnContainer => failure.hint(
                "set it on the file system's root; or give the directory its own with `copies=N`, while it is empty",
            ),
            PolicyError::Path(_) | PolicyError::Control(_) | PolicyError::NoNode => failure,
        }
    })
}

/// Adds what a policy says to what is wanted; an empty value takes it back.
fn add_policy(wanted: &mut Wanted, key: &str, value: &str) -> Result<(), String> {
    let back = value.is_empty();
    match key {
        COPIES => {
            let most = perigee_cluster::model::CHAIN_LEN_MAX;
            let number = value.parse::<u8>().ok();
            let copies = number.filter(|copies| (1..=most).contains(&usize::from(*copies)));
            if !back && copies.is_none() {
                return Err(format!(
                    "`{key}` is a number from 1 to {most}, not `{value}`"
                ));
            }
            wanted.copies = Some(copies);
        }
        MIGRATION => {
            let migration = Migration::named(value);
            if !back && migration.is_none() {
                let known = Migration::ALL.map(Migration::as_str).join("`, `");
                return Err(format!("`{key}` is one of `{known}`, not `{value}`"));
            }
            wanted.migration = Some(migration);
        }
        SNAPSHOTS => {
            let schedule = Schedule::parse(value);
            match schedule {
                Ok(schedule) => wanted.snapshots = Some(Some(schedule.to_string())),
                Err(_) if back => wanted.snapshots = Some(None),
                Err(why) => return Err(format!("`{key}`: {why}, not `{value}`")),
            }
        }
        TRASH => {
            let retention = Retention::named(value);
            if !back && retention.is_none() {
                return Err(format!(
                    "`{key}` is `off` or a time of up to 3650d, as in 90m, 12h or 7d, not `{value}`"
                ));
            }
            wanted.trash = Some(retention);
        }
        CONTAINER_SIZE => {
            let size = ContainerSize::named(value);
            if !back && size.is_none() {
                return Err(format!(
                    "`{key}` is a size of at least 1MiB, as in 64GiB, not `{value}`"
                ));
            }
            wanted.container_size = Some(size);
        }
        STRIPES => {
            let width = StripeWidth::named(value);
            if !back && width.is_none() {
                let most = StripeWidth::MAX;
                return Err(format!(
                    "`{key}` is a number from 1 to {most}, not `{value}`"
                ));
            }
            wanted.stripes = Some(width);
        }
        _ => return Err(format!("there is no policy `{key}`")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Wanted, add_policy};
    use perigee_types::{ContainerSize, Migration, Retention, StripeWidth};

    #[test]
    fn a_policy_is_checked_before_it_is_set() {
        let mut wanted = Wanted::default();
        let mut add = |key, value| add_policy(&mut wanted, key, value).map(|()| wanted.clone());
        assert_eq!(add("copies", "2").unwrap().copies, Some(Some(2)));
        assert_eq!(add("copies", "").unwrap().copies, Some(None));
        let off = add("migration", "off").unwrap();
        assert_eq!(off.migration, Some(Some(Migration::Off)));
        assert_eq!(off.copies, Some(None));
        assert_eq!(add("migration", "").unwrap().migration, Some(None));
        let week = add("trash", "7d").unwrap().trash;
        assert_eq!(week, Some(Retention::named("7d")));
        assert_eq!(
            add("trash", "off").unwrap().trash,
            Some(Some(Retention::Off))
        );
        assert_eq!(add("trash", "").unwrap().trash, Some(None));
        let small = add("container-size", "2G").unwrap();
        assert_eq!(small.container_size, Some(ContainerSize::of(2 << 30)));
        assert_eq!(
            add("container-size", "").unwrap().container_size,
            Some(None)
        );
        let wide = add("stripes", "4").unwrap().stripes;
        assert_eq!(wide, Some(StripeWidth::of(4)));
        assert_eq!(add("stripes", "").unwrap().stripes, Some(None));
        for (key, value) in [
            ("copies", "0"),
            ("copies", "many"),
            ("copies", "99"),
            ("copies", "257"),
            ("colour", "1"),
            ("migration", "on"),
            ("snapshots", "often"),
            ("snapshots", "1s:5"),
            ("trash", "7"),
            ("trash", "on"),
            ("container-size", "12"),
            ("container-size", "large"),
            ("stripes", "0"),
            ("stripes", "33"),
            ("stripes", "all"),
        ] {
            assert!(add(key, value).is_err(), "{key}={value}");
        }
    }
}
