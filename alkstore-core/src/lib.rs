//! The contract of alkstore: what every engine does, and the handles that applications use.
//!
//! There are two layers. An **engine** implements [`Store`]: few, coarse, batch-shaped primitives
//! over values that were checked already, one small trait a mechanism. An **application** uses the
//! handles it reaches through [`StoreExt`]: [`Queue`], [`Job`], [`Stream`], [`Consumer`],
//! [`Listener`], [`Lock`], [`Outbox`], [`Tx`]. They know no engine, and behave the same on each.
//!
//! This crate does no I/O. Applications depend on the crate `alkstore`, which adds the engines.

mod delegate;
mod error;
mod job;
mod lock;
mod macros;
mod name;
mod notify;
mod outbox;
mod payload;
mod queue;
mod schedule;
mod stop;
mod store;
mod stream;
mod time;
mod tx;
mod wake;

pub use async_trait::async_trait;
pub use error::{BoxError, Error, Result};
pub use futures_util::future::BoxFuture;
pub use job::{
    ClaimRef, ClaimToken, ClaimedJob, EXPIRED_ERROR, ErrorText, Job, LAPSED_ERROR, MAX_ERROR_BYTES,
    Retried, SettleAction, Settled, Settlement,
};
pub use lock::{Acquired, Lock, LockInfo, LockRef, LockStore};
pub use name::{
    ChannelName, LocalName, LockName, MAX_NAME_BYTES, OutboxName, QueueName, RESERVED_PREFIX,
    ScheduleName, StreamName,
};
pub use notify::{
    DEFAULT_LISTENER_BYTES, DEFAULT_LISTENER_MESSAGES, Listener, ListenerLimits, ListenerSender,
    Message, NotifyStore,
};
pub use outbox::{Delivery, Outbox, OutboxOpts};
pub use payload::{
    DEFAULT_PAYLOAD_LIMIT, Headers, IntoPayload, MAX_DEPTH, MAX_HEADER_BYTES, MAX_HEADERS, Payload,
    RESERVED_HEADER_PREFIX,
};
pub use queue::{
    ClaimHint, Claimed, DEFAULT_PAGE, DeadSelection, Due, EnqueueOpts, JobFilter, JobId, JobRecord,
    JobSpec, JobState, NewJob, Queue, QueueOpts, QueueStats, QueueStore,
};
pub use schedule::{
    MAX_FIRES, SCHEDULER_RENEWAL, SCHEDULER_TTL, Schedule, ScheduleOpts, ScheduleSpec,
    ScheduleStore, Tick, run_schedules_observed,
};
pub use stop::StopToken;
pub use store::{
    Limits, Maintenance, MaintenancePage, Store, StoreBase, StoreExt, StoreId, WeakStore,
};
pub use stream::{
    Consumer, ConsumerInfo, Event, EventSpec, NewEvent, Offset, PublishOpts, Stream, StreamInfo,
    StreamStore, Subscription, beyond_head,
};
pub use time::{Lease, MAX_LEASE, Timestamp, ceil_millis};
pub use tx::{EngineTx, Tx, TxStore};
pub use wake::{Topic, Wait, WakeStore, Watch};
