//! Hosts: what each knows of the file, and the jobs of its programs.

use perigee_history::model::file::{Answer, File, Op as Call, Writer};
use perigee_history::{Client, Recorder, Ticket};
use perigee_meta::stripe::job::{Ask, Change, Job as _, Known, Read, Step, Told, Write, Wrote};
use perigee_meta::{Op, Reply, WriteAt};
use perigee_types::{ByteRange, ContainerId, Errno};

/// What a program is at.
#[derive(Debug)]
pub enum Job {
    /// It writes bytes that rise from the first.
    Write(Box<Write>, u8),
    /// It reads one byte.
    Read(Box<Read>, u64),
    /// It changes the file's length, or frees a part.
    Change(Box<Change>),
    /// It asks for the length.
    Size,
    /// It takes the file's lock, if that is free.
    Lock(Box<Change>),
}

/// How a job goes on.
pub enum Next {
    /// All of these are to be asked.
    Ask(Vec<Ask>),
    /// It is over.
    Over(Result<Ended, Errno>),
}

/// What a job came to.
pub enum Ended {
    /// The bytes are where they belong.
    Wrote(Wrote),
    /// What was read.
    Read(Vec<u8>),
    /// It is so.
    Changed,
    /// The length.
    Size(u64),
    /// It has the lock, or somebody else has.
    Locked,
}

/// A program with its job, and what it waits for.
#[derive(Debug)]
pub struct Program {
    /// The job.
    pub job: Job,
    /// The answers that have come to what was asked last.
    pub told: Vec<Option<Told>>,
    /// The calls that end with the job.
    pub calls: Vec<(Ticket, Call)>,
    /// Where an append writes, once it has a place.
    pub placed: Option<u64>,
    /// When it had that.
    pub placed_at: u64,
    /// Names its writes.
    pub writer: Writer,
    /// An owner has kept its host out.
    pub refused: bool,
    size: Option<Result<u64, Errno>>,
}

impl Program {
    /// One that begins.
    #[must_use]
    pub fn new(job: Job, number: u32) -> Self {
        let appends = |job: &Write| job.what().at == WriteAt::End;
        let writer = match &job {
            Job::Write(job, _) if appends(job) => Writer::AtEnd(number),
            _ => Writer::There(number),
        };
        Self {
            writer,
            job,
            told: Vec::new(),
            calls: Vec::new(),
            placed: None,
            placed_at: 0,
            refused: false,
            size: None,
        }
    }

    /// What comes next. `inode`: of the file. `within`: where columns may lie.
    pub fn next(&mut self, inode: perigee_types::InodeId, within: &[ContainerId]) -> Next {
        fn over<T>(step: Step<T>, ended: impl FnOnce(T) -> Ended) -> Next {
            match step {
                Step::Ask(asks) => Next::Ask(asks),
                Step::Done(result) => Next::Over(result.map(ended)),
            }
        }
        let within = |_| within.to_vec();
        match &mut self.job {
            Job::Write(job, _) => over(job.step(&within), Ended::Wrote),
            Job::Read(job, _) => over(job.step(&within), |bytes| Ended::Read(bytes.to_vec())),
            Job::Change(job) => over(job.step(&within), |_| Ended::Changed),
            Job::Lock(job) => over(job.step(&within), |_| Ended::Locked),
            Job::Size => match self.size {
                Some(size) => Next::Over(size.map(Ended::Size)),
                None => Next::Ask(vec![Ask::Do(Op::GetAttr { inode })]),
            },
        }
    }

    /// All answers have come.
    pub fn told_all(&mut self) {
        let told: Vec<Told> = self.told.drain(..).flatten().collect();
        match &mut self.job {
            Job::Write(job, _) => job.told(told),
            Job::Read(job, _) => job.told(told),
            Job::Change(job) | Job::Lock(job) => job.told(told),
            Job::Size => {
                self.size = told.into_iter().next().map(|told| match told {
                    Told::Reply(Ok(Reply::Attr(attr))) => Ok(attr.size),
                    Told::Reply(Err(errno)) => Err(errno),
                    _ => Err(Errno::EPROTO),
                });
            }
        }
    }

    /// What the job knows of the file.
    #[must_use]
    pub fn known(&self) -> Option<&Known> {
        match &self.job {
            Job::Write(job, _) => job.known(),
            Job::Read(job, _) => job.known(),
            Job::Change(_) | Job::Lock(_) | Job::Size => None,
        }
    }

    /// The bytes for a part of what it writes.
    #[must_use]
    pub fn bytes(&self, range: ByteRange) -> Vec<u8> {
        match &self.job {
            Job::Write(job, first) => {
                let start = job.range().map_or(range.start, |all| all.start);
                let byte = |at: u64| first.wrapping_add((at - start) as u8);
                (range.start..range.end).map(byte).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// One host.
#[derive(Debug, Default)]
pub struct Host {
    /// Rises with each crash.
    pub life: u32,
    /// What it knows of the file.
    pub known: Option<Known>,
    /// Its programs.
    pub programs: Vec<Option<Program>>,
}

impl Host {
    /// No program of it is at a job.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.programs.iter().all(Option::is_none)
    }
}

/// The call that an ask is for itself: it may take effect alone.
#[must_use]
pub fn call_of(ask: &Ask, writer: Writer) -> Option<Call> {
    match ask {
        Ask::Do(Op::Claim {
            at: WriteAt::End,
            len,
            ..
        }) => Some(Call::Reserve(*len, writer)),
        Ask::Do(Op::Claim {
            at: WriteAt::Offset(at),
            len,
            ..
        }) if *len > 0 => Some(Call::Grow(at + len, writer)),
        _ => None,
    }
}

/// The job has come to a place for what it appends, or to another one: from now on it may be written there.
pub fn place(recorder: &mut Recorder<File>, client: Client, program: &mut Program, now: u64) {
    let Job::Write(job, first) = &program.job else {
        return;
    };
    let range = job.range();
    let start = range.map(|range| range.start);
    if start == program.placed {
        return;
    }
    program.placed = start;
    program.placed_at = now;
    // Nothing was written elsewhere.
    for (ticket, _) in program.calls.drain(..) {
        recorder.withdraw(ticket);
    }
    if let Some(range) = range {
        for (at, byte) in (range.start..range.end).zip(*first..) {
            let call = Call::Write(at, byte, program.writer);
            let ticket = recorder.invoke(client, call);
            program.calls.push((ticket, call));
        }
    }
}

/// The answer that ends a call.
#[must_use]
pub fn answer_of(call: Call, ended: &Ended) -> Option<Answer> {
    Some(match (call, ended) {
        (Call::Read(_), Ended::Read(bytes)) => Answer::Byte(bytes.first().copied()),
        (Call::Size, Ended::Size(size)) => Answer::Size(*size),
        (Call::Write(..), Ended::Wrote(_)) => Answer::Done,
        (Call::Zero(_) | Call::Resize(_), Ended::Changed) => Answer::Done,
        _ => return None,
    })
}
