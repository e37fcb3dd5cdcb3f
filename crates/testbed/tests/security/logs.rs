//! What the processes of a cluster log.

use perigee_testbed::{Cluster, wait};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A line is in its log within this.
const LOGGED: Duration = Duration::from_secs(20);

/// Every file of this name below a folder.
pub fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) if entry.file_name() == name => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// The lines of the audit with all of `words`, of every process of the cluster.
pub fn lines(cluster: &Cluster, words: &[&str]) -> Vec<String> {
    let logs = files(&cluster.dir(), "daemon.log");
    let text: Vec<String> = logs
        .iter()
        .map(|log| fs::read_to_string(log).unwrap())
        .collect();
    let lines = text.iter().flat_map(|text| text.lines());
    lines
        .filter(|line| line.contains(" audit: ") && words.iter().all(|word| line.contains(word)))
        .map(str::to_owned)
        .collect()
}

/// The one line of the audit with all of `words`, once it is there.
pub fn one_line(cluster: &Cluster, words: &[&str]) -> String {
    let what = format!("one line has {words:?}");
    let found = wait::until(&what, LOGGED, || {
        let found = lines(cluster, words);
        Ok((!found.is_empty()).then_some(found))
    });
    let found = found.unwrap();
    assert_eq!(found.len(), 1, "{words:?}: {found:?}");
    found[0].clone()
}
