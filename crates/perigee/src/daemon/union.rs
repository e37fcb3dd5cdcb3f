//! The processes of a union: the one that has started it, and those that it starts on other hosts.

use super::failure;
use crate::admin_server::{AdminBackend, AdminServer, Asker};
use crate::mounts::SOURCE_PREFIX;
use futures_util::future::join_all;
use perigee_cluster::BoxFuture;
use perigee_gateway::fuse::{self, Busy, Hooks, Locks, MountOptions, Mounted, Passthrough};
use perigee_proto::admin::{
    AdminPath, Answer, Failure, LOCATED_MAX, Located, LocatedFile, LocatedNode, LocatedPiece,
    Request, UnionHost, UnionStatus, UnionWay,
};
use perigee_types::NodeId;
use perigee_union::member::Union;
use perigee_union::mount::Mount;
use perigee_union::path::RelPath;
use perigee_union::ssh::agent::{self, Mounter};
use perigee_union::ssh::carry::Program;
use perigee_union::ssh::launch::Launcher;
use perigee_union::ssh::starter::{NotStarted, Plan, Progress, Starter, places};
use perigee_union::ssh::target;
use perigee_union::wire::{Placing, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

/// What a union is to be, as the command writes it for its process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnionPlan {
    /// Where it is mounted; absolute.
    pub mountpoint: PathBuf,
    /// `[[user@]host[:port]:]directory`, in their order.
    pub targets: Vec<String>,
    /// `ssh` and its options.
    pub ssh: Vec<String>,
    /// Hosts that cannot be reached are left out.
    pub partial: bool,
    /// Hosts keep the program.
    pub keep: bool,
    /// The other hosts have the mount, too.
    pub everywhere: bool,
    /// Hosts connect to each other past SSH.
    pub direct: bool,
    /// Milliseconds.
    pub fresh_ms: u32,
    /// `here`, `path`, `space`, or a host as among the targets.
    pub create: String,
    /// As in `-o`.
    pub options: Vec<String>,
}

impl UnionPlan {
    /// Checks what can be checked without other hosts.
    ///
    /// Errors: a target names nothing; the policy names no host of the union.
    pub fn resolve(&self) -> Result<(Vec<perigee_union::ssh::starter::Place>, Settings), Failure> {
        let what = "cannot make a union";
        let mut targets = Vec::new();
        for word in &self.targets {
            targets.push(target::parse(word).map_err(|error| {
                Failure::new(what, error)
                    .hint("directories are written as `[[user@]host[:port]:]directory`")
            })?);
        }
        let places = places(&targets);
        let placing = match self.create.as_str() {
            "here" => Placing::Here,
            "path" => Placing::Path,
            "space" => Placing::Space,
            host => {
                let named = places
                    .iter()
                    .find(|place| place.host.is_some() && place.name() == host);
                let named = named.ok_or_else(|| {
                    Failure::new(what, format!("`--create {host}` names no host of it"))
                        .hint("`here`, `path`, `space`, or a host as in the targets")
                })?;
                Placing::Host(named.id)
            }
        };
        let settings = Settings {
            fresh_ms: self.fresh_ms,
            placing,
            partial: self.partial,
            direct: self.direct,
        };
        Ok((places, settings))
    }
}

/// A line that the process of a starting union writes for the command that waits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostLine {
    /// Which host.
    pub host: String,
    /// Why it has no member; none: it serves.
    pub why: Option<String>,
}

/// Starts a union, serves its mount, and ends with it.
///
/// `told` takes each line for the command; `ready` is called once when the mount is there.
pub async fn serve_union(
    dir: &Path,
    plan: UnionPlan,
    told: impl Fn(HostLine) + Send + 'static,
    ready: impl FnOnce() -> Result<(), Failure>,
    stopped: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let what = || format!("cannot make a union on `{}`", plan.mountpoint.display());
    let (places, settings) = plan.resolve()?;
    let me = std::env::current_exe().map_err(|error| Failure::new(what(), error))?;
    let program = spawn_blocking(move || Program::of(&me)).await;
    let program = program.map_err(|error| Failure::new(what(), error))?;
    let launcher = Launcher {
        ssh: plan.ssh.clone(),
        program: program.map_err(|error| Failure::new(what(), error))?,
        keep: plan.keep,
    };
    let (progress, mut happened) = mpsc::unbounded_channel();
    let telling = tokio::spawn(async move {
        while let Some(progress) = happened.recv().await {
            told(match progress {
                Progress::Serves(host) => HostLine { host, why: None },
                Progress::Failed(host, why) => HostLine {
                    host,
                    why: Some(why),
                },
            });
        }
    });
    let wanted = Plan {
        places,
        launcher,
        settings,
        mountpoint: plan.mountpoint.clone(),
        everywhere: plan.everywhere,
    };
    let (starter, union) = Starter::start(wanted, progress).await.map_err(|error| {
        let hint = match &error {
            NotStarted::Hosts(_) => Some("`--partial` mounts the rest"),
            NotStarted::Directory { .. } | NotStarted::System(_) => None,
        };
        let failure = failure(what(), &error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    // The command counts the hosts before it hears that the mount is there.
    telling.await.map_err(|error| Failure::new(what(), error))?;
    let source = format!("{SOURCE_PREFIX}{}", dir.display());
    let (fs, mounted, over) = mount(&union, &plan.mountpoint, source, &plan.options).await?;
    let backend = Arc::new(Backend {
        starter: Arc::clone(&starter),
        union: Arc::clone(&union),
        fs,
        mounted: Arc::new(mounted),
    });
    let stop = Arc::new(Notify::new());
    let admin = AdminServer::bind(dir, backend.clone(), Arc::clone(&stop)).map_err(|error| {
        Failure::new(
            what(),
            format!("its admin socket cannot be opened: {error}"),
        )
    })?;
    ready()?;
    info!(mountpoint = %plan.mountpoint.display(), "union is mounted");
    tokio::select! {
        () = admin.run() => {}
        () = over.notified() => info!("unmounted"),
        () = stop.notified() => info!("stop was asked for"),
        () = stopped => info!("signal to stop"),
    }
    let mounted = Arc::clone(&backend.mounted);
    if let Ok(Err(error)) = spawn_blocking(move || mounted.unmount(Busy::Detach)).await {
        warn!(%error, "mount is left behind");
    }
    starter.stop();
    union.stop().await;
    Ok(())
}

type Made = (Arc<Mount>, Mounted, Arc<Notify>);

async fn mount(
    union: &Arc<Union>,
    mountpoint: &Path,
    source: String,
    options: &[String],
) -> Result<Made, Failure> {
    let what = format!("cannot mount on `{}`", mountpoint.display());
    let asked = crate::mount_options::Options::parse(options)?.mount;
    let options = MountOptions {
        source,
        passthrough: Passthrough::None,
        locks: Locks::Kernel,
        watchdog: Some(super::node::watchdog()),
        ..asked
    };
    let fs = Mount::new(Arc::clone(union)).await;
    let fs = fs.map_err(|errno| Failure::new(what.clone(), errno))?;
    let over = Arc::new(Notify::new());
    let ended = Arc::clone(&over);
    let hooks = Hooks {
        attached: Box::new(|_| {}),
        ended: Box::new(move |_| ended.notify_one()),
    };
    let (served, at) = (Arc::clone(&fs), mountpoint.to_path_buf());
    let made = spawn_blocking(move || fuse::mount(served, &at, &options, hooks)).await;
    match made {
        Ok(Ok(mounted)) => Ok((fs, mounted, over)),
        Ok(Err(error)) => Err(failure(what, &error)),
        Err(error) => Err(Failure::new(what, error)),
    }
}

/// Serves the branches of this host to the union that has started this process over SSH, and returns when that has ended.
pub async fn serve_branches() -> Result<(), Failure> {
    let mounter: Mounter = Box::new(|union, mountpoint| {
        Box::pin(async move {
            let made = make_mountpoint(&mountpoint)
                .map_err(|error| format!("cannot make `{}`: {error}", mountpoint.display()))?;
            let source = format!("{SOURCE_PREFIX}union");
            let (_, mounted, over) = mount(&union, &mountpoint, source, &[])
                .await
                .map_err(|failure| format!("{}: {}", failure.what, failure.why))?;
            Ok(Box::new(FarMount {
                mounted: Some(mounted),
                made: made.then_some(mountpoint),
                _over: over,
            }) as Box<dyn Send>)
        })
    });
    agent::serve(mounter)
        .await
        .map_err(|why| Failure::new("cannot serve a union", why))
}

/// Makes the directory of a mount where there is none; true: it did.
fn make_mountpoint(path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// A mount on a host other than the starter's; gone with its member.
struct FarMount {
    mounted: Option<Mounted>,
    made: Option<PathBuf>,
    _over: Arc<Notify>,
}

impl Drop for FarMount {
    fn drop(&mut self) {
        drop(self.mounted.take());
        if let Some(made) = &self.made {
            // Only an empty one goes.
            _ = std::fs::remove_dir(made);
        }
    }
}

struct Backend {
    starter: Arc<Starter>,
    union: Arc<Union>,
    fs: Arc<Mount>,
    mounted: Arc<Mounted>,
}

impl AdminBackend for Backend {
    fn admin(&self, _who: Asker, request: Request) -> BoxFuture<'static, Result<Answer, Failure>> {
        let (starter, union) = (Arc::clone(&self.starter), Arc::clone(&self.union));
        let (fs, mounted) = (Arc::clone(&self.fs), Arc::clone(&self.mounted));
        Box::pin(async move {
            match request {
                Request::Union => Ok(Answer::Union(status(&starter, &union, &mounted))),
                Request::Locate { paths } if paths.len() > LOCATED_MAX => Err(Failure::new(
                    "cannot locate files",
                    format!("{} are more than {LOCATED_MAX} at once", paths.len()),
                )),
                Request::Locate { paths } => Ok(Answer::Located(locate(&union, &fs, paths).await)),
                Request::Umount { lazy, .. } => super::node::unmount(mounted, lazy)
                    .await
                    .map(|()| Answer::Done),
                _ => Err(Failure::new(
                    "cannot do that here",
                    "this is a union, not a node of a cluster",
                )
                .hint("`perigee union --status MOUNTPOINT` shows its hosts")),
            }
        })
    }
}

fn status(starter: &Starter, union: &Union, mounted: &Mounted) -> UnionStatus {
    let roster = union.roster();
    let hosts = starter.members().into_iter().map(|member| {
        let place = starter.places().iter().find(|place| place.id == member.id);
        let directories = place.map(|place| &place.branches[..]).unwrap_or_default();
        UnionHost {
            way: match union.is_carried(member.id) {
                _ if member.id == union.me => UnionWay::Here,
                Some(true) => UnionWay::Ssh,
                Some(false) => UnionWay::Direct,
                None => UnionWay::Unknown,
            },
            round_trip_us: roster
                .near(union.me, member.id)
                .cost
                .map(|cost| cost.as_micros()),
            node: member.id,
            name: member.name,
            away: member.away,
            directories: directories
                .iter()
                .map(|(_, directory)| {
                    AdminPath::from(Path::new(std::ffi::OsStr::from_bytes(directory)))
                })
                .collect(),
        }
    });
    UnionStatus {
        mountpoint: AdminPath::from(mounted.path()),
        hosts: hosts.collect(),
    }
}

async fn locate(union: &Union, fs: &Mount, paths: Vec<AdminPath>) -> Located {
    let files = join_all(paths.into_iter().map(|path| async move {
        let bytes = path.as_path().as_os_str().as_bytes();
        let below = bytes.strip_prefix(b"/").unwrap_or(bytes).to_vec();
        let found = match RelPath::try_from(below) {
            Ok(below) => fs.locate(&below).await.map_err(|errno| errno.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let (size_bytes, pieces, error) = match found {
            Ok(found) => {
                let piece = LocatedPiece {
                    start: 0,
                    end: found.size,
                    nodes: found.members,
                };
                (found.size, vec![piece], None)
            }
            Err(why) => (0, Vec::new(), Some(why)),
        };
        LocatedFile {
            path,
            size_bytes,
            pieces,
            error,
        }
    }))
    .await;
    let having: BTreeSet<NodeId> = files
        .iter()
        .flat_map(|file| &file.pieces)
        .flat_map(|piece| piece.nodes.iter().copied())
        .collect();
    let roster = union.roster();
    let own = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let nodes = having.into_iter().filter_map(|id| {
        let member = roster.member(id)?;
        let name = if id == union.me {
            own.clone()
        } else {
            member.name.clone()
        };
        let address = member.addresses.first();
        Some(LocatedNode {
            node: id,
            host: address.map_or_else(|| name.clone(), |address| address.ip().to_string()),
            name,
            site: String::new(),
        })
    });
    Located {
        asked: union.me,
        nodes: nodes.collect(),
        files,
    }
}
