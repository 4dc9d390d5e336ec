//! What an operation answers, in plain numbers, so that model and engine can be compared.

use std::time::{Duration, SystemTime};

use alkstore_core::{
    ConsumerInfo, Error, Event, Headers, Job, JobRecord, JobState, LockInfo, Maintenance,
    QueueStats, Result, Schedule, StreamInfo,
};

pub(super) type Answer = std::result::Result<Value, Fault>;

/// The kinds of errors that the model tells apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    ClaimLost,
    LockLost,
    InvalidArgument,
    InvalidSpec,
    Unavailable,
    Other(String),
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        match error {
            Error::ClaimLost { .. } => Self::ClaimLost,
            Error::LockLost { .. } => Self::LockLost,
            Error::InvalidArgument { .. } => Self::InvalidArgument,
            Error::InvalidSpec { .. } => Self::InvalidSpec,
            Error::Unavailable { .. } => Self::Unavailable,
            other => Self::Other(format!("{other:?}")),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// It is done, or there was nothing to do it with.
    Done,
    Flag(bool),
    Count(u64),
    Ids(Vec<i64>),
    Claims(Vec<ClaimView>),
    Instant(i64),
    /// When the job is claimable again; `None` where it is dead.
    Retried(Option<i64>),
    Each(Vec<std::result::Result<(), Fault>>),
    Job(Option<Box<JobView>>),
    Jobs(Vec<JobView>),
    Offset(i64),
    Offsets(Vec<i64>),
    Events(Vec<EventView>),
    /// Token and expiry.
    Lock(Option<(u64, i64)>),
    Schedule(Box<ScheduleView>),
    Ticked {
        fired: u64,
        next: Option<i64>,
        fires: Vec<Fire>,
    },
    Swept {
        expired: u64,
        buried: u64,
        purged: u64,
    },
}

/// What kind of answer it is, for the count of what was covered.
pub(super) fn kind(answer: &Answer) -> String {
    let some = |there: bool| if there { "some" } else { "none" }.to_owned();
    match answer {
        Err(Fault::Other(_)) => "Other".to_owned(),
        Err(fault) => format!("{fault:?}"),
        Ok(Value::Flag(changed)) => changed.to_string(),
        Ok(Value::Count(count)) => some(*count > 0),
        Ok(Value::Ids(ids)) => some(!ids.is_empty()),
        Ok(Value::Claims(claims)) => some(!claims.is_empty()),
        Ok(Value::Retried(at)) => if at.is_some() { "again" } else { "dead" }.to_owned(),
        Ok(Value::Each(each)) => some(each.iter().any(|one| one.is_ok())),
        Ok(Value::Job(job)) => some(job.is_some()),
        Ok(Value::Jobs(jobs)) => some(!jobs.is_empty()),
        Ok(Value::Events(events)) => some(!events.is_empty()),
        Ok(Value::Lock(lock)) => some(lock.is_some()),
        Ok(Value::Ticked { fired: 64.., .. }) => "64 and more".to_owned(),
        Ok(Value::Ticked { fired, .. }) => some(*fired > 0),
        Ok(Value::Swept { expired, buried, purged }) => some(expired + buried + purged > 0),
        Ok(Value::Done | Value::Instant(_) | Value::Offset(_)) => "done".to_owned(),
        Ok(Value::Offsets(_) | Value::Schedule(_)) => "done".to_owned(),
    }
}

/// A job that a tick enqueued.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fire {
    pub(super) schedule: String,
    pub(super) boundary: i64,
    pub(super) id: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimView {
    pub(super) id: i64,
    pub(super) queue: String,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) payload: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) enqueued_at: i64,
    pub(super) visibility: i64,
    pub(super) deadline: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobView {
    pub(super) id: i64,
    pub(super) queue: String,
    pub(super) state: JobState,
    pub(super) payload: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) priority: i32,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) enqueued_at: i64,
    pub(super) ready_at: i64,
    pub(super) visibility: i64,
    pub(super) retry_base: i64,
    pub(super) retention: Option<i64>,
    pub(super) expires_at: Option<i64>,
    pub(super) unique_key: Option<String>,
    pub(super) worker: Option<String>,
    pub(super) deadline: Option<i64>,
    pub(super) last_error: Option<String>,
    pub(super) died_at: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatsView {
    pub(super) name: String,
    pub(super) ready: u64,
    pub(super) delayed: u64,
    pub(super) claimed: u64,
    pub(super) dead: u64,
    pub(super) paused: bool,
    pub(super) oldest_ready_at: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventView {
    pub(super) offset: i64,
    pub(super) key: Option<String>,
    pub(super) payload: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) published_at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamView {
    pub(super) name: String,
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) count: u64,
    /// Name, offset, lag.
    pub(super) consumers: Vec<(String, i64, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LockView {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) token: u64,
    pub(super) expires_at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScheduleView {
    pub(super) name: String,
    pub(super) spec: String,
    pub(super) queue: String,
    pub(super) payload: String,
    pub(super) priority: i32,
    pub(super) max_attempts: Option<u32>,
    pub(super) expires: Option<i64>,
    pub(super) visibility: Option<i64>,
    pub(super) retry_base: Option<i64>,
    pub(super) retention: Option<i64>,
    pub(super) period: Duration,
    pub(super) anchor: i64,
    /// Not told of a paused one whose boundary passed: whether it moves before it is resumed the
    /// contract doesn't say.
    pub(super) next_at: Option<i64>,
    pub(super) paused: bool,
}

/// Milliseconds since 1970; what the engines show is whole.
pub(super) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("an instant after 1970");
    assert_eq!(since.subsec_nanos() % 1_000_000, 0, "an instant of whole milliseconds");
    i64::try_from(since.as_millis()).expect("an instant before the year 10000")
}

fn whole(duration: Duration) -> i64 {
    assert_eq!(duration.subsec_nanos() % 1_000_000, 0, "a duration of whole milliseconds");
    i64::try_from(duration.as_millis()).expect("a duration within reason")
}

pub(super) fn pairs(headers: &Headers) -> Vec<(String, String)> {
    headers.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

pub(super) fn done(result: Result<()>) -> Result<Value> {
    result.map(|()| Value::Done)
}

pub(super) fn flag(result: Result<bool>) -> Result<Value> {
    result.map(Value::Flag)
}

pub(super) fn count(result: Result<u64>) -> Result<Value> {
    result.map(Value::Count)
}

pub(super) fn events(result: Result<Vec<Event>>) -> Result<Value> {
    Ok(Value::Events(result?.into_iter().map(EventView::from).collect()))
}

impl From<&Job> for ClaimView {
    fn from(job: &Job) -> Self {
        Self {
            id: job.id().get(),
            queue: job.queue().to_owned(),
            attempt: job.attempt(),
            max_attempts: job.max_attempts(),
            payload: job.payload().as_str().to_owned(),
            headers: pairs(job.headers()),
            enqueued_at: millis(job.enqueued_at()),
            visibility: whole(job.visibility_timeout()),
            deadline: millis(job.deadline()),
        }
    }
}

impl From<JobRecord> for JobView {
    fn from(job: JobRecord) -> Self {
        Self {
            id: job.id.get(),
            queue: job.queue,
            state: job.state,
            payload: job.payload.as_str().to_owned(),
            headers: pairs(&job.headers),
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            enqueued_at: millis(job.enqueued_at),
            ready_at: millis(job.ready_at),
            visibility: whole(job.visibility_timeout),
            retry_base: whole(job.retry_base),
            retention: job.dead_retention.map(whole),
            expires_at: job.expires_at.map(millis),
            unique_key: job.unique_key,
            worker: job.worker_id,
            deadline: job.deadline.map(millis),
            last_error: job.last_error,
            died_at: job.died_at.map(millis),
        }
    }
}

impl From<QueueStats> for StatsView {
    fn from(stats: QueueStats) -> Self {
        Self {
            name: stats.name,
            ready: stats.ready,
            delayed: stats.delayed,
            claimed: stats.claimed,
            dead: stats.dead,
            paused: stats.paused,
            oldest_ready_at: stats.oldest_ready_at.map(millis),
        }
    }
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            offset: event.offset.get(),
            key: event.key.map(|key| key.to_string()),
            payload: event.payload.as_str().to_owned(),
            headers: pairs(&event.headers),
            published_at: millis(event.published_at),
        }
    }
}

impl From<StreamInfo> for StreamView {
    fn from(info: StreamInfo) -> Self {
        let consumer = |info: ConsumerInfo| (info.name, info.offset.get(), info.lag);
        Self {
            name: info.name,
            first: info.first.get(),
            last: info.last.get(),
            count: info.count,
            consumers: info.consumers.into_iter().map(consumer).collect(),
        }
    }
}

impl From<LockInfo> for LockView {
    fn from(info: LockInfo) -> Self {
        Self {
            name: info.name,
            owner: info.owner,
            token: info.token,
            expires_at: millis(info.expires_at),
        }
    }
}

impl ScheduleView {
    pub(super) fn at(now: i64, schedule: Schedule) -> Self {
        let next = millis(schedule.next_at);
        Self {
            name: schedule.name,
            spec: schedule.spec,
            queue: schedule.queue,
            payload: schedule.payload.as_str().to_owned(),
            priority: schedule.opts.priority,
            max_attempts: schedule.opts.max_attempts,
            expires: schedule.opts.expires.map(whole),
            visibility: schedule.opts.visibility_timeout.map(whole),
            retry_base: schedule.opts.retry_base.map(whole),
            retention: schedule.opts.dead_retention.map(whole),
            period: schedule.period,
            anchor: millis(schedule.anchor),
            next_at: (!schedule.paused || next > now).then_some(next),
            paused: schedule.paused,
        }
    }
}

impl From<Maintenance> for Value {
    fn from(done: Maintenance) -> Self {
        Self::Swept { expired: done.expired, buried: done.buried, purged: done.purged }
    }
}
