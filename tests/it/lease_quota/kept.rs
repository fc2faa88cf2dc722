//! Leases that stay although an attempt of their claim is rolled back, and claims that hold without being counted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join;
use leasehold::domain::{
    Claim, LockNames, Refused, Released, RenewOptions, Renewed, UNCOUNTED_MAX,
};
use leasehold::service::{AcquireOutcome, HoldEvent, LockService};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{LockStore, StoreError};

use super::{hold, is_free, service, within_quota};
use crate::support::eventually;
use crate::support::fixture::{claim, deadline, hold_count, lock_of, reader, ttl};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};
use crate::support::stores;

/// A claim whose token the service made.
fn new_claim() -> Claim {
    Claim {
        has_new_token: true,
        ..claim()
    }
}

fn lasting() -> Claim {
    Claim {
        ttl: ttl(Duration::from_secs(600)),
        ..claim()
    }
}

/// The service for a principal without a quota on the same store.
fn without_quota(store: &Arc<ScriptedStore>) -> LockService {
    stores::service(Arc::clone(store) as Arc<dyn LockStore>)
}

/// The repeated request counts the lease late. Meanwhile it must stay counted, or another claim takes its place.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_repeated_while_its_stream_closes_leaves_no_room() {
    let memory = Arc::new(MemoryStore::new(100_000));
    let there = within_quota(
        &stores::service(Arc::clone(&memory) as Arc<dyn LockStore>),
        1,
    );
    let late = Behavior::Delayed(Duration::from_millis(500));
    let store = ScriptedStore::on(memory).with(Operation::CountLeases, late);
    let here = within_quota(&stores::service(Arc::new(store) as Arc<dyn LockStore>), 1);
    let held = lasting();
    let mut stream = stores::stream_of(&there, Arc::new(held.clone()), Some(Duration::ZERO));
    let acquired = stream.next().await;
    assert!(
        matches!(acquired, Some(HoldEvent::Acquired { .. })),
        "{acquired:?}"
    );
    tokio::time::sleep(UNCOUNTED_MAX + Duration::from_secs(1)).await;
    let repeating = here.acquire(Arc::new(held.clone()), Duration::ZERO);
    let closing = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(stream);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!hold(&there, &claim()).await, "there is no room");
    };
    let (repeated, ()) = join(repeating, closing).await;
    let repeated = repeated.expect("the store answers").outcome;
    assert!(
        matches!(repeated, AcquireOutcome::Granted(_)),
        "{repeated:?}"
    );
}

/// Fails unless the claim still holds and is still counted when an attempt of it has been rolled back.
async fn assert_stays(service: &LockService, store: &ScriptedStore, held: &Claim) {
    eventually("an attempt is rolled back", async || {
        store
            .cleanups()
            .contains(&Operation::Withdraw)
            .then_some(())
    })
    .await;
    service.drain();
    service.clone().shut_down(Duration::from_secs(10)).await;
    assert!(!is_free(store, held).await, "it holds");
    let other = service.acquire(Arc::new(claim()), Duration::ZERO).await;
    let other = other.expect("the store answers").outcome;
    assert!(
        matches!(
            other,
            AcquireOutcome::Refused(Refused::TooManyLeases { .. })
        ),
        "it is counted: {other:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_stream_has_stepped_back_is_counted_when_the_stream_has_closed() {
    let (service, store) = service(1, Behavior::Answered);
    let claim = claim();
    let mut stream = stores::stream_of(&service, Arc::new(claim.clone()), Some(Duration::ZERO));
    let acquired = stream.next().await;
    assert!(
        matches!(acquired, Some(HoldEvent::Acquired { .. })),
        "{acquired:?}"
    );
    let released = service
        .release(
            claim.names.clone(),
            claim.token,
            Some(hold_count(1)),
            |_| {},
        )
        .await;
    let released = released.expect("the store answers");
    assert!(
        matches!(released[..], [Released::SteppedBack(_)]),
        "{released:?}"
    );
    drop(stream);
    assert_stays(&service, &store, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_goes_back_to_an_earlier_request_is_counted() {
    let (service, store) = service(1, Behavior::Answered);
    let claim = claim();
    assert!(hold(&service, &claim).await);
    // Nobody reads what it is granted.
    drop(stores::stream_of(
        &service,
        Arc::new(claim.clone()),
        Some(Duration::ZERO),
    ));
    assert_stays(&service, &store, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_holds_without_being_counted_is_granted_again() {
    let (service, store) = service(1, Behavior::Answered);
    let held = lasting();
    assert!(hold(&without_quota(&store), &held).await);
    assert!(hold(&service, &lasting()).await);
    assert!(!hold(&service, &claim()).await, "the quota is used up");
    assert!(
        !hold(&service, &held).await,
        "its grant may be about to be rolled back"
    );
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(hold(&service, &held).await, "it holds already");
    let wait = Duration::from_secs(1);
    let again = service.acquire(Arc::new(held.clone()), wait).await;
    let again = again.expect("the store answers");
    assert!(again.outcome.kind().is_some(), "{again:?}");
    again.unclaimed.delivered();
}

/// Others must not be refused a lock that this principal may not have.
#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_hold_yet_is_refused_before_it_takes_its_lock() {
    let (service, store) = service(1, Behavior::Answered);
    assert!(hold(&service, &new_claim()).await);
    assert!(!hold(&service, &new_claim()).await);
    let (acquires, polls) = (store.acquires(), store.polls());
    assert!(!hold(&service, &new_claim()).await);
    let waiting = service.acquire(Arc::new(new_claim()), Duration::from_secs(1));
    let refused = waiting.await.expect("the store answers");
    assert!(refused.outcome.kind().is_none(), "{refused:?}");
    assert_eq!((store.acquires(), store.polls()), (acquires, polls));
}

/// A request with the same token that comes meanwhile would make the lease final.
#[tokio::test(start_paused = true)]
async fn a_claim_with_a_token_of_its_client_is_refused_before_it_takes_its_lock_too() {
    let (service, store) = service(1, Behavior::Answered);
    let held = claim();
    assert!(hold(&service, &held).await);
    assert!(!hold(&service, &claim()).await);
    let (acquires, polls) = (store.acquires(), store.polls());
    for wait in [Duration::ZERO, Duration::from_secs(1)] {
        let refused = service.acquire(Arc::new(claim()), wait).await;
        let refused = refused.expect("the store answers").outcome;
        assert!(refused.kind().is_none(), "{refused:?}");
    }
    assert_eq!((store.acquires(), store.polls()), (acquires, polls));

    let other = Claim {
        names: held.names.clone(),
        ..claim()
    };
    let waiting = service.acquire(Arc::new(other), Duration::from_secs(1));
    let outcome = waiting.await.expect("the store answers").outcome;
    assert!(
        matches!(outcome, AcquireOutcome::TimedOut(_)),
        "a claim that has to wait takes nothing: {outcome:?}"
    );
}

/// Others share the lock, so that there is room for it.
#[tokio::test(start_paused = true)]
async fn a_claim_that_could_share_a_lock_is_refused_before_it_takes_its_part() {
    let (service, store) = service(1, Behavior::Answered);
    let others = reader(&claim());
    assert!(hold(&without_quota(&store), &others).await);
    assert!(hold(&service, &claim()).await);
    assert!(!hold(&service, &claim()).await);
    let (acquires, polls) = (store.acquires(), store.polls());
    for wait in [Duration::ZERO, Duration::from_secs(1)] {
        let refused = service.acquire(Arc::new(reader(&others)), wait).await;
        let refused = refused.expect("the store answers").outcome;
        assert!(refused.kind().is_none(), "{refused:?}");
    }
    assert_eq!((store.acquires(), store.polls()), (acquires, polls));
}

/// Streams renew such leases three times within their TTL.
#[tokio::test(start_paused = true)]
async fn a_renewal_of_a_short_lease_does_not_wait_for_the_count_for_long() {
    let (counting, store) = service(1, Behavior::Unanswered);
    let claim = Claim {
        ttl: ttl(Duration::from_millis(200)),
        ..claim()
    };
    assert!(hold(&without_quota(&store), &claim).await);
    let names = claim.names.clone();
    let renewed = counting
        .renew(names, claim.token, RenewOptions::default())
        .await;
    assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
}

/// The request that was granted it may be about to roll it back.
#[tokio::test(start_paused = true)]
async fn a_young_lease_is_not_reported_again_before_it_is_counted() {
    let (counting, store) = service(1, Behavior::Unanswered);
    let claim = lasting();
    assert!(hold(&without_quota(&store), &claim).await);
    let again = counting.acquire(Arc::new(claim.clone()), Duration::ZERO);
    let error = again.await.expect_err("it may be beyond the quota").error;
    assert!(matches!(error, StoreError::Unknown { .. }), "{error:?}");
    assert!(!is_free(&store, &claim).await, "it holds by the first one");
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(hold(&counting, &claim).await, "it is not young any more");
}

fn renewal(lasts: Duration) -> RenewOptions {
    RenewOptions {
        ttl: Some(ttl(lasts)),
        ..RenewOptions::default()
    }
}

/// Of a claim that another principal has, too.
fn on_both(one: &Claim, other: &Claim) -> LockNames {
    let names = [lock_of(one).clone(), lock_of(other).clone()];
    LockNames::several(names.to_vec()).expect("two names")
}

#[tokio::test(start_paused = true)]
async fn a_young_lease_of_another_keeps_no_lease_of_its_renewal_uncounted() {
    let (service, store) = service(1, Behavior::Answered);
    let held = claim();
    assert!(hold(&service, &held).await);
    let other = Claim {
        token: held.token,
        ..claim()
    };
    assert!(hold(&without_quota(&store), &other).await);
    let renewed = service.renew(held.names.clone(), held.token, RenewOptions::default());
    assert!(matches!(renewed.await, Ok(Renewed::Extended(_))));
    let hour = Duration::from_secs(3600);
    let renewed = service.renew(on_both(&held, &other), held.token, renewal(hour));
    let renewed = renewed.await;
    assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
    // Longer than it was granted for.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!is_free(&store, &held).await, "it holds");
    assert!(!hold(&service, &claim()).await, "it is counted");
}

/// The short one leaves less time for an answer than the count needs.
#[tokio::test(start_paused = true)]
async fn how_short_one_lease_of_a_renewal_is_does_not_matter_for_the_others() {
    let late = Behavior::Delayed(Duration::from_millis(30));
    let (service, store) = service(3, late);
    let held = lasting();
    assert!(hold(&service, &held).await);
    tokio::time::sleep(Duration::from_secs(100)).await;
    let short = Claim {
        token: held.token,
        max_hold: Some(Duration::from_millis(700)),
        ..claim()
    };
    assert!(hold(&service, &short).await);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let renewed = service.renew(on_both(&held, &short), held.token, RenewOptions::default());
    let renewed = renewed.await;
    assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
    // Longer than the first grant, but not than the renewal.
    tokio::time::sleep(Duration::from_secs(550)).await;
    assert!(!is_free(&store, &held).await, "it holds");
    let mut more = 0;
    for _ in 0..3 {
        more += usize::from(hold(&service, &lasting()).await);
    }
    assert!(more < 3, "it is counted");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_of_what_nobody_holds_counts_nothing() {
    let (service, _store) = service(1, Behavior::Answered);
    let other = claim();
    let renewed = service
        .renew(
            other.names.clone(),
            other.token,
            renewal(Duration::from_secs(60)),
        )
        .await;
    assert!(matches!(renewed, Ok(Renewed::NotHolder(_))), "{renewed:?}");
    let released = service
        .release(
            other.names.clone(),
            other.token,
            Some(hold_count(1)),
            |_| {},
        )
        .await;
    assert!(
        matches!(released.as_deref(), Ok([Released::NotHolder(_)])),
        "{released:?}"
    );
    assert!(hold(&service, &claim()).await);
}

/// Of a principal without room, each waiter would pass the lock on to the next one, and nobody else could have it.
#[tokio::test(start_paused = true)]
async fn a_waiter_without_room_leaves_the_queue_before_it_is_granted() {
    let (service, store) = service(1, Behavior::Answered);
    let others = without_quota(&store);
    let held = lasting();
    assert!(hold(&others, &held).await);
    let several = on_both(&held, &claim());
    let waiting = [held.names.clone(), several].map(|names| {
        let claim = Claim { names, ..claim() };
        let service = service.clone();
        tokio::spawn(async move {
            let wait = Duration::from_secs(30);
            service.acquire(Arc::new(claim), wait).await
        })
    });
    eventually("both wait", async || {
        let view = store.store.inspect(lock_of(&held), deadline()).await;
        (view.unwrap().queue.length == 2).then_some(())
    })
    .await;
    assert!(hold(&service, &lasting()).await);
    assert!(!hold(&service, &claim()).await);
    let withdrawals = || {
        let cleanups = store.cleanups().into_iter();
        cleanups.filter(|it| *it == Operation::Withdraw).count()
    };
    let before = eventually("it is rolled back", async || {
        (withdrawals() > 0).then(&withdrawals)
    })
    .await;
    others
        .release(held.names.clone(), held.token, None, |_| {})
        .await
        .unwrap();
    for waiting in waiting {
        let refused = waiting.await.unwrap().unwrap().outcome;
        assert!(
            matches!(
                refused,
                AcquireOutcome::Refused(Refused::TooManyLeases { .. })
            ),
            "{refused:?}"
        );
    }
    assert_eq!(withdrawals(), before, "nothing was granted");
    let next = Claim {
        names: held.names.clone(),
        ..claim()
    };
    eventually("the queue is empty", async || {
        hold(&others, &next).await.then_some(())
    })
    .await;
}
