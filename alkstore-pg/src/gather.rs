//! Calls that come while others are under way go to the server together: one statement, one
//! commit. A call that is alone waits for nobody, and one that fails fails alone.

use std::collections::VecDeque;
use std::sync::Arc;

use alkstore_core::{BoxFuture, Error, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::store::Open;

/// How many statements of a kind are under way at once; what comes meanwhile waits for the next.
const STATEMENTS: usize = 2;

/// How many rows one statement takes together; a single call may have more.
const ROWS: usize = 1_000;

/// How many bytes one statement takes together.
const BYTES: usize = 4 * 1024 * 1024;

/// A row of a call, and what it takes to send it.
pub(crate) trait Row: Clone + Send + Sync + 'static {
    fn bytes(&self) -> usize;
}

struct Call<R, O> {
    rows: Vec<R>,
    place: Place<O>,
}

/// Where a call's answer goes.
type Place<O> = oneshot::Sender<Result<Vec<O>>>;

/// Calls that go together: their rows, and how many of them each has.
struct Group<R, O> {
    rows: Arc<[R]>,
    places: Vec<(usize, Place<O>)>,
}

struct Waiting<R, O> {
    calls: VecDeque<Call<R, O>>,
    under_way: usize,
}

/// Answers each row, in order.
type Run<R, O> = fn(Arc<Open>, Arc<[R]>) -> BoxFuture<'static, Result<Vec<O>>>;

/// The calls of one kind that wait for each other.
pub(crate) struct Gather<R, O> {
    waiting: Mutex<Waiting<R, O>>,
    run: Run<R, O>,
    of: fn(&Open) -> &Self,
}

impl<R: Row, O: Send + 'static> Gather<R, O> {
    /// `run` answers each row, in order; `of` is where this is kept.
    pub(crate) fn new(run: Run<R, O>, of: fn(&Open) -> &Self) -> Self {
        Self { waiting: Mutex::new(Waiting { calls: VecDeque::new(), under_way: 0 }), run, of }
    }

    /// Sends rows, with others where there are any, and gives their answers.
    pub(crate) async fn call(&self, open: &Arc<Open>, rows: Vec<R>) -> Result<Vec<O>> {
        open.usable()?;
        open.returns.all_arrived().await;
        let (place, answered) = oneshot::channel();
        let begins = {
            let mut waiting = self.waiting.lock();
            waiting.calls.push_back(Call { rows, place });
            let begins = waiting.under_way < STATEMENTS;
            waiting.under_way += usize::from(begins);
            begins
        };
        if begins {
            let (open, of) = (open.clone(), self.of);
            open.clone().spawn(async move { of(&open).work_off(open.clone()).await });
        }
        answered.await.unwrap_or(Err(Error::Closed))
    }

    async fn work_off(&self, open: Arc<Open>) {
        while let Some(calls) = self.next() {
            let mut groups = vec![Group::of(calls)];
            while let Some(group) = groups.pop() {
                match (self.run)(open.clone(), group.rows.clone()).await {
                    Ok(answers) => group.hand_out(answers),
                    Err(error) if group.places.len() > 1 && is_refused(&error) => {
                        groups.extend(group.halves());
                    }
                    Err(error) => group.fail(error),
                }
            }
        }
    }

    /// The calls that go together next; none where nobody waits, and then this one has ended.
    fn next(&self) -> Option<Vec<Call<R, O>>> {
        let mut waiting = self.waiting.lock();
        let (mut calls, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while let Some(call) = waiting.calls.front() {
            rows += call.rows.len();
            bytes += call.rows.iter().map(Row::bytes).sum::<usize>();
            if !calls.is_empty() && (rows > ROWS || bytes > BYTES) {
                break;
            }
            // Who is gone before it was sent wants it no longer.
            calls.extend(waiting.calls.pop_front().filter(|call| !call.place.is_closed()));
        }
        if calls.is_empty() {
            waiting.under_way -= 1;
            return None;
        }
        Some(calls)
    }
}

impl<R: Row, O> Group<R, O> {
    fn of(calls: Vec<Call<R, O>>) -> Self {
        let mut rows = Vec::new();
        let mut places = Vec::with_capacity(calls.len());
        for call in calls {
            places.push((call.rows.len(), call.place));
            rows.extend(call.rows);
        }
        Self { rows: rows.into(), places }
    }

    /// The later half is first, since it is done last.
    fn halves(mut self) -> [Self; 2] {
        let later = self.places.split_off(self.places.len() / 2);
        let rows = self.places.iter().map(|(count, _)| count).sum();
        let (first, second) = self.rows.split_at(rows);
        [
            Self { rows: second.into(), places: later },
            Self { rows: first.into(), places: self.places },
        ]
    }

    fn hand_out(self, answers: Vec<O>) {
        let mut answers = answers.into_iter();
        for (count, place) in self.places {
            let own: Vec<O> = answers.by_ref().take(count).collect();
            drop(place.send(complete(own, count)));
        }
    }

    /// The same error for each; the last has its source.
    fn fail(self, error: Error) {
        let mut places = self.places.into_iter().map(|(_, place)| place).peekable();
        while let Some(place) = places.next() {
            if places.peek().is_none() {
                drop(place.send(Err(error)));
                return;
            }
            drop(place.send(Err(copy(&error))));
        }
    }
}

/// Whether the server refused the statement, so that nothing of it was written, and may do so for
/// what one of the calls brought: a character that its encoding hasn't, a trigger of the
/// application's.
fn is_refused(error: &Error) -> bool {
    let Error::Engine { source: Some(source), .. } = error else { return false };
    matches!(source.downcast_ref(), Some(sqlx::Error::Database(_)))
}

fn complete<O>(answers: Vec<O>, count: usize) -> Result<Vec<O>> {
    if answers.len() == count {
        return Ok(answers);
    }
    Err(Error::engine("the server answered a batch with another number of results"))
}

fn copy(error: &Error) -> Error {
    match error {
        Error::Closed => Error::Closed,
        Error::Unavailable { message, .. } => Error::unavailable(message.clone()),
        Error::CommitUnknown { message, .. } => Error::commit_unknown(message.clone()),
        Error::Engine { message, .. } => Error::engine(message.clone()),
        other => Error::engine(other.to_string()),
    }
}
