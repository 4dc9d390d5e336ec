//! One run: everything at once, over one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use alkstore::prelude::*;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior};

use super::audit::Audit;
use super::closing::{Closing, DeadLetter, Reports};
use super::courier::Courier;
use super::deliveries::{self, Incoming};
use super::receiver::Receiver;
use super::screen::Screen;
use super::{Cli, Failure};

const REPORT_EVERY: &str = "@every 1s";
const REPORT: &str = "report";
const LOOK_EVERY: Duration = Duration::from_millis(50);
const PUBLISH_TRIES: u32 = 10;

/// Opens the store, runs on it, and closes it again.
pub(crate) async fn run(cli: &Cli, stop: &StopToken, screen: &Screen) -> Result<Closing, Failure> {
    let incoming = deliveries::read(cli.deliveries.as_deref(), cli.limit)?;
    let store = alkstore::open(&cli.store).await.map_err(|error| match error {
        Error::InvalidArgument { .. } => Failure::Usage(format!("can't open the store: {error}")),
        _ => Failure::Fault(format!("can't open the store: {error}")),
    })?;
    let limit = store.limits().payload;
    if let Some(large) = incoming.iter().find(|incoming| incoming.body.size() > limit) {
        let (delivery, size) = (&large.delivery, large.body.size());
        return Err(Failure::Usage(format!(
            "delivery {delivery:?} has {size} bytes, and the store takes at most {limit}"
        )));
    }
    let closing = run_on(&store, &incoming, cli, stop, screen).await?;
    store.close().await?;
    Ok(closing)
}

/// Runs until everything is settled or it is stopped.
pub(crate) async fn run_on(
    store: &Arc<dyn Store>,
    incoming: &[Incoming],
    cli: &Cli,
    stop: &StopToken,
    screen: &Screen,
) -> Result<Closing, Failure> {
    let receiver = Receiver::start(cli)
        .await
        .map_err(|error| Failure::Fault(format!("can't start the receiver: {error}")))?;
    let run = Run {
        cli,
        screen,
        stop,
        over: StopToken::new(),
        stream: store.stream("webhooks")?,
        outbox: store.outbox("deliveries")?,
        reports: store.queue("reports")?,
        courier: Arc::new(Courier::new(receiver.uri.clone())),
        id: format!("{:016x}", fastrand::u64(..)),
        published: AtomicU64::new(0),
        store: store.clone(),
    };
    let closing = run.all(incoming, &receiver).await?;
    // The couriers' connections go first: the server waits for them.
    drop(run);
    receiver.stop().await.map_err(Failure::fault)?;
    Ok(closing)
}

struct Run<'a> {
    cli: &'a Cli,
    screen: &'a Screen,
    /// The user's wish.
    stop: &'a StopToken,
    /// The end of this run, whatever the reason.
    over: StopToken,
    store: Arc<dyn Store>,
    stream: Stream,
    outbox: Outbox,
    reports: Queue,
    courier: Arc<Courier>,
    /// Tells this run's events from those of earlier runs on the same store.
    id: String,
    published: AtomicU64,
}

impl Run<'_> {
    async fn all(&self, incoming: &[Incoming], receiver: &Receiver) -> Result<Closing, Failure> {
        let earlier = waiting(&self.outbox.stats().await?);
        self.screen.begin(incoming.len() as u64 + earlier);
        // Registered afresh, so that its grid begins with this run.
        self.store.unschedule(REPORT).await?;
        let schedule = self
            .store
            .schedule(REPORT, REPORT_EVERY, self.reports.name(), &(), ScheduleOpts::new())
            .await?;

        let (all_published, published) = watch::channel(None);
        let halfway = incoming.len() / 2;
        let (ids, audit, (), (), mut boundaries, ()) = tokio::try_join!(
            self.publish(incoming, all_published),
            Audit::run(&self.stream, halfway, published.clone(), self.screen),
            self.deliver(),
            self.fire(),
            self.report(),
            self.follow(earlier, published),
        )?;
        // What fired after the reporter had left.
        while let Some(job) = self.reports.claim("reporter").await? {
            boundaries.extend(self.print_report(job).await?);
        }
        let schedules = self.store.schedules().await?;
        self.store.unschedule(REPORT).await?;

        let mut closing = Closing {
            interrupted: self.stop.is_stopped(),
            took: self.screen.elapsed(),
            earlier,
            consumer_offset: self.stream.consumer("audit")?.offset().await?,
            head: self.stream.info().await?.last,
            reports: Reports::new(&schedule, &schedules, boundaries),
            seen: receiver.seen(),
            run: self.id.clone(),
            audit,
            outcomes: Vec::new(),
            dead_letters: self.dead_letters().await?,
        };
        let tried = self.courier.tried().clone();
        for (id, incoming) in ids.into_iter().zip(incoming) {
            let record = self.outbox.get_job(id).await?;
            closing.count(id, incoming, tried.get(&id).copied().unwrap_or_default(), record);
        }
        Ok(closing)
    }

    /// Publishes each delivery and puts it into the outbox, both or neither, at the rate asked
    /// for.
    async fn publish(
        &self,
        incoming: &[Incoming],
        all_published: watch::Sender<Option<Offset>>,
    ) -> Result<Vec<JobId>, Failure> {
        let mut ids = Vec::with_capacity(incoming.len());
        let mut pace = (self.cli.rate > 0).then(|| every(Duration::from_secs(1) / self.cli.rate));
        for delivery in incoming {
            if let Some(pace) = &mut pace {
                tokio::select! { _ = pace.tick() => {}, () = self.stop.stopped() => {} }
            }
            if self.stop.is_stopped() {
                break;
            }
            ids.push(self.publish_one(delivery).await?);
            self.published.fetch_add(1, Ordering::Relaxed);
        }
        all_published.send_replace(Some(self.stream.info().await?.last));
        Ok(ids)
    }

    async fn publish_one(&self, incoming: &Incoming) -> Result<JobId, Failure> {
        let Incoming { event, delivery, body } = incoming;
        let headers = Headers::new([("event", event), ("delivery", delivery), ("run", &self.id)])?;
        let opts = OutboxOpts::new().max_attempts(self.cli.attempts).headers(headers.clone());
        let event = PublishOpts::new().key(delivery).headers(headers);
        let mut tries = 0;
        loop {
            let (opts, event) = (opts.clone(), event.clone());
            let committed = self
                .store
                .with_tx(|tx| {
                    Box::pin(async {
                        self.stream.publish_tx(tx, body.clone(), event).await?;
                        self.outbox.enqueue_tx(tx, body.clone(), opts).await
                    })
                })
                .await;
            tries += 1;
            match committed {
                Err(error) if error.is_retryable() && tries < PUBLISH_TRIES => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                committed => return Ok(committed?),
            }
        }
    }

    async fn deliver(&self) -> Result<(), Failure> {
        let mut workers = JoinSet::new();
        for worker in 1..=self.cli.workers {
            let (outbox, courier, over) =
                (self.outbox.clone(), self.courier.clone(), self.over.clone());
            let id = format!("courier-{}-{worker}", self.id);
            workers.spawn(async move {
                let deliver = |delivery| {
                    let courier = courier.clone();
                    async move { courier.deliver(delivery).await }
                };
                outbox.run(&id, deliver, over).await
            });
        }
        while let Some(ended) = workers.join_next().await {
            ended.map_err(Failure::fault)??;
        }
        Ok(())
    }

    async fn fire(&self) -> Result<(), Failure> {
        Ok(self.store.run_schedules_standby(self.over.clone()).await?)
    }

    /// Prints a report for every job that the schedule fired, and returns their boundaries.
    async fn report(&self) -> Result<Vec<u64>, Failure> {
        let mut boundaries = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = self.over.stopped() => return Ok(boundaries),
                job = self.reports.next("reporter") => {
                    boundaries.extend(self.print_report(job?).await?);
                }
            }
        }
    }

    async fn print_report(&self, mut job: Job) -> Result<Option<u64>, Failure> {
        let stats = self.outbox.stats().await?;
        self.screen.say(&format!(
            "report: {} published, {} wait for a worker, {} for a retry, {} under way, {} dead",
            self.published.load(Ordering::Relaxed),
            stats.ready,
            stats.delayed,
            stats.claimed,
            stats.dead,
        ));
        let boundary = job.headers().get(Headers::BOUNDARY).and_then(|at| at.parse().ok());
        job.ack().await?;
        Ok(boundary)
    }

    /// Shows how far it has come, and ends the run when all is settled or the user wishes it.
    async fn follow(
        &self,
        earlier: u64,
        published: watch::Receiver<Option<Offset>>,
    ) -> Result<(), Failure> {
        let mut look = every(LOOK_EVERY);
        loop {
            look.tick().await;
            // Asked before the stats: what is published later isn't in them.
            let all_published = published.borrow().is_some();
            let stats = self.outbox.stats().await?;
            let open = waiting(&stats);
            let all = earlier + self.published.load(Ordering::Relaxed);
            let message = format!("{} to retry, {} dead", stats.delayed, stats.dead);
            self.screen.show(all.saturating_sub(open), message);
            if self.stop.is_stopped() {
                self.screen.say("stopping: what is under way finishes; again, it ends at once");
            }
            if self.stop.is_stopped() || (all_published && open == 0) {
                self.over.stop();
                return Ok(());
            }
        }
    }

    /// Every dead letter of this run that the outbox keeps.
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Failure> {
        let mut letters = Vec::new();
        let mut filter = JobFilter::new().state(JobState::Dead);
        loop {
            let page = self.outbox.jobs(filter.clone()).await?;
            let Some(last) = page.last() else { return Ok(letters) };
            filter = filter.after(last.id);
            let ours = page.into_iter().filter(|job| job.headers.get("run") == Some(&self.id));
            letters.extend(ours.map(DeadLetter::new));
        }
    }
}

/// Ticks that aren't made up for.
fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn waiting(stats: &alkstore::QueueStats) -> u64 {
    stats.ready + stats.delayed + stats.claimed
}

/// Milliseconds since 1970, as the header of a boundary has them.
pub(crate) fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
