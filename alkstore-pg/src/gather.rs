//! Calls that come while others are under way go to the server together: one statement, one
//! commit. A call that is alone waits for nobody.

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
pub(crate) trait Row: Send + Sync + 'static {
    fn bytes(&self) -> usize;
}

struct Call<R, O> {
    rows: Vec<R>,
    answer: oneshot::Sender<Result<Vec<O>>>,
}

struct Waiting<R, O> {
    calls: VecDeque<Call<R, O>>,
    under_way: usize,
}

/// Answers each row, in order.
type Run<R, O> = fn(Arc<Open>, Vec<R>) -> BoxFuture<'static, Result<Vec<O>>>;

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
        let (answer, answered) = oneshot::channel();
        let begins = {
            let mut waiting = self.waiting.lock();
            waiting.calls.push_back(Call { rows, answer });
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
            let mut rows = Vec::new();
            let mut places = Vec::with_capacity(calls.len());
            for call in calls {
                places.push((call.rows.len(), call.answer));
                rows.extend(call.rows);
            }
            match (self.run)(open.clone(), rows).await {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    for (count, place) in places {
                        let own: Vec<O> = answers.by_ref().take(count).collect();
                        drop(place.send(complete(own, count)));
                    }
                }
                Err(error) => hand_out(error, places.into_iter().map(|(_, place)| place)),
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
            calls.extend(waiting.calls.pop_front().filter(|call| !call.answer.is_closed()));
        }
        if calls.is_empty() {
            waiting.under_way -= 1;
            return None;
        }
        Some(calls)
    }
}

fn complete<O>(answers: Vec<O>, count: usize) -> Result<Vec<O>> {
    if answers.len() == count {
        return Ok(answers);
    }
    Err(Error::engine("the server answered a batch with another number of results"))
}

/// The same error for each; the first has its source.
fn hand_out<O>(error: Error, places: impl Iterator<Item = oneshot::Sender<Result<Vec<O>>>>) {
    let mut places = places.peekable();
    while let Some(place) = places.next() {
        if places.peek().is_none() {
            drop(place.send(Err(error)));
            return;
        }
        drop(place.send(Err(copy(&error))));
    }
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
