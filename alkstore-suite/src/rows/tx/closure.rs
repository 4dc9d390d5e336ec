//! `with_tx`.

use std::panic::AssertUnwindSafe;

use alkstore_core::{BoxFuture, EnqueueOpts, Error, StoreExt, Tx};
use futures_util::FutureExt;

use super::{Everything, claimed, jobs, state};
use crate::cx::Cx;

#[derive(Debug)]
enum OrderError {
    SoldOut { left: u32 },
    Store(Error),
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

pub(crate) async fn x10_with_tx_commits_on_ok_and_returns_the_value(cx: Cx) {
    let second = cx.second().await;
    let mut all = Everything::new(&cx.store).await;
    let store = &cx.store;
    let staged = &mut all;
    let value = cx
        .store
        .with_tx(|tx| {
            Box::pin(async move {
                staged.stage(store, tx).await;
                Ok::<_, Error>("value")
            })
        })
        .await
        .unwrap();
    assert_eq!(value, "value");
    assert_eq!(all.seen_by(&second).await, Everything::whole());
}

pub(crate) async fn x11_with_tx_rolls_back_on_err_and_passes_the_callers_own_error(cx: Cx) {
    let second = cx.second().await;
    let mut all = Everything::new(&cx.store).await;
    let store = &cx.store;
    let staged = &mut all;
    let result = cx
        .store
        .with_tx(|tx| {
            Box::pin(async move {
                staged.stage(store, tx).await;
                Err::<(), _>(OrderError::SoldOut { left: 0 })
            })
        })
        .await;
    assert!(matches!(result, Err(OrderError::SoldOut { left: 0 })), "{result:?}");
    assert_eq!(all.seen_by(&second).await, Everything::nothing());
    all.acked.ack().await.unwrap();

    // The store's own error becomes the caller's, and ends it just the same.
    let mut lost = claimed(&cx.store, "q").await;
    lost.ack().await.unwrap();
    let (lost, queue) = (&mut lost, &cx.store.queue("q").unwrap());
    let result: Result<(), OrderError> = cx
        .store
        .with_tx(|tx| {
            Box::pin(async move {
                queue.enqueue_tx(tx, &1, EnqueueOpts::new()).await?;
                lost.ack_tx(tx).await?;
                Ok(())
            })
        })
        .await;
    assert!(matches!(result, Err(OrderError::Store(Error::ClaimLost { .. }))), "{result:?}");
    assert_eq!(jobs(&second, "q").await, 0);
}

fn explode() -> Result<(), Error> {
    panic!("the application's own panic")
}

pub(crate) async fn x12_with_tx_rolls_back_on_a_panic_which_goes_on(cx: Cx) {
    let second = cx.second().await;
    let mut all = Everything::new(&cx.store).await;
    let store = &cx.store;
    let staged = &mut all;
    let outcome = AssertUnwindSafe(cx.store.with_tx(|tx| {
        Box::pin(async move {
            staged.stage(store, tx).await;
            explode()
        })
    }))
    .catch_unwind()
    .await;
    let panic = outcome.expect_err("the panic goes on");
    assert_eq!(panic.downcast_ref(), Some(&"the application's own panic"));
    assert_eq!(all.seen_by(&second).await, Everything::nothing());
    // What it held is free again.
    all.acked.ack().await.unwrap();
    assert_eq!(state(&second, "done", all.acked.id()).await, None);
}

pub(crate) async fn x12_a_panic_before_the_first_await_rolls_back_too(cx: Cx) {
    fn explode_at_once<'t>(_: &'t mut Tx<'_>) -> BoxFuture<'t, Result<(), Error>> {
        panic!("before the first await")
    }
    let outcome = AssertUnwindSafe(cx.store.with_tx(explode_at_once)).catch_unwind().await;
    assert!(outcome.is_err(), "the panic goes on");
    let queue = cx.second().await.queue("q").unwrap();
    queue.enqueue(&1).await.expect("no transaction is left open");
}

pub(crate) async fn x13_the_closure_borrows_from_its_caller(cx: Cx) {
    let names = vec!["ada".to_owned(), "grace".to_owned()];
    let mut ids = Vec::new();
    let queue = cx.store.queue("q").unwrap();
    let (borrowed, filled, to) = (names.as_slice(), &mut ids, &queue);
    cx.store
        .with_tx(|tx| {
            Box::pin(async move {
                for name in borrowed {
                    filled.push(to.enqueue_tx(tx, name, EnqueueOpts::new()).await?);
                }
                Ok::<_, Error>(())
            })
        })
        .await
        .unwrap();
    for (id, name) in ids.iter().zip(&names) {
        let job = queue.get_job(*id).await.unwrap().expect("the job that committed");
        assert_eq!(&job.payload.decode::<String>().unwrap(), name);
    }
    assert_eq!(jobs(&cx.store, "q").await, 2);
}
