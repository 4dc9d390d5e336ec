//! What a worker tells of itself.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use alkstore::prelude::*;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::stage::{Log, Run, Stage, on_every_engine};

type Fields = BTreeMap<String, String>;

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    level: tracing_subscriber::filter::LevelFilter,
    name: String,
    /// The span it was in.
    inside: Option<String>,
    pub(crate) fields: Fields,
}

/// Writes down spans when they close, and events. For the whole process: what a thread without a
/// subscriber meets first would be off for all of them.
struct Witness(Log<Seen>);

/// What was written down with a `queue` or a `worker` of this name.
pub(crate) struct Witnessed {
    pub(crate) name: String,
    log: Log<Seen>,
}

impl Witnessed {
    /// A name that nothing else has in this process, and what is written down of it.
    pub(crate) fn new() -> Self {
        static LOG: OnceLock<Log<Seen>> = OnceLock::new();
        static NAMES: AtomicUsize = AtomicUsize::new(0);
        let witness = || {
            let log = Log::new();
            let subscriber = tracing_subscriber::registry().with(Witness(log.clone()));
            tracing::subscriber::set_global_default(subscriber).unwrap();
            log
        };
        let name = format!("witnessed-{:02}", NAMES.fetch_add(1, Ordering::SeqCst));
        Self { name, log: LOG.get_or_init(witness).clone() }
    }

    pub(crate) fn named(&self, name: &str) -> Vec<Seen> {
        let of = |seen: &Seen, key| {
            seen.fields.get(key).is_some_and(|value: &String| value.contains(&self.name))
        };
        let mut entries = self.log.entries();
        entries.retain(|seen| seen.name == name && (of(seen, "queue") || of(seen, "worker")));
        entries
    }
}

fn is_witnessed(seen: &Seen) -> bool {
    ["queue", "worker"]
        .iter()
        .any(|key| seen.fields.get(*key).is_some_and(|value| value.contains("witnessed-")))
}

struct Visitor<'a>(&'a mut Fields);

impl tracing::field::Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Witness {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::span::Id,
        context: Context<'_, S>,
    ) {
        let mut fields = Fields::new();
        attributes.record(&mut Visitor(&mut fields));
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(
        &self,
        id: &tracing::span::Id,
        values: &tracing::span::Record<'_>,
        context: Context<'_, S>,
    ) {
        let span = context.span(id).unwrap();
        let mut extensions = span.extensions_mut();
        values.record(&mut Visitor(extensions.get_mut::<Fields>().unwrap()));
    }

    fn on_close(&self, id: tracing::span::Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if span.metadata().target() == "alkstore::worker" {
            let fields = span.extensions().get::<Fields>().unwrap().clone();
            let level = (*span.metadata().level()).into();
            let seen = Seen { level, name: span.name().to_owned(), inside: None, fields };
            if is_witnessed(&seen) {
                self.0.add(seen);
            }
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Visitor(&mut fields));
        let name = fields.remove("message").unwrap_or_default();
        let inside = context.event_span(event).map(|span| span.name().to_owned());
        let seen = Seen { level: (*event.metadata().level()).into(), name, inside, fields };
        if is_witnessed(&seen) {
            self.0.add(seen);
        }
    }
}

fn keys(seen: &Seen) -> Vec<&str> {
    seen.fields.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn spans_and_events_have_stable_names_and_fields() {
    use tracing_subscriber::filter::LevelFilter;

    on_every_engine(async |stage: Stage| {
        let witnessed = Witnessed::new();
        let name = witnessed.name.as_str();
        let queue = stage.queue(name);
        queue.enqueue(&true).await.unwrap();
        queue.enqueue(&false).await.unwrap();
        let outbox = stage.store.outbox(name).unwrap();
        outbox.enqueue(&1, OutboxOpts::new()).await.unwrap();
        let handler = async |job: JobContext, good: bool| {
            tracing::info!(queue = job.queue(), "from the handler");
            if good { Outcome::Done } else { Outcome::discard("bad") }
        };
        let deliver = async |_: Delivery| Ok::<_, Error>(());
        let builder = Worker::builder(&stage.store).worker_id(name).queue(name, handler);
        let run = Run::start(builder.outbox(name, deliver));
        stage.until(async || witnessed.named("job").len() == 3).await;
        run.stop(&stage).await.unwrap();

        let named = |name: &str| witnessed.named(name);
        let of = |seen: &Seen, key: &str| seen.fields.get(key).cloned().unwrap_or_default();
        let started = named("worker started");
        assert_eq!(keys(&started[0]), ["concurrency", "queues", "worker"]);
        assert_eq!(of(&started[0], "queues"), format!(r#"["{name}", "__alkstore_outbox:{name}"]"#));
        assert_eq!(named("worker stopping").len(), 1);
        assert_eq!(named("worker stopped").len(), 1);

        let spans = named("job");
        let (jobs, deliveries): (Vec<_>, Vec<_>) =
            spans.into_iter().partition(|span| of(span, "queue") == name);
        for span in &jobs {
            let expected =
                ["attempt", "job_id", "max_attempts", "outcome", "queue", "run_ms", "wait_ms"];
            assert_eq!((keys(span).as_slice(), span.level), (&expected[..], LevelFilter::INFO));
            assert_eq!((of(span, "attempt"), of(span, "max_attempts")), ("1".into(), "3".into()));
        }
        let mut outcomes: Vec<_> = jobs.iter().map(|span| of(span, "outcome")).collect();
        outcomes.sort();
        assert_eq!(outcomes, ["discard", "done"]);
        assert_eq!(of(&deliveries[0], "queue"), format!("__alkstore_outbox:{name}"));
        assert_eq!(of(&deliveries[0], "outcome"), "done");
        assert_eq!(named("from the handler").len(), 2);
        assert!(named("from the handler").iter().all(|seen| seen.inside.as_deref() == Some("job")));

        let failed = named("job failed");
        assert_eq!(failed.len(), 1);
        let expected = ["attempt", "error", "job_id", "outcome", "queue", "run_ms"];
        assert_eq!(
            (keys(&failed[0]).as_slice(), failed[0].level),
            (&expected[..], LevelFilter::WARN)
        );
        assert_eq!(
            (of(&failed[0], "error"), of(&failed[0], "outcome")),
            ("bad".into(), "discard".into())
        );
        let settled = named("job settled");
        assert_eq!(settled.len(), 2, "the job and the delivery");
        let expected = ["attempt", "job_id", "outcome", "queue", "run_ms"];
        assert!(settled.iter().all(|seen| keys(seen) == expected));
    })
    .await;
}

#[cfg(feature = "metrics")]
mod metrics {
    use std::collections::BTreeMap;

    use alkstore::metrics::{names, observed, sample};
    use alkstore::prelude::*;
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use crate::stage::{Gate, Log, Run, Stage, on_every_engine, secs};

    /// Everything recorded so far, by name and labels. Of a histogram, the number of values.
    fn readings(recorder: &metrics_util::debugging::Snapshotter) -> BTreeMap<String, f64> {
        let mut readings = BTreeMap::new();
        for (key, _, _, value) in recorder.snapshot().into_vec() {
            let (name, labels) = (key.key().name().to_owned(), key.key().labels());
            let mut labels: Vec<_> =
                labels.map(|label| format!("{}={}", label.key(), label.value())).collect();
            labels.sort();
            let value = match value {
                #[expect(clippy::cast_precision_loss, reason = "small counts")]
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(gauge) => gauge.into_inner(),
                #[expect(clippy::cast_precision_loss, reason = "small counts")]
                DebugValue::Histogram(values) => values.len() as f64,
            };
            readings.insert(format!("{name}{{{}}}", labels.join(",")), value);
        }
        readings
    }

    async fn scenario(stage: &Stage) {
        let store = observed(&stage.store);
        let opts = QueueOpts::new().visibility_timeout(secs(30));
        let queue = store.queue_with("q", opts).unwrap();
        queue.enqueue(&"done").await.unwrap();
        queue.enqueue(&"discard").await.unwrap();
        let mut tx = store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &"lost", EnqueueOpts::new()).await.unwrap();
        tx.commit().await.unwrap();
        let mut tx = store.begin_tx().await.unwrap();
        queue.enqueue_tx(&mut tx, &"never", EnqueueOpts::new()).await.unwrap();
        tx.rollback().await.unwrap();
        let delayed = EnqueueOpts::new().delay(secs(3_600));
        queue.enqueue_with(&"done", delayed).await.unwrap();
        let events = store.stream("s").unwrap();
        for n in 0..3 {
            events.publish(&n).await.unwrap();
        }
        events.consumer("c").unwrap().save_offset(Offset::START).await.unwrap();
        store.schedule("tick", "@every 1m", "q", &"done", ScheduleOpts::new()).await.unwrap();
        let (gate, done) = (Gate::new(), Log::new());
        let handler = {
            let (gate, done) = (gate.clone(), done.clone());
            move |what: String| {
                let (gate, done) = (gate.clone(), done.clone());
                async move {
                    match what.as_str() {
                        "done" => {
                            done.add(());
                            Outcome::Done
                        }
                        "discard" => Outcome::discard("bad"),
                        _ => {
                            gate.pass().await;
                            Outcome::Done
                        }
                    }
                }
            }
        };
        let builder = Worker::builder(&store).queue("q", handler).schedules(true);
        let run = Run::start(builder);
        stage.until(async || gate.inside() == 1).await;
        stage.until(async || stage.queue("q").stats().await.unwrap().dead == 1).await;
        let held = stage.queue("q").jobs(JobFilter::new().state(JobState::Claimed)).await.unwrap();
        stage.until(async || run.worker.health().unsettled == 0).await;
        sample(&store).await.unwrap();
        stage.queue("q").cancel(held[0].id).await.unwrap();
        // To the next heartbeat, and to the schedule's first boundary.
        stage.advancing_slowly(secs(1), async || gate.dropped() == 1).await;
        stage.advancing_slowly(secs(1), async || done.len() == 2).await;
        stage.until(async || run.worker.health().unsettled == 0).await;
        run.stop(stage).await.unwrap();
    }

    #[test]
    fn metrics_have_stable_names_and_labels() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        metrics::with_local_recorder(&recorder, || {
            runtime.block_on(on_every_engine(async |stage: Stage| {
                scenario(&stage).await;
                let found = readings(&snapshotter);
                let value = |key: String| found.get(&key).copied();
                for (name, labels, expected) in [
                    (names::ENQUEUED, "queue=q", 4.0),
                    (names::CLAIMED, "queue=q", 4.0),
                    (names::SETTLED, "outcome=done,queue=q", 2.0),
                    (names::SETTLED, "outcome=discard,queue=q", 1.0),
                    (names::SETTLED, "outcome=retry,queue=q", 0.0),
                    (names::LOST, "queue=q", 1.0),
                    (names::WAIT, "queue=q", 4.0),
                    (names::RUN, "queue=q", 4.0),
                    (names::DEPTH, "queue=q,state=dead", 1.0),
                    (names::DEPTH, "queue=q,state=claimed", 1.0),
                    (names::DEPTH, "queue=q,state=delayed", 1.0),
                    (names::LAG, "queue=q", 0.0),
                    (names::CONSUMER_LAG, "consumer=c,stream=s", 3.0),
                    (names::FIRED, "", 1.0),
                ] {
                    assert_eq!(
                        value(format!("{name}{{{labels}}}")),
                        Some(expected),
                        "{name} {labels} in {found:?}"
                    );
                }
                assert!(value(format!("{}{{}}", names::TICKS)) >= Some(2.0), "{found:?}");
            }));
        });
    }
}
