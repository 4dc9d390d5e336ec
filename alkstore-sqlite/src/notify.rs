//! Notify and listen: messages are rows that are kept for a while, and one delivery a process
//! takes them to its listeners.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;

use alkstore_core::{
    ChannelName, Error, Listener, ListenerSender, Message, NotifyStore, Payload, Result, StoreId,
};
use async_trait::async_trait;
use rusqlite::{Connection, params};

use crate::hub::Hub;
use crate::sql::{self, Outcome, Write};
use crate::store::SqliteStore;
use crate::writer::Size;

/// How long a message is kept, in milliseconds.
const KEPT_MS: i64 = 60_000;

/// How many bytes of payload are kept.
const KEPT_BYTES: i64 = 64 * 1024 * 1024;

const OLDEST: &str = "SELECT at, ends - size FROM alkstore_messages ORDER BY id LIMIT 1";

const LAST: &str = "SELECT ends FROM alkstore_messages ORDER BY id DESC LIMIT 1";

/// A page of what is too old or too much; the rest comes with the next message.
const PRUNE: &str = "DELETE FROM alkstore_messages WHERE id <= (
    SELECT max(id)
    FROM (SELECT id, at, ends - size AS begins FROM alkstore_messages ORDER BY id LIMIT 256)
    WHERE at <= ?1 OR begins < ?2)";

const SEND: &str = "INSERT INTO alkstore_messages (channel, at, size, ends, payload)
    VALUES (?1, ?2, ?3, ?4, ?5)";

/// The last message ever sent.
const HEAD: &str = "SELECT seq FROM sqlite_sequence WHERE name = 'alkstore_messages'";

const AFTER: &str = "SELECT id, channel, payload FROM alkstore_messages WHERE id > ?1 ORDER BY id";

#[cfg(test)]
pub(crate) const HOT: &[&str] = &[PRUNE, SEND, AFTER];

/// The listeners that this process has open on a file, by channel.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    channels: HashMap<ChannelName, Vec<Entry>>,
    /// The last message that was delivered.
    seen: i64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    store: StoreId,
    /// The last message that was sent before it listened.
    from: i64,
    sender: ListenerSender,
}

impl Listeners {
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.channels.values().flatten()
    }

    /// Messages up to this one are missing, and nobody knows for whom they were.
    fn cut(&self, upto: i64, wakers: &mut Vec<Waker>) {
        let behind = self.entries().filter(|entry| entry.from < upto);
        wakers.extend(behind.filter_map(|entry| entry.sender.lagged()));
    }
}

/// Takes what was sent since the last delivery to the listeners.
pub(crate) fn deliver(conn: &Connection, hub: &Hub) -> Outcome<()> {
    let mut wakers = Vec::new();
    let delivered = deliver_to(conn, &mut hub.listeners.lock(), &mut wakers);
    wakers.into_iter().for_each(Waker::wake);
    delivered
}

fn deliver_to(
    conn: &Connection,
    listeners: &mut Listeners,
    wakers: &mut Vec<Waker>,
) -> Outcome<()> {
    if listeners.channels.is_empty() || deliver_what_is_there(conn, listeners, wakers)? {
        return Ok(());
    }
    // All of what came may be gone already; or it came between the two looks, and is there.
    let head = head(conn)?;
    if head > listeners.seen && !deliver_what_is_there(conn, listeners, wakers)? {
        listeners.cut(head, wakers);
        listeners.seen = head;
    }
    Ok(())
}

/// Says whether there was anything.
fn deliver_what_is_there(
    conn: &Connection,
    listeners: &mut Listeners,
    wakers: &mut Vec<Waker>,
) -> Outcome<bool> {
    let mut statement = conn.prepare_cached(AFTER)?;
    let mut rows = statement.query([listeners.seen])?;
    let mut found = false;
    while let Some(row) = rows.next()? {
        found = true;
        let id: i64 = row.get(0)?;
        if id > listeners.seen + 1 {
            listeners.cut(id - 1, wakers);
        }
        listeners.seen = id;
        let channel: String = row.get(1)?;
        let Some((name, entries)) = listeners.channels.get_key_value(channel.as_str()) else {
            continue;
        };
        let message = Message::new(name.clone(), sql::payload(row, 2)?);
        for entry in entries.iter().filter(|entry| entry.from < id) {
            wakers.extend(entry.sender.send(message.clone()));
        }
    }
    Ok(found)
}

fn head(conn: &Connection) -> rusqlite::Result<i64> {
    Ok(sql::one(conn, HEAD, [], |row| row.get(0))?.unwrap_or(0))
}

/// Ends the listeners of one store.
pub(crate) fn end_all_of(hub: &Hub, store: StoreId) {
    end(hub, |entry| entry.store == store);
}

/// Ends every listener.
pub(crate) fn end_all(hub: &Hub) {
    end(hub, |_| true);
}

fn end(hub: &Hub, ends: impl Fn(&Entry) -> bool) {
    let mut ended = Vec::new();
    hub.listeners.lock().channels.retain(|_, entries| {
        ended.extend(entries.extract_if(.., |entry| ends(entry)));
        !entries.is_empty()
    });
    // Whoever waits may have to reach the listeners in turn: the lock is released by now.
    for entry in ended {
        if let Some(waker) = entry.sender.end() {
            waker.wake();
        }
    }
}

/// A listener's place among the others; it is given up with the listener.
struct Registration {
    hub: Weak<Hub>,
    channel: ChannelName,
    number: u64,
    gone: Arc<AtomicBool>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        let Some(hub) = self.hub.upgrade() else { return };
        let removed = {
            let mut listeners = hub.listeners.lock();
            let Some(entries) = listeners.channels.get_mut(&self.channel) else { return };
            let removed: Vec<_> =
                entries.extract_if(.., |entry| entry.number == self.number).collect();
            if entries.is_empty() {
                listeners.channels.remove(&self.channel);
            }
            removed
        };
        // With it goes the waker of whoever waited: the lock is released by now.
        drop(removed);
    }
}

pub(crate) fn send_message(
    write: &mut Write<'_>,
    channel: &ChannelName,
    payload: &Payload,
) -> Outcome<()> {
    let conn = write.conn;
    let size = sql::extent(payload.size());
    let ends = sql::one(conn, LAST, [], |row| row.get::<_, i64>(0))?.unwrap_or(0) + size;
    let (too_old, too_much) = (write.time.now - KEPT_MS, ends - KEPT_BYTES);
    let oldest = sql::one(conn, OLDEST, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if oldest.is_some_and(|(at, begins): (i64, i64)| at <= too_old || begins < too_much) {
        write.run(PRUNE, [too_old, too_much])?;
    }
    let at = write.time.now;
    write.run(SEND, params![channel.as_str(), at, size, ends, payload.as_str()])?;
    write.effects.messages = true;
    Ok(())
}

#[async_trait]
impl NotifyStore for SqliteStore {
    async fn send_message(&self, channel: &ChannelName, payload: Payload) -> Result<()> {
        let channel = channel.clone();
        let size = Size::of(1, payload.size());
        self.open.write(size, move |write| send_message(write, &channel, &payload)).await
    }

    async fn open_listener(&self, channel: &ChannelName) -> Result<Listener> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let open = &self.open;
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let gone = Arc::new(AtomicBool::new(false));
        let mut given = None;
        let listener = Listener::new(channel.clone(), open.options.listener, |sender| {
            given = Some(sender);
            Box::new(Registration {
                hub: Arc::downgrade(&open.hub),
                channel: channel.clone(),
                number,
                gone: gone.clone(),
            })
        });
        let sender = given.ok_or_else(|| Error::engine("a listener without a sender"))?;
        let (hub, store, close) = (open.hub.clone(), open.id, open.close.clone());
        let channel = channel.clone();
        open.read(move |conn| {
            let mut listeners = hub.listeners.lock();
            if close.is_closed() {
                return Err(Error::Closed.into());
            }
            hub.usable()?;
            let from = head(conn)?;
            if listeners.channels.is_empty() {
                listeners.seen = from;
            }
            // Nobody takes it away any longer where the listener is gone already.
            if !gone.load(Ordering::SeqCst) {
                let entry = Entry { number, store, from, sender };
                listeners.channels.entry(channel).or_default().push(entry);
            }
            Ok(())
        })
        .await?;
        Ok(listener)
    }
}

#[cfg(test)]
mod tests {
    use alkstore_core::ListenerLimits;
    use futures_util::FutureExt;
    use tempfile::TempDir;

    use super::*;
    use crate::migrate;
    use crate::store::Durability;

    /// Has another process send a message before this step of what the connection does next, and
    /// says afterwards whether there was such a step.
    fn send_before(step: usize, conn: &mut Connection, other: Connection) -> Arc<AtomicBool> {
        let sent = Arc::new(AtomicBool::new(false));
        let (mut steps, says) = (0, sent.clone());
        let handler = move || {
            steps += 1;
            if steps == step {
                other.execute(SEND, params!["c", 0, 1, 1, "1"]).unwrap();
                says.store(true, Ordering::SeqCst);
            }
            false
        };
        conn.progress_handler(1, Some(handler)).unwrap();
        sent
    }

    #[test]
    fn a_message_that_comes_in_the_middle_of_a_delivery_is_delivered() {
        for step in 1.. {
            let directory = TempDir::new().unwrap();
            let path = directory.path().join("app.db");
            let open = || migrate::writer(&path, Durability::Normal).unwrap();
            let mut conn = open();
            let channel = ChannelName::new("c").unwrap();
            let mut listeners = Listeners::default();
            let mut listener =
                Listener::new(channel.clone(), ListenerLimits::default(), |sender| {
                    let entry = Entry { number: 0, store: StoreId::new(), from: 0, sender };
                    listeners.channels.insert(channel, vec![entry]);
                    Box::new(())
                });
            let sent = send_before(step, &mut conn, open());
            let deliver = |listeners: &mut Listeners| {
                deliver_to(&conn, listeners, &mut Vec::new()).unwrap();
            };
            deliver(&mut listeners);
            if !sent.load(Ordering::SeqCst) {
                assert!(step > 10, "a delivery has more steps than {step}");
                return;
            }
            // What came after the last look is for the next delivery.
            deliver(&mut listeners);
            let received = listener.recv().now_or_never();
            assert!(matches!(received, Some(Some(Ok(_)))), "step {step}: {received:?}");
        }
    }
}
