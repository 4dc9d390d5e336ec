//! The one connection that listens, for everything in this process that waits on the store. It is
//! apart from the pool, begins with the first waiter, and comes back by itself.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use alkstore_core::{ChannelName, Error, Result};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgListener, PgNotification, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::clock::pause;
use crate::error::{Failure, Stage};
use crate::notify;
use crate::sql::quoted;
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

/// What is asked of the connection.
#[derive(Debug)]
enum Ask {
    /// To hear a channel's messages, and to answer when all that were sent before are heard.
    Hear(ChannelName, oneshot::Sender<()>),
    /// To leave a channel that nobody listens to any longer.
    Leave(ChannelName),
}

pub(crate) struct Listening {
    connect: Option<PgConnectOptions>,
    state: watch::Sender<State>,
    started: AtomicBool,
    asks: mpsc::UnboundedSender<Ask>,
    /// The other end, until somebody begins to listen.
    asked: Mutex<Option<mpsc::UnboundedReceiver<Ask>>>,
}

impl Listening {
    pub(crate) fn new(connect: Option<PgConnectOptions>) -> Self {
        let (asks, asked) = mpsc::unbounded_channel();
        Self {
            connect,
            state: watch::Sender::new(State::Deaf),
            started: AtomicBool::new(false),
            asks,
            asked: Mutex::new(Some(asked)),
        }
    }

    /// Whether there is anything to listen to; else waiters poll.
    pub(crate) fn is_possible(&self) -> bool {
        self.connect.is_some()
    }

    /// Ends once everything is heard that is committed from now on.
    pub(crate) async fn begun(&self, open: &Arc<Open>) -> Result<()> {
        let Some(connect) = &self.connect else { return Ok(()) };
        if !self.started.swap(true, Ordering::SeqCst)
            && let Some(asked) = self.asked.lock().take()
        {
            let ear = Ear {
                open: Arc::downgrade(open),
                close: open.close.clone(),
                connect: connect.clone(),
                wakes: open.texts.wakes.clone(),
                state: self.state.clone(),
                asked,
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

    /// Ends once a channel's messages are heard, and those that were sent before have passed.
    pub(crate) async fn hear(&self, open: &Arc<Open>, channel: &ChannelName) -> Result<()> {
        let hearing = async {
            loop {
                self.begun(open).await?;
                let (answer, answered) = oneshot::channel();
                let asked = self.asks.send(Ask::Hear(channel.clone(), answer));
                asked.map_err(|_| Error::Closed)?;
                // Lost with the connection, it is asked of the next one.
                if answered.await.is_ok() {
                    return Ok(());
                }
                open.usable()?;
            }
        };
        let patience = open.options.lock_timeout;
        match open.close.unless_closed(timeout(patience, hearing)).await? {
            Ok(heard) => heard,
            Err(_) => Err(Error::unavailable("the store can't listen: the server doesn't answer")),
        }
    }

    /// Nobody listens to a channel any longer.
    pub(crate) fn leave(&self, channel: ChannelName) {
        // Where nothing listens any longer, nothing has to be left.
        let _ = self.asks.send(Ask::Leave(channel));
    }
}

struct Ear {
    open: Weak<Open>,
    close: Arc<CloseSignal>,
    connect: PgConnectOptions,
    wakes: String,
    state: watch::Sender<State>,
    asked: mpsc::UnboundedReceiver<Ask>,
}

impl Ear {
    async fn listen(mut self) {
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
                    let close = self.close.clone();
                    unless(close.closed(), self.hear(listener)).await;
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
        let mut listens = format!("LISTEN {}", quoted(&self.wakes));
        if let Some(open) = self.open.upgrade() {
            for channel in open.listeners.lock().channels() {
                listens += &format!("; LISTEN {}", quoted(&open.texts.message_channel(channel)));
            }
        }
        let beginning = async {
            let mut listener = PgListener::connect_with(pool).await?;
            listener.eager_reconnect(false);
            listener.ignore_pool_close_event(true);
            listener.execute(AssertSqlSafe(listens)).await?;
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
    async fn hear(&mut self, mut listener: PgListener) {
        loop {
            let asked_or_heard = {
                let heard = pin!(timeout(QUIET, listener.try_recv()));
                match select(pin!(self.asked.recv()), heard).await {
                    Either::Left((asked, _)) => Either::Left(asked),
                    Either::Right((heard, _)) => Either::Right(heard),
                }
            };
            let is_sound = match asked_or_heard {
                Either::Left(Some(ask)) => self.answer(ask, &mut listener).await,
                Either::Right(Ok(Ok(Some(notification)))) => {
                    self.tell(&notification);
                    true
                }
                Either::Right(Err(_)) => {
                    let asked = timeout(ANSWER, listener.execute("SELECT 1")).await;
                    matches!(asked, Ok(Ok(_)))
                }
                // The store is gone, or the connection.
                Either::Left(None) | Either::Right(Ok(_)) => false,
            };
            if !is_sound {
                return;
            }
        }
    }

    /// Does what was asked up to now, in one go, and says whether the connection is sound.
    async fn answer(&mut self, first: Ask, listener: &mut PgListener) -> bool {
        let Some(open) = self.open.upgrade() else { return false };
        let (mut text, mut answers) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(ask) = next {
            match ask {
                Ask::Hear(channel, answer) => {
                    let channel = open.texts.message_channel(&channel);
                    text.push(format!("LISTEN {}", quoted(&channel)));
                    answers.push(answer);
                }
                Ask::Leave(channel) if !open.listeners.lock().has(&channel) => {
                    let channel = open.texts.message_channel(&channel);
                    text.push(format!("UNLISTEN {}", quoted(&channel)));
                }
                Ask::Leave(_) => {}
            }
            next = self.asked.try_recv().ok();
        }
        drop(open);
        if text.is_empty() {
            return true;
        }
        let done = timeout(ANSWER, listener.execute(AssertSqlSafe(text.join("; ")))).await;
        if !matches!(done, Ok(Ok(_))) {
            return false;
        }
        // What came with the answer was sent before.
        while let Some(notification) = listener.next_buffered() {
            self.tell(&notification);
        }
        for answer in answers {
            let _ = answer.send(());
        }
        true
    }

    fn tell(&self, notification: &PgNotification) {
        let Some(open) = self.open.upgrade() else { return };
        if notification.channel() != self.wakes {
            notify::heard(&open, notification.payload());
        } else if let Some(topic) = topic(notification.payload()) {
            open.topics.lock().wake(&topic);
        }
    }
}
