//! What units of checkpoints' files are known by: where every copy is uncertain after a restart, or the one is lost that was
//! there first, bytes that fit are the content, wherever they are.

use crate::error::Refusal;
use crate::key::{self, Key};
use crate::record::corrupt;
use crate::view::View;
use perigee_types::{ContainerId, InodeIndex, Mutation};

/// SHA-256 of a unit; of the last one up to the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum(pub [u8; 32]);

/// What a unit is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptSum {
    /// Whose content it is: what has not been replaced there may be it, too.
    pub of: InodeIndex,
    /// Of its bytes.
    pub sum: Sum,
}

impl KeptSum {
    /// The row that says so of a unit of a checkpoint's file.
    #[must_use]
    pub fn row(&self, file: InodeIndex, unit: u64) -> Mutation {
        let of = self.of.0.to_le_bytes();
        Mutation {
            key: Key::KeptSum(file, unit).encode(),
            value: Some([&of[..], &self.sum.0[..]].concat()),
        }
    }

    /// What a unit of a checkpoint's file is known by. None: what was lost before it could be kept.
    ///
    /// Errors: [`Refusal::Corrupt`], and what the view says.
    pub fn of_unit(
        container: ContainerId,
        view: &mut dyn View,
        (file, unit): (InodeIndex, u64),
    ) -> Result<Option<Self>, Refusal> {
        let key = Key::KeptSum(file, unit).encode();
        let Some(value) = view.get(container, &key)? else {
            return Ok(None);
        };
        let wrong = || corrupt(container, &key, "not what a kept unit is known by");
        let (of, sum) = value.split_first_chunk::<8>().ok_or_else(wrong)?;
        let sum = <[u8; 32]>::try_from(sum).map_err(|_| wrong())?;
        Ok(Some(Self {
            of: InodeIndex(u64::from_le_bytes(*of)),
            sum: Sum(sum),
        }))
    }
}

/// Removes some of the rows of a file of a checkpoint; none when all are gone.
///
/// Errors: what the view says.
pub fn remove_sums(
    container: ContainerId,
    view: &mut dyn View,
    file: InodeIndex,
    limit: usize,
) -> Result<Vec<Mutation>, Refusal> {
    let (from, to) = key::kept_sums(file);
    let rows = view.scan(container, &from, &to, limit)?.into_iter();
    let remove = |(key, _): (bytes::Bytes, bytes::Bytes)| Mutation {
        key: key.to_vec(),
        value: None,
    };
    Ok(rows.map(remove).collect())
}
