//! The arrows between the rooms: each crate may use only what the table allows.
//!
//! Invariant: pure rooms reach no runtime, file, socket, clock or randomness, not even through a
//! dependency of a dependency, so that the simulator owns all of these.

use crate::Report;
use crate::metadata::{Dep, Metadata, Package};
use std::collections::{BTreeMap, BTreeSet};

/// A room, and the rooms below it that it may use, from the bottom up.
const ARROWS: [(&str, &[&str]); 15] = [
    ("types", &[]),
    ("meta", &["types"]),
    ("replica", &["types"]),
    ("cluster", &["types"]),
    ("proto", &["types", "meta", "replica", "cluster"]),
    ("dirtylog", &["types"]),
    ("store", &["types", "meta", "replica", "dirtylog"]),
    ("net", &["types", "proto"]),
    ("etcd", &["types", "cluster"]),
    ("control", &["types", "cluster", "proto", "net", "etcd"]),
    ("client", &["types", "meta", "replica", "cluster", "proto"]),
    ("gateway", &["types", "meta", "client"]),
    (
        "union",
        &["types", "meta", "cluster", "proto", "net", "client"],
    ),
    (
        "node",
        &[
            "types", "meta", "replica", "cluster", "proto", "store", "net", "control", "client",
        ],
    ),
    (
        "perigee",
        &[
            "types", "meta", "replica", "cluster", "proto", "store", "net", "etcd", "control",
            "client", "gateway", "union", "node",
        ],
    ),
];

/// For developers only: may use anything; used by tests and by each other, never by the product.
const DEVELOPER: [&str; 6] = ["history", "sim", "bench", "testbed", "fuzz", "xtask"];

/// Decisions without effects.
const PURE: [&str; 6] = ["types", "meta", "replica", "cluster", "proto", "history"];

/// What a pure room may not reach.
const IMPURE: [&str; 21] = [
    "tokio",
    "mio",
    "socket2",
    "async-std",
    "smol",
    "polling",
    "libc",
    "rustix",
    "nix",
    "rand",
    "rand_core",
    "getrandom",
    "fastrand",
    "parking_lot",
    "crossbeam-channel",
    "rayon",
    "chrono",
    "time",
    "tempfile",
    "redb",
    "fuser",
];

/// Checks the workspace.
pub fn check(metadata: &Metadata) -> Report {
    let packages = metadata.by_id();
    let mut faults = Vec::new();
    let mut lines = vec!["room      uses".to_owned()];
    for (room, below) in rooms_in_order(metadata, &packages, &mut faults) {
        let uses = edges(metadata, &packages, room);
        lines.push(format!(
            "{room:9} {}",
            uses.iter()
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
                .join(" ")
        ));
        for (used, dep) in uses {
            faults.extend(arrow_fault(room, below, used, dep));
        }
        if PURE.contains(&room) {
            faults.extend(impure_faults(metadata, &packages, room));
        }
    }
    Report {
        text: lines.join("\n"),
        faults,
    }
}

/// The room of a workspace crate: its name without the prefix.
fn room_of(package: &Package) -> &str {
    package
        .name
        .strip_prefix("perigee-")
        .unwrap_or(&package.name)
}

fn rooms_in_order<'a>(
    metadata: &Metadata,
    packages: &BTreeMap<&str, &'a Package>,
    faults: &mut Vec<String>,
) -> Vec<(&'a str, Option<&'static [&'static str]>)> {
    let present: BTreeSet<&'a str> = metadata
        .workspace_members
        .iter()
        .filter_map(|id| packages.get(id.as_str()))
        .map(|p| room_of(p))
        .collect();
    let mut rooms = Vec::new();
    for (room, below) in ARROWS {
        if let Some(name) = present.get(room) {
            rooms.push((*name, Some(below)));
        }
    }
    for name in present {
        if DEVELOPER.contains(&name) {
            rooms.push((name, None));
        } else if !ARROWS.iter().any(|(room, _)| *room == name) {
            faults.push(format!(
                "crate `{name}` is in no row of the arrows: add it to crates/xtask/src/arrows.rs"
            ));
        }
    }
    rooms
}

/// The workspace crates that a room uses, in its code or in its tests.
fn edges<'a>(
    metadata: &'a Metadata,
    packages: &BTreeMap<&str, &'a Package>,
    room: &str,
) -> Vec<(&'a str, &'a Dep)> {
    metadata
        .resolve
        .nodes
        .iter()
        .filter(|node| metadata.workspace_members.contains(&node.id))
        .filter(|node| {
            packages
                .get(node.id.as_str())
                .is_some_and(|p| room_of(p) == room)
        })
        .flat_map(|node| &node.deps)
        .filter(|dep| metadata.workspace_members.contains(&dep.pkg))
        .filter_map(|dep| packages.get(dep.pkg.as_str()).map(|p| (room_of(p), dep)))
        .collect()
}

fn arrow_fault(room: &str, below: Option<&[&str]>, used: &str, dep: &Dep) -> Option<String> {
    let below = below?;
    let developer = DEVELOPER.contains(&used);
    match (developer, dep.in_code()) {
        (true, true) => Some(format!(
            "`{room}` uses `{used}`, which is for developers only"
        )),
        (true, false) => None,
        (false, _) if below.contains(&used) => None,
        (false, _) => Some(format!(
            "`{room}` uses `{used}`: that arrow points up or sideways"
        )),
    }
}

/// Banned crates that the room's own code reaches, each with the way to it.
fn impure_faults(
    metadata: &Metadata,
    packages: &BTreeMap<&str, &Package>,
    room: &str,
) -> Vec<String> {
    let nodes: BTreeMap<&str, &Vec<Dep>> = metadata
        .resolve
        .nodes
        .iter()
        .map(|n| (n.id.as_str(), &n.deps))
        .collect();
    let Some(start) = metadata.workspace_members.iter().find(|id| {
        packages
            .get(id.as_str())
            .is_some_and(|p| room_of(p) == room)
    }) else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    let mut seen = BTreeSet::from([start.as_str()]);
    let mut open = vec![(start.as_str(), room.to_owned())];
    while let Some((id, way)) = open.pop() {
        let Some(deps) = nodes.get(id) else { continue };
        for dep in deps.iter().filter(|dep| dep.in_code()) {
            let Some(package) = packages.get(dep.pkg.as_str()) else {
                continue;
            };
            if !seen.insert(package.id.as_str()) {
                continue;
            }
            let way = format!("{way} > {}", package.name);
            if IMPURE.contains(&package.name.as_str()) {
                faults.push(format!(
                    "pure room `{room}` reaches `{}`: {way}",
                    package.name
                ));
            } else {
                open.push((package.id.as_str(), way));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{DepKind, Node, Resolve};

    /// A graph of crates by name; `a ~> b` in the third place is for tests only.
    fn graph(own: &[&str], foreign: &[&str], edges: &[(&str, &str, Option<&str>)]) -> Metadata {
        let package = |name: &&str| Package {
            id: (*name).to_owned(),
            name: (*name).to_owned(),
            version: "1.0.0".to_owned(),
            license: None,
        };
        let node = |name: &&str| Node {
            id: (*name).to_owned(),
            deps: edges
                .iter()
                .filter(|(from, ..)| from == name)
                .map(|(_, to, kind)| Dep {
                    pkg: (*to).to_owned(),
                    dep_kinds: vec![DepKind {
                        kind: kind.map(str::to_owned),
                    }],
                })
                .collect(),
        };
        let all: Vec<&str> = own.iter().chain(foreign).copied().collect();
        Metadata {
            workspace_root: std::path::PathBuf::new(),
            packages: all.iter().map(package).collect(),
            workspace_members: own.iter().map(|name| (*name).to_owned()).collect(),
            resolve: Resolve {
                nodes: all.iter().map(node).collect(),
            },
        }
    }

    #[test]
    fn an_arrow_down_is_fine_and_an_arrow_up_is_named() {
        let own = ["perigee-types", "perigee-meta", "perigee-node"];
        let good = graph(
            &own,
            &[],
            &[
                ("perigee-meta", "perigee-types", None),
                ("perigee-node", "perigee-meta", None),
            ],
        );
        assert_eq!(check(&good).faults, Vec::<String>::new());
        let bad = graph(&own, &[], &[("perigee-meta", "perigee-node", None)]);
        assert_eq!(
            check(&bad).faults,
            ["`meta` uses `node`: that arrow points up or sideways"]
        );
    }

    #[test]
    fn the_product_may_use_a_developer_crate_in_tests_only() {
        let own = ["perigee", "perigee-testbed"];
        assert!(
            check(&graph(
                &own,
                &[],
                &[("perigee", "perigee-testbed", Some("dev"))]
            ))
            .faults
            .is_empty()
        );
        assert!(
            !check(&graph(&own, &[], &[("perigee", "perigee-testbed", None)]))
                .faults
                .is_empty()
        );
        assert!(
            check(&graph(&own, &[], &[("perigee-testbed", "perigee", None)]))
                .faults
                .is_empty()
        );
    }

    #[test]
    fn a_pure_room_may_not_reach_a_runtime_by_any_way() {
        let edges = [("perigee-meta", "middle", None), ("middle", "tokio", None)];
        let report = check(&graph(&["perigee-meta"], &["middle", "tokio"], &edges));
        assert_eq!(
            report.faults,
            ["pure room `meta` reaches `tokio`: meta > middle > tokio"]
        );
        let in_tests = [("perigee-meta", "tokio", Some("dev"))];
        assert!(
            check(&graph(&["perigee-meta"], &["tokio"], &in_tests))
                .faults
                .is_empty()
        );
    }

    #[test]
    fn a_crate_that_the_table_does_not_know_is_a_fault() {
        assert_eq!(check(&graph(&["perigee-utils"], &[], &[])).faults.len(), 1);
    }
}
