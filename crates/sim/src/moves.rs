//! Ownership that moves often, from one member to another, in the histories that are meant for it.

use crate::law;
use crate::model::inode;
use crate::node::{Packet, SyncWait};
use crate::oracle::Mark;
use crate::strike::Strike;
use crate::world::{Event, SECOND, Scenario, World, host_of, id_of};
use perigee_replica::{Input, Message};

/// How often an owner that is to cede looks whether it may.
const CEDE_US: u64 = 20_000;
/// The shortest pause between two moves.
const PAUSE_US: u64 = 200_000;
/// For how long words are lost, with that one.
const LOST_US: u64 = 2_000;
/// In this time a process that starts again has read its view.
const RESTARTED_US: u64 = 60_000;
/// How often a host is told that it does not reach another one.
const WORD_US: u64 = 200_000;
/// So many times.
const WORDS: u64 = 6;
/// How late the word of an owner that has ceded may come: it has gone on, and ordered nothing more perhaps.
const LATE_US: u64 = 600_000;

/// Whether ownership moves in a seed's history: in some of them chunks do, too.
pub(crate) const fn moves(seed: u64, scenario: Scenario) -> bool {
    matches!(scenario, Scenario::Chaos) && (seed % 8 == 5 || seed % 32 == 23)
}

impl World {
    /// Whoever owns is to cede to another member.
    pub(crate) fn move_owner(&mut self) {
        if self.calm {
            return;
        }
        let mut dice = self.numbered.by_clock();
        let next = PAUSE_US + dice.rng.below(2 * SECOND);
        self.after(next, Event::Move);
        let members = &self.store.view.chain;
        let (Some(owner), others) = (members.first(), members.len().max(2) as u64 - 1) else {
            return;
        };
        let heir = members.get(1 + dice.rng.below(others) as usize);
        let Some((owner, heir)) = heir.map(|heir| (host_of(*owner), host_of(*heir))) else {
            return;
        };
        let span = 500_000 + dice.rng.below(3 * SECOND);
        self.strike(&dice, Strike::Cede(owner, heir, span));
    }

    /// The owner takes no changes, and cedes as soon as it may.
    pub(crate) fn begin_to_cede(&mut self, node: usize, heir: usize, span: u64) {
        let until = self.now + span;
        let life = self.nodes[node].incarnation;
        if let Some(run) = &mut self.nodes[node].run {
            run.leaves_until = until;
            self.call_all_back(node);
            self.after(1, Event::Cede { node, life, heir });
        }
    }

    /// Cedes, or tries again a little later.
    pub(crate) fn cede(&mut self, node: usize, heir: usize) {
        let run = self.running_ref(node);
        if run.reign.is_none() || self.now >= run.leaves_until {
            return self.running(node).leases.open();
        }
        self.record_writes(node, None);
        self.step(node, Input::Announce);
        self.sync_everywhere(node);
        let early = self.now < self.running_ref(node).changes_from;
        let recorded = self.running_ref(node).unrecorded.is_empty();
        if early || !recorded || !self.has_no_readers(node) {
            return self.cede_later(node, heir);
        }
        let (heir_id, data) = (id_of(heir), self.running_ref(node).chain.last().seq);
        let cede = Input::Cede {
            heir: heir_id,
            data,
        };
        self.step(node, cede);
        let run = self.running(node);
        if run.ceded_in.is_some() {
            // It takes changes again, if it goes on.
            run.leaves_until = 0;
            run.leases.open();
        } else {
            self.cede_later(node, heir);
        }
    }

    fn cede_later(&mut self, node: usize, heir: usize) {
        let life = self.nodes[node].incarnation;
        self.after(CEDE_US, Event::Cede { node, life, heir });
    }

    /// Members are to bring all bytes to their disks, and so is this node.
    fn sync_everywhere(&mut self, node: usize) {
        let run = self.running_ref(node);
        let (Some(epoch), version) = (run.reign, run.chain.committed_version()) else {
            return;
        };
        let members: Vec<usize> = run.chain.counted().map(host_of).collect();
        // Nobody waits for these answers.
        let id = (u64::MAX, self.nodes[node].incarnation);
        for file in self.running_ref(node).newest.files().map(inode) {
            for member in &members {
                let packet = Packet::Sync {
                    id,
                    inode: file,
                    version,
                    epoch,
                };
                self.send(node, *member, packet);
            }
            let wait = SyncWait {
                from: node,
                id,
                inode: file,
                version,
                epoch,
            };
            self.running(node).sync_waits.push(wait);
        }
    }

    /// An owner's word that it has ceded is on its way: a good moment.
    pub(crate) fn on_ceded(&mut self, node: usize, heir: usize, message: &Message) {
        let Message::Cede { view, last, .. } = message else {
            return;
        };
        self.note(Mark::Ceded);
        self.running(node).ceded_in = Some(view.epoch);
        law::handed_over::check_ceded(self, node, view, *last);
        if self.calm {
            return;
        }
        let mut dice = self.numbered.rare();
        if !dice.rng.chance(1, 2) {
            return;
        }
        let soon = dice.rng.below(20_000);
        let span = 5_000 + dice.rng.below(2 * SECOND);
        let strike = match dice.rng.below(16) {
            0 => Strike::KillSoon(node, soon),
            1 => Strike::KillSoon(heir, soon),
            2 => Strike::CutBriefly(node, heir, span),
            3 => Strike::CutBriefly(heir, node, span),
            4 => Strike::CutFromStore(heir),
            5 => Strike::Pause(heir, span),
            6 => Strike::Pause(node, span),
            7 => Strike::Parted(node, heir, soon),
            _ => {
                let late = 50_000 + dice.rng.below(LATE_US);
                let packet = Packet::Chain(message.clone());
                self.cessions.insert(heir, (node, packet));
                Strike::LateCession(heir, dice.rng.chance(1, 2), late)
            }
        };
        self.strike(&dice, strike);
    }

    /// What an owner has ceded is lost on its way, and comes later: when its heir is parted from it, and perhaps starts
    /// again.
    pub(crate) fn cede_once_more(&mut self, heir: usize, restarts: bool, late: u64) {
        let Some((owner, packet)) = self.cessions.remove(&heir) else {
            return;
        };
        self.net.cut[owner][heir] = true;
        let (from, to) = (owner, heir);
        self.after(LOST_US, Event::Mend { from, to });
        self.part_later(owner, heir, late);
        let life = self.nodes[heir].incarnation;
        let known = match restarts {
            true => {
                self.after(late, Event::Restart { node: heir, life });
                RESTARTED_US
            }
            false => 1,
        };
        self.deliver_after(late + known, owner, heir, packet);
    }

    /// A host is cut off from all others but the control store, and one of them hears of that.
    pub(crate) fn part_later(&mut self, node: usize, by: usize, after: u64) {
        self.after(after, Event::Part { node });
        for word in 1..=WORDS {
            let at = after + word * WORD_US;
            self.after(at, Event::Unreachable { node: by, by: node });
        }
    }
}
