//! The progress bar, and lines above it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

#[derive(Debug)]
pub(crate) struct Screen(pub(crate) ProgressBar);

impl Screen {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        let template = "{spinner} {bar:32} {pos}/{len} settled  {msg}  {elapsed}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(crate) fn begin(&self, deliveries: u64) {
        self.0.set_length(deliveries);
        self.0.enable_steady_tick(Duration::from_millis(100));
    }

    pub(crate) fn show(&self, settled: u64, message: String) {
        self.0.set_position(settled);
        self.0.set_message(message);
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, line: &str) {
        if self.0.is_hidden() {
            println!("{line}");
        } else {
            self.0.println(line);
        }
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
