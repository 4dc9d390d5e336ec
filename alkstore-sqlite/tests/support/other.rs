//! Another process that a test started.

use std::process::{Child, Command};

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
