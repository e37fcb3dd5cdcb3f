//! This program, as it is carried over to hosts that lack it.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// A program that runs on its own.
#[derive(Debug, Clone)]
pub struct Program {
    /// The file.
    pub bytes: Arc<Vec<u8>>,
    /// Names exactly this file.
    pub name: String,
    /// System and machine that run it, as `uname -sm` says.
    pub runs_on: String,
}

/// Offsets in the header of a 64-bit ELF file (System V ABI, ELF header).
mod header {
    pub const PROGRAM_HEADERS: usize = 0x20;
    pub const SECTION_HEADERS: usize = 0x28;
    pub const PROGRAM_HEADER_LEN: usize = 0x36;
    pub const PROGRAM_HEADER_COUNT: usize = 0x38;
    pub const SECTION_FIELDS: std::ops::Range<usize> = 0x3a..0x40;
    pub const LEN: usize = 0x40;
    /// In a program header.
    pub const FILE_OFFSET: usize = 0x08;
    pub const FILE_LEN: usize = 0x20;
}

impl Program {
    /// The program of a file, without what only debuggers read.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(file: &Path) -> io::Result<Self> {
        let mut bytes = std::fs::read(file)?;
        if let Some(len) = loaded_len(&bytes) {
            bytes.truncate(len);
            bytes[header::SECTION_HEADERS..header::SECTION_HEADERS + 8].fill(0);
            bytes[header::SECTION_FIELDS].fill(0);
        }
        let uname = rustix::system::uname();
        let runs_on = format!(
            "{} {}",
            uname.sysname().to_string_lossy(),
            uname.machine().to_string_lossy()
        );
        Ok(Self {
            name: name(&bytes),
            bytes: Arc::new(bytes),
            runs_on,
        })
    }
}

/// What tells builds from each other: the version, a sum over all bytes (FNV-1a), and their number.
fn name(bytes: &[u8]) -> String {
    let forward = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!(
        "{}-{forward:016x}-{}",
        env!("CARGO_PKG_VERSION"),
        bytes.len()
    )
}

/// How much of an ELF file is loaded when it runs; `None`: it is no such file.
fn loaded_len(bytes: &[u8]) -> Option<usize> {
    const CLASS_64_LITTLE: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
    if bytes.len() < header::LEN || !bytes.starts_with(&CLASS_64_LITTLE) {
        return None;
    }
    let u64_at = |at: usize| {
        let field = bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(field.try_into().ok()?))
    };
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let first = usize::try_from(u64_at(header::PROGRAM_HEADERS)?).ok()?;
    let len = usize::from(u16_at(header::PROGRAM_HEADER_LEN)?);
    let count = usize::from(u16_at(header::PROGRAM_HEADER_COUNT)?);
    let mut end = first.checked_add(len.checked_mul(count)?)?;
    for number in 0..count {
        let at = first.checked_add(number * len)?;
        let field = |field: usize| u64_at(at.checked_add(field)?);
        let part = field(header::FILE_OFFSET)?.checked_add(field(header::FILE_LEN)?)?;
        end = end.max(usize::try_from(part).ok()?);
    }
    (end <= bytes.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// What is carried runs, and is smaller than the file with all that debuggers read.
    #[test]
    fn what_is_left_of_a_program_runs() {
        let me = std::env::current_exe().expect("a test is a program");
        let program = Program::of(&me).expect("it can be read");
        let whole = std::fs::metadata(&me).expect("it is there").len();
        assert!((program.bytes.len() as u64) < whole);
        let dir = tempfile::tempdir().expect("a directory");
        let copy = dir.path().join("copy");
        std::fs::write(&copy, &program.bytes[..]).expect("written");
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o700)).expect("set");
        let listed = Command::new(&copy)
            .arg("--list")
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(
            text.contains("what_is_left_of_a_program_runs"),
            "{listed:?}"
        );
    }

    #[test]
    fn what_is_no_program_is_taken_as_it_is() {
        assert_eq!(loaded_len(b"#!/bin/sh\n"), None);
        let mut lies = vec![0; 100];
        lies[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        lies[header::PROGRAM_HEADERS..header::PROGRAM_HEADERS + 8].fill(0xff);
        lies[header::PROGRAM_HEADER_COUNT] = 3;
        assert_eq!(loaded_len(&lies), None);
    }
}
