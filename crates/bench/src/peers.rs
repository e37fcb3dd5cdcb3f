//! What peers reach: `bench/peers.json`.

use crate::{BenchError, Row};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The table.
#[derive(Debug, Clone, Deserialize)]
pub struct Peers {
    /// Where the figures come from.
    pub origin: String,
    /// Those that keep one copy of each byte.
    one_copy: Vec<String>,
    rows: BTreeMap<String, Measured>,
}

#[derive(Debug, Clone, Deserialize)]
struct Measured {
    peers: BTreeMap<String, Peer>,
}

#[derive(Debug, Clone, Deserialize)]
struct Peer {
    ratio: f64,
}

/// The best peer of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Best<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its speed over that of the local file system beside it.
    pub ratio: f64,
}

impl Peers {
    /// Reads the table.
    ///
    /// Errors: `Peers`, also when a row is missing that peers have figures of.
    pub fn load(path: &Path) -> Result<Self, BenchError> {
        let broken = |why: String| BenchError::Peers {
            path: path.to_owned(),
            why,
        };
        let text = std::fs::read_to_string(path).map_err(|error| broken(error.to_string()))?;
        let table: Self = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        let mut published = Row::ALL.iter().filter(|row| row.group().is_published());
        let missing = published.find(|row| table.best(**row).is_none());
        match missing {
            Some(row) => Err(broken(format!("no peer in row `{}`", row.key()))),
            None => Ok(table),
        }
    }

    /// The peer with the highest ratio: the one to beat.
    #[must_use]
    pub fn best(&self, row: Row) -> Option<Best<'_>> {
        self.best_of(row, |_| true)
    }

    /// The best of those that lose nothing with a disk, where there is one.
    #[must_use]
    pub fn best_redundant(&self, row: Row) -> Option<Best<'_>> {
        self.best_of(row, |peer| !self.one_copy.iter().any(|one| one == peer))
    }

    fn best_of(&self, row: Row, counts: impl Fn(&str) -> bool) -> Option<Best<'_>> {
        let peers = &self.rows.get(row.key())?.peers;
        let (name, peer) = peers
            .iter()
            .filter(|(name, _)| counts(name))
            .max_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio))?;
        Some(Best {
            name,
            ratio: peer.ratio,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_table_has_a_goal_for_every_row() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers.json");
        let peers = Peers::load(&path).unwrap();
        assert!(peers.origin.contains("measured on a machine of this kind"));
        let mut published = Row::ALL.iter().filter(|row| row.group().is_published());
        assert!(published.all(|row| peers.best(*row).unwrap().ratio > 0.0));
        let unlink = peers.best(Row::Unlink).unwrap();
        assert!(unlink.name.starts_with("MooseFS") && unlink.ratio > 1.0);
        let all = peers.best(Row::SeqWrite).unwrap();
        let redundant = peers.best_redundant(Row::SeqWrite).unwrap();
        assert!(all.name.starts_with("JuiceFS") && redundant.name.starts_with("GlusterFS 2+1"));
        assert_eq!(peers.best_redundant(Row::SeqWriteOneCopy), None);
    }
}
