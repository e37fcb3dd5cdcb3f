//! A large file that is written and read from its beginning to its end.

use crate::content::Content;
use perigee_testbed::{Call, Checked, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

pub(crate) const MIB: usize = 1 << 20;

/// Makes a file, and says which piece of content is where.
pub(crate) fn make(content: &mut Content, path: &Path, mib: u64) -> Checked<(File, Vec<usize>)> {
    let what = || format!("write {}", path.display());
    let mut file = File::create_new(path).call(what)?;
    let mut places = Vec::new();
    for _ in 0..mib {
        let (place, bytes) = content.next_with_place(MIB);
        file.write_all(bytes).call(what)?;
        places.push(place);
    }
    Ok((file, places))
}

/// Reads a file, and looks at nothing.
pub(crate) fn read(path: &Path, mib: u64) -> Checked {
    let what = || format!("read {}", path.display());
    let mut piece = vec![0; MIB];
    let mut file = File::open(path).call(what)?;
    for _ in 0..mib {
        file.read_exact(&mut piece).call(what)?;
    }
    Ok(())
}

/// Whether a file has what [`make`] has said.
pub(crate) fn check(content: &Content, path: &Path, places: &[usize]) -> Checked {
    let what = || format!("read {}", path.display());
    let mut file = File::open(path).call(what)?;
    let mut piece = vec![0; MIB];
    for (number, place) in places.iter().enumerate() {
        file.read_exact(&mut piece).call(what)?;
        let right = piece == content.at(*place, MIB);
        ensure!(right, "{}: other bytes in MiB {number}", path.display());
    }
    Ok(())
}
