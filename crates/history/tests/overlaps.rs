//! Histories of objects that really do one thing after the other, with calls that overlap at random: they are explained,
//! and those with a changed answer exactly when some order explains them, as trying all orders tells.

mod objects;

use objects::{Real, TheLocks, TheLog, TheNames, TheRegisters};
use perigee_history::{Budget, Client, Model, Recorder, Told, Verdict, check};
use perigee_types::Rng;
use proptest::prelude::*;

/// More than any of these histories needs.
const ENOUGH: Budget = Budget(200_000);
const CLIENTS: u32 = 4;

/// What happens, in this order.
#[derive(Clone)]
enum Event<M: Model> {
    Invoke(Client, M::Op),
    /// Of the call that was begun as the so-manieth.
    Answer(usize, M::Answer),
}

struct Pending<M: Model> {
    number: usize,
    client: Client,
    op: M::Op,
    answer: Option<M::Answer>,
    /// Its client has gone: nobody hears the answer.
    lost: bool,
}

/// Lets clients call a real object, so many times altogether. One of `loss` looks at a call loses it.
fn play<R: Real>(rng: &mut Rng, calls: usize, loss: u64) -> Vec<Event<R::Model>> {
    let (mut real, mut events) = (R::default(), Vec::new());
    let mut pending: Vec<Pending<R::Model>> = Vec::new();
    let mut begun = 0;
    let mut clients: Vec<Client> = (1..=CLIENTS).map(Client).collect();
    let mut newest = CLIENTS;
    loop {
        let is_busy = |client: &Client| pending.iter().any(|one| one.client == *client);
        let idle = clients.iter().copied().find(|client| !is_busy(client));
        match rng.below(6) {
            0..=2 if begun < calls => {
                if let Some(client) = idle {
                    let op = real.draw(client, rng);
                    events.push(Event::Invoke(client, op.clone()));
                    pending.push(Pending {
                        number: begun,
                        client,
                        op,
                        answer: None,
                        lost: false,
                    });
                    begun += 1;
                }
            }
            _ if pending.is_empty() => {
                if begun == calls {
                    return events;
                }
            }
            3 | 4 => {
                let at = rng.below(pending.len() as u64) as usize;
                let one = &mut pending[at];
                if one.answer.is_none() {
                    one.answer = Some(real.act(one.client, &one.op));
                }
            }
            _ => {
                let at = rng.below(pending.len() as u64) as usize;
                if !pending[at].lost && rng.chance(1, loss) {
                    pending[at].lost = true;
                    newest += 1;
                    clients.retain(|client| *client != pending[at].client);
                    clients.push(Client(newest));
                }
                // One that is lost takes effect later, or never.
                if pending[at].lost {
                    if rng.chance(1, 4) {
                        pending.swap_remove(at);
                    }
                } else if pending[at].answer.is_some() {
                    let one = pending.swap_remove(at);
                    let answer = one.answer.expect("it was looked at just now");
                    real.told(one.client, &one.op, &answer);
                    events.push(Event::Answer(one.number, answer));
                }
            }
        }
    }
}

fn verdict<R: Real>(events: &[Event<R::Model>]) -> Verdict {
    let mut recorder: Recorder<R::Model> = Recorder::default();
    let mut tickets = Vec::new();
    for event in events {
        match event {
            Event::Invoke(client, op) => tickets.push(recorder.invoke(*client, op.clone())),
            Event::Answer(number, answer) => recorder.answer(tickets[*number], answer.clone()),
        }
    }
    check(&R::model(), &recorder.close(), ENOUGH)
}

/// A call: its operation, when it began and ended, and its answer.
struct Span<M: Model> {
    op: M::Op,
    began: usize,
    end: Option<(usize, M::Answer)>,
}

/// Whether any order explains the answers: all are tried.
fn by_force<R: Real>(events: &[Event<R::Model>]) -> bool {
    let mut spans: Vec<Span<R::Model>> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Invoke(_, op) => spans.push(Span {
                op: op.clone(),
                began: at,
                end: None,
            }),
            Event::Answer(number, answer) => spans[*number].end = Some((at, answer.clone())),
        }
    }
    let model = R::model();
    let mut objects: Vec<_> = spans.iter().map(|span| model.object(&span.op)).collect();
    objects.sort();
    objects.dedup();
    objects.iter().all(|object| {
        let own = spans
            .iter()
            .filter(|span| model.object(&span.op) == *object);
        let own: Vec<&Span<R::Model>> = own.collect();
        orders(
            &model,
            &own,
            &mut vec![false; own.len()],
            &model.first(object),
        )
    })
}

fn orders<M: Model>(model: &M, spans: &[&Span<M>], done: &mut [bool], state: &M::State) -> bool {
    let unexplained = |done: &[bool]| {
        let open = spans.iter().zip(done).filter(|(_, done)| !**done);
        open.filter_map(|(span, _)| span.end.as_ref().map(|(at, _)| *at))
            .min()
    };
    let Some(first_end) = unexplained(done) else {
        return true;
    };
    for index in 0..spans.len() {
        if done[index] || spans[index].began > first_end {
            continue;
        }
        let told = spans[index].end.as_ref();
        let told = told.map_or(Told::Nothing, |(_, answer)| Told::Answer(answer));
        if let Some(after) = model.step(state, &spans[index].op, told) {
            done[index] = true;
            if orders(model, spans, done, &after) {
                return true;
            }
            done[index] = false;
        }
    }
    false
}

/// Changes one answer. `None`: there is none.
fn change<R: Real>(rng: &mut Rng, events: &mut [Event<R::Model>]) -> Option<()> {
    let is_answer = |event: &&mut Event<R::Model>| matches!(event, Event::Answer(..));
    let mut answers: Vec<&mut Event<R::Model>> = events.iter_mut().filter(is_answer).collect();
    if answers.is_empty() {
        return None;
    }
    let at = rng.below(answers.len() as u64) as usize;
    if let Event::Answer(_, answer) = &mut answers[at] {
        *answer = R::other(answer, rng);
    }
    Some(())
}

/// Whether a changed small history was refused, having compared both ways to decide it.
fn agrees_with_force<R: Real>(seed: u64) -> bool {
    let mut rng = Rng::new(seed);
    let calls = 2 + rng.below(6) as usize;
    let mut events = play::<R>(&mut rng, calls, 8);
    assert!(by_force::<R>(&events), "seed {seed}");
    assert_eq!(verdict::<R>(&events), Verdict::Explained, "seed {seed}");
    if change::<R>(&mut rng, &mut events).is_none() {
        return false;
    }
    let possible = by_force::<R>(&events);
    let found = verdict::<R>(&events);
    assert_ne!(found, Verdict::NoResult, "seed {seed}");
    assert_eq!(found == Verdict::Explained, possible, "seed {seed}");
    !possible
}

/// Small histories of one kind of object that are compared, and how many of the changed ones must be refused.
const COMPARED: u64 = 1_500;
const REFUSED: usize = 300;

fn compare<R: Real>() {
    let refused = (1..=COMPARED).filter(|seed| agrees_with_force::<R>(*seed));
    let refused = refused.count();
    assert!(refused > REFUSED, "only {refused} were refused");
}

#[test]
fn registers_are_refused_exactly_when_no_order_explains_them() {
    compare::<TheRegisters>();
}

#[test]
fn logs_are_refused_exactly_when_no_order_explains_them() {
    compare::<TheLog>();
}

#[test]
fn locks_are_refused_exactly_when_no_order_explains_them() {
    compare::<TheLocks>();
}

#[test]
fn names_are_refused_exactly_when_no_order_explains_them() {
    compare::<TheNames>();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn long_histories_of_real_objects_are_explained(seed in any::<u64>(), calls in 50_usize..150) {
        let rng = &mut Rng::new(seed);
        prop_assert_eq!(verdict::<TheRegisters>(&play::<TheRegisters>(rng, calls, 150)), Verdict::Explained);
        prop_assert_eq!(verdict::<TheLog>(&play::<TheLog>(rng, calls, 150)), Verdict::Explained);
        prop_assert_eq!(verdict::<TheLocks>(&play::<TheLocks>(rng, calls, 150)), Verdict::Explained);
        prop_assert_eq!(verdict::<TheNames>(&play::<TheNames>(rng, calls, 150)), Verdict::Explained);
    }
}

#[test]
fn a_search_that_is_over_its_budget_says_nothing() {
    let events = play::<TheNames>(&mut Rng::new(5), 40, 8);
    let mut recorder: Recorder<perigee_history::model::names::Names> = Recorder::default();
    let mut tickets = Vec::new();
    for event in events {
        match event {
            Event::Invoke(client, op) => tickets.push(recorder.invoke(client, op)),
            Event::Answer(number, answer) => recorder.answer(tickets[number], answer),
        }
    }
    let history = recorder.close();
    assert!(history.answered() > 20);
    assert_eq!(
        check(&TheNames::model(), &history, Budget(10)),
        Verdict::NoResult
    );
    assert_eq!(
        check(&TheNames::model(), &history, ENOUGH),
        Verdict::Explained
    );
}
