//! POSIX access control lists, in the form that the kernel passes as extended attributes.
//!
//! ```text
//! u32 version = 2, then for each entry: u16 tag, u16 permissions (rwx), u32 id; little-endian
//! ```
//!
//! The kernel checks access. Kept here is what ties a list to the mode bits: a list that says no
//! more than a mode is not stored, `chmod` changes the list, and a directory's default list gives
//! new entries theirs (POSIX.1e draft 17, 23.1; `fs/posix_acl.c` of Linux).

use perigee_types::Errno;

/// The attribute with the list that governs access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that new entries of a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// What the kernel stores where a tag has no id.
const NO_ID: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    UserObj,
    User,
    GroupObj,
    Group,
    Mask,
    Other,
}

impl Tag {
    const fn number(self) -> u16 {
        match self {
            Self::UserObj => 0x01,
            Self::User => 0x02,
            Self::GroupObj => 0x04,
            Self::Group => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0x01 => Self::UserObj,
            0x02 => Self::User,
            0x04 => Self::GroupObj,
            0x08 => Self::Group,
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    /// Where entries of this tag stand in a list; equal ranks may repeat only for named ids.
    const fn is_named(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A valid list: one entry each for the owner, the owning group and others, named users and
/// groups, and a mask when anyone is named; in the order of their tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Reads a list. `None`: it is empty, which asks for its removal. EINVAL: not a valid list.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() % 8 != 0 {
            return Err(Errno::EINVAL);
        }
        let mut entries = Vec::with_capacity(rest.len() / 8);
        for raw in rest.chunks_exact(8) {
            let &[t0, t1, p0, p1, i0, i1, i2, i3] = raw else {
                return Err(Errno::EINVAL);
            };
            let tag = Tag::from_number(u16::from_le_bytes([t0, t1])).ok_or(Errno::EINVAL)?;
            let permissions = u16::from_le_bytes([p0, p1]);
            let id = if tag.is_named() {
                u32::from_le_bytes([i0, i1, i2, i3])
            } else {
                NO_ID
            };
            if permissions > 7 || (tag.is_named() && id == NO_ID) {
                return Err(Errno::EINVAL);
            }
            entries.push(Entry {
                tag,
                permissions,
                id,
            });
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self(entries);
        if acl.is_valid() {
            Ok(Some(acl))
        } else {
            Err(Errno::EINVAL)
        }
    }

    fn is_valid(&self) -> bool {
        let rank = |entry: &Entry| entry.tag.number();
        let ordered = self.0.windows(2).all(|pair| match pair {
            [a, b] => rank(a) < rank(b) || (rank(a) == rank(b) && a.tag.is_named()),
            _ => true,
        });
        let has = |tag| self.0.iter().any(|entry| entry.tag == tag);
        let named = self.0.iter().any(|entry| entry.tag.is_named());
        ordered
            && has(Tag::UserObj)
            && has(Tag::GroupObj)
            && has(Tag::Other)
            && (!named || has(Tag::Mask))
    }

    /// The list as stored and shown.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.number().to_le_bytes());
            out.extend_from_slice(&entry.permissions.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    /// Whether a mode says the same.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0
            .iter()
            .all(|entry| matches!(entry.tag, Tag::UserObj | Tag::GroupObj | Tag::Other))
    }

    /// The tag whose permissions show as those of the group.
    fn group_class(&self) -> Tag {
        let masked = self.0.iter().any(|entry| entry.tag == Tag::Mask);
        if masked { Tag::Mask } else { Tag::GroupObj }
    }

    /// The nine permission bits that show the list in a mode.
    pub(crate) fn mode(&self) -> u32 {
        let group = self.group_class();
        self.0.iter().fold(0, |mode, entry| {
            let bits = u32::from(entry.permissions);
            mode | match entry.tag {
                Tag::UserObj => bits << 6,
                Tag::Other => bits,
                tag if tag == group => bits << 3,
                Tag::User | Tag::GroupObj | Tag::Group | Tag::Mask => 0,
            }
        })
    }

    /// Applies `change` to each entry that shows in the mode, with the entry's three bits of `mode`.
    fn change_classes(&mut self, mode: u32, change: impl Fn(u16, u16) -> u16) {
        let group = self.group_class();
        for entry in &mut self.0 {
            let bits = match entry.tag {
                Tag::UserObj => mode >> 6,
                Tag::Other => mode,
                tag if tag == group => mode >> 3,
                Tag::User | Tag::GroupObj | Tag::Group | Tag::Mask => continue,
            };
            entry.permissions = change(entry.permissions, (bits & 7) as u16);
        }
    }

    /// What `chmod` to `mode` makes of the list.
    pub(crate) fn chmod(mut self, mode: u32) -> Self {
        self.change_classes(mode, |_, bits| bits);
        self
    }

    /// What a new entry gets that is created with `mode` in a directory with this default list: its
    /// access list, and its permission bits.
    pub(crate) fn inherit(mut self, mode: u32) -> (Self, u32) {
        self.change_classes(mode, |permissions, bits| permissions & bits);
        let mode = self.mode();
        (self, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: Tag, permissions: u16, id: u32) -> Entry {
        Entry {
            tag,
            permissions,
            id,
        }
    }

    /// owner rwx, user 10 rw, group r-x, mask `mask`, other r--.
    fn sample(mask: u16) -> Acl {
        Acl(vec![
            entry(Tag::UserObj, 7, NO_ID),
            entry(Tag::User, 6, 10),
            entry(Tag::GroupObj, 5, NO_ID),
            entry(Tag::Mask, mask, NO_ID),
            entry(Tag::Other, 4, NO_ID),
        ])
    }

    #[test]
    fn a_list_reads_back_as_it_was_written() {
        assert_eq!(Acl::parse(&sample(7).encode()), Ok(Some(sample(7))));
    }

    #[test]
    fn the_mask_shows_as_the_group_and_chmod_changes_it() {
        assert_eq!(sample(6).mode(), 0o764);
        let changed = sample(6).chmod(0o610);
        assert_eq!(changed.mode(), 0o610);
        assert_eq!(changed.0[2], entry(Tag::GroupObj, 5, NO_ID));
    }

    #[test]
    fn inheritance_takes_no_more_than_the_creator_asks_for() {
        let (acl, mode) = sample(7).inherit(0o640);
        assert_eq!(mode, 0o640);
        assert_eq!(acl.0[3], entry(Tag::Mask, 4, NO_ID));
        assert_eq!(acl.0[1], entry(Tag::User, 6, 10));
    }

    #[test]
    fn invalid_lists_are_refused() {
        let mut no_mask = sample(7);
        no_mask.0.remove(3);
        let mut twice = sample(7);
        twice.0.insert(0, entry(Tag::UserObj, 7, NO_ID));
        let mut disordered = sample(7);
        disordered.0.swap(0, 1);
        let mut unnamed = sample(7);
        unnamed.0[1].id = NO_ID;
        let mut too_much = sample(7);
        too_much.0[0].permissions = 8;
        for acl in [no_mask, twice, disordered, unnamed, too_much] {
            assert_eq!(Acl::parse(&acl.encode()), Err(Errno::EINVAL));
        }
        let mut version = sample(7).encode();
        version[0] = 1;
        assert_eq!(Acl::parse(&version), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&sample(7).encode()[..15]), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&VERSION.to_le_bytes()), Ok(None));
    }
}
