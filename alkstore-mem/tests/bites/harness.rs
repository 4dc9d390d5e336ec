//! Runs the rows on a broken engine and tells a rule that bites from a fault that stumbles.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use alkstore_core::{BoxFuture, Result, Store, StoreId, Timestamp, async_trait};
use alkstore_suite::fault::{Layer, layered};
use alkstore_suite::{Capabilities, Data, OpenOptions, ROWS, Row, StoreFactory};
use futures_util::FutureExt;
use parking_lot::Mutex;

use crate::support;

/// How long a row may wait for what has to happen on a broken engine: a wake that is lost isn't
/// waited for long.
pub(crate) const SHORT: Duration = Duration::from_millis(600);

/// How long on a whole one, however busy the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A row that neither ends nor loses its patience hangs: its rule is broken as well.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// Most of a row's time is waiting.
const THREADS: usize = 8;

/// Makes the layer of a broken engine over fresh data; the clock is the data's.
pub(crate) type MakeLayer = fn(Arc<Noted>) -> Arc<dyn Layer>;

/// How a row ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It holds.
    Held,
    /// It fails by an assertion of its own, or hangs.
    Caught(String),
    /// Something outside of the suite panicked: that says nothing about the rule.
    Stumbled(String),
}

struct BrokenFactory {
    inner: Arc<dyn StoreFactory>,
    make: MakeLayer,
    patience: Duration,
}

#[async_trait]
impl StoreFactory for BrokenFactory {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn fresh(&self) -> Arc<dyn Data> {
        let inner = Arc::new(Noted { inner: self.inner.fresh().await, options: Mutex::default() });
        let layer = (self.make)(inner.clone());
        Arc::new(BrokenData { inner, layer })
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.inner.spawn(future);
    }

    async fn sleep(&self, duration: Duration) {
        self.inner.sleep(duration).await;
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

/// The data beneath a layer, with the options of each store on them.
pub(crate) struct Noted {
    inner: Arc<dyn Data>,
    options: Mutex<HashMap<StoreId, OpenOptions>>,
}

impl Noted {
    /// How a store was opened.
    pub(crate) fn options(&self, store: StoreId) -> OpenOptions {
        let options = self.options.lock();
        options.get(&store).copied().unwrap_or_default()
    }
}

#[async_trait]
impl Data for Noted {
    async fn open(&self, options: OpenOptions) -> Result<Arc<dyn Store>> {
        let store = self.inner.open(options).await?;
        let mut noted = self.options.lock();
        noted.insert(store.store_id(), options);
        Ok(store)
    }

    async fn advance(&self, by: Duration) {
        self.inner.advance(by).await;
    }

    async fn now(&self) -> Timestamp {
        self.inner.now().await
    }
}

struct BrokenData {
    inner: Arc<Noted>,
    layer: Arc<dyn Layer>,
}

#[async_trait]
impl Data for BrokenData {
    async fn open(&self, options: OpenOptions) -> Result<Arc<dyn Store>> {
        Ok(layered(self.inner.open(options).await?, self.layer.clone()))
    }

    async fn advance(&self, by: Duration) {
        self.inner.advance(by).await;
    }

    async fn now(&self) -> Timestamp {
        self.inner.now().await
    }
}

thread_local! {
    /// Where this thread panicked, since a row began on it.
    static PANICS: RefCell<Vec<(String, String)>> = const { RefCell::new(Vec::new()) };
}

/// Notes where a panic happens instead of printing it.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let running = std::thread::current().name() == Some("rows");
            if !running {
                return print(info);
            }
            let place = info.location().map(|place| (place.file().to_owned(), place.line()));
            let (file, line) = place.unwrap_or_default();
            let text = info.payload_as_str().unwrap_or("a panic without text");
            let first = text.lines().next().unwrap_or_default();
            PANICS.with_borrow_mut(|panics| panics.push((format!("{file}:{line}"), first.into())));
        }));
    });
}

fn run_row(row: &Row, engine: &Broken) -> Outcome {
    PANICS.with_borrow_mut(Vec::clear);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime is built");
    let outcome = runtime.block_on(async {
        let factory = BrokenFactory {
            inner: Arc::new(support::MemFactory),
            make: engine.make,
            patience: engine.patience,
        };
        let row = AssertUnwindSafe(alkstore_suite::run(row.name, Arc::new(factory)));
        tokio::time::timeout(engine.patience + HANGS_AFTER, row.catch_unwind()).await
    });
    // What the row left running ends here.
    drop(panic::catch_unwind(AssertUnwindSafe(|| drop(runtime))));
    match outcome {
        Ok(Ok(())) => Outcome::Held,
        Err(_) => Outcome::Caught("it hangs".into()),
        Ok(Err(_)) => {
            let panics = PANICS.with_borrow(Clone::clone);
            match panics.iter().find(|(file, _)| !file.contains("alkstore-suite")) {
                Some((place, text)) => Outcome::Stumbled(format!("{place}: {text}")),
                None => {
                    let (place, text) = panics.last().cloned().unwrap_or_default();
                    Outcome::Caught(format!("{place}: {text}"))
                }
            }
        }
    }
}

/// How the rows that were run ended on one engine, in the order of the rows.
pub(crate) type Verdict = Vec<(&'static str, Outcome)>;

/// An engine that breaks one rule.
pub(crate) struct Broken {
    /// Which.
    pub(crate) name: &'static str,
    /// The mechanisms whose rows are all run on it, by the letter that their rules begin with.
    pub(crate) mechanisms: &'static str,
    /// How long a row waits on it.
    pub(crate) patience: Duration,
    /// How.
    pub(crate) make: MakeLayer,
    /// The rows that have to fail on it.
    pub(crate) rows: &'static [&'static str],
}

impl Broken {
    /// Of the mechanisms that it doesn't touch one row in so many is run, unless all are asked for.
    const SAMPLE: usize = 10;

    fn is_judged_by(&self, n: usize, row: &Row) -> bool {
        n.is_multiple_of(Self::SAMPLE)
            || self.mechanisms.contains(&row.rule()[..1])
            || self.rows.contains(&row.name)
            || std::env::var_os("ALKSTORE_BITES_ALL").is_some()
    }
}

/// Runs the rows on every engine.
pub(crate) fn run_all(engines: &[Broken]) -> Vec<Verdict> {
    note_panics();
    let runs: Vec<(usize, &Row)> = engines
        .iter()
        .enumerate()
        .flat_map(|(n, engine)| {
            let rows = ROWS.iter().enumerate();
            let judges = rows.filter(move |(k, row)| engine.is_judged_by(n + k, row));
            judges.map(move |(_, row)| (n, row))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let slots: Vec<Mutex<Outcome>> = runs.iter().map(|_| Mutex::new(Outcome::Held)).collect();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            std::thread::Builder::new()
                .name("rows".into())
                .spawn_scoped(scope, || {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((n, row)) = runs.get(at) else { return };
                        let outcome = run_row(row, &engines[*n]);
                        *slots[at].lock() = outcome;
                    }
                })
                .expect("a thread starts");
        }
    });
    let mut verdicts: Vec<Verdict> = engines.iter().map(|_| Vec::new()).collect();
    for ((n, row), slot) in runs.into_iter().zip(slots) {
        verdicts[n].push((row.name, slot.into_inner()));
    }
    verdicts
}
