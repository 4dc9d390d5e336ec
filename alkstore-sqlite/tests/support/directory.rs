//! Where the files of tests lie.

use std::path::Path;

use tempfile::TempDir;

/// A directory in memory where there is one: what is tested isn't the disk.
#[expect(clippy::expect_used, reason = "without it there is no test")]
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a directory for the test")
}
