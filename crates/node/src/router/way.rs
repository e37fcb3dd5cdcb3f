//! What a program is likely to ask for next, asked for along with what it asks for: a kernel that opens a file by its path
//! goes from directory to directory, and over a long link each step is a round trip.

use super::{Request, Router, changes};
use perigee_client::fs::Done;
use perigee_meta::Reply;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What was asked for along is waited for so long after the answer itself: it left with the question.
const AHEAD: Duration = Duration::from_millis(10);

impl Router {
    /// The same as [`Router::route_now`]. With a directory the directories come that the session went on to from it last, where it
    /// keeps nothing of them; they are there when this is answered.
    pub(super) fn route_with_way(&self, request: Request, done: Done<(Reply, Duration)>) {
        let (session, now) = (request.session, self.env.clock.now());
        let sessions = &self.env.sessions;
        let mut next = sessions.asks_next(session, &request.operation, now);
        next.retain(|op| {
            let here = self.env.container(super::container_of(op));
            here.is_none_or(|container| container.owned().is_none())
        });
        if next.is_empty() {
            return self.route_now(request, done);
        }
        let mut along = JoinSet::new();
        for op in next {
            debug_assert!(!changes(&op), "whatever comes of it is nobody's answer");
            let (env, request) = (self.env.clone(), self.request(session, op));
            along.spawn_on(
                // Who really asks for it hears of what goes wrong.
                async move { _ = Self::route(&env, &request).await },
                &self.env.runtime,
            );
        }
        let runtime = self.env.runtime.clone();
        let answered = move |result: Result<(Reply, Duration), _>| {
            let began = Instant::now();
            runtime.spawn(async move {
                let all = async { while along.join_next().await.is_some() {} };
                // What comes later is kept all the same.
                let late = tokio::time::timeout(AHEAD, all).await.is_err();
                if late {
                    along.detach_all();
                }
                let waited = began.elapsed();
                done(result.map(|(reply, ttl)| (reply, ttl.saturating_sub(waited))));
            });
        };
        self.route_now(request, Box::new(answered));
    }
}
