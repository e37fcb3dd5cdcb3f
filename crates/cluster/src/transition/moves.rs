//! Copies of containers that are to lie elsewhere.

use super::{PlanError, Planned, revision};
use crate::codec::Record;
use crate::directory::Directory;
use crate::key;
use crate::model::Move;
use crate::rebalance::keeps_apart;
use crate::store::Txn;
use perigee_types::{ContainerId, NodeId};

/// Asks the owner of a container to have the copy of `from` on `to` instead.
///
/// # Errors
/// One of the three does not exist; `from` has no copy, or `to` has one; `to` takes no containers; another copy of the
/// container moves; the copies would lie on fewer sites or machines than they do.
pub fn begin_move(
    dir: &Directory,
    container: ContainerId,
    from: NodeId,
    to: NodeId,
) -> Result<Planned<Move>, PlanError> {
    let known = dir.containers.get(&container);
    let known = known.ok_or(PlanError::UnknownContainer { container })?;
    let chain = &known.record.chain;
    for node in [from, to] {
        dir.node(node).ok_or(PlanError::UnknownNode { node })?;
    }
    if !chain.contains(&from) {
        let node = from;
        return Err(PlanError::HoldsNoCopy { container, node });
    }
    if chain.contains(&to) {
        let node = to;
        return Err(PlanError::HoldsCopy { container, node });
    }
    let taker = dir.nodes.get(&to).filter(|to| to.record.takes_containers());
    let taker = taker.ok_or(PlanError::NoStorage { node: to })?;
    if dir.move_of(container, chain).is_some() {
        return Err(PlanError::Moving { container });
    }
    if !keeps_apart(dir, chain, from, to) {
        let node = from;
        return Err(PlanError::FewerPlaces { container, node });
    }
    let made = Move {
        container,
        from,
        to,
    };
    let at = key::moving(container);
    let txn = Txn::default()
        .when(key::container(container), Some(known.revision))
        .when(key::node(to), Some(taker.revision))
        .when(at.clone(), revision(dir.moves.get(&container)))
        .put(at, made.encode());
    Ok(Planned { txn, made })
}

/// Which record of a move is to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// Any: a copy that is half there goes again.
    Any,
    /// One that is over, or can come to nothing.
    Over,
}

/// Forgets the move of a container; gives it, if there was one.
#[must_use]
pub fn end_move(dir: &Directory, container: ContainerId, ends: Ends) -> Planned<Option<Move>> {
    let chain = dir.container(container).map(|record| &record.chain);
    let under_way = chain.is_some_and(|chain| dir.move_of(container, chain).is_some());
    let known = dir.moves.get(&container);
    let Some(known) = known.filter(|_| ends == Ends::Any || !under_way) else {
        let txn = Txn::default();
        return Planned { txn, made: None };
    };
    let at = key::moving(container);
    let txn = Txn::default()
        .when(at.clone(), Some(known.revision))
        .delete(at);
    let made = Some(known.record);
    Planned { txn, made }
}
