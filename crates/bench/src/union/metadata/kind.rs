//! Kinds of operations.

use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What is done with each name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Open as a new file, and close.
    Create,
    /// Ask for the attributes.
    Stat,
    /// Open for reading, and close.
    Open,
    /// Change the permission bits.
    Chmod,
    /// Remove what [`Kind::Create`] has made.
    Unlink,
    /// Make a directory.
    Mkdir,
    /// Remove what [`Kind::Mkdir`] has made.
    Rmdir,
}

impl Kind {
    /// In the order in which they are done.
    pub const ALL: [Self; 7] = [
        Self::Create,
        Self::Stat,
        Self::Open,
        Self::Chmod,
        Self::Unlink,
        Self::Mkdir,
        Self::Rmdir,
    ];

    /// Its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Open => "open+close",
            _ => self.key(),
        }
    }

    /// Its name in files.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Open => "open",
            Self::Chmod => "chmod",
            Self::Unlink => "unlink",
            Self::Mkdir => "mkdir",
            Self::Rmdir => "rmdir",
        }
    }

    /// Whose names it uses: each kind has its own, so that none gains by what the one before has looked up, but what was
    /// made is removed.
    #[must_use]
    pub const fn names(self) -> Self {
        match self {
            Self::Unlink => Self::Create,
            Self::Rmdir => Self::Mkdir,
            _ => self,
        }
    }

    /// Whether its names are its own.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.names() == self
    }

    /// Whether its files have to be there beforehand.
    #[must_use]
    pub const fn needs_files(self) -> bool {
        matches!(self, Self::Stat | Self::Open | Self::Chmod)
    }

    /// Does it once.
    ///
    /// Errors: those of the call.
    pub(super) fn act(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Create => File::create_new(path).map(drop),
            Self::Stat => fs::symlink_metadata(path).map(drop),
            Self::Open => File::open(path).map(drop),
            Self::Chmod => fs::set_permissions(path, Permissions::from_mode(0o600)),
            Self::Unlink => fs::remove_file(path),
            Self::Mkdir => DirBuilder::new().create(path),
            Self::Rmdir => fs::remove_dir(path),
        }
    }
}
