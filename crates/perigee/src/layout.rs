//! Where a cluster lives on a machine.
//!
//! A cluster directory has `node-1` .. `node-N`, one data directory per node of this machine, and
//! `control` where the control store is here. A data directory alone is accepted too.

use perigee_proto::admin::Failure;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Configuration of a node, in its data directory.
pub const NODE_FILE: &str = "node.toml";
/// Log of a process, in its directory.
pub const LOG_FILE: &str = "daemon.log";
/// Overrides the default cluster directory.
pub const DIR_VARIABLE: &str = "PERIGEE_DIR";

/// The cluster directory that is meant where none is given.
pub fn default_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
        return PathBuf::from(dir);
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/perigee");
    }
    match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        Some(home) => Path::new(&home).join(".local/share/perigee"),
        None => PathBuf::from("/var/lib/perigee"),
    }
}

/// A node's data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDir {
    /// Absolute.
    pub path: PathBuf,
}

impl NodeDir {
    /// Its configuration.
    pub fn config(&self) -> PathBuf {
        self.path.join(NODE_FILE)
    }

    /// Its last path component, as in `node-1`.
    pub fn name(&self) -> String {
        self.path
            .file_name()
            .unwrap_or(self.path.as_os_str())
            .to_string_lossy()
            .into_owned()
    }
}

/// What of a cluster is on this machine.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The cluster directory, absolute.
    pub dir: PathBuf,
    /// Nodes of this machine, by number.
    pub nodes: Vec<NodeDir>,
}

impl Layout {
    /// Looks at `dir`, which need not exist. Links in it are followed, so that every name of a
    /// directory means the same cluster.
    pub fn look(dir: &Path) -> Result<Self, Failure> {
        let what = || format!("cannot use the directory `{}`", dir.display());
        let absolute = std::path::absolute(dir).map_err(|error| Failure::new(what(), error))?;
        let dir = match absolute.canonicalize() {
            Ok(dir) => dir,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => absolute,
            Err(error) => return Err(Failure::new(what(), error)),
        };
        if dir.exists() && !dir.is_dir() {
            return Err(Failure::new(what(), "it is not a directory"));
        }
        if dir.join(NODE_FILE).exists() {
            let nodes = vec![NodeDir { path: dir.clone() }];
            return Ok(Self { dir, nodes });
        }
        let mut numbers = Vec::new();
        if dir.exists() {
            let entries = dir
                .read_dir()
                .map_err(|error| Failure::new(what(), error))?;
            for entry in entries {
                let entry = entry.map_err(|error| Failure::new(what(), error))?;
                let number = entry.file_name().to_str().and_then(node_number);
                if let Some(number) = number
                    && entry.path().join(NODE_FILE).exists()
                {
                    numbers.push(number);
                }
            }
        }
        numbers.sort_unstable();
        let nodes = numbers
            .into_iter()
            .map(|number| NodeDir {
                path: dir.join(format!("node-{number}")),
            })
            .collect();
        Ok(Self { dir, nodes })
    }

    /// Looks at `dir`, which must hold a node.
    pub fn open(dir: &Path) -> Result<Self, Failure> {
        let layout = Self::look(dir)?;
        if layout.nodes.is_empty() {
            return Err(Failure::new(
                format!("cannot find a cluster in `{}`", layout.dir.display()),
                "no node has its data there",
            )
            .hint("`perigee up` starts one; for another place use --dir, or set PERIGEE_DIR"));
        }
        Ok(layout)
    }

    /// The control store's directory; it exists where the control store is on this machine.
    pub fn control(&self) -> PathBuf {
        self.dir.join("control")
    }

    /// The data directory that node `number` has or would get.
    pub fn node_dir(&self, number: u32) -> NodeDir {
        NodeDir {
            path: self.dir.join(format!("node-{number}")),
        }
    }

    /// The nodes to ask: the one with `number`, or all.
    pub fn chosen(&self, number: Option<u32>) -> Result<Vec<NodeDir>, Failure> {
        let Some(number) = number else {
            return Ok(self.nodes.clone());
        };
        let wanted = self.node_dir(number);
        if self.nodes.contains(&wanted) {
            return Ok(vec![wanted]);
        }
        let names: Vec<String> = self.nodes.iter().map(NodeDir::name).collect();
        Err(Failure::new(
            format!("cannot find node {number}"),
            format!("`{}` has {}", self.dir.display(), names.join(", ")),
        ))
    }
}

fn node_number(name: &str) -> Option<u32> {
    name.strip_prefix("node-")?
        .parse()
        .ok()
        .filter(|number| (1..=NODES_MAX).contains(number))
}

/// The most nodes of one machine: more than anyone tests with, fewer than would exhaust it.
pub const NODES_MAX: u32 = 64;

/// Makes a directory, and those above it, that only its user can read.
pub fn make_private_dir(path: &Path) -> Result<(), Failure> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| {
            Failure::new(
                format!("cannot make the directory `{}`", path.display()),
                error,
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(dir: &Path, name: &str) {
        std::fs::create_dir_all(dir.join(name)).unwrap();
        std::fs::write(dir.join(name).join(NODE_FILE), "").unwrap();
    }

    #[test]
    fn nodes_are_listed_by_number_and_only_with_a_configuration() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["node-10", "node-2", "node-1", "node-0", "node-x", "other"] {
            touch(temp.path(), name);
        }
        std::fs::create_dir(temp.path().join("node-3")).unwrap();
        let layout = Layout::open(temp.path()).unwrap();
        let names: Vec<String> = layout.nodes.iter().map(NodeDir::name).collect();
        assert_eq!(names, ["node-1", "node-2", "node-10"]);
        assert_eq!(layout.chosen(Some(2)).unwrap(), [layout.node_dir(2)]);
        assert!(layout.chosen(Some(3)).is_err());
    }

    #[test]
    fn a_data_directory_alone_is_a_layout_of_one_node() {
        let temp = tempfile::tempdir().unwrap();
        touch(temp.path(), "node-4");
        let layout = Layout::open(&temp.path().join("node-4")).unwrap();
        assert_eq!(layout.nodes.len(), 1);
        assert_eq!(layout.nodes[0].name(), "node-4");
    }

    #[test]
    fn an_empty_place_and_a_file_are_refused_with_a_sentence() {
        let temp = tempfile::tempdir().unwrap();
        let empty = Layout::open(&temp.path().join("nothing")).unwrap_err();
        assert!(empty.hint.is_some());
        let file = temp.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(
            Layout::look(&file).unwrap_err().why,
            "it is not a directory"
        );
    }
}
