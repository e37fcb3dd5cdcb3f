//! Law 4, for names: once a change was ordered, no other session keeps what it changed, and none begins to once it was
//! answered.

use crate::clock::Drift;
use crate::names::history::Executed;
use crate::names::leases::Name;
use crate::names::session::names_of;
use crate::names::world::Names;
use perigee_types::SessionId;

const LAW: &str = "cached";

/// A session was told that its change is done.
pub(crate) fn on_answered(world: &mut Names, executed: &Executed) {
    if world.drift == Drift::Beyond {
        // A session's clock says for how long it keeps a name.
        return;
    }
    for name in names_of(&executed.operation) {
        let change = (executed.place, executed.session);
        let answered = world.history.answered.entry(name.clone()).or_insert(change);
        if executed.place > answered.0 {
            *answered = change;
        }
        look(world, executed, &name);
    }
}

/// The record of a change is in the owner's log, and all who kept what it touches were told: somebody may be shown it.
pub(crate) fn on_ordered(world: &mut Names) {
    let ordered = world.history.executed.last().cloned();
    if let Some(executed) = ordered.filter(|_| world.drift == Drift::Within) {
        for name in names_of(&executed.operation) {
            look(world, &executed, &name);
        }
    }
}

/// Looks for a session that keeps a name as it was before a change of another one.
fn look(world: &mut Names, executed: &Executed, name: &Name) {
    let mut stale = None;
    for (host, machine) in world.hosts.iter().enumerate() {
        if machine.paused_until > world.now {
            // What a stopped process's mounts keep is bounded by their term alone.
            continue;
        }
        let now = machine.clock.at(world.now);
        let sessions = machine.run.iter().flat_map(|process| &process.sessions);
        for session in sessions.filter(|session| session.id() != executed.session) {
            let kept = session.cache.names.get(name);
            if kept.is_some_and(|kept| kept.until > now && kept.place < executed.place) {
                stale = Some((host, session.id()));
            }
        }
    }
    if let Some((host, session)) = stale {
        accuse(world, session, name, host);
    }
}

/// A session keeps a name, as of an operation's place.
pub(crate) fn on_kept(world: &mut Names, session: SessionId, name: Name, place: usize) {
    let answered = world.history.answered.get(&name);
    let answered = answered.filter(|_| world.drift == Drift::Within);
    if answered.is_some_and(|(change, by)| *change > place && *by != session) {
        let host = crate::names::session::session_host(session);
        accuse(world, session, &name, host);
    }
}

fn accuse(world: &mut Names, session: SessionId, (dir, name): &Name, host: usize) {
    let name = String::from_utf8_lossy(name);
    let what = format!(
        "{session} on n{} keeps {dir}/{name} after a change of it",
        host + 1
    );
    world.accuse(LAW, what);
}
