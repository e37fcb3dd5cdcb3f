//! Work that begins where it is asked for: what it sends leaves on the calling thread, and only what waits for an answer
//! goes to the runtime. To wake one of its threads first may take longer than a near peer takes to answer.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;

/// Work that has begun.
pub enum Begun<F: Future> {
    /// It waited for nobody.
    Done(F::Output),
    /// It waits: somebody has to go on with it.
    Waits(Pin<Box<F>>),
    /// It has panicked, which is the affair of who goes on with it.
    Panicked(Box<dyn Any + Send>),
}

/// Runs `work` on this thread until it waits for the first time. The caller holds no lock that `work` may want.
pub fn begin<F: Future>(runtime: &Handle, work: F) -> Begun<F> {
    let _entered = runtime.enter();
    let mut work = Box::pin(work);
    // Nobody is woken: who goes on with it asks again.
    let mut nobody = Context::from_waker(Waker::noop());
    // Work that has panicked is not looked at again.
    let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut nobody)));
    match polled {
        Ok(Poll::Ready(done)) => Begun::Done(done),
        Ok(Poll::Pending) => Begun::Waits(work),
        Err(panic) => Begun::Panicked(panic),
    }
}

/// The same; the rest runs on the runtime.
pub fn spawn_begun<F>(runtime: &Handle, work: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    match begin(runtime, work) {
        Begun::Done(()) => {}
        Begun::Waits(rest) => _ = runtime.spawn(rest),
        // As in a task, it was said, and ends nothing else.
        Begun::Panicked(_) => {}
    }
}

impl<F: Future> Begun<F> {
    /// What it comes to.
    pub async fn end(self) -> F::Output {
        match self {
            Self::Done(done) => done,
            Self::Waits(rest) => rest.await,
            Self::Panicked(panic) => resume_unwind(panic),
        }
    }
}

impl<F: Future> std::fmt::Debug for Begun<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Done(_) => "Done",
            Self::Waits(_) => "Waits",
            Self::Panicked(_) => "Panicked",
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use std::thread;
    use tokio::sync::{mpsc, oneshot};

    #[test]
    fn work_begins_on_its_callers_thread_and_ends_on_the_runtime() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let (go_on, waits) = oneshot::channel::<()>();
        let (tell, mut told) = mpsc::unbounded_channel();
        spawn_begun(runtime.handle(), async move {
            tell.send(thread::current().id()).unwrap();
            waits.await.unwrap();
            tell.send(thread::current().id()).unwrap();
        });
        assert_eq!(told.try_recv().unwrap(), thread::current().id());
        go_on.send(()).unwrap();
        assert_ne!(told.blocking_recv().unwrap(), thread::current().id());
    }

    #[test]
    fn a_panic_is_the_works_and_not_its_callers() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let (alive, mut gone) = mpsc::unbounded_channel::<()>();
        spawn_begun(runtime.handle(), async move {
            let _alive = alive;
            panic!("as it is to be");
        });
        assert_eq!(gone.blocking_recv(), None);
    }

    #[test]
    fn work_that_waits_for_nobody_is_done_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let begun = begin(runtime.handle(), async { 7 });
        assert!(matches!(begun, Begun::Done(7)));
        assert_eq!(runtime.block_on(begun.end()), 7);
    }
}
