//! Locks that hosts keep, and locks in five modes.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::lock::{
    FIVE_MODES, Mode, Patience, Span, Token, fcntl, fcntl_obstacle, flock, ofd, service,
};
use perigee_testbed::side::{Heard, Side};
use perigee_testbed::{Cluster, program};
use rustix::process::Signal;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
/// A call for a lock that a host keeps takes a few round trips: at least one of three is shorter than the second that
/// the owner waits for the word of a host that is silent.
const CALL_MAX: Duration = Duration::from_millis(900);

/// By then a circle would have been found.
const NO_CIRCLE: Duration = Duration::from_secs(4);

struct Stage {
    cluster: Cluster,
    mounts: [PathBuf; 3],
}

impl Stage {
    /// A cluster in which node 1 owns a file.
    fn set() -> Self {
        let mut cluster = Cluster::start(3).unwrap();
        let mounts = [1, 2, 3].map(|node| cluster.mount(node).unwrap());
        let path = mounts[0].join("file");
        std::fs::write(&path, "content").unwrap();
        assert_eq!(cluster.owner(&path).unwrap(), 1);
        Self { cluster, mounts }
    }

    fn path(&self, host: usize) -> PathBuf {
        self.mounts[host - 1].join("file")
    }

    fn open(&self, host: usize) -> File {
        let mut options = File::options();
        let path = self.path(host);
        options.read(true).write(true).open(path).unwrap()
    }

    /// A process of a host that has files open.
    fn process(&self, host: usize, names: &[&str]) -> Side {
        let paths = names.iter().map(|name| self.mounts[host - 1].join(name));
        let paths: Vec<String> = paths.map(|p| p.to_string_lossy().into_owned()).collect();
        let words = std::iter::once("locker").chain(paths.iter().map(String::as_str));
        let words: Vec<&str> = words.collect();
        let side = Side::spawn(&program::testbed().unwrap(), &words).unwrap();
        side.answer("a process starts", LIMIT).unwrap();
        side
    }

    fn signal(&mut self, nodes: &[u32], signal: Signal) {
        for node in nodes {
            self.cluster.kill(*node, signal).unwrap();
        }
    }

    fn end(mut self) {
        for node in [1, 2, 3] {
            self.cluster.umount(node).unwrap();
        }
    }
}

fn use_it(file: &File, mode: Mode) {
    flock(file, mode, Patience::Refuse).unwrap();
    flock(file, Mode::Free, Patience::Wait).unwrap();
}

/// The shortest of three times: a busy machine may stop whoever is measured for a while.
fn quickest(mut measure: impl FnMut() -> Duration) -> Duration {
    (0..3).map(|_| measure()).min().unwrap()
}

/// How long a host waits for a lock from the moment in which another one frees it.
fn handed_over(wait: impl Fn() + Sync, free: impl FnOnce()) -> Duration {
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait();
            sender.send(Instant::now()).unwrap();
        });
        let early = receiver.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "another one has it");
        let freed = Instant::now();
        free();
        receiver.recv_timeout(LIMIT).unwrap() - freed
    })
}

fn says(side: &mut Side, line: &str) -> String {
    side.ask(line, LIMIT).unwrap()
}

/// A process asks for what it does not get yet.
fn waits(side: &mut Side, line: &str) {
    side.send(line).unwrap();
    assert_eq!(side.hear(Duration::from_millis(200)), Heard::Silence);
}

fn is_refused(result: io::Result<()>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_host_locks_again_and_again_without_a_word_until_another_one_wants_the_lock() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    let (two, three) = (stage.open(2), stage.open(3));
    for _ in 0..3 {
        use_it(&two, Mode::Exclusive);
    }
    // Its own sign of life counts for longer than this takes.
    stage.signal(&[1, 3], Signal::STOP);
    let begun = Instant::now();
    for _ in 0..1_000 {
        use_it(&two, Mode::Exclusive);
        use_it(&two, Mode::Shared);
    }
    let took = begun.elapsed();
    stage.signal(&[1, 3], Signal::CONT);
    assert!(took < Duration::from_secs(2), "{took:?}");
    println!("2,000 flocks while nobody answers: {took:?}");
    // Who does not wait is not refused for what nobody uses, and is for what somebody does.
    let one = stage.open(1);
    let took = quickest(|| {
        use_it(&two, Mode::Exclusive);
        let begun = Instant::now();
        flock(&three, Mode::Exclusive, Patience::Refuse).unwrap();
        let took = begun.elapsed();
        assert!(is_refused(flock(&two, Mode::Shared, Patience::Refuse)));
        assert!(is_refused(flock(&one, Mode::Exclusive, Patience::Refuse)));
        flock(&three, Mode::Free, Patience::Wait).unwrap();
        use_it(&one, Mode::Exclusive);
        took
    });
    assert!(took < CALL_MAX, "{took:?}");
    // Who waits has its turn when the last use ends.
    let had = quickest(|| {
        flock(&two, Mode::Exclusive, Patience::Refuse).unwrap();
        let had = handed_over(
            || flock(&three, Mode::Exclusive, Patience::Wait).unwrap(),
            || flock(&two, Mode::Free, Patience::Wait).unwrap(),
        );
        flock(&three, Mode::Free, Patience::Wait).unwrap();
        had
    });
    assert!(had < CALL_MAX, "{had:?}");
    drop((one, two, three));
    stage.end();
}

const fn span(start: i64, length: i64) -> Span {
    Span { start, length }
}

fn use_record(file: &File, span: Span) {
    fcntl(file, Mode::Exclusive, span, Patience::Refuse).unwrap();
    fcntl(file, Mode::Free, span, Patience::Wait).unwrap();
}

/// What a host decides about by itself is shown to others as it is, and theirs to it.
#[test]
fn a_host_locks_records_without_a_word_and_other_hosts_know_exactly_which_it_has() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    let (two, three) = (stage.open(2), stage.open(3));
    let other = stage.open(2);
    for _ in 0..3 {
        use_record(&two, span(0, 10));
    }
    stage.signal(&[1, 3], Signal::STOP);
    let begun = Instant::now();
    for record in 0..1_000 {
        use_record(&two, span(record * 10, 10));
    }
    let took = begun.elapsed();
    fcntl(&two, Mode::Exclusive, span(5, 25), Patience::Refuse).unwrap();
    fcntl(&two, Mode::Free, span(15, 5), Patience::Refuse).unwrap();
    assert!(is_refused(ofd(&other, Mode::Shared, Patience::Refuse)));
    stage.signal(&[1, 3], Signal::CONT);
    println!("1,000 record locks while nobody answers: {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");

    let refuse = Patience::Refuse;
    let found = |file: &File, span| fcntl_obstacle(file, Mode::Shared, span).unwrap();
    assert_eq!(found(&three, Span::WHOLE), Some(span(5, 10)));
    assert_eq!(found(&three, span(17, 1_000)), Some(span(20, 10)));
    assert_eq!(found(&three, span(15, 5)), None);
    assert!(is_refused(fcntl(&three, Mode::Shared, span(14, 1), refuse)));
    fcntl(&three, Mode::Exclusive, span(15, 5), refuse).unwrap();
    assert!(is_refused(fcntl(&two, Mode::Shared, span(15, 1), refuse)));
    // Who waits has its turn, at the owner as well as on the host that has the lock.
    let had = quickest(|| {
        fcntl(&two, Mode::Exclusive, span(20, 10), refuse).unwrap();
        let had = handed_over(
            || fcntl(&three, Mode::Exclusive, span(20, 1), Patience::Wait).unwrap(),
            || fcntl(&two, Mode::Free, span(20, 10), refuse).unwrap(),
        );
        fcntl(&three, Mode::Free, span(20, 1), refuse).unwrap();
        had
    });
    assert!(had < CALL_MAX, "{had:?}");
    fcntl(&two, Mode::Free, Span::WHOLE, refuse).unwrap();
    fcntl(&three, Mode::Free, Span::WHOLE, refuse).unwrap();
    // The same, where the owner's own host looks, and where it decides.
    let one = stage.open(1);
    for _ in 0..10 {
        use_record(&two, span(0, 10));
    }
    fcntl(&two, Mode::Exclusive, span(40, 5), refuse).unwrap();
    assert_eq!(found(&one, Span::WHOLE), Some(span(40, 5)));
    fcntl(&two, Mode::Free, Span::WHOLE, refuse).unwrap();
    for _ in 0..5 {
        use_record(&one, span(0, 10));
    }
    fcntl(&one, Mode::Exclusive, span(30, 5), refuse).unwrap();
    assert_eq!(found(&three, Span::WHOLE), Some(span(30, 5)));
    assert!(is_refused(fcntl(&three, Mode::Shared, span(34, 1), refuse)));
    fcntl(&three, Mode::Shared, span(35, 1), refuse).unwrap();
    drop((one, two, three, other));
    stage.end();
}

/// Processes of a host that decides about their locks: they wait, die while they do, and hear of circles, though no other host
/// answers; and what one of them left goes on at the owner.
#[test]
fn programs_of_one_host_wait_die_and_hear_of_circles_while_no_other_host_answers() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    let process = || stage.process(2, &["file"]);
    let [mut one, mut two, mut three] = [process(), process(), process()];
    for _ in 0..5 {
        assert_eq!(says(&mut one, "fcntl exclusive 0 10 refuse"), "ok");
        assert_eq!(says(&mut one, "fcntl free 0 0 refuse"), "ok");
    }
    stage.signal(&[1, 3], Signal::STOP);
    assert_eq!(says(&mut one, "fcntl exclusive 0 10 refuse"), "ok");
    assert_eq!(says(&mut three, "fcntl exclusive 20 10 refuse"), "ok");
    waits(&mut two, "fcntl exclusive 5 1 wait");
    waits(&mut one, "fcntl shared 25 1 wait");
    assert_eq!(says(&mut three, "fcntl shared 5 1 wait"), "deadlock");
    assert_eq!(says(&mut three, "obstacle shared 0 0"), "held 0 10");
    assert_eq!(says(&mut three, "fcntl free 0 0 refuse"), "ok");
    assert_eq!(one.answer("its turn", LIMIT).unwrap(), "ok");
    two.kill();
    assert_eq!(says(&mut one, "fcntl free 0 0 refuse"), "ok");
    // Who died waiting has nothing, and stands in nobody's way.
    assert_eq!(says(&mut three, "fcntl exclusive 5 1 wait"), "ok");
    waits(&mut one, "fcntl exclusive 0 10 wait");
    three.kill();
    assert_eq!(one.answer("its turn", LIMIT).unwrap(), "ok");
    stage.signal(&[1, 3], Signal::CONT);
    let far = stage.open(3);
    let found = fcntl_obstacle(&far, Mode::Shared, Span::WHOLE).unwrap();
    assert_eq!(found, Some(span(0, 10)));
    one.kill();
    fcntl(&far, Mode::Exclusive, Span::WHOLE, Patience::Wait).unwrap();
    drop(far);
    stage.end();
}

/// One waits for another by what their host decides, that one at the owner for a third on another host, and the third for the
/// first: nobody sees all of it.
#[test]
fn who_waits_in_a_circle_that_a_host_decides_about_in_part_is_told_so() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let stage = Stage::set();
    std::fs::write(stage.mounts[0].join("other"), "content").unwrap();
    let process = |host| stage.process(host, &["file", "other"]);
    let [mut one, mut two, mut three] = [process(2), process(2), process(3)];
    for _ in 0..5 {
        assert_eq!(says(&mut two, "fcntl exclusive 0 10 refuse"), "ok");
        assert_eq!(says(&mut two, "fcntl free 0 0 refuse"), "ok");
    }
    assert_eq!(says(&mut two, "fcntl exclusive 0 10 refuse"), "ok");
    assert_eq!(says(&mut one, "of 1 fcntl exclusive 0 10 refuse"), "ok");
    assert_eq!(says(&mut three, "of 1 fcntl exclusive 20 10 refuse"), "ok");
    waits(&mut one, "fcntl exclusive 0 10 wait");
    waits(&mut two, "of 1 fcntl exclusive 20 1 wait");
    waits(&mut three, "of 1 fcntl exclusive 0 1 wait");
    // One of the two who wait at the owner is told, and nobody else.
    let begun = Instant::now();
    let told = loop {
        let heard = [&two, &three].map(|side| side.hear(Duration::from_millis(50)));
        match heard {
            [Heard::Silence, Heard::Silence] => assert!(begun.elapsed() < LIMIT),
            heard => break heard,
        }
    };
    println!("a circle is found in {:?}", begun.elapsed());
    let deadlock = || Heard::Line("deadlock".to_owned());
    let two_goes = told == [deadlock(), Heard::Silence];
    assert!(two_goes || told == [Heard::Silence, deadlock()], "{told:?}");
    assert_eq!(one.hear(NO_CIRCLE), Heard::Silence, "it is refused, too");
    let [victim, other] = match two_goes {
        true => [&mut two, &mut three],
        false => [&mut three, &mut two],
    };
    let what = ["fcntl free 0 0 refuse", "of 1 fcntl free 0 0 refuse"];
    for line in what {
        assert_eq!(says(victim, line), "ok");
    }
    // Who goes on ends what the others wait for.
    if two_goes {
        assert_eq!(one.answer("its turn", LIMIT).unwrap(), "ok");
        for line in what {
            assert_eq!(says(&mut one, line), "ok");
        }
    }
    assert_eq!(other.answer("its turn", LIMIT).unwrap(), "ok");
    for side in [one, two, three] {
        side.kill();
    }
    stage.end();
}

/// The owner of the file dies while a host decides about its locks: the next one knows who has what.
#[test]
fn what_a_host_decides_about_outlives_the_owner_and_ends_with_the_host() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    // What nodes have asked of the owner themselves keeps none of them from ending locks when it is the owner.
    for host in [2, 3] {
        let mount = stage.mounts[host - 1].to_string_lossy().into_owned();
        let set = ["policy", "set", &mount, "migration=adaptive"];
        let set = stage.cluster.command(&set).unwrap();
        assert!(set.status.success(), "{}", set.stderr);
    }
    let (two, three) = (stage.open(2), stage.open(3));
    for _ in 0..5 {
        use_record(&two, span(0, 10));
    }
    fcntl(&two, Mode::Exclusive, span(10, 5), Patience::Refuse).unwrap();
    // One waits on the host itself, for what another open file has there.
    let (beside, waits) = (stage.open(2), stage.open(2));
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        scope.spawn(move || {
            ofd(&waits, Mode::Exclusive, Patience::Wait).unwrap();
            sender.send(()).unwrap();
            ofd(&waits, Mode::Free, Patience::Refuse).unwrap();
        });
        assert!(receiver.recv_timeout(Duration::from_millis(300)).is_err());
        stage.signal(&[1], Signal::KILL);
        let begun = Instant::now();
        let refused = fcntl(&three, Mode::Exclusive, span(12, 1), Patience::Refuse);
        assert!(is_refused(refused), "after {:?}", begun.elapsed());
        let found = fcntl_obstacle(&three, Mode::Shared, Span::WHOLE).unwrap();
        assert_eq!(found, Some(span(10, 5)));
        fcntl(&three, Mode::Exclusive, span(20, 1), Patience::Refuse).unwrap();
        fcntl(&two, Mode::Free, Span::WHOLE, Patience::Refuse).unwrap();
        assert!(receiver.recv_timeout(Duration::from_millis(300)).is_err());
        fcntl(&three, Mode::Free, Span::WHOLE, Patience::Refuse).unwrap();
        receiver.recv_timeout(LIMIT).unwrap();
    });
    for _ in 0..70 {
        use_record(&two, span(0, 10));
    }
    fcntl(&two, Mode::Exclusive, span(10, 5), Patience::Refuse).unwrap();
    stage.signal(&[2], Signal::KILL);
    let begun = Instant::now();
    fcntl(&three, Mode::Exclusive, span(12, 1), Patience::Wait).unwrap();
    println!("the lock of a dead host is had after {:?}", begun.elapsed());
    assert!(begun.elapsed() < LIMIT);
    drop((two, three, beside));
    stage.cluster.umount(3).unwrap();
}

#[test]
fn what_a_silent_host_kept_is_refused_to_nobody_and_hosts_in_turns_count_right() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    // Each adds one under the lock, as often as it can.
    let count = stage.mounts[0].join("count");
    std::fs::write(&count, "0").unwrap();
    let added: u64 = std::thread::scope(|scope| {
        let adders: Vec<_> = (1..=3)
            .map(|host| {
                let (file, mount) = (stage.open(host), stage.mounts[host - 1].clone());
                scope.spawn(move || add(&file, &mount.join("count"), Duration::from_secs(5)))
            })
            .collect();
        adders.into_iter().map(|adder| adder.join().unwrap()).sum()
    });
    let counted: u64 = std::fs::read_to_string(&count).unwrap().parse().unwrap();
    assert_eq!(counted, added);
    println!("{added} counted under the lock by three hosts");
    let two = stage.open(2);
    for _ in 0..200 {
        use_it(&two, Mode::Exclusive);
    }
    // It says nothing any more: whether a program of it uses the lock nobody knows until it is gone. No program does.
    stage.signal(&[2], Signal::STOP);
    let three = stage.open(3);
    let begun = Instant::now();
    flock(&three, Mode::Exclusive, Patience::Refuse).unwrap();
    let took = begun.elapsed();
    println!("after its host has stopped the lock is had in {took:?}");
    assert!(took < LIMIT);
    stage.signal(&[2], Signal::KILL);
    drop((two, three));
    for node in [1, 3] {
        stage.cluster.umount(node).unwrap();
    }
}

fn add(lock: &File, count: &std::path::Path, time: Duration) -> u64 {
    let until = Instant::now() + time;
    let mut added = 0;
    while Instant::now() < until {
        flock(lock, Mode::Exclusive, Patience::Wait).unwrap();
        // Some times in a row, so that hosts begin to keep it.
        for _ in 0..20 {
            let before: u64 = std::fs::read_to_string(count).unwrap().parse().unwrap();
            std::fs::write(count, (before + 1).to_string()).unwrap();
            added += 1;
            flock(lock, Mode::Free, Patience::Wait).unwrap();
            flock(lock, Mode::Exclusive, Patience::Wait).unwrap();
        }
        flock(lock, Mode::Free, Patience::Wait).unwrap();
    }
    added
}

/// Whether two hosts can have these at a time: the published matrix, CR CW PR PW EX.
const TOGETHER: [[u8; 5]; 5] = [
    [1, 1, 1, 1, 0],
    [1, 1, 0, 0, 0],
    [1, 0, 1, 0, 0],
    [1, 0, 0, 0, 0],
    [0, 0, 0, 0, 0],
];

fn take(file: &File, mode: Option<usize>, range: std::ops::Range<u64>) -> io::Result<Token> {
    service(file, mode, range, Patience::Refuse)
}

#[test]
fn locks_have_five_modes_by_range_and_rising_tokens_and_a_command_runs_under_one() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let stage = Stage::set();
    let (two, three) = (stage.open(2), stage.open(3));
    for (first, row) in TOGETHER.iter().enumerate() {
        for (second, together) in row.iter().enumerate() {
            for range in [50..200, 100..200] {
                let modes = [FIVE_MODES[second], FIVE_MODES[first]];
                let token = take(&two, Some(first), 0..100).unwrap();
                let beside = take(&three, Some(second), range.clone());
                let goes = range.start == 100 || *together == 1;
                assert_eq!(beside.is_ok(), goes, "{modes:?} at {range:?}");
                take(&two, None, 0..100).unwrap();
                let after = take(&three, Some(second), range.clone()).unwrap();
                assert!(
                    goes || after > token,
                    "{modes:?}: {after:?} after {token:?}"
                );
                take(&three, None, range).unwrap();
            }
        }
    }
    let exclusive = Some(FIVE_MODES.len() - 1);
    let last = take(&two, exclusive, 0..10).unwrap();
    take(&two, None, 0..10).unwrap();
    let other = take(&File::open("/proc/self/exe").unwrap(), None, 0..1);
    assert_eq!(other.unwrap_err().raw_os_error(), Some(libc::ENOTTY));

    let perigee = perigee_testbed::program::perigee().unwrap();
    let path = stage.path(1);
    let command = |words: &[&str]| {
        let mut command = Command::new(&perigee);
        command.arg("lock").args(&words[..words.len() - 1]);
        command
            .arg(&path)
            .args(["--", "sh", "-c", words[words.len() - 1]]);
        command.output().unwrap()
    };
    let ran = command(&["--mode", "pw", "echo $PERIGEE_LOCK_TOKEN; exit 7"]);
    assert_eq!(ran.status.code(), Some(7));
    let token = String::from_utf8(ran.stdout).unwrap();
    let (epoch, number) = token.trim().split_once('.').unwrap();
    let token = Token {
        epoch: epoch.parse().unwrap(),
        number: number.parse().unwrap(),
    };
    assert!(token > last, "{token:?} after {last:?}");
    // The kernel tells of the command's end when it is over.
    service(&two, exclusive, 0..10, Patience::Wait).unwrap();
    let refused = command(&["--no-wait", "echo never"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    let late = command(&["--timeout", "1", "--mode", "cr", "echo never"]);
    assert_eq!((late.status.code(), late.stdout.len()), (Some(1), 0));
    let beside = command(&["--no-wait", "--range", "10:5", "exit 0"]);
    assert!(beside.status.success(), "{beside:?}");
    drop((two, three));
    stage.end();
}

struct AtLast<R, F: Fn() -> R>(F);

impl<R, F: Fn() -> R> Drop for AtLast<R, F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Each host's programs have what the other host's wait for, in containers of two owners: one of them is told, nobody else.
#[test]
fn who_waits_in_a_circle_over_two_containers_is_told_so() {
    let Some(_alone) = program::alone() else {
        return;
    };
    circle_over_two_containers(0);
}

/// The same, where each host decides by itself about the file that its program has.
#[test]
fn who_waits_in_a_circle_over_what_two_hosts_decide_about_is_told_so() {
    let Some(_alone) = program::alone() else {
        return;
    };
    circle_over_two_containers(5);
}

/// `uses`: of each file by its host, before.
fn circle_over_two_containers(uses: usize) {
    let mut cluster = Cluster::start(3).unwrap();
    let mounts = [1, 2].map(|node| cluster.mount(node).unwrap());
    let names = ["one/f", "two/f"];
    for (mount, name) in mounts.iter().zip(names) {
        let path = mount.join(name);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "content").unwrap();
    }
    let owners = names.map(|name| cluster.owner(&mounts[0].join(name)).unwrap());
    assert_ne!(owners[0], owners[1], "the containers have one owner");
    let files = [0, 1].map(|host: usize| {
        names.map(|name| {
            let path = mounts[host].join(name);
            File::options().read(true).write(true).open(path).unwrap()
        })
    });
    let take = |host: usize, file: usize, patience| {
        fcntl(&files[host][file], Mode::Exclusive, Span::WHOLE, patience)
    };
    let free = |host: usize| {
        let file = &files[host][host];
        fcntl(file, Mode::Free, Span::WHOLE, Patience::Refuse).unwrap();
    };
    for host in [0, 1] {
        for _ in 0..uses {
            take(host, host, Patience::Refuse).unwrap();
            free(host);
        }
        take(host, host, Patience::Refuse).unwrap();
    }
    let (tell, told) = mpsc::channel();
    let taken: Vec<(usize, io::Result<()>)> = std::thread::scope(|scope| {
        for (host, file) in [(0, 1), (1, 0)] {
            let (take, tell) = (&take, tell.clone());
            scope.spawn(move || tell.send((host, take(host, file, Patience::Wait))).unwrap());
        }
        // Nobody waits for ever when this test fails.
        let _last = AtLast(|| [0, 1].map(&free));
        let first = told.recv_timeout(LIMIT).unwrap();
        let error = first.1.as_ref().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EDEADLK), "{error}");
        // Who waits on waits for somebody who does not wait any more.
        assert!(
            told.recv_timeout(NO_CIRCLE).is_err(),
            "the other one ends, too"
        );
        free(first.0);
        let second = told.recv_timeout(LIMIT).unwrap();
        vec![first, second]
    });
    assert!(taken[1].1.is_ok(), "{:?}", taken[1]);
    drop(files);
    for node in [1, 2] {
        cluster.umount(node).unwrap();
    }
}
