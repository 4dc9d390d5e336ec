//! The operations that a sequence is made of.
//!
//! What an operation refers to (a claim, a lock, a job) is an index into what there is, taken
//! modulo its length: so every operation means something in every state, and a sequence that
//! shrinks stays one.

use std::time::Duration;

use alkstore_core::JobState;

/// Compared byte for byte, and sorted so.
pub(super) const QUEUES: [&str; 2] = ["Q", "q"];
/// Holds many jobs at a time; none expires, and few are exhausted.
pub(super) const BULK: &str = "ä bulk";
pub(super) const STREAMS: [&str; 2] = ["S", "s"];
pub(super) const CONSUMERS: [&str; 2] = ["C", "c"];
pub(super) const LOCKS: [&str; 2] = ["L", "l"];
pub(super) const SCHEDULES: [&str; 2] = ["H", "h"];
pub(super) const WORKERS: [&str; 2] = ["__alkstore_w", "w"];

pub(super) fn queue_name(index: usize) -> &'static str {
    QUEUES.get(index).copied().unwrap_or(BULK)
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    Advance {
        millis: i64,
    },
    /// Opens one of the two stores anew; what came from the old one keeps it open.
    Reopen {
        via: usize,
    },
    Enqueue {
        via: usize,
        queue: usize,
        stamps: Stamps,
        jobs: Vec<JobInput>,
    },
    EnqueueBulk {
        via: usize,
        jobs: i64,
        /// Job n falls due n · step after this.
        delay: Duration,
        step: Duration,
    },
    Claim {
        via: usize,
        queue: usize,
        worker: usize,
        max: usize,
    },
    Settle {
        claim: usize,
        action: Action,
    },
    AckBatch {
        claims: Vec<usize>,
    },
    Cancel {
        via: usize,
        job: JobPick,
    },
    GetJob {
        via: usize,
        job: JobPick,
    },
    Jobs {
        via: usize,
        queue: usize,
        state: Option<JobState>,
        after: Option<usize>,
        limit: usize,
    },
    Dead {
        via: usize,
        queue: usize,
        which: Which,
        purge: bool,
    },
    PauseQueue {
        via: usize,
        queue: usize,
        paused: bool,
    },
    Maintain {
        via: usize,
    },
    Publish {
        via: usize,
        stream: usize,
        events: Vec<EventInput>,
    },
    Read {
        via: usize,
        stream: usize,
        after: i64,
        limit: usize,
    },
    Trim {
        via: usize,
        stream: usize,
        horizon: i64,
    },
    ReadConsumer {
        via: usize,
        stream: usize,
        consumer: usize,
        limit: usize,
    },
    Save {
        via: usize,
        stream: usize,
        consumer: usize,
        offset: i64,
        /// The way back.
        rewind: bool,
    },
    Forget {
        via: usize,
        stream: usize,
        consumer: usize,
    },
    TryLock {
        via: usize,
        lock: usize,
        owner: usize,
        ttl: Duration,
    },
    Renew {
        held: usize,
        ttl: Duration,
    },
    Release {
        held: usize,
    },
    DropLock {
        held: usize,
    },
    Schedule {
        via: usize,
        name: usize,
        spec: &'static str,
        queue: usize,
        stamps: Stamps,
        priority: i32,
        expires: Option<Duration>,
    },
    Unschedule {
        via: usize,
        name: usize,
    },
    PauseSchedule {
        via: usize,
        name: usize,
        paused: bool,
    },
    Tick {
        via: usize,
    },
    Begin {
        via: usize,
    },
    Tx(TxOp),
    End(Ending),
}

/// An operation of the open transaction.
#[derive(Debug, Clone)]
pub(super) enum TxOp {
    Enqueue { via: usize, queue: usize, stamps: Stamps, jobs: Vec<JobInput> },
    Settle { claim: usize, action: Action },
    Publish { via: usize, stream: usize, events: Vec<EventInput> },
    Save { via: usize, stream: usize, consumer: usize, offset: i64 },
    GetJob { job: JobPick },
    GetOffset { stream: usize, consumer: usize },
    Read { via: usize, stream: usize, after: i64, limit: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Commit,
    Rollback,
    Drop,
}

/// What a queue's options, or a schedule's, say.
#[derive(Debug, Clone, Default)]
pub(super) struct Stamps {
    pub(super) visibility: Option<Duration>,
    pub(super) max_attempts: Option<u32>,
    pub(super) retry_base: Option<Duration>,
    pub(super) retention: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(super) struct JobInput {
    pub(super) payload: u8,
    pub(super) when: When,
    pub(super) priority: i32,
    pub(super) max_attempts: Option<u32>,
    pub(super) expires: Option<Duration>,
    pub(super) key: Option<&'static str>,
    pub(super) header: Option<u8>,
}

#[derive(Debug, Clone)]
pub(super) enum When {
    Now,
    After(Duration),
    /// At an instant so many microseconds from now, which may be past.
    At(i64),
}

#[derive(Debug, Clone)]
pub(super) enum Action {
    Ack,
    Retry { error: &'static str, delay: Option<Duration> },
    Fail { error: &'static str },
    Release { delay: Duration },
    Heartbeat { extend: Duration },
}

/// A job that was ever seen, asked for in its own queue or in another.
#[derive(Debug, Clone)]
pub(super) struct JobPick {
    pub(super) job: usize,
    pub(super) queue: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) enum Which {
    All,
    Ids(Vec<usize>),
}

#[derive(Debug, Clone)]
pub(super) struct EventInput {
    pub(super) payload: u8,
    pub(super) key: Option<&'static str>,
}

impl Op {
    /// What it is, for the count of what was covered.
    pub(super) fn kind(&self) -> String {
        let text = match self {
            Self::Tx(TxOp::Settle { action, .. }) => format!("Tx(Settle({action:?}"),
            Self::Settle { action, .. } => format!("Settle({action:?}"),
            Self::Dead { purge, .. } => format!("Dead(purge: {purge})"),
            Self::Save { rewind, .. } => format!("Save(rewind: {rewind})"),
            Self::PauseQueue { paused, .. } => format!("PauseQueue({paused})"),
            Self::PauseSchedule { paused, .. } => format!("PauseSchedule({paused})"),
            Self::Claim { queue, max, .. } if *queue == QUEUES.len() => {
                format!("Claim(bulk, {max})")
            }
            other => format!("{other:?}"),
        };
        text.split(" {").next().unwrap_or_default().to_owned()
    }

    /// The same, but for the pause of a retry that names none: every engine draws its own, and
    /// from then on nothing would be the same.
    pub(super) fn without_a_draw(mut self) -> Self {
        if let Self::Settle { action, .. } | Self::Tx(TxOp::Settle { action, .. }) = &mut self
            && let Action::Retry { delay: delay @ None, .. } = action
        {
            *delay = Some(Duration::from_secs(3));
        }
        self
    }

    /// Whether it writes, outside of the open transaction.
    pub(super) fn writes_outside(&self) -> bool {
        !matches!(
            self,
            Self::Advance { .. }
                | Self::GetJob { .. }
                | Self::Jobs { .. }
                | Self::Read { .. }
                | Self::ReadConsumer { .. }
                | Self::Tx(_)
                | Self::End(_)
        )
    }

    /// Whether it uses up a lock's handle.
    pub(super) fn ends_a_holding(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::DropLock { .. })
    }
}

/// JSON that no one may normalize.
pub(super) fn payload_text(number: u8) -> String {
    format!("{{ \"n\":{number}.0, \"a\": \"\\u0000\", \"a\":1 }}")
}
