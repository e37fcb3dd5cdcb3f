//! What the system tells of the threads that ask for something (proc_pid_stat(5)).

use std::io::ErrorKind;

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It waits for what can be interrupted, which no page is, or it is gone.
    Sleeps,
    /// It runs, or is to run; it has run for so many nanoseconds.
    Runs(u64),
    /// It waits for a page, or another lock or disk.
    Waits,
    Unknown,
}

/// What a thread of this machine does now.
pub(super) fn doing(thread: u32) -> Doing {
    // In this order: a thread that is woken in between has not run for longer then.
    let scheduled = read(thread, "schedstat").ok();
    let ran = scheduled.and_then(|fields| fields.split_ascii_whitespace().next()?.parse().ok());
    let stat = match read(thread, "stat") {
        Ok(stat) => stat,
        Err(error) if error.kind() == ErrorKind::NotFound && thread != 0 => return Doing::Sleeps,
        Err(_) => return Doing::Unknown,
    };
    match (field(&stat, STATE), ran) {
        (Some("R"), Some(ran)) => Doing::Runs(ran),
        (Some("R") | None, _) => Doing::Unknown,
        (Some("D"), _) => Doing::Waits,
        (Some(_), _) => Doing::Sleeps,
    }
}

/// The one that asks.
pub(super) fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The processor that a thread ran on last.
pub(super) fn processor_of(thread: u32) -> Option<usize> {
    field(&read(thread, "stat").ok()?, PROCESSOR)?.parse().ok()
}

/// Fields of `stat`, from 1.
const STATE: usize = 3;
const PROCESSOR: usize = 39;

/// One after the second, which is a name in parentheses and may hold anything.
fn field(stat: &str, number: usize) -> Option<&str> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(number - STATE)
}

fn read(thread: u32, what: &str) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/{thread}/{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_the_name() {
        let numbers: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("17 (a) R 9 (b) S {}", numbers.join(" "));
        assert_eq!(field(&stat, STATE), Some("S"));
        assert_eq!(field(&stat, PROCESSOR), Some("39"));
        assert_eq!(field("17 (a) R 1 2", PROCESSOR), None);
        assert!(processor_of(this_thread()).is_some());
    }

    #[test]
    fn a_thread_that_waits_for_a_channel_sleeps_and_one_that_works_runs() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, until) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || {
            tell.send(this_thread()).unwrap();
            _ = until.recv();
        });
        let thread = told.recv().unwrap();
        if doing(thread) == Doing::Unknown {
            return eprintln!("skipped: this kernel does not tell how long a thread has run");
        }
        while doing(thread) != Doing::Sleeps {
            std::thread::yield_now();
        }
        drop(end);
        waits.join().unwrap();
        // It is gone, or is about to be: who waits for its end is told a moment before.
        while doing(thread) != Doing::Sleeps {
            std::thread::yield_now();
        }
        let me = this_thread();
        let Doing::Runs(first) = doing(me) else {
            panic!("this thread runs");
        };
        while doing(me) == Doing::Runs(first) {}
    }
}
