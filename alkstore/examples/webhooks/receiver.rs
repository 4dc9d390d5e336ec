//! The receiver: an HTTP server that fails, stalls and refuses, the same at every run of a seed.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Cli;

/// What identifies a delivery through all its attempts.
pub(crate) const KEY_HEADER: &str = "idempotency-key";
pub(crate) const DELIVERY_HEADER: &str = "x-github-delivery";
pub(crate) const EVENT_HEADER: &str = "x-github-event";

/// How long a stalled answer takes: longer than any courier waits.
const STALL: Duration = Duration::from_secs(4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accept,
    Fail,
    Stall,
    Reject,
}

/// How the receiver is today.
#[derive(Debug, Clone, Copy)]
struct Temper {
    seed: u64,
    fail: u8,
    stall: u8,
    reject: u8,
}

impl Temper {
    fn verdict(&self, delivery: &str, arrival: u32) -> Verdict {
        let percent = |what: &str, arrival: u32| self.roll(delivery, what, arrival) % 100;
        // A rejection has its reason in the delivery, so it is the same at every arrival.
        if percent("reject", 0) < u64::from(self.reject) {
            return Verdict::Reject;
        }
        match percent("answer", arrival) {
            roll if roll < u64::from(self.fail) => Verdict::Fail,
            roll if roll < u64::from(self.fail) + u64::from(self.stall) => Verdict::Stall,
            _ => Verdict::Accept,
        }
    }

    fn latency(&self, delivery: &str, arrival: u32) -> Duration {
        Duration::from_millis(5 + self.roll(delivery, "latency", arrival) % 60)
    }

    /// FNV-1a, so that a seed means the same with every release of Rust.
    fn roll(&self, delivery: &str, what: &str, arrival: u32) -> u64 {
        let parts = [delivery.as_bytes(), what.as_bytes(), &arrival.to_le_bytes()].concat();
        let hash = parts.iter().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        hash ^ (hash >> 32)
    }
}

/// What arrived under one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals {
    pub(crate) requests: u32,
    /// How many of them were taken in, stalled ones included.
    pub(crate) accepted: u32,
    /// The body taken in last.
    pub(crate) body: Bytes,
}

/// What the receiver saw.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) by_key: HashMap<String, Arrivals>,
    pub(crate) failed: u64,
    pub(crate) stalled: u64,
    pub(crate) rejected: u64,
}

#[derive(Debug)]
struct Server {
    temper: Temper,
    seen: Mutex<Seen>,
}

impl Server {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request in or not, and says how long the answer takes.
    fn take(&self, key: &str, delivery: &str, body: Bytes) -> (Verdict, Duration) {
        let mut seen = self.seen();
        let arrivals = seen.by_key.entry(key.to_owned()).or_default();
        arrivals.requests += 1;
        let verdict = self.temper.verdict(delivery, arrivals.requests);
        let latency = self.temper.latency(delivery, arrivals.requests);
        if matches!(verdict, Verdict::Accept | Verdict::Stall) {
            arrivals.accepted += 1;
            arrivals.body = body;
        }
        match verdict {
            Verdict::Accept => {}
            Verdict::Fail => seen.failed += 1,
            Verdict::Stall => seen.stalled += 1,
            Verdict::Reject => seen.rejected += 1,
        }
        (verdict, latency)
    }
}

async fn receive(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(key), Some(delivery)) = (header(KEY_HEADER), header(DELIVERY_HEADER)) else {
        return (StatusCode::BAD_REQUEST, "a delivery says which it is");
    };
    let (verdict, latency) = server.take(key, delivery, body);
    match verdict {
        Verdict::Stall => tokio::time::sleep(STALL).await,
        _ => tokio::time::sleep(latency).await,
    }
    match verdict {
        Verdict::Accept | Verdict::Stall => (StatusCode::OK, "taken"),
        Verdict::Fail => (StatusCode::SERVICE_UNAVAILABLE, "not now"),
        Verdict::Reject => (StatusCode::UNPROCESSABLE_ENTITY, "not this one"),
    }
}

/// The receiver's server, on a port of its own.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) uri: Uri,
    server: Arc<Server>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
}

impl Receiver {
    pub(crate) async fn start(cli: &Cli) -> io::Result<Self> {
        let Cli { seed, fail, stall, reject, .. } = *cli;
        let temper = Temper { seed, fail, stall, reject };
        let server = Arc::new(Server { temper, seen: Mutex::default() });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let uri = format!("http://{}/hooks", listener.local_addr()?);
        let uri = uri.parse().map_err(io::Error::other)?;
        let router = Router::new().route("/hooks", post(receive)).with_state(server.clone());
        let (stop, stopped) = oneshot::channel();
        let serve = axum::serve(listener, router).with_graceful_shutdown(async {
            // A dropped receiver stops as well.
            let _ = stopped.await;
        });
        Ok(Self { uri, server, stop, serving: tokio::spawn(serve.into_future()) })
    }

    pub(crate) fn seen(&self) -> Seen {
        self.server.seen().clone()
    }

    /// Ends the server; nobody waits for an answer any more.
    pub(crate) async fn stop(self) -> io::Result<()> {
        // It may have ended by itself, and then says why.
        let _ = self.stop.send(());
        self.serving.await.map_err(io::Error::other)?
    }
}
