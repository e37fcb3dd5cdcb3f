//! Containers: made once, and then given one chain after another.

use super::{PlanError, Planned, revision};
use crate::codec::Record;
use crate::directory::Directory;
use crate::key;
use crate::model::{CHAIN_LEN_MAX, Container, Grown, Policy, Purpose};
use crate::store::Txn;
use perigee_types::{ContainerId, Epoch, NodeId};

/// Adds a new container to `txn`. The members are not checked.
pub(super) fn add_container(
    dir: &Directory,
    txn: Txn,
    chain: Vec<NodeId>,
    copies: u8,
    home: NodeId,
) -> Result<(Txn, Container), PlanError> {
    let next = dir.next_container.as_ref();
    let id = next.map_or(ContainerId::ROOT, |known| known.record);
    if id > ContainerId::MAX {
        return Err(PlanError::NoMoreContainers);
    }
    let container = Container {
        id,
        epoch: Epoch(1),
        chain,
        copies,
        home,
    };
    let txn = txn
        .when(key::NEXT_CONTAINER, revision(dir.next_container.as_ref()))
        .when(key::container(id), None)
        .put(key::NEXT_CONTAINER, ContainerId(id.0 + 1).encode())
        .put(key::container(id), container.encode());
    Ok((txn, container))
}

/// Makes a further container for the node `home`, held by `chain`.
///
/// # Errors
/// The chain breaks the rules (see [`change_chain`]), or the number of copies does.
pub fn create_container(
    dir: &Directory,
    chain: Vec<NodeId>,
    copies: u8,
    home: NodeId,
) -> Result<Planned<Container>, PlanError> {
    if !(1..=CHAIN_LEN_MAX).contains(&usize::from(copies)) {
        return Err(PlanError::BadCopies { copies });
    }
    check_members(dir, &chain)?;
    let mut txn = Txn::default();
    for node in chain.iter().chain([&home]) {
        txn = compare_node(dir, txn, *node)?;
    }
    for node in &chain {
        check_takes(dir, *node)?;
    }
    let (txn, made) = add_container(dir, txn, chain, copies, home)?;
    Ok(Planned { txn, made })
}

/// Makes a container for one directory, with a policy of its own. It is nobody's home: `home` is the
/// node that holds it first.
///
/// # Errors
/// As [`create_container`].
pub fn create_own_container(
    dir: &Directory,
    chain: Vec<NodeId>,
    policy: &Policy,
) -> Result<Planned<Container>, PlanError> {
    let home = *chain.first().ok_or(PlanError::EmptyChain)?;
    let Planned { txn, made } = create_container(dir, chain, policy.copies, home)?;
    let name = key::policy_of(made.id);
    let txn = txn
        .when(key::policy(&name), None)
        .put(key::policy(&name), policy.encode());
    Ok(Planned { txn, made })
}

/// Sets the policy of a container that belongs to one directory; without one the default holds for it,
/// as long as it stays so.
///
/// # Errors
/// As [`set_copies`].
pub fn set_own_policy(
    dir: &Directory,
    id: ContainerId,
    policy: Option<&Policy>,
) -> Result<Planned<Container>, PlanError> {
    let default = dir.default_policy();
    let Planned { txn, made } = set_copies(dir, id, policy.unwrap_or(&default).copies)?;
    let name = key::policy_of(id);
    let txn = txn.when(key::policy(&name), revision(dir.policies.get(&name)));
    let txn = match policy {
        Some(policy) => txn.put(key::policy(&name), policy.encode()),
        None => txn
            .when(
                key::policy(key::DEFAULT_POLICY),
                revision(dir.policies.get(key::DEFAULT_POLICY)),
            )
            .delete(key::policy(&name)),
    };
    Ok(Planned { txn, made })
}

/// Makes a container part of the family of another one.
///
/// # Errors
/// [`PlanError::UnknownContainer`], of either.
pub fn grow(
    dir: &Directory,
    container: ContainerId,
    of: ContainerId,
    purpose: Purpose,
) -> Result<Planned<Grown>, PlanError> {
    for container in [container, of] {
        let known = dir.containers.get(&container);
        known.ok_or(PlanError::UnknownContainer { container })?;
    }
    let root = dir.root_of(of);
    let made = Grown {
        container,
        root,
        purpose,
    };
    let at = key::grown(container);
    // Containers stay, and so do their families: what was checked stays true.
    let txn = Txn::default()
        .when(at.clone(), revision(dir.grown.get(&container)))
        .put(at, made.encode());
    Ok(Planned { txn, made })
}

fn check_members(dir: &Directory, chain: &[NodeId]) -> Result<(), PlanError> {
    if chain.is_empty() {
        return Err(PlanError::EmptyChain);
    }
    if chain.len() > CHAIN_LEN_MAX {
        return Err(PlanError::LongChain {
            members: chain.len(),
        });
    }
    for (at, node) in chain.iter().enumerate() {
        if chain[..at].contains(node) {
            return Err(PlanError::DuplicateMember { node: *node });
        }
        if dir.node(*node).is_none() {
            return Err(PlanError::UnknownNode { node: *node });
        }
    }
    Ok(())
}

fn compare_node(dir: &Directory, txn: Txn, node: NodeId) -> Result<Txn, PlanError> {
    let known = dir.nodes.get(&node);
    let known = known.ok_or(PlanError::UnknownNode { node })?;
    Ok(txn.when(key::node(node), Some(known.revision)))
}

fn check_takes(dir: &Directory, node: NodeId) -> Result<(), PlanError> {
    match dir.node(node) {
        Some(record) if record.takes_containers() => Ok(()),
        Some(_) => Err(PlanError::NoStorage { node }),
        None => Err(PlanError::UnknownNode { node }),
    }
}

/// Gives a container a new chain: the only way in which ownership and membership ever change.
/// `expected` is the epoch that the proposer saw; `epoch` and `chain` are the new view.
///
/// # Errors
/// - [`PlanError::StaleEpoch`]: somebody else was first; [`PlanError::EpochSkips`]: not `expected` + 1.
/// - The chain is empty, too long, has a node twice, or a node that does not exist.
/// - A node that is new in it takes no containers, or is to own what it does not hold.
pub fn change_chain(
    dir: &Directory,
    id: ContainerId,
    expected: Epoch,
    epoch: Epoch,
    chain: Vec<NodeId>,
) -> Result<Planned<Container>, PlanError> {
    let known = dir.containers.get(&id);
    let known = known.ok_or(PlanError::UnknownContainer { container: id })?;
    let old = &known.record;
    if old.epoch != expected {
        return Err(PlanError::StaleEpoch {
            container: id,
            expected,
            current: old.epoch,
        });
    }
    if expected.0.checked_add(1) != Some(epoch.0) {
        return Err(PlanError::EpochSkips {
            old: expected,
            new: epoch,
        });
    }
    check_members(dir, &chain)?;
    if let Some(node) = chain.first().filter(|node| !old.chain.contains(node)) {
        return Err(PlanError::OwnerHoldsNothing { node: *node });
    }
    let mut txn = Txn::default().when(key::container(id), Some(known.revision));
    for node in chain.iter().filter(|node| !old.chain.contains(node)) {
        check_takes(dir, *node)?;
        // Were it drained meanwhile, `leave` would miss this container.
        txn = compare_node(dir, txn, *node)?;
    }
    let made = Container {
        epoch,
        chain,
        ..old.clone()
    };
    let txn = txn.put(key::container(id), made.encode());
    Ok(Planned { txn, made })
}

/// Sets how many copies a container should have.
///
/// # Errors
/// [`PlanError::UnknownContainer`], [`PlanError::BadCopies`].
pub fn set_copies(
    dir: &Directory,
    id: ContainerId,
    copies: u8,
) -> Result<Planned<Container>, PlanError> {
    if !(1..=CHAIN_LEN_MAX).contains(&usize::from(copies)) {
        return Err(PlanError::BadCopies { copies });
    }
    let known = dir.containers.get(&id);
    let known = known.ok_or(PlanError::UnknownContainer { container: id })?;
    let made = Container {
        copies,
        ..known.record.clone()
    };
    let txn = Txn::default()
        .when(key::container(id), Some(known.revision))
        .put(key::container(id), made.encode());
    Ok(Planned { txn, made })
}
