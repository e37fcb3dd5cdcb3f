//! What owners have to know of the policies of a directory in which they make or remove a name: how long what is removed is
//! kept, and over how many containers a new file is spread.
//!
//! The policy of a directory may lie in another node's container, so what was in force is kept for a moment. Who sets such a
//! policy waits for that long: then every owner goes by it.

use crate::env::Env;
use crate::policy;
use parking_lot::Mutex;
use perigee_meta::{Op, Reply};
use perigee_types::{Errno, InodeId, Retention, Span, StripeWidth, Tick};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// For how long what was in force is taken to be in force.
pub(crate) const KEPT: Span = Span::from_millis(2_000);
/// What is older and still used is asked for anew meanwhile: who removes one thing after the other waits once.
const FRESH: Span = Span::from_millis(1_000);
/// How long whoever has to say may take: longer than another owner needs to take over.
const PATIENCE: Duration = Duration::from_secs(8);
/// More answers than this are not kept.
const KEPT_MAX: usize = 16_384;

/// What is in force in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InForce {
    /// How long what is removed from it is kept.
    pub(crate) retention: Retention,
    /// Over how many containers a file is spread that is made there.
    pub(crate) width: StripeWidth,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    what: InForce,
    at: Tick,
    /// It is being asked for anew.
    asked: bool,
}

/// What was in force lately, by directory.
#[derive(Debug, Default)]
pub(crate) struct Lately(Mutex<HashMap<InodeId, Known>>);

impl Lately {
    /// What is in force in a directory, if that is known. `again`: whether to ask for it in time, so that it stays known.
    pub(crate) fn of(&self, env: &Arc<Env>, directory: InodeId, again: Again) -> Option<InForce> {
        let now = env.clock.now();
        let mut known = self.0.lock();
        let found = known.get_mut(&directory)?;
        let age = now.since(found.at);
        if age >= KEPT {
            return None;
        }
        if again == Again::InTime && age >= FRESH && !found.asked {
            found.asked = true;
            let task = env.clone();
            env.runtime.spawn(async move {
                // Whoever needs it asks again.
                _ = ask(&task, directory).await;
            });
        }
        Some(found.what)
    }

    /// What was in force in a directory at a moment.
    pub(crate) fn note(&self, directory: InodeId, what: InForce, at: Tick) {
        let mut known = self.0.lock();
        if known.len() >= KEPT_MAX {
            known.retain(|_, known| at.since(known.at) < KEPT);
        }
        if known.len() >= KEPT_MAX {
            known.clear();
        }
        let asked = false;
        let new = Known { what, at, asked };
        known.insert(directory, new);
    }

    /// What was in force in a directory when somebody last said.
    fn last(&self, directory: InodeId) -> Option<InForce> {
        let known = self.0.lock();
        known.get(&directory).map(|known| known.what)
    }

    /// A policy has changed.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }
}

/// Whether an answer is asked for again before it is too old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// It is found without asking anybody.
    WhenNeeded,
    /// It takes a round trip.
    InTime,
}

/// Asks what is in force in a directory, whichever containers have to say.
pub(crate) async fn ask(env: &Arc<Env>, directory: InodeId) -> Result<(), Errno> {
    // What has changed since then may not be in the answer.
    let asked_at = env.clock.now();
    let inode = directory;
    let answer = crate::router::ask_as_node(env, Op::GetPolicy { inode });
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    let (what, at) = match answer.unwrap_or(Err(Errno::EIO)) {
        Ok(Reply::Policy(settings)) => (policy::in_force(&settings), asked_at),
        // It is gone, and nothing can be made in it, or removed from it.
        Err(Errno::ESTALE) => (InForce::default(), asked_at),
        Ok(_) => return Err(Errno::EPROTO),
        // Nobody answers for that directory. Work below it goes on under what was in force there last.
        Err(errno) => {
            let last = env.lately.last(directory).ok_or(errno)?;
            (last, env.clock.now())
        }
    };
    env.lately.note(directory, what, at);
    Ok(())
}
