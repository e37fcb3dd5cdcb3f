//! The part of `cargo metadata` that the checks need.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// The resolved crate graph of this machine's platform.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// Every package, of the workspace and of others.
    pub packages: Vec<Package>,
    /// Ids of the workspace's own.
    pub workspace_members: BTreeSet<String>,
    /// Which package stands on which.
    pub resolve: Resolve,
    /// The directory of the workspace.
    pub workspace_root: PathBuf,
}

/// One package.
#[derive(Debug, Clone, Deserialize)]
pub struct Package {
    /// Unique.
    pub id: String,
    /// As in Cargo.toml.
    pub name: String,
    /// As in Cargo.toml.
    pub version: String,
    /// SPDX expression.
    pub license: Option<String>,
}

/// The resolved edges.
#[derive(Debug, Deserialize)]
pub struct Resolve {
    /// One per package.
    pub nodes: Vec<Node>,
}

/// The edges out of one package.
#[derive(Debug, Deserialize)]
pub struct Node {
    /// The package.
    pub id: String,
    /// What it stands on.
    pub deps: Vec<Dep>,
}

/// One edge.
#[derive(Debug, Deserialize)]
pub struct Dep {
    /// The package that is used.
    pub pkg: String,
    /// As what: several entries when both for the code and for its tests.
    pub dep_kinds: Vec<DepKind>,
}

/// How a package is used.
#[derive(Debug, Deserialize)]
pub struct DepKind {
    /// None for the code itself, `dev` for tests, `build` for build scripts.
    pub kind: Option<String>,
}

impl Dep {
    /// Whether the code itself (not only its tests or build script) uses it.
    pub fn in_code(&self) -> bool {
        self.dep_kinds.iter().any(|k| k.kind.is_none())
    }
}

impl Metadata {
    /// Asks cargo, without the network.
    pub fn load() -> Result<Self, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let host = host_triple(&cargo)?;
        let output = Command::new(cargo)
            .args([
                "metadata",
                "--offline",
                "--format-version=1",
                "--filter-platform",
                &host,
            ])
            .output()
            .map_err(|e| format!("cargo does not start: {e}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
    }

    /// Packages by id.
    pub fn by_id(&self) -> BTreeMap<&str, &Package> {
        self.packages.iter().map(|p| (p.id.as_str(), p)).collect()
    }
}

fn host_triple(cargo: &std::ffi::OsStr) -> Result<String, String> {
    let output = Command::new(cargo)
        .arg("-vV")
        .output()
        .map_err(|e| format!("cargo does not start: {e}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
        .ok_or_else(|| "`cargo -vV` names no host".to_owned())
}
