//! Policies of directories: settings that the tree below inherits.

use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::Key;
use crate::op::Reply;
use crate::op::rename::DEPTH_MAX;
use crate::record;
use perigee_types::{Errno, InodeId};

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

pub(crate) fn get(draft: &mut Draft<'_>, inode: InodeId) -> Result<Reply, Refusal> {
    let mut at = inode;
    for _ in 0..DEPTH_MAX {
        if draft.directory(at)?.policy {
            let key = Key::Policy(at.index()).encode();
            return match draft.get(at.container(), &key)? {
                Some(value) => {
                    let settings = record::decode_policy(at.container(), &key, &value)?;
                    let from = Some(at);
                    Ok(Reply::Policy { from, settings })
                }
                None => Err(record::corrupt(
                    at.container(),
                    &key,
                    "a policy is not there",
                )),
            };
        }
        match draft.parent(at)? {
            Some(above) if above != at => at = above,
            Some(_) | None => {
                return Ok(Reply::Policy {
                    from: None,
                    settings: Vec::new(),
                });
            }
        }
    }
    Err(Errno::ELOOP.into())
}
