//! How the commits of other processes, and of the application's own connections, are heard of: the
//! directory is watched, never the files themselves, since to open and close one of those would
//! give up every lock that this process has on it.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Weak;

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
        if concerns && let Some(hub) = hub.upgrade() {
            hub.writer.disturb();
        }
    };
    let mut watcher = ::notify::recommended_watcher(tell).ok()?;
    watcher.watch(directory, RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
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
