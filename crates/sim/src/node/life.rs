//! Starts and ends of a process, and what a start finds on the disk.

use super::Running;
use super::dirty::give_up;
use crate::disk::{Disk, apply};
use crate::law;
use crate::model::{ALL_BLOCKS, Committed, FILES, Outcome, Record, inode, kept_inode};
use crate::oracle::Mark;
use crate::world::{Event, World, id_of};
use perigee_meta::lease::Leases;
use perigee_meta::past::Keeping;
use perigee_replica::chunk::{Habit, Holds};
use perigee_replica::reads::Reads;
use perigee_replica::{Chain, Config, Holding, Input, Notes, Origin, Plant, Pull, Unsettled};
use perigee_types::{NodeId, Seq, Version};
use std::collections::{BTreeMap, VecDeque};

/// How long after a start the driver first looks after its duties.
const FIRST_DUTY_US: u64 = 100_000;

impl World {
    /// A process starts, and reads the view.
    pub(crate) fn boot(&mut self, node: usize) {
        self.log(10, node, || "start".into());
        let (limits, timing, plant) = (self.limits, self.timing, self.plant);
        let local = self.local(node);
        let changes_from = self.changes_from(node);
        let host = &mut self.nodes[node];
        let config = Config {
            me: id_of(node),
            timing,
            limits,
        };
        let mut hard = host.disk.hard.clone();
        if plant != Some(Plant::CommitsForgotten) {
            hard.committed = hard.committed.max(host.disk.objects.through);
        }
        let chain = Chain::new(config, hard, true, local).with_plant(plant);
        // Of each block that is not what its checksum says nobody knows whether it is old, new, or of no record.
        let differing = host.disk.settle();
        let gave_up = give_up(&mut host.disk, &differing, plant);
        let run = restart((id_of(node), changes_from), &host.disk, chain, plant);
        if plant == Some(Plant::HolesMadeAgain) {
            let (from, to) = (host.disk.objects.through.next(), run.applied);
            let again = run.chain.entries(from, to);
            let again: Vec<Record> = again.map(|e| Record::decode(&e.payload)).collect();
            for (block, token) in again.iter().flat_map(|record| &record.holes) {
                host.disk.write(usize::from(*block), *token);
            }
        }
        host.run = Some(run);
        if gave_up {
            self.note(Mark::GivenUp);
        }
        self.reset_expected(node);
        law::no_wrong_bytes::check(self, node);
        let life = self.nodes[node].incarnation;
        self.after(FIRST_DUTY_US, Event::Duty { node, life });
        self.read_view(node);
        self.step(node, Input::Tick);
    }

    /// A process ends at once.
    pub(crate) fn crash(&mut self, node: usize) {
        self.log(11, node, || "crash".into());
        self.note(Mark::Crash);
        let torn = self.torn(node);
        let host = &mut self.nodes[node];
        host.incarnation += 1;
        host.run = None;
        host.paused_until = 0;
        host.disk_free_at = 0;
        host.disk.crash(&mut self.rng, &torn);
        let tears = torn.iter().zip(host.disk.files);
        let tears = tears.filter(|(torn, left)| **torn == Some(*left)).count();
        host.session.witness.held.clear();
        host.session.asked.clear();
        if let Some(id) = host.session.waiting_for {
            self.finish(node, id, Outcome::Unknown);
        }
        (0..tears).for_each(|_| self.note(Mark::Torn));
        law::replicated::check_members(self, "after a crash");
    }

    /// The process cannot know what the disk holds now: it ends, and starts again from what is there.
    pub(crate) fn write_failed(&mut self, node: usize) {
        self.note(Mark::FailedWrite);
        self.nodes[node].fail_next_write = false;
        self.step(node, Input::PersistFailed);
        self.crash(node);
        let life = self.nodes[node].incarnation;
        let delay = 100_000 + self.rng.below(3_000_000);
        self.after(delay, Event::Start { node, life });
    }

    /// What the blocks must hold by the committed history up to what this node has applied.
    pub(crate) fn reset_expected(&mut self, node: usize) {
        let applied = self.running(node).applied;
        let mut expected = [0; ALL_BLOCKS];
        for Committed { version, record } in &self.oracle.committed {
            if version.seq > applied {
                break;
            }
            for (block, token) in record.blocks() {
                expected[usize::from(block)] = token;
            }
        }
        self.running(node).expected = expected;
    }
}

/// The process's memory, made of what the disk holds.
fn restart(
    (me, changes_from): (NodeId, u64),
    disk: &Disk,
    chain: Chain,
    plant: Option<Plant>,
) -> Running {
    let mut state = disk.state;
    let kept = kept_inode(0).index()..=kept_inode(FILES - 1).index();
    let mut pull = Pull::new().with_kept(kept).with_plant(plant);
    for file in 0..FILES {
        pull.on_kept_file(kept_inode(file), inode(file));
    }
    pull.note_committed(chain.committed_version());
    for (inode, map) in &disk.objects.invalid {
        let committed = match plant {
            Some(Plant::GivenUpTooOld) => Version::default(),
            _ => chain.committed_version(),
        };
        pull.restore(*inode, map.clone(), committed);
    }
    let applied = chain.committed();
    let last = chain.last().seq;
    for entry in chain.entries(Seq(1), last) {
        let record = Record::decode(&entry.payload);
        if entry.version.seq <= applied {
            apply(&mut state, &record);
        }
        let trusted = plant == Some(Plant::UnsyncedTrusted);
        if entry.version.seq > disk.objects.through && !trusted {
            for command in record.commands() {
                let carried = record.carried_by(&command);
                pull.on_command(entry.version, &command, Origin::Unsynced, carried);
            }
        }
    }
    pull.on_committed(applied);
    Running {
        chain,
        pull,
        state,
        newest: state,
        expected: [0; ALL_BLOCKS],
        applied,
        fed: last,
        uncertain_through: last,
        done: std::collections::BTreeSet::new(),
        own: VecDeque::new(),
        unrecorded: BTreeMap::new(),
        notes: Notes::default().with_plant(plant),
        notes_ended: Vec::new(),
        reign: None,
        unsettled: Unsettled::default().with_plant(plant),
        synced: Seq::ZERO,
        waiters: Vec::new(),
        held: BTreeMap::new(),
        asking: BTreeMap::new(),
        sync: None,
        sync_waits: Vec::new(),
        next_id: 0,
        cas: None,
        reading: false,
        installing: false,
        invalid_next: Vec::new(),
        armed: u64::MAX,
        stirred: true,
        data_unsaid: true,
        holds: Holds::default(),
        habits: [Habit::default(); FILES],
        gatherings: Vec::new(),
        keeping: Keeping::default(),
        turns: BTreeMap::new(),
        holding: Holding::default().with_plant(plant),
        alone: BTreeMap::new(),
        calls: Vec::new(),
        held_up: Vec::new(),
        lost_held: std::collections::BTreeSet::new(),
        asked_at: BTreeMap::new(),
        leaves_until: 0,
        changes_from,
        leases: Leases::new(me),
        recalls: Vec::new(),
        reads: Reads::default().with_plant(plant),
        ceded_in: None,
        lost_unsynced: std::collections::BTreeSet::new(),
    }
}
