//! Running something in another network namespace.

use crate::error::{Call, CheckError, Checked};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

/// Runs in the namespace of that place, on a thread of its own, since who enters one would have to find the way back.
/// Sockets and devices that are made there stay there.
///
/// Errors: no right to, there is no such namespace, or what the closure says.
pub(crate) fn inside<T: Send>(place: &Path, run: impl FnOnce() -> Checked<T> + Send) -> Checked<T> {
    let what = || format!("enter {}", place.display());
    let namespace = File::open(place).call(what)?;
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind)
                .map_err(std::io::Error::from)
                .call(what)?;
            run()
        });
        let panicked = || CheckError::violated("a thread panicked in a namespace");
        there.join().map_err(|_| panicked())?
    })
}
