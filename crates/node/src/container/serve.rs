//! What a container's members ask of each other.

use super::in_place::leave_out;
use super::{Container, Elsewhere, Failed, File};
use bytes::{Bytes, BytesMut};
use perigee_proto::message::data::{Fetch, Fetched, Region};
use perigee_replica::{Input, Message, Role};
use perigee_store::StoreError;
use perigee_types::limits::IO_LEN_MAX;
use perigee_types::{ByteRange, Errno, InodeId, NodeId, Version};
use std::sync::Arc;
use tracing::{debug, warn};

/// The most bytes that one fetch may ask for.
pub(super) const FETCH_BYTES_MAX: u64 = 8 << 20;

impl Container {
    /// A message of the replication protocol from another member.
    pub(crate) fn receive(self: &Arc<Self>, from: NodeId, payload: &[u8]) {
        match perigee_proto::decode::<Message>(payload) {
            Ok(message) => self.step(Input::Receive { from, message }),
            Err(error) => warn!(container = %self.id, %from, %error, "message dropped"),
        }
    }

    /// Gives a member the regions that it lacks. Blocks on the disk.
    pub(crate) fn fetch_for(self: &Arc<Self>, request: &Fetch) -> Result<(Fetched, Bytes), Failed> {
        // A peer may say what adds up past the largest number.
        let lens = request.regions.iter().map(|wanted| wanted.range.len());
        let asked = lens.fold(0, u64::saturating_add);
        if asked > FETCH_BYTES_MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut payload = BytesMut::with_capacity(asked as usize);
        let mut regions = Vec::with_capacity(request.regions.len());
        for wanted in &request.regions {
            let start = payload.len();
            let (inode, range) = (wanted.inode, wanted.range);
            let (mut region, version) = self.region(inode, range, request.older, &mut payload)?;
            if let (Region::Bytes { .. }, Some(in_place)) = (&region, &wanted.in_place) {
                region = leave_out(in_place, &mut payload, start).unwrap_or(region);
            }
            regions.push((region, version));
        }
        Ok((Fetched { regions }, payload.freeze()))
    }

    /// Reads one region while no write is half-way between its bytes and its record (rule F1).
    fn region(
        self: &Arc<Self>,
        inode: InodeId,
        range: ByteRange,
        older: bool,
        payload: &mut BytesMut,
    ) -> Result<(Region, Version), Failed> {
        if inode.container() != self.id {
            return Err(Errno::EINVAL.into());
        }
        let file = match self.file(inode) {
            Ok(file) => file,
            // Said of that file alone: an error would be of all that was asked for.
            Err(StoreError::Removed { .. }) => return Ok((Region::Gone, Version::default())),
            Err(error) => return Err(self.store_refused(&error).into()),
        };
        let start = payload.len();
        self.beside_writers(inode, |writer| {
            payload.truncate(start);
            let _still = file.still.write();
            let reigns = Self::reign(&self.state.lock(), self.env.clock.now()).is_ok();
            // Before its version is asked for: what it finds gets a record of its own.
            let as_it_is = writer
                .filter(|_| reigns)
                .map(|writer| self.read_unseen(&file, range, writer));
            let version = match self.version_of(inode, range, older)? {
                Has::Version(version) => version,
                Has::Nothing(region, version) => return Ok((region, version)),
                Has::Older => {
                    let region = self.older(inode, &file, range, payload);
                    return Ok((region, Version::default()));
                }
            };
            // The version is an owner's, or a member's, as the bytes are.
            let still_reigns = Self::reign(&self.state.lock(), self.env.clock.now()).is_ok();
            if writer.is_some() && reigns != still_reigns {
                return Err(Elsewhere::NotReady.into());
            }
            if as_it_is.is_none()
                && let Ok(Some(len)) = file.object.hole_len(range)
            {
                return Ok((Region::Zeros { len }, version));
            }
            let read = match as_it_is {
                Some(read) => read.map(|bytes| payload.extend_from_slice(&bytes)),
                None => read_region(&file, range, payload),
            };
            if let Err(error) = read {
                payload.truncate(start);
                // Corrupt bytes are noted, and fetched from others.
                self.read_failed(inode, &error);
                return Ok((unreadable(inode, &error), version));
            }
            let len = (payload.len() - start) as u64;
            if perigee_store::is_hole(&payload[start..]) {
                payload.truncate(start);
                return Ok((Region::Zeros { len }, version));
            }
            Ok((Region::Bytes { len }, version))
        })
    }

    /// What this node has of a region, while the file is still. What it owns has a record from here on.
    fn version_of(
        self: &Arc<Self>,
        inode: InodeId,
        range: ByteRange,
        older: bool,
    ) -> Result<Has, Failed> {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        let elsewhere = match Self::reign(&st, now) {
            Ok(_) => {
                if st.dirty.shows_in(inode, range) {
                    self.record_writes(&mut st, now, inode);
                    if st.dirty.get(inode).is_some() {
                        return Err(Elsewhere::NotReady.into());
                    }
                }
                return Ok(match st.pull.lost(inode, range) {
                    Some(part) => Has::Nothing(Region::Lost { part }, st.chain.content_version()),
                    None => Has::Version(st.content_version_of(inode)),
                });
            }
            Err(elsewhere) => elsewhere,
        };
        // Not the owner: the owner itself may ask, for what it lacks. What is missing here, too, is said of that
        // region alone: an error would be of all that was asked for.
        // What has no record is nobody else's.
        if st.unsent.holding().keeps(inode, range) {
            return Ok(Has::Nothing(Region::Missing, Version::default()));
        }
        if !matches!(st.role, Role::Replica { .. }) {
            return Err(elsewhere.into());
        }
        Ok(match self.member_version(&st, inode, range) {
            Some(version) => Has::Version(version),
            None if older && st.pull.has_older(inode, range) => Has::Older,
            // The owner's older bytes must not pass for what a disk spoiled here.
            None if st.pull.is_unreadable(inode, range) => {
                Has::Nothing(Region::Unreadable, Version::default())
            }
            None => Has::Nothing(Region::Missing, Version::default()),
        })
    }
}

/// What a node has of a region.
enum Has {
    /// What this version says.
    Version(Version),
    /// Older content alone.
    Older,
    /// Nothing, which is answered so.
    Nothing(Region, Version),
}

fn read_region(file: &File, range: ByteRange, payload: &mut BytesMut) -> Result<(), StoreError> {
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(IO_LEN_MAX as u64) as usize;
        let filled = payload.len();
        payload.resize(filled + len, 0);
        let read = file.object.read(at, &mut payload[filled..])?;
        payload.truncate(filled + read);
        at += read as u64;
        if read < len {
            break;
        }
    }
    Ok(())
}

impl Container {
    /// What is in place of a region, which is older content.
    fn older(
        &self,
        inode: InodeId,
        file: &File,
        range: ByteRange,
        payload: &mut BytesMut,
    ) -> Region {
        match file.object.read_older(range) {
            Ok(Some(bytes)) => {
                payload.extend_from_slice(&bytes);
                Region::Older {
                    len: bytes.len() as u64,
                }
            }
            Ok(None) => Region::Unreadable,
            Err(error) => unreadable(inode, &error),
        }
    }
}

fn unreadable(inode: InodeId, error: &StoreError) -> Region {
    if let StoreError::Removed { .. } = error {
        return Region::Gone;
    }
    debug!(%inode, %error, "region cannot be given to a member");
    Region::Unreadable
}
