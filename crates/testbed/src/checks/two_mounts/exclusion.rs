//! flock and fcntl locks exclude between hosts. The sides are processes, since record locks are.

use super::{Case, Pair};
use crate::error::{Call, CheckError, Checked};
use crate::lock::{self, Mode, Patience, Span};
use crate::side::{Heard, Side, say};
use crate::{ensure, program};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    ("fcntl-ranges", fcntl_ranges),
    ("fcntl-shared", fcntl_shared),
    ("fcntl-blocking", fcntl_blocking),
    ("fcntl-deadlock", fcntl_deadlock),
    ("fcntl-handover", fcntl_handover),
    ("fcntl-holder-dies", fcntl_holder_dies),
    ("fcntl-close-releases", fcntl_close_releases),
    ("flock-modes", flock_modes),
    ("flock-blocking", flock_blocking),
    ("flock-holder-dies", flock_holder_dies),
    ("flock-in-turn", flock_in_turn),
    ("flock-waiter-dies", flock_waiter_dies),
    ("flock-ends-with-its-file", |pair| {
        ends_with_its_file(pair, |file| {
            lock::flock(file, Mode::Exclusive, Patience::Refuse)
        })
    }),
    ("ofd-ends-with-its-file", |pair| {
        ends_with_its_file(pair, |file| {
            lock::ofd(file, Mode::Exclusive, Patience::Refuse)
        })
    }),
    ("fcntl-counter", |pair| counter(pair, "fcntl")),
    ("fcntl-range-counter", |pair| counter(pair, "range")),
    ("flock-counter", |pair| counter(pair, "flock")),
];

/// A lock that is free, or becomes free, is granted within this; a dead host's within its lease too.
const GRANT: Duration = Duration::from_secs(20);
/// How long a lock that is held must stay refused, to be believed.
const REFUSAL: Duration = Duration::from_millis(150);
/// A waiter that is told has its lock within this; one that is not told asks after a second.
const TOLD: Duration = Duration::from_millis(600);
/// Hand-overs whose median is measured.
const HANDOVERS: usize = 7;
/// How often each of those takes a lock that ends with its file, and for how long.
const TAKES: u32 = 40;
const HOLD: Duration = Duration::from_millis(3);
/// Increments of each side under the lock.
const ROUNDS: u64 = 150;

struct Lockers {
    one: Side,
    two: Side,
}

fn locker(path: &Path) -> Checked<Side> {
    let side = Side::spawn(&program::testbed()?, &["locker", &path.to_string_lossy()])?;
    side.answer("a locker starts", GRANT).map(|_| side)
}

fn lockers(pair: &Pair) -> Checked<Lockers> {
    pair.write("l", b"locked content")?;
    Ok(Lockers {
        one: locker(&pair.w("l"))?,
        two: locker(&pair.r("l"))?,
    })
}

/// The side has asked for a lock that is not to be had yet.
fn waits(side: &mut Side, command: &str) -> Checked {
    side.send(command)?;
    let early = side.hear(REFUSAL);
    ensure!(
        early == Heard::Silence,
        "`{command}` was answered with {early:?}"
    );
    Ok(())
}

/// The side that waits has its lock.
fn granted(side: &Side) -> Checked {
    let answer = side.answer("the lock is granted", GRANT)?;
    ensure!(answer == "ok", "the waiting lock gave `{answer}`");
    Ok(())
}

/// Asks and compares the answer.
fn expect(side: &mut Side, command: &str, answer: &str) -> Checked {
    let heard = side.ask(command, GRANT)?;
    ensure!(
        heard == answer,
        "`{command}` gave `{heard}` instead of `{answer}`"
    );
    Ok(())
}

fn fcntl_ranges(pair: &Pair) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    expect(&mut one, "fcntl exclusive 0 10 refuse", "ok")?;
    expect(&mut two, "fcntl exclusive 5 1 refuse", "refused")?;
    expect(&mut two, "fcntl shared 9 100 refuse", "refused")?;
    expect(&mut two, "fcntl exclusive 10 10 refuse", "ok")?;
    expect(&mut one, "fcntl exclusive 0 0 refuse", "refused")?;
    expect(&mut two, "obstacle exclusive 0 5", "held 0 10")?;
    expect(&mut one, "obstacle shared 15 1", "held 10 10")?;
    expect(&mut two, "obstacle exclusive 100 5", "free")?;
    // Giving back the middle leaves both ends.
    expect(&mut one, "fcntl free 3 4 refuse", "ok")?;
    expect(&mut two, "fcntl exclusive 3 4 refuse", "ok")?;
    expect(&mut two, "fcntl exclusive 2 1 refuse", "refused")?;
    expect(&mut two, "fcntl exclusive 7 1 refuse", "refused")?;
    expect(&mut one, "fcntl free 0 0 refuse", "ok")?;
    expect(&mut two, "fcntl exclusive 0 0 refuse", "ok")?;
    expect(&mut one, "fcntl shared 1000000 1 refuse", "refused")
}

fn fcntl_shared(pair: &Pair) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    expect(&mut one, "fcntl shared 0 0 refuse", "ok")?;
    expect(&mut two, "fcntl shared 0 0 refuse", "ok")?;
    expect(&mut two, "fcntl exclusive 0 1 refuse", "refused")?;
    expect(&mut one, "fcntl free 0 0 refuse", "ok")?;
    expect(&mut two, "fcntl exclusive 0 1 refuse", "ok")?;
    expect(&mut one, "fcntl shared 0 1 refuse", "refused")?;
    expect(&mut one, "fcntl shared 1 1 refuse", "ok")
}

/// A waiting lock is not granted while the other holds it, and is granted after.
fn blocking(pair: &Pair, take: &str, give: &str) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    for _ in 0..3 {
        expect(&mut one, take, "ok")?;
        two.send(take)?;
        let early = two.hear(REFUSAL);
        ensure!(
            early == Heard::Silence,
            "a held lock was answered with {early:?}"
        );
        expect(&mut one, give, "ok")?;
        let granted = two.answer("the lock is granted after its release", GRANT)?;
        ensure!(granted == "ok", "the waiting lock gave `{granted}`");
        expect(&mut two, give, "ok")?;
    }
    Ok(())
}

/// Two who wait for each other: the second is refused, and the first has its lock.
fn fcntl_deadlock(pair: &Pair) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    for _ in 0..3 {
        expect(&mut one, "fcntl exclusive 0 1 refuse", "ok")?;
        expect(&mut two, "fcntl exclusive 1 1 refuse", "ok")?;
        waits(&mut one, "fcntl exclusive 1 1 wait")?;
        expect(&mut two, "fcntl exclusive 0 1 wait", "deadlock")?;
        expect(&mut two, "fcntl free 0 0 refuse", "ok")?;
        granted(&one)?;
        expect(&mut one, "fcntl free 0 0 refuse", "ok")?;
    }
    Ok(())
}

/// A lock goes to the one who waits when it is given back, not when he next asks.
fn fcntl_handover(pair: &Pair) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    let mut took = Vec::new();
    for round in 0..HANDOVERS {
        let (holder, waiter) = match round % 2 {
            0 => (&mut one, &mut two),
            _ => (&mut two, &mut one),
        };
        expect(holder, "fcntl exclusive 0 0 refuse", "ok")?;
        waits(waiter, "fcntl exclusive 0 0 wait")?;
        let start = Instant::now();
        holder.send("fcntl free 0 0 refuse")?;
        granted(waiter)?;
        took.push(start.elapsed());
        let freed = holder.answer("the lock is given back", GRANT)?;
        ensure!(freed == "ok", "giving back gave `{freed}`");
        expect(waiter, "fcntl free 0 0 refuse", "ok")?;
    }
    took.sort_unstable();
    let median = took[HANDOVERS / 2];
    ensure!(median < TOLD, "hand-overs took {took:?}");
    Ok(())
}

/// Locks that end with their open files: what ends with one is not what the next one holds, though the kernel may give both
/// the same name.
fn ends_with_its_file(pair: &Pair, take: fn(&File) -> io::Result<()>) -> Checked {
    pair.write("l", b"locked content")?;
    let held = AtomicU32::new(0);
    let taker = |path: PathBuf| {
        let mut taken = 0;
        while taken < TAKES {
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let file = file.call(|| "open a file to lock it".to_owned())?;
            match take(&file) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error).call(|| "take a lock".to_owned()),
            }
            let others = held.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(HOLD);
            held.fetch_sub(1, Ordering::SeqCst);
            ensure!(others == 0, "a lock was held by {} at once", others + 1);
            taken += 1;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let paths = [pair.w("l"), pair.w("l"), pair.r("l"), pair.r("l")];
        let takers = paths.map(|path| scope.spawn(|| taker(path)));
        let ended = takers.map(|taker| {
            let panicked = |_| CheckError::violated("a taker panicked");
            taker.join().map_err(panicked).and_then(|outcome| outcome)
        });
        ended.into_iter().collect()
    })
}

/// Readers that come after a waiting writer go behind it.
fn flock_in_turn(pair: &Pair) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    let mut three = locker(&pair.w("l"))?;
    expect(&mut one, "flock shared refuse", "ok")?;
    waits(&mut two, "flock exclusive wait")?;
    waits(&mut three, "flock shared wait")?;
    expect(&mut one, "flock free refuse", "ok")?;
    granted(&two)?;
    let early = three.hear(REFUSAL);
    ensure!(early == Heard::Silence, "beside a writer: {early:?}");
    expect(&mut two, "flock free refuse", "ok")?;
    granted(&three)
}

/// A waiter that is killed ends at once, and holds nobody back.
fn flock_waiter_dies(pair: &Pair) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    let mut three = locker(&pair.r("l"))?;
    expect(&mut one, "flock shared refuse", "ok")?;
    waits(&mut two, "flock exclusive wait")?;
    let start = Instant::now();
    two.kill();
    expect(&mut three, "flock shared wait", "ok")?;
    let took = start.elapsed();
    ensure!(took < TOLD, "a dead waiter held a reader back for {took:?}");
    expect(&mut three, "flock free refuse", "ok")?;
    expect(&mut one, "flock exclusive refuse", "ok")
}

fn fcntl_blocking(pair: &Pair) -> Checked {
    blocking(pair, "fcntl exclusive 0 0 wait", "fcntl free 0 0 refuse")
}

fn flock_blocking(pair: &Pair) -> Checked {
    blocking(pair, "flock exclusive wait", "flock free refuse")
}

/// The kernel gives back a dead process's locks, and the other host gets them.
fn holder_dies(pair: &Pair, take: &str) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    expect(&mut one, take, "ok")?;
    two.send(take)?;
    let early = two.hear(REFUSAL);
    ensure!(
        early == Heard::Silence,
        "a held lock was answered with {early:?}"
    );
    one.kill();
    let granted = two.answer("the lock is granted after its holder died", GRANT)?;
    ensure!(granted == "ok", "the waiting lock gave `{granted}`");
    Ok(())
}

fn fcntl_holder_dies(pair: &Pair) -> Checked {
    holder_dies(pair, "fcntl exclusive 0 0 wait")
}

fn flock_holder_dies(pair: &Pair) -> Checked {
    holder_dies(pair, "flock exclusive wait")
}

/// POSIX: closing any descriptor of the file gives back all of the process's record locks.
fn fcntl_close_releases(pair: &Pair) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    expect(&mut one, "fcntl exclusive 0 0 refuse", "ok")?;
    expect(&mut two, "fcntl exclusive 0 0 refuse", "refused")?;
    expect(&mut one, "reopen", "ok")?;
    expect(&mut two, "fcntl exclusive 0 0 wait", "ok")
}

fn flock_modes(pair: &Pair) -> Checked {
    let Lockers { mut one, mut two } = lockers(pair)?;
    expect(&mut one, "flock shared refuse", "ok")?;
    expect(&mut two, "flock shared refuse", "ok")?;
    expect(&mut two, "flock exclusive refuse", "refused")?;
    expect(&mut one, "flock free refuse", "ok")?;
    expect(&mut two, "flock exclusive refuse", "ok")?;
    expect(&mut one, "flock shared refuse", "refused")?;
    expect(&mut one, "flock exclusive refuse", "refused")?;
    // flock and record locks do not know of each other on Linux.
    expect(&mut one, "fcntl exclusive 0 0 refuse", "ok")?;
    expect(&mut two, "flock free refuse", "ok")?;
    expect(&mut one, "flock exclusive refuse", "ok")
}

/// Read, add one, write, from both sides under the lock: no update is lost, and each side sees the
/// other's data as soon as it has the lock.
fn counter(pair: &Pair, kind: &str) -> Checked {
    pair.write("n", &[0; 128])?;
    let program = program::testbed()?;
    let spawn = |path: std::path::PathBuf| {
        Side::spawn(
            &program,
            &[
                "counter",
                kind,
                &path.to_string_lossy(),
                &ROUNDS.to_string(),
            ],
        )
    };
    let sides = [spawn(pair.w("n"))?, spawn(pair.r("n"))?];
    for side in &sides {
        let answer = side.answer("both sides count under the lock", Duration::from_secs(120))?;
        ensure!(answer == "done", "a counting side says `{answer}`");
    }
    for path in [pair.w("n"), pair.r("n")] {
        let file = File::open(path).call(|| "open the counter".to_owned())?;
        let count = read_count(&file)?;
        ensure!(
            count == 2 * ROUNDS,
            "the counter is {count} instead of {}",
            2 * ROUNDS
        );
    }
    Ok(())
}

/// Where the counter lies; the `range` kind locks exactly its bytes.
const COUNTER: Span = Span {
    start: 64,
    length: 8,
};

fn read_count(file: &File) -> Checked<u64> {
    let mut number = [0; 8];
    file.read_exact_at(&mut number, COUNTER.start.unsigned_abs())
        .call(|| "read the counter".to_owned())?;
    Ok(u64::from_le_bytes(number))
}

fn open(path: &Path) -> Checked<File> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.call(|| format!("open {}", path.display()))
}

/// The counting side: `counter KIND PATH ROUNDS`.
///
/// Errors: those of the calls.
pub fn counting_side(kind: &str, path: &Path, rounds: u64) -> Checked {
    let file = open(path)?;
    let set = |mode| match kind {
        "flock" => lock::flock(&file, mode, Patience::Wait),
        "range" => lock::fcntl(&file, mode, COUNTER, Patience::Wait),
        _ => lock::fcntl(&file, mode, Span::WHOLE, Patience::Wait),
    };
    for round in 0..rounds {
        set(Mode::Exclusive).call(|| format!("lock in round {round}"))?;
        let count = read_count(&file)?;
        file.write_all_at(&(count + 1).to_le_bytes(), COUNTER.start.unsigned_abs())
            .call(|| "write the counter".to_owned())?;
        set(Mode::Free).call(|| format!("unlock in round {round}"))?;
    }
    say("done")
}

/// The locking side: `locker PATH...`, then one command a line, of the first file, or `of N` another one, counted from 0.
///
/// Errors: the checker has gone.
pub fn locking_side(paths: &[&Path]) -> Checked {
    let files: Vec<File> = paths
        .iter()
        .map(|path| open(path))
        .collect::<Checked<_>>()?;
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line.call(|| "hear the checker".to_owned())?;
        let words: Vec<&str> = line.split(' ').collect();
        let (place, words) = match words.as_slice() {
            ["of", place, words @ ..] => (place.parse().unwrap_or(usize::MAX), words),
            words => (0, words),
        };
        let (Some(file), Some(path)) = (files.get(place), paths.get(place)) else {
            return Err(CheckError::violated(format!("no such file: `{line}`")));
        };
        say(&obey(file, path, words)?)?;
    }
    Ok(())
}

fn obey(file: &File, path: &Path, words: &[&str]) -> Checked<String> {
    let outcome = match *words {
        ["fcntl", how, start, length, patience] => {
            lock::fcntl(file, mode(how)?, span(start, length)?, patient(patience))
        }
        ["flock", how, patience] => lock::flock(file, mode(how)?, patient(patience)),
        ["obstacle", how, start, length] => {
            let obstacle = lock::fcntl_obstacle(file, mode(how)?, span(start, length)?);
            let obstacle = obstacle.call(|| "F_GETLK".to_owned())?;
            return Ok(obstacle.map_or("free".to_owned(), |span| {
                format!("held {} {}", span.start, span.length)
            }));
        }
        ["reopen"] => open(path).map(drop).map(Ok)?,
        ["write"] => file.write_all_at(b"w", 0),
        _ => return Err(CheckError::violated(format!("unknown command {words:?}"))),
    };
    Ok(match outcome {
        Ok(()) => "ok".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => "refused".to_owned(),
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => "refused".to_owned(),
        Err(error) if error.raw_os_error() == Some(libc::EDEADLK) => "deadlock".to_owned(),
        Err(error) => format!("failed {error}"),
    })
}

fn mode(word: &str) -> Checked<Mode> {
    match word {
        "shared" => Ok(Mode::Shared),
        "exclusive" => Ok(Mode::Exclusive),
        "free" => Ok(Mode::Free),
        _ => Err(CheckError::violated(format!("no lock mode `{word}`"))),
    }
}

fn patient(word: &str) -> Patience {
    if word == "wait" {
        Patience::Wait
    } else {
        Patience::Refuse
    }
}

fn span(start: &str, length: &str) -> Checked<Span> {
    let parse = |word: &str| {
        word.parse::<i64>()
            .map_err(|error| CheckError::violated(format!("`{word}`: {error}")))
    };
    Ok(Span {
        start: parse(start)?,
        length: parse(length)?,
    })
}
