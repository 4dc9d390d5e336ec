//! Notify and listen: messages travel as notifications of Postgres, cut where they are too long
//! for one, and numbered so that equal ones aren't folded.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::task::Waker;

use alkstore_core::{
    ChannelName, Error, Listener, ListenerSender, Message, NotifyStore, Payload, Result,
};
use async_trait::async_trait;

use crate::error::Outcome;
use crate::sql::Sql;
use crate::store::{Open, PgStore};

/// Postgres takes less than 8000 bytes.
const PIECE: usize = 7_900;

const SEND: &str = "SELECT pg_notify($1, piece) FROM unnest($2::text[]) AS piece";

/// A message in the pieces that are sent: `m`, its number, how many pieces come after, the length
/// of the channel's name, the name and the text's beginning; then `+`, the same number, how many
/// come after, and more of the text.
fn pieces(number: u64, channel: &str, text: &str) -> Vec<String> {
    // Nineteen digits are more than any count has.
    let head = format!("m{number:016x} {:019} {} {channel}", 0, channel.len());
    let (mut rest, mut texts) = (text, Vec::new());
    loop {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE - head.len()));
        texts.push(piece);
        if after.is_empty() {
            break;
        }
        rest = after;
    }
    let last = texts.len() - 1;
    let piece = |(index, text): (usize, &str)| match index {
        0 => format!("m{number:016x} {last} {} {channel}{text}", channel.len()),
        _ => format!("+{number:016x} {} {text}", last - index),
    };
    texts.into_iter().enumerate().map(piece).collect()
}

/// Sends a message when the connection's transaction commits.
pub(crate) async fn send_message(
    sql: &mut Sql<'_>,
    channel: &ChannelName,
    payload: &Payload,
) -> Outcome<()> {
    let pieces = pieces(fastrand::u64(..), channel.as_str(), payload.as_str());
    let to = sql.texts.message_channel(channel);
    let statement = sql.query(SEND).bind(to).bind(pieces);
    sql.all(statement).await?;
    Ok(())
}

/// Puts messages together again. Those of a transaction come in one go, so there is one at a time.
#[derive(Debug, Default)]
struct Assembler(Option<Partial>);

#[derive(Debug)]
struct Partial {
    number: String,
    left: u64,
    channel: ChannelName,
    text: String,
}

impl Assembler {
    /// The message that is whole with this piece. What isn't a piece of ours is passed over.
    fn take(&mut self, piece: &str) -> Option<Message> {
        let partial = match piece.strip_prefix('+') {
            Some(rest) => self.0.take().and_then(|partial| partial.extended(rest)),
            None => Partial::begun(piece.strip_prefix('m')?),
        }?;
        if partial.left > 0 {
            self.0 = Some(partial);
            return None;
        }
        Some(Message::new(partial.channel, Payload::stored(partial.text)))
    }
}

impl Partial {
    fn begun(rest: &str) -> Option<Self> {
        let mut fields = rest.splitn(4, ' ');
        let number = fields.next()?.to_owned();
        let left = fields.next()?.parse().ok()?;
        let length = fields.next()?.parse().ok()?;
        let (channel, text) = fields.next()?.split_at_checked(length)?;
        Some(Self { number, left, channel: ChannelName::stored(channel), text: text.to_owned() })
    }

    fn extended(mut self, rest: &str) -> Option<Self> {
        let mut fields = rest.splitn(3, ' ');
        let (number, left) = (fields.next()?, fields.next()?.parse::<u64>().ok()?);
        if number != self.number || left.checked_add(1) != Some(self.left) {
            return None;
        }
        self.left = left;
        self.text.push_str(fields.next()?);
        Some(self)
    }
}

/// The listeners that are open on a store, by channel.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    channels: HashMap<ChannelName, Vec<Entry>>,
    last: u64,
    assembler: Assembler,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// Whether what was sent before it listened has passed.
    is_open: bool,
    sender: ListenerSender,
}

/// Listeners that were taken out of the registry, whose lock is released by now.
pub(crate) struct Ended(Vec<Entry>);

impl Listeners {
    fn add(&mut self, channel: ChannelName, sender: ListenerSender) -> u64 {
        self.last += 1;
        let number = self.last;
        self.channels.entry(channel).or_default().push(Entry { number, is_open: false, sender });
        number
    }

    fn remove(&mut self, channel: &ChannelName, number: u64) -> Option<Entry> {
        let entries = self.channels.get_mut(channel)?;
        // They stand in the order of their numbers.
        let place = entries.binary_search_by_key(&number, |entry| entry.number).ok()?;
        let removed = entries.remove(place);
        if entries.is_empty() {
            self.channels.remove(channel);
        }
        Some(removed)
    }

    /// From here on it gets what is sent.
    fn open(&mut self, channel: &ChannelName, number: u64) {
        let entries = self.channels.get_mut(channel).into_iter().flatten();
        for entry in entries.filter(|entry| entry.number == number) {
            entry.is_open = true;
        }
    }

    pub(crate) fn has(&self, channel: &ChannelName) -> bool {
        self.channels.contains_key(channel)
    }

    pub(crate) fn channels(&self) -> impl Iterator<Item = &ChannelName> {
        self.channels.keys()
    }

    pub(crate) fn take_all(&mut self) -> Ended {
        Ended(std::mem::take(&mut self.channels).into_values().flatten().collect())
    }
}

impl Ended {
    pub(crate) fn end(self) {
        for entry in self.0 {
            if let Some(waker) = entry.sender.end() {
                waker.wake();
            }
        }
    }
}

/// A piece of a message arrived.
pub(crate) fn heard(open: &Open, text: &str) {
    let mut wakers = Vec::new();
    {
        let mut listeners = open.listeners.lock();
        if let Some(message) = listeners.assembler.take(text) {
            let entries = listeners.channels.get(&message.channel).into_iter().flatten();
            let entries = entries.filter(|entry| entry.is_open);
            wakers.extend(entries.filter_map(|entry| entry.sender.send(message.clone())));
        }
    }
    wakers.into_iter().for_each(Waker::wake);
}

/// The listening connection was lost and is back: messages may be missing.
pub(crate) fn lost(open: &Open) {
    let mut wakers = Vec::new();
    {
        let mut listeners = open.listeners.lock();
        listeners.assembler = Assembler::default();
        let entries = listeners.channels.values().flatten().filter(|entry| entry.is_open);
        wakers.extend(entries.filter_map(|entry| entry.sender.lagged()));
    }
    wakers.into_iter().for_each(Waker::wake);
}

/// A listener's place among the others; it is given up with the listener.
struct Registration {
    open: Weak<Open>,
    channel: ChannelName,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(open) = self.open.upgrade() {
            let (removed, was_last) = {
                let mut listeners = open.listeners.lock();
                let removed = listeners.remove(&self.channel, self.number);
                (removed, !listeners.has(&self.channel))
            };
            if removed.is_some() && was_last {
                open.listening.leave(self.channel.clone());
            }
            // With it goes the waker of whoever waited, and maybe a task that has to reach the
            // listeners in turn: the lock is released by now.
            drop(removed);
        }
    }
}

#[async_trait]
impl NotifyStore for PgStore {
    async fn send_message(&self, channel: &ChannelName, payload: Payload) -> Result<()> {
        let channel = channel.clone();
        self.open
            .write(move |mut sql| {
                let (channel, payload) = (channel.clone(), payload.clone());
                Box::pin(async move { send_message(&mut sql, &channel, &payload).await })
            })
            .await
    }

    async fn open_listener(&self, channel: &ChannelName) -> Result<Listener> {
        let open = &self.open;
        open.usable()?;
        if !open.listening.is_possible() {
            return Err(Error::engine(
                "nothing can be heard past a pooler that lends connections for a transaction; \
                 give the store a listen_url that leads past it",
            ));
        }
        let mut number = 0;
        let listener = Listener::new(channel.clone(), open.options.listener, |sender| {
            number = open.listeners.lock().add(channel.clone(), sender);
            let open = Arc::downgrade(open);
            Box::new(Registration { open, channel: channel.clone(), number })
        });
        open.listening.hear(open, channel).await?;
        open.listeners.lock().open(channel, number);
        // Closed meanwhile, it would never end.
        open.usable().map(|()| listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled(pieces: &[String]) -> Vec<Message> {
        let mut assembler = Assembler::default();
        pieces.iter().filter_map(|piece| assembler.take(piece)).collect()
    }

    #[test]
    fn a_message_survives_being_cut() {
        let channel = "é c".repeat(60);
        for length in [0, 1, 7_000, 7_600, 7_900, 8_000, 1024 * 1024] {
            for letter in ["x", " ", "é", "🦀"] {
                let text = letter.repeat(length / letter.len());
                let sent = pieces(7, &channel, &text);
                assert!(sent.iter().all(|piece| piece.len() <= PIECE), "{length} {letter}");
                let expected =
                    Message::new(ChannelName::stored(&*channel), Payload::stored(&*text));
                assert_eq!(assembled(&sent), [expected]);
            }
        }
        assert!(pieces(7, "c", &"x".repeat(1024 * 1024)).len() <= 134);
    }

    #[test]
    fn equal_messages_are_sent_as_different_texts() {
        assert_ne!(pieces(1, "c", "1"), pieces(2, "c", "1"));
    }

    #[test]
    fn what_is_no_message_or_no_whole_one_yields_nothing() {
        let long = "x".repeat(20_000);
        let (one, two) = (pieces(1, "c", &long), pieces(2, "c", &long));
        assert_eq!(assembled(&one[1..]), []);
        assert_eq!(assembled(&[one[0].clone(), one[2].clone()]), []);
        assert_eq!(assembled(&[one[0].clone(), two[1].clone(), two[2].clone()]), []);
        assert_eq!(assembled(&[&one[..2], &two[..]].concat()).len(), 1);
        for text in ["", "m", "m1", "m1 0", "m1 0 9 c", "m1 x 1 cx", "+1 0 x", "hello", "m1 0 1 é"]
        {
            assert_eq!(assembled(&[text.to_owned()]), [], "{text:?}");
        }
    }
}
