//! Bytes: in place at the owner, fetched by the others, synced by all.

use super::{Arrived, Asking, FetchAnswer, Packet, SyncJob, SyncWait};
use crate::disk::{DiskOp, ObjectMap};
use crate::law;
use crate::model::{
    ALL_BLOCKS, ALL_FILES, Record, blocks_in, file_of, inode, is_kept_file, range_of,
};
use crate::oracle::Mark;
use crate::world::{Event, World, host_of};
use perigee_replica::{
    Chain, FetchId, Fetched, Holds, Input, Nobody, NotGiven, Origin, Plant, Role,
};
use perigee_types::{ByteRange, DataCommand, InodeId, Seq, Version};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes under way for one node.
const FETCHES_MAX: usize = 4;

/// The last record of a node's log that changes a file and is not known to be committed; the first of all records if none is.
fn newest(chain: &Chain, inode: InodeId) -> Seq {
    let changes = |command: DataCommand| command.inode() == inode;
    let uncommitted = chain.entries(chain.committed().next(), chain.last().seq);
    let of_it = uncommitted.filter(|entry| Record::decode(&entry.payload).commands().any(changes));
    of_it
        .map(|entry| entry.version.seq)
        .max()
        .unwrap_or(Seq::ZERO)
}

impl World {
    /// What a reader at this node sees of a block.
    pub(crate) fn content(&self, node: usize, block: usize) -> u64 {
        self.nodes[node].disk.cache[block]
    }

    /// The same, if its checksum fits.
    pub(crate) fn verified(&self, node: usize, block: usize) -> Option<u64> {
        let fits = self.nodes[node].disk.fits(block);
        (fits || self.planted(Plant::ChecksumIgnored)).then(|| self.content(node, block))
    }

    /// Reads a block that is valid here. What its checksum does not fit is never shown: it is invalid from now on, until
    /// good bytes come.
    pub(crate) fn read_block(&mut self, node: usize, block: usize) -> Option<u64> {
        let found = self.verified(node, block);
        if found.is_none() {
            self.note(Mark::Corrupt);
            self.log(33, node, || format!("block {block} is corrupt"));
            if !self.planted(Plant::CorruptNotFetched) {
                let (inode, range) = (file_of(block), range_of(block));
                let run = self.running(node);
                let committed = run.chain.committed_version();
                run.pull.on_corrupt(inode, range, committed);
                run.stirred = true;
            }
        }
        found
    }

    /// Reads all that is valid here, if this copy is part of the container.
    pub(crate) fn scrub(&mut self, node: usize) {
        let run = self.running_ref(node);
        if !matches!(run.chain.role(), Role::Owner { .. } | Role::Replica { .. }) {
            return;
        }
        let valid = |block: &usize| run.pull.is_valid(file_of(*block), range_of(*block));
        let valid: Vec<usize> = (0..ALL_BLOCKS).filter(valid).collect();
        for block in valid {
            self.read_block(node, block);
        }
    }

    /// Asks for what is invalid here: a member asks its owner, a new owner its members, a joiner all of them by turns.
    pub(crate) fn pump_fetches(&mut self, node: usize) {
        let run = self.running(node);
        let owner = run.owner();
        let source = match run.chain.role() {
            Role::Replica { .. } => owner,
            Role::Owner { .. } | Role::Joining { .. } => None,
            Role::Outside | Role::Suspended { .. } | Role::Returning | Role::Reconciling { .. } => {
                return;
            }
        };
        let mut fetches = run.pull.next_fetches(1 << 20, FETCHES_MAX);
        if source.is_some() {
            let ahead = run.pull.next_ahead(&run.holding);
            let any = !ahead.is_empty();
            fetches.extend(ahead);
            if any {
                self.note(Mark::AskedAhead);
            }
        }
        for fetch in fetches {
            let run = self.running(node);
            if let Some(owner) = source {
                self.ask_bytes(
                    node,
                    owner,
                    fetch.id,
                    (fetch.inode, fetch.range, fetch.needed),
                    false,
                );
            } else {
                let asking = Asking {
                    inode: fetch.inode,
                    range: fetch.range,
                    needed: fetch.needed,
                    refused: BTreeSet::new(),
                    unreadable: false,
                    older: false,
                };
                run.asking.insert(fetch.id, asking);
                self.ask_next_member(node, fetch.id);
            }
        }
    }

    fn ask_bytes(
        &mut self,
        node: usize,
        to: usize,
        id: FetchId,
        what: (InodeId, ByteRange, Version),
        older: bool,
    ) {
        let life = self.nodes[node].incarnation;
        let (inode, range, needed) = what;
        self.log(30, node, || {
            format!("fetch {inode} {range} needs {needed} from n{}", to + 1)
        });
        let id = (id.0, life);
        self.send(
            node,
            to,
            Packet::Fetch {
                id,
                inode,
                range,
                needed,
                older,
            },
        );
    }

    /// A new owner asks the members in turn; when none has the bytes, what is here is the content. A joiner begins with
    /// another one each time.
    fn ask_next_member(&mut self, node: usize, id: FetchId) {
        let run = self.running(node);
        let Some(asking) = run.asking.get(&id).cloned() else {
            return;
        };
        let mut sources: Vec<usize> = match (run.chain.role(), run.chain.view()) {
            (Role::Joining { .. }, Some(view)) => view.chain.iter().copied().map(host_of).collect(),
            // What a joiner has in place may be older than what was synced without it.
            (_, Some(view)) if asking.older => {
                let others = view.chain.iter().copied().map(host_of);
                others.filter(|member| *member != node).collect()
            }
            _ => run.chain.counted().map(host_of).collect(),
        };
        if let (Role::Joining { .. }, len @ 1..) = (run.chain.role(), sources.len()) {
            sources.rotate_left(id.0 as usize % len);
        }
        let next = sources.into_iter().find(|n| !asking.refused.contains(n));
        match next {
            Some(member) => {
                self.ask_bytes(
                    node,
                    member,
                    id,
                    (asking.inode, asking.range, asking.needed),
                    asking.older,
                );
            }
            None => self.fall_back(node, id, &asking),
        }
    }

    fn fall_back(&mut self, node: usize, id: FetchId, asking: &Asking) {
        let run = self.running(node);
        run.asking.remove(&id);
        let Role::Owner { .. } = run.chain.role() else {
            return run.pull.on_fetch_failed(id);
        };
        let proven = self.prove_kept(node, asking.inode, asking.range);
        if !proven.is_empty() {
            self.log(62, node, || format!("proves {proven:?}"));
            self.note(Mark::Proven);
            self.running(node).pull.on_fetch_failed(id);
            let fallback = proven.iter().map(|(kept, _)| range_of(usize::from(*kept)));
            let record = Record {
                fallback: fallback.map(|part| (asking.inode, part)).collect(),
                data: proven,
                ..Record::default()
            };
            if self.propose(node, record).is_some() {
                self.step(node, Input::Flush);
            }
            return;
        }
        let kept = is_kept_file(asking.inode) && !self.planted(Plant::KeptHoleIsContent);
        let run = self.running(node);
        let why = match (asking.unreadable, asking.older) {
            // What is in place there was never that content, at any member.
            (false, false) if kept => NotGiven::NotEvenOlder,
            (_, true) => NotGiven::NotEvenOlder,
            (true, false) => NotGiven::Unreadable,
            (false, false) => NotGiven::NotHere,
        };
        let committed = run.chain.committed_version();
        let known = run.pull.lost(asking.inode, asking.range).is_some();
        let mut nobody = run
            .pull
            .on_nobody_has(asking.inode, asking.range, why, committed);
        if let Nobody::Keep(parts) = &nobody
            && kept
        {
            for part in parts {
                run.pull.on_corrupt(asking.inode, *part, committed);
            }
            nobody = run
                .pull
                .on_nobody_has(asking.inode, asking.range, why, committed);
        }
        run.stirred = true;
        if nobody == Nobody::AskOlder {
            let again = Asking {
                refused: BTreeSet::new(),
                older: true,
                ..asking.clone()
            };
            run.asking.insert(id, again);
            return self.ask_next_member(node, id);
        }
        run.pull.on_fetch_failed(id);
        let parts = match nobody {
            Nobody::Keep(parts) => parts,
            Nobody::Lost(parts) => {
                run.data_unsaid = true;
                if !known {
                    self.refuse_lost(node, asking.inode);
                }
                self.note(Mark::Lost);
                return self.log(34, node, || {
                    format!("nobody has {} {parts:?}", asking.inode)
                });
            }
            Nobody::AskAgain | Nobody::AskOlder => return,
        };
        let rotten = |block: &usize| !self.nodes[node].disk.fits(*block);
        let blocks = parts.iter().flat_map(|part| blocks_in(asking.inode, *part));
        let rotten: Vec<usize> = blocks.filter(rotten).collect();
        if !rotten.is_empty() {
            // Older bytes that rotted are nobody's content either.
            let pull = &mut self.running(node).pull;
            for block in rotten {
                pull.on_corrupt(file_of(block), range_of(block), committed);
            }
            return;
        }
        if parts.is_empty() {
            return;
        }
        self.note(Mark::Revert);
        let replaced = parts.iter().flat_map(|part| blocks_in(asking.inode, *part));
        let replaced: Vec<usize> = replaced.collect();
        self.lose_in_past(node, &replaced);
        let blocks = parts.iter().flat_map(|part| blocks_in(asking.inode, *part));
        let data = blocks.map(|b| (b as u8, self.content(node, b))).collect();
        let record = Record {
            data,
            fallback: parts.iter().map(|part| (asking.inode, *part)).collect(),
            ..Record::default()
        };
        self.log(31, node, || format!("falls back: {record:?}"));
        if self.planted(Plant::RevertUnlogged) {
            for (block, token) in &record.data {
                let (inode, range) = (asking.inode, range_of(usize::from(*block)));
                self.running(node).pull.force_valid(inode, range);
                self.running(node).expected[usize::from(*block)] = *token;
            }
            return;
        }
        if self.propose(node, record).is_some() {
            self.step(node, Input::Flush);
        }
    }

    /// A member's older content becomes the content, where what is in place here is none.
    fn take_older(&mut self, node: usize, id: FetchId, tokens: &[(usize, u64)]) {
        let run = self.running(node);
        let Some(asking) = run.asking.remove(&id) else {
            return;
        };
        run.pull.on_fetch_failed(id);
        if !matches!(run.chain.role(), Role::Owner { .. }) || run.reign.is_none() {
            return;
        }
        let inode = asking.inode;
        let parts = run.pull.spoiled(inode, asking.range);
        let wanted = parts.iter().flat_map(|part| blocks_in(inode, *part));
        let wanted: Vec<usize> = wanted.collect();
        let taken = tokens.iter().filter(|(block, _)| wanted.contains(block));
        let taken: Vec<(usize, u64)> = taken.copied().collect();
        if taken.is_empty() {
            return;
        }
        self.log(36, node, || format!("takes older {taken:?}"));
        self.note(Mark::TookOlder);
        self.put_in_place(node, &taken);
        let record = Record {
            data: taken.iter().map(|(b, token)| (*b as u8, *token)).collect(),
            fallback: taken.iter().map(|(b, _)| (inode, range_of(*b))).collect(),
            ..Record::default()
        };
        if self.propose(node, record).is_some() {
            self.step(node, Input::Flush);
        } else {
            self.distrust(node, taken.into_iter().map(|(block, _)| block));
        }
    }

    /// Puts a record into the owner's log.
    pub(crate) fn propose(&mut self, node: usize, mut record: Record) -> Option<Version> {
        self.tell_of_kept(node, &mut record);
        self.aim_at_second_record(node);
        self.choose_carried(node, &mut record);
        let local = self.local(node);
        let run = self.running(node);
        let version = run.chain.propose(local, record.encode()).ok()?;
        for command in record.commands() {
            let carried = record.carried_by(&command);
            run.unsettled.note(version.seq, &command, &carried);
            run.pull.on_command(version, &command, Origin::Own, carried);
        }
        run.fed = version.seq;
        crate::disk::apply(&mut run.newest, &record);
        let blocks = record.blocks().map(|(block, _)| usize::from(block));
        for inode in blocks.map(file_of).collect::<BTreeSet<InodeId>>() {
            run.notes.on_recorded(version.seq, inode);
        }
        run.stirred = true;
        run.own.push_back((version.seq, record.clone()));
        self.oracle.note_proposed(version, &record);
        self.log(63, node, || format!("orders {version}: {record:?}"));
        Some(version)
    }

    /// Answers with bytes if they are valid here, as of a version that has every byte's record before it (F1).
    pub(crate) fn serve_fetch(
        &mut self,
        node: usize,
        to: usize,
        id: (u64, u32),
        (inode, range, needed): (InodeId, ByteRange, Version),
        older: bool,
    ) {
        let mut blocks = blocks_in(inode, range);
        if blocks.any(|block| self.running_ref(node).unrecorded.contains_key(&block)) {
            self.record_writes(node, Some(inode));
        }
        let waits = |block| self.running_ref(node).unrecorded.contains_key(&block);
        let half_way = blocks_in(inode, range).any(waits);
        let run = self.running(node);
        let reigns = run.reign.is_some();
        let lost = run.pull.lost(inode, range).filter(|_| reigns);
        let as_of = match lost {
            Some(_) => run.chain.content_version(),
            None => run.chain.content_version_of(newest(&run.chain, inode)),
        };
        let given_out = self.planted(Plant::KeptGivenOut);
        let kept = !given_out && self.running_ref(node).holding.keeps(inode, range);
        let run = self.running(node);
        let answer = if as_of < needed || half_way {
            FetchAnswer::NotYet
        } else if kept && !reigns {
            FetchAnswer::NotHere
        } else if let Some(part) = lost {
            FetchAnswer::Lost { part, as_of }
        } else if !run.pull.is_valid(inode, range) {
            if reigns {
                FetchAnswer::NotYet
            } else if older && run.pull.has_older(inode, range) {
                let read = |b| Some((b, self.verified(node, b)?));
                let tokens: Option<Vec<_>> = blocks_in(inode, range).map(read).collect();
                tokens.map_or(FetchAnswer::Unreadable, FetchAnswer::Older)
            } else if run.pull.is_unreadable(inode, range) {
                FetchAnswer::Unreadable
            } else {
                FetchAnswer::NotHere
            }
        } else {
            let read = |b| Some((b, self.read_block(node, b)?));
            let tokens: Option<Vec<_>> = blocks_in(inode, range).map(read).collect();
            match tokens {
                Some(tokens) => FetchAnswer::Bytes { as_of, tokens },
                None => FetchAnswer::Unreadable,
            }
        };
        let slow = self.rng.below(self.chaos.bytes_us);
        self.send_slowly(slow, node, to, Packet::Fetched { id, answer });
        self.step(node, Input::Flush);
    }

    pub(crate) fn fetched(
        &mut self,
        node: usize,
        from: usize,
        (id, life): (u64, u32),
        answer: FetchAnswer,
    ) {
        if life != self.nodes[node].incarnation {
            return;
        }
        let id = FetchId(id);
        let trusting = self.planted(Plant::FetchedWithoutAsOf);
        let keeps_older = self.planted(Plant::OlderAfterLost);
        let run = self.running(node);
        match answer {
            FetchAnswer::Bytes { as_of, tokens } => {
                let holds = if trusting {
                    Holds::Yes
                } else {
                    run.chain.holds(as_of)
                };
                let joins = matches!(run.chain.role(), Role::Joining { .. });
                let owner = run.owner();
                if run.asking.remove(&id).is_some() && holds == Holds::Yes {
                    if !joins {
                        self.note(Mark::FilledByMember);
                    } else if owner != Some(from) {
                        self.note(Mark::JoinerFilled);
                    }
                }
                let run = self.running(node);
                let whole = ByteRange::ALL;
                let what = run.pull.on_fetched(id, whole, as_of, holds);
                self.take_fetched(node, id, what, Arrived { as_of, tokens });
            }
            FetchAnswer::Older(tokens) => self.take_older(node, id, &tokens),
            FetchAnswer::NotHere | FetchAnswer::Unreadable => {
                let unreadable = answer == FetchAnswer::Unreadable;
                self.log(35, node, || {
                    format!("n{} has not what {id:?} asks for: {answer:?}", from + 1)
                });
                let run = self.running(node);
                if let Some(asking) = run.asking.get_mut(&id) {
                    asking.refused.insert(from);
                    asking.unreadable |= unreadable;
                    self.ask_next_member(node, id);
                }
                if unreadable {
                    self.note(Mark::Unreadable);
                }
            }
            FetchAnswer::Lost { part, as_of } => {
                run.asking.remove(&id);
                if keeps_older {
                    run.pull.on_lost_keeping_older(id, part, as_of);
                } else {
                    // What the disk knows goes there with the next sync, before this node says how far it is.
                    _ = run.pull.on_lost(id, part, as_of);
                }
                run.stirred = true;
                run.data_unsaid = true;
                self.note(Mark::LostElsewhere);
            }
            FetchAnswer::NotYet => {}
        }
        self.step(node, Input::Tick);
    }

    fn take_fetched(&mut self, node: usize, id: FetchId, what: Fetched, arrived: Arrived) {
        match what {
            Fetched::Install { inode, parts } => {
                for (block, token) in arrived.tokens {
                    let range = range_of(block);
                    let inside = |p: &ByteRange| p.start <= range.start && p.end >= range.end;
                    if file_of(block) == inode && parts.iter().any(inside) {
                        self.log(32, node, || format!("block {block} is {token}"));
                        law::checkpoint::on_replaced(self, node, block, token);
                        self.nodes[node].disk.write(block, token);
                    }
                }
                let run = self.running(node);
                let mut lost = parts.iter().filter_map(|part| run.pull.lost(inode, *part));
                let found = lost.next().is_some();
                run.pull.on_installed(id);
                run.stirred = true;
                if found {
                    self.note(Mark::Found);
                }
            }
            Fetched::Hold => {
                self.note(Mark::Held);
                self.running(node).held.insert(id, arrived);
            }
            Fetched::Drop => {}
        }
    }

    /// Whether nobody has a block that this owner lacks.
    pub(crate) fn is_lost(&self, node: usize, block: usize) -> bool {
        let pull = &self.running_ref(node).pull;
        pull.lost(file_of(block), range_of(block)).is_some()
    }

    /// Held bytes whose version the log has now, and which nothing else has to come before.
    pub(crate) fn release_held(&mut self, node: usize) {
        while let Some((id, arrived)) = self.next_held(node) {
            let run = self.running(node);
            let holds = run.chain.holds(arrived.as_of);
            let whole = ByteRange::ALL;
            let what = run.pull.on_fetched(id, whole, arrived.as_of, holds);
            if holds == Holds::Never {
                self.note(Mark::HeldForNothing);
            }
            self.take_fetched(node, id, what, arrived);
        }
    }

    fn next_held(&mut self, node: usize) -> Option<(FetchId, Arrived)> {
        let run = self.running(node);
        let chain = &run.chain;
        let decidable = run.pull.decidable(|version| chain.holds(version));
        let mut held = decidable.into_iter();
        held.find_map(|id| Some((id, run.held.remove(&id)?)))
    }

    /// Requests for a file on disk, once its bytes are here: they wait for the next sync.
    pub(crate) fn answer_syncs(&mut self, node: usize) {
        if self.running_ref(node).sync_waits.is_empty() {
            return;
        }
        // A member of a later epoch may have fallen back to older bytes: only its own owner is answered.
        let unfenced = self.planted(Plant::SyncUnfenced);
        let run = self.running(node);
        let now = run.chain.view().map(|v| v.epoch);
        run.sync_waits
            .retain(|wait| Some(wait.epoch) == now || unfenced);
        let waits = run.sync_waits.clone();
        for wait in waits {
            let whole = ByteRange::ALL;
            self.running(node).pull.want(wait.inode, whole);
        }
        self.start_sync(node, true);
    }

    fn has_data(&self, node: usize, wait: &SyncWait) -> bool {
        let pull = &self.running_ref(node).pull;
        if !self.planted(Plant::SyncForgetsReplaced) {
            return pull.has_through(wait.inode, wait.version.seq);
        }
        let mut missing = pull.iter().filter(|(inode, ..)| *inode == wait.inode);
        missing.all(|(_, _, needed)| needed.seq > wait.version.seq)
    }

    fn is_ready(&self, node: usize, wait: &SyncWait) -> bool {
        let run = self.running_ref(node);
        run.chain.holds(wait.version) == Holds::Yes && self.has_data(node, wait)
    }

    /// Begins to write the cache to the disk: for those who wait, or as a duty.
    pub(crate) fn start_sync(&mut self, node: usize, duty: bool) {
        if self.running_ref(node).sync.is_some() {
            return;
        }
        let waits = &self.running_ref(node).sync_waits;
        let (ready, wait): (Vec<SyncWait>, Vec<SyncWait>) =
            waits.iter().partition(|w| self.is_ready(node, w));
        if ready.is_empty() && (!duty || !self.has_news(node)) {
            return;
        }
        let took = 500 + self.rng.below(3_000) + self.slow(node);
        let through = self.storable_through(node);
        // An fsync need not store what is known of all files.
        let bare = !ready.is_empty() && self.chaos.bare_fsync;
        let host = &mut self.nodes[node];
        let Some(run) = &mut host.run else { return };
        run.sync_waits = wait;
        run.data_unsaid = false;
        let mut invalid = BTreeMap::new();
        for file in (0..ALL_FILES).map(inode) {
            if let Some(map) = run.pull.invalid(file) {
                invalid.insert(file, map.clone());
            }
        }
        let committed = run.chain.committed();
        let id = run.fresh_id();
        run.sync = Some(SyncJob {
            id,
            blocks: (0..ALL_BLOCKS)
                .filter(|b| host.disk.dirty[*b])
                .map(|b| (b, host.disk.cache[b]))
                .collect(),
            sums: host.disk.sums,
            objects: (!bare).then_some(ObjectMap { through, invalid }),
            through: None,
            complete: run.pull.complete_through(committed),
            sound: true,
            waits: ready,
        });
        let life = host.incarnation;
        self.after(took, Event::SyncDone { node, life, id });
    }

    fn has_news(&self, node: usize) -> bool {
        let host = &self.nodes[node];
        let run = self.running_ref(node);
        run.data_unsaid
            || host.disk.dirty.contains(&true)
            || run.chain.committed() > host.disk.objects.through
    }

    pub(crate) fn sync_done(&mut self, node: usize, id: u64) {
        let host = &mut self.nodes[node];
        let Some(run) = &mut host.run else { return };
        let Some(mut job) = run.sync.take_if(|job| job.id == id) else {
            return;
        };
        let astray = self.misdirect(node, &job.blocks);
        let disk = &mut self.nodes[node].disk;
        disk.flushed(&job.blocks, &mut job.sums, astray);
        let installs = |op: &DiskOp| matches!(op, DiskOp::Install { .. });
        let sound = job.sound && !disk.queue.iter().any(installs);
        let objects = job.objects.take().filter(|_| sound);
        job.through = objects.as_ref().map(|objects| objects.through);
        let sums = job.sums;
        self.running(node).sync = Some(job);
        self.enqueue(node, DiskOp::Sums { id, sums, objects });
    }

    /// What is known of the blocks of a sync is on the disk, too.
    pub(crate) fn sums_stored(&mut self, node: usize, id: u64) {
        let Some(job) = self.running(node).sync.take_if(|job| job.id == id) else {
            return;
        };
        for wait in job.waits {
            self.send(
                node,
                wait.from,
                Packet::Synced {
                    id: wait.id,
                    inode: wait.inode,
                },
            );
        }
        let mut unrecorded = self.running_ref(node).unrecorded.keys();
        if unrecorded.any(|block| !self.nodes[node].disk.dirty[*block]) {
            self.aim_at_unrecorded(node);
        }
        match job.through {
            Some(through) if job.sound => {
                self.running(node).synced = job.complete;
                self.step(node, Input::Synced(through));
                self.step(node, Input::DataThrough(job.complete));
            }
            Some(_) => self.step(node, Input::Tick),
            None => {
                self.running(node).data_unsaid = true;
                self.step(node, Input::Tick);
            }
        }
    }
}
