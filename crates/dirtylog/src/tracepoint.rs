//! The tracepoint: its number, and where its record has what.

use super::Unavailable;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

pub(crate) const NAME: &str = "writeback:writeback_dirty_folio";
const PATH: &str = "events/writeback/writeback_dirty_folio";

/// Where the tracepoint's record has what a program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its number.
    pub id: u64,
    /// Of the inode's number, eight bytes.
    pub inode_at: i16,
    /// Of the number of the folio's first page, eight bytes.
    pub page_at: i16,
}

pub(crate) fn find() -> Result<Place, Unavailable> {
    let failed = |what| move |why: io::Error| Unavailable::Tracepoint { what, why };
    let folder = tracefs().map_err(failed("open the folder"))?;
    let id = read(&folder, "id").map_err(failed("read the number"))?;
    let id = id.trim().parse();
    let id = id.map_err(|_| Unavailable::Format {
        found: "its number is none".to_owned(),
    })?;
    let format = read(&folder, "format").map_err(failed("read the format"))?;
    Ok(Place {
        id,
        inode_at: offset(&format, "ino")?,
        page_at: offset(&format, "index")?,
    })
}

/// A tracefs of our own, which is mounted nowhere.
fn tracefs() -> io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    Ok(fsmount(&context, flags, attributes)?)
}

fn read(folder: &OwnedFd, name: &str) -> io::Result<String> {
    let path = Path::new(PATH).join(name);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = File::from(openat(folder, &path, flags, Mode::empty())?);
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Where a field of eight bytes is.
fn offset(format: &str, name: &str) -> Result<i16, Unavailable> {
    let wrong = || Unavailable::Format {
        found: format!("no field `{name}` of eight bytes"),
    };
    let field = format.lines().find_map(|line| {
        let mut parts = line.trim().split(';');
        let declared = parts.next()?.strip_prefix("field:")?;
        (declared.rsplit(' ').next()? == name).then_some(parts)
    });
    let (mut at, mut size) = (None, None);
    for part in field.ok_or_else(wrong)? {
        match part.trim().split_once(':') {
            Some(("offset", value)) => at = value.parse().ok(),
            Some(("size", value)) => size = value.parse::<u32>().ok(),
            _ => {}
        }
    }
    at.filter(|_| size == Some(8)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name_and_has_to_have_eight_bytes() {
        let format = "name: x\nID: 7\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
                      \tfield:char name[32];\toffset:8;\tsize:32;\tsigned:0;\n\
                      \tfield:ino_t ino;\toffset:40;\tsize:8;\tsigned:0;\n\
                      \tfield:unsigned int index;\toffset:48;\tsize:4;\tsigned:0;\n";
        assert_eq!(offset(format, "ino").unwrap(), 40);
        assert!(offset(format, "index").is_err());
        assert!(offset(format, "missing").is_err());
    }
}
