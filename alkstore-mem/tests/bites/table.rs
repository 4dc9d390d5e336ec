//! The broken engines, each with the rows that have to fail on it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alkstore_core::{Due, Headers, JobState, Lease, Payload, SettleAction, Timestamp};
use alkstore_suite::Data;

use crate::claims::{self, *};
use crate::edits::Edits;
use crate::harness::{Broken, MakeLayer};
use crate::locks::*;
use crate::queues::*;
use crate::schedules::*;
use crate::streams::{self, *};
use crate::txs::*;
use crate::wakes::*;

const NONE: Edits = Edits::NONE;

fn normalized(payload: &Payload) -> Payload {
    let value: serde_json::Value = payload.decode().unwrap_or_default();
    Payload::stored(value.to_string())
}

fn early(at: SystemTime, millis: i64) -> SystemTime {
    Timestamp::from(at).plus_millis(-millis).into()
}

fn settles<F>(data: Arc<dyn Data>, otherwise: F) -> Arc<dyn alkstore_suite::fault::Layer>
where
    F: Fn(SettleAction, &alkstore_core::JobRecord, Timestamp) -> SettleAction
        + Send
        + Sync
        + 'static,
{
    Arc::new(SettlesOtherwise(otherwise, data))
}

fn broken(name: &'static str, make: MakeLayer, rows: &'static [&'static str]) -> Broken {
    Broken { name, mechanisms: "", make, rows }
}

/// All of them.
pub(crate) fn all() -> Vec<Broken> {
    let groups = [
        ("C", common()),
        ("Q", queues()),
        ("Q", settlements()),
        ("S", streams()),
        ("N", notify()),
        ("L", locks()),
        ("H", schedules()),
        ("X", txs()),
        ("QSLHO", wakes()),
    ];
    let of_group = |(mechanisms, engines): (_, Vec<Broken>)| {
        engines.into_iter().map(move |engine| Broken { mechanisms, ..engine })
    };
    groups.into_iter().flat_map(of_group).collect()
}

fn common() -> Vec<Broken> {
    vec![
        broken(
            "a job's payload is normalized",
            |_| Edits { job: |_, _, job| job.payload = normalized(&job.payload), ..NONE }.layer(),
            &[],
        ),
        broken(
            "an event's payload is normalized",
            |_| Edits { event: |event| event.payload = normalized(&event.payload), ..NONE }.layer(),
            &[],
        ),
        broken(
            "a message's payload is normalized",
            |_| Edits { message: |payload| *payload = normalized(payload), ..NONE }.layer(),
            &[],
        ),
        broken(
            "a schedule's payload is normalized",
            |_| Edits { schedule: |spec| spec.payload = normalized(&spec.payload), ..NONE }.layer(),
            &[],
        ),
        broken(
            "no payload is too large",
            |_| Edits { limits: |limits| limits.payload = usize::MAX, ..NONE }.layer(),
            &[],
        ),
        broken(
            "a payload of exactly the limit is too large",
            |_| Edits { limits: |limits| limits.payload -= 1, ..NONE }.layer(),
            &[],
        ),
        broken(
            "a job's headers are lost",
            |_| Edits { job: |_, _, job| job.headers = Headers::default(), ..NONE }.layer(),
            &[],
        ),
        broken(
            "an event's headers are lost",
            |_| Edits { event: |event| event.headers = Headers::default(), ..NONE }.layer(),
            &[],
        ),
        broken("closing closes nothing", |_| ClosesBadly::new(Close::Never), &[]),
        broken("closing closes every store on the data", |_| ClosesBadly::new(Close::TooMuch), &[]),
        broken("closing again is an error", |_| ClosesBadly::new(Close::Once), &[]),
        broken("who waits isn't told of the close", |_| ClosesBadly::new(Close::WaitersHang), &[]),
        broken("maintenance does nothing", |_| Arc::new(MaintainsNothing), &[]),
        broken("ids of one call descend", |_| Arc::new(InsertsBackwards), &[]),
    ]
}

fn queues() -> Vec<Broken> {
    vec![
        broken("a job is handed out twice", |_| Arc::new(HandsOutTwice::default()), &[]),
        broken(
            "priority is ignored",
            |_| Edits { job: |_, _, job| job.priority = 0, ..NONE }.layer(),
            &[],
        ),
        broken(
            "a batch is out of order",
            |_| Edits { claimed: |claimed| claimed.jobs.reverse(), ..NONE }.layer(),
            &[],
        ),
        broken(
            "a batch is ordered by id",
            |_| Edits { claimed: |claimed| claimed.jobs.sort_by_key(|job| job.id), ..NONE }.layer(),
            &[],
        ),
        broken(
            "a claim takes one too many",
            |_| Edits { most: |max| max + 1, ..NONE }.layer(),
            &[],
        ),
        broken(
            "a claim of none takes one",
            |_| Edits { most: |max| max.max(1), ..NONE }.layer(),
            &[],
        ),
        broken(
            "the attempt is counted at settlement",
            |_| {
                Edits {
                    claimed: |claimed| claimed.jobs.iter_mut().for_each(|job| job.attempt -= 1),
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "a job has one attempt more than it may",
            |_| {
                Edits {
                    job: |queue, opts, job| {
                        let default = if queue.is_outbox() { 5 } else { 3 };
                        let most = job.max_attempts.or(opts.max_attempts).unwrap_or(default);
                        job.max_attempts = Some(most + 1);
                    },
                    claimed: |claimed| {
                        claimed.jobs.iter_mut().for_each(|job| job.max_attempts -= 1);
                    },
                    record: |record| record.max_attempts -= 1,
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "a unique key is ignored",
            |_| Edits { job: |_, _, job| job.unique_key = None, ..NONE }.layer(),
            &[],
        ),
        broken("what the clock made dead keeps its key", |_| Arc::new(DeadKeepsKey), &[]),
        broken("many jobs are added one by one", |_| Arc::new(InsertsOneByOne), &[]),
        broken(
            "a delay is rounded down",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Due::After(delay) = &mut job.due {
                            *delay = Duration::from_millis(delay.as_millis() as u64);
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "run_at is early by 1 ms",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Due::At(at) = &mut job.due {
                            *at = at.plus_millis(-1);
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "a delay is a second late",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Due::After(delay) = &mut job.due
                            && !delay.is_zero()
                        {
                            *delay = delay.saturating_add(Duration::from_secs(1));
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "a past run_at orders as now",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Due::At(at) = job.due
                            && at <= Timestamp::EPOCH.plus(Duration::from_secs(1))
                        {
                            job.due = Due::After(Duration::ZERO);
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "an outbox's queue has the defaults of any queue",
            |_| {
                Edits {
                    job: |queue, opts, job| {
                        if queue.is_outbox() {
                            opts.visibility_timeout = Some(Duration::from_secs(300));
                            job.max_attempts = job.max_attempts.or(Some(3));
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken("an expired job is handed out", |_| Arc::new(HandsOutExpired::default()), &[]),
        broken(
            "a job expires a millisecond late",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Some(expires) = &mut job.expires {
                            *expires = expires.saturating_add(Duration::from_millis(1));
                        }
                    },
                    record: |record| {
                        record.expires_at = record.expires_at.map(|at| early(at, 1));
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "a claim holds a millisecond longer",
            |_| {
                Edits {
                    job: |queue, opts, _| {
                        let default = if queue.is_outbox() { 60 } else { 300 };
                        let timeout =
                            opts.visibility_timeout.unwrap_or(Duration::from_secs(default));
                        opts.visibility_timeout = Some(timeout + Duration::from_millis(1));
                    },
                    claimed: |claimed| {
                        for job in &mut claimed.jobs {
                            job.deadline = job.deadline.plus_millis(-1);
                            let timeout =
                                job.visibility_timeout.as_duration() - Duration::from_millis(1);
                            job.visibility_timeout =
                                Lease::new("timeout", timeout).unwrap_or(job.visibility_timeout);
                        }
                    },
                    record: |record| {
                        record.visibility_timeout -= Duration::from_millis(1);
                        if record.state == JobState::Claimed {
                            record.deadline = record.deadline.map(|at| early(at, 1));
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "a dead job beyond its retention is shown",
            |_| Arc::new(ShowsBeyondRetention::default()),
            &[],
        ),
        broken("a claim refuses a lapsed job", |_| Arc::new(RefusesLapsed::default()), &[]),
        broken(
            "a lapsed claim is shown as claimed",
            |_| Arc::new(ShowsLapsedAsClaimed::default()),
            &[],
        ),
        broken("stats see an expiry after a sweep only", |_| Arc::new(ExpiresBySweepOnly), &[]),
        broken("requeue keeps the attempts", |_| Arc::new(RequeueKeepsAttempts::default()), &[]),
        broken("requeue takes one job", |_| Arc::new(RequeuesOne), &[]),
        broken("purge takes live jobs", |_| Arc::new(PurgesTheLiving), &[]),
        broken("a pause lets claims go on", |_| Arc::new(PausesBadly::new(Pause::ClaimsGoOn)), &[]),
        broken("a pause stops enqueues", |_| Arc::new(PausesBadly::new(Pause::EnqueuesStop)), &[]),
        broken(
            "a pause always says that it changed something",
            |_| Arc::new(PausesBadly::new(Pause::AlwaysChanges)),
            &[],
        ),
        broken("cancel takes pending jobs only", |_| Arc::new(CancelsPendingOnly), &[]),
        broken("cancel takes what the clock made dead", |_| Arc::new(CancelsTheDead), &[]),
        broken(
            "stats count what is delayed as ready",
            |_| {
                Edits {
                    stats: |stats| {
                        for stats in stats {
                            stats.ready += std::mem::take(&mut stats.delayed);
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "a paused queue without jobs isn't listed",
            |_| {
                Edits {
                    stats: |stats| {
                        stats.retain(|s| s.ready + s.delayed + s.claimed + s.dead > 0);
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "the queues of outboxes aren't listed",
            |_| {
                Edits {
                    stats: |stats| stats.retain(|s| !s.name.starts_with("__alkstore_")),
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
        broken(
            "queues are listed backwards",
            |_| Edits { stats: |stats| stats.reverse(), ..NONE }.layer(),
            &[],
        ),
        broken(
            "why a job died is lost",
            |_| Edits { record: |record| record.last_error = None, ..NONE }.layer(),
            &[],
        ),
    ]
}

fn settlements() -> Vec<Broken> {
    vec![
        broken(
            "a stale ack of the same worker id is taken",
            |data| FencesBadly::new(Lax::AckOfSameWorker, data),
            &[],
        ),
        broken(
            "a late heartbeat steals the job back",
            |data| FencesBadly::new(Lax::Heartbeat, data),
            &[],
        ),
        broken("a stale failure is taken", |data| FencesBadly::new(Lax::Fail, data), &[]),
        broken(
            "a settlement at the very deadline is taken",
            |data| FencesBadly::new(Lax::AtDeadline, data),
            &[],
        ),
        broken("a heartbeat adds", |data| settles(data, claims::heartbeat_adds), &[]),
        broken(
            "a heartbeat never shortens",
            |data| settles(data, claims::heartbeat_never_shortens),
            &[],
        ),
        broken("a retry ignores max_attempts", |data| settles(data, claims::retry_for_ever), &[]),
        broken("a release charges the attempt", |data| settles(data, claims::release_charges), &[]),
        broken(
            "a retry ignores the delay it is given",
            |data| settles(data, claims::retry_ignores_delay),
            &[],
        ),
        broken("the backoff is linear", |data| settles(data, claims::backoff_is_linear), &[]),
        broken(
            "the backoff has no jitter",
            |data| settles(data, claims::backoff_has_no_jitter),
            &[],
        ),
        broken("the backoff has no cap", |data| settles(data, claims::backoff_has_no_cap), &[]),
        broken("the backoff overflows", |data| settles(data, claims::backoff_overflows), &[]),
        broken("an error text with NUL is refused", |_| Arc::new(RefusesErrorText), &[]),
        broken("a dropped claim stays claimed", |_| Arc::new(KeepsDroppedClaims), &[]),
        broken("a dropped claim is charged", |_| Arc::new(ChargesDroppedClaims), &[]),
        broken("cancel leaves the holder's ack Ok", |_| Arc::new(CancelsQuietly::default()), &[]),
    ]
}

fn streams() -> Vec<Broken> {
    vec![
        broken("an offset is reused after a trim", |_| Arc::new(ReusesOffsets::default()), &[]),
        broken("many events are appended one by one", |_| Arc::new(AppendsOneByOne), &[]),
        broken("an event appears behind a reader", |_| Arc::new(ShowsLate::default()), &[]),
        broken("a subscription skips between pages", |_| Arc::new(SkipsBetweenPages), &[]),
        broken("a saved offset goes backward", |_| Arc::new(LosesPlace(Place::Backward)), &[]),
        broken(
            "an offset beyond the head is saved",
            |_| Arc::new(LosesPlace(Place::BeyondHead)),
            &[],
        ),
        broken(
            "a rewind beyond the head is taken",
            |_| Arc::new(LosesPlace(Place::RewindBeyondHead)),
            &[],
        ),
        broken("a rewind goes forward only", |_| Arc::new(LosesPlace(Place::ForwardOnly)), &[]),
        broken(
            "an unknown consumer is forgotten",
            |_| Arc::new(LosesPlace(Place::ForgetsUnknown)),
            &[],
        ),
        broken("reading saves", |_| Arc::new(LosesPlace(Place::SavesByItself)), &[]),
        broken("a trim beyond the head is refused", |_| Arc::new(RefusesTrimBeyondHead), &[]),
        broken(
            "a trim keeps its horizon",
            |_| {
                Edits { horizon: |offset| (offset.get() - 1).try_into().unwrap_or(offset), ..NONE }
                    .layer()
            },
            &[],
        ),
        broken(
            "lag counts what was trimmed",
            |_| Edits { streams: |all| streams::lag_counts_trimmed(all), ..NONE }.layer(),
            &[],
        ),
        broken(
            "a stream with a consumer alone isn't listed",
            |_| Edits { streams: |all| all.retain(|stream| stream.last.get() > 0), ..NONE }.layer(),
            &[],
        ),
        broken(
            "a stream's key is lost",
            |_| Edits { event: |event| event.key = None, ..NONE }.layer(),
            &[],
        ),
        broken(
            "an event of the same key replaces the one before",
            |_| {
                Edits {
                    read: |events| {
                        let all = events.clone();
                        events.retain(|event| {
                            event.key.is_none()
                                || all.iter().rfind(|e| e.key == event.key).map(|e| e.offset)
                                    == Some(event.offset)
                        });
                    },
                    ..NONE
                }
                .layer()
            },
            &[],
        ),
    ]
}

fn notify() -> Vec<Broken> {
    vec![
        broken(
            "equal messages of a transaction are folded",
            |_| Arc::new(FoldsMessages::new(Fold::EqualInTx)),
            &[],
        ),
        broken(
            "equal messages in a row are folded",
            |_| Arc::new(FoldsMessages::new(Fold::EqualInARow)),
            &[],
        ),
        broken(
            "messages of a transaction arrive backwards",
            |_| Arc::new(FoldsMessages::new(Fold::Backwards)),
            &[],
        ),
        broken("a commit loses its messages", |_| Arc::new(FoldsMessages::new(Fold::Lost)), &[]),
        broken(
            "a message is sent before the commit",
            |_| Arc::new(FoldsMessages::new(Fold::Early)),
            &[],
        ),
        broken(
            "a new listener hears the last message",
            |_| Arc::new(FoldsMessages::new(Fold::Replay)),
            &[],
        ),
        broken("a large message is lost", |_| Arc::new(FoldsMessages::new(Fold::LargeLost)), &[]),
        broken(
            "a full listener drops the newest",
            |data| ListensBadly::new(Ear::DropsNewest, data),
            &[],
        ),
        broken(
            "a full listener drops quietly",
            |data| ListensBadly::new(Ear::DropsQuietly, data),
            &[],
        ),
        broken("a listener is unbounded", |data| ListensBadly::new(Ear::Unbounded, data), &[]),
        broken("a listener outlives its store", |data| ListensBadly::new(Ear::Outlives, data), &[]),
        broken("one of many listeners hears", |data| ListensBadly::new(Ear::OneOfMany, data), &[]),
    ]
}

fn locks() -> Vec<Broken> {
    vec![
        broken(
            "a lock's token doesn't grow across a release",
            |_| Arc::new(TokensBeginAgain::default()),
            &[],
        ),
        broken("a lock is re-entrant", |data| HoldsBadly::new(Grip::Reentrant, data), &[]),
        broken(
            "a late release frees the next holder's lock",
            |data| HoldsBadly::new(Grip::ReleasesTheNext, data),
            &[],
        ),
        broken(
            "a late release says that all is well",
            |data| HoldsBadly::new(Grip::ReleasesQuietly, data),
            &[],
        ),
        broken("a renewal adds", |data| HoldsBadly::new(Grip::RenewalAdds, data), &[]),
        broken("a dropped lock stays held", |data| HoldsBadly::new(Grip::NotAbandoned, data), &[]),
        broken(
            "a renewal after the expiry revives a lock",
            |_| Arc::new(RevivesExpired::default()),
            &[],
        ),
        broken(
            "a lock holds a millisecond longer",
            |data| HoldsBadly::new(Grip::HeldLonger, data),
            &[],
        ),
        broken(
            "the scheduler's lock isn't listed",
            |_| {
                Edits { locks: |locks| locks.retain(|l| !l.name.starts_with("__")), ..NONE }.layer()
            },
            &[],
        ),
        broken("many runners lead the scheduler", |_| Arc::new(ManyLeaders), &[]),
    ]
}

fn schedules() -> Vec<Broken> {
    vec![
        broken("65 boundaries fire", |data| KeepsTimeBadly::new(Beat::One65th, data), &[]),
        broken("every missed boundary fires", |data| KeepsTimeBadly::new(Beat::All, data), &[]),
        broken("one missed boundary fires", |data| KeepsTimeBadly::new(Beat::One, data), &[]),
        broken("the grid drifts", |data| KeepsTimeBadly::new(Beat::Drifts, data), &[]),
        broken(
            "a boundary fires for each who ticks",
            |data| KeepsTimeBadly::new(Beat::NotKeyed, data),
            &[],
        ),
        broken(
            "the boundary of a late fire is now",
            |data| KeepsTimeBadly::new(Beat::BoundaryIsNow, data),
            &[],
        ),
        broken(
            "registering again postpones",
            |data| KeepsTimeBadly::new(Beat::Postpones, data),
            &[],
        ),
        broken(
            "registering again as 1m for 60s postpones",
            |data| KeepsTimeBadly::new(Beat::ComparesText, data),
            &[],
        ),
        broken("registering again resumes", |data| KeepsTimeBadly::new(Beat::Resumes, data), &[]),
        broken(
            "a new period keeps the grid",
            |data| KeepsTimeBadly::new(Beat::KeepsGrid, data),
            &[],
        ),
        broken("a paused schedule fires", |data| KeepsTimeBadly::new(Beat::FiresPaused, data), &[]),
        broken(
            "what was missed while paused fires",
            |data| KeepsTimeBadly::new(Beat::FiresMissed, data),
            &[],
        ),
        broken("any text is a schedule", |data| KeepsTimeBadly::new(Beat::AnyText, data), &[]),
        broken(
            "an unknown schedule is removed",
            |data| KeepsTimeBadly::new(Beat::RemovesUnknown, data),
            &[],
        ),
        broken("a boundary fires a millisecond early", |data| Arc::new(FiresEarly(data)), &[]),
        broken(
            "the options of a schedule are lost",
            |_| Edits { schedule: |spec| spec.opts.max_attempts = None, ..NONE }.layer(),
            &[],
        ),
        broken("sleeping ends at once", |_| Arc::new(NeverSleeps), &[]),
    ]
}

fn txs() -> Vec<Broken> {
    vec![
        broken(
            "a staged settlement pins nothing",
            |data| StagesBadly::new(Slip::NotPinned, data),
            &[],
        ),
        broken(
            "a rollback keeps staged jobs",
            |data| StagesBadly::new(Slip::RollbackKeepsJobs, data),
            &[],
        ),
        broken(
            "a rollback keeps a staged offset",
            |data| StagesBadly::new(Slip::RollbackKeepsOffset, data),
            &[],
        ),
        broken("a rollback commits", |data| StagesBadly::new(Slip::RollbackCommits, data), &[]),
        broken(
            "a dropped transaction keeps staged jobs",
            |data| StagesBadly::new(Slip::DropKeepsJobs, data),
            &[],
        ),
        broken("others see staged jobs", |data| StagesBadly::new(Slip::DirtyReads, data), &[]),
        broken(
            "a transaction doesn't see its own jobs",
            |data| StagesBadly::new(Slip::BlindToJobs, data),
            &[],
        ),
        broken(
            "a transaction doesn't see its own offsets",
            |data| StagesBadly::new(Slip::BlindToOffsets, data),
            &[],
        ),
        broken(
            "a transaction reads the events it staged",
            |data| StagesBadly::new(Slip::ShowsStaged, data),
            &[],
        ),
        broken(
            "staged events carry the instant of the commit",
            |data| StagesBadly::new(Slip::InstantOfCommit, data),
            &[],
        ),
        broken("a commit loses its events", |data| StagesBadly::new(Slip::LosesEvents, data), &[]),
        broken(
            "a commit loses its offsets",
            |data| StagesBadly::new(Slip::LosesOffsets, data),
            &[],
        ),
        broken(
            "a staged settlement isn't fenced",
            |data| StagesBadly::new(Slip::NotFenced, data),
            &[],
        ),
        broken(
            "a staged settlement takes effect at once",
            |data| StagesBadly::new(Slip::SettlesAtOnce, data),
            &[],
        ),
    ]
}

fn wakes() -> Vec<Broken> {
    vec![
        broken("an enqueue wakes nobody", |_| Misses::new(Miss::Enqueue), &[]),
        broken("a settlement wakes nobody", |_| Misses::new(Miss::Settle), &[]),
        broken("a requeue wakes nobody", |_| Misses::new(Miss::Requeue), &[]),
        broken("a resumed queue wakes nobody", |_| Misses::new(Miss::Resume), &[]),
        broken("a publish wakes nobody", |_| Misses::new(Miss::Publish), &[]),
        broken("a released lock wakes nobody", |_| Misses::new(Miss::Release), &[]),
        broken("a dropped lock wakes nobody", |_| Misses::new(Miss::Abandon), &[]),
        broken("a changed schedule wakes nobody", |_| Misses::new(Miss::Schedule), &[]),
        broken("a commit wakes nobody", |_| Misses::new(Miss::Commit), &[]),
        broken(
            "a commit's wakes come when its parts are staged",
            |_| Misses::new(Miss::StageInstead),
            &[],
        ),
        broken("a claim that took in more wakes nobody", |_| Misses::new(Miss::TakeIn), &[]),
        broken("a claim given back wakes nobody", |_| Misses::new(Miss::GiveBack), &[]),
        broken("what comes before the wait is missed", |_| Misses::new(Miss::BeforeWait), &[]),
        broken("who waits isn't told when work falls due", |_| Misses::new(Miss::Due), &[]),
        broken("who waits isn't told of work that is held", |_| Misses::new(Miss::Blocked), &[]),
    ]
}

/// The layers that the broken engines are made of, with no fault in them.
pub(crate) fn whole() -> Vec<Broken> {
    struct Forwards;
    impl alkstore_suite::fault::Layer for Forwards {}

    let engines = vec![
        broken("everything is forwarded", |_| Arc::new(Forwards), &[]),
        broken("nothing is edited", |_| NONE.layer(), &[]),
        broken("no wake is missed", |_| Misses::new(Miss::Nothing), &[]),
        broken("listeners hear through a task", |data| ListensBadly::new(Ear::Well, data), &[]),
        broken("transactions are staged well", |data| StagesBadly::new(Slip::Nothing, data), &[]),
    ];
    engines.into_iter().map(|engine| Broken { mechanisms: "CQSNLHOX", ..engine }).collect()
}
