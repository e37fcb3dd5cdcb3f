//! Names and small files that were fsynced are there after a crash.
//!
//! A process makes files in a growing tree: each is written, fsynced, sometimes renamed or linked, then
//! its directory is fsynced, and only then its final name is told to the checker. After the nemesis has
//! struck, every told name must lead to its content, and a name that was told as removed must be gone.

use crate::error::{Call, CheckError, Checked};
use crate::side::{Heard, Side, say};
use crate::{ensure, pattern};
use perigee_types::Rng;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One step of the maker ends within this, or the mount hangs.
const HANG: Duration = Duration::from_secs(60);

/// What was promised: relative name to the seed of its content; `None` for one that must be gone.
pub type Promised = BTreeMap<String, Option<u64>>;

/// Runs the maker in `directory` until it has promised `promises` names, then strikes; its own crash
/// is part of the strike.
///
/// Errors: the maker failed before the strike.
pub fn make(
    program: &Path,
    directory: &Path,
    seed: u64,
    promises: usize,
    strike: &mut dyn FnMut() -> Checked,
) -> Checked<Promised> {
    let path = directory.to_string_lossy();
    let maker = Side::spawn(program, &["names", &path, &seed.to_string()])?;
    let mut promised = Promised::new();
    let mut count = 0;
    while count < promises {
        note(&mut promised, &maker.answer("the maker goes on", HANG)?)?;
        count += 1;
    }
    strike()?;
    // What was told before the strike was complete counts as well.
    while let Heard::Line(line) = maker.hear(Duration::from_millis(50)) {
        if line.starts_with("error") || count > 10 * promises {
            break;
        }
        note(&mut promised, &line)?;
        count += 1;
    }
    maker.kill();
    Ok(promised)
}

fn note(promised: &mut Promised, line: &str) -> Checked {
    let words: Vec<&str> = line.split(' ').collect();
    let seed = |word: &str| {
        word.parse()
            .map_err(|_| CheckError::violated(format!("the maker says: {line}")))
    };
    match *words {
        ["there", name, content] => promised.insert(name.to_owned(), Some(seed(content)?)),
        ["moved", old, new, content] => {
            promised.insert(old.to_owned(), None);
            promised.insert(new.to_owned(), Some(seed(content)?))
        }
        ["gone", name] => promised.insert(name.to_owned(), None),
        _ => return Err(CheckError::violated(format!("the maker says: {line}"))),
    };
    Ok(())
}

/// Every promise holds in `directory`.
///
/// Errors: `Vacuous` without a promise; `Violated` names the first that is broken.
pub fn verify(directory: &Path, promised: &Promised) -> Checked {
    if promised.values().flatten().next().is_none() {
        return Err(CheckError::Vacuous {
            what: "no name was promised".to_owned(),
        });
    }
    for (name, content) in promised {
        let path = directory.join(name);
        let Some(seed) = content else {
            let found = fs::symlink_metadata(&path).is_ok();
            ensure!(
                !found,
                "`{name}` was removed durably, and is back after the crash"
            );
            continue;
        };
        let seen = fs::read(&path).call(|| format!("read `{name}`, which was fsynced"))?;
        ensure!(
            seen == body(*seed),
            "`{name}` was fsynced and has other content"
        );
    }
    Ok(())
}

fn body(seed: u64) -> Vec<u8> {
    let mut content = vec![0; 1 + (seed % 20_000) as usize];
    pattern::fill(seed, 0, &mut content);
    content
}

/// The making side: `names DIRECTORY SEED`. Goes on until it is killed or fails.
///
/// Errors: those of its calls; they are told to the checker as well.
pub fn making_side(directory: &Path, seed: u64) -> Checked {
    let outcome = make_names(directory, seed);
    if let Err(error) = &outcome {
        say(&format!("error {error}"))?;
    }
    outcome
}

fn make_names(directory: &Path, seed: u64) -> Checked {
    let mut rng = Rng::new(seed);
    let mut folder = PathBuf::new();
    for number in 0.. {
        if number % 20 == 0 {
            let parent = folder.parent().map(Path::to_owned).unwrap_or_default();
            folder = if rng.chance(1, 2) { parent } else { folder };
            folder.push(format!("d{number}"));
            let path = directory.join(&folder);
            fs::create_dir(&path).call(|| format!("mkdir {}", path.display()))?;
            sync_directory(path.parent().unwrap_or(directory))?;
        }
        make_one(directory, &folder, number, rng.next_u64())?;
    }
    Ok(())
}

/// One file with its fate, which the content's seed decides.
fn make_one(directory: &Path, folder: &Path, number: u64, content: u64) -> Checked {
    let relative = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (first, second) = (
        relative(&format!("f{number}")),
        relative(&format!("g{number}")),
    );
    let path = directory.join(&first);
    let mut file = File::create_new(&path).call(|| format!("create {first}"))?;
    file.write_all(&body(content))
        .call(|| format!("write {first}"))?;
    file.sync_all().call(|| format!("fsync {first}"))?;
    let home = directory.join(folder);
    match content >> 32 & 3 {
        0 => {
            fs::rename(&path, directory.join(&second)).call(|| format!("rename {first}"))?;
            sync_directory(&home)?;
            say(&format!("moved {first} {second} {content}"))
        }
        1 => {
            fs::hard_link(&path, directory.join(&second)).call(|| format!("link {first}"))?;
            fs::remove_file(&path).call(|| format!("unlink {first}"))?;
            sync_directory(&home)?;
            say(&format!("moved {first} {second} {content}"))
        }
        2 if number.is_multiple_of(3) => {
            fs::remove_file(&path).call(|| format!("unlink {first}"))?;
            sync_directory(&home)?;
            say(&format!("gone {first}"))
        }
        _ => {
            sync_directory(&home)?;
            say(&format!("there {first} {content}"))
        }
    }
}

fn sync_directory(path: &Path) -> Checked {
    let directory = File::open(path).call(|| format!("open {}", path.display()))?;
    directory
        .sync_all()
        .call(|| format!("fsync {}", path.display()))
}
