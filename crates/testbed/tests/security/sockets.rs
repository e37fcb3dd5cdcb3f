//! The sockets of processes, as the kernel lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// What strangers could send to.
#[derive(Debug, Default)]
pub struct Open {
    /// TCP sockets that listen.
    pub tcp: Vec<SocketAddr>,
    /// UDP and raw sockets, bound or not.
    pub datagram: Vec<String>,
    /// Unix sockets that listen.
    pub unix: Vec<PathBuf>,
}

/// The state of a TCP socket that listens, in the kernel's numbers.
const LISTENS: &str = "0A";
/// The flag of a unix socket that listens.
const ACCEPTS: u32 = 0x10000;

/// What these processes have open.
pub fn of(pids: &[i32]) -> Open {
    let own: BTreeSet<String> = pids.iter().flat_map(|pid| inodes(*pid)).collect();
    assert!(!own.is_empty(), "no socket of {pids:?} was found");
    let mut open = Open::default();
    for table in ["tcp", "tcp6"] {
        for (fields, inode) in rows(table, 9) {
            if fields[3] == LISTENS && own.contains(&inode) {
                open.tcp.push(address(&fields[1]));
            }
        }
    }
    for table in ["udp", "udp6", "udplite", "udplite6", "raw", "raw6"] {
        let found = rows(table, 9).filter(|(_, inode)| own.contains(inode));
        let shown = found.map(|(fields, _)| format!("{table} {}", fields[1]));
        open.datagram.extend(shown);
    }
    for (fields, inode) in rows("unix", 6) {
        let flags = u32::from_str_radix(&fields[3], 16).unwrap();
        if flags & ACCEPTS != 0 && own.contains(&inode) {
            // an abstract name begins with @, one without a name has none
            let name = fields.get(7).cloned().unwrap_or_default();
            open.unix.push(name.into());
        }
    }
    open
}

/// Inodes of the sockets that a process holds.
fn inodes(pid: i32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let links = entries.into_iter().flatten().flatten();
    links
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| {
            let name = link.to_string_lossy().into_owned();
            Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect()
}

/// The rows of a table of the kernel, each with its inode, which is the field at `at`.
fn rows(table: &str, at: usize) -> impl Iterator<Item = (Vec<String>, String)> {
    let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
    let rows: Vec<_> = text
        .lines()
        .skip(1)
        .map(|line| {
            line.split_ascii_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter_map(|fields| {
            let inode = fields.get(at)?.clone();
            Some((fields, inode))
        })
        .collect();
    rows.into_iter()
}

/// `0100007F:1CE8`: words of the machine's order in hexadecimal digits.
fn address(text: &str) -> SocketAddr {
    let (ip, port) = text.split_once(':').unwrap();
    let words: Vec<[u8; 4]> = (0..ip.len() / 8)
        .map(|word| u32::from_str_radix(&ip[word * 8..][..8], 16).unwrap())
        .map(u32::to_ne_bytes)
        .collect();
    let ip = match words[..] {
        [word] => IpAddr::from(Ipv4Addr::from(word)),
        _ => {
            let bytes: Vec<u8> = words.concat();
            IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()))
        }
    };
    SocketAddr::new(ip, u16::from_str_radix(port, 16).unwrap())
}

/// Resident memory of each process, in bytes.
pub fn resident(pids: &[i32]) -> BTreeMap<i32, u64> {
    let of = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some((pid, kib << 10))
    };
    pids.iter().filter_map(|pid| of(*pid)).collect()
}
