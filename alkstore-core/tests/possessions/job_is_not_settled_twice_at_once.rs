//! One settlement at a time.

use alkstore_core::{Job, Result};

async fn both(mut job: Job) -> Result<()> {
    let (acking, failing) = (job.ack(), job.fail("why not"));
    acking.await?;
    failing.await
}

fn main() {}
