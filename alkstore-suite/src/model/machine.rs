//! How sequences are made: the next operation depends on what the model holds by then.

use std::time::Duration;

use alkstore_core::JobState;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any};
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Union};
use proptest_state_machine::ReferenceStateMachine;

use super::conflict::Conflict;
use super::op::{Action, Ending, EventInput, JobInput, JobPick, Op, Stamps, TxOp, When, Which};
use super::queue::{Standing, Stored};
use super::state::Model;

/// Where the clock stands while a sequence is made.
const START: i64 = 1_700_000_000_000;
/// The queue of many jobs.
const BULK: usize = super::op::QUEUES.len();

pub(super) struct Machine;

impl ReferenceStateMachine for Machine {
    type State = Model;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::new(START)).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Op> {
        let mut arms = vec![(12, advance(model))];
        arms.extend(queue_ops(model));
        arms.extend(stream_ops(model));
        arms.extend(lease_and_schedule_ops(model));
        arms.extend(tx_ops(model));
        Union::new_weighted(arms).boxed()
    }

    fn apply(mut model: Model, op: &Op) -> Model {
        if matches!(model.conflict(op, false), Conflict::None | Conflict::May) {
            // The answer matters only where an engine gave another.
            let _ = model.step(op, None);
        }
        model
    }
}

type Arm = (u32, BoxedStrategy<Op>);

const SECOND: Duration = Duration::from_secs(1);

fn one() -> std::ops::Range<usize> {
    0..2
}

fn any_index() -> impl Strategy<Value = usize> {
    0..24_usize
}

/// Mostly a claim that holds, and of the store given.
fn claim_index(model: &Model, store: Option<u32>) -> BoxedStrategy<usize> {
    let held = |place: &usize| {
        let claim = &model.claims[*place];
        let job = model.data.queues[claim.queue.as_str()].job(claim.id);
        job.is_some_and(|job| job.is_held(claim.token, model.now))
            && store.is_none_or(|store| claim.store == store)
    };
    let held: Vec<usize> = (0..model.claims.len()).filter(held).collect();
    match held.is_empty() {
        true => any_index().boxed(),
        false => {
            Union::new_weighted(vec![(3, select(held).boxed()), (1, any_index().boxed())]).boxed()
        }
    }
}

fn lease() -> impl Strategy<Value = Duration> {
    select(vec![
        10 * SECOND,
        SECOND,
        60 * SECOND,
        Duration::from_micros(1_500),
        Duration::from_millis(1),
    ])
}

fn delay() -> impl Strategy<Value = Duration> {
    select(vec![
        Duration::ZERO,
        SECOND,
        10 * SECOND,
        Duration::from_micros(999),
        30 * SECOND,
        Duration::MAX,
    ])
}

fn stamps() -> impl Strategy<Value = Stamps> {
    let retention = select(vec![20 * SECOND, Duration::from_nanos(1), Duration::ZERO]);
    let base = select(vec![SECOND, Duration::ZERO, 3_000 * SECOND, Duration::from_millis(3)]);
    (option::of(lease()), option::of(1..4_u32), option::of(base), option::of(retention)).prop_map(
        |(visibility, max_attempts, retry_base, retention)| Stamps {
            visibility,
            max_attempts,
            retry_base,
            retention,
        },
    )
}

fn jobs(most: usize) -> impl Strategy<Value = Vec<JobInput>> {
    let when = Union::new_weighted(vec![
        (4, Just(When::Now).boxed()),
        (2, delay().prop_map(When::After).boxed()),
        (1, (-5_000_000..5_000_000_i64).prop_map(When::At).boxed()),
    ]);
    let expires = select(vec![15 * SECOND, 60 * SECOND, SECOND, Duration::ZERO, Duration::MAX]);
    let key = option::weighted(0.3, select(vec!["k", "K"]));
    let fields = (
        any::<u8>(),
        when,
        select(vec![0, 0, 0, 1, -1, i32::MAX, i32::MIN]),
        option::weighted(0.2, 1..3_u32),
        option::weighted(0.25, expires),
        key,
        option::weighted(0.2, any::<u8>()),
    );
    let job = fields.prop_map(|(payload, when, priority, max_attempts, expires, key, header)| {
        JobInput { payload, when, priority, max_attempts, expires, key, header }
    });
    vec(job, 0..=most)
}

fn job_pick() -> impl Strategy<Value = JobPick> {
    (any_index(), option::weighted(0.1, one())).prop_map(|(job, queue)| JobPick { job, queue })
}

fn error() -> impl Strategy<Value = &'static str> {
    select(vec!["boom", "ä\"\\\n", ""])
}

fn settling() -> Vec<(u32, BoxedStrategy<Action>)> {
    let retry = (error(), option::weighted(0.8, delay()));
    vec![
        (3, Just(Action::Ack).boxed()),
        (3, retry.prop_map(|(error, delay)| Action::Retry { error, delay }).boxed()),
        (2, error().prop_map(|error| Action::Fail { error }).boxed()),
    ]
}

/// Steps of a fixed length, and steps to an instant at which something happens, or just before.
fn advance(model: &Model) -> BoxedStrategy<Op> {
    let steps = select(vec![1, 1_000, 5_000, 60_000, 600_000]);
    let mut instants = Vec::new();
    for job in model.data.queues.values().flat_map(|queue| &queue.jobs).take(100) {
        instants.extend([Some(job.ready_at), job.expires_at].into_iter().flatten());
        if let Stored::Claimed { deadline, .. } = job.stored {
            instants.push(deadline);
        }
        if let (Standing::Dead { died_at, .. }, Some(kept)) =
            (job.standing(model.now), job.retention)
        {
            instants.push(died_at + kept);
        }
    }
    instants.extend(model.data.locks.values().filter_map(|lock| lock.expiry()));
    instants.extend(model.data.schedules.values().map(|schedule| schedule.next));
    let mut steps_to: Vec<i64> = instants
        .into_iter()
        .flat_map(|at| [at - model.now, at - 1 - model.now])
        .filter(|step| (1..10_000_000).contains(step))
        .collect();
    steps_to.sort_unstable();
    steps_to.dedup();
    let step = match steps_to.is_empty() {
        true => steps.boxed(),
        false => {
            Union::new_weighted(vec![(1, steps.boxed()), (3, select(steps_to).boxed())]).boxed()
        }
    };
    step.prop_map(|millis| Op::Advance { millis }).boxed()
}

fn queue_ops(model: &Model) -> Vec<Arm> {
    let enqueue = (one(), one(), stamps(), jobs(3))
        .prop_map(|(via, queue, stamps, jobs)| Op::Enqueue { via, queue, stamps, jobs });
    let claim = (one(), one(), one(), 0..4_usize).prop_map(|(via, queue, worker, max)| Op::Claim {
        via,
        queue,
        worker,
        max,
    });
    let which = Union::new_weighted(vec![
        (1, Just(Which::All).boxed()),
        (1, vec(any_index(), 1..4).prop_map(Which::Ids).boxed()),
    ]);
    let dead = (one(), one(), which, any::<bool>())
        .prop_map(|(via, queue, which, purge)| Op::Dead { via, queue, which, purge });
    let pause = (one(), one(), select(vec![false, false, true]))
        .prop_map(|(via, queue, paused)| Op::PauseQueue { via, queue, paused });
    let state = option::of(select(vec![JobState::Pending, JobState::Claimed, JobState::Dead]));
    let list = (one(), one(), state, option::of(any_index()), 0..6_usize)
        .prop_map(|(via, queue, state, after, limit)| Op::Jobs { via, queue, state, after, limit });
    let mut arms = vec![
        (14, enqueue.boxed()),
        (14, claim.boxed()),
        (2, (one(), job_pick()).prop_map(|(via, job)| Op::Cancel { via, job }).boxed()),
        (2, (one(), job_pick()).prop_map(|(via, job)| Op::GetJob { via, job }).boxed()),
        (2, list.boxed()),
        (4, dead.boxed()),
        (3, pause.boxed()),
        (2, one().prop_map(|via| Op::Maintain { via }).boxed()),
        (1, one().prop_map(|via| Op::Reopen { via }).boxed()),
    ];
    if !model.claims.is_empty() {
        let mut actions = settling();
        actions.push((2, delay().prop_map(|delay| Action::Release { delay }).boxed()));
        actions.push((2, lease().prop_map(|extend| Action::Heartbeat { extend }).boxed()));
        let settle = (claim_index(model, None), Union::new_weighted(actions))
            .prop_map(|(claim, action)| Op::Settle { claim, action });
        let batch = vec(claim_index(model, None), 0..4).prop_map(|claims| Op::AckBatch { claims });
        arms.extend([(16, settle.boxed()), (3, batch.boxed())]);
    }
    arms.extend(bulk_ops(model));
    arms
}

fn bulk_ops(model: &Model) -> Option<Arm> {
    let jobs = &model.data.queues[super::op::BULK].jobs;
    let first = (one(), 1_001..1_100_i64, 0..3_u64).prop_map(|(via, jobs, step)| {
        let step = Duration::from_millis(step);
        Op::EnqueueBulk { via, jobs, delay: SECOND, step }
    });
    let further = (one(), 1..20_i64, select(vec![Duration::ZERO, SECOND]))
        .prop_map(|(via, jobs, delay)| Op::EnqueueBulk { via, jobs, delay, step: Duration::ZERO });
    let claim = (one(), one(), select(vec![1, 2, 999, 1_000, 1_001, 3_000]))
        .prop_map(|(via, worker, max)| Op::Claim { via, queue: BULK, worker, max });
    match (jobs.is_empty(), model.tx.is_some()) {
        (true, false) => Some((1, first.boxed())),
        (false, false) => {
            let claim = (5, claim.boxed());
            Some((20, Union::new_weighted(vec![claim, (1, further.boxed())]).boxed()))
        }
        _ => None,
    }
}

fn events() -> impl Strategy<Value = Vec<EventInput>> {
    let event = (any::<u8>(), option::of(select(vec!["k", "K"])))
        .prop_map(|(payload, key)| EventInput { payload, key });
    vec(event, 1..4)
}

fn offset(model: &Model) -> std::ops::Range<i64> {
    let head = model.data.streams.values().map(|stream| stream.head).max();
    0..head.unwrap_or(0) + 3
}

fn stream_ops(model: &Model) -> Vec<Arm> {
    let publish = (one(), one(), events()).prop_map(|(via, stream, events)| Op::Publish {
        via,
        stream,
        events,
    });
    let read = (one(), one(), offset(model), 0..5_usize)
        .prop_map(|(via, stream, after, limit)| Op::Read { via, stream, after, limit });
    let trim = (one(), one(), offset(model)).prop_map(|(via, stream, horizon)| Op::Trim {
        via,
        stream,
        horizon,
    });
    let follow = (one(), one(), one(), 0..5_usize).prop_map(|(via, stream, consumer, limit)| {
        Op::ReadConsumer { via, stream, consumer, limit }
    });
    let rewind = select(vec![false, false, true]);
    let save = (one(), one(), one(), offset(model), rewind).prop_map(
        |(via, stream, consumer, offset, rewind)| Op::Save {
            via,
            stream,
            consumer,
            offset,
            rewind,
        },
    );
    let forget = (one(), one(), one()).prop_map(|(via, stream, consumer)| Op::Forget {
        via,
        stream,
        consumer,
    });
    vec![
        (6, publish.boxed()),
        (3, read.boxed()),
        (2, trim.boxed()),
        (2, follow.boxed()),
        (5, save.boxed()),
        (1, forget.boxed()),
    ]
}

fn lease_and_schedule_ops(model: &Model) -> Vec<Arm> {
    let lock = (one(), one(), one(), lease()).prop_map(|(via, lock, owner, ttl)| Op::TryLock {
        via,
        lock,
        owner,
        ttl,
    });
    let spec = select(vec![
        "@every 10s",
        "@every 60s",
        "@every 1m",
        "@every 1h",
        "@every 3650d",
        "@every 3651d",
        "@every 010s",
        "*/5 * * * *",
    ]);
    let expires = option::weighted(0.3, select(vec![SECOND, 15 * SECOND]));
    // What a tick enqueued has to be there afterwards, so that its ids can be learnt.
    let stamps = stamps()
        .prop_map(|stamps| Stamps { retention: stamps.retention.map(|_| 20 * SECOND), ..stamps });
    let schedule = (one(), one(), spec, one(), stamps, select(vec![0, 1]), expires).prop_map(
        |(via, name, spec, queue, stamps, priority, expires)| Op::Schedule {
            via,
            name,
            spec,
            queue,
            stamps,
            priority,
            expires,
        },
    );
    let unschedule = (one(), one()).prop_map(|(via, name)| Op::Unschedule { via, name });
    let pause = (one(), one(), any::<bool>()).prop_map(|(via, name, paused)| Op::PauseSchedule {
        via,
        name,
        paused,
    });
    let mut arms = vec![
        (4, lock.boxed()),
        (3, schedule.boxed()),
        (1, unschedule.boxed()),
        (2, pause.boxed()),
        (3, one().prop_map(|via| Op::Tick { via }).boxed()),
    ];
    if !model.holdings.is_empty() {
        let renew = (any_index(), lease()).prop_map(|(held, ttl)| Op::Renew { held, ttl });
        arms.extend([
            (2, renew.boxed()),
            (2, any_index().prop_map(|held| Op::Release { held }).boxed()),
            (1, any_index().prop_map(|held| Op::DropLock { held }).boxed()),
        ]);
    }
    arms
}

fn tx_ops(model: &Model) -> Vec<Arm> {
    let Some(tx) = &model.tx else {
        return vec![(5, one().prop_map(|via| Op::Begin { via }).boxed())];
    };
    // Most handles are of the transaction's own store.
    let own = model.stores.iter().position(|store| *store == tx.store).unwrap_or(0);
    let via = move || select(vec![own, own, own, own, own, own, 1 - own]);
    let enqueue = (via(), one(), stamps(), jobs(2))
        .prop_map(|(via, queue, stamps, jobs)| TxOp::Enqueue { via, queue, stamps, jobs });
    let settle = (claim_index(model, Some(tx.store)), Union::new_weighted(settling()))
        .prop_map(|(claim, action)| TxOp::Settle { claim, action });
    let publish = (via(), one(), events()).prop_map(|(via, stream, events)| TxOp::Publish {
        via,
        stream,
        events,
    });
    let save = (via(), one(), one(), offset(model))
        .prop_map(|(via, stream, consumer, offset)| TxOp::Save { via, stream, consumer, offset });
    let read = (via(), one(), offset(model), 0..5_usize)
        .prop_map(|(via, stream, after, limit)| TxOp::Read { via, stream, after, limit });
    let saved = (one(), one()).prop_map(|(stream, consumer)| TxOp::GetOffset { stream, consumer });
    let mut arms = vec![
        (8, enqueue.boxed()),
        (5, publish.boxed()),
        (4, save.boxed()),
        (3, job_pick().prop_map(|job| TxOp::GetJob { job }).boxed()),
        (1, saved.boxed()),
        (2, read.boxed()),
    ];
    if !model.claims.is_empty() {
        arms.push((16, settle.boxed()));
    }
    let ending = select(vec![Ending::Commit, Ending::Commit, Ending::Rollback, Ending::Drop]);
    vec![
        (40, Union::new_weighted(arms).prop_map(Op::Tx).boxed()),
        (14, ending.prop_map(Op::End).boxed()),
    ]
}
