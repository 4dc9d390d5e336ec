//! What a program needs: `use alkstore::prelude::*;`.

pub use crate::{
    Consumer, DeadSelection, Delivery, EnqueueOpts, Error, Event, Headers, IntoPayload, Job,
    JobFilter, JobId, JobRecord, JobState, Listener, Lock, Message, NewEvent, NewJob, Offset,
    Outbox, OutboxOpts, Payload, PublishOpts, Queue, QueueOpts, Result, Retried, Schedule,
    ScheduleOpts, StopToken, Store, StoreConfig, StoreExt, Stream, Subscription, Tx,
};
#[cfg(feature = "worker")]
pub use crate::{HandlerOpts, JobContext, Outcome, Worker};
