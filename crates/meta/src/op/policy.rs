//! Policies of directories: settings that the tree below inherits.

use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::op::rename::DEPTH_MAX;
use crate::op::{Reply, Setting};
use crate::record;
use crate::view::View;
use perigee_types::{ContainerId, Errno, InodeId};

/// The most settings of one directory.
const SETTINGS_MAX: usize = 64;
/// The longest setting, name and value, in bytes.
const SETTING_LEN_MAX: usize = 4096;

pub(crate) fn set(
    draft: &mut Draft<'_>,
    inode: InodeId,
    policy: &[(String, String)],
) -> Result<Reply, Refusal> {
    let mut directory = draft.live_directory(inode)?;
    write(draft, inode, policy)?;
    directory.policy = !policy.is_empty();
    directory.ctime = draft.now();
    draft.set_inode(inode, directory);
    Ok(Reply::Done)
}

/// Stores the settings of a directory, whose record the caller marks; none are removed.
pub(crate) fn write(
    draft: &mut Draft<'_>,
    inode: InodeId,
    policy: &[(String, String)],
) -> Result<(), Refusal> {
    let fits = |(name, value): &(String, String)| {
        !name.is_empty() && name.len() + value.len() <= SETTING_LEN_MAX
    };
    if policy.len() > SETTINGS_MAX || !policy.iter().all(fits) {
        return Err(Errno::EINVAL.into());
    }
    let key = Key::Policy(inode.index()).encode();
    if policy.is_empty() {
        draft.delete(inode.container(), key);
    } else {
        draft.put(inode.container(), key, record::encode_policy(policy));
    }
    Ok(())
}

/// Each setting comes from the nearest directory that has it.
pub(crate) fn get(draft: &mut Draft<'_>, inode: InodeId) -> Result<Reply, Refusal> {
    let mut found: Vec<Setting> = Vec::new();
    let asked = draft.inode(inode)?;
    let mut next = match asked.is_directory() {
        true => Some(inode),
        false => asked.parent,
    };
    for _ in 0..DEPTH_MAX {
        let Some(at) = next else {
            return Ok(Reply::Policy(found));
        };
        let directory = draft.find_inode(at)?;
        if directory.is_some_and(|directory| directory.policy) {
            for (name, value) in read(draft, at)? {
                if !found.iter().any(|setting| setting.name == name) {
                    let from = at;
                    found.push(Setting { name, value, from });
                }
            }
        }
        next = draft.parent(at)?.filter(|above| *above != at);
    }
    Err(Errno::ELOOP.into())
}

/// The directories of a container that have a setting of their own, and what it is.
///
/// Errors: [`Refusal::Corrupt`], and what the view says.
pub fn settings_named(
    container: ContainerId,
    view: &mut dyn View,
    name: &str,
) -> Result<Vec<(InodeId, String)>, Refusal> {
    let (from, to) = key::policies();
    let mut found = Vec::new();
    for (key, value) in view.scan(container, &from, &to, usize::MAX)? {
        let Some(Key::Policy(index)) = Key::decode(&key) else {
            return Err(record::corrupt(container, &key, "not the key of a policy"));
        };
        let settings = record::decode_policy(container, &key, &value)?;
        let named = settings.into_iter().find(|(known, _)| known == name);
        found.extend(named.map(|(_, value)| (InodeId::new(container, index), value)));
    }
    Ok(found)
}

/// The settings of a directory that has some.
pub(crate) fn read(
    draft: &mut Draft<'_>,
    directory: InodeId,
) -> Result<Vec<(String, String)>, Refusal> {
    let container = directory.container();
    let key = Key::Policy(directory.index()).encode();
    match draft.get(container, &key)? {
        Some(value) => record::decode_policy(container, &key, &value),
        None => Err(record::corrupt(container, &key, "a policy is not there")),
    }
}
