//! Every check passes on an ordinary local directory, taken as both hosts: what then fails on a
//! cluster is the cluster's. And every check fails where it should: a checker that cannot is worth
//! nothing.

use perigee_testbed::checks::two_mounts::{self, Pair};
use perigee_testbed::checks::{crash_names, kill_write, model, tree};
use perigee_testbed::{Call, CheckError, Checked, disk, tree as trees};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Cases of promises that a local file system does not make.
const MORE_THAN_LOCAL: [&str; 1] = ["flock-in-turn"];

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_perigee-testbed"))
}

#[test]
fn two_mounts_pass() {
    let directory = tempfile::tempdir().unwrap();
    let mut failures = two_mounts::run(directory.path(), directory.path());
    failures.retain(|(name, _)| !MORE_THAN_LOCAL.iter().any(|more| name.starts_with(more)));
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(two_mounts::cases().len() >= 40);
}

/// Two separate directories are the worst of caches: nothing the writer does is seen. Every case
/// that looks at the other host must notice.
#[test]
fn two_mounts_notice_two_file_systems() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (name, case) in two_mounts::cases() {
        if name.contains("blocking") || name.contains("dies") {
            continue; // They wait for locks up to their deadline; the others show the same.
        }
        fs::create_dir(b.path().join(name)).unwrap();
        let outcome = Pair::new(a.path(), b.path())
            .fresh(name)
            .and_then(|pair| case(&pair));
        assert!(outcome.is_err(), "`{name}` passes between two file systems");
    }
}

fn plan(directory: &Path) -> kill_write::Plan {
    kill_write::Plan {
        program: program(),
        written: directory.join("data"),
        read: directory.join("data"),
        size: 24 * MIB + 123,
        seed: 42,
        sync_every: 4 * MIB,
        strike_at: 9 * MIB,
        strike_delay: Duration::ZERO,
    }
}

#[test]
fn a_write_with_a_harmless_strike_passes() {
    let directory = tempfile::tempdir().unwrap();
    let mut strikes = 0;
    let round = kill_write::run(&plan(directory.path()), &mut || {
        strikes += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(strikes, 1);
    assert!(round.durable_at_strike >= 4 * MIB);
    assert!(round.pause > Duration::ZERO && round.calm > Duration::ZERO);
}

fn strike_with(harm: impl Fn(&Path) + 'static) -> Checked<kill_write::Round> {
    let directory = tempfile::tempdir().call(|| "make a directory".to_owned())?;
    let plan = plan(directory.path());
    kill_write::run(&plan, &mut || {
        harm(&plan.read);
        Ok(())
    })
}

#[test]
fn a_corrupted_byte_is_noticed() {
    let outcome = strike_with(|path| disk::flip(path, MIB + 7).unwrap());
    let Err(CheckError::Violated { what }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(what.contains(&(MIB + 7).to_string()), "{what}");
}

#[test]
fn lost_bytes_are_noticed() {
    let outcome = strike_with(|path| {
        OpenOptions::new()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(3 * MIB)
            .unwrap();
    });
    assert!(
        matches!(outcome, Err(CheckError::Violated { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_writer_without_fsync_proves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let plan = kill_write::Plan {
        sync_every: 0,
        ..plan(directory.path())
    };
    let outcome = kill_write::run(&plan, &mut || Ok(()));
    assert!(
        matches!(outcome, Err(CheckError::Vacuous { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_strike_after_the_end_proves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let plan = kill_write::Plan {
        strike_at: 100 * MIB,
        ..plan(directory.path())
    };
    let outcome = kill_write::run(&plan, &mut || Ok(()));
    assert!(
        matches!(outcome, Err(CheckError::Vacuous { .. })),
        "{outcome:?}"
    );
}

#[test]
fn an_error_that_the_writer_sees_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let plan = kill_write::Plan {
        written: "/dev/full".into(),
        ..plan(directory.path())
    };
    let outcome = kill_write::run(&plan, &mut || Ok(()));
    let Err(CheckError::Violated { what }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(what.contains("write at 0"), "{what}");
}

#[test]
fn promised_names_are_kept_and_broken_promises_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let promised = crash_names::make(&program(), path, 9, 60, &mut || Ok(())).unwrap();
    assert!(promised.len() >= 60);
    crash_names::verify(path, &promised).unwrap();

    let (kept, _) = promised
        .iter()
        .find(|(_, content)| content.is_some())
        .unwrap();
    let content = fs::read(path.join(kept)).unwrap();
    fs::write(path.join(kept), b"other").unwrap();
    assert!(crash_names::verify(path, &promised).is_err());
    fs::remove_file(path.join(kept)).unwrap();
    assert!(crash_names::verify(path, &promised).is_err());
    fs::write(path.join(kept), content).unwrap();
    let (gone, _) = promised
        .iter()
        .find(|(_, content)| content.is_none())
        .unwrap();
    fs::write(path.join(gone), b"back").unwrap();
    assert!(crash_names::verify(path, &promised).is_err());
    let nothing = crash_names::verify(path, &crash_names::Promised::new());
    assert!(matches!(nothing, Err(CheckError::Vacuous { .. })));
}

#[test]
fn a_tree_goes_in_and_out() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (
        directory.path().join("source"),
        directory.path().join("copy"),
    );
    trees::make(&source, 400, 1).unwrap();
    let compared = tree::run(&source, &Pair::new(&copy, &copy)).unwrap();
    assert!(compared.names > 400 && compared.bytes > 400 * 100);
    fs::write(copy.join("extra"), b"").unwrap();
    assert!(tree::compare(&source, &copy).is_err());
}

#[test]
fn random_operations_agree_between_two_local_directories() {
    for seed in [1, 2, 3] {
        let directory = tempfile::tempdir().unwrap();
        let (host, local) = (
            directory.path().join("host"),
            directory.path().join("model"),
        );
        fs::create_dir(&host).unwrap();
        fs::create_dir(&local).unwrap();
        let sides = model::Sides {
            hosts: vec![host.clone(), host],
            model: local,
        };
        model::run(&sides, seed, 1_500).unwrap();
    }
}
