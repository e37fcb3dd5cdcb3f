//! Holds the tests that the documents name against those that exist.

use crate::Report;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Documents whose promises name their tests.
const DOCUMENTS: [&str; 3] = ["docs/SEMANTICS.md", "docs/FAULTS.md", "docs/SECURITY.md"];

/// How a document says that it names tests.
const FORM: (&str, &str) = ("room", "test");

/// Reads the documents below the workspace's root.
pub fn check(root: &Path) -> Report {
    let mut faults = Vec::new();
    let mut named = BTreeSet::new();
    for document in DOCUMENTS {
        match std::fs::read_to_string(root.join(document)) {
            Ok(text) => {
                for (room, name) in references(&text) {
                    if !exists(root, &room, &name) {
                        faults.push(format!(
                            "{document} names `{room}: {name}`, which does not exist"
                        ));
                    }
                    named.insert((room, name));
                }
            }
            Err(error) => faults.push(format!("cannot read {document}: {error}")),
        }
    }
    Report {
        text: format!(
            "{} tests are named, in {}",
            named.len(),
            DOCUMENTS.join(", ")
        ),
        faults,
    }
}

/// What stands in the text as `room: name` between back quotes; names may be broken over lines nowhere.
fn references(text: &str) -> Vec<(String, String)> {
    let word = |text: &str| {
        let fine = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !text.is_empty() && text.chars().all(fine)
    };
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|span| span.split_once(": "))
        .filter(|(room, name)| word(room) && word(name) && (*room, *name) != FORM)
        .map(|(room, name)| (room.to_owned(), name.to_owned()))
        .collect()
}

/// A law is a file of the simulator, a planted bug one with a seed that finds it, anything else a function of the room.
fn exists(root: &Path, room: &str, name: &str) -> bool {
    let sim = root.join("crates/sim");
    match room {
        "law" => sim.join(format!("src/law/{name}.rs")).is_file(),
        "plant" => holds(&sim.join("tests"), &format!("(Plant::{name}, ")),
        room => holds(&root.join("crates").join(room), &format!("fn {name}(")),
    }
}

/// Whether a Rust file below `folder` has this text.
fn holds(folder: &Path, text: &str) -> bool {
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs")
                && std::fs::read_to_string(&path).is_ok_and(|source| source.contains(text))
            {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_a_room_and_a_name_are_references() {
        let text = "`net: a_test`, `status: not this one`, `law: one_owner` and `plain`";
        let expected = [("net", "a_test"), ("law", "one_owner")];
        let expected = expected.map(|(room, name)| (room.to_owned(), name.to_owned()));
        assert_eq!(references(text), expected);
    }

    #[test]
    fn what_does_not_exist_is_a_fault() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let this = "what_does_not_exist_is_a_fault";
        assert!(exists(&root, "xtask", this));
        assert!(!exists(&root, "net", this));
        assert!(exists(&root, "law", "one_owner") && !exists(&root, "law", "none"));
        assert!(exists(&root, "plant", "NoFence") && !exists(&root, "plant", "None"));
        assert_eq!(check(&root).faults, Vec::<String>::new());
    }
}
