//! The way of one delivery: an HTTP request, and what came of it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use alkstore::prelude::*;
use axum::body::Body;
use axum::http::{Request, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::receiver::{DELIVERY_HEADER, EVENT_HEADER, KEY_HEADER};

/// How long a courier waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What became of a delivery, as its couriers saw it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tried {
    pub(crate) attempts: u32,
    /// The receiver said in time that it took the delivery.
    pub(crate) confirmed: bool,
}

/// Shared by all workers.
#[derive(Debug)]
pub(crate) struct Courier {
    client: Client<HttpConnector, Body>,
    uri: Uri,
    tried: Mutex<HashMap<JobId, Tried>>,
}

impl Courier {
    pub(crate) fn new(uri: Uri) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, uri, tried: Mutex::default() }
    }

    /// Any error is tried again by the outbox, as long as attempts are left.
    pub(crate) async fn deliver(&self, delivery: Delivery) -> Result<(), String> {
        self.tried().entry(delivery.id()).or_default().attempts += 1;
        let request = self.request(&delivery).map_err(|error| error.to_string())?;
        let answer = tokio::time::timeout(PATIENCE, self.client.request(request))
            .await
            .map_err(|_| format!("no answer within {PATIENCE:?}"))?
            .map_err(|error| format!("no answer: {error}"))?;
        match answer.status() {
            StatusCode::OK => {
                self.tried().entry(delivery.id()).or_default().confirmed = true;
                Ok(())
            }
            status => Err(format!("the receiver answered {status}")),
        }
    }

    fn request(&self, delivery: &Delivery) -> Result<Request<Body>, axum::http::Error> {
        let header = |name| delivery.headers().get(name).unwrap_or_default();
        Request::post(&self.uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header(KEY_HEADER, delivery.id().to_string())
            .header(EVENT_HEADER, header("event"))
            .header(DELIVERY_HEADER, header("delivery"))
            .body(Body::from(delivery.payload().as_str().to_owned()))
    }

    pub(crate) fn tried(&self) -> MutexGuard<'_, HashMap<JobId, Tried>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
