//! The cluster itself, and what is wanted of it.

use super::{PlanError, Planned, revision};
use crate::codec::{Record, is_name};
use crate::directory::Directory;
use crate::key;
use crate::model::{ClusterInfo, ControlProcess, Policy};
use crate::store::Txn;

/// Makes the cluster's own record and its default policy.
///
/// # Errors
/// [`PlanError::ClusterExists`].
pub fn create_cluster(dir: &Directory, info: ClusterInfo) -> Result<Planned<()>, PlanError> {
    if dir.cluster.is_some() {
        return Err(PlanError::ClusterExists);
    }
    let txn = Txn::default()
        .when(key::CLUSTER, None)
        .put(key::CLUSTER, info.encode())
        .put(key::policy(key::DEFAULT_POLICY), Policy::default().encode());
    Ok(Planned { txn, made: () })
}

/// Says where a control process listens.
#[must_use]
pub fn put_control(dir: &Directory, process: u128, made: ControlProcess) -> Planned<()> {
    let known = dir.controls.get(&process);
    let mut txn = Txn::default();
    if known.is_none_or(|known| known.record != made) {
        let at = key::control(process);
        txn = txn.when(at.clone(), revision(known)).put(at, made.encode());
    }
    Planned { txn, made: () }
}

/// Sets the policy called `name`.
///
/// # Errors
/// [`PlanError::BadCopies`], [`PlanError::BadName`].
pub fn set_policy(dir: &Directory, name: &str, policy: Policy) -> Result<Planned<()>, PlanError> {
    if policy.broken_rule().is_some() {
        return Err(PlanError::BadCopies {
            copies: policy.copies,
        });
    }
    if !is_name(name) {
        return Err(PlanError::BadName {
            name: name.chars().take(64).collect(),
        });
    }
    let current = revision(dir.policies.get(name));
    let txn = Txn::default()
        .when(key::policy(name), current)
        .put(key::policy(name), policy.encode());
    Ok(Planned { txn, made: () })
}
