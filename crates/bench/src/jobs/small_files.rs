//! Many files of 4 KiB in one directory.

use super::Figures;
use crate::{Figure, Row, Settings, Target};
use perigee_testbed::{Call, CheckError, Checked, ensure, pattern};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BYTES: usize = 4_096;

pub(super) fn run(settings: &Settings, target: &Target, directory: &Path) -> Checked<Figures> {
    let files = Files {
        target,
        directory,
        count: settings.small_files,
    };
    target.settle();
    let mut figures = vec![(Row::Create1, files.create(1)?)];
    figures.push((Row::Stat, files.each(|old, _| files.stat(old))?));
    target.drop_caches(settings.cold_rest)?;
    figures.push((Row::ReadCold, files.each(read)?));
    target.drop_caches(settings.cold_rest)?;
    figures.push((Row::LsCold, files.list()?));
    let rename = |old: &Path, _| fs::rename(old, renamed(old)).call(|| "rename".to_owned());
    figures.push((Row::Rename, files.each(rename)?));
    let unlink = |old: &Path, _| fs::remove_file(renamed(old)).call(|| "unlink".to_owned());
    figures.push((Row::Unlink, files.each(unlink)?));
    Ok(figures)
}

pub(super) fn run_by_four(
    settings: &Settings,
    target: &Target,
    directory: &Path,
) -> Checked<Figures> {
    let files = Files {
        target,
        directory,
        count: settings.small_files,
    };
    target.settle();
    let figure = files.create(4)?;
    let there = fs::read_dir(directory).call(|| "list".to_owned())?.count();
    ensure!(
        there == files.count,
        "{there} of {} files are there",
        files.count
    );
    Ok(vec![(Row::Create4, figure)])
}

struct Files<'a> {
    target: &'a Target,
    directory: &'a Path,
    count: usize,
}

impl Files<'_> {
    fn path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("f{number:06}"))
    }

    /// Each thread makes its share: the numbers that it has as remainder.
    fn create(&self, threads: usize) -> Checked<Figure> {
        let meter = self.target.meter();
        std::thread::scope(|scope| {
            let share = |first: usize| {
                move || {
                    (first..self.count)
                        .step_by(threads)
                        .try_for_each(|n| self.create_one(n))
                }
            };
            let threads: Vec<_> = (0..threads)
                .map(|first| scope.spawn(share(first)))
                .collect();
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| CheckError::violated("a thread panicked"))??;
            }
            Checked::Ok(())
        })?;
        Ok(meter.stop().rate(self.count as f64, self.count as u64))
    }

    fn create_one(&self, number: usize) -> Checked {
        let path = self.path(number);
        let mut file = File::create(&path).call(|| format!("create {}", path.display()))?;
        file.write_all(&content(number))
            .call(|| format!("write {}", path.display()))
    }

    /// One call for each file, by one thread.
    fn each(&self, call: impl Fn(&Path, usize) -> Checked) -> Checked<Figure> {
        let meter = self.target.meter();
        for number in 0..self.count {
            call(&self.path(number), number)?;
        }
        Ok(meter.stop().rate(self.count as f64, self.count as u64))
    }

    fn stat(&self, path: &Path) -> Checked {
        let size = fs::metadata(path)
            .call(|| format!("stat {}", path.display()))?
            .len();
        ensure!(size == BYTES as u64, "{} has {size} bytes", path.display());
        Ok(())
    }

    /// `ls -l`, as a person starts it.
    fn list(&self) -> Checked<Figure> {
        let meter = self.target.meter();
        let listed = Command::new("ls")
            .arg("-l")
            .arg(self.directory)
            .stderr(Stdio::inherit())
            .output()
            .call(|| "ls -l".to_owned())?;
        let figure = meter.stop().time(self.count as u64);
        ensure!(listed.status.success(), "ls -l: {}", listed.status);
        let lines = listed.stdout.iter().filter(|&&byte| byte == b'\n').count();
        // The first is the total.
        let count = lines.saturating_sub(1);
        ensure!(
            count == self.count,
            "{count} of {} names are listed",
            self.count
        );
        Ok(figure)
    }
}

fn content(number: usize) -> [u8; BYTES] {
    let mut content = [0; BYTES];
    pattern::fill(number as u64, 0, &mut content);
    content
}

fn read(path: &Path, number: usize) -> Checked {
    let mut file = File::open(path).call(|| format!("open {}", path.display()))?;
    let mut seen = [0; BYTES];
    file.read_exact(&mut seen)
        .call(|| format!("read {}", path.display()))?;
    ensure!(
        seen == content(number),
        "{} has other content",
        path.display()
    );
    Ok(())
}

fn renamed(path: &Path) -> PathBuf {
    let name = path
        .file_name()
        .unwrap_or(OsStr::new("f"))
        .to_string_lossy()
        .replacen('f', "r", 1);
    path.with_file_name(name)
}
