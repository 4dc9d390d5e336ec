//! Other processes: a test runs itself again as each of them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

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

/// A process of its own; it ends with this, whatever ends the test.
pub(crate) struct Other(pub(crate) Child);

impl Other {
    #[expect(clippy::expect_used, reason = "without it there is no test")]
    pub(crate) fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("another process"))
    }

    /// Ends it by `kill -9`, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}
