//! The operations and how they are drawn: mostly on names that exist, so that most of them succeed.

use crate::error::Checked;
use crate::tree;
use perigee_types::Rng;
use rustix::fs::{RenameFlags, XattrFlags};
use std::fs;
use std::path::Path;

/// Largest offset of a write; small, so that writes overlap.
const REACH: u64 = 150_000;

/// One operation, on relative paths.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Create {
        path: String,
        mode: u32,
        exclusive: bool,
    },
    Write {
        path: String,
        offset: u64,
        length: usize,
        content: u64,
    },
    Append {
        path: String,
        length: usize,
        content: u64,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Punch {
        path: String,
        offset: u64,
        length: u64,
    },
    Allocate {
        path: String,
        offset: u64,
        length: u64,
    },
    Copy {
        from: String,
        to: String,
        offset: u64,
        length: usize,
    },
    Read {
        path: String,
        offset: u64,
        length: usize,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Rmdir {
        path: String,
    },
    Unlink {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        flags: RenameFlags,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        target: String,
        path: String,
    },
    Readlink {
        path: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: u32,
        gid: u32,
    },
    SetXattr {
        path: String,
        name: &'static str,
        length: usize,
        flags: XattrFlags,
    },
    GetXattr {
        path: String,
        name: &'static str,
    },
    RemoveXattr {
        path: String,
        name: &'static str,
    },
    List {
        path: String,
    },
    Fifo {
        path: String,
    },
}

/// Names that exist, by what can be done with them.
#[derive(Debug, Default)]
pub(super) struct Known {
    files: Vec<String>,
    directories: Vec<String>,
    all: Vec<String>,
}

impl Known {
    pub(super) fn of(model: &Path) -> Checked<Self> {
        let all = tree::names(model)?;
        let kind =
            |path: &String| fs::symlink_metadata(model.join(path)).map(|data| data.file_type());
        Ok(Self {
            files: all
                .iter()
                .filter(|p| kind(p).is_ok_and(|k| k.is_file()))
                .cloned()
                .collect(),
            directories: all
                .iter()
                .filter(|p| kind(p).is_ok_and(|k| k.is_dir()))
                .cloned()
                .collect(),
            all,
        })
    }
}

/// Mostly one of `names`, else any path, so that refusals occur as well.
fn one_of(rng: &mut Rng, names: &[String]) -> String {
    match names.get(rng.below(names.len() as u64) as usize) {
        Some(path) if rng.chance(7, 8) => path.clone(),
        _ => (0..=rng.below(3))
            .map(|_| part(rng))
            .collect::<Vec<_>>()
            .join("/"),
    }
}

/// A name in a directory that exists; the name itself may exist too.
fn in_directory(rng: &mut Rng, known: &Known) -> String {
    if rng.chance(1, 3) {
        return part(rng);
    }
    format!("{}/{}", one_of(rng, &known.directories), part(rng))
}

/// One name out of a few.
fn part(rng: &mut Rng) -> String {
    char::from(b'a' + rng.below(8) as u8).to_string()
}

fn mode(rng: &mut Rng) -> u32 {
    [0o644, 0o600, 0o755, 0o4755, 0o2775, 0o1777, 0o000][rng.below(7) as usize]
}

const XATTRS: [&str; 3] = ["user.one", "user.two", "user.a-longer-name.with.dots"];

pub(super) fn draw(rng: &mut Rng, known: &Known) -> Op {
    match rng.below(40) {
        0..=17 => draw_on_data(rng, known),
        18..=31 => draw_on_names(rng, known),
        _ => draw_on_attributes(rng, known),
    }
}

fn draw_on_data(rng: &mut Rng, known: &Known) -> Op {
    let path = one_of(rng, &known.files);
    let (offset, length) = (rng.below(REACH), 1 + rng.below(30_000));
    let bytes = length as usize;
    match rng.below(16) {
        0..=3 => {
            let path = in_directory(rng, known);
            Op::Create {
                path,
                mode: mode(rng),
                exclusive: rng.chance(1, 2),
            }
        }
        4..=7 => Op::Write {
            path,
            offset,
            length: bytes,
            content: rng.next_u64(),
        },
        8 | 9 => Op::Append {
            path,
            length: bytes,
            content: rng.next_u64(),
        },
        10 | 11 => Op::Truncate {
            path,
            size: rng.below(REACH),
        },
        12 => Op::Punch {
            path,
            offset,
            length,
        },
        13 => Op::Allocate {
            path,
            offset,
            length,
        },
        14 => Op::Copy {
            from: path,
            to: one_of(rng, &known.files),
            offset,
            length: bytes,
        },
        _ => Op::Read {
            path,
            offset,
            length: bytes,
        },
    }
}

fn draw_on_names(rng: &mut Rng, known: &Known) -> Op {
    let (old, new) = (one_of(rng, &known.all), in_directory(rng, known));
    match rng.below(14) {
        0..=3 => Op::Mkdir {
            path: new,
            mode: mode(rng),
        },
        4 => Op::Rmdir {
            path: one_of(rng, &known.directories),
        },
        5 | 6 => Op::Unlink { path: old },
        7 | 8 => Op::Rename {
            from: old,
            to: new,
            flags: RenameFlags::empty(),
        },
        9 => Op::Rename {
            from: old,
            to: new,
            flags: RenameFlags::NOREPLACE,
        },
        10 => {
            let to = one_of(rng, &known.all);
            Op::Rename {
                from: old,
                to,
                flags: RenameFlags::EXCHANGE,
            }
        }
        11 => Op::Link {
            from: one_of(rng, &known.files),
            to: new,
        },
        12 => Op::Symlink {
            target: old,
            path: new,
        },
        _ => Op::Fifo { path: new },
    }
}

fn draw_on_attributes(rng: &mut Rng, known: &Known) -> Op {
    let path = one_of(rng, &known.all);
    let name = XATTRS[rng.below(3) as usize];
    match rng.below(9) {
        0 => Op::Chmod {
            path,
            mode: mode(rng),
        },
        1 => Op::Chown {
            path,
            uid: rng.below(3) as u32,
            gid: rng.below(3) as u32,
        },
        2..=4 => {
            let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
            let flags = flags[rng.below(3) as usize];
            Op::SetXattr {
                path,
                name,
                length: rng.below(600) as usize,
                flags,
            }
        }
        5 => Op::GetXattr { path, name },
        6 => Op::RemoveXattr { path, name },
        7 => Op::Readlink { path },
        _ => Op::List {
            path: one_of(rng, &known.directories),
        },
    }
}
