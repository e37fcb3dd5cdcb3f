//! A machine whose node only mounts.

use super::guest::Kind;
use perigee_testbed::Cluster;
use perigee_testbed::cluster::Ended;
use std::fs;
use std::path::PathBuf;

/// A machine of its own; its mount and its daemon end with the cluster's folder.
pub struct Client {
    /// Its cluster directory.
    pub dir: String,
    /// Where it is mounted.
    pub mount: PathBuf,
}

impl Client {
    pub fn join(cluster: &mut Cluster, name: &str, kind: Kind) -> Self {
        let token = kind.token(cluster);
        let dir = cluster.path().join(name).to_string_lossy().into_owned();
        let mount = cluster.path().join(format!("mount-{name}"));
        fs::create_dir(&mount).unwrap();
        let client = Self { dir, mount };
        let named = ["--name", name, "--listen", "127.0.0.1:0", "--no-storage"];
        let join = [&["join", &token][..], &named].concat();
        let joined = client.say(cluster, &join);
        assert!(joined.status.success(), "{joined:?}");
        let mount = client.mount.to_string_lossy().into_owned();
        let mounted = client.say(cluster, &["mount", &mount]);
        assert!(mounted.status.success(), "{mounted:?}");
        client
    }

    /// Runs a command on this machine.
    pub fn say(&self, cluster: &mut Cluster, arguments: &[&str]) -> Ended {
        let all = [arguments, &["--dir", &self.dir]].concat();
        cluster.command(&all).unwrap()
    }
}
