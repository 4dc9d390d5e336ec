//! Connections that read. None keeps a transaction open between two calls.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use alkstore_core::{Error, Result};
use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;

use crate::migrate;
use crate::sql::{Failure, Outcome};

/// How many threads read at most.
const THREADS: usize = 4;

/// How many connections wait for short reads on the callers' own threads.
const SPARE: usize = 4;

/// How long a read on a thread of its own waits where the file is locked as a whole.
const PATIENCE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce(std::result::Result<&Connection, Failure>) + Send>;

/// The readers of one file.
pub(crate) struct Readers {
    path: PathBuf,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    spare: Vec<Connection>,
    closing: bool,
}

impl Readers {
    pub(crate) fn new(path: &Path) -> Arc<Self> {
        let (state, arrived) = (Mutex::default(), Condvar::new());
        Arc::new(Self { path: path.to_owned(), state, arrived })
    }

    /// A short read, on the caller's own thread; it doesn't wait where the file is locked.
    pub(crate) fn here<T>(&self, read: impl FnOnce(&Connection) -> Outcome<T>) -> Outcome<T> {
        let spare = self.state.lock().spare.pop();
        let conn = match spare {
            Some(conn) => conn,
            None => migrate::reader(&self.path, Duration::ZERO)?,
        };
        let outcome = read(&conn);
        let mut state = self.state.lock();
        if !state.closing && state.spare.len() < SPARE && conn.is_autocommit() {
            state.spare.push(conn);
        }
        outcome
    }

    /// A read on a thread of the engine's own.
    pub(crate) fn there(self: &Arc<Self>, alive: impl Send + 'static, job: Job) -> Result<()> {
        let mut state = self.state.lock();
        if state.closing {
            return Err(Error::Closed);
        }
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.threads.len() == THREADS {
            self.arrived.notify_one();
            return Ok(());
        }
        let readers = self.clone();
        let thread =
            std::thread::Builder::new().name("alkstore-reader".to_owned()).spawn(move || {
                readers.serve();
                drop(alive);
            });
        match thread {
            Ok(thread) => state.threads.push(thread),
            // Those that run already will come to it.
            Err(_) if !state.threads.is_empty() => {
                self.arrived.notify_one();
            }
            Err(error) => {
                state.jobs.pop_back();
                return Err(Error::Engine {
                    message: "a reader's thread can't be started".to_owned(),
                    source: Some(Box::new(error)),
                });
            }
        }
        Ok(())
    }

    fn serve(&self) {
        let mut conn = None;
        while let Some(job) = self.next() {
            if conn.is_none() {
                match migrate::reader(&self.path, PATIENCE) {
                    Ok(opened) => conn = Some(opened),
                    Err(error) => {
                        job(Err(error.into()));
                        continue;
                    }
                }
            }
            if let Some(conn) = &conn {
                job(Ok(conn));
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.closing {
                state.jobs.clear();
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            self.arrived.wait(&mut state);
            state.idle -= 1;
        }
    }

    /// Lets the threads end and the connections go.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        state.spare.clear();
        self.arrived.notify_all();
    }

    /// Blocks until the threads have ended, once they were told to.
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut self.state.lock().threads);
        for thread in threads {
            // A panic was heard by whoever waited for the answer.
            let _ = thread.join();
        }
    }
}
