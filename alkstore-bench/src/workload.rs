//! What is measured, and what is asked of it.

use std::future::Future;
use std::pin::Pin;

use crate::measure::Reading;

type Run = Box<dyn Fn() -> Pin<Box<dyn Future<Output = anyhow::Result<Reading>>>>>;

pub struct Workload {
    pub name: &'static str,
    pub run: Run,
    /// 0 is a current-thread runtime.
    pub worker_threads: usize,
    /// Whether it talks to a server.
    pub network: bool,
    pub target: Option<Target>,
}

/// What a workload has to reach.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// At least this rate.
    PerSecond(f64),
    /// At most this: microseconds, or times as long.
    AtMost(f64),
    /// At least this part of what another workload of the same round reached.
    NotBelow(f64, &'static str),
}

pub fn workload<F>(name: &'static str, run: impl Fn() -> F + 'static) -> Workload
where
    F: Future<Output = anyhow::Result<Reading>> + 'static,
{
    let run = Box::new(move || -> Pin<Box<dyn Future<Output = _>>> { Box::pin(run()) });
    Workload { name, run, worker_threads: 0, network: false, target: None }
}

impl Workload {
    pub fn on_four_threads(mut self) -> Self {
        self.worker_threads = 4;
        self
    }

    pub fn on_network(mut self) -> Self {
        self.network = true;
        self
    }

    pub fn target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Runs once, on a runtime of its own.
    pub fn measure(&self) -> anyhow::Result<Reading> {
        let mut builder = match self.worker_threads {
            0 => tokio::runtime::Builder::new_current_thread(),
            threads => {
                let mut builder = tokio::runtime::Builder::new_multi_thread();
                builder.worker_threads(threads);
                builder
            }
        };
        if self.network {
            builder.enable_all();
        }
        builder.enable_time().build()?.block_on((self.run)())
    }
}
