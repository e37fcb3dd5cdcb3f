//! `perigee mount`: the file system in a directory of this machine.

use super::{DirArg, NodeArg};
use crate::admin_client::{CHANGE_TIME, ask, unexpected};
use crate::layout::{Layout, NodeDir};
use crate::mount_options::Options;
use crate::mounts::{self, Entries};
use crate::output::Report;
use crate::pid_file;
use clap::Args;
use perigee_proto::admin::{AdminPath, Answer, Failure, Request};
use std::path::{Path, PathBuf};

/// Mount the file system in a directory of this machine, which must be empty.
///
/// Also as `mount -t perigee DATA_DIR DIR` and in /etc/fstab, where the binary is linked as
/// /usr/sbin/mount.perigee.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee mount /mnt/perigee
  perigee mount /mnt/other --node 2 -o ro
  in /etc/fstab: /var/lib/perigee/node-1 /mnt/perigee perigee _netdev 0 0

Options:
  ro, rw              without or with changes
  [no]exec            programs can be run, or not
  [no]suid, [no]dev   set-id programs and device files work, or (default) not
  [no]allow_other     other users may enter; by default when root mounts
  noatime             no times of access (they change only when set, anyway)
  nonempty            mount over a directory that has entries
  passthrough=readers whole local files go to the kernel for programs that read; by default for
                      those that write, too, while this host alone uses the file
  nopassthrough       never hand whole local files to the kernel
  nolowlatency        let idle processors sleep also while programs ask for one thing after another
  threads=N, read_ahead_kb=N, max_background=N")]
pub struct Mount {
    /// Where
    #[arg(value_name = "M")]
    mountpoint: PathBuf,
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    node: NodeArg,
    /// Mount options, with commas between them
    #[arg(short = 'o', value_name = "OPTIONS", value_parser = parse_options)]
    options: Vec<String>,
}

impl Mount {
    /// Mounts through a node of this machine.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let options = Options::parse(&self.options)?;
        let node = serving_node(&layout, self.node.node.or(options.node))?;
        mount(&node, &self.mountpoint, &options)?;
        Ok(Report::silent())
    }
}

/// The node to mount through: the one with `number`, or the first that runs.
pub fn serving_node(layout: &Layout, number: Option<u32>) -> Result<NodeDir, Failure> {
    let nodes = layout.chosen(number)?;
    let running = nodes
        .iter()
        .find(|node| pid_file::running(&node.path).is_some());
    match running.or(nodes.first()) {
        Some(node) => Ok(node.clone()),
        None => super::up::first_node(layout).cloned(),
    }
}

/// Mounts on `mountpoint` through `node`, and returns when the mount answers.
pub fn mount(node: &NodeDir, mountpoint: &Path, options: &Options) -> Result<(), Failure> {
    let entries = if options.mount.non_empty {
        Entries::Hide
    } else {
        Entries::Refuse
    };
    let mountpoint = mounts::check_mountpoint(mountpoint, entries)?;
    let request = Request::Mount {
        mountpoint: AdminPath::from(&mountpoint),
        options: options.texts.clone(),
    };
    match ask(&node.path, &request, CHANGE_TIME)? {
        Answer::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// For clap, so that an unknown option is wrong usage.
fn parse_options(text: &str) -> Result<String, String> {
    match Options::parse(&[text]) {
        Ok(_) => Ok(text.to_owned()),
        Err(failure) => Err(failure.why),
    }
}
