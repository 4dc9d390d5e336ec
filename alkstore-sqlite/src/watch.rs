//! How the commits of other processes, and of the application's own connections, are heard of: the
//! directory is watched, never the files themselves, since to open and close one of those would
//! give up every lock that this process has on it.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use ::notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::hub::Hub;

/// Tells the hub of everything that happens to the file and to those beside it. None where the
/// directory can't be watched: then the hub looks by itself from time to time.
pub(crate) fn watch(path: &Path, hub: Weak<Hub>) -> Option<RecommendedWatcher> {
    let (directory, name) = (path.parent()?, path.file_name()?.to_owned());
    let tell = move |event: ::notify::Result<::notify::Event>| {
        let concerns = match event {
            Ok(event) => !matches!(event.kind, EventKind::Access(_)) && is_of(&event, &name),
            // Something may have been missed.
            Err(_) => true,
        };
        let own = concerns && hub.upgrade().is_some_and(|hub| hub.writer.disturb());
        if own {
            // A busy process would hear of each of its own writes; while nobody listens, the
            // system folds them into one.
            rest();
        }
    };
    let mut watcher = ::notify::recommended_watcher(tell).ok()?;
    watcher.watch(directory, RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// For how long nobody listens after a disturbance that this process may have made itself.
const REST: Duration = Duration::from_millis(1);

#[expect(clippy::disallowed_methods, reason = "on a thread of the watcher's own")]
fn rest() {
    std::thread::sleep(REST);
}

/// Whether an event is about the database, its log or its index.
fn is_of(event: &::notify::Event, name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    event.need_rescan()
        || event
            .paths
            .iter()
            .filter_map(|path| path.file_name())
            .any(|file| file.as_encoded_bytes().starts_with(name))
}
