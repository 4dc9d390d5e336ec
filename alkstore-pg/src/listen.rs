//! The one connection that listens, for everything in this process that waits on the store. It is
//! apart from the pool, begins with the first waiter, and comes back by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use alkstore_core::{Error, Result};
use sqlx::Executor;
use sqlx::postgres::{PgConnectOptions, PgListener, PgNotification, PgPool, PgPoolOptions};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clock::pause;
use crate::error::{Failure, Stage};
use crate::notify;
use crate::store::{Open, unless};
use crate::wake::{CloseSignal, topic};

/// After so long without a word the server is asked whether it is there.
const QUIET: Duration = Duration::from_secs(2);

/// How long it may take to answer, or to let the connection in.
const ANSWER: Duration = Duration::from_secs(2);

/// How long who wants to wait waits for the connection to be there.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pauses between two attempts to come back.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
enum State {
    /// Nobody has waited yet, or the connection is being made.
    Deaf,
    Listening,
    Failed(String),
}

pub(crate) struct Listening {
    connect: Option<PgConnectOptions>,
    state: watch::Sender<State>,
    started: AtomicBool,
}

impl Listening {
    pub(crate) fn new(connect: Option<PgConnectOptions>) -> Self {
        Self { connect, state: watch::Sender::new(State::Deaf), started: AtomicBool::new(false) }
    }

    /// Whether there is anything to listen to; else waiters poll.
    pub(crate) fn is_possible(&self) -> bool {
        self.connect.is_some()
    }

    /// Ends once everything is heard that is committed from now on.
    pub(crate) async fn begun(&self, open: &Arc<Open>) -> Result<()> {
        let Some(connect) = &self.connect else { return Ok(()) };
        if !self.started.swap(true, Ordering::SeqCst) {
            let ear = Ear {
                open: Arc::downgrade(open),
                close: open.close.clone(),
                connect: connect.clone(),
                channels: [open.texts.wakes.clone(), open.texts.messages.clone()],
                state: self.state.clone(),
            };
            open.spawn(ear.listen());
        }
        let mut state = self.state.subscribe();
        let listening = state.wait_for(|state| matches!(state, State::Listening));
        let patience = open.options.operation_timeout.min(PATIENCE);
        match open.close.unless_closed(timeout(patience, listening)).await? {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => {
                let why = match &*self.state.borrow() {
                    State::Failed(why) => why.clone(),
                    _ => "the server doesn't answer".to_owned(),
                };
                Err(Error::unavailable(format!("the store can't listen for changes: {why}")))
            }
        }
    }
}

struct Ear {
    open: Weak<Open>,
    close: Arc<CloseSignal>,
    connect: PgConnectOptions,
    channels: [String; 2],
    state: watch::Sender<State>,
}

impl Ear {
    async fn listen(self) {
        let mut wait = FIRST_PAUSE;
        let mut heard_before = false;
        while !self.close.is_closed() {
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .test_before_acquire(false)
                .acquire_timeout(ANSWER)
                .connect_lazy_with(self.connect.clone());
            match unless(self.close.closed(), self.begin(&pool)).await {
                None => {}
                Some(Ok(listener)) => {
                    wait = FIRST_PAUSE;
                    self.state.send_replace(State::Listening);
                    if heard_before {
                        self.look_again();
                    }
                    heard_before = true;
                    unless(self.close.closed(), self.hear(listener)).await;
                    self.state.send_replace(State::Deaf);
                }
                Some(Err(why)) => {
                    self.state.send_replace(State::Failed(why));
                }
            }
            // What was lost is closed; a server that doesn't answer isn't waited for.
            let _ = timeout(FIRST_PAUSE, pool.close()).await;
            unless(self.close.closed(), pause(wait)).await;
            wait = (wait * 2).min(LONGEST_PAUSE);
        }
    }

    async fn begin(&self, pool: &PgPool) -> std::result::Result<PgListener, String> {
        let beginning = async {
            let mut listener = PgListener::connect_with(pool).await?;
            listener.eager_reconnect(false);
            listener.ignore_pool_close_event(true);
            listener.listen_all(self.channels.iter().map(String::as_str)).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        match timeout(ANSWER, beginning).await {
            Ok(Ok(listener)) => Ok(listener),
            Ok(Err(error)) => Err(Failure::from(error).into_error(Stage::Harmless).to_string()),
            Err(_) => Err("the server doesn't answer".to_owned()),
        }
    }

    /// What was committed while nobody listened is found by looking.
    fn look_again(&self) {
        if let Some(open) = self.open.upgrade() {
            open.topics.lock().wake_everyone();
            notify::lost(&open);
        }
    }

    /// Hears until the connection is lost.
    async fn hear(&self, mut listener: PgListener) {
        loop {
            match timeout(QUIET, listener.try_recv()).await {
                Ok(Ok(Some(notification))) => self.tell(&notification),
                Ok(Ok(None) | Err(_)) => return,
                Err(_) => {
                    let asked = timeout(ANSWER, listener.execute("SELECT 1")).await;
                    if !matches!(asked, Ok(Ok(_))) {
                        return;
                    }
                }
            }
        }
    }

    fn tell(&self, notification: &PgNotification) {
        let Some(open) = self.open.upgrade() else { return };
        if notification.channel() == self.channels[0] {
            if let Some(topic) = topic(notification.payload()) {
                open.topics.lock().wake(&topic);
            }
        } else {
            notify::heard(&open, notification.payload());
        }
    }
}
