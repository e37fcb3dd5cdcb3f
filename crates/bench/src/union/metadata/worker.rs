//! The process on a host: a thread for each client that sits there. Its standard input gives it tasks, one on a line, and
//! the word to begin each; its standard output has the answers.

use super::kind::Kind;
use super::sequence::Work;
use crate::union::ground::POINT;
use perigee_testbed::{Call, CheckError, Checked};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

/// What the clients of a host shall do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) kind: Kind,
    pub(super) clients: Vec<u32>,
}

/// What became of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// All threads wait for the word.
    Ready,
    /// All are through.
    Done {
        operations: u64,
        /// Since the word.
        seconds: f64,
    },
    /// The first failure.
    Failed { why: String },
}

/// Does tasks until there are no more.
///
/// Errors: those of reading and writing; a task that fails is an answer.
pub fn serve() -> Checked {
    let mut lines = std::io::stdin().lock().lines();
    while let Some(line) = lines.next() {
        let line = line.call(|| "read a task".to_owned())?;
        let task: Task = serde_json::from_str(&line)
            .map_err(|error| CheckError::violated(format!("a task: {error}")))?;
        let answer = match perform(&task, &mut lines) {
            Ok(answer) => answer,
            Err(error) => Answer::Failed {
                why: error.to_string(),
            },
        };
        tell(&answer)?;
    }
    Ok(())
}

fn tell(answer: &Answer) -> Checked {
    let what = || "answer".to_owned();
    let line = serde_json::to_string(answer).call(what)?;
    let mut output = std::io::stdout().lock();
    let written = writeln!(output, "{line}").and_then(|()| output.flush());
    written.call(what)
}

fn perform(
    task: &Task,
    lines: &mut impl Iterator<Item = std::io::Result<String>>,
) -> Checked<Answer> {
    thread::scope(|scope| {
        let mut starts = Vec::new();
        let mut clients = Vec::new();
        for client in &task.clients {
            let names = task.work.paths(task.kind, *client).into_iter();
            let paths: Vec<PathBuf> = names.map(|name| PathBuf::from(POINT).join(name)).collect();
            let (start, wait) = channel();
            starts.push(start);
            clients.push(scope.spawn(move || act(task.kind, &paths, &wait)));
        }
        tell(&Answer::Ready)?;
        let word = lines
            .next()
            .transpose()
            .call(|| "wait for the word".to_owned())?;
        if word.is_none() {
            return Err(CheckError::violated("the word to begin never came"));
        }
        let began = Instant::now();
        for start in &starts {
            // One that is not there any more has its own answer.
            _ = start.send(());
        }
        let mut operations = 0;
        for client in clients {
            let died = |_| CheckError::violated("a client's thread has died");
            operations += client.join().map_err(died)??;
        }
        Ok(Answer::Done {
            operations,
            seconds: began.elapsed().as_secs_f64(),
        })
    })
}

/// One client's operations, and how many they were; none if the word to begin never comes.
fn act(kind: Kind, paths: &[PathBuf], wait: &Receiver<()>) -> Checked<u64> {
    if wait.recv().is_err() {
        return Ok(0);
    }
    for path in paths {
        kind.act(path)
            .call(|| format!("{} {}", kind.key(), path.display()))?;
    }
    Ok(paths.len() as u64)
}
