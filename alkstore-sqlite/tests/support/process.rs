//! Other processes: a test runs itself again as each of them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What tells a process that it is one of the others, and on which file.
const FILE: &str = "ALKSTORE_TEST_FILE";

/// The file, where this process is one of the others.
pub(crate) fn file() -> Option<PathBuf> {
    std::env::var_os(FILE).map(Into::into)
}

/// The command that runs a test of this program again, in a process of its own.
#[expect(clippy::expect_used, reason = "without it there is no test")]
pub(crate) fn command(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FILE, path)
        .stdout(std::process::Stdio::null());
    command
}
