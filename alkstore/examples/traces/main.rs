//! One trace from the request that enqueues a job to the handler in another process.
//!
//! ```sh
//! cargo run --example traces                                # both, as two processes on one file
//! cargo run --example traces -- enqueue sqlite:app.db ada   # the one
//! cargo run --example traces -- work sqlite:app.db          # the other
//! ```
//!
//! What is carried is the W3C `traceparent`, in the job's headers; what carries it is the
//! OpenTelemetry propagator, so that any other format is a matter of its configuration. Spans are
//! printed; a program in production hands them to an exporter of its choice.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::collections::HashMap;
use std::process::Command;

use alkstore::prelude::*;
use alkstore::worker::{JobContext, Worker};
use anyhow::{Context as _, bail};
use opentelemetry::propagation::Extractor;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing::{Instrument, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => both(),
        ["enqueue", url, to] => enqueue(url, to).await,
        ["work", url] => work(url).await,
        _ => bail!("usage: traces [enqueue URL TO | work URL]"),
    }
}

fn both() -> anyhow::Result<()> {
    let file = std::env::temp_dir().join(format!("traces-{}.db", std::process::id()));
    let url = format!("sqlite:{}", file.display());
    for arguments in [vec!["enqueue", &url, "ada"], vec!["work", &url]] {
        println!("== {}", arguments[0]);
        let status = Command::new(std::env::current_exe()?).args(arguments).status()?;
        if !status.success() {
            bail!("it ended with {status}");
        }
    }
    for end in ["", "-wal", "-shm"] {
        // What isn't there needn't go.
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
    Ok(())
}

/// The one process: a request comes in, and its trace goes along with the job.
pub(crate) async fn enqueue(url: &str, to: &str) -> anyhow::Result<()> {
    let provider = tell_traces()?;
    let store = alkstore::open(url).await?;
    let request = async {
        let opts = EnqueueOpts::new().headers(trace_headers()?);
        store.queue("emails")?.enqueue_with(to, opts).await
    };
    request.instrument(info_span!("request", to)).await?;
    store.close().await?;
    Ok(provider.shutdown()?)
}

/// The other process: works until nothing is left.
pub(crate) async fn work(url: &str) -> anyhow::Result<()> {
    let provider = tell_traces()?;
    let store = alkstore::open(url).await?;
    let (stop, queue) = (StopToken::new(), store.queue("emails")?);
    let last = stop.clone();
    let handler = move |job: JobContext, to: String| {
        let (last, queue) = (last.clone(), queue.clone());
        async move {
            let span = info_span!(parent: None, "send", to, attempt = job.attempt());
            follow_trace(&span, job.headers()).map_err(|error| error.to_string())?;
            send(&to).instrument(span).await;
            let left = queue.stats().await.map_err(|error| error.to_string())?;
            if left.ready + left.claimed == 1 {
                last.stop();
            }
            Ok::<_, String>(())
        }
    };
    Worker::builder(&store).queue("emails", handler).concurrency(1).buffer(0).run(stop).await?;
    store.close().await?;
    Ok(provider.shutdown()?)
}

async fn send(to: &str) {
    let span = info_span!("smtp", to);
    async { tokio::task::yield_now().await }.instrument(span).await;
}

/// The context of the span that we are in, as headers of a job or an event.
fn trace_headers() -> Result<Headers> {
    let mut carrier = HashMap::new();
    let context = Span::current().context();
    global::get_text_map_propagator(|propagator| propagator.inject_context(&context, &mut carrier));
    Headers::new(carrier)
}

/// Makes a span that hasn't begun a child of the one whose context the headers carry, and lets it
/// refer to the worker's own span, in which we are.
fn follow_trace(span: &Span, headers: &Headers) -> anyhow::Result<()> {
    let parent: Context =
        global::get_text_map_propagator(|propagator| propagator.extract(&Carrier(headers)));
    span.set_parent(parent).context("the trace of the job")?;
    let job = opentelemetry::trace::TraceContextExt::span(&Span::current().context())
        .span_context()
        .clone();
    span.add_link(job);
    Ok(())
}

struct Carrier<'a>(&'a Headers);

impl Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(key, _)| key).collect()
    }
}

/// Spans of `tracing` become spans of OpenTelemetry, printed when they end.
fn tell_traces() -> anyhow::Result<SdkTracerProvider> {
    global::set_text_map_propagator(TraceContextPropagator::new());
    let provider = SdkTracerProvider::builder().with_simple_exporter(Printed).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("traces"));
    tracing_subscriber::registry().with(layer.with_filter(LevelFilter::INFO)).try_init()?;
    Ok(provider)
}

#[derive(Debug)]
struct Printed;

impl SpanExporter for Printed {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            let context = &span.span_context;
            println!(
                "span {} {} trace={} parent={} links={}",
                span.name,
                context.span_id(),
                context.trace_id(),
                span.parent_span_id,
                span.links.links.len(),
            );
        }
        Ok(())
    }
}
