//! Listing a directory while the other host changes it.

use super::{Case, Pair};
use crate::ensure;
use crate::error::{Call, Checked};
use std::collections::BTreeMap;
use std::fs;

pub(super) const CASES: &[Case] = &[
    ("readdir-during-change", during_change),
    ("readdir-after-change", after_change),
    ("readdir-remove-while-listing", remove_while_listing),
];

/// Names that stay for the whole test; more than one system call returns.
const STABLE: usize = 1_500;

/// Every name that is there before, during and after the listing appears exactly once, whatever
/// happens to the others; and no name appears twice.
fn during_change(pair: &Pair) -> Checked {
    for number in 0..STABLE {
        pair.write(&format!("stable-{number:04}"), b"")?;
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let listing = fs::read_dir(&pair.reader).call(|| "opendir".to_owned())?;
    for (position, entry) in listing.enumerate() {
        let name = entry.call(|| "readdir".to_owned())?.file_name();
        *seen.entry(name.to_string_lossy().into_owned()).or_default() += 1;
        // The changes run along with the listing, before and behind its position.
        if position % 10 == 0 {
            pair.write(&format!("a-new-{position:04}"), b"")?;
            pair.write(&format!("z-new-{position:04}"), b"")?;
        }
        if position % 30 == 20 {
            let gone = format!("a-new-{:04}", position - 20);
            fs::remove_file(pair.w(&gone)).call(|| format!("unlink {gone}"))?;
        }
    }
    for number in 0..STABLE {
        let name = format!("stable-{number:04}");
        let times = seen.get(&name).copied().unwrap_or(0);
        ensure!(times == 1, "`{name}` was listed {times} times");
    }
    let twice = seen.iter().find(|(_, times)| **times > 1);
    ensure!(twice.is_none(), "{twice:?} was listed more than once");
    Ok(())
}

/// A new listing after the change shows exactly what is there.
fn after_change(pair: &Pair) -> Checked {
    let mut expected = std::collections::BTreeSet::new();
    for round in 0..40 {
        let name = format!("n{round}");
        pair.write(&name, b"")?;
        expected.insert(name);
        let gone = format!("n{}", round / 2);
        if round % 3 == 2 && expected.remove(&gone) {
            fs::remove_file(pair.w(&gone)).call(|| format!("unlink {gone}"))?;
        }
        if round % 5 == 4 {
            let (old, new) = (format!("n{round}"), format!("renamed-{round}"));
            fs::rename(pair.w(&old), pair.w(&new)).call(|| format!("rename {old}"))?;
            expected.remove(&old);
            expected.insert(new);
        }
        let seen = pair.names()?;
        ensure!(
            seen == expected,
            "round {round}: listed {seen:?} instead of {expected:?}"
        );
    }
    Ok(())
}

/// What `rm -r` does on one host, while the other looks: list, remove what was listed, until empty.
fn remove_while_listing(pair: &Pair) -> Checked {
    for number in 0..600 {
        pair.write(&format!("f{number}"), b"")?;
    }
    let listed = pair.names()?.len();
    ensure!(listed == 600, "{listed} of 600 names are listed");
    for entry in fs::read_dir(&pair.writer).call(|| "opendir".to_owned())? {
        let path = entry.call(|| "readdir".to_owned())?.path();
        fs::remove_file(&path).call(|| format!("unlink {}", path.display()))?;
    }
    let left = pair.names()?;
    ensure!(
        left.is_empty(),
        "{} names are left after removing all that was listed",
        left.len()
    );
    fs::remove_dir(pair.r("")).call(|| "rmdir of the emptied directory".to_owned())
}
