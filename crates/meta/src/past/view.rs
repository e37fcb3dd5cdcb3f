//! A container's state as of a checkpoint.

use super::record::decode_kept;
use crate::key::{self, Key};
use crate::view::{Missing, View};
use bytes::Bytes;
use perigee_types::{CheckpointId, ContainerId};
use std::collections::BTreeMap;

/// Rows that one scan below takes.
const PAGE: usize = 256;

/// What operations that change nothing see of a container as of a checkpoint. Of other containers it has nothing.
pub struct PastView<'a> {
    container: ContainerId,
    at: CheckpointId,
    now: &'a mut dyn View,
    /// A kept row that cannot be read; what came after it counts for nothing.
    pub refused: Option<crate::Refusal>,
}

impl<'a> PastView<'a> {
    /// Over the state of now.
    pub fn new(container: ContainerId, at: CheckpointId, now: &'a mut dyn View) -> Self {
        Self {
            container,
            at,
            now,
            refused: None,
        }
    }

    fn check(&self, container: ContainerId) -> Result<(), Missing> {
        if container == self.container {
            Ok(())
        } else {
            Err(Missing)
        }
    }

    fn was(&mut self, key: &[u8], value: &[u8]) -> Option<Bytes> {
        match decode_kept(self.container, key, value) {
            Ok(was) => was,
            Err(refusal) => {
                self.refused.get_or_insert(refusal);
                None
            }
        }
    }

    /// What the kept rows of `from..to` say: of each key the first from the checkpoint on, and up to which key that is all.
    fn kept(&mut self, from: &[u8], to: &[u8]) -> Result<Page<Option<Bytes>>, Missing> {
        let (mut first, end) = key::kept_of_range(from, to);
        let mut page = Page::default();
        loop {
            let rows = self.now.scan(self.container, &first, &end, PAGE)?;
            let full = rows.len() == PAGE;
            let last = rows.last().map(|(key, _)| key.to_vec());
            for (row, value) in rows {
                let Some(Key::Kept(key, at)) = Key::decode(&row) else {
                    continue;
                };
                let key = key.encode();
                let inside = from <= key.as_slice() && key.as_slice() < to;
                if at < self.at || !inside || page.rows.contains_key(&key) {
                    continue;
                }
                let was = self.was(&row, &value);
                page.rows.insert(key, was);
            }
            match last {
                Some(mut last) if full => {
                    // The row of a later checkpoint may follow: the last key is known to be all when another follows it.
                    if page.rows.len() > 1 {
                        page.through = page.rows.keys().next_back().cloned();
                        return Ok(page);
                    }
                    last.push(0);
                    first = last;
                }
                _ => return Ok(page),
            }
        }
    }
}

/// Rows of a range, all of them up to `through`; without one, up to its end.
#[derive(Default)]
struct Page<T> {
    rows: BTreeMap<Vec<u8>, T>,
    through: Option<Vec<u8>>,
}

impl View for PastView<'_> {
    fn get(&mut self, container: ContainerId, key: &[u8]) -> Result<Option<Bytes>, Missing> {
        self.check(container)?;
        let (from, to) = key::kept_since(key, self.at);
        let rows = self.now.scan(container, &from, &to, 1)?;
        match rows.first() {
            Some((row, value)) => Ok(self.was(row, value)),
            None => self.now.get(container, key),
        }
    }

    fn scan(
        &mut self,
        container: ContainerId,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Missing> {
        self.check(container)?;
        let mut found: Vec<(Bytes, Bytes)> = Vec::new();
        let mut first = from.to_vec();
        while found.len() < limit && first.as_slice() < to {
            let kept = self.kept(&first, to)?;
            let rows = self.now.scan(container, &first, to, PAGE)?;
            let now = Page {
                through: (rows.len() == PAGE)
                    .then(|| rows.last().map(|(key, _)| key.to_vec()))
                    .flatten(),
                rows: rows
                    .into_iter()
                    .map(|(key, value)| (key.to_vec(), value))
                    .collect(),
            };
            let through = match (&kept.through, &now.through) {
                (Some(a), Some(b)) => Some(a.min(b).clone()),
                (a, b) => a.clone().or_else(|| b.clone()),
            };
            let mut both: BTreeMap<Vec<u8>, Option<Bytes>> = now
                .rows
                .into_iter()
                .map(|(key, value)| (key, Some(value)))
                .collect();
            both.extend(kept.rows);
            let there = both
                .into_iter()
                .filter(|(key, _)| through.as_ref().is_none_or(|through| key <= through));
            found.extend(there.filter_map(|(key, value)| Some((key.into(), value?))));
            match through {
                Some(mut through) => {
                    through.push(0);
                    first = through;
                }
                None => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }
}
