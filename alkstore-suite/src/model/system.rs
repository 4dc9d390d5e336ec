//! The engine under test: does each operation through the handles of two stores on the same data.

use std::sync::Arc;
use std::time::Duration;

use alkstore_core::{
    DeadSelection, EnqueueOpts, Headers, Job, JobFilter, JobId, Lock, NewEvent, NewJob, Offset,
    Payload, PublishOpts, Queue, QueueOpts, Result, Retried, ScheduleOpts, Store, StoreExt, Stream,
    Timestamp, Tx,
};

use super::answer::{
    ClaimView, Fault, Fire, JobView, ScheduleView, Value, count, done, events, flag, millis,
};
use super::op::{
    Action, BULK, CONSUMERS, Ending, EventInput, JobInput, LOCKS, Op, QUEUES, SCHEDULES, STREAMS,
    Stamps, TxOp, WORKERS, When, payload_text, queue_name,
};
use super::schedule::PAYLOAD;
use super::state::{MAX_CLAIMS, MAX_LOCKS, Model, bulk, pick};
use crate::factory::{Data, OpenOptions, StoreFactory};

/// How long a store waits for somebody else's transaction. A server has locks of its own to hold for
/// some tens of milliseconds, while it sweeps up a catalog that many schemas were dropped from.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

pub(super) struct System {
    pub(super) factory: Arc<dyn StoreFactory>,
    pub(super) data: Arc<dyn Data>,
    pub(super) stores: [Arc<dyn Store>; 2],
    /// In the places of the model's claims.
    jobs: Vec<Job>,
    /// In the places of the model's holdings.
    locks: Vec<Lock>,
    tx: Option<Tx<'static>>,
}

fn payload(number: u8) -> Payload {
    Payload::from_json_text(payload_text(number)).expect("the model's payloads are JSON")
}

fn id(number: i64) -> JobId {
    JobId::try_from(number).expect("the model's ids are valid")
}

fn place(number: i64) -> Offset {
    Offset::try_from(number).expect("the model's offsets are valid")
}

fn new_jobs(now: i64, inputs: &[JobInput]) -> Vec<NewJob> {
    let job = |input: &JobInput| {
        let mut opts = EnqueueOpts::new().priority(input.priority);
        match input.when {
            When::Now => {}
            When::After(delay) => opts = opts.delay(delay),
            When::At(micros) => {
                let now = Duration::from_millis(now.unsigned_abs());
                let step = Duration::from_micros(micros.unsigned_abs());
                let at = if micros < 0 { now - step } else { now + step };
                opts = opts.run_at(std::time::SystemTime::UNIX_EPOCH + at);
            }
        }
        opts.max_attempts = input.max_attempts;
        opts.expires = input.expires;
        opts.unique_key = input.key.map(str::to_owned);
        if let Some(header) = input.header {
            opts.headers = Headers::new([("trace", header.to_string())]).expect("small headers");
        }
        NewJob::new(payload(input.payload)).expect("a payload").opts(opts)
    };
    inputs.iter().map(job).collect()
}

fn new_events(inputs: &[EventInput]) -> Vec<NewEvent> {
    let event = |input: &EventInput| {
        let mut opts = PublishOpts::new();
        opts.key = input.key.map(str::to_owned);
        NewEvent::new(payload(input.payload)).expect("a payload").opts(opts)
    };
    inputs.iter().map(event).collect()
}

fn opts(stamps: &Stamps) -> QueueOpts {
    let mut opts = QueueOpts::new();
    opts.visibility_timeout = stamps.visibility;
    opts.max_attempts = stamps.max_attempts;
    opts.retry_base = stamps.retry_base;
    opts.dead_retention = stamps.retention;
    opts
}

fn ids(ids: Vec<JobId>) -> Value {
    Value::Ids(ids.into_iter().map(JobId::get).collect())
}

fn retried(retried: Retried) -> Value {
    Value::Retried(match retried {
        Retried::Again { at } => Some(millis(at)),
        _ => None,
    })
}

impl System {
    pub(super) async fn new(factory: Arc<dyn StoreFactory>) -> Self {
        let data = factory.fresh().await;
        let stores = [open(&*data).await, open(&*data).await];
        Self { factory, data, stores, jobs: Vec::new(), locks: Vec::new(), tx: None }
    }

    pub(super) async fn now(&self) -> i64 {
        self.data.now().await.as_millis()
    }

    fn queue(&self, via: usize, name: &str) -> Queue {
        self.stores[via].queue(name).expect("a queue's name")
    }

    fn queue_with(&self, via: usize, queue: usize, stamps: &Stamps) -> Queue {
        self.stores[via].queue_with(queue_name(queue), opts(stamps)).expect("a queue's options")
    }

    pub(super) fn stream(&self, via: usize, stream: usize) -> Stream {
        self.stores[via].stream(STREAMS[stream]).expect("a stream's name")
    }

    /// Does an operation; the model is as it was before.
    pub(super) async fn apply(&mut self, model: &Model, op: &Op) -> Result<Value> {
        match op {
            Op::Advance { millis } => {
                self.data.advance(Duration::from_millis(millis.unsigned_abs())).await;
                Ok(Value::Done)
            }
            Op::Reopen { via } => {
                self.stores[*via] = open(&*self.data).await;
                Ok(Value::Done)
            }
            Op::Begin { via } => {
                if self.tx.is_none() {
                    self.tx = Some(self.stores[*via].begin_tx().await?);
                }
                Ok(Value::Done)
            }
            Op::Tx(op) => self.apply_tx(model, op).await,
            Op::End(ending) => self.end(*ending).await,
            Op::Publish { .. }
            | Op::Read { .. }
            | Op::Trim { .. }
            | Op::ReadConsumer { .. }
            | Op::Save { .. }
            | Op::Forget { .. } => self.apply_stream(op).await,
            Op::TryLock { .. } | Op::Renew { .. } | Op::Release { .. } | Op::DropLock { .. } => {
                self.apply_lock(op).await
            }
            Op::Schedule { .. }
            | Op::Unschedule { .. }
            | Op::PauseSchedule { .. }
            | Op::Tick { .. } => self.apply_schedule(model, op).await,
            _ => self.apply_queue(model, op).await,
        }
    }

    async fn apply_queue(&mut self, model: &Model, op: &Op) -> Result<Value> {
        match op {
            Op::Enqueue { via, queue, stamps, jobs } => {
                let queue = self.queue_with(*via, *queue, stamps);
                Ok(ids(queue.enqueue_many(new_jobs(model.now, jobs)).await?))
            }
            Op::EnqueueBulk { via, jobs, delay, step } => {
                let (stamps, jobs) = bulk(*jobs, *delay, *step);
                let queue = self.queue_with(*via, QUEUES.len(), &stamps);
                Ok(ids(queue.enqueue_many(new_jobs(model.now, &jobs)).await?))
            }
            Op::Claim { via, queue, worker, max } => {
                let queue = self.queue(*via, queue_name(*queue));
                let jobs = queue.claim_batch(WORKERS[*worker], *max).await?;
                let views = jobs.iter().map(ClaimView::from).collect();
                self.jobs.extend(jobs);
                let surplus = self.jobs.len().saturating_sub(MAX_CLAIMS);
                self.jobs.drain(..surplus);
                Ok(Value::Claims(views))
            }
            Op::Settle { claim, action } => {
                let Some(place) = claim.checked_rem(self.jobs.len()) else {
                    return Ok(Value::Done);
                };
                let job = &mut self.jobs[place];
                match action {
                    Action::Ack => done(job.ack().await),
                    Action::Retry { error, delay } => Ok(retried(job.retry(error, *delay).await?)),
                    Action::Fail { error } => done(job.fail(error).await),
                    Action::Release { delay } => done(job.release(*delay).await),
                    Action::Heartbeat { extend } => {
                        Ok(Value::Instant(millis(job.heartbeat(*extend).await?)))
                    }
                }
            }
            Op::AckBatch { claims } => self.ack_batch(model, claims).await,
            Op::Cancel { via, job } => match model.job(job) {
                Some((queue, job)) => flag(self.queue(*via, queue).cancel(id(job)).await),
                None => Ok(Value::Flag(false)),
            },
            Op::GetJob { via, job } => match model.job(job) {
                Some((queue, job)) => {
                    let record = self.queue(*via, queue).get_job(id(job)).await?;
                    Ok(Value::Job(record.map(|record| Box::new(JobView::from(record)))))
                }
                None => Ok(Value::Job(None)),
            },
            Op::Jobs { via, queue, state, after, limit } => {
                let mut filter = JobFilter::new().limit(*limit);
                filter.state = *state;
                filter.after = after.and_then(|after| pick(&model.known, after)).map(|k| id(k.1));
                let jobs = self.queue(*via, queue_name(*queue)).jobs(filter).await?;
                Ok(Value::Jobs(jobs.into_iter().map(JobView::from).collect()))
            }
            Op::Dead { via, queue, which, purge } => {
                let queue = self.queue(*via, queue_name(*queue));
                let which = match model.ids(which) {
                    None => DeadSelection::All,
                    Some(ids) => DeadSelection::Ids(ids.into_iter().map(id).collect()),
                };
                count(match purge {
                    true => queue.purge_dead(which).await,
                    false => queue.requeue_dead(which).await,
                })
            }
            Op::PauseQueue { via, queue, paused } => {
                let queue = self.queue(*via, queue_name(*queue));
                flag(if *paused { queue.pause().await } else { queue.resume().await })
            }
            Op::Maintain { via } => {
                let done = self.stores[*via].maintain().await?;
                let again = self.stores[*via].maintain().await?;
                assert_eq!(again, alkstore_core::Maintenance::default(), "maintain is idempotent");
                Ok(Value::from(done))
            }
            other => unreachable!("no queue's operation: {other:?}"),
        }
    }

    async fn ack_batch(&mut self, model: &Model, claims: &[usize]) -> Result<Value> {
        let places = model.batch(claims);
        let Some(first) = places.first().map(|place| &model.claims[*place]) else {
            return Ok(Value::Each(Vec::new()));
        };
        let via = model.stores.iter().position(|store| *store == first.store).unwrap_or(0);
        let queue = self.queue(via, &first.queue);
        let mut slots: Vec<_> = std::mem::take(&mut self.jobs).into_iter().map(Some).collect();
        let mut batch: Vec<Job> =
            places.iter().map(|place| slots[*place].take().expect("each job once")).collect();
        let results = queue.ack_batch(&mut batch).await;
        for (place, job) in places.into_iter().zip(batch) {
            slots[place] = Some(job);
        }
        self.jobs = slots.into_iter().flatten().collect();
        Ok(Value::Each(results?.into_iter().map(|one| one.map_err(|e| Fault::from(&e))).collect()))
    }

    async fn apply_stream(&mut self, op: &Op) -> Result<Value> {
        match op {
            Op::Publish { via, stream, events } => {
                let offsets = self.stream(*via, *stream).publish_many(new_events(events)).await?;
                Ok(Value::Offsets(offsets.into_iter().map(Offset::get).collect()))
            }
            Op::Read { via, stream, after, limit } => {
                events(self.stream(*via, *stream).read(place(*after), *limit).await)
            }
            Op::Trim { via, stream, horizon } => {
                count(self.stream(*via, *stream).trim_to(place(*horizon)).await)
            }
            Op::ReadConsumer { via, stream, consumer, limit } => {
                let stream = self.stream(*via, *stream);
                events(stream.consumer(CONSUMERS[*consumer])?.read(*limit).await)
            }
            Op::Save { via, stream, consumer, offset, rewind } => {
                let consumer = self.stream(*via, *stream).consumer(CONSUMERS[*consumer])?;
                done(match rewind {
                    true => consumer.rewind(place(*offset)).await,
                    false => consumer.save_offset(place(*offset)).await,
                })
            }
            Op::Forget { via, stream, consumer } => {
                flag(self.stream(*via, *stream).forget_consumer(CONSUMERS[*consumer]).await)
            }
            other => unreachable!("no stream's operation: {other:?}"),
        }
    }

    async fn apply_lock(&mut self, op: &Op) -> Result<Value> {
        if let Op::TryLock { via, lock, owner, ttl } = op {
            if self.locks.len() >= MAX_LOCKS {
                return Ok(Value::Done);
            }
            let taken = self.stores[*via].try_lock(LOCKS[*lock], WORKERS[*owner], *ttl).await?;
            let view = taken.as_ref().map(|lock| (lock.token(), millis(lock.expires_at())));
            self.locks.extend(taken);
            return Ok(Value::Lock(view));
        }
        let (Op::Renew { held, .. } | Op::Release { held } | Op::DropLock { held }) = op else {
            unreachable!("no lock's operation: {op:?}")
        };
        let Some(place) = held.checked_rem(self.locks.len()) else { return Ok(Value::Done) };
        match op {
            Op::Renew { ttl, .. } => {
                let lock = &mut self.locks[place];
                lock.renew(*ttl).await?;
                Ok(Value::Instant(millis(lock.expires_at())))
            }
            Op::Release { .. } => done(self.locks.remove(place).release().await),
            _ => {
                let lock = self.locks.remove(place);
                let (name, token) = (lock.name().to_owned(), lock.token());
                drop(lock);
                // It is released soon, if not at once.
                loop {
                    let held = self.stores[0].locks().await?;
                    if !held.iter().any(|lock| lock.name == name && lock.token == token) {
                        return Ok(Value::Done);
                    }
                    self.factory.sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    async fn apply_schedule(&mut self, model: &Model, op: &Op) -> Result<Value> {
        match op {
            Op::Schedule { via, name, spec, queue, stamps, priority, expires } => {
                let mut opts = ScheduleOpts::new().priority(*priority);
                opts.max_attempts = stamps.max_attempts;
                opts.visibility_timeout = stamps.visibility;
                opts.retry_base = stamps.retry_base;
                opts.dead_retention = stamps.retention;
                opts.expires = *expires;
                let (name, queue) = (SCHEDULES[*name], queue_name(*queue));
                let payload = payload(PAYLOAD);
                let schedule = self.stores[*via].schedule(name, spec, queue, payload, opts).await?;
                Ok(Value::Schedule(Box::new(ScheduleView::at(model.now, schedule))))
            }
            Op::Unschedule { via, name } => {
                flag(self.stores[*via].unschedule(SCHEDULES[*name]).await)
            }
            Op::PauseSchedule { via, name, paused } => {
                let (store, name) = (&self.stores[*via], SCHEDULES[*name]);
                flag(match paused {
                    true => store.pause_schedule(name).await,
                    false => store.resume_schedule(name).await,
                })
            }
            Op::Tick { via } => {
                let tick = self.stores[*via].tick_schedules().await?;
                Ok(Value::Ticked {
                    fired: tick.fired,
                    next: tick.next.map(Timestamp::as_millis),
                    fires: self.fires(model, *via).await?,
                })
            }
            other => unreachable!("no schedule's operation: {other:?}"),
        }
    }

    /// The jobs that schedules enqueued and that the model hasn't seen.
    async fn fires(&self, model: &Model, via: usize) -> Result<Vec<Fire>> {
        let mut fires = Vec::new();
        for name in QUEUES {
            for job in self.queue(via, name).jobs(JobFilter::new().limit(usize::MAX)).await? {
                if let Some(schedule) = job.headers.get(Headers::SCHEDULE)
                    && let Some(boundary) = job.headers.get(Headers::BOUNDARY)
                    && !model.was_used(job.id.get())
                {
                    let boundary = boundary.parse().expect("a boundary in milliseconds");
                    let schedule = schedule.to_owned();
                    fires.push(Fire { schedule, boundary, id: job.id.get() });
                }
            }
        }
        fires.sort();
        Ok(fires)
    }

    async fn apply_tx(&mut self, model: &Model, op: &TxOp) -> Result<Value> {
        let Some(mut tx) = self.tx.take() else { return Ok(Value::Done) };
        let answer = self.stage(model, &mut tx, op).await;
        self.tx = Some(tx);
        answer
    }

    async fn stage(&mut self, model: &Model, tx: &mut Tx<'static>, op: &TxOp) -> Result<Value> {
        match op {
            TxOp::Enqueue { via, queue, stamps, jobs } => {
                let queue = self.queue_with(*via, *queue, stamps);
                Ok(ids(queue.enqueue_many_tx(tx, new_jobs(model.now, jobs)).await?))
            }
            TxOp::Settle { claim, action } => {
                let Some(place) = claim.checked_rem(self.jobs.len()) else {
                    return Ok(Value::Done);
                };
                let job = &mut self.jobs[place];
                match action {
                    Action::Ack => done(job.ack_tx(tx).await),
                    Action::Retry { error, delay } => {
                        Ok(retried(job.retry_tx(tx, error, *delay).await?))
                    }
                    Action::Fail { error } => done(job.fail_tx(tx, error).await),
                    other => unreachable!("not part of a transaction: {other:?}"),
                }
            }
            TxOp::Publish { via, stream, events } => {
                done(self.stream(*via, *stream).publish_many_tx(tx, new_events(events)).await)
            }
            TxOp::Save { via, stream, consumer, offset } => {
                let consumer = self.stream(*via, *stream).consumer(CONSUMERS[*consumer])?;
                done(consumer.save_offset_tx(tx, place(*offset)).await)
            }
            TxOp::GetJob { job } => match model.job(job) {
                Some((queue, job)) => {
                    let record = tx.get_job_tx(queue, id(job)).await?;
                    Ok(Value::Job(record.map(|record| Box::new(JobView::from(record)))))
                }
                None => Ok(Value::Job(None)),
            },
            TxOp::GetOffset { stream, consumer } => {
                let offset = tx.get_offset_tx(STREAMS[*stream], CONSUMERS[*consumer]).await?;
                Ok(Value::Offset(offset.get()))
            }
            TxOp::Read { via, stream, after, limit } => {
                events(self.stream(*via, *stream).read_tx(tx, place(*after), *limit).await)
            }
        }
    }

    async fn end(&mut self, ending: Ending) -> Result<Value> {
        let Some(tx) = self.tx.take() else { return Ok(Value::Done) };
        match ending {
            Ending::Commit => done(tx.commit().await),
            Ending::Rollback => done(tx.rollback().await),
            Ending::Drop => {
                drop(tx);
                // What a transaction held is free before the next one begins.
                done(self.stores[0].begin_tx().await?.rollback().await)
            }
        }
    }

    /// Every queue of the model, by name.
    pub(super) fn queues(&self, via: usize) -> Vec<Queue> {
        QUEUES.into_iter().chain([BULK]).map(|name| self.queue(via, name)).collect()
    }
}

async fn open(data: &dyn Data) -> Arc<dyn Store> {
    let options = OpenOptions { lock_timeout: Some(LOCK_TIMEOUT), ..OpenOptions::default() };
    data.open(options).await.expect("a store opens")
}
