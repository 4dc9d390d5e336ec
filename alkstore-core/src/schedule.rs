//! Schedules: jobs that an engine enqueues on a fixed grid of instants.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::macros::setters;
use crate::name::{LocalName, LockName, QueueName, ScheduleName};
use crate::payload::{Headers, Payload};
use crate::queue::check_stamps;
use crate::stop::StopToken;
use crate::store::Store;
use crate::time::{Lease, Timestamp, whole_millis};
use crate::wake::{Backoff, Topic, Wait, unless_stopped};

/// How many boundaries of a schedule fire at most in one tick; the rest is skipped.
pub const MAX_FIRES: u32 = 64;

/// How long the scheduler's lease holds.
pub const SCHEDULER_TTL: Duration = Duration::from_secs(30);

/// How often it is renewed.
pub const SCHEDULER_RENEWAL: Duration = Duration::from_secs(10);

/// How often a tick is tried that fails with a retryable error.
const TICK_TRIES: u32 = 5;

/// What the jobs of a schedule are stamped with; what isn't set is as the queue's name says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleOpts {
    /// Higher first. Default: 0.
    pub priority: i32,
    /// How often a job may be claimed, at least 1.
    pub max_attempts: Option<u32>,
    /// Not handed out once this long has passed since the fire. Default: never expires.
    pub expires: Option<Duration>,
    /// How long a claim holds without a heartbeat, 1 ms to 10 years.
    pub visibility_timeout: Option<Duration>,
    /// The first step of the backoff between attempts.
    pub retry_base: Option<Duration>,
    /// How long a dead job is kept.
    pub dead_retention: Option<Duration>,
    /// Headers that travel with the job; the store adds the schedule's name and the boundary.
    pub headers: Headers,
}

setters!(ScheduleOpts {
    /// Higher first.
    priority: i32 => priority;
    /// How often a job may be claimed, at least 1.
    max_attempts: u32 => Some(max_attempts);
    /// Not handed out once this long has passed since the fire.
    expires: Duration => Some(expires);
    /// How long a claim holds without a heartbeat, 1 ms to 10 years.
    visibility_timeout: Duration => Some(visibility_timeout);
    /// The first step of the backoff between attempts.
    retry_base: Duration => Some(retry_base);
    /// How long a dead job is kept.
    dead_retention: Duration => Some(dead_retention);
    /// Headers that travel with the job; the store adds the schedule's name and the boundary.
    headers: Headers => headers;
});

impl ScheduleOpts {
    pub(crate) fn checked(mut self) -> Result<Self> {
        check_stamps(self.visibility_timeout, self.max_attempts)?;
        self.expires = self.expires.map(whole_millis);
        self.visibility_timeout = self.visibility_timeout.map(whole_millis);
        self.retry_base = self.retry_base.map(whole_millis);
        self.dead_retention = self.dead_retention.map(whole_millis);
        Ok(self)
    }
}

/// A checked schedule as an engine takes it; its text is for the engine to parse.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ScheduleSpec {
    /// The schedule's name.
    pub name: ScheduleName,
    /// When it fires, as it was given.
    pub spec: String,
    /// Where its jobs go.
    pub queue: QueueName,
    /// What they carry, within the store's limit.
    pub payload: Payload,
    /// What they are stamped with.
    pub opts: ScheduleOpts,
}

impl ScheduleSpec {
    /// For engines: a schedule that was checked before it was stored.
    #[must_use]
    pub fn stored(
        name: ScheduleName,
        spec: impl Into<String>,
        queue: QueueName,
        payload: Payload,
        opts: ScheduleOpts,
    ) -> Self {
        Self { name, spec: spec.into(), queue, payload, opts }
    }
}

/// A schedule as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// When it fires, as it was given.
    pub spec: String,
    /// Where its jobs go.
    pub queue: String,
    /// What they carry.
    pub payload: Payload,
    /// What they are stamped with.
    pub opts: ScheduleOpts,
    /// The time between two boundaries.
    pub period: Duration,
    /// Where its grid begins: boundaries are `anchor + k · period`, k ≥ 1.
    pub anchor: SystemTime,
    /// The next boundary.
    pub next_at: SystemTime,
    /// Whether it rests.
    pub paused: bool,
}

impl Schedule {
    /// For engines: a schedule that isn't paused.
    #[must_use]
    pub fn new(spec: ScheduleSpec, period: Duration, anchor: Timestamp, next: Timestamp) -> Self {
        Self {
            name: spec.name.to_string(),
            spec: spec.spec,
            queue: spec.queue.to_string(),
            payload: spec.payload,
            opts: spec.opts,
            period,
            anchor: anchor.into(),
            next_at: next.into(),
            paused: false,
        }
    }
}

/// What a tick did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tick {
    /// How many jobs it enqueued.
    pub fired: u64,
    /// The next boundary of any schedule that isn't paused.
    pub next: Option<Timestamp>,
}

/// The schedule primitives of an engine.
#[async_trait]
pub trait ScheduleStore {
    /// Adds or replaces a schedule by name. The same period keeps grid and next boundary; a new
    /// one begins at now; a paused schedule stays paused.
    async fn upsert_schedule(&self, spec: ScheduleSpec) -> Result<Schedule>;

    /// Removes a schedule and says whether it was known.
    async fn delete_schedule(&self, name: &ScheduleName) -> Result<bool>;

    /// Every schedule, by name.
    async fn list_schedules(&self) -> Result<Vec<Schedule>>;

    /// Pauses or resumes a schedule and says whether that changed something. Resumed, it goes on
    /// with the first boundary strictly in the future.
    async fn set_schedule_paused(&self, name: &ScheduleName, paused: bool) -> Result<bool>;

    /// Fires what is due. Fires and advance of a schedule are one atomic step, keyed by the
    /// boundary: none fires twice, whoever ticks.
    async fn tick_schedules(&self) -> Result<Tick>;
}

fn runner(store: &dyn Store) -> LocalName {
    LocalName::stored(format!("scheduler of {}", store.store_id()))
}

fn scheduler_ttl() -> Result<Lease> {
    Lease::new("ttl", SCHEDULER_TTL)
}

fn leadership_lost() -> Error {
    Error::LeadershipLost { lock: LockName::scheduler().to_string() }
}

pub(crate) async fn run(store: Arc<dyn Store>, stop: StopToken) -> Result<()> {
    let (name, owner, ttl) = (LockName::scheduler(), runner(&*store), scheduler_ttl()?);
    let lease = Lock::try_acquire(store.clone(), name, owner, ttl).await?;
    lead(&*store, lease.map_err(|_| leadership_lost())?, &stop, |_| ()).await
}

/// For runtimes: [`run_schedules_standby`](crate::StoreExt::run_schedules_standby), which tells of
/// every tick that succeeded.
///
/// # Errors
///
/// As [`run_schedules_standby`](crate::StoreExt::run_schedules_standby).
///
/// # Cancel safety
///
/// As [`run_schedules_standby`](crate::StoreExt::run_schedules_standby).
pub async fn run_schedules_observed(
    store: Arc<dyn Store>,
    stop: StopToken,
    mut ticked: impl FnMut(&Tick) + Send,
) -> Result<()> {
    let mut backoff = Backoff::FAULT;
    while !stop.is_stopped() {
        let (name, owner, ttl) = (LockName::scheduler(), runner(&*store), scheduler_ttl()?);
        let acquiring = Lock::acquire(store.clone(), name, owner, ttl);
        let led = match unless_stopped(&stop, acquiring).await {
            None => return Ok(()),
            Some(Ok(lease)) => {
                let ticked = |tick: &Tick| {
                    backoff.reset();
                    ticked(tick);
                };
                lead(&*store, lease, &stop, ticked).await
            }
            Some(Err(error)) => Err(error),
        };
        match led {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error, Error::LeadershipLost { .. }) || error.is_passing() => {
                match unless_stopped(&stop, store.sleep(backoff.next())).await {
                    None => return Ok(()),
                    Some(slept) => slept?,
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ticks until it is stopped or fails, and gives the lease back either way.
async fn lead(
    store: &dyn Store,
    mut lease: Lock,
    stop: &StopToken,
    ticked: impl FnMut(&Tick) + Send,
) -> Result<()> {
    let led = tick_until_stopped(store, &mut lease, stop, ticked).await;
    // The next runner starts at once where this succeeds, and after the ttl where it doesn't;
    // how the run ended is what its caller has to hear.
    let _ = lease.release().await;
    led
}

async fn tick_until_stopped(
    store: &dyn Store,
    lease: &mut Lock,
    stop: &StopToken,
    mut ticked: impl FnMut(&Tick) + Send,
) -> Result<()> {
    let mut watch = store.watch(Topic::Schedules).await?;
    let (mut tries, mut backoff) = (0, Backoff::FAULT);
    while !stop.is_stopped() {
        let waiting = match renew_and_tick(store, lease).await {
            Ok(tick) => {
                tries = 0;
                backoff.reset();
                ticked(&tick);
                let wait = Wait { until: tick.next, within: Some(SCHEDULER_RENEWAL) };
                unless_stopped(stop, watch.changed(wait)).await
            }
            Err(error) => {
                tries += 1;
                if !error.is_retryable() || tries == TICK_TRIES {
                    return Err(error);
                }
                unless_stopped(stop, store.sleep(backoff.next())).await
            }
        };
        waiting.transpose()?;
    }
    Ok(())
}

async fn renew_and_tick(store: &dyn Store, lease: &mut Lock) -> Result<Tick> {
    match lease.renew(SCHEDULER_TTL).await {
        Ok(()) => store.tick_schedules().await,
        Err(Error::LockLost { .. }) => Err(leadership_lost()),
        Err(error) => Err(error),
    }
}
