//! Rows of docs/architecture/queue.md.

use alkstore_core::StoreExt;

use crate::cx::Cx;

pub(crate) async fn q1_a_job_comes_back_as_it_was_enqueued(cx: Cx) {
    let queue = cx.store.queue("q").unwrap();
    let id = queue.enqueue(&"hello").await.unwrap();
    let mut job = queue.claim("w").await.unwrap().expect("a job is ready");
    assert_eq!(job.id(), id);
    assert_eq!(job.decode::<String>().unwrap(), "hello");
    job.ack().await.unwrap();
    assert!(queue.claim("w").await.unwrap().is_none());
}
