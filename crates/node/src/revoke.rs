//! Telling this node's mounts what has changed.

use crate::container::Failed;
use crate::env::Env;
use crate::sessions::Whom;
use perigee_meta::Touched;
use perigee_types::{ContainerId, Errno};
use std::sync::Arc;
use std::time::Duration;

/// How long a kernel is waited for that may wait for a write of its own mount.
const WRITING: Duration = Duration::from_millis(3);

/// What is about more than so much is looked through beside the runtime's threads.
const AT_ONCE: usize = 64;

/// Makes mounts of this node forget what has changed, as far as their kernels may have it. These may wait for reads that only the
/// runtime's threads, and those of the mounts, can answer: none of these waits for them.
///
/// A kernel that has a page locked for a write of its own mount is not waited for either: the write may wait for another
/// kernel, which waits for the change that this one is told of. It has forgotten the attributes, and so asks before it shows
/// a page, and drops the pages when the write has its answer.
pub(crate) async fn revoke(
    env: &Arc<Env>,
    whom: Whom,
    touched: Vec<Touched>,
) -> Result<(), Failed> {
    let shown = env.stripes.shown(&touched);
    let kept = if shown.len() <= AT_ONCE {
        env.sessions.changed_for(whom, &shown)
    } else {
        let here = env.clone();
        let looked = env
            .runtime
            .spawn_blocking(move || here.sessions.changed_for(whom, &shown));
        looked.await.map_err(|_| Errno::EIO)?
    };
    if kept.is_empty() {
        return Ok(());
    }
    let touched = Arc::new(kept);
    let (here, changed) = (env.clone(), touched.clone());
    let asks_again = env
        .runtime
        .spawn_blocking(move || here.sessions.revoke_attributes(whom, &changed));
    asks_again.await.map_err(|_| Errno::EIO)?;
    if !touched
        .iter()
        .any(|change| matches!(change, Touched::Data(_) | Touched::Listing(_)))
    {
        return Ok(());
    }
    let (here, changed) = (env.clone(), touched.clone());
    let mut told = env
        .runtime
        .spawn_blocking(move || here.sessions.revoke_pages(whom, &changed));
    loop {
        match tokio::time::timeout(WRITING, &mut told).await {
            Ok(told) => return told.map_err(|_| Errno::EIO.into()),
            Err(_) if env.sessions.is_writing(whom, &touched) => return Ok(()),
            Err(_) => {}
        }
    }
}

/// A container has another owner: no mount of this node keeps content of its files, or of columns there. Blocks as
/// [`Sessions::revoke_pages`](crate::sessions::Sessions::revoke_pages).
pub(crate) fn forget_content(env: &Env, container: ContainerId) {
    env.sessions.forget_content(container);
    env.stripes.owner_changed(container);
    let spread = env.stripes.with_columns_in(container);
    if !spread.is_empty() {
        let touched: Vec<Touched> = spread.into_iter().map(Touched::Data).collect();
        env.sessions.revoke_all(&touched);
    }
}
