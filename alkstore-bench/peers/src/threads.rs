//! Loops of threads, as a blocking driver wants them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alkstore_bench::handles::WHILE;
use alkstore_bench::measure::{Reading, now};

/// Repeats a step for a while, in so many threads at once, and counts what the steps say.
pub fn repeat(
    threads: usize,
    step: impl Fn() -> anyhow::Result<u64> + Sync,
) -> anyhow::Result<Reading> {
    let start = now();
    let run = || {
        let mut count = 0;
        while start.elapsed() < WHILE {
            count += step()?;
        }
        anyhow::Ok(count)
    };
    let count = together(threads, run)?;
    Ok(Reading::Rate { count, took: start.elapsed() })
}

/// Runs something in so many threads and adds up what they say.
pub fn together(
    threads: usize,
    run: impl Fn() -> anyhow::Result<u64> + Sync,
) -> anyhow::Result<u64> {
    if threads == 1 {
        return run();
    }
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(&run)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
            .sum()
    })
}

/// Fills and drains again and again, and counts the draining.
pub fn drain(
    workers: usize,
    fill: impl Fn() -> anyhow::Result<()>,
    work: impl Fn() -> anyhow::Result<u64> + Sync,
) -> anyhow::Result<Reading> {
    let (mut count, mut took) = (0, Duration::ZERO);
    while took < WHILE {
        fill()?;
        let start = now();
        count += together(workers, &work)?;
        took += start.elapsed();
    }
    Ok(Reading::Rate { count, took })
}

/// Producers and workers side by side until everything is done; a worker is told by `true` that
/// no more will come.
pub fn pipeline(
    producers: usize,
    enqueue: impl Fn() -> anyhow::Result<u64> + Sync,
    work: impl Fn(&dyn Fn() -> bool, &AtomicU64) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Reading> {
    let (done, all) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let is_over = || done.load(Ordering::SeqCst) >= all.load(Ordering::SeqCst);
    let start = now();
    std::thread::scope(|scope| {
        let working: Vec<_> = (0..4).map(|_| scope.spawn(|| work(&is_over, &done))).collect();
        let Reading::Rate { count, .. } = repeat(producers, &enqueue)? else {
            anyhow::bail!("a rate was expected")
        };
        all.store(count, Ordering::SeqCst);
        for thread in working {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(Reading::Rate { count, took: start.elapsed() })
    })
}

#[allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
