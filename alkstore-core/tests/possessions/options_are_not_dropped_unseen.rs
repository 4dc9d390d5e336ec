//! A setter returns what it has set.

#![deny(unused_must_use)]

use alkstore_core::EnqueueOpts;

fn main() {
    let opts = EnqueueOpts::new();
    opts.priority(7);
}
