//! Calls that overlap, and how each ended.

use crate::model::Model;
use std::fmt;

/// Who calls. Only for people: a client's calls may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client(pub u32);

/// A point of the one order in which calls begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End<A> {
    /// With this answer, which may be a definite error.
    Answered { at: Moment, answer: A },
    /// Nobody can say: it takes effect at any time after it began, or never.
    Unknown,
}

/// One call of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<O, A> {
    pub(crate) client: Client,
    pub(crate) invoked: Moment,
    pub(crate) op: O,
    pub(crate) end: End<A>,
}

impl<O: fmt::Debug, A: fmt::Debug> fmt::Display for Call<O, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (client, op) = (self.client.0, &self.op);
        let began = self.invoked.0;
        match &self.end {
            End::Answered { at, answer } => {
                write!(
                    f,
                    "{began} to {}: client {client}'s {op:?} gave {answer:?}",
                    at.0
                )
            }
            End::Unknown => write!(f, "{began}: client {client}'s {op:?}, of unknown outcome"),
        }
    }
}

/// A call of what a model has.
pub(crate) type CallOf<M> = Call<<M as Model>::Op, <M as Model>::Answer>;

/// The name of a call that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a call that is never answered has an unknown outcome"]
pub struct Ticket(usize);

/// Writes down calls in the order in which they begin and end. What is not answered is unknown.
#[derive(Debug)]
pub struct Recorder<M: Model> {
    /// `None`: it is withdrawn.
    calls: Vec<Option<CallOf<M>>>,
    moments: u64,
}

/// The calls of a recorder that is closed, in the order in which they began.
#[derive(Debug, Clone)]
pub struct History<M: Model> {
    pub(crate) calls: Vec<CallOf<M>>,
}

impl<M: Model> Default for Recorder<M> {
    fn default() -> Self {
        Self {
            calls: Vec::new(),
            moments: 0,
        }
    }
}

impl<M: Model> Recorder<M> {
    fn moment(&mut self) -> Moment {
        self.moments += 1;
        Moment(self.moments)
    }

    /// A client is about to call.
    pub fn invoke(&mut self, client: Client, op: M::Op) -> Ticket {
        let invoked = self.moment();
        self.calls.push(Some(Call {
            client,
            invoked,
            op,
            end: End::Unknown,
        }));
        Ticket(self.calls.len() - 1)
    }

    /// The call has returned with a definite answer. The first one counts.
    pub fn answer(&mut self, ticket: Ticket, answer: M::Answer) {
        let at = self.moment();
        if let Some(Some(call)) = self.calls.get_mut(ticket.0)
            && matches!(call.end, End::Unknown)
        {
            call.end = End::Answered { at, answer };
        }
    }

    /// The call has surely done nothing, and its answer says nothing.
    pub fn withdraw(&mut self, ticket: Ticket) {
        if let Some(call) = self.calls.get_mut(ticket.0) {
            *call = None;
        }
    }

    /// How many calls were begun.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether none was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// What was written down.
    #[must_use]
    pub fn close(self) -> History<M> {
        History {
            calls: self.calls.into_iter().flatten().collect(),
        }
    }
}

impl<M: Model> History<M> {
    /// How many calls were answered.
    #[must_use]
    pub fn answered(&self) -> usize {
        let answered = |call: &&CallOf<M>| matches!(call.end, End::Answered { .. });
        self.calls.iter().filter(answered).count()
    }

    /// How many calls have an unknown outcome.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.calls.len() - self.answered()
    }
}
