//! Transactions: an overlay of what is staged, merged into the state at commit.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use alkstore_core::{
    ChannelName, EngineTx, Event, EventSpec, JobId, JobRecord, JobSpec, LocalName, Message, Offset,
    Payload, QueueName, QueueOpts, Result, Settled, Settlement, StreamName, Timestamp, TxStore,
};
use async_trait::async_trait;

use crate::observe::Observed;
use crate::queue::{self, Enqueue, Phase, Row, Standing, TxId};
use crate::state::View;
use crate::store::{MemStore, Open};
use crate::wake::Wakes;
use crate::{notify, stream};

/// What a transaction has staged. Keys and pins stand in the shared state as well, where others
/// meet them.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) id: TxId,
    /// What each job it touched becomes; nothing where it is acked.
    jobs: BTreeMap<JobId, (QueueName, Option<Box<Row>>)>,
    pub(crate) events: Vec<(StreamName, Vec<(EventSpec, Timestamp)>)>,
    pub(crate) offsets: Vec<(StreamName, LocalName, Offset)>,
    pub(crate) messages: Vec<Message>,
}

impl Staged {
    pub(crate) fn put(&mut self, queue: QueueName, row: Box<Row>) {
        self.jobs.insert(row.id, (queue, Some(row)));
    }

    pub(crate) fn remove(&mut self, queue: QueueName, id: JobId) {
        self.jobs.insert(id, (queue, None));
    }

    /// Whether a job that this transaction changed is still live; stores its death where the
    /// clock has made it dead.
    pub(crate) fn is_live_at(&mut self, id: JobId, now: Timestamp) -> bool {
        let Some((_, image)) = self.jobs.get_mut(&id) else { return false };
        match image.as_ref().map(|row| row.standing(now)) {
            None => false,
            Some(Standing::Pending { .. } | Standing::Claimed) => true,
            Some(Standing::Dead(death)) => {
                image.iter_mut().for_each(|row| row.die(death));
                false
            }
            Some(Standing::Gone) => {
                *image = None;
                false
            }
        }
    }

    /// What a job of a queue becomes, where this transaction touched it.
    pub(crate) fn image_in(&self, queue: &QueueName, id: JobId) -> Option<Option<&Row>> {
        let (of, row) = self.jobs.get(&id)?;
        (of == queue).then_some(row.as_deref())
    }
}

struct MemTx {
    open: Arc<Open>,
    /// Nothing once it was committed.
    staged: Option<Staged>,
}

/// Gives back what the transaction held of the shared state.
fn let_go(view: &mut View<'_>, staged: &Staged) {
    for (id, (queue, image)) in &staged.jobs {
        let Some(state) = view.state.queues.get_mut(queue) else { continue };
        state.change(*id, |row| row.pin = None);
        if let Some(key) = image.as_ref().and_then(|row| row.unique_key.as_ref())
            && state.staged_keys.get(key) == Some(&(staged.id, *id))
        {
            state.staged_keys.remove(key);
        }
    }
}

fn commit(view: &mut View<'_>, staged: Staged) {
    let_go(view, &staged);
    let mut images = Vec::with_capacity(staged.jobs.len());
    // What goes frees its key before what comes takes it.
    for (id, (queue, image)) in staged.jobs {
        let known = view.state.queues.get_mut(&queue).and_then(|state| state.take(id)).is_some();
        images.extend(image.map(|row| (queue, row, known)));
    }
    let now = view.time.now;
    for (queue, mut row, known) in images {
        row.pin = None;
        if !known {
            view.state.tap.tell(|| row.record(&queue, now).map(Observed::Enqueued));
        }
        let ready = matches!(row.phase, Phase::Ready);
        view.state.queue(&queue).put(row);
        queue::wake(view, &queue, usize::from(ready));
    }
    for (name, events) in staged.events {
        stream::place(view.state, view.wakes, &name, events);
    }
    for (stream, consumer, offset) in staged.offsets {
        stream::save(view.state, stream, consumer, offset);
    }
    for message in &staged.messages {
        notify::send(view, message);
    }
}

impl MemTx {
    fn act<T>(&mut self, operation: impl FnOnce(&mut View<'_>) -> T) -> Result<T> {
        self.open.act_in(self.staged.as_mut(), operation)
    }

    fn undo(&mut self) {
        let Some(staged) = self.staged.take() else { return };
        {
            let mut state = self.open.shared.lock();
            let time = crate::clock::Reading::of(&*self.open.shared.clock);
            // Nobody is woken: who waits for what was held looks again, as the claim told it.
            let wakes = &mut Wakes::default();
            let_go(&mut View { state: &mut state, time, wakes, tx: None }, &staged);
        }
        self.open.shared.tx_ended.notify_waiters();
    }
}

impl Drop for MemTx {
    fn drop(&mut self) {
        self.undo();
    }
}

#[async_trait]
impl EngineTx for MemTx {
    async fn insert_jobs(
        &mut self,
        queue: &QueueName,
        opts: &QueueOpts,
        jobs: Vec<JobSpec>,
    ) -> Result<Vec<JobId>> {
        let mut enqueue = Enqueue::new(queue, opts, jobs);
        self.open.act_unblocked(self.staged.as_mut(), |view| enqueue.store(view)).await?;
        Ok(enqueue.into_ids())
    }

    async fn settle_job(&mut self, item: Settlement) -> Result<Settled> {
        self.open.act_unblocked(self.staged.as_mut(), |view| queue::settle_job(view, &item)).await?
    }

    async fn find_job(&mut self, queue: &QueueName, id: JobId) -> Result<Option<JobRecord>> {
        self.act(|view| queue::find_job(view, queue, id))
    }

    async fn append_events(&mut self, stream: &StreamName, events: Vec<EventSpec>) -> Result<()> {
        self.act(|view| stream::append_events(view, stream, events)).map(drop)
    }

    async fn read_events(
        &mut self,
        stream: &StreamName,
        after: Offset,
        limit: usize,
    ) -> Result<Vec<Event>> {
        self.act(|view| stream::read_events(view, stream, after, limit))
    }

    async fn consumer_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
    ) -> Result<Offset> {
        self.act(|view| stream::consumer_offset(view, stream, consumer))
    }

    async fn store_offset(
        &mut self,
        stream: &StreamName,
        consumer: &LocalName,
        offset: Offset,
    ) -> Result<()> {
        self.act(|view| stream::store_offset(view, stream, consumer, offset))?
    }

    async fn send_message(&mut self, channel: &ChannelName, payload: Payload) -> Result<()> {
        self.act(|view| notify::send_message(view, channel, payload))
    }

    fn engine(&mut self) -> Option<&mut dyn Any> {
        None
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        let open = self.open.clone();
        // A store that was closed meanwhile refuses; dropping the rest undoes it.
        open.act(|view| {
            if let Some(staged) = self.staged.take() {
                commit(view, staged);
            }
        })?;
        open.shared.tx_ended.notify_waiters();
        Ok(())
    }

    async fn rollback(mut self: Box<Self>) -> Result<()> {
        self.undo();
        Ok(())
    }
}

#[async_trait]
impl TxStore for MemStore {
    async fn begin(&self) -> Result<Box<dyn EngineTx>> {
        let id = self.open.act(|view| {
            view.state.numbers.tx += 1;
            view.state.numbers.tx
        })?;
        let staged = Staged {
            id,
            jobs: BTreeMap::new(),
            events: Vec::new(),
            offsets: Vec::new(),
            messages: Vec::new(),
        };
        Ok(Box::new(MemTx { open: self.open.clone(), staged: Some(staged) }))
    }
}
