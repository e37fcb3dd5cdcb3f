//! The licence of every dependency: permissive, or weak copyleft by file.
//!
//! The list is that of deny.toml; a test compares the two.

use crate::metadata::Metadata;
use crate::{Report, spdx};
use std::collections::BTreeMap;

/// Licences that the binary may carry. Others are fine only as the unused side of an `OR`.
const ALLOWED: [&str; 9] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MPL-2.0",
    "Zlib",
    "Unicode-3.0",
];

/// Checks every package of the graph.
pub fn check(metadata: &Metadata) -> Report {
    let allowed = |licence: &str| ALLOWED.contains(&licence);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let named = format!("{} {}", package.name, package.version);
        let Some(licence) = package.license.as_deref() else {
            faults.push(format!("{named} states no licence"));
            continue;
        };
        match spdx::satisfied(licence, &allowed) {
            Ok(true) => *counts.entry(licence).or_default() += 1,
            Ok(false) => faults.push(format!(
                "{named} is under `{licence}`, which deny.toml does not allow"
            )),
            Err(why) => faults.push(format!("{named}: its licence cannot be read: {why}")),
        }
    }
    let lines = counts
        .iter()
        .map(|(licence, count)| format!("{count:5}  {licence}"));
    let text = std::iter::once("packages by licence:".to_owned())
        .chain(lines)
        .collect::<Vec<_>>()
        .join("\n");
    Report { text, faults }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Package, Resolve};

    fn with_licence(licence: Option<&str>) -> Metadata {
        let package = Package {
            id: "a".to_owned(),
            name: "a".to_owned(),
            version: "1.0.0".to_owned(),
            license: licence.map(str::to_owned),
        };
        Metadata {
            workspace_root: std::path::PathBuf::new(),
            packages: vec![package],
            workspace_members: Default::default(),
            resolve: Resolve { nodes: vec![] },
        }
    }

    #[test]
    fn public_domain_alone_is_refused_but_fine_as_an_alternative() {
        assert!(!check(&with_licence(Some("Unlicense"))).faults.is_empty());
        assert!(
            check(&with_licence(Some("Unlicense OR MIT")))
                .faults
                .is_empty()
        );
    }

    #[test]
    fn a_package_without_a_licence_is_refused() {
        assert_eq!(
            check(&with_licence(None)).faults,
            ["a 1.0.0 states no licence"]
        );
    }

    #[test]
    fn the_list_is_that_of_deny_toml() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deny.toml");
        let text = std::fs::read_to_string(path).unwrap();
        let list = text
            .split("allow = [")
            .nth(1)
            .and_then(|rest| rest.split(']').next())
            .unwrap();
        let listed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(listed, ALLOWED);
    }
}
