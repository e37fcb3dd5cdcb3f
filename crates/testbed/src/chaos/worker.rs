//! One node's program: files with their fates, records appended to a shared file, registers, what all fight for, and files
//! of its own.

use super::ledger::{Ledger, Place, RECORD_LEN};
use super::private::{Private, Shape, Storer};
use super::stage::{Excuse, Stage, Turn};
use crate::closing::close;
use crate::error::{Call, CheckError};
use crate::pattern;
use perigee_types::Rng;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The longest file.
const FILE_MAX: u64 = 600_000;
/// A program rewrites, renames and removes only so many of its files, so that they do not fill the disk.
const FILES_MAX: usize = 60;
/// Bytes of one write of a large file.
const PIECE: usize = 64 << 10;

/// Why a step ended early.
pub(super) enum Failed {
    /// A call gave an errno.
    Call(&'static str, io::Error),
    /// What it saw cannot be.
    Wrong(CheckError),
}

pub(super) struct Worker<'a> {
    pub(super) node: u32,
    pub(super) root: &'a Path,
    pub(super) stage: &'a Stage,
    pub(super) ledger: &'a Ledger,
    pub(super) rng: Rng,
    pub(super) turn: Turn,
    pub(super) private: BTreeMap<Shape, Private>,
    pub(super) storer: Storer,
    /// Files whose fate is certain.
    files: Vec<u64>,
    made: u64,
}

/// Works until the campaign is over or a promise is broken.
pub fn run(node: u32, root: &Path, stage: &Stage, ledger: &Ledger, rng: Rng) {
    let Some(turn) = stage.turn(node) else { return };
    let storer = match Storer::start() {
        Ok(storer) => storer,
        Err(error) => return stage.broken(error),
    };
    let mut worker = Worker {
        node,
        root,
        stage,
        ledger,
        rng,
        turn,
        private: BTreeMap::new(),
        storer,
        files: Vec::new(),
        made: 0,
    };
    while let Some(turn) = stage.turn(node) {
        worker.turn = turn;
        match worker.step() {
            Ok(()) => {}
            Err(Failed::Wrong(error)) => stage.broken(error.during(&format!("n{node}"))),
            Err(Failed::Call(what, error)) => {
                if stage.excuse(turn, what, &error) == Excuse::None {
                    let told: Result<(), _> = Err(error);
                    let told = told.call(|| format!("n{node}, which is not struck: {what}"));
                    stage.broken(told.err().unwrap_or_else(|| CheckError::violated(what)));
                }
                // Whoever is refused for want of room, or whose node wakes up, does not try at full speed.
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
    }
}

impl Worker<'_> {
    pub(super) fn call<T>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, Failed> {
        self.stage
            .call(self.turn, what, call)
            .map_err(|error| Failed::Call(what, error))
    }

    fn step(&mut self) -> Result<(), Failed> {
        match self.rng.below(16) {
            10..=13 => self.contend(),
            14..=15 => self.use_private(),
            0..=2 => self.append(),
            3..=4 => self.write_register(),
            5..=6 => self.read_registers(),
            _ if self.files.len() < FILES_MAX / 2 => self.create(),
            7 if self.rng.chance(1, 2) => self.rewrite(),
            7 => self.save(),
            8 => self.rename(),
            _ if self.files.len() < FILES_MAX => self.create(),
            _ => self.remove(),
        }
    }

    fn folder(&self) -> PathBuf {
        self.root.join(format!("w{}", self.node))
    }

    fn sync_folder(&self) -> Result<(), Failed> {
        let path = self.folder();
        self.call("fsync of a directory", || File::open(&path)?.sync_all())
    }

    fn place(&self, number: u64, name: &str) -> Place {
        Place::At(format!("w{}/{name}{number}", self.node))
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => 1 + self.rng.below(5_000),
            1 => 1 + self.rng.below(100_000),
            _ => 1 + self.rng.below(FILE_MAX),
        }
    }

    fn create(&mut self) -> Result<(), Failed> {
        self.made += 1;
        let id = u64::from(self.node) << 32 | self.made;
        let seed = self.rng.next_u64();
        let len = self.len();
        let place = self.place(self.made, "f");
        self.ledger.begin_file(id, place.clone());
        let path = place.below(self.root);
        let file = self.call("create", || File::create_new(&path))?;
        self.write_content(&file, seed, len)?;
        self.call("fsync", || file.sync_all())?;
        self.sync_folder()?;
        self.ledger.made_file(id, place, seed, len);
        self.files.push(id);
        Ok(())
    }

    fn write_content(&self, file: &File, seed: u64, len: u64) -> Result<(), Failed> {
        let mut buffer = vec![0; PIECE];
        let mut at = 0;
        while at < len {
            let part = &mut buffer[..PIECE.min((len - at) as usize)];
            pattern::fill(seed, at, part);
            self.call("write", || file.write_all_at(part, at))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// A file of this program, out of the list: it comes back when its fate is certain again.
    fn draw(&mut self) -> u64 {
        let at = self.rng.below(self.files.len() as u64) as usize;
        self.files.swap_remove(at)
    }

    fn rewrite(&mut self) -> Result<(), Failed> {
        let id = self.draw();
        let seed = self.rng.next_u64();
        let Some((place, len)) = self.ledger.begin_rewrite(id, seed) else {
            return Ok(());
        };
        let path = place.below(self.root);
        let file = self.call("open", || OpenOptions::new().write(true).open(&path))?;
        self.write_content(&file, seed, len)?;
        self.call("fsync", || file.sync_all())?;
        self.ledger.rewritten(id, seed);
        self.files.push(id);
        Ok(())
    }

    /// As most programs save: cut to nothing, and written anew.
    fn save(&mut self) -> Result<(), Failed> {
        let id = self.draw();
        let (seed, len) = (self.rng.next_u64(), self.len());
        let Some(place) = self.ledger.begin_save(id) else {
            return Ok(());
        };
        let path = place.below(self.root);
        let file = self.call("open with truncation", || {
            OpenOptions::new().write(true).truncate(true).open(&path)
        })?;
        self.write_content(&file, seed, len)?;
        self.call("fsync", || file.sync_all())?;
        self.ledger.saved(id, seed, len);
        self.files.push(id);
        Ok(())
    }

    fn rename(&mut self) -> Result<(), Failed> {
        let id = self.draw();
        let number = self.rng.next_u64();
        let to = self.place(number, "r");
        let Some(from) = self.ledger.begin_move(id, to.clone()) else {
            return Ok(());
        };
        let (old, new) = (from.below(self.root), to.below(self.root));
        self.call("rename", || fs::rename(&old, &new))?;
        self.sync_folder()?;
        self.ledger.moved(id, to);
        self.files.push(id);
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Failed> {
        let id = self.draw();
        let Some(from) = self.ledger.begin_move(id, Place::Nowhere) else {
            return Ok(());
        };
        let path = from.below(self.root);
        self.call("unlink", || fs::remove_file(&path))?;
        self.sync_folder()?;
        self.ledger.moved(id, Place::Nowhere);
        Ok(())
    }

    /// Some records at once, in one or several writes.
    fn append(&mut self) -> Result<(), Failed> {
        let path = self.ledger.log_below(self.root);
        let mut file = self.call("open of the log", || {
            OpenOptions::new().append(true).open(&path)
        })?;
        let mut written = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let (number, record) = self.ledger.begin_record(self.node);
            self.call("append", || {
                // One call, or the record could be cut by another host's.
                let count = file.write(&record)?;
                if count == RECORD_LEN {
                    Ok(())
                } else {
                    Err(io::Error::other(format!(
                        "{count} bytes of a record written"
                    )))
                }
            })?;
            written.push(number);
        }
        self.call("fsync of the log", || file.sync_all())?;
        self.ledger.recorded(self.node, &written);
        Ok(())
    }

    fn write_register(&mut self) -> Result<(), Failed> {
        let path = self.ledger.register_below(self.root, self.node);
        let file = self.call("open of a register", || {
            OpenOptions::new().write(true).open(&path)
        })?;
        let value = self.ledger.begin_register(self.node);
        let content = Ledger::register_content(self.node, value);
        self.call("write of a register", || file.write_all_at(&content, 0))?;
        // Those before the write: one that came while it returned may have taken it along.
        let strikes = self.turn.strikes();
        // Where there is no room, close tells of what was answered early.
        if !self.stage.may_refuse() {
            self.ledger.register_written(self.node, value, strikes);
        }
        if self.rng.chance(1, 2) {
            self.call("fsync of a register", || file.sync_all())?;
            self.ledger.register_durable(self.node, value);
        }
        self.call("close of a register", || close(file))?;
        self.ledger.register_written(self.node, value, strikes);
        Ok(())
    }

    fn read_registers(&mut self) -> Result<(), Failed> {
        for writer in self.ledger.writers() {
            let before = self.ledger.register(writer);
            let path = self.ledger.register_below(self.root, writer);
            let mut content = Vec::new();
            self.call("read of a register", || {
                content.clear();
                File::open(&path)?.read_to_end(&mut content)
            })?;
            let value = Ledger::register_value(writer, &content).map_err(Failed::Wrong)?;
            let struck = self.stage.strikes_on(writer) != before.strikes;
            let undisturbed = !struck && !self.stage.has_left(writer);
            self.ledger
                .register_seen(writer, self.node, value, before, undisturbed)
                .map_err(Failed::Wrong)?;
        }
        Ok(())
    }
}
