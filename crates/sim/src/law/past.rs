//! A checkpoint shows what the container was when its record was ordered, as long as it is wanted, whatever has changed and
//! whoever has owned since.

use crate::names::host::Rows;
use crate::names::world::Names;
use perigee_meta::memory::MemView;
use perigee_meta::past::{Checkpoints, PastView};
use perigee_meta::{Key, View};
use perigee_types::{Batch, CheckpointId, ContainerId};
use std::collections::BTreeSet;

const LAW: &str = "past";

/// What programs see of names and attributes.
fn shown(rows: &Rows) -> Rows {
    let of_past = |key: &[u8]| Key::decode(key).is_some_and(|key| key.is_of_past());
    rows.iter()
        .filter(|(key, _)| of_past(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// A record is committed: its checkpoint is to be as the state is now.
pub(crate) fn on_committed(world: &mut Names, container: ContainerId, batch: &Batch) {
    for mutation in &batch.mutations {
        let Some(Key::Checkpoint(at)) = Key::decode(&mutation.key) else {
            continue;
        };
        let state = world.history.rows.get(&container).cloned();
        let state = state.unwrap_or_default();
        let mut view = MemView::new();
        view.states.insert(container, state.clone());
        let stays = Checkpoints::load(container, &mut view)
            .is_ok_and(|checkpoints| checkpoints.get(at).is_some());
        let expected = &mut world.history.past;
        if stays {
            expected.entry((container, at)).or_insert(shown(&state));
        } else {
            expected.remove(&(container, at));
        }
    }
}

/// Checked at the end.
pub(crate) fn check(world: &mut Names) {
    let mut what = None;
    for ((container, at), expected) in &world.history.past {
        let state = world.history.rows.get(container).cloned();
        what = what.or_else(|| fault(*container, *at, state.unwrap_or_default(), expected));
    }
    if let Some(what) = what {
        world.accuse(LAW, what);
    }
}

fn fault(container: ContainerId, at: CheckpointId, state: Rows, expected: &Rows) -> Option<String> {
    let now = shown(&state);
    let mut view = MemView::new();
    view.states.insert(container, state);
    let checkpoints = match Checkpoints::load(container, &mut view) {
        Ok(checkpoints) => checkpoints,
        Err(refusal) => return Some(refusal.to_string()),
    };
    let Some(checkpoint) = checkpoints.get(at) else {
        return Some(format!("{container} {at} is gone though it is wanted"));
    };
    let keys: BTreeSet<&Vec<u8>> = now.keys().chain(expected.keys()).collect();
    let mut past = PastView::new(container, at, &mut view);
    for key in keys {
        let index = Key::decode(key).and_then(|key| key.inode());
        if !index.is_some_and(|index| checkpoint.has(index)) {
            continue;
        }
        let seen = past.get(container, key).ok().flatten();
        if seen.as_ref() != expected.get(key) {
            let what = Key::decode(key);
            return Some(format!(
                "{container} {at} shows {what:?} as {seen:02x?}, and it was {:02x?}",
                expected.get(key)
            ));
        }
    }
    None
}
