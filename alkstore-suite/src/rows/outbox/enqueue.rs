//! What goes into an outbox, alone and in a transaction.

use std::time::Duration;

use alkstore_core::{Error, Headers, JobFilter, OutboxOpts, StoreExt, Timestamp};

use super::{Courier, assert_untouched, deliver, outbox, put, record, secs};
use crate::cx::Cx;
use crate::factory::OpenOptions;

pub(crate) async fn o2_a_delivery_is_stamped_for_an_outbox(cx: Cx) {
    let id = put(&cx.store, "hello").await;
    let record = record(&cx.store, id).await;
    assert_eq!(record.visibility_timeout, secs(60));
    assert_eq!((record.max_attempts, record.retry_base), (5, secs(5)));
    assert_eq!((record.dead_retention, record.expires_at), (None, None));
    assert_eq!((record.priority, record.unique_key.as_deref()), (0, None));
    assert_eq!(Timestamp::from(record.enqueued_at), cx.now().await);
    assert_untouched(&record);
}

pub(crate) async fn o2_a_staged_delivery_is_stamped_alike(cx: Cx) {
    let mails = outbox(&cx.store);
    let mut tx = cx.store.begin_tx().await.unwrap();
    let id = mails.enqueue_tx(&mut tx, &1, OutboxOpts::new()).await.unwrap();
    tx.commit().await.unwrap();
    let record = record(&cx.store, id).await;
    assert_eq!(record.visibility_timeout, secs(60));
    assert_eq!((record.max_attempts, record.retry_base), (5, secs(5)));
    assert_eq!(record.dead_retention, None);
}

pub(crate) async fn o3_max_attempts_is_what_a_delivery_may_override(cx: Cx) {
    let mails = outbox(&cx.store);
    let id = mails.enqueue(&1, OutboxOpts::new().max_attempts(9)).await.unwrap();
    let record = record(&cx.store, id).await;
    assert_eq!((record.max_attempts, record.visibility_timeout), (9, secs(60)));
    assert_eq!(record.retry_base, secs(5));
    let none = mails.enqueue(&1, OutboxOpts::new().max_attempts(0)).await;
    assert!(
        matches!(none, Err(Error::InvalidArgument { argument: "max_attempts", .. })),
        "{none:?}"
    );
    assert_eq!(mails.jobs(JobFilter::new()).await.unwrap().len(), 1, "nothing was added");
}

pub(crate) async fn o3_a_delayed_delivery_waits(cx: Cx) {
    let mails = outbox(&cx.store);
    let id = mails.enqueue(&1, OutboxOpts::new().delay(secs(30))).await.unwrap();
    let far = mails.enqueue(&1, OutboxOpts::new().delay(Duration::MAX)).await.unwrap();
    let due = cx.now().await.plus(secs(30));
    assert_eq!(Timestamp::from(record(&cx.store, id).await.ready_at), due);
    assert_eq!(Timestamp::from(record(&cx.store, far).await.ready_at), Timestamp::FAR_AWAY);
    cx.advance(Duration::from_millis(29_999)).await;
    assert!(!deliver(&cx.store).await.unwrap());
    cx.advance(Duration::from_millis(1)).await;
    assert!(deliver(&cx.store).await.unwrap());
    assert!(!deliver(&cx.store).await.unwrap());
}

pub(crate) async fn o3_headers_travel_with_a_delivery(cx: Cx) {
    let mails = outbox(&cx.store);
    let headers = Headers::new([("traceparent", "00-1"), ("b", "")]).unwrap();
    let opts = OutboxOpts::new().headers(headers.clone());
    let id = mails.enqueue(&1, opts).await.unwrap();
    assert_eq!(record(&cx.store, id).await.headers, headers);
    let mut seen = None;
    let delivery = |delivery: alkstore_core::Delivery| {
        seen = Some(delivery.headers().clone());
        async { Ok::<_, String>(()) }
    };
    assert!(mails.run_once("w", delivery).await.unwrap());
    assert_eq!(seen, Some(headers));
}

pub(crate) async fn o3_a_payload_is_held_to_the_limit_of_the_store(cx: Cx) {
    let small = cx.open(OpenOptions { payload_limit: Some(10), ..OpenOptions::default() }).await;
    let mails = outbox(&small);
    let result = mails.enqueue(&"123456789", OutboxOpts::new()).await;
    assert!(matches!(result, Err(Error::PayloadTooLarge { size: 11, limit: 10 })), "{result:?}");
    let mut tx = small.begin_tx().await.unwrap();
    let result = mails.enqueue_tx(&mut tx, &"123456789", OutboxOpts::new()).await;
    assert!(matches!(result, Err(Error::PayloadTooLarge { size: 11, limit: 10 })), "{result:?}");
    mails.enqueue_tx(&mut tx, &"12345678", OutboxOpts::new()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(mails.stats().await.unwrap().ready, 1);
}

pub(crate) async fn o24_a_staged_delivery_begins_at_the_commit(cx: Cx) {
    let mails = outbox(&cx.store);
    let mut courier = Courier::start(&cx, &cx.second().await);
    let mut tx = cx.store.begin_tx().await.unwrap();
    let id = mails.enqueue_tx(&mut tx, &"staged", OutboxOpts::new()).await.unwrap();
    let elsewhere = outbox(&cx.second().await);
    assert!(elsewhere.get_job(id).await.unwrap().is_none(), "nobody else sees it yet");
    assert!(courier.rests(&cx).await);
    tx.commit().await.unwrap();
    assert_eq!(courier.deliver(&cx).await, "staged");
    courier.stop().await.unwrap();
}

pub(crate) async fn o24_a_rolled_back_delivery_never_was(cx: Cx) {
    let mails = outbox(&cx.store);
    for dropped in [false, true] {
        let mut tx = cx.store.begin_tx().await.unwrap();
        mails.enqueue_tx(&mut tx, &"staged", OutboxOpts::new()).await.unwrap();
        if dropped {
            drop(tx);
        } else {
            tx.rollback().await.unwrap();
        }
        assert!(!deliver(&cx.store).await.unwrap());
        assert_eq!(mails.jobs(JobFilter::new()).await.unwrap(), []);
    }
}

pub(crate) async fn o24_the_instants_of_a_staged_delivery_are_those_of_the_call(cx: Cx) {
    let mails = outbox(&cx.store);
    let mut tx = cx.store.begin_tx().await.unwrap();
    let staged = cx.now().await;
    let opts = OutboxOpts::new().delay(secs(10)).max_attempts(2);
    let id = mails.enqueue_tx(&mut tx, &1, opts).await.unwrap();
    cx.advance(secs(4)).await;
    tx.commit().await.unwrap();
    let record = record(&cx.store, id).await;
    assert_eq!(Timestamp::from(record.enqueued_at), staged);
    assert_eq!(Timestamp::from(record.ready_at), staged.plus(secs(10)));
    assert_eq!(record.max_attempts, 2);
}

pub(crate) async fn o24_a_transaction_of_another_store_is_refused(cx: Cx) {
    let mut tx = cx.second().await.begin_tx().await.unwrap();
    let result = outbox(&cx.store).enqueue_tx(&mut tx, &1, OutboxOpts::new()).await;
    assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
    tx.commit().await.unwrap();
    assert_eq!(outbox(&cx.store).jobs(JobFilter::new()).await.unwrap(), []);
}

pub(crate) async fn o24_bad_options_stage_nothing(cx: Cx) {
    let mails = outbox(&cx.store);
    let mut tx = cx.store.begin_tx().await.unwrap();
    let result = mails.enqueue_tx(&mut tx, &1, OutboxOpts::new().max_attempts(0)).await;
    assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
    tx.commit().await.unwrap();
    assert_eq!(mails.jobs(JobFilter::new()).await.unwrap(), []);
}
