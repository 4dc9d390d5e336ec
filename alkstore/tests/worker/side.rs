//! What runs beside the queues.

use alkstore::Maintenance;
use alkstore::prelude::*;
use alkstore_core::MaintenancePage;
use alkstore_suite::fault::{Layer, layered};
use async_trait::async_trait;

use crate::stage::{Log, Run, Stage, numbered, on_every_engine, secs};

#[tokio::test]
async fn schedules_fire_inside_of_workers_and_one_leads() {
    on_every_engine(async |stage: Stage| {
        let opts = ScheduleOpts::new();
        stage.store.schedule("s", "@every 1m", "reports", &7, opts).await.unwrap();
        let log = Log::new();
        let worker = |store: &_, name: &'static str| {
            let log = log.clone();
            let handler = move |job: JobContext, _: u32| {
                log.add((name, job.headers().get("alkstore-boundary").map(str::to_owned)));
                async {}
            };
            Run::start(Worker::builder(store).queue("reports", handler).schedules(true))
        };
        let first = worker(&stage.store, "first");
        stage.until(async || stage.store.locks().await.unwrap().len() == 1).await;
        let second = worker(&stage.second().await, "second");
        for boundary in 1..=3 {
            stage.settle().await;
            stage.advance_slowly(secs(60)).await;
            stage.advancing_slowly(secs(1), async || log.len() >= boundary).await;
        }
        // Led by the first; the second takes over at once.
        first.stop(&stage).await.unwrap();
        stage.until(async || stage.store.locks().await.unwrap().len() == 1).await;
        stage.settle().await;
        stage.advance_slowly(secs(60)).await;
        stage.advancing_slowly(secs(1), async || log.len() >= 4).await;
        let entries = log.entries();
        assert_eq!((entries.len(), entries[3].0), (4, "second"));
        let mut boundaries: Vec<_> = entries.into_iter().filter_map(|entry| entry.1).collect();
        boundaries.sort();
        boundaries.dedup();
        assert_eq!(boundaries.len(), 4, "none fired twice");
        second.stop(&stage).await.unwrap();
        assert!(stage.store.locks().await.unwrap().is_empty());
    })
    .await;
}

/// Writes down the pages.
struct Pages(Log<MaintenancePage>);

#[async_trait]
impl Layer for Pages {
    async fn maintain_page(&self, inner: &dyn Store) -> Result<MaintenancePage> {
        let page = inner.maintain_page().await?;
        self.0.add(page);
        Ok(page)
    }
}

#[tokio::test]
async fn maintenance_sweeps_in_pages() {
    on_every_engine(async |stage: Stage| {
        let opts = QueueOpts::new().dead_retention(secs(3_600));
        let queue = stage.store.queue_with("q", opts).unwrap();
        let jobs = numbered(0..2_500).into_iter();
        let expiring = jobs.map(|job| job.opts(EnqueueOpts::new().expires(secs(10))));
        queue.enqueue_many(expiring.collect()).await.unwrap();
        let pages = Log::new();
        let store = layered(stage.store.clone(), Pages(pages.clone()));
        let run = Run::start(Worker::builder(&store).maintain_every(secs(20)));
        let sum = |of: fn(&Maintenance) -> u64| {
            pages.entries().iter().map(|page: &MaintenancePage| of(&page.done)).sum::<u64>()
        };
        stage.advancing(secs(1), async || sum(|done| done.expired) == 2_500).await;
        assert!(pages.entries().iter().filter(|page| page.more).count() >= 2, "pages of 1,000");
        assert_eq!(sum(|done| done.purged), 0);
        stage.advancing(secs(60), async || sum(|done| done.purged) == 2_500).await;
        run.stop(&stage).await.unwrap();
    })
    .await;
}
