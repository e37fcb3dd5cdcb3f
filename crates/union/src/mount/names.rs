//! Looking for names: here first, then at the neighbours, then everywhere; what is looked for at once leaves together.

use super::Mount;
use super::knowledge::{Listing, Seen};
use crate::branch::PAGE_LEN_MAX;
use crate::member::{Question, by_branch, whole_listing};
use crate::path::RelPath;
use crate::wire::{BranchId, Found, Query, Stat};
use futures_util::future::join_all;
use perigee_client::fs::Kind;
use perigee_types::{Errno, NodeId};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How many names of a directory are asked for because some of them were.
const LISTED_AHEAD: u32 = 2_048;
/// Names in one question, at most.
const NAMES_MAX: usize = 1_024;

/// How much has to be known of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// What programs see of it.
    First,
    /// Every branch that has something.
    All,
}

/// Lookups in one directory.
#[derive(Debug, Default)]
pub struct Batch {
    waiting: Vec<Asked>,
}

#[derive(Debug)]
struct Asked {
    name: Vec<u8>,
    need: Need,
    told: oneshot::Sender<Result<(Seen, Instant), Errno>>,
}

/// What all branches that were asked have.
struct Gathered {
    found: BTreeMap<BranchId, Found>,
    /// Nobody who might have something is away.
    whole: bool,
}

/// Batches under way, by directory.
pub type Batches = HashMap<RelPath, Batch>;

impl Mount {
    /// What there is under a name, and for how long the kernel may keep that.
    ///
    /// # Errors
    /// EIO: a host that may have it is away; what the nearest one says.
    pub async fn find(
        &self,
        directory: &RelPath,
        name: &[u8],
        need: Need,
    ) -> Result<(Seen, Duration), Errno> {
        let now = Instant::now();
        let known = self.knowledge.lock().name(directory, name, now);
        if let Some((seen, asked)) = known
            && (seen.complete || (need == Need::First && seen.answers()))
        {
            let left = self.knowledge.lock().left(asked, now).unwrap_or_default();
            return Ok((seen, left));
        }
        if need == Need::First
            && let Some(seen) = self.look_here(directory, name)?
        {
            self.knowledge
                .lock()
                .learn(directory, name, seen.clone(), now);
            return Ok((seen, self.fresh));
        }
        let (seen, asked) = self.ask_in_batch(directory, name, need).await?;
        let left = self.knowledge.lock().left(asked, Instant::now());
        Ok((seen, left.unwrap_or_default()))
    }

    /// A file, or a directory, of this host's branches hides what is farther away.
    fn look_here(&self, directory: &RelPath, name: &[u8]) -> Result<Option<Seen>, Errno> {
        if self.union.branches.is_empty() {
            return Ok(None);
        }
        let question = Question {
            directory: directory.clone(),
            query: Query::Names(vec![name.to_vec()]),
            branches: Vec::new(),
        };
        let found = by_branch(self.union.look_here(&question));
        let others = self.union.roster().others().next().is_some();
        let copies = self.copies(&found, 0, Need::First)?;
        Ok((!copies.is_empty()).then_some(Seen {
            copies,
            complete: !others,
        }))
    }

    /// The copies of the name with a number in the question, in the order of nearness.
    ///
    /// Errors: a branch cannot be looked at that might hide what is farther away, or, where all are needed, any.
    fn copies(
        &self,
        found: &BTreeMap<BranchId, Found>,
        number: usize,
        need: Need,
    ) -> Result<Vec<(BranchId, Stat)>, Errno> {
        let mut copies = Vec::new();
        for branch in self.union.roster().order() {
            let seen = match found.get(branch) {
                Some(Found::Names(names)) => names.get(number).copied().unwrap_or(Ok(None)),
                Some(Found::Failed(errno)) => Err(*errno),
                _ => Ok(None),
            };
            match seen {
                Ok(Some(stat)) => copies.push((*branch, stat)),
                Ok(None) => {}
                Err(errno) if copies.is_empty() || need == Need::All => return Err(errno),
                Err(_) => {}
            }
        }
        Ok(copies)
    }

    async fn ask_in_batch(
        &self,
        directory: &RelPath,
        name: &[u8],
        need: Need,
    ) -> Result<(Seen, Instant), Errno> {
        let (told, heard) = oneshot::channel();
        let asked = Asked {
            name: name.to_vec(),
            need,
            told,
        };
        let first = {
            let mut batches = self.batches.lock();
            let first = !batches.contains_key(directory);
            batches
                .entry(directory.clone())
                .or_default()
                .waiting
                .push(asked);
            first
        };
        if first {
            let me = self.me.upgrade().ok_or(Errno::EIO)?;
            let directory = directory.clone();
            self.union
                .runtime
                .spawn(async move { me.run_batches(directory).await });
        }
        heard.await.map_err(|_| Errno::EIO)?
    }

    async fn run_batches(&self, directory: RelPath) {
        loop {
            let waiting = {
                let mut batches = self.batches.lock();
                let Some(batch) = batches.get_mut(&directory) else {
                    return;
                };
                let count = batch.waiting.len().min(NAMES_MAX);
                let waiting: Vec<Asked> = batch.waiting.drain(..count).collect();
                if waiting.is_empty() {
                    batches.remove(&directory);
                    return;
                }
                waiting
            };
            self.run_batch(&directory, waiting).await;
        }
    }

    async fn run_batch(&self, directory: &RelPath, waiting: Vec<Asked>) {
        let asked = Instant::now();
        let wants = self
            .knowledge
            .lock()
            .wants_listing(directory, waiting.len() as u32, asked);
        if wants && let Some((listing, asked)) = self.list_ahead(directory, asked).await {
            for one in waiting {
                let copies = listing.get(&one.name).cloned().unwrap_or_default();
                // What this mount has changed meanwhile it knows better.
                let known = self
                    .knowledge
                    .lock()
                    .name(directory, &one.name, Instant::now());
                let known = known.filter(|(seen, at)| *at > asked && seen.complete);
                let listed = Seen {
                    copies,
                    complete: true,
                };
                _ = one.told.send(Ok(known.unwrap_or((listed, asked))));
            }
            return;
        }
        let names: Vec<Vec<u8>> = waiting.iter().map(|one| one.name.clone()).collect();
        let (branches, since) = self.homes_wanted(directory, asked);
        let question = Question {
            directory: directory.clone(),
            query: Query::Names(names),
            branches,
        };
        let first_will_do = waiting.iter().all(|one| one.need == Need::First);
        if first_will_do && let Some(all) = self.ask_neighbours(&question).await {
            for (number, one) in waiting.into_iter().enumerate() {
                let copies = self.copies(&all.found, number, one.need);
                self.tell(directory, one, copies, false, since);
            }
            return;
        }
        let all = self.gather(&question).await;
        if all.whole && question.branches.is_empty() {
            let homes = self.homes_of(&all.found);
            self.knowledge.lock().learn_homes(directory, homes, asked);
        }
        for (number, one) in waiting.into_iter().enumerate() {
            let copies = self.copies(&all.found, number, one.need);
            self.tell(directory, one, copies, all.whole, since);
        }
    }

    fn tell(
        &self,
        directory: &RelPath,
        one: Asked,
        copies: Result<Vec<(BranchId, Stat)>, Errno>,
        complete: bool,
        asked: Instant,
    ) {
        let seen = copies.and_then(|copies| {
            let seen = Seen { copies, complete };
            let enough = complete || (one.need == Need::First && seen.answers());
            if enough { Ok(seen) } else { Err(Errno::EIO) }
        });
        if let Ok(seen) = &seen {
            self.knowledge
                .lock()
                .learn(directory, &one.name, seen.clone(), asked);
        }
        // Whoever asked may have given up.
        _ = one.told.send(seen.map(|seen| (seen, asked)));
    }

    /// The branches that may have a directory (empty: any), and since when an answer of theirs is good: those that have got it
    /// since then are not asked.
    fn homes_wanted(&self, directory: &RelPath, now: Instant) -> (Vec<BranchId>, Instant) {
        let known = self.knowledge.lock().homes(directory, now);
        match known {
            Some((homes, asked)) => (homes, asked.min(now)),
            None => (Vec::new(), now),
        }
    }

    fn homes_of(&self, found: &BTreeMap<BranchId, Found>) -> Vec<BranchId> {
        let order = self.union.roster();
        let has = |branch: &&BranchId| {
            found
                .get(branch)
                .is_some_and(|found| !matches!(found, Found::NoDirectory))
        };
        order.order().iter().filter(has).copied().collect()
    }

    /// Asks those at this host's site alone; `None`: not all names are there, or there is nobody else to spare.
    async fn ask_neighbours(&self, question: &Question) -> Option<Gathered> {
        let roster = self.union.roster();
        let targets = self.holders(&question.branches);
        let (near, far): (Vec<NodeId>, Vec<NodeId>) =
            targets.into_iter().partition(|id| roster.is_neighbour(*id));
        if near.is_empty() || far.is_empty() {
            return None;
        }
        let answers = self.union.search(question, &near).await;
        let mut found = by_branch(answers.found);
        found.extend(self.union.look_here(question));
        let Query::Names(names) = &question.query else {
            return None;
        };
        // A neighbour that is away might hide what is farther away.
        let whole = answers.away.is_empty() || self.union.settings.partial;
        let all = (0..names.len()).all(|number| {
            self.copies(&found, number, Need::First)
                .is_ok_and(|copies| !copies.is_empty())
        });
        (whole && all).then_some(Gathered {
            found,
            whole: false,
        })
    }

    fn holders(&self, branches: &[BranchId]) -> Vec<NodeId> {
        let roster = self.union.roster();
        if branches.is_empty() {
            return roster.others().collect();
        }
        let holders = branches.iter().filter_map(|branch| roster.holder(*branch));
        let mut holders: Vec<NodeId> = holders.filter(|id| *id != self.union.me).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    async fn gather(&self, question: &Question) -> Gathered {
        let targets = self.holders(&question.branches);
        let answers = self.union.search(question, &targets).await;
        let mut found = by_branch(answers.found);
        found.extend(tokio::task::block_in_place(|| {
            self.union.look_here(question)
        }));
        Gathered {
            found,
            whole: answers.away.is_empty() || self.union.settings.partial,
        }
    }

    /// Asks for all names of a directory at once; `None`: it has too many, or not all could be asked.
    async fn list_ahead(&self, directory: &RelPath, asked: Instant) -> Option<(Listing, Instant)> {
        let (branches, since) = self.homes_wanted(directory, asked);
        let question = Question {
            directory: directory.clone(),
            query: Query::List {
                after: None,
                limit: LISTED_AHEAD,
            },
            branches,
        };
        let all = self.gather(&question).await;
        let cut = |found: &Found| matches!(found, Found::List { more: true, .. });
        let failed = |found: &Found| matches!(found, Found::Failed(_));
        if all.found.values().any(cut) {
            self.knowledge.lock().is_large(directory);
            return None;
        }
        if !all.whole || all.found.values().any(failed) {
            return None;
        }
        Some((self.learn_listing(&question, &all, (asked, since)), since))
    }

    fn learn_listing(
        &self,
        question: &Question,
        all: &Gathered,
        (asked, since): (Instant, Instant),
    ) -> Listing {
        let directory = &question.directory;
        let listing = self.merged(&all.found);
        let homes = self.homes_of(&all.found);
        let mut knowledge = self.knowledge.lock();
        knowledge.learn_listing(directory, listing.clone(), since);
        if question.branches.is_empty() {
            knowledge.learn_homes(directory, homes, asked);
        }
        listing
    }

    fn merged(&self, found: &BTreeMap<BranchId, Found>) -> Listing {
        let mut listing = Listing::new();
        for branch in self.union.roster().order() {
            let Some(Found::List { entries, .. }) = found.get(branch) else {
                continue;
            };
            for (name, stat) in entries {
                listing
                    .entry(name.clone())
                    .or_default()
                    .push((*branch, *stat));
            }
        }
        listing
    }

    /// All names of a directory.
    ///
    /// # Errors
    /// ENOENT: no branch has it; EIO: a host that may have a part of it is away; what a branch says.
    pub async fn list(&self, directory: &RelPath) -> Result<(Listing, Duration), Errno> {
        let now = Instant::now();
        let known = self.knowledge.lock().listing(directory, now);
        let (branches, since) = self.homes_wanted(directory, now);
        if let Some((listing, asked)) = known {
            let left = self.knowledge.lock().left(asked, now).unwrap_or_default();
            return Ok((listing, left));
        }
        let question = Question {
            directory: directory.clone(),
            query: Query::List {
                after: None,
                limit: PAGE_LEN_MAX,
            },
            branches,
        };
        let mut all = self.gather(&question).await;
        if !all.whole {
            return Err(Errno::EIO);
        }
        let found = std::mem::take(&mut all.found);
        let whole = found.into_iter().map(|(branch, found)| async move {
            (
                branch,
                whole_listing(&self.union, directory, branch, found).await,
            )
        });
        all.found = join_all(whole).await.into_iter().collect();
        for found in all.found.values() {
            if let Found::Failed(errno) = found {
                return Err(*errno);
            }
        }
        if all.found.values().all(|found| *found == Found::NoDirectory) {
            return Err(Errno::ENOENT);
        }
        let listing = self.learn_listing(&question, &all, (now, since));
        // With what this mount has changed meanwhile; where it took longer than it may be kept, it is good for this once.
        let later = Instant::now();
        let knowledge = self.knowledge.lock();
        Ok(match knowledge.listing(directory, later) {
            Some((listing, asked)) => (listing, knowledge.left(asked, later).unwrap_or_default()),
            None => (listing, Duration::ZERO),
        })
    }

    /// The branches that have a directory, the nearest first.
    ///
    /// # Errors
    /// EIO: a host that may have it is away. ENOENT: none has it.
    pub async fn homes(&self, directory: &RelPath) -> Result<Vec<BranchId>, Errno> {
        let known = self.knowledge.lock().homes(directory, Instant::now());
        let homes = match (known, directory.split()) {
            (Some((homes, _)), _) => homes,
            (None, None) => self.union.roster().order().to_vec(),
            (None, Some((above, name))) => {
                let (seen, _) = self.find(&above, name, Need::All).await?;
                seen.directories().collect()
            }
        };
        match homes.is_empty() {
            true => Err(Errno::ENOENT),
            false => Ok(homes),
        }
    }

    /// Whether a directory has no names on any of these branches.
    ///
    /// # Errors
    /// EIO: one of them does not answer.
    pub async fn is_empty(
        &self,
        directory: &RelPath,
        branches: &[BranchId],
    ) -> Result<bool, Errno> {
        let question = Question {
            directory: directory.clone(),
            query: Query::List {
                after: None,
                limit: 1,
            },
            branches: branches.to_vec(),
        };
        let all = self.gather(&question).await;
        let answered = branches.iter().all(|branch| all.found.contains_key(branch));
        if !all.whole || !answered {
            return Err(Errno::EIO);
        }
        for found in all.found.values() {
            match found {
                Found::List { entries, .. } if !entries.is_empty() => return Ok(false),
                Found::Failed(errno) => return Err(*errno),
                _ => {}
            }
        }
        Ok(true)
    }
}

/// Whether a name is a directory's.
#[must_use]
pub fn is_directory(seen: &Seen) -> bool {
    seen.first()
        .is_some_and(|(_, stat)| stat.kind == Kind::Directory)
}
