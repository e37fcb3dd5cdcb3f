//! What a program is likely to ask for next, asked for along with what it asks for: a kernel that opens a file by its path
//! goes from directory to directory, and over a long link each step is a round trip.

use super::{CALL, Request, Router, changes, container_of};
use crate::env::Env;
use perigee_client::fs::Done;
use perigee_meta::Reply;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What was asked for along is waited for so long after the answer itself, and no longer than that took: it left with the question.
const AHEAD: Duration = Duration::from_millis(10);

/// Something that is asked for before a program does, until that is answered or given up.
struct Beforehand {
    env: Arc<Env>,
    request: Request,
}

impl Drop for Beforehand {
    fn drop(&mut self) {
        let (session, op) = (self.request.session, &self.request.operation);
        self.env.sessions.asked_beforehand(session, op);
    }
}

impl Router {
    /// The same as [`Router::route_now`]. With a directory the directories come that the session went on to from it last, where it
    /// keeps nothing of them; they are there when this is answered.
    pub(super) fn route_with_way(&self, request: Request, done: Done<(Reply, Duration)>) {
        let (session, now) = (request.session, self.env.clock.now());
        let sessions = &self.env.sessions;
        let next = sessions.asks_next(session, &request.operation, now);
        if next.is_empty() {
            return self.route_now(request, done);
        }
        let mut along = JoinSet::new();
        for op in next {
            debug_assert!(!changes(&op), "whatever comes of it is nobody's answer");
            let (env, request) = (self.env.clone(), self.request(session, op));
            // Who really asks for it hears of what goes wrong.
            let ask = async move {
                let beforehand = Beforehand { env, request };
                let Beforehand { env, request } = &beforehand;
                let here = env.container(container_of(&request.operation));
                if here.is_none_or(|container| container.owned().is_none()) {
                    _ = tokio::time::timeout(CALL, Self::route(env, request)).await;
                }
            };
            along.spawn_on(ask, &self.env.runtime);
        }
        let (runtime, asked) = (self.env.runtime.clone(), Instant::now());
        let answered = move |result: Result<(Reply, Duration), _>| {
            let began = Instant::now();
            let patience = AHEAD.min(began.duration_since(asked));
            runtime.spawn(async move {
                let all = async { while along.join_next().await.is_some() {} };
                if tokio::time::timeout(patience, all).await.is_err() {
                    // What comes later is kept all the same.
                    along.detach_all();
                }
                let waited = began.elapsed();
                done(result.map(|(reply, ttl)| (reply, ttl.saturating_sub(waited))));
            });
        };
        self.route_now(request, Box::new(answered));
    }
}
