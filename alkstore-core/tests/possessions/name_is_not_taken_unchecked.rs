//! An engine takes names that were parsed.

use alkstore_core::{JobId, JobRecord, QueueStore, Result};

async fn unchecked(engine: &dyn QueueStore, id: JobId) -> Result<Option<JobRecord>> {
    engine.find_job("emails", id).await
}

fn main() {}
