//! Two handles on one claim would settle it twice.

use alkstore_core::{Job, Result};

async fn twice(mut job: Job) -> Result<()> {
    let mut again = job.clone();
    job.ack().await?;
    again.ack().await
}

fn main() {}
