//! The driver's talk with the control store: one proposal at a time, and each gets one answer.

use crate::control::{StoreReply, StoreRequest};
use crate::law;
use crate::oracle::Mark;
use crate::world::World;
use perigee_replica::{CasOutcome, ChainView, Input};
use perigee_types::Epoch;

impl World {
    pub(crate) fn propose_view(&mut self, node: usize, expect: Epoch, view: ChainView) {
        self.log(15, node, || {
            format!("proposes {} {:?}", view.epoch, view.chain)
        });
        law::handed_over::check(self, node, &view);
        let run = self.running(node);
        let id = run.fresh_id();
        run.cas = Some(id);
        let joiner = self.joiner_of(&view);
        let late =
            self.aim_at_takeover(node, &view) || self.rng.chance(self.chaos.store_late, 1000);
        self.ask_store_at(node, StoreRequest::Cas { id, expect, view }, late);
        self.aim_at_proposal(node, joiner);
    }

    pub(crate) fn read_view(&mut self, node: usize) {
        let run = self.running(node);
        if !run.reading {
            run.reading = true;
            self.ask_store(node, StoreRequest::Read);
        }
    }

    pub(crate) fn store_answer(&mut self, node: usize, reply: StoreReply) {
        let Some(run) = &mut self.nodes[node].run else {
            return;
        };
        let outcome = match reply {
            StoreReply::View(view) => {
                run.reading = false;
                return self.step(node, Input::View(view));
            }
            StoreReply::Won(id) if run.cas == Some(id) => CasOutcome::Won,
            StoreReply::Lost(id, view) if run.cas == Some(id) => CasOutcome::Lost(view),
            StoreReply::Unavailable(id) if run.cas == Some(id) => CasOutcome::Unavailable,
            StoreReply::Won(_) | StoreReply::Lost(..) | StoreReply::Unavailable(_) => return,
        };
        run.cas = None;
        self.log(16, node, || format!("decided {outcome:?}"));
        self.step(node, Input::ViewDecided(outcome));
    }

    pub(crate) fn store_timeout(&mut self, node: usize, id: Option<u64>) {
        let Some(run) = &mut self.nodes[node].run else {
            return;
        };
        match id {
            Some(id) if run.cas == Some(id) => {
                run.cas = None;
                self.note(Mark::UnknownCas);
                self.step(node, Input::ViewDecided(CasOutcome::Unknown));
            }
            Some(_) => {}
            None => {
                run.reading = false;
                if run.chain.view().is_none() {
                    self.read_view(node);
                }
            }
        }
    }
}
