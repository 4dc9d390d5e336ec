//! What all stores that this process has open on one file share: one writer, a few readers, and
//! who waits for what.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use alkstore_core::{Error, Result};
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::watch;

use crate::acquire::Returns;
use crate::notify::{self, Listeners};
use crate::queue::Ids;
use crate::reader::Readers;
use crate::sql::{Failure, Outcome};
use crate::store::Durability;
use crate::wake::{Effects, Topics};
use crate::writer::Writer;
use crate::{migrate, watch as directory};

/// Every file that this process has open.
static OPEN: Mutex<Option<HashMap<PathBuf, Arc<Hub>>>> = Mutex::new(None);

/// Files are opened one after the other.
static OPENING: Mutex<()> = Mutex::new(());

pub(crate) struct Hub {
    pub(crate) path: PathBuf,
    identity: Identity,
    pub(crate) writer: Writer,
    pub(crate) readers: Arc<Readers>,
    pub(crate) topics: Mutex<Topics>,
    pub(crate) listeners: Mutex<Listeners>,
    pub(crate) returns: Returns,
    /// How many transactions were committed.
    pub(crate) commits: AtomicU64,
    pub(crate) ids: Ids,
    broken: OnceLock<String>,
    /// Some store wants its commits on the disk.
    is_full: AtomicBool,
    running: Mutex<Running>,
    ended: watch::Receiver<()>,
}

/// What runs while a store is open on the file.
struct Running {
    stores: usize,
    /// How durable each of them wants its commits.
    full: usize,
    /// Held by every thread too: all have ended when it is gone.
    alive: Option<Arc<watch::Sender<()>>>,
    watcher: Option<::notify::RecommendedWatcher>,
    writer: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Which file a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    /// Looks without opening anything.
    fn of(path: &Path) -> std::io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            Ok(Self(metadata.dev(), metadata.ino()))
        }
        #[cfg(not(unix))]
        {
            Ok(Self(u64::from(metadata.is_file()), 0))
        }
    }
}

/// The one name of a file that may not be there yet.
fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    if let Ok(path) = std::fs::canonicalize(path) {
        return Ok(path);
    }
    let name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(std::fs::canonicalize(directory)?.join(name))
}

impl Hub {
    /// What is shared on a file, made where this is the first store on it. Blocks.
    pub(crate) fn enter(path: &Path, durability: Durability) -> Result<Arc<Self>> {
        let _one_by_one = OPENING.lock();
        let path = resolved(path).map_err(|error| Error::Engine {
            message: format!(
                "{} can't be opened: its directory has to exist and to be accessible",
                path.display()
            ),
            source: Some(Box::new(error)),
        })?;
        if path.is_dir() {
            let expected = "the path of a file, which a directory isn't";
            return Err(Error::invalid_argument("path", path.display(), expected));
        }
        let known = OPEN.lock().get_or_insert_default().get(&path).cloned();
        if let Some(hub) = known
            && hub.check_file().is_ok()
            && hub.join(durability)
        {
            return Ok(hub);
        }
        let conn =
            migrate::writer(&path, durability).map_err(|failure| failure.into_error(&path))?;
        let hub = Self::start(path, conn, durability)?;
        OPEN.lock().get_or_insert_default().insert(hub.path.clone(), hub.clone());
        Ok(hub)
    }

    fn start(path: PathBuf, conn: Connection, durability: Durability) -> Result<Arc<Self>> {
        let identity = Identity::of(&path).map_err(|error| Error::Engine {
            message: format!("{} is gone", path.display()),
            source: Some(Box::new(error)),
        })?;
        let (alive, ended) = watch::channel(());
        let alive = Arc::new(alive);
        let hub = Arc::new_cyclic(|weak| Self {
            identity,
            writer: Writer::default(),
            readers: Readers::new(&path),
            topics: Mutex::default(),
            listeners: Mutex::default(),
            returns: Returns::default(),
            commits: AtomicU64::new(0),
            ids: Ids::default(),
            broken: OnceLock::new(),
            is_full: AtomicBool::new(durability == Durability::Full),
            running: Mutex::new(Running {
                stores: 1,
                full: usize::from(durability == Durability::Full),
                alive: Some(alive.clone()),
                watcher: directory::watch(&path, weak.clone()),
                writer: None,
            }),
            ended,
            path,
        });
        let watched = hub.running.lock().watcher.is_some();
        let thread = Writer::start(hub.clone(), conn, watched, alive)?;
        hub.running.lock().writer = Some(thread);
        Ok(hub)
    }

    /// One store more, unless the last one is just leaving.
    fn join(&self, durability: Durability) -> bool {
        let mut running = self.running.lock();
        if running.stores == 0 {
            return false;
        }
        running.stores += 1;
        running.full += usize::from(durability == Durability::Full);
        self.is_full.store(running.full > 0, Ordering::SeqCst);
        true
    }

    /// One store less; with the last one everything ends.
    pub(crate) fn leave(self: &Arc<Self>, durability: Durability) {
        let watcher = {
            let mut running = self.running.lock();
            running.stores -= 1;
            running.full -= usize::from(durability == Durability::Full);
            self.is_full.store(running.full > 0, Ordering::SeqCst);
            if running.stores > 0 {
                drop(running);
                // A transaction of the store that leaves may hold the writer.
                self.writer.look();
                return;
            }
            running.alive = None;
            running.watcher.take()
        };
        if let Some(open) = &mut *OPEN.lock()
            && open.get(&self.path).is_some_and(|hub| Arc::ptr_eq(hub, self))
        {
            open.remove(&self.path);
        }
        drop(watcher);
        self.readers.close();
        self.writer.close();
    }

    /// Whether the last store has left.
    pub(crate) fn is_left(&self) -> bool {
        self.running.lock().stores == 0
    }

    /// Ends once every thread has.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
        let writer = self.running.lock().writer.take();
        if let Some(thread) = writer {
            // It has let go of everything, and is about to return; a panic was heard by whoever
            // waited for the answer.
            let _ = thread.join();
        }
    }

    /// How durable commits are: as the most careful of the stores wants them.
    pub(crate) fn durability(&self) -> Durability {
        if self.is_full.load(Ordering::SeqCst) { Durability::Full } else { Durability::Normal }
    }

    /// What keeps [`ended`](Self::ended) waiting; nothing where all is ending.
    pub(crate) fn alive(&self) -> Option<Arc<watch::Sender<()>>> {
        self.running.lock().alive.clone()
    }

    /// An error where the file can't be used any longer.
    pub(crate) fn usable(&self) -> Result<()> {
        match self.broken.get() {
            None => Ok(()),
            Some(message) => Err(Error::engine(message.clone())),
        }
    }

    /// An error where the path doesn't lead to the file that was opened: writes would go nowhere.
    pub(crate) fn check_file(&self) -> Result<()> {
        self.usable()?;
        match Identity::of(&self.path) {
            Ok(found) if found == self.identity => return Ok(()),
            Ok(_) => self.give_up("was replaced while it was open"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.give_up("was deleted while it was open");
            }
            Err(error) => self.give_up(&format!("can't be found any longer: {error}")),
        }
        self.usable()
    }

    /// From here on every call fails and every listener has ended.
    fn give_up(&self, what: &str) {
        let message = format!("{} {what}; close the store and open it again", self.path.display());
        if self.broken.set(message).is_ok() {
            self.wake_everyone();
            notify::end_all(self);
        }
    }

    /// The error as a caller hears it. Damage is remembered.
    pub(crate) fn error(&self, failure: Failure) -> Error {
        let damaged =
            matches!(failure.code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase));
        let error = failure.into_error(&self.path);
        if damaged {
            self.give_up("is damaged");
        }
        error
    }

    /// Tells what a commit changed.
    pub(crate) fn fire(&self, conn: &Connection, effects: &Effects) {
        self.wake(effects);
        if effects.messages {
            self.deliver(conn);
        }
    }

    /// Somebody else has committed something.
    pub(crate) fn fire_everything(&self, conn: &Connection) {
        self.wake_everyone();
        self.deliver(conn);
    }

    fn deliver(&self, conn: &Connection) {
        if let Err(failure) = notify::deliver(conn, self) {
            // The next delivery begins where this one ended; damage ends the listeners.
            drop(self.error(failure));
        }
    }

    /// A short read, on the caller's own thread.
    pub(crate) fn read_here<T>(
        &self,
        read: impl FnOnce(&Connection) -> Outcome<T>,
    ) -> std::result::Result<T, Failure> {
        self.readers.here(read)
    }

    /// Whether a connection is open on this very file.
    pub(crate) fn is_file_of(&self, conn: &Connection) -> bool {
        conn.path().is_some_and(|path| {
            Identity::of(Path::new(path)).is_ok_and(|found| found == self.identity)
        })
    }
}
