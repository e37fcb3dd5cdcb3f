//! A transaction is atomic and ends: after the chaos nobody is in doubt, no decision waits for anyone, every container is
//! served by one owner, and all its members hold the one committed state.

use crate::names::world::Names;
use perigee_meta::Key;
use perigee_types::ContainerId;

const LAW: &str = "settled";

/// Checked at the end.
pub(crate) fn check(world: &mut Names) {
    let containers: Vec<ContainerId> = world.stores.keys().copied().collect();
    for container in containers {
        if let Some(what) = fault(world, container) {
            return world.accuse(LAW, format!("{container}: {what}"));
        }
    }
    if let Some(session) = world.probed.first() {
        let what = format!("the last operation of {session} has no answer");
        world.accuse(LAW, what);
    }
}

fn fault(world: &Names, container: ContainerId) -> Option<String> {
    let rows = world.history.rows.get(&container)?;
    for key in rows.keys() {
        match Key::decode(key) {
            Some(Key::Intent(tx)) => return Some(format!("{tx} is still prepared")),
            Some(Key::Decision(tx)) => {
                return Some(format!("the decision about {tx} is still kept"));
            }
            _ => {}
        }
    }
    let mut owners = 0;
    for (host, machine) in world.hosts.iter().enumerate() {
        let member = machine.run.as_ref()?.members.get(&container)?;
        let now = machine.clock.at(world.now);
        owners += u32::from(member.chain.lease_until(now).is_some());
        if member.rows != *rows {
            let applied = member.applied;
            let count = world.history.committed.get(&container).map_or(0, Vec::len);
            return Some(format!(
                "n{} has another state, up to {applied}, than was committed, up to s{count}",
                host + 1
            ));
        }
    }
    (owners != 1).then(|| format!("it has {owners} owners"))
}
