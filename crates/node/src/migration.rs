//! What is wanted of the ownership of files and directories, for owners that would give it away.
//!
//! The policy of a directory may lie in another node's container, so an answer is kept for a moment: a change of policy is
//! heeded after that.

use crate::env::Env;
use crate::policy;
use parking_lot::Mutex;
use perigee_meta::{Op, Reply};
use perigee_types::{InodeId, Migration, Span, Tick};
use std::collections::HashMap;
use std::sync::Arc;

/// For how long what was in force is taken to be in force.
const KEPT: Span = Span::from_millis(2_000);
/// More answers than this are not kept: a question costs little, and is rare.
const KEPT_MAX: usize = 4_096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It is being asked.
    Asked,
    /// It was so at this moment.
    Was(Migration, Tick),
}

/// What was in force lately.
#[derive(Debug, Default)]
pub(crate) struct Migrations(Mutex<HashMap<InodeId, Known>>);

impl Migrations {
    /// What is wanted of a file or directory. `None`: that is being asked; until it is known, nothing is to move.
    pub(crate) fn of(&self, env: &Arc<Env>, inode: InodeId) -> Option<Migration> {
        let now = env.clock.now();
        {
            let mut known = self.0.lock();
            match known.get(&inode) {
                Some(Known::Was(migration, at)) if now.since(*at) < KEPT => {
                    return Some(*migration);
                }
                Some(Known::Asked) => return None,
                Some(Known::Was(..)) | None => {}
            }
            if known.len() >= KEPT_MAX {
                known.retain(|_, known| *known == Known::Asked);
            }
            known.insert(inode, Known::Asked);
        }
        let env = env.clone();
        let runtime = env.runtime.clone();
        runtime.spawn(async move {
            let answer = crate::router::ask_as_node(&env, Op::GetPolicy { inode }).await;
            env.migrations.note(&env, inode, answer.ok());
        });
        None
    }

    /// The same, as it is now. `None`: nobody answers, or there is no such file.
    pub(crate) async fn ask(&self, env: &Arc<Env>, inode: InodeId) -> Option<Migration> {
        match crate::router::ask_as_node(env, Op::GetPolicy { inode }).await {
            Ok(Reply::Policy(settings)) => Some(policy::migration(&settings)),
            Ok(_) | Err(_) => None,
        }
    }

    fn note(&self, env: &Env, inode: InodeId, answer: Option<Reply>) {
        let mut known = self.0.lock();
        match answer {
            Some(Reply::Policy(settings)) => {
                let was = Known::Was(policy::migration(&settings), env.clock.now());
                known.insert(inode, was);
            }
            // It is gone, or nobody answers: to be asked again.
            Some(_) | None => {
                known.remove(&inode);
            }
        }
    }
}
